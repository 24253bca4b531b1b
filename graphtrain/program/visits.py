"""The visits of nodes: the call with its slots, and the aspects around it.

A call is specialised for its slots here, once. Its closures serve nodes of every kind.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol, final

from graphtrain.errors import UsageError
from graphtrain.kind import FunctionRecord, Read, WrittenBatches
from graphtrain.kind.declaration import Ask
from graphtrain.language.closures import constant
from graphtrain.plan.scope import FieldTarget, ResourceTarget, SlotTarget, Target, outputs_of
from graphtrain.program.agreement import Agreement
from graphtrain.program.bind import BoundGraph, BoundNode, Program
from graphtrain.program.cells import Cells
from graphtrain.program.gradient_windows import GradientWindows, Report
from graphtrain.program.resources import StepCall
from graphtrain.program.rounds import Act, Rounds, source_of_batches, then
from graphtrain.program.triggers import After


class Aspect(Protocol):
    """An aspect of the visits of nodes.

    The order is defined here. From the inside out: expressions, ranks, windows (`Visits.aspects`); then the trigger and
    the choice of an edge, which make a transition of a visit (`table`); around that timing, and on request the times of
    nodes or the trace.
    """

    def wrap(self, bound: BoundNode, visit: Act) -> Act:
        """The visit of a node with this aspect; the visit itself if it has nothing to do."""


def nothing() -> None:
    """Do nothing."""


class Visits:
    """The visits of the nodes of one program, as calls without arguments.

    Attributes:
        aspects: those around the call of a node, from the inside out.
    """

    def __init__(self, program: Program, cells: Cells) -> None:
        self.program, self.cells = program, cells
        self._slots = program.slots
        agreement = program.resources.get("ranks")
        self.rounds = Rounds(program, agreement) if agreement is not None else None
        if self.rounds is not None:
            program.absent += self.rounds.undivided()
        self.windows = GradientWindows(program, cells, self.rounds)
        self.aspects: list[Aspect] = [cells, *filter(None, [self.rounds]), self.windows]
        self.step_requests = StepRequests(program, agreement)
        # Values that the engine provides at set-up: name -> the value for a node.
        self._provided: dict[str, Callable[[BoundNode], Any]] = {
            "asks": self.step_requests.of,
            "current_loader": self._current_loader,
            "graph_trains": lambda bound: bound.scope.names.steps,
            "history": self._history,
            "metric_prefix": lambda bound: bound.metric_prefix,
            "step_names": self._step_names,
            "training_precision": lambda bound: program.training_precision,
        }
        if self.rounds is not None:
            self._provided["windows"] = self.windows.filled_by
        self.setups = [self.setup(bound) for bound in program.nodes]

    # ---- entering a graph

    def enter(self, scope: BoundGraph, *, reset: bool, ready: Collection[BoundNode]) -> None:
        """Set up the nodes of a graph except those in `ready`, with fresh progress if `reset`.

        The order is that of names: the place of a node in a file has no effect, not even on the random numbers that a
        `setup` draws.
        """
        for bound in scope.nodes.values():
            if reset:
                bound.kind.reset(bound.instance)
        self.windows.enter(scope)
        for _, bound in sorted(scope.nodes.items()):
            if not bound.bypassed and bound not in ready:
                self.setups[bound.index]()
        self.windows.rewired(bound for bound in scope.nodes.values() if bound in ready)
        if reset:
            # Outputs that may be absent would otherwise keep values of an earlier run of the graph.
            maybe = {*outputs_of(scope.graph)} - {*outputs_of(scope.graph, optional=False)} if scope.outer else ()
            self.forget(path for bound in scope.nodes.values() for path in bound.planned.returned.values())
            self.forget(f"{scope.prefix}{name}" for name in maybe)

    def forget(self, paths: Iterable[str]) -> None:
        """Set slots to their state before anything was written."""
        for path in paths:
            self._slots[self.program.slot_index(path)] = None

    def setup(self, bound: BoundNode) -> Act:
        """The call that sets a node up."""
        if bound.kind.setup_reads is None or bound.bypassed:
            return nothing
        getters = [self._setup_getter(bound, read, target) for read, target in bound.planned.setup_reads]
        setup = bound.instance.setup
        return lambda: setup(*(get() for get in getters))

    def _setup_getter(self, bound: BoundNode, read: Read, target: Target) -> Act:
        """A call that returns the setup arguments of a node; data written by nodes is read when it is opened."""
        if read.name in self._provided:
            return constant(self._provided[read.name](bound)).read
        get = self.cells.of(bound, read, target).read
        is_written = read.takes_written and isinstance(target, SlotTarget)
        return constant(WrittenBatches(get)).read if is_written else get

    def _step_names(self, bound: BoundNode) -> Mapping[str, str]:
        """The user's names of the step functions that a node calls, by its name for them."""
        names = {}
        for read, target in bound.planned.reads:
            call = self.program.resources.get(target.name) if isinstance(target, ResourceTarget) else None
            if read.is_step_function and call is not None:
                assert isinstance(target, ResourceTarget), "looked up above"
                names[read.name] = call.name if isinstance(call, StepCall) else target.name
        return names

    def _current_loader(self, bound: BoundNode) -> Act | None:
        """A call that returns the loader of the present batch, for step functions that take `loader`."""
        target = self.program.step_input(bound, Read("loader"))
        return self.cells.at(target.node, target.field).read if isinstance(target, FieldTarget) else None

    def _history(self, bound: BoundNode) -> Any:
        from graphtrain.program.history import History  # which few graphs ask for

        return History(bound, self.program, self.program.resources["checkpoints"])

    # ---- visits

    def of(self, bound: BoundNode) -> Act:
        """The visit of a node that is due."""
        visit = self.call(bound)
        for aspect in self.aspects:
            visit = aspect.wrap(bound, visit)
        return visit

    def call(self, bound: BoundNode) -> Act:
        """The call of a node with its slots, its result stored."""
        if isinstance(bound.instance, FunctionRecord):
            function: Callable[..., Any] = bound.kind.implementation
            if passed := bound.kind.passed(bound.parameters):
                function = functools.partial(function, **passed)
                bound.arguments = function.keywords  # not a copy: values set by expressions are passed
        else:
            function = bound.instance.__call__
        call, writes = self._with_slots(function, bound), self.indices(bound)
        if bound.kind.reports_backward:
            self.windows.reports[bound.index] = report = Report(bound.path)
            return _storing_reported(call, self._slots, writes, report)
        call = _storing(call, self._slots, writes)
        return then(call, functools.partial(self.forget, sorted(bound.planned.kills))) if bound.planned.kills else call

    def at_end(self, scope: BoundGraph) -> list[Act]:
        """The calls of nodes at the end of a graph, those that end it last, so that they see the others' effects."""
        is_main, acts = scope.outer is None, []
        nodes = sorted(scope.nodes.values(), key=lambda bound: (None in self.program.targets(bound), bound.path))
        for bound in nodes:
            kind, instance = bound.kind, bound.instance
            if not bound.bypassed and (kind.acts_at_end if is_main else kind.acts_at_body_end):
                method = instance.at_end if is_main else instance.at_body_end
                reads = kind.reads_at_end
                acts.append(self.cells.wrap(bound, self._with_slots(method, bound)) if reads else method)
        return acts

    def indices(self, bound: BoundNode) -> list[int]:
        """The slots to which the results of a visit are written."""
        return [self.program.slot_index(path) for path in bound.planned.own_writes]

    def _with_slots(self, function: Callable[..., Any], bound: BoundNode) -> Act:
        """A call without arguments, specialised by the number of inputs: a general one costs 0.12 us more."""
        slots, reads, program = self._slots, bound.planned.reads, self.program

        def is_at_default(read: Read, target: Target) -> bool:
            """True for a resource that is not supplied, and that is read with a default."""
            if read.required or not isinstance(target, ResourceTarget):
                return False
            return program.resource(target.name, read, bound.path) is read.default

        while reads and is_at_default(*reads[-1]):  # 0.05 us for one that is passed
            reads = reads[:-1]
        cells = [self.cells.of(bound, read, target) for read, target in reads]
        indices = [index for cell in cells if (index := self.cells.index(cell)) is not None]
        if len(indices) < len(cells):
            getters = [cell.read for cell in cells]
            return lambda: function(*[get() for get in getters])
        match indices:
            case []:
                return function
            case [a]:
                return lambda: function(slots[a])
            case [a, b]:
                return lambda: function(slots[a], slots[b])
            case [a, b, c]:
                return lambda: function(slots[a], slots[b], slots[c])
            case [a, b, c, d]:
                return lambda: function(slots[a], slots[b], slots[c], slots[d])
            case [a, b, c, d, e]:
                return lambda: function(slots[a], slots[b], slots[c], slots[d], slots[e])
        return lambda: function(*[slots[index] for index in indices])


