"""Visits of nodes: the call of a kind with what it reads and writes, and what wraps it.

Calls are specialised here, once, for the number of values that they read and write.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from graphtrain.errors import UsageError
from graphtrain.graph.closures import constant
from graphtrain.kind import FunctionRecord, Read, WrittenBatches
from graphtrain.kind.declaration import FROM, StepRequest
from graphtrain.plan.scope import Scope
from graphtrain.program.bind import Program, ProgramNode
from graphtrain.program.cells import Cells
from graphtrain.program.gradient_windows import GradientWindows
from graphtrain.program.rank_visits import Act, RankVisits, batch_slots, source_of, then
from graphtrain.program.resources import StepCall
from graphtrain.program.triggers import After


def nothing() -> None:
    """Do nothing."""


class Visits:
    """The visits of the nodes of one program, as calls without arguments.

    Attributes:
        aspects: the wrappers of a call, from the inside out: expressions, ranks, windows. Trigger and choice of an edge
            (`table`) make a transition of a visit.
    """

    def __init__(self, program: Program, cells: Cells) -> None:
        self.program, self.cells = program, cells
        self._slots = program.slots
        agreement = program.resources.get("ranks")
        self.rank_visits = RankVisits(program, agreement, self._with_slots) if agreement is not None else None
        self.windows = GradientWindows(program, cells, self.rank_visits)
        self.aspects: list[Callable[[ProgramNode, Act], Act]] = [cells.wrap, self.windows.wrap]
        # Values that the engine provides to `setup`: name -> node -> value.
        self._provided: dict[str, Callable[[ProgramNode], Any]] = {
            "asks": lambda node: lambda request: handle_request(program, node.path, request.name),
            "current_loader": self._current_loader,
            "graph_trains": operator.attrgetter("scope.steps"),
            "history": self._history,
            "metric_prefix": program.metric_prefix,
            "step_names": self._step_names,
            "training_precision": lambda node: program.training_precision,
        }
        if self.rank_visits is not None:
            from graphtrain.program.overlap import exchanging_within  # which one process never needs

            program.absent += self.rank_visits.undivided()
            overlap = functools.partial(exchanging_within, program, cells, self.rank_visits, self.of)
            self.aspects[1:1] = [self.rank_visits.wrap, overlap]
            agreement = self.rank_visits.agreement
            self._provided["asks"] = lambda node: lambda request: agreement.requested.append((node.path, request.name))
            self._provided |= {"windows": self.windows.filled_by, "backward": lambda node: agreement.backward}
        self.setups = [self.setup(node) for node in program.nodes]

    # ---- entering a graph

    def enter(self, scope: Scope, *, reset: bool, ready: Collection[ProgramNode] = ()) -> None:
        """Set up the nodes of a graph in the order of their names: their order in a file never changes random numbers.

        Arguments:
            reset: True resets their progress; False keeps it.
            ready: nodes that are set up already. Default: none.

        Raises:
            UsageError: an amount cannot be counted, such as ``"0.25 epochs"`` of data without a length.
        """
        nodes = self.program.nodes_in(scope)
        for node in nodes if reset else ():
            node.kind.reset(node.instance)
        for node in sorted(nodes, key=operator.attrgetter("path")):
            if not node.bypassed and node not in ready:
                self.setups[node.index]()
                if node.own_attributes is not None:
                    node.own_attributes.note()
        for node in nodes:
            try:
                if node.trigger is not None:
                    node.trigger.start()
            except UsageError as error:
                name = f'{node.path}.{node.kind.trigger} = "{node.plan_node.trigger}"'
                raise UsageError(f"{name}: {error.message}", error.hint) from None

    def setup(self, node: ProgramNode) -> Act:
        """The call of `setup` of a node, with its arguments."""
        if node.kind.setup_reads is None or node.bypassed:
            return nothing
        setup, getters = node.instance.setup, []
        for read, ref in node.plan_node.setup_reads:
            provided = self._provided.get(read.name)
            cell = constant(provided(node)) if provided is not None else self.cells.of(node, read, ref)
            if "written batches" in read.holds and ref.category == "slot":  # read when it is opened
                cell = constant(WrittenBatches(cell.read))
            getters.append(cell.read)
        return lambda: setup(*[get() for get in getters])

    def _step_names(self, node: ProgramNode) -> Mapping[str, str]:
        """The step functions that a node calls: its name for each -> the name of the user."""
        names = {}
        for read, ref in node.plan_node.reads:
            call = self.program.resources.get(ref.name) if ref.category == "resource" else None
            if "a step function" in read.holds and call is not None:
                names[read.name] = call.name if isinstance(call, StepCall) else ref.name
        return names

    def _current_loader(self, node: ProgramNode) -> Act | None:
        """A call that returns the name of the loader of the present batch; None if the graph does not have it."""
        ref = self.program.step_input(node, Read("loader"))
        return self.cells.at(ref.path, ref.name).read if ref.category == "field" else None

    def _history(self, node: ProgramNode) -> Any:
        from graphtrain.program.history import History  # which few graphs ask for

        return History(self.program, node, self.program.resources["checkpoints"])

    # ---- visits

    def of(self, node: ProgramNode) -> Act:
        """The visit of a node, without its trigger."""
        visit = self.call(node)
        for wrap in self.aspects:
            visit = wrap(node, visit)
        return visit

    def call(self, node: ProgramNode) -> Act:
        """The call of a node with what it reads; its result is stored in slots."""
        if isinstance(node.instance, FunctionRecord):
            function: Callable[..., Any] = node.kind.implementation
            if passed := {name: value for name, value in node.parameters.items() if name != FROM}:
                function = functools.partial(function, **passed)
                node.arguments = function.keywords  # not a copy: values set by expressions are passed
        else:
            function = node.instance.__call__
        call = _storing(self._with_slots(function, node, omits=True), self._slots, node.plan_node.own_writes)
        cleared = dict.fromkeys(node.plan_node.kills)
        return then(call, functools.partial(self._slots.update, cleared)) if cleared else call

    def at_end(self, scope: Scope) -> list[Act]:
        """The calls of `at_end` or `at_body_end`; nodes with an edge to the end come last, to see effects of others."""
        is_main, acts = scope.outer is None, []
        nodes = sorted(self.program.nodes_in(scope), key=lambda node: (None in self.program.targets(node), node.path))
        for node in nodes:
            kind, instance = node.kind, node.instance
            if not node.bypassed and kind.has("at_end" if is_main else "at_body_end"):
                method = instance.at_end if is_main else instance.at_body_end
                acts.append(self.cells.wrap(node, self._with_slots(method, node)) if kind.reads_at_end else method)
        return acts

    def _with_slots(self, function: Callable[..., Any], node: ProgramNode, *, omits: bool = False) -> Act:
        """A call without arguments, specialised for the number of inputs, which saves 0.12 us."""
        reads = node.plan_node.reads
        cells = [self.cells.of(node, read, ref) for read, ref in reads]
        # The last inputs are left out where they are their defaults, which saves 0.05 us each.
        while omits and cells and cells[-1].is_constant and cells[-1].values[0] is reads[len(cells) - 1][0].default:
            cells.pop()
        places = [(cell.values, cell.key) for cell in cells]
        if None in [values for values, _ in places]:
            getters = [cell.read for cell in cells]
            return lambda: function(*[get() for get in getters])
        match places:
            case []:
                return function
            case [(a, i)]:
                return lambda: function(a[i])
            case [(a, i), (b, j)]:
                return lambda: function(a[i], b[j])
            case [(a, i), (b, j), (c, k)]:
                return lambda: function(a[i], b[j], c[k])
            case [(a, i), (b, j), (c, k), (d, m)]:
                return lambda: function(a[i], b[j], c[k], d[m])
            case [(a, i), (b, j), (c, k), (d, m), (e, n)]:
                return lambda: function(a[i], b[j], c[k], d[m], e[n])
        return lambda: function(*[values[key] for values, key in places])


def _storing(call: Act, slots: dict[str, Any], writes: Sequence[str]) -> Act:
    if not writes:
        return call
    if len(writes) == 1:
        only = writes[0]

        def store() -> None:
            slots[only] = call()

        return store
    if len(writes) == 2:
        first, second = writes

        def store_two() -> None:
            slots[first], slots[second] = call()

        return store_two
    return lambda: slots.update(zip(writes, call(), strict=True))


# ---- requests of step functions: `STOP` and `END_EPOCH`


def handle_request(program: Program, path: str, request: str) -> None:
    """End the run or the epoch, as a step function that the node at `path` calls has requested, by its name.

    With several ranks one request is enough: all of them handle it when they next synchronise, before the next save.
    """
    node, returned = program.by_path[path], f"a step function that `{path}` calls returned {request}"
    if request == StepRequest.END_EPOCH.name:  # the node that fetches the batches ends it
        source = source_of(node, batch_slots(program))
        if source is None or not source.kind.has("end_epoch"):
            raise UsageError(
                f"{returned}, and no node that fetches its batches can end an epoch",
                "fetch them with `next_batch`, or give the kind that does a method `end_epoch()`",
            )
        source.instance.end_epoch()
        return
    for scope in node.scope.around[::-1]:  # the innermost graph that a node with `after` ends
        ending = [
            node
            for node in program.nodes_in(scope)
            if isinstance(node.trigger, After) and (node.path, "due") in program.plan.fields_read
        ]
        for node in ending:
            node.trigger.stop()
        if ending:
            return
    raise UsageError(
        f"{returned}, and no guard reads the `due` of a node with `after`",
        'add a node of the kind `finish`, and let the edge to "end" read `finish.due`, as in `fit`',
    )
