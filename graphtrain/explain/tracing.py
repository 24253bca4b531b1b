"""A table that writes down what it does, beside the one that does not; and what can be said where nobody wrote.

The traced table is another one, made by the same compiler when it is first asked for. It asks the same guards, in the
same order and as often; each name in them is read once, where the plain table reads it, and its value is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, final

from graphtrain.errors import GuardError
from graphtrain.explain.explanation import (
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
from graphtrain.graph.elements import END
from graphtrain.guards.closures import Read, Scope, compile_guard
from graphtrain.guards.syntax import Constant, FieldOf, Name, parse, walk
from graphtrain.kind.trigger import Term, Trigger, next_multiple
from graphtrain.program.bind import BoundGraph, BoundNode
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Loop, Visit
from graphtrain.program.requests import Requests
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.program.table import Compiler, TransitionTable
from graphtrain.program.triggers import Clock, Due, Every

Tell = Callable[[Explanation], Any]
Reads = list[Reading | GuardReading]


@final
class Explainer:
    """Answers why the last transition of a run went the way it did.

    Arguments:
        requests: is told when the graph has ended, as by the plain table.
        notify: told once if whoever is told of the transitions raises.
    """

    def __init__(self, requests: Requests, watch: Stopwatch, notify: Callable[[str], None]) -> None:
        self._requests = requests
        self._watch = watch
        self._notify = notify
        self._tracer: Tracer | None = None
        self._note = "nothing has run yet in this process"
        self._error: BaseException | None = None
        self._is_rewired = False

    def visits(self, compiled: CompiledGraph, tell: Tell | None = None) -> list[Visit]:
        """The traced visits; `tell` is called with the explanation of each transition, right after it.

        A `tell` that raises costs nobody a run: it is told nothing more.
        """
        tracer = self._tracer_of(compiled)
        tracer.tell = self._careful(tracer, tell) if tell is not None else None
        return tracer.table.visits

    def goes_untraced(self) -> None:
        """The run goes on by the plain table."""
        self._note = "`run` keeps no trace of its transitions, as that takes time: run(trace=print) does, and so does"
        self._note += " advance(), after which explain() tells of the last one"
        self._error, self._is_rewired = None, False
        if self._tracer is not None:
            self._tracer.last = None

    def fails(self, error: BaseException) -> None:
        """The run has failed."""
        self._error = error

    def is_rewired(self) -> None:
        """Another graph goes on where the run stands."""
        self._is_rewired = True

    def explain(self, compiled: CompiledGraph, loop: Loop) -> Explanation:
        """What is known of the last transition.

        Where it was not traced, guards are asked again at the end of a run and where one raised: nothing has changed
        there since, and they are pure.
        """
        if self._tracer is not None and self._tracer.last is not None:
            return self._tracer.last
        tracer = self._tracer_of(compiled)
        if isinstance(self._error, GuardError) and self._error.node in compiled.program.by_path:
            return tracer.asked_again(compiled.program.by_path[self._error.node])
        bound = compiled.program.nodes[loop.position]
        if self._error is not None:
            return tracer.failed(bound, self._error)
        if loop.ended and not self._is_rewired:
            return tracer.asked_again(bound)
        stands = "the run is over" if loop.ended else f"`{bound.path}` is next"
        return replace(tracer.explanation((), bound.index), note=f"{self._note}; {stands}")

    def _tracer_of(self, compiled: CompiledGraph) -> Tracer:
        """The tracer of what is run now; a transition that a former graph took stays the last one."""
        if self._tracer is None or self._tracer.compiled is not compiled:
            last = self._tracer.last if self._tracer is not None else None
            self._tracer = Tracer(compiled, self._requests.ended, self._watch)
            self._tracer.last = last
        return self._tracer

    def _careful(self, tracer: Tracer, tell: Tell) -> Tell:
        def told(explanation: Explanation) -> None:
            try:
                tell(explanation)
            except Exception as error:
                tracer.tell = None
                if not isinstance(error, OSError):  # a terminal that has gone away
                    self._notify(f"transitions are not traced any more: that raised {type(error).__name__}: {error}")

        return told


@final
class Tracer:
    """The witness of a traced table: what each transition asked, and what came of it.

    Attributes:
        table: traced.
        last: the last transition that the table made.
        tell: called with each; None calls nobody.
    """

    def __init__(self, compiled: CompiledGraph, ended: Callable[[], None], watch: Stopwatch) -> None:
        self.compiled = compiled
        self.last: Explanation | None = None
        self.tell: Tell | None = None
        self._program = compiled.program
        self._guards: dict[int, list[Due]] = {bound.index: [] for bound in self._program.nodes}
        self._compiled: dict[tuple[str, str], Due] = {}
        self._left: list[tuple[BoundNode, Reads]] = []  # nodes whose edges this transition asked, with the guards
        self._into: list[Reads] = [[]]  # where what is read belongs; the innermost guard is the last
        self.table: TransitionTable = Compiler(self._program, ended, watch, self).table

    # ---- what the compiler puts around its own

    def visit(self, bound: BoundNode, visit: Visit) -> Visit:
        """A visit after which the transition is known."""
        record = bound.instance
        read_trigger = self.trigger_reader(bound) if isinstance(bound.trigger, Every) else None

        def traced_visit() -> int:
            self._left.clear()
            trigger = read_trigger() if read_trigger is not None else None
            runs = record.runs
            try:
                position = visit()
            except BaseException as error:
                self._keep(self._broken_off(bound, trigger, error))
                raise
            self._keep(self._complete(bound, trigger, position, has_run=record.runs > runs))
            return position

        return traced_visit

    def leave(self, bound: BoundNode, leave: Visit) -> Visit:
        """A choice of the exit edge that is kept."""

        def traced_leave() -> int:
            asked: Reads = []
            self._left.append((bound, asked))
            self._into.append(asked)
            try:
                return leave()
            finally:
                self._into.pop()

        return traced_leave

    def guard(self, bound: BoundNode, name: str, names: Scope) -> Due:
        """A guard that keeps what it read."""
        ask = self.asking(bound.scope, name, names)
        self._guards[bound.index].append(ask)
        return ask

    # ---- guards

    def asking(self, scope: BoundGraph, name: str, names: Scope) -> Due:
        """A named guard, whether an edge names it or another guard."""
        key = (scope.prefix, name)
        if key not in self._compiled:
            self._compiled[key] = self._asking(scope, name, names)
        return self._compiled[key]

    def _asking(self, scope: BoundGraph, name: str, names: Scope) -> Due:
        text = scope.graph.guards[name]
        expression = parse(text)
        call = compile_guard(expression, _Recorded(self, scope, names))
        parts = [_text(one) for one in walk(expression) if isinstance(one, Name | FieldOf)]
        into = self._into

        def kept(value: Any, reads: Reads, error: str = "") -> None:
            looked_at = {one.name for one in reads}
            not_read = tuple(one for one in dict.fromkeys(parts) if one not in looked_at)
            into[-1].append(GuardReading(name, text, value, tuple(reads), not_read, error))

        def ask() -> Any:
            reads: Reads = []
            into.append(reads)
            try:
                value = call()
            except Exception as error:
                into.pop()
                kept(None, reads, _named(error))
                raise
            into.pop()
            kept(value, reads)
            return value

        return ask

    def reading(self, name: str, read: Read, due: BoundNode | None) -> Read:
        """A call that answers a name's value, and keeps it; `due` is the node whose field `due` it is."""
        into = self._into
        trigger = self.trigger_reader(due) if due is not None else None
        is_bypassed = due is not None and due.bypassed

        def kept() -> Any:
            value = read()
            into[-1].append(Reading(name, value, trigger() if trigger is not None else None, is_bypassed))
            return value

        return kept

    # ---- triggers

    def trigger_reader(self, bound: BoundNode) -> Callable[[], TriggerReading] | None:
        """A call that answers what the trigger of a node is computed from; None for a node without one."""
        verb = bound.kind.trigger
        trigger = bound.parameters.get(verb) if verb is not None else None
        if verb is None or not isinstance(trigger, Trigger) or bound.bypassed:
            return None
        terms = [
            (Clock(owner.instance, field, owner.kind.fields[field].restarts), term)
            for owner, field, term in self._program.terms(bound, trigger)
        ]
        record = bound.instance

        def read() -> TriggerReading:
            clocks = [_clock_reading(clock, term, record if verb == "every" else None) for clock, term in terms]
            return TriggerReading(verb, str(trigger), tuple(clocks))

        return read

    # ---- transitions

    def _keep(self, explanation: Explanation) -> None:
        self.last = explanation
        if self.tell is not None:
            self.tell(explanation)

    def _complete(
        self, bound: BoundNode, trigger: TriggerReading | None, position: int, *, has_run: bool
    ) -> Explanation:
        entered = bound.body is not None and self._program.nodes[position].scope is bound.body
        event: Event = "ran"
        if bound.bypassed:
            event = "bypassed"
        elif entered:
            event = "entered"
        elif (bound.body is not None or isinstance(bound.trigger, Every)) and not has_run:
            event = "not due"
        if entered:
            return self.explanation((Choice(bound.path, event, _edges(bound, None), trigger),), position)
        (_, asked), *around = self._left or [(bound, [])]  # a node with one way out does not ask
        choices = [Choice(bound.path, event, _edges(bound, asked), trigger)]
        choices += [Choice(outer.path, "body ended", _edges(outer, its)) for outer, its in around]
        return self.explanation(tuple(choices), position)

    def _broken_off(self, bound: BoundNode, trigger: TriggerReading | None, error: BaseException) -> Explanation:
        if not self._left:
            return self.failed(bound, error, trigger)
        (_, asked), *around = self._left
        choices = [Choice(bound.path, "ran", _edges(bound, asked), trigger)]
        choices += [Choice(outer.path, "body ended", _edges(outer, its)) for outer, its in around]
        told = any(one.answer == "raised" for choice in choices for one in choice.edges)
        explanation = self.explanation(tuple(choices), bound.index)
        return explanation if told else replace(explanation, error=_named(error))

    def failed(self, bound: BoundNode, error: BaseException, trigger: TriggerReading | None = None) -> Explanation:
        """A node that raised."""
        choice = Choice(bound.path, "failed", _edges(bound, None), trigger)
        return replace(self.explanation((choice,), bound.index), error=_named(error))

    def asked_again(self, bound: BoundNode) -> Explanation:
        """The edges of a node that was left a moment ago: nothing has changed since, so they answer as they did."""
        asked: Reads = []
        self._into.append(asked)
        try:
            for guard in self._guards[bound.index]:
                if guard():
                    break
        except Exception:  # noqa: S110 - it is among what was asked
            pass
        finally:
            self._into.pop()
        choice = Choice(bound.path, "asked again", _edges(bound, asked))
        return self.explanation((choice,), bound.index)

    def explanation(self, choices: tuple[Choice, ...], position: int) -> Explanation:
        """Choices with the moment and what comes next."""
        where = self.compiled.run_clock
        steps, epochs, batch = (where.count(unit) for unit in ("steps", "epochs", "epoch_batches"))
        following = self.compiled.path(position)
        last = choices[-1].taken if choices else None
        if last is not None and last.target == END and "/" not in choices[-1].node:
            following = END
        return Explanation(
            choices,
            following,
            where.describe(),
            int(steps) if steps is not None else None,
            float(epochs) if epochs is not None else None,
            int(batch) if batch is not None else None,
        )


