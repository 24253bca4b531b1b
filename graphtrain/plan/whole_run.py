"""How often the nodes of a graph run from its start to its end, counted ahead."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

from graphtrain.errors import UsageError
from graphtrain.graph.renaming import paths_of
from graphtrain.kind.batch_limit import BatchLimit, combined_length
from graphtrain.kind.trigger import COUNTS_RUN, Term
from graphtrain.names import suggestion
from graphtrain.plan.counting import Counted, Counting, EndlessError, EpochLength, Surroundings, data_read_by
from graphtrain.plan.linear import UNKNOWN
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import Scope

LengthOf = Callable[[str], EpochLength | Mapping[str, EpochLength | None] | None]
"""The length of an epoch of the data that a resource is; None where it has none. KeyError: nobody says.

Of a mapping of loaders, that of each.
"""


@final
class WholeRun:
    """What one whole run of a graph comes to: no data is fetched, and nothing is trained.

    Arguments:
        length_of: the length of data, by the name of the resource.
        window_ranks: the ranks with which the run begins: a window has the micro-batches of all of them. Steps are the
            same for any number of ranks that goes through these windows. Default: 1.
        ranks: those that fetch batches, each its own: what is asked after each of them, such as how often a node runs,
            is asked after a round. Default: 1.

    >>> from graphtrain import Graph
    >>> plan = Plan(Graph.load("fit").set("accumulate", every=4).set("finish", after="3 epochs"))
    >>> WholeRun(plan, lambda name: EpochLength(1_000_003)).visits("step")
    750003
    """

    def __init__(self, plan: Plan, length_of: LengthOf, window_ranks: int = 1, ranks: int = 1) -> None:
        self._plan = plan
        self._length_of = length_of
        self._wholes: dict[str, int] = {}
        self._asked: list[str] = []
        self._bodies: dict[str, Counted | UsageError] = {}
        self._around = Surroundings(self._length, self._count_body, self._whole, window_ranks, ranks)

    def visits(self, path: str) -> int:
        """How often the node at a path runs in the whole run; in a body, in all runs of that.

        Raises:
            UsageError: there is no such node; time or metrics alone end the run, or data has no length.
        """
        if path not in self._plan.by_path:
            raise UsageError(f"there is no node `{path}`", suggestion(path, paths_of(self._plan.graph)))
        total, scope = 1, self._plan.main
        for part in path.split("/"):
            counting = Counting(self._plan, scope, self._around, part)
            planned = self._plan.by_path[f"{scope.path}{part}"]
            visits = self._counted(counting, scope).visits
            if visits is UNKNOWN:
                raise UsageError(
                    f"how often `{planned.path}` runs is not known ahead: time or a metric makes it due "
                    f"({' or '.join((str(planned.trigger), *planned.also_due))})",
                    f'count steps or epochs, as in {planned.path}.every = "1 epochs"',
                )
            total *= visits
            if planned.body is not None:
                scope = planned.body
        return total

    def batches_per_epoch(self, planned: PlanNode) -> int:
        """The batches in an epoch of the data that a node fetches.

        Raises:
            UsageError: they are not known ahead.
        """
        return self._length(planned).batches

    def total(self, planned: PlanNode, field_name: str) -> int:
        """What a field holds when the graph that its node is in has run once.

        Raises:
            UsageError: as of `visits`; or that depends on this number itself.
        """
        text = f"{planned.path}.{field_name}"
        if text in self._asked:
            raise UsageError(
                f"`{text}` at the end of the run depends on when a part of the run is over, which depends on it",
                "count what decides the length of the run by epochs or steps",
            )
        if text not in self._wholes:
            self._asked.append(text)
            try:
                name = f"{planned.node.name}.{field_name}"
                counting = Counting(self._plan, planned.scope, self._around, wanted=frozenset({name}))
                value = self._counted(counting, planned.scope).fields[name]
            finally:
                self._asked.pop()
            if value is UNKNOWN or not value:
                raise UsageError(f"what `{text}` comes to is not known ahead", "count by epochs or steps instead")
            self._wholes[text] = int(value)
        return self._wholes[text]

    def _whole(self, planned: PlanNode, term: Term) -> int:
        owner, field_name = planned.scope.counter(COUNTS_RUN)
        try:
            return self.total(self._plan.by_path[f"{planned.scope.path}{owner}"], field_name)
        except UsageError as error:
            raise UsageError(f'`{planned.path}` is due by "{term}": {error.message}', error.hint) from None

    def _counted(self, counting: Counting, scope: Scope) -> Counted:
        try:
            return counting.run()
        except EndlessError as error:
            unknown = sorted(counting.unknown)
            decides = f": it ends only as {', '.join(unknown)} decide" if unknown else ""
            never = [
                f"{planned.path}.after"
                for planned in self._plan.nodes_in(scope)
                if planned.trigger is not None and planned.kind is not None and planned.kind.trigger == "after"
            ]
            hint = f'give {never[0]} an amount, as in {never[0]} = "10 epochs"' if never else error.hint
            raise UsageError(f"{error.message}{decides}", hint) from None

    def _count_body(self, planned: PlanNode) -> Counted:
        """One run of a body: what it leaves in the fields of its nodes that are read around it."""
        if planned.path not in self._bodies:
            assert planned.body is not None
            prefix = planned.body.path
            read = {
                f"{path.removeprefix(prefix)}.{name}"
                for path, name in self._plan.fields_read
                if path.startswith(prefix)
            }
            try:
                counting = Counting(self._plan, planned.body, self._around, wanted=frozenset(read))
                self._bodies[planned.path] = self._counted(counting, planned.body)
            except UsageError as error:
                self._bodies[planned.path] = error
        counted = self._bodies[planned.path]
        if isinstance(counted, UsageError):
            raise counted
        return counted

    def _length(self, planned: PlanNode) -> EpochLength:
        if (batches := planned.parameters.get("batches_per_epoch")) is not None:
            return EpochLength(batches)
        names = data_read_by(planned)
        if not names:
            raise UsageError(
                f"the data of `{planned.path}` is made in the graph, so how many batches it has is not known ahead",
                "count by what does not depend on it",
            )
        try:
            length = self._length_of(names[0])
        except KeyError:
            raise UsageError(
                f"how many batches `{names[0]}` has is not known, which `{planned.path}` fetches",
                f"supply it: run.steps(..., {names[0]}=...)",
            ) from None
        named = (planned.parameters.get(name) for name in ("limit", "overfit"))
        amounts = [amount for amount in named if amount is not None]
        limit = BatchLimit(min(amounts, default=None))
        if isinstance(length, Mapping):
            length, limit = _of_loaders(length, limit, planned), BatchLimit(None)
        if length is None:
            raise UsageError(
                f"`{names[0]}` has no length, so how many batches `{planned.path}` will fetch is not known ahead",
                "give the data a `__len__`, or compute the number where it is needed from what you know of the data",
            )
        return _limited(length, limit)


def _limited(length: EpochLength, limit: BatchLimit) -> EpochLength:
    most = limit.of(length.batches)
    return EpochLength(most, length.samples, length.samples) if most is not None and most < length.batches else length


def _of_loaders(lengths: Mapping[str, EpochLength | None], limit: BatchLimit, planned: PlanNode) -> EpochLength | None:
    """The length of an epoch of several loaders, of which each or all of them are limited."""
    known = [length for length in lengths.values() if length is not None]
    if len(known) < len(lengths):
        return None
    combine = planned.parameters.get("combine") or ("cycle" if planned.scope.steps else "in_turn")
    if combine == "in_turn":
        return EpochLength(sum(_limited(length, limit).batches for length in known))
    batches = combined_length([length.batches for length in known], combine)
    return _limited(EpochLength(batches), limit) if batches is not None else None
