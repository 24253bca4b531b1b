"""The argument `run` of `setup`, with the number of steps of a run, which follows from epochs and windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeVar, final

import networkx

from graphtrain.data.loaders import loaders_of
from graphtrain.data.samplers import length_of
from graphtrain.errors import UsageError
from graphtrain.graph import EditableGraph
from graphtrain.graph.calls import checked_call
from graphtrain.graph.closures import Cell, compile_guard
from graphtrain.graph.elements import END
from graphtrain.graph.syntax import Expression, FieldOf, Name
from graphtrain.kind.batch_limit import most_batches
from graphtrain.names import quoted
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.printable import Notices
from graphtrain.ranks import current_ranks

Item = TypeVar("Item")


@final
class _EpochsOfWindows:
    """A graph that trains like `fit`: a backward pass for each batch, windows of one size, and an end by an amount.

    Attributes:
        unknown: what may make the steps fewer, but is only known while the graph runs.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        nodes = plan.nodes_in(plan.main)
        self._source = _only([node for node in nodes if node.kind.fetches], "fetch batches")
        self._finish = _only([node for node in nodes if node.kind.trigger == "after"], "end the run")
        _only([node for node in plan.nodes if "backward" in node.kind.does], "run backward")
        counters = [(node, field) for node in nodes for field in node.kind.fields.values() if field.counts is not None]
        self._window, self._counter = _only(counters, "count the passes of a window")
        self.unknown: dict[str, None] = {}
        ends = [edge.guard for node in nodes for edge in node.edges if edge.target is None and edge.guard is not None]
        if any(self._holds(guard, count=0) or not self._holds(guard, count=0, due=True) for guard in ends):
            raise _unknown("its end depends on more than an amount")
        self._to_step = self._edge(count=2)
        if self._edge(count=1) in (self._to_step, self._edge(count=1, due=True)):
            raise _unknown(
                f"no edge of `{self._window.path}` leads to a step when a window is full, or cut short by the end"
            )

    def steps(self, train_data: Any, ranks: int) -> int:
        """The steps of a run that begins with this number of ranks; a window has the micro-batches of all of them."""
        name, target = self._finish.path, str(self._counter.target)
        if target in self._window.expressions:
            raise _unknown(f"`{self._window.path}.{target}` is an expression")
        size = self._window.parameters[target] * ranks
        trigger = self._finish.trigger
        terms = trigger.terms if trigger is not None else ()
        if not terms or not {term.base.unit for term in terms} <= {"epochs", "batches", "steps"}:
            hint = f'count epochs or steps, as in {name}.after = "10 epochs"'
            raise _unknown(f'`{name}.after` = "{trigger or "never"}"', hint)
        ends = [math.ceil(term.amount) for term in terms if term.unit == "steps"]
        if len(ends) < len(terms):
            epoch = _batches_in_epoch(self._source, train_data)
            amounts = [term.amount * (epoch if term.unit == "epochs" else 1) for term in terms if term.unit != "steps"]
            ends += [self._of_batches(math.ceil(amount), epoch, size) for amount in amounts]
            self.unknown |= dict.fromkeys(self._ways_around_the_step())
        return min(ends)

    def _of_batches(self, batches: int, epoch: int, size: int) -> int:
        """The steps in this many batches: a short window is stepped, dropped, or continues in the next epoch."""
        at_last, at_end = self._edge(count=1, last=True), self._edge(count=1, due=True)
        epochs, rest = divmod(batches, epoch) if at_last != self._edge(count=1) else (0, batches)
        of_epoch = (math.ceil if at_last == self._to_step else math.floor)(Fraction(epoch, size))
        return epochs * of_epoch + (math.ceil if at_end == self._to_step else math.floor)(Fraction(rest, size))

    def _ways_around_the_step(self) -> list[str]:
        """The edges by which batches leave the way to the step, except those of the counter of the window."""
        nodes = self._plan.nodes_in(self._plan.main)
        steps = {node for node in nodes if "step" in node.kind.does}
        pairs = [(node, edge.target or END) for node in nodes for edge in node.edges]
        network = networkx.DiGraph([pair for pair in pairs if pair[0] not in steps and pair[1] is not self._source])
        before = steps.union(*[networkx.ancestors(network, node) for node in steps if node in network])
        on_the_way = before & {self._source, *networkx.descendants(network, self._source)} - {self._window, *steps}
        return [
            f"{node.path} -> {target if isinstance(target, str) else target.path}"
            for node, target in pairs
            if node in on_the_way and (target is self._source or target not in {*on_the_way, self._window, *steps})
        ]

    def _edge(self, **values: Any) -> int:
        """The number of the edge that is taken with some passes counted in a window of two."""
        guards = [edge.guard for edge in self._window.edges if edge.guard is not None]
        return next((number for number, guard in enumerate(guards) if self._holds(guard, **values)), len(guards))

    def _holds(self, guard: Expression, *, count: int, last: bool = False, due: bool = False) -> bool:
        """The value of a guard with `count` passes in a window of two; `last`: of an epoch; `due`: of `finish`."""
        window = {self._counter.name: count, self._counter.window: 2, self._counter.target: 2}
        known: dict[tuple[PlanNode, str | None], Any] = {
            **{(self._window, name): value for name, value in window.items()},
            (self._window, self._counter.full): count == 2,
            (self._source, "last"): last,
            (self._source, "exhausted"): False,
            (self._source, "empty"): False,
            (self._finish, "due"): due,
        }

        def value(part: Name | FieldOf) -> Any:
            """The value of a counter; of a field that metrics decide, the initial value."""
            node = self._plan.by_path.get(part.node) if isinstance(part, FieldOf) else None
            if node is None or not isinstance(part, FieldOf):
                self.unknown[part.name if isinstance(part, Name) else f"{part.node}.{part.field}"] = None
                return 0
            if (node, part.field) in known:
                return known[node, part.field]
            declared = node.kind.fields.get(part.field)
            if part.field in ("due", "runs") or node.kind.fetches or (declared is not None and declared.adds):
                raise _unknown(f"a guard reads `{node.path}.{part.field}`")
            if part.field in node.parameters:
                return node.parameters[part.field]
            self.unknown[f"{node.path}.{part.field}"] = None
            return declared.default if declared is not None else 0

        return bool(compile_guard(guard, lambda part: Cell(lambda: value(part)))())