@dataclass(frozen=True)
class _Recorded:
    """What names in the guards of one bound graph stand for, every reading kept."""

    tracer: Tracer
    scope: BoundGraph
    names: Scope

    def constant(self, expression: Any) -> Constant | None:
        return None  # a parameter is read too: its value explains as well as any

    def held(self, expression: Any) -> tuple[dict[str, Any], str] | None:
        return None

    def reader(self, expression: Name | FieldOf) -> Read:
        if isinstance(expression, Name) and expression.name in self.scope.graph.guards:
            return self.tracer.asking(self.scope, expression.name, self.names)
        constant = self.names.constant(expression)
        read = self.names.reader(expression) if constant is None else _always(constant.value)
        due = None
        if isinstance(expression, FieldOf) and expression.field == "due":
            due = self.scope.nodes[expression.node]
        return self.tracer.reading(_text(expression), read, due)


def _edges(bound: BoundNode, asked: Reads | None) -> tuple[EdgeReading, ...]:
    """What became of the edges of a node; `asked` are the guards asked, in order, None if it did not come to that."""
    edges: list[EdgeReading] = []
    waiting = iter(asked or ())
    is_open = asked is not None
    for edge in bound.scope.graph.edges[bound.node.name]:
        guard = next(waiting, None) if is_open and edge.when is not None else None
        if not is_open or (guard is None and edge.when is not None):
            is_open = False
            edges.append(EdgeReading(edge.target, edge.when, "not asked"))
            continue
        assert guard is None or isinstance(guard, GuardReading)
        answer: Answer = "taken" if guard is None or guard.value else "raised" if guard.error else "refused"
        edges.append(EdgeReading(edge.target, edge.when, answer, guard))
        is_open = answer == "refused"
    return tuple(edges)


def _clock_reading(clock: Clock, term: Term, record: Any) -> ClockReading:
    """Where a clock stands, in the unit of the term; `record` holds the last firing, None for an `after`."""
    base, now = term.base, clock.now()
    factor = base.amount / term.amount
    last = None
    due_at = base.amount
    if record is not None:
        numerator, denominator, count = record.fired.get(base.unit) or (now.numerator, now.denominator, clock.count())
        last = Fraction(numerator, denominator) if count == clock.count() else Fraction(0)
        due_at = next_multiple(last, base.amount)
    return ClockReading(
        str(term), term.unit, now / factor, last / factor if last is not None else None, due_at / factor
    )


def _always(value: Any) -> Read:
    return lambda: value


def _text(expression: Name | FieldOf) -> str:
    return expression.name if isinstance(expression, Name) else f"{expression.node}.{expression.field}"


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
