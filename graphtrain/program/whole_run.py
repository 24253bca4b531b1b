"""How often the nodes of a graph run from its start to its end, counted ahead; and what a `setup` is told of it.

The compiled graph is run with nodes that do nothing but count. Triggers, windows, guards and epochs are those of a run,
since the same code evaluates them. A batch takes about 3 us.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from typing import Any, final

from graphtrain.data.samplers import EpochLength, epoch_length
from graphtrain.data.shares import round_size
from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.graph.renaming import paths_of
from graphtrain.kind import derived_clock
from graphtrain.kind.batch_limit import BatchLimit, combined_length
from graphtrain.kind.fields import ROUND, EpochFields
from graphtrain.kind.trigger import Term, Trigger
from graphtrain.language.closures import never
from graphtrain.language.syntax import Constant, Expression, FieldOf, Operation
from graphtrain.names import suggestion
from graphtrain.plan.counted import Counted, data_read_by, epoch_fields_of
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import ExpressionTarget, Scope, resources_of
from graphtrain.program.bind import BoundGraph, BoundNode, Program
from graphtrain.program.cells import Cells
from graphtrain.program.gradient_windows import Report
from graphtrain.program.loop import Transition
from graphtrain.program.rounds import Act
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.program.table import Compiler
from graphtrain.program.triggers import After, Due, Triggers
from graphtrain.program.visits import Visits, nothing
from graphtrain.ranks import current_ranks

# Visits after which it is given up, about a million batches: a number, and no clock, so that a resume gets the same
# answer.
MOST_VISITS = 5_000_000

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
    >>> WholeRun(plan, lambda name: EpochLength(1_003)).visits("step")
    753
    """

    def __init__(self, plan: Plan, length_of: LengthOf, window_ranks: int = 1, ranks: int = 1) -> None:
        self._plan, self._length_of = plan, length_of
        self._window_ranks, self._ranks = window_ranks, ranks
        self._totals: dict[tuple[str, str], int] = {}
        self._asked: list[str] = []
        self._too_long: dict[str, UsageError] = {}
        self._followed: dict[str, tuple[set[str], Program | None]] = {}  # the nodes, and the program that has ended

    def visits(self, path: str) -> int:
        """How often the node at a path runs in the whole run; in a body, in all runs of that.

        Raises:
            UsageError: there is no such node; time or metrics alone end the run, or data has no length.
        """
        if path not in self._plan.by_path:
            raise UsageError(f"there is no node `{path}`", suggestion(path, paths_of(self._plan.graph)))
        total, scope = 1, self._plan.main
        for name in path.split("/"):
            planned = self._plan.by_path[f"{scope.path}{name}"]
            counted = self._counted(scope, planned.path, "runs")
            if counted.is_uncertain(planned):
                raise UsageError(
                    f"how often `{planned.path}` runs is not known ahead: time or a metric makes it due "
                    f"({' or '.join((str(planned.trigger), *planned.also_due))})",
                    f'count steps or epochs, as in {planned.path}.every = "1 epochs"',
                )
            total *= self._run(scope, counted).by_path[planned.path].fields["runs"]
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
        key = planned.path, field_name
        if key not in self._totals:
            self._asked.append(text)
            try:
                counted = self._counted(planned.scope, *key)
                program = self._run(planned.scope, counted)
            finally:
                self._asked.pop()
            value = getattr(program.by_path[planned.path].instance, field_name)
            if not counted.is_known(*key) or not value:
                raise UsageError(f"what `{text}` comes to is not known ahead", "count by epochs or steps instead")
            self._totals[key] = int(value)
        return self._totals[key]

    def _counted(self, scope: Scope, path: str, field_name: str) -> Counted:
        plan = self._plan if scope is self._plan.main else Plan(scope.graph, scope)
        return Counted(plan, path, field_name, self._knows_samples)

    def _knows_samples(self, planned: PlanNode) -> bool:
        length = self._length(planned)
        return length.last is not None and (length.samples is not None or self._ranks == 1)

    def _run(self, scope: Scope, counted: Counted) -> Program:
        """The program of a graph, run to its end.

        Raises:
            UsageError: nothing that is counted ends it, or it is too long.
        """
        if scope.path in self._too_long:
            raise self._too_long[scope.path]
        needed, followed = self._followed.get(scope.path, (set(), None))
        if followed is not None and counted.needed <= needed:
            return followed
        plan = counted.plan
        ranks = _CountedRanks(self._ranks) if self._ranks > 1 else None
        optional = resources_of(target for planned in plan.nodes for target in planned.optional)
        program = Program(plan, {**dict.fromkeys(optional, object()), "ranks": ranks}, self, counted.left_out)
        program.window_ranks = self._window_ranks
        for bound in program.nodes:
            epoch = epoch_fields_of(bound.planned)
            if epoch is not None and not bound.bypassed:
                bound.hold(_fetching(bound, epoch, self._length(bound.planned)))
        cells, ended = _KnownCells(program, counted), list[bool]()
        compiler = Compiler(
            _CountingVisits(program, cells),
            Triggers(program, cells.terms),
            lambda: ended.append(True),
            Stopwatch(lambda time: None),
            counted.detours,
        )
        compiler.enter(program.main, reset=True)
        transitions, position = compiler.transitions, program.main.nodes[program.graph.start].index
        for _ in range(MOST_VISITS):
            position = transitions[position]()
            if ended:
                self._followed[scope.path] = counted.needed, program
                return program
        self._too_long[scope.path] = UsageError(
            f"the graph `{program.graph.name}` is too long to be counted ahead: it was followed for {MOST_VISITS:,} "
            "nodes",
            "compute the number of steps in `setup`; or count by steps what is a part of the run",
        )
        raise self._too_long[scope.path]

    # ---- the length of data

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


