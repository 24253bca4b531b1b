"""How often the nodes of a graph run from start to end, counted ahead; and the argument `run` of a `setup`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

from graphtrain.data.samplers import EpochLength, epoch_length
from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.graph.elements import nodes_of
from graphtrain.kind.batch_limit import combined_length, most_batches
from graphtrain.names import suggestion
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import Scope, resources_of
from graphtrain.program.bind import Program
from graphtrain.ranks import current_ranks

if TYPE_CHECKING:
    from graphtrain.plan.counted import Counted

LengthOf = Callable[[str], EpochLength | Mapping[str, EpochLength | None] | None]
"""The length of an epoch of the data in a resource; None if it has none. KeyError: it is not given.

    For a mapping of loaders, that of each.
"""


@final
class WholeRun:
    """The counts of one whole run of a graph, without fetching data or training.

    Arguments:
        length_of: the length of data, by the name of the resource.
        window_ranks: the ranks with which the run begins: a window has the micro-batches of all of them. Steps are the
            same for any number of ranks that continues with these windows. Default: 1.
        ranks: those that fetch batches, each its own: counts such as the runs of a node are then of rounds. Default: 1.

    >>> from graphtrain import Graph
    >>> plan = Plan(Graph.load("fit").set("accumulate", every=4).set("finish", after="3 epochs"))
    >>> WholeRun(plan, lambda name: EpochLength(1_000_003)).visits("step")
    750003
    """

    def __init__(self, plan: Plan, length_of: LengthOf, window_ranks: int = 1, ranks: int = 1) -> None:
        self._plan, self._length_of = plan, length_of
        self._window_ranks, self._ranks = window_ranks, ranks

    def visits(self, path: str) -> int:
        """How often the node at a path runs in the whole run; in a body, in all runs of that.

        Raises:
            UsageError: there is no such node; time or metrics alone end the run, or data has no length.
        """
        if path not in self._plan.by_path:
            raise UsageError(f"there is no node `{path}`", suggestion(path, nodes_of(self._plan.graph)))
        total, scope = 1, self._plan.main
        for name in path.split("/"):
            plan_node = self._plan.by_path[f"{scope.path}{name}"]
            counted = self._counted(scope, plan_node.path)
            if counted.is_uncertain(plan_node):
                raise UsageError(
                    f"how often `{plan_node.path}` runs is not known ahead: time or a metric makes it due "
                    f"({' or '.join((str(plan_node.trigger), *plan_node.extra_due_fields))})",
                    f'count steps or epochs, as in {plan_node.path}.every = "1 epochs"',
                )
            total *= self._run(scope, counted).by_path[plan_node.path].fields["runs"]
            if plan_node.body is not None:
                scope = plan_node.body
        return total

    def _counted(self, scope: Scope, path: str) -> Counted:
        from graphtrain.plan.counted import Counted

        plan = self._plan if scope is self._plan.main else Plan(scope.graph, scope)
        return Counted(plan, path, "runs", self._knows_samples)

    def _knows_samples(self, plan_node: PlanNode) -> bool:
        length = self._length(plan_node)
        return length.last is not None and (length.samples is not None or self._ranks == 1)

    def _run(self, scope: Scope, counted: Counted) -> Program:
        """The program of a graph, run to its end."""
        from graphtrain.program.counting import CountedRanks, CountedRun, EndlessError, fetching

        plan = counted.plan
        ranks = CountedRanks(self._ranks) if self._ranks > 1 else None
        optional = resources_of(target for plan_node in plan.nodes for target in plan_node.optional)
        program = Program(plan, {**dict.fromkeys(optional, object()), "ranks": ranks}, counted.left_out)
        program.window_ranks = self._window_ranks
        for program_node in program.nodes:
            if program_node.kind.fetches and not program_node.bypassed:
                program_node.hold(fetching(program_node, self._length(program_node.plan_node)))
        run = CountedRun(program, counted)
        try:
            run.to_end()
        except EndlessError:
            inner = plan.scopes[run.scope_path()]
            unknown = sorted(counted.unknown_at_end(inner))
            decides = f": it ends only as {', '.join(unknown)} decide" if unknown else ""
            ending = (node.path for node in plan.nodes_in(inner) if node.kind.trigger == "after")
            never = next((f"{path}.after" for path in ending), "")
            raise UsageError(
                f"nothing that is counted ends the graph `{inner.graph.name}`{decides}",
                f'give {never} an amount, as in {never} = "10 epochs"' if never else "",
            ) from None
        return program

    # ---- the length of data

    def _length(self, plan_node: PlanNode) -> EpochLength:
        names = plan_node.data
        if not names:
            raise UsageError(
                f"the data of `{plan_node.path}` is made in the graph, so how many batches it has is not known ahead",
                "count by what does not depend on it",
            )
        try:
            length = self._length_of(names[0])
        except KeyError:
            raise UsageError(
                f"how many batches `{names[0]}` has is not known, which `{plan_node.path}` fetches",
                f"supply it: run.steps(..., {names[0]}=...)",
            ) from None
        named = (plan_node.parameters.get(name) for name in ("limit", "overfit"))
        amounts = [amount for amount in named if amount is not None]
        limit = min(amounts, default=None)
        if isinstance(length, Mapping):
            length, limit = _of_loaders(length, limit, plan_node), None
        if length is None:
            raise UsageError(
                f"`{names[0]}` has no length, so how many batches `{plan_node.path}` will fetch is not known ahead",
                "give the data a `__len__`, or compute the number where it is needed from what you know of the data",
            )
        return _limited(length, limit)


@final
class PlannedRun:
    """A run of a graph, before it begins: the argument `run` of `setup`.

    Arguments:
        graph: a sound graph, with the parameters that the run has.
        device: where the run trains. Default: "auto", as for a `Trainer`.

    Attributes:
        rank: the number of this process among those of the run, from 0.
        world_size: the number of processes.
        mesh_shape: the replicas and the shards of `mesh`, whose product is the number of processes. Default: one
            dimension, in which every process is a shard.

    >>> run = PlannedRun(Graph.load("fit").set("accumulate", every=4).set("finish", after="3 epochs"))
    >>> run.steps([0] * 10), run.steps([0] * 10, node="train_batch")
    (9, 30)
    >>> run.rank, run.world_size
    (0, 1)
    """

    mesh_shape: tuple[int, ...] | None = None

    def __init__(self, graph: Graph, device: Any = "auto") -> None:
        self._plan, self._device = Plan(graph), device
        ranks = current_ranks()
        self.rank, self.world_size = ranks.rank, ranks.world_size

    def steps(self, train_data: Any, /, node: str = "step", **data: Any) -> int:
        """How often a node will run in the whole run, from its start; for `step`, the number of optimizer steps.

        Only the counters of the graph are run. A guard that reads anything else, such as a metric, counts as false, so
        if metrics decide the number is an upper bound. At a resume it is also that of the whole run, if the number of
        processes is the same as at the start.

        Arguments:
            train_data: the data, of which only the length is read, and for a loader the batch size.
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

    @property
    def mesh(self) -> Any:
        """A `torch.distributed.DeviceMesh` over all processes: `fully_shard(module, mesh=run.mesh)` shards a model.

        Raises:
            UsageError: `mesh_shape` does not fit the number of processes.
        """
        from graphtrain.program.resources import resolve_device  # imports torch

        shape = (self.world_size,) if self.mesh_shape is None else tuple(self.mesh_shape)
        if not 1 <= len(shape) <= 2 or math.prod(shape) != self.world_size:
            raise UsageError(
                f"run.mesh_shape = {shape}: there are {self.world_size} processes",
                "set it to (replicas, shards), whose product is that number; or leave it out",
            )
        ranks = current_ranks()
        device = resolve_device(self._device, ranks.local_rank if ranks.world_size > 1 else None)
        return ranks.mesh(device.type, shape)

    def __repr__(self) -> str:
        return f"<PlannedRun of {self._plan.graph.title}>"


def _limited(length: EpochLength, limit: float | None) -> EpochLength:
    most = most_batches(limit, length.batches)
    return EpochLength(most, length.samples, length.samples) if most is not None and most < length.batches else length


def _of_loaders(
    lengths: Mapping[str, EpochLength | None], limit: float | None, plan_node: PlanNode
) -> EpochLength | None:
    """The length of an epoch of several loaders, of which each or all of them are limited."""
    known = [length for length in lengths.values() if length is not None]
    if len(known) < len(lengths):
        return None
    combine = plan_node.parameters.get("combine") or ("cycle" if plan_node.scope.steps else "in_turn")
    if combine == "in_turn":
        return EpochLength(sum(_limited(length, limit).batches for length in known))
    batches = combined_length([length.batches for length in known], combine)
    return _limited(EpochLength(batches), limit) if batches is not None else None