def _storing(call: Act, slots: list[Any], writes: list[int]) -> Act:
    if not writes:
        return call
    if len(writes) == 1:
        index = writes[0]

        def store() -> None:
            slots[index] = call()

        return store
    if len(writes) == 2:
        first, second = writes

        def store_two() -> None:
            slots[first], slots[second] = call()

        return store_two

    def store_all() -> None:
        for index, value in zip(writes, call(), strict=True):
            slots[index] = value

    return store_all


def _storing_reported(call: Act, slots: list[Any], writes: list[int], report: Report) -> Act:
    """The call of a node that returns, after what it writes, whether it ran backward."""

    def store() -> None:
        returned = call()
        values = returned if isinstance(returned, tuple) and writes else (returned,)
        if len(values) != len(writes) + 1 or not isinstance(values[-1], bool):
            received = f"{len(values)} values, the last of type {type(values[-1]).__name__}"
            raise UsageError(
                f"{report.path}: a kind with the effect `backward?` returns, last, whether it did; got {received}",
                f"return {len(writes)} values that it writes, and True or False" if writes else "return True or False",
            )
        report.ran_backward = values[-1]
        for index, value in zip(writes, values, strict=False):
            slots[index] = value

    return store


# ---- requests of step functions: `STOP` and `END_EPOCH`


