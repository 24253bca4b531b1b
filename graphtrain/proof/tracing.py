"""Why the last transition took its edge, determined afterwards from the resulting state.

A guard is a pure function of saved state, so after a transition it has the same value as during it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any, final

from graphtrain.errors import GuardError
from graphtrain.graph import Graph
from graphtrain.graph.elements import END, nodes_of
from graphtrain.kind.trigger import Trigger, next_multiple
from graphtrain.language.closures import Cell, Read, compile_guard
from graphtrain.language.syntax import FieldOf, Name, walk
from graphtrain.printable import one_line
from graphtrain.program.bind import ProgramGraph, ProgramNode
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Loop, Transition
from graphtrain.program.table import Compiler
from graphtrain.program.triggers import Every
from graphtrain.proof.explanation import (
    Answer,
    Choice,
    ClockReading,
    EdgeReading,
    Event,
    Explanation,
    GuardReading,
    Reading,
    TriggerReading,
)

Trace = Callable[[Explanation], Any]

_UNTRACED = (
    "how it came here is not known, as `run` records no transitions, which would take time: to see each one, call"
    " run(trace=print); to see one, call advance(), then explain()"
)
_IMPURE = (
    "asked again after the transition, the guards lead elsewhere than it went: "
    "one of them reads something that is not saved state"
)


@final
class Explainer:
    """Explains each transition right after it.

    Arguments:
        notify: called once if `trace` raises.

    Attributes:
        trace: called with each explanation. One that raises does not end the run: it is not called again.
        last: the explanation of the last transition seen; None before.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self.trace: Trace | None = None
        self._compiled: CompiledGraph | None = None  # the graph of these transitions: making them takes 0.1 ms
        self._transitions: list[Transition] = []
        self.last: Explanation | None = None

    def transitions(self, compiled: CompiledGraph) -> list[Transition]:
        """The transitions of a graph, each explained right after it."""
        if self._compiled is not compiled:
            self._compiled = compiled
            self._transitions = compiled.wrapped(self)
        return self._transitions

    def wrap(self, node: ProgramNode, visit: Transition) -> Transition:
        """The transition of a node, which is explained right after it."""
        assert self._compiled is not None, "noted before"
        observation = _Observation(self._compiled, node)

        def explained() -> int:
            observation.begin()
            try:
                position = visit()
            except BaseException as error:
                self._keep(observation.explain(node.index, error))
                raise
            self._keep(observation.explain(position))
            return position

        return explained

    def _keep(self, explanation: Explanation) -> None:
        self.last = explanation
        if self.trace is None:
            return
        try:
            self.trace(explanation)
        except Exception as error:
            self.trace = None
            if not isinstance(error, OSError):  # a closed terminal
                self._notify(f"transitions are no longer traced: that raised {type(error).__name__}: {error}")


def explain_untraced(
    compiled: CompiledGraph, loop: Loop, failure: BaseException | None, *, has_run: bool, is_rewired: bool
) -> Explanation:
    """What is known about a transition that was not traced.

        Guards are evaluated again at the end of a run and where one raised: nothing has changed since.

    Arguments:
        failure: the failure of the run; None if it has not failed.
        has_run: False if nothing has run yet in this process.
        is_rewired: True if the run got here in another graph.
    """
    node, error = compiled.program.nodes[loop.position], ""
    event: Event | None = None
    if isinstance(failure, GuardError) and failure.node in compiled.program.by_path:
        node, event = compiled.program.by_path[failure.node], "asked again"
    elif failure is not None:
        event, error = "failed", error_text(failure)
    elif loop.ended and not is_rewired:
        event = "asked again"
    if event is not None:
        return _explanation(compiled, [choice_at(compiled.compiler, node, event)], node.index, error=error)
    position = "the run is over" if loop.ended else f"`{node.path}` is next"
    note = _UNTRACED if has_run else "nothing has run yet in this process"
    return _explanation(compiled, [], node.index, note=f"{note}; {position}")


