"""The edges of a node asked again, with everything that their guards read.

A guard is a pure function of saved state, so it answers after a transition what it answered during it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any, final

from graphtrain.kind.trigger import AT_END, Trigger, next_multiple
from graphtrain.language.closures import Cell, compile_guard
from graphtrain.language.syntax import FieldOf, Name, walk
from graphtrain.program.bind import BoundGraph, BoundNode
from graphtrain.program.table import Compiler
from graphtrain.proof.explanation import (
    Answer,
    Choice,
    ClockReading,
    EdgeReading,
    Event,
    GuardReading,
    Reading,
    TriggerReading,
)

# By the prefix of a body and a name in its guards: what the name read before the body ended, be it an error.
Outside = Mapping[tuple[str, str], Any]


def choice_at(
    compiler: Compiler,
    bound: BoundNode,
    event: Event,
    outside: Outside = MappingProxyType({}),
    trigger: TriggerReading | None = None,
) -> Choice:
    """The edges of a node, asked in order until one is taken; none is asked where its body began, or it failed."""
    scope = RecordingScope(compiler, bound.scope, outside)
    edges = []
    is_open = event not in ("entered", "failed")
    for edge in bound.scope.graph.edges[bound.node.name]:
        answer: Answer = "taken" if is_open else "not asked"
        guard = scope.ask(edge.when) if is_open and edge.when is not None else None
        if guard is not None and not guard.value:
            answer = "raised" if guard.error else "refused"
        edges.append(EdgeReading(edge.target, edge.when, answer, guard))
        is_open = answer == "refused"
    return Choice(bound.path, event, tuple(edges), trigger)


@final
class RecordingScope:
    """What names in the guards of a bound graph stand for; every value read is kept.

    The closures of a guard are made as for the transition table, so they read the same names in the same order.
    """

    def __init__(self, compiler: Compiler, scope: BoundGraph, outside: Outside) -> None:
        self._compiler, self._scope, self._outside = compiler, scope, outside
        self._reads: list[Reading | GuardReading] = []  # of the guard that is being evaluated
        self._raised = Exception()  # the last error of a guard

    def ask(self, name: str) -> GuardReading:
        """Evaluate a guard; what it raises is part of the reading, which joins those of the guard that names it."""
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
        """A name, whose value is kept when it is read; that of a parameter too, which explains as well as any."""
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
                bound = self._scope.at(expression.node)
                if bound is None:
                    reading = Reading(name, value, is_bypassed=True)
                elif expression.field == "due":
                    reading = Reading(name, value, trigger_reading(self._compiler, bound), bound.bypassed)
                else:
                    reading = Reading(name, value, note=_note(bound, expression.field))
            self._reads.append(reading)
            return value

        return Cell(recorded)


def trigger_reading(compiler: Compiler, bound: BoundNode) -> TriggerReading | None:
    """What the trigger of a node is computed from; None for a node without one."""
    verb = bound.kind.trigger
    trigger = bound.parameters.get(verb) if verb is not None else None
    if verb is None or not isinstance(trigger, Trigger) or bound.bypassed:
        return None
    clocks = []
    for clock, term in compiler.triggers.clocks(bound, trigger):
        base, now = term.base, clock.now()
        last, due_at = None, base.amount
        if verb == "every":
            fired = bound.instance.fired.get(base.unit)
            numerator, denominator, count = fired or (now.numerator, now.denominator, clock.count())
            last = Fraction(numerator, denominator) if count == clock.count() else Fraction(0)
            due_at = Fraction(next_multiple(last, base.amount))
        factor = base.amount / term.amount  # to the unit that the trigger is written in
        last = last / factor if last is not None else None
        unit = base.unit if term.unit == AT_END else term.unit
        clocks.append(ClockReading(str(term), unit, now / factor, last, due_at / factor))
    start = [
        ClockReading(str(term), term.unit, clock.now() * term.amount / term.base.amount, None, term.amount)
        for clock, term in (
            compiler.triggers.clocks(bound, bound.planned.start) if bound.planned.start is not None else ()
        )
    ]
    also = tuple((field, compiler.cells.field(bound, field).read()) for field in bound.planned.also_due)
    has_run = bool(bound.instance.runs) if trigger.once else None
    ending = bool(compiler.cells.ending(bound.scope)()) if trigger.at_end else None
    return TriggerReading(verb, str(trigger), tuple(clocks), also, tuple(start), has_run, ending)


def _note(bound: BoundNode, field: str) -> str:
    """What the value of a field comes from, where its name does not tell."""
    if (target := bound.planned.expressions.get(field)) is not None:
        return f'from "{" ".join(target.text.split())}"'
    counter = bound.kind.counter(field)
    if counter is not None and counter.window is not None and field == counter.full:
        return f"{bound.fields[counter.name]} of {bound.fields[counter.window]}"
    return ""


def error_text(error: BaseException) -> str:
    """An error as the last line of its traceback has it."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _text(expression: Name | FieldOf) -> str:
    return expression.name if isinstance(expression, Name) else f"{expression.node}.{expression.field}"