# The progress of a node with requests that are not granted yet.
_PENDING = "asking"
_MOST_NODES = 32  # with requests by step functions, in a record of ranks


@final
class StepRequests:
    """Grants the requests of the step functions of one program.

    Among several ranks one request is enough. They learn of it where they next synchronise, which a save does too, and
    all grant it before the next batch, regardless of saves in between. Until then it is progress of the requesting
    node.

    Arguments:
        agreement: that with the other ranks. Default: there are none.
    """

    def __init__(self, program: Program, agreement: Agreement | None = None) -> None:
        self._program, self._agreement = program, agreement
        self._asking = [bound for bound in program.nodes if bound.is_set_up_with("asks")]
        if agreement is not None:
            agreement.learn, agreement.grant = self._learn, self._grant_all

    def of(self, bound: BoundNode) -> Callable[[Ask], None]:
        """A call by which the step function of a node makes a request."""
        if self._agreement is None:
            return lambda ask: self._grant(bound, ask)
        agreement, number = self._agreement, self._asking.index(bound)

        def ask_all(ask: Ask) -> None:
            if number >= _MOST_NODES:
                raise UsageError(f"`{bound.path}` asks for {ask}, and so may {number} nodes before it", "use fewer")
            agreement.asked |= 1 << (2 * number + (ask is Ask.END_EPOCH))

        return ask_all

    def _learn(self, asked: int) -> None:
        for number, bound in enumerate(self._asking[:_MOST_NODES]):
            for ask in Ask:
                if asked >> (2 * number + (ask is Ask.END_EPOCH)) & 1:
                    bound.fields[_PENDING] = f"{bound.fields[_PENDING]} {ask.name}".strip()

    def _grant_all(self) -> None:
        for bound in self._asking:
            self._grant_pending(bound)

    def _grant_pending(self, bound: BoundNode) -> None:
        if pending := bound.fields.get(_PENDING):
            bound.fields[_PENDING] = ""
            for name in dict.fromkeys(pending.split()):
                self._grant(bound, Ask[name])

    def enter(self, scope: BoundGraph) -> None:
        """Grant in one process the requests that several ranks saved before they granted them."""
        for bound in self._asking if self._agreement is None else ():
            if bound.scope is scope and not bound.bypassed:
                self._grant_pending(bound)

    def _grant(self, bound: BoundNode, ask: Ask) -> None:
        if ask is Ask.STOP:
            self._stop(bound)
        else:
            self._end_epoch(bound)

    def _stop(self, asking: BoundNode) -> None:
        """Make the ending of the innermost enclosing graph that has one due."""
        for scope in reversed([*asking.scope.around()]):
            ending = [
                bound
                for bound in scope.nodes.values()
                if isinstance(bound.trigger, After) and (bound.path, "due") in self._program.plan.fields_read
            ]
            for bound in ending:
                bound.trigger.stop()
            if ending:
                return
        raise UsageError(
            f"a step function that `{asking.path}` calls returned STOP, and no guard asks whether a node with `after` "
            "is due",
            'add a node of the kind `finish`, and let the edge to "end" ask `finish.due`, as in `fit`',
        )

    def _end_epoch(self, asking: BoundNode) -> None:
        """Let the node that fetches the batches end the epoch."""
        source = source_of_batches(self._program, asking)
        end_epoch = getattr(source.instance, "end_epoch", None) if source is not None else None
        if end_epoch is None:
            raise UsageError(
                f"a step function that `{asking.path}` calls returned END_EPOCH, and its batches come from no node "
                "that can end an epoch",
                "fetch them with `next_batch`, or give the kind that does a method `end_epoch()`",
            )
        end_epoch()