@final
class _Observation:
    """A transition of one node: values that it changes are noted before, reads of its guards are evaluated after."""

    def __init__(self, compiled: CompiledGraph, program_node: ProgramNode) -> None:
        self._compiled = compiled
        # The transition that ends a body also chooses among the edges of the enclosing node.
        self._nodes = [program_node]
        self._due = compiled.compiler.cells.due(program_node)
        while (outer := self._nodes[-1].scope.outer) is not None:
            self._nodes.append(outer)
        self._outside_reads = {
            (node.scope.prefix, name): compiled.compiler.cells.named(node.scope, Name(name)).read
            for node in self._nodes
            for name in _names_of_outside(node)
        }

    def begin(self) -> None:
        """Note the values that the transition may change."""
        program_node = self._nodes[0]
        is_triggered = isinstance(program_node.trigger, Every)
        self._trigger = trigger_reading(self._compiled.compiler, program_node) if is_triggered else None
        self._is_due = not is_triggered or bool(self._due())
        self._runs = [node.instance.runs for node in self._nodes]
        # The end of a body changes values of the enclosing graph that its guards read: `runs`, `due` and its outputs.
        self._outside: Outside = {key: _value_or_error(read) for key, read in self._outside_reads.items()}

    def explain(self, position: int, error: BaseException | None = None) -> Explanation:
        """The transition that led to a position, or raised."""
        compiled, compiler, program_node = self._compiled, self._compiled.compiler, self._nodes[0]
        event: Event = "entered" if error is None else "failed"
        if program_node.bypassed:
            event = "bypassed"
        elif program_node.instance.runs > self._runs[0]:
            event = "ran"
        elif not self._is_due:
            event = "not due"
        choices = [choice_at(compiler, program_node, event, self._outside, self._trigger)]
        node, taken = program_node, choices[0].taken
        for outer, runs in zip(self._nodes[1:], self._runs[1:], strict=True):
            if taken is None or taken.target != END or outer.instance.runs == runs:
                break
            choices.append(choice_at(compiler, outer, "body ended", self._outside))
            node, taken = outer, choices[-1].taken
        if error is not None:
            is_told = any(edge.answer == "raised" for choice in choices for edge in choice.edges)
            return _explanation(compiled, choices, position, error="" if is_told else error_text(error))
        target = node.scope.nodes.get(taken.target) if taken is not None else None
        expected = compiler.position(target) if target is not None else node.index
        is_pure = position == expected if taken is not None else choices[-1].event == "entered"
        return _explanation(compiled, choices, position, note="" if is_pure else _IMPURE)


def _explanation(
    compiled: CompiledGraph, choices: list[Choice], position: int, *, note: str = "", error: str = ""
) -> Explanation:
    """Choices with the moment and what comes next."""
    clock = compiled.run_clock
    steps, epochs, batch = (clock.count(unit) for unit in ("steps", "epochs", "epoch_batches"))
    taken = choices[-1].taken if choices else None
    is_over = taken is not None and taken.target == END and "/" not in choices[-1].node
    return Explanation(
        tuple(choices),
        END if is_over else compiled.path(position),
        clock.describe(),
        int(steps) if steps is not None else None,
        float(epochs) if epochs is not None and clock.epochs_move() else None,
        int(batch) if batch is not None else None,
        note,
        error,
    )


def _names_of_outside(node: ProgramNode) -> set[str]:
    """The names in the guards on the edges of a node that belong to the enclosing graph."""
    scope = node.scope
    guards = [scope.names.guards[edge.when] for edge in scope.graph.edges[node.node.name] if edge.when is not None]
    names = {part.name for guard in guards for part in walk(guard) if isinstance(part, Name)}
    return names - scope.names.written if scope.outer is not None else set()


def _value_or_error(read: Read) -> Any:
    try:
        return read()
    except Exception as error:
        return error


# ---- the edges of a node evaluated again, with everything that their guards read

# By the prefix of a body and a name in its guards: the value, or error, of the name before the body ended.
Outside = Mapping[tuple[str, str], Any]


def choice_at(
    compiler: Compiler,
    node: ProgramNode,
    event: Event,
    outside: Outside = MappingProxyType({}),
    trigger: TriggerReading | None = None,
) -> Choice:
    """The edges of a node, evaluated in order until one is taken; none if its body began, or it failed."""
    scope = RecordingScope(compiler, node.scope, outside)
    edges = []
    is_open = event not in ("entered", "failed")
    for edge in node.scope.graph.edges[node.node.name]:
        answer: Answer = "taken" if is_open else "not asked"
        guard = scope.ask(edge.when) if is_open and edge.when is not None else None
        if guard is not None and not guard.value:
            answer = "raised" if guard.error else "refused"
        edges.append(EdgeReading(edge.target, edge.when, answer, guard))
        is_open = answer == "refused"
    return Choice(node.path, event, tuple(edges), trigger)


