"""Why a run went the way it did: a transition as plain data, which prints itself."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, final

from graphtrain.kind.trigger import decimal

Event = Literal["ran", "not due", "bypassed", "entered", "body ended", "asked again", "failed"]
Answer = Literal["taken", "refused", "not asked", "raised"]

_EXACT_DENOMINATOR = 10**6


@dataclass(frozen=True)
class ClockReading:
    """One amount of a trigger, when it was asked; all in the unit that the trigger is written in.

    Attributes:
        amount: as in the graph: ``"10 minutes"``.
        now: what the clock said.
        last: what it said at the last firing, or at the start; 0 where it began again since. None for an `after`.
        due_at: from where on the trigger is due.
    """

    amount: str
    unit: str
    now: Fraction
    last: Fraction | None
    due_at: Fraction

    def __str__(self) -> str:
        words = [f"{self.unit} {shown(self.now)}", f"due at {shown(self.due_at)}"]
        if self.last is not None:
            words.append(f"last {shown(self.last)}")
        return ", ".join(words)


@dataclass(frozen=True)
class TriggerReading:
    """A trigger, when it was asked.

    Attributes:
        verb: "every" or "after".
        amount: as in the graph: ``"1 epochs or 10 minutes"``.
        clocks: one for each amount; any of them makes it due.
    """

    verb: str
    amount: str
    clocks: tuple[ClockReading, ...]

    def __str__(self) -> str:
        clocks = "; ".join(map(str, self.clocks))
        return f"{self.verb} {self.amount}" + (f": {clocks}" if clocks else "")


@dataclass(frozen=True)
class Reading:
    """A name in a guard, ``node.field`` or a slot, and the value that it had when it was read.

    Attributes:
        trigger: of a field `due`, what it was computed from; None where it is due always, or never for want of work.
        is_bypassed: True for the field `due` of a node that is bypassed.
    """

    name: str
    value: Any
    trigger: TriggerReading | None = None
    is_bypassed: bool = False

    def __str__(self) -> str:
        why = "it is bypassed" if self.is_bypassed else str(self.trigger or "")
        return f"{self.name} = {shown(self.value)}" + (f" ({why})" if why else "")


@dataclass(frozen=True)
class GuardReading:
    """A guard that was asked.

    Attributes:
        expression: as in the graph.
        value: what it answered; None where it raised.
        reads: what it read, in order; guards that it names among them.
        not_read: the names in it that were not looked at, because the answer was clear before.
        error: what it raised; empty where it did not.
    """

    name: str
    expression: str
    value: Any
    reads: tuple[Reading | GuardReading, ...]
    not_read: tuple[str, ...] = ()
    error: str = ""

    def readings(self) -> Iterator[Reading]:
        """What was read, in order, in the guards that it names too."""
        for reading in self.reads:
            if isinstance(reading, Reading):
                yield reading
            else:
                yield from reading.readings()

    def lines(self) -> list[str]:
        """The expression, and under it what was read."""
        lines = [f'{self.name} = {self._answer()}, from "{_on_one_line(self.expression)}"']
        for reading in dict.fromkeys(self.reads):  # a chained comparison reads its middle twice
            lines += _indented(reading.lines() if isinstance(reading, GuardReading) else [str(reading)])
        return lines + _indented([f"{name} was not asked" for name in self.not_read])

    def short(self) -> str:
        """On a part of a line: ``reached=False(accumulate.count=1 accumulate.every=4)``."""
        answer = f"{self.name}={self._answer()}"
        if self.expression.strip() in [reading.name for reading in self.reads] and not self.error:
            return answer  # another name of what it reads
        values = dict.fromkeys(f"{reading.name}={shown(reading.value)}" for reading in self.readings())
        return f"{answer}({' '.join(values)})" if values else answer

    def _answer(self) -> str:
        return f"raised {_on_one_line(self.error)}" if self.error else shown(self.value)


@dataclass(frozen=True)
class EdgeReading:
    """An edge, and what became of it.

    Attributes:
        target: the name of a node of the same graph, or "end".
        when: the name of its guard; None where it has none.
        answer: "taken"; "refused" by its guard; "not asked", because an edge before it was taken or none was to be;
            "raised", its guard did.
        guard: what its guard read, if it was asked.
    """

    target: str
    when: str | None
    answer: Answer
    guard: GuardReading | None = None


@dataclass(frozen=True)
class Choice:
    """The edges that leave a node, asked in order.

    Attributes:
        node: its path.
        event: what came before: the node "ran"; it was "not due" or is "bypassed", and did nothing; it "entered" its
            body, so no edge was asked yet; its "body ended"; the run "failed" there; or it was "asked again", once the
            run stood still.
        trigger: of a node with `every`, when it was visited.
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

    def headline(self, body_start: str = "") -> str:
        """What happened to the node, in a few words."""
        node = f"`{self.node}`"
        trigger = f" ({self.trigger})" if self.trigger is not None else ""
        headlines: dict[Event, str] = {
            "ran": f"{node} ran{trigger}",
            "not due": f"{node} did nothing, it was not due{trigger}",
            "bypassed": f"{node} did nothing, it is bypassed",
            "entered": f"{node} began its own graph at `{body_start}`{trigger}; its edges are asked when that ends",
            "body ended": f"the graph of {node} ended, and so {node} has run",
            "asked again": f"{node} was left",
            "failed": f"the run failed at {node}, and asked none of its edges",
        }
        return headlines[self.event]

    def lines(self) -> list[str]:
        """Its edges, numbered by priority, with what their guards read; none where none was asked."""
        if all(edge.answer == "not asked" for edge in self.edges):
            return []
        lines: list[str] = []
        for number, edge in enumerate(self.edges, 1):
            when = f" if {edge.when}" if edge.when is not None else ""
            lines.append(f"{number}. {edge.target}{when}: {_ANSWERS[edge.answer]}")
            if edge.guard is not None:
                lines += ["   " + line for line in _indented(edge.guard.lines())]
        return lines

    def short(self) -> str:
        """The guards that were asked, and why the node did nothing, on a part of a line."""
        words: list[str] = []
        if self.event == "not due":
            words.append(f"not due ({self.trigger})")
        elif self.event in ("bypassed", "entered", "failed"):
            words.append(self.event)
        return " ".join(words + [edge.guard.short() for edge in self.edges if edge.guard is not None])