@final
class PlannedRun:
    """A run of a graph, before it begins: what `setup` is given as its argument `run`.

    Arguments:
        graph: a sound graph, with the parameters that the run has.

    Attributes:
        rank: the number of this process among those of the run, from 0.
        world_size: how many there are; 1 where it is alone.

    >>> run = PlannedRun(Graph.load("fit").set("accumulate", every=4).set("finish", after="3 epochs"))
    >>> run.steps([0] * 10), run.steps([0] * 10, node="train_batch")
    (9, 30)
    >>> run.rank, run.world_size
    (0, 1)
    """

    def __init__(self, graph: Graph) -> None:
        self._plan = Plan(graph)
        ranks = current_ranks()
        self.rank, self.world_size = ranks.rank, ranks.world_size

    def steps(self, train_data: Any, /, node: str = "step", **data: Any) -> int:
        """How often a node will run in the whole run, from its start: of `step`, the steps of the optimizer.

        The graph is run on its counters alone. A guard that reads anything else, such as a metric, counts as not taken,
        so where metrics decide the number is an upper bound. It is that of the whole run at a resume too, as long as
        it is resumed with as many processes as it began with.

        Arguments:
            train_data: the data, of which only the length is asked, and of a loader the size of its batches.
            node: the path of the node, in a body as ``"fit/step"``. Default: "step".
            data: other data that nodes fetch, by the name of the resource.

        Raises:
            UsageError: there is no such node; time or metrics alone end the run; or data has no length.
        """
        lengths = {"train_data": train_data, **data}
        try:
            ranks = self.world_size
            return WholeRun(self._plan, lambda name: epoch_length(lengths[name]), ranks, ranks).visits(node)
        except UsageError as error:
            raise UsageError(f"run.steps: {error.message}", error.hint) from None

    def __repr__(self) -> str:
        return f"<PlannedRun of {self._plan.graph.title}>"


# ---- nodes that count


def _fetching(bound: BoundNode, epoch: EpochFields, length: EpochLength) -> Any:
    """An object in the place of that of a node which fetches batches, with the fields that follow from counting."""

    def epochs(self: Any) -> int | Fraction:
        fields = vars(self)
        number: int = fields[epoch.epoch]
        if not fields[epoch.opened]:
            return number
        if fields[epoch.last]:
            return number + (not fields[epoch.empty])
        return Fraction(number * length.batches + fields[epoch.epoch_batches], length.batches)

    computed = {
        epoch.epochs: derived_clock.of(counter=epoch.epoch_batches, restarts=epoch.epoch, reach="reach")(epochs),
        epoch.length: property(lambda self: length.batches),
        epoch.batch_index: property(lambda self: max(vars(self)[epoch.epoch_batches] - 1, 0)),
        "reach": lambda self, amount: math.ceil((amount - vars(self)[epoch.epoch]) * length.batches),
    }
    counting = type("Counting", (), computed)()
    bound.kind.reset(counting, whole=True)
    counting.fetched_from = length
    return counting