@final
class RecordingScope:
    """The cells of names in the guards of a bound graph; every value read is kept.

    The closures of a guard are made as for the transition table, so they read the same names in the same order.
    """

    def __init__(self, compiler: Compiler, scope: ProgramGraph, outside: Outside) -> None:
        self._compiler, self._scope, self._outside = compiler, scope, outside
        self._reads: list[Reading | GuardReading] = []  # of the guard that is being evaluated
        self._raised = Exception()  # the last error of a guard

    def ask(self, name: str) -> GuardReading:
        """Evaluate a guard; an error is part of the reading, which joins those of the guard that names it."""
        text = self._scope.graph.guards[name]
        expression = self._scope.names.parse(text)
        around, self._reads = self._reads, []
        value, error = None, ""
        try:
            value = compile_guard(expression, self._cell)()
        except Exception as raised:
            self._raised, error = raised, error_text(raised)
        known = {reading.name for reading in self._reads}
        names = dict.fromkeys(_text(part) for part in walk(expression) if isinstance(part, Name | FieldOf))
        not_read = tuple(part for part in names if part not in known)
        overlays = tuple(self._scope.graph.layers.overlays_of_guard(name))
        reading = GuardReading(name, text, value, tuple(self._reads), not_read, error, overlays)
        self._reads = [*around, reading]
        return reading

    def _cell(self, expression: Name | FieldOf) -> Cell:
        """A name, whose value is kept when it is read; also for a parameter."""
        name = _text(expression)
        read = None if name in self._scope.graph.guards else self._compiler.cells.named(self._scope, expression).read

        def recorded() -> Any:
            if read is None:
                guard = self.ask(name)
                if guard.error:
                    raise self._raised
                return guard.value
            key = self._scope.prefix, name
            value = self._outside[key] if key in self._outside else read()
            if isinstance(value, Exception):
                raise value
            reading = Reading(name, value)
            if isinstance(expression, FieldOf):
                node = self._scope.at(expression.node)
                if node is None:
                    reading = Reading(name, value, is_bypassed=True)
                elif expression.field == "due":
                    reading = Reading(name, value, trigger_reading(self._compiler, node), node.bypassed)
                else:
                    reading = Reading(name, value, note=_note(node, expression.field))
            self._reads.append(reading)
            return value

        return Cell(recorded)


def trigger_reading(compiler: Compiler, node: ProgramNode) -> TriggerReading | None:
    """The trigger of a node with its clocks; None for a node without one."""
    verb = node.kind.trigger
    trigger = node.parameters.get(verb) if verb is not None else None
    if verb is None or not isinstance(trigger, Trigger) or node.bypassed:
        return None
    clocks = []
    for clock, term in compiler.triggers.clocks(node, trigger):
        base, now = term.base, clock.now()
        last, due_at = None, base.amount
        if verb == "every":
            fired = node.instance.fired.get(base.unit)
            numerator, denominator, count = fired or (now.numerator, now.denominator, clock.count())
            last = Fraction(numerator, denominator) if count == clock.count() else Fraction(0)
            due_at = Fraction(next_multiple(last, base.amount))
        factor = base.amount / term.amount  # to the unit of the trigger
        last = last / factor if last is not None else None
        clocks.append(ClockReading(str(term), term.unit, now / factor, last, due_at / factor))
    start = [
        ClockReading(str(term), term.unit, clock.now() * term.amount / term.base.amount, None, term.amount)
        for clock, term in (
            compiler.triggers.clocks(node, node.plan_node.start) if node.plan_node.start is not None else ()
        )
    ]
    also = tuple((field, compiler.cells.field(node, field).read()) for field in node.plan_node.extra_due_fields)
    has_run = bool(node.instance.runs) if trigger.once else None
    return TriggerReading(verb, str(trigger), tuple(clocks), also, tuple(start), has_run)


def _note(node: ProgramNode, field: str) -> str:
    """The source of the value of a field, if its name does not tell."""
    if (target := node.plan_node.expressions.get(field)) is not None:
        return f'from "{" ".join(target.text.split())}"'
    counter = node.kind.counter(field)
    if counter is not None and counter.window is not None and field == counter.full:
        return f"{node.fields[counter.name]} of {node.fields[counter.window]}"
    return ""


def error_text(error: BaseException) -> str:
    """An error as in the last line of its traceback."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _text(expression: Name | FieldOf) -> str:
    return expression.name if isinstance(expression, Name) else f"{expression.node}.{expression.field}"


# ---- a line for each transition: `--trace`

# The most characters of a column; a longer name exceeds it.
_WIDEST = 32


@final
class TraceLines:
    """Writes the transitions of a graph as lines with aligned columns.

    Arguments:
        write: takes a line.

    >>> trace = TraceLines(Graph.load("evaluate"), print)
    >>> trace(Explanation((), "eval_batch", step=3, epoch=0.5, batch=12, note="nothing was traced"))
    trace  step     3  epoch   0.50  batch    12  nothing was traced
    """

    def __init__(self, graph: Graph, write: Callable[[str], Any]) -> None:
        self._write = write
        paths = list(nodes_of(graph))
        self._node_width = min(_WIDEST, max(map(len, paths)))
        self._target_width = min(_WIDEST, max(len(path.rpartition("/")[2]) for path in paths))

    def __call__(self, explanation: Explanation) -> None:
        """Write one."""
        columns = ["trace", *_moment(explanation)]
        if explanation.choices:
            node = f"{explanation.choices[0].node:<{self._node_width}}"
            columns += [f"{node} -> {explanation.target:<{self._target_width}}", explanation.reasons]
        else:
            columns.append(explanation.note)
        self._write(one_line("  ".join(columns).rstrip()))


def _moment(explanation: Explanation) -> list[str]:
    """Step, epoch and batch, if the graph counts them."""
    words = []
    if explanation.step is not None:
        words.append(f"step {explanation.step:>5}")
    if explanation.epoch is not None:
        words.append(f"epoch {explanation.epoch:>6.2f}")
    if explanation.batch is not None:
        words.append(f"batch {explanation.batch:>5}")
    return words