_ANSWERS: dict[Answer, str] = {
    "taken": "taken",
    "refused": "no",
    "not asked": "not asked",
    "raised": "its guard raised",
}


@final
@dataclass(frozen=True)
class Explanation:
    """Why a run went where it went: the last transition, in full.

    It prints as a text; `line` says it on one line; everything in it is plain data (`dataclasses.asdict`).

    Attributes:
        choices: the node that ran, and the edges that leave it. Where its edge ended a nested graph, the choice of the
            node around it follows. Empty where nothing is known; `note` then says why.
        next: the path of the node that runs next, or "end".
        where: the moment, in the words of the clock, after the node had run: ``"step 12, epoch 1.50, batch 5/10"``.
        step: steps of the optimizer; None where the graph does not count them.
        epoch: epochs, as a fraction where their length is known; None where they are not counted.
        batch: batches in this epoch; None where they are not counted.
        note: a sentence on what cannot be seen from the choices.
        error: what the node raised; empty where it did not.
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
        """Where the node that ran was left to, in its own graph or its body; "?" where it failed."""
        if not self.choices:
            return self.next
        taken = self.choices[0].taken
        return taken.target if taken is not None else "?" if self._is_stuck else self.next.rpartition("/")[2]

    @property
    def reasons(self) -> str:
        """The second half of the line: guards with what they read, in the order in which they were asked."""
        if not self.choices:
            return self.note
        first, *others = self.choices
        words = [first.short()]
        for choice in others:
            target = choice.taken.target if choice.taken is not None else "?"
            words.append(f"| {choice.node} -> {target} {choice.short()}".rstrip())
        if (bypassed := self._bypassed_target) is not None:
            words.append(f"| {bypassed} bypassed -> {self.next}")
        if self.error:
            words.append(f"raised {_on_one_line(self.error)}")
        return " ".join(filter(None, words))

    def __str__(self) -> str:
        lines = [f"at {self.where}:"] if self.choices and self.where else []
        for choice in self.choices:
            lines += [choice.headline(self.next), *_indented(choice.lines())]
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

    @property
    def _is_stuck(self) -> bool:
        return bool(self.error) or any(edge.answer == "raised" for choice in self.choices for edge in choice.edges)

    @property
    def _bypassed_target(self) -> str | None:
        """The target of the edge taken, if that has nothing to do and one way out: the run is already past it."""
        taken = self.choices[-1].taken if self.choices else None
        if taken is None or taken.target in ("end", self.next.rpartition("/")[2]):
            return None
        return taken.target


def shown(value: Any) -> str:
    """A value as it is read: exact fractions as decimals, text in quotes.

    >>> shown(Fraction(1, 4)), shown(Fraction(1, 3)), shown(3), shown(0.1), shown("a"), shown(True)
    ('0.25', '1/3', '3', '0.1', "'a'", 'True')
    """
    if isinstance(value, Fraction):
        return decimal(value) if value.denominator <= _EXACT_DENOMINATOR else f"{float(value):.4g}"
    return repr(value)


def _on_one_line(text: str) -> str:
    return " ".join(text.split())


def _indented(lines: Sequence[str]) -> list[str]:
    return ["  " + line for line in lines]