class _KnownCells(Cells):
    """Cells of what is known ahead."""

    def __init__(self, program: Program, counted: Counted) -> None:
        super().__init__(program)
        self._counted = counted

    def compiled(self, scope: BoundGraph, expression: Expression) -> Act:
        return super().compiled(scope, self._counted.certain(scope.names, expression))

    def expression(self, target: ExpressionTarget) -> Act:
        if unknown := [*self._counted.unknown_of(target)]:
            raise UsageError(
                f"`{target.name}` depends on `{unknown[0]}`, which is not known ahead", "compute the number in `setup`"
            )
        return super().expression(target)

    def due(self, bound: BoundNode) -> Due:
        if isinstance(bound.trigger, After) and not self.terms(bound, bound.planned.trigger):
            return never  # no step function asks for the end
        return super().due(bound)

    def terms(self, bound: BoundNode, trigger: Trigger | None) -> list[tuple[BoundNode, str, Term]]:
        """The amounts of a trigger that are known ahead."""
        terms = self._program.terms(bound, trigger) if trigger is not None else []
        if trigger is bound.planned.trigger and bound.kind.trigger == "after":
            for owner, field, term in terms:
                if not owner.kind.fields[field].in_digest:
                    raise UsageError(
                        f'`{bound.path}.after` = "{term}" ends by time, and how many steps that takes is not known '
                        "ahead",
                        f'count epochs or steps, as in {bound.path}.after = "10 epochs"',
                    )
        return [(owner, field, term) for owner, field, term in terms if self._counted.is_known(owner.path, field)]

    def refuse_endless(self, scope: BoundGraph) -> None:
        """Raise if nothing that is counted ends a graph.

        Raises:
            UsageError: so it is.
        """
        exits = [way for bound in scope.nodes.values() for way in bound.planned.exits if way.target is None]
        if any(way.guard is None or self._may_hold(scope, way.guard) for way in exits):
            return
        unknown, nodes = sorted(self._counted.unknown_at_end(scope.names)), scope.nodes.values()
        decides = f": it ends only as {', '.join(unknown)} decide" if unknown else ""
        ending = next((f"{bound.path}.after" for bound in nodes if bound.kind.trigger == "after"), "")
        raise UsageError(
            f"nothing that is counted ends the graph `{scope.graph.name}`{decides}",
            f'give {ending} an amount, as in {ending} = "10 epochs"' if ending else "",
        )

    def _may_hold(self, scope: BoundGraph, guard: Expression) -> bool:
        match self._counted.certain(scope.names, guard):
            case Operation("or", operands):
                return any(self._may_hold(scope, operand) for operand in operands)
            case Operation("and", operands):
                return all(self._may_hold(scope, operand) for operand in operands)
            case Constant(value):
                return bool(value)
            case FieldOf(path, name) as field:
                bound = scope.at(path)
                epoch = epoch_fields_of(bound.planned) if bound is not None and not bound.bypassed else None
                if bound is not None and epoch is not None and name in (epoch.empty, epoch.exhausted):
                    return not bound.instance.fetched_from.batches
                return self.named(scope, field).read is not never
        return True


class _CountingVisits(Visits):
    """Visits that do nothing but count."""

    def __init__(self, program: Program, cells: _KnownCells) -> None:
        super().__init__(program, cells)
        self._known = cells
        self._ends: set[BoundGraph] = set()
        self.aspects.remove(cells)  # whose values are read where they decide something

    def enter(self, scope: BoundGraph, *, reset: bool, ready: Collection[BoundNode]) -> None:
        super().enter(scope, reset=reset, ready=ready)
        if scope not in self._ends:
            self._known.refuse_endless(scope)
            self._ends.add(scope)

    def setup(self, bound: BoundNode) -> Act:
        return nothing

    def at_end(self, scope: BoundGraph) -> list[Act]:
        return []

    def call(self, bound: BoundNode) -> Act:
        epoch = epoch_fields_of(bound.planned)
        if epoch is not None:
            return self._fetch(bound, epoch)
        fields, declared = bound.fields, bound.kind.fields.values()
        added = [(each.name, each.adds) for each in declared if each.adds is not None]
        copied = [(each.last, each.name) for each in declared if each.last is not None]
        if bound.kind.reports_backward:
            self.windows.reports[bound.index] = Report(bound.path, ran_backward=True)

        def count() -> None:
            for name, amount in added:
                fields[name] += amount
            for last, name in copied:
                fields[last] = fields[name]

        return count if added or copied else nothing

    def _fetch(self, bound: BoundNode, epoch: EpochFields) -> Act:
        """A batch of an epoch whose length is known; of several ranks, a round of them."""
        fields, length = bound.fields, bound.instance.fetched_from
        windows = None
        if self.rounds is not None and ROUND in bound.kind.fields:
            windows, world_size = self.windows.filled_by(bound), self.rounds.agreement.world_size
        before_last, last = length.samples or 0, length.last or 0

        def fetch() -> None:
            if fields[epoch.last] or not fields[epoch.opened]:
                fields[epoch.epoch] += fields[epoch.opened]
                fields[epoch.opened], fields[epoch.epoch_batches] = True, 0
                fields[epoch.last] = fields[epoch.exhausted] = fields[epoch.empty] = False
            if not length.batches:
                fields[epoch.last] = fields[epoch.exhausted] = fields[epoch.empty] = True
                return
            size = 1
            if windows is not None:
                size = round_size(fields[epoch.epoch_batches], length.batches, world_size, windows())
                fields[ROUND] = size
            fields[epoch.epoch_batches] += size
            fields[epoch.batches] += size
            is_last = fields[epoch.epoch_batches] >= length.batches
            fields[epoch.samples] += before_last * (size - 1) + (last if is_last else before_last)
            fields[epoch.last] = is_last

        return fetch


class _CountedRanks:
    """Several ranks that all do the same."""

    rank = 0

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def watch_choices(self, position: int, leave: Transition) -> Transition:
        return leave

    def before_batch(self) -> None:
        """Nothing is agreed on."""

    def gather(self, value: Any) -> list[Any]:
        return [value] * self.world_size


# ---- the length of data


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
