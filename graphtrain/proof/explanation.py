"""Why a run took an edge: a transition as plain data, which prints itself."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, final

from graphtrain.graph.layers import overlays_text
from graphtrain.kind.trigger import decimal
from graphtrain.printable import one_line

Event = Literal["ran", "not due", "bypassed", "entered", "body ended", "asked again", "failed"]
Answer = Literal["taken", "refused", "not asked", "raised"]

_EXACT_DENOMINATOR = 10**6


@dataclass(frozen=True)
class ClockReading:
    """One amount of a trigger when it was evaluated, in the unit of the trigger.

    Attributes:
        amount: as in the graph: ``"10 minutes"``.
        now: the value of the clock.
        last: its value at the last firing, or at the start; 0 if it restarted since. None for an `after`.
        due_at: the value from which on the trigger is due.
    """

    amount: str
    unit: str
    now: Fraction
    last: Fraction | None
    due_at: Fraction


@dataclass(frozen=True)
class TriggerReading:
    """A trigger when it was evaluated.

    Attributes:
        verb: "every" or "after".
        amount: as in the graph: ``"1 epochs or 10 minutes"``.
        clocks: one for each amount; any of them makes it due.
        also: the fields that also make it due, with their values.
        start: the amounts before which it is not due, if there are any.
        has_run: for one that is due once, whether it has run; else None.
    """

    verb: str
    amount: str
    clocks: tuple[ClockReading, ...]
    also: tuple[tuple[str, Any], ...] = ()
    start: tuple[ClockReading, ...] = ()
    has_run: bool | None = None

    def __str__(self) -> str:
        clocks = [self._words(clock) for clock in self.clocks]
        start = " or ".join(clock.amount for clock in self.start)
        verb = self.verb if self.has_run is None or self.clocks else ""
        words = [] if self.has_run is None else ["it has run" if self.has_run else "it has not run"]
        words += [*clocks, *(f"or {field} = {shown(value)}" for field, value in self.also)]
        words += [f"not before {clock.amount}, {clock.unit} {shown(clock.now)}" for clock in self.start]
        amount = f"{verb} {self.amount}".strip() + (f" from {start}" if start else "")
        return amount + (f": {'; '.join(words)}" if words else "")

    def _words(self, clock: ClockReading) -> str:
        last = f", last {shown(clock.last)}" if clock.last is not None else ""
        return f"{clock.unit} {shown(clock.now)}, due at {shown(clock.due_at)}{last}"


@dataclass(frozen=True)
class Reading:
    """A name in a guard, ``node.field`` or a slot, and the value that it had when it was read.

    Attributes:
        trigger: for a field `due`, its trigger; None if it is always due, or never because it has nothing to do.
        is_bypassed: True for the field `due` of a node that is bypassed.
        note: for a parameter, its expression: ``from "..."``; for `full` of a window, the count:
            ``3 of 4``. Empty for anything else.
    """

    name: str
    value: Any
    trigger: TriggerReading | None = None
    is_bypassed: bool = False
    note: str = ""

    def __str__(self) -> str:
        why = "it is bypassed" if self.is_bypassed else self.note or str(self.trigger or "")
        return f"{self.name} = {shown(self.value)}" + (f" ({why})" if why else "")


@dataclass(frozen=True)
class GuardReading:
    """A guard that was evaluated.

    Attributes:
        expression: as in the graph.
        value: its value; None if it raised.
        reads: what it read, in order, including guards that it names.
        not_read: the names in it that were not read, because the value was already decided.
        error: what it raised; empty if it did not.
        overlays: those that define or widen it.
    """

    name: str
    expression: str
    value: Any
    reads: tuple[Reading | GuardReading, ...]
    not_read: tuple[str, ...] = ()
    error: str = ""
    overlays: tuple[str, ...] = ()

    def readings(self) -> Iterator[Reading]:
        """What was read, in order, also in the guards that it names."""
        for reading in self.reads:
            if isinstance(reading, Reading):
                yield reading
            else:
                yield from reading.readings()


@dataclass(frozen=True)
class EdgeReading:
    """An edge, and its part in the transition.

    Attributes:
        target: the name of a node of the same graph, or "end".
        when: the name of its guard; None if it has none.
        answer: "taken"; "refused" by its guard; "not asked", because an edge before it was taken or none was chosen;
            "raised", its guard did.
        guard: its guard, if it was evaluated.
    """

    target: str
    when: str | None
    answer: Answer
    guard: GuardReading | None = None


@dataclass(frozen=True)
class Choice:
    """The edges of a node, evaluated in order.

    Attributes:
        node: its path.
        event: the preceding event: the node "ran"; it was "not due" or is "bypassed", and did nothing; it "entered" its
            body, so no edge was evaluated yet; its "body ended"; the run "failed" there; or it was "asked again", after
            the run had stopped.
        trigger: that of a node with `every`, at the visit.
        edges: all of them, in order.
    """

    node: str
    event: Event
    edges: tuple[EdgeReading, ...]
    trigger: TriggerReading | None = None

    @property
    def taken(self) -> EdgeReading | None:
        """The edge that was taken, if one was."""
        return next((edge for edge in self.edges if edge.answer == "taken"), None)


@final
@dataclass(frozen=True)
class Explanation:
    """Why a run took its last transition, in full.

    It prints as a text, and `line` is one line; everything in it is plain data (`dataclasses.asdict`).

    Attributes:
        choices: the node that ran, and the edges that leave it. If its edge ended a nested graph, the choice of the
            enclosing node follows. Empty if nothing is known; `note` then says why.
        next: the path of the node that runs next, or "end".
        where: the moment, in the words of the clock, after the node had run: ``"step 12, epoch 1.50, batch 5/10"``.
        step: steps of the optimizer; None if the graph does not count them.
        epoch: epochs, as a fraction if their length is known; None if they are not counted.
        batch: batches in this epoch; None if they are not counted.
        note: a sentence with what the choices do not show.
        error: what the node raised; empty if it did not.
    """

    choices: tuple[Choice, ...]
    next: str
    where: str = ""
    step: int | None = None
    epoch: float | None = None
    batch: int | None = None
    note: str = ""
    error: str = ""

    @property
    def line(self) -> str:
        """All of it on one line, such as ``accumulate -> decide  reached=False(accumulate.count=1)``."""
        if not self.choices:
            return self.note
        return f"{self.choices[0].node} -> {self.target}  {self.reasons}".rstrip()

    @property
    def target(self) -> str:
        """The next node after the one that ran, in its graph or its body; "?" if it failed."""
        if self.choices and (taken := self.choices[0].taken) is not None:
            return taken.target
        is_stuck = self.error or any(edge.answer == "raised" for choice in self.choices for edge in choice.edges)
        return "?" if is_stuck else self.next.rpartition("/")[2] if self.choices else self.next

    @property
    def reasons(self) -> str:
        """The second half of the line: guards with what they read, in the order of evaluation."""
        if not self.choices:
            return self.note
        words = [_reasons_of(self.choices[0])]
        for choice in self.choices[1:]:
            target = choice.taken.target if choice.taken is not None else "?"
            words.append(f"| {choice.node} -> {target} {_reasons_of(choice)}".rstrip())
        if (bypassed := self._bypassed_target) is not None:
            words.append(f"| {bypassed} bypassed -> {self.next}")
        if self.error:
            words.append(f"raised {_on_one_line(self.error)}")
        return " ".join(filter(None, words))

    @property
    def _bypassed_target(self) -> str | None:
        """The target of the edge taken, if it is bypassed and has one edge: the run is already past it."""
        taken = self.choices[-1].taken if self.choices else None
        is_passed = taken is not None and taken.target not in ("end", self.next.rpartition("/")[2])
        return taken.target if taken is not None and is_passed else None

    def __repr__(self) -> str:
        transition = f"{self.choices[0].node} -> {self.target}" if self.choices else self.note
        return one_line(f"<Explanation: {transition}>")

    def __str__(self) -> str:
        lines = [f"at {self.where}:"] if self.choices and self.where else []
        for choice in self.choices:
            lines += _lines_of_choice(choice, self.next)
        if self.error:
            lines.append(f"it raised {self.error}")
        if self.note:
            lines.append(self.note)
        if (bypassed := self._bypassed_target) is not None:
            lines.append(f"`{bypassed}` is bypassed")
        if self.choices and self.choices[-1].taken is not None:
            lines.append("the run is over" if self.next == "end" else f"next: `{self.next}`")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _lines_of_choice(choice: Choice, following: str) -> list[str]:
    """What happened to a node, and its edges by priority with what their guards read, if any was evaluated."""
    node = f"`{choice.node}`"
    trigger = f" ({choice.trigger})" if choice.trigger is not None else ""
    headlines: dict[Event, str] = {
        "ran": f"{node} ran{trigger}",
        "not due": f"{node} did nothing, it was not due{trigger}",
        "bypassed": f"{node} did nothing, it is bypassed",
        "entered": f"{node} began its own graph at `{following}`{trigger}; its edges are asked when that ends",
        "body ended": f"the graph of {node} ended, and so {node} has run",
        "asked again": f"{node} was left",
        "failed": f"the run failed at {node}, and asked none of its edges",
    }
    lines = [headlines[choice.event]]
    if all(edge.answer == "not asked" for edge in choice.edges):
        return lines
    answers = {"refused": "no", "raised": "its guard raised"}
    for number, edge in enumerate(choice.edges, 1):
        when = f" if {edge.when}" if edge.when is not None else ""
        lines.append(f"  {number}. {edge.target}{when}: {answers.get(edge.answer, edge.answer)}")
        if edge.guard is not None:
            lines += _lines_of_guard(edge.guard, " " * 7)
    return lines


def _lines_of_guard(guard: GuardReading, indent: str) -> list[str]:
    """The expression, and below it what was read."""
    overlays = f" ({overlays_text(guard.overlays)})" if guard.overlays else ""
    lines = [f'{indent}{guard.name} = {_answer(guard)}, from "{_on_one_line(guard.expression)}"{overlays}']
    indent += "  "
    for reading in dict.fromkeys(guard.reads):  # a chained comparison reads its middle twice
        lines += _lines_of_guard(reading, indent) if isinstance(reading, GuardReading) else [f"{indent}{reading}"]
    return lines + [f"{indent}{name} was not asked" for name in guard.not_read]


def _reasons_of(choice: Choice) -> str:
    """Why a node did nothing, and guards, as part of a line: ``reached=False(accumulate.count=1)``."""
    words: list[str] = []
    if choice.event == "not due":
        words.append(f"not due ({choice.trigger})")
    elif choice.event in ("bypassed", "entered", "failed"):
        words.append(choice.event)
    for guard in (edge.guard for edge in choice.edges if edge.guard is not None):
        values = dict.fromkeys(f"{reading.name}={shown(reading.value)}{_due(reading)}" for reading in guard.readings())
        if not guard.error and guard.expression.strip() in [reading.name for reading in guard.reads]:
            # A guard that only renames what it reads has its value; the rest is why that is due.
            values = dict.fromkeys(filter(None, (_due(reading).strip("()") for reading in guard.readings())))
        words.append(f"{guard.name}={_answer(guard)}" + (f"({' '.join(values)})" if values else ""))
    return " ".join(words)


def _due(reading: Reading) -> str:
    """The source of a field, in parentheses: the numbers of a trigger, an expression, a count."""
    why = reading.note or ("" if reading.trigger is None or reading.is_bypassed else str(reading.trigger))
    return f"({why})" if why else ""


def _answer(guard: GuardReading) -> str:
    return f"raised {_on_one_line(guard.error)}" if guard.error else shown(guard.value)


def shown(value: Any) -> str:
    """A value for messages: exact fractions as decimals, text in quotes.

    >>> shown(Fraction(1, 4)), shown(Fraction(1, 3)), shown(3), shown(0.1), shown("a"), shown(True)
    ('0.25', '1/3', '3', '0.1', "'a'", 'True')
    """
    if isinstance(value, Fraction):
        return decimal(value) if value.denominator <= _EXACT_DENOMINATOR else f"{float(value):.4g}"
    return repr(value)


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
