"""What the state of an explored graph holds beside its position: answers to what is not known, and counters."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple, final

from graphtrain.plan.scope import Scope
from graphtrain.program.bind import ProgramNode


@final
class Questions:
    """What is not known. An answer stays until a visit may change it, so that a run cannot contradict itself.

    Attributes:
        outcomes: the answers, by the number of the question; None if it was not asked.
        first: those with which a run, or a visit of a body, begins.
        choices: the answers that were chosen in the present visit, in order.
        asked: how many of these were asked for, in this round of choices.
    """

    def __init__(self) -> None:
        self.outcomes: list[bool | None] = []
        self.first: list[bool | None] = []
        self.choices: list[bool] = []
        self.asked = 0
        self._numbers: dict[tuple[Scope, object], int] = {}

    def number(self, scope: Scope, question: object, first: bool | None = None) -> tuple[int, bool]:
        """The number of a question of a graph, and True if it is new."""
        is_new = (scope, question) not in self._numbers
        if is_new:
            self._numbers[scope, question] = len(self.outcomes)
            self.outcomes.append(first)
            self.first.append(first)
        return self._numbers[scope, question], is_new

    def forget(self, scope: Scope, kept: Collection[object] = ()) -> None:
        """Give the questions of a graph, and of those inside it, their first answers, except some."""
        for (other, question), number in self._numbers.items():
            if other.path.startswith(scope.path) and question not in kept:
                self.outcomes[number] = self.first[number]

    def ask(self, number: int) -> bool:
        """The answer to a question; if it has none, the next choice: at first False."""
        answer = self.outcomes[number]
        if answer is None:
            if self.asked == len(self.choices):
                self.choices.append(False)
            answer = self.outcomes[number] = self.choices[self.asked]
            self.asked += 1
        return answer

    def choose_others(self) -> bool:
        """Go on to the next choices; False if there are no others."""
        while self.choices and self.choices[-1]:
            self.choices.pop()
        if self.choices:
            self.choices[-1] = True
        return bool(self.choices)


class _Group(NamedTuple):
    """Counters that guards compare with each other, the largest number beside them, and what they are divided by."""

    members: frozenset[int]
    largest: int
    period: int


@final
class Registers:
    """The fields that decide where a run goes, as one tuple of values.

    Attributes:
        fields: the dictionaries, and the keys in them.
    """

    def __init__(self) -> None:
        self.fields: list[tuple[dict[str, Any], str]] = []
        self.read: set[tuple[ProgramNode, str]] = set()  # those that were registered since somebody cleared it
        self._numbers: dict[tuple[ProgramNode, str], int] = {}
        self._groups: list[_Group] = []

    def add(self, node: ProgramNode, name: str) -> None:
        """Register a field of a node; nothing happens if it is."""
        self.read.add((node, name))
        if (node, name) in self._numbers or name not in node.fields:
            return
        self._numbers[node, name] = len(self.fields)
        self.fields.append((node.fields, name))
        declared = node.kind.fields[name]
        is_epoch = node.kind.fetches and name in ("epoch", "batches", "samples")
        if name == "runs" or is_epoch or declared.adds is not None or declared.counts is not None:
            self._groups.append(_Group(frozenset({self._numbers[node, name]}), 1, 1))

    def tie(self, read: Iterable[tuple[ProgramNode, str]], numbers: Iterable[int], periods: Iterable[int]) -> None:
        """Note that a guard reads some fields together, beside some numbers and remainders."""
        members = {self._numbers[each] for each in read if each in self._numbers}
        tied = [group for group in self._groups if group.members & members]
        if tied:
            self._groups = [group for group in self._groups if group not in tied]
            together = frozenset[int]().union(*[group.members for group in tied])
            largest = max([*numbers, 1, *[group.largest for group in tied]])
            self._groups.append(_Group(together, largest, math.lcm(*periods, *[group.period for group in tied])))

    def values(self) -> tuple[Any, ...]:
        """The values, with counters that are large folded: comparisons and remainders stay as they are."""
        values = [fields[name] for fields, name in self.fields]
        for members, largest, period in self._groups:
            most = largest + period
            if max([values[number] for number in members]) > most:
                before = less = 0
                for number in sorted(members, key=values.__getitem__):
                    value = values[number] - less
                    folds = max(0, -((most + before - value) // period))
                    value, less = value - folds * period, less + folds * period
                    values[number] = before = value
        return tuple(values)

    def put(self, values: tuple[Any, ...]) -> None:
        """Set the values."""
        for (fields, name), value in zip(self.fields, values, strict=True):
            fields[name] = value