def _only(items: Sequence[Item], does: str) -> Item:
    if len(items) != 1:
        raise _unknown(f"{len(items) or 'no'} nodes {does}")
    return items[0]


def _unknown(reason: str, hint: str = "compute the number in `setup`") -> UsageError:
    return UsageError(f"run.steps: {reason}, so the number of steps is not known before the run", hint)


def _batches_in_epoch(source: PlanNode, data: Any) -> int:
    """The number of batches that a node fetches in an epoch."""
    limit = min((source.parameters[name] for name in ("limit", "overfit") if source.parameters.get(name)), default=None)
    lengths = [length_of(loader) for loader in (loaders_of(data) or {"": data}).values()]
    known = [min(length, most_batches(limit, length) or length) for length in lengths if length is not None]
    if len(known) < len(lengths):
        raise _unknown("the data has no length", "give the data a `__len__`, or compute the number in `setup`")
    return max(known)


@final
class PlannedRun:
    """A run of a graph, before it begins: the argument `run` of `setup`.

    Arguments:
        graph: a sound graph, with the parameters that the run has.
        device: where the run trains. Default: "auto", as for a `Trainer`.
        notify: called with a line if a number of steps is an upper bound. Default: prints to standard error.

    Attributes:
        rank: the number of this process among those of the run, from 0.
        world_size: the number of processes.

    >>> from graphtrain import Graph
    >>> run = PlannedRun(Graph.load("fit").set("accumulate", every=4).set("finish", after="3 epochs"))
    >>> run.steps([0] * 10), run.rank, run.world_size
    (9, 0, 1)
    """

    @checked_call()
    def __init__(self, graph: EditableGraph, device: Any = "auto", notify: Callable[[str], None] | None = None) -> None:
        self._plan, self._device = Plan(graph), device
        ranks = current_ranks()
        self.rank, self.world_size = ranks.rank, ranks.world_size
        self._notices = Notices((lambda line: None) if self.rank else notify)

    def steps(self, train_data: Any, /) -> int:
        """The number of optimizer steps of the whole run, from its start.

        It is known for a graph that trains as `fit` does, with windows of one size, and that ends by epochs, batches or
        steps. If windows may be discarded, or metrics may end the run earlier, it is an upper bound, and a line says
        so. A resumed run has the same number, if it has as many processes as at its start.

        Arguments:
            train_data: the data; only its length is read.

        Raises:
            UsageError: the number is not known before the run, or data has no length.
        """
        epochs = _EpochsOfWindows(self._plan)
        steps = epochs.steps(train_data, self.world_size)
        if epochs.unknown:
            self._notices.once(f"run.steps: at most {steps} steps, fewer depending on {quoted(epochs.unknown)}")
        return steps

    @property
    def mesh(self) -> Any:
        """A `torch.distributed.DeviceMesh` over all processes: `fully_shard(module, mesh=run.mesh)` shards a model."""
        from graphtrain.program.resources import resolve_device  # imports torch

        ranks = current_ranks()
        return ranks.mesh(resolve_device(self._device, ranks.local_rank if ranks.world_size > 1 else None).type)
