"""What the state of an explored graph has besides its position: answers to questions, and counters."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple, final

from graphtrain.plan.scope import Scope
from graphtrain.program.bind import ProgramNode


@final
class Questions:
    """Questions about what is not known. An answer is kept until a visit may change it.

    Attributes:
        outcomes: the answers, by the number of the question; None if it was not asked.
        first: the answers with which a run, or a visit of a body, begins.
        choices: the answers chosen in the present visit, in order.
        asked: how many of these have been used.
    """

    def __init__(self) -> None:
        self.outcomes: list[bool | None] = []
        self.first: list[bool | None] = []
        self.choices: list[bool] = []
        self.asked = 0
        self._numbers: dict[tuple[Scope, object], int] = {}

    def number(self, scope: Scope, question: object, first: bool | None = None) -> tuple[int, bool]:
        """The number of a question about a graph, and True if it is new."""
        is_new = (scope, question) not in self._numbers
        if is_new:
            self._numbers[scope, question] = len(self.outcomes)
            self.outcomes.append(first)
            self.first.append(first)
        return self._numbers[scope, question], is_new

    def forget(self, scope: Scope, kept: Collection[object] = ()) -> None:
        """Reset the questions about a graph and the graphs inside it to their first answers, except those kept."""
        for (other, question), number in self._numbers.items():
            if other.path.startswith(scope.path) and question not in kept:
                self.outcomes[number] = self.first[number]

    def ask(self, number: int) -> bool:
        """The answer to a question; without one, the next choice, which is False at first."""
        answer = self.outcomes[number]
        if answer is None:
            if self.asked == len(self.choices):
                self.choices.append(False)
            answer = self.outcomes[number] = self.choices[self.asked]
            self.asked += 1
        return answer

    def choose_others(self) -> bool:
        """Continue to the next combination of choices; False if there is none."""
        while self.choices and self.choices[-1]:
            self.choices.pop()
        if self.choices:
            self.choices[-1] = True
        return bool(self.choices)


class _Group(NamedTuple):
    """Counters that guards compare with each other, the largest number in these guards, and a common divisor."""

    members: frozenset[int]
    largest: int
    period: int


@final
class Registers:
    """The fields that decide about the path of a run.

    Attributes:
        fields: for each, the dictionary and the key in it.
        read: those that were added since this was last cleared.
    """

    def __init__(self) -> None:
        self.fields: list[tuple[dict[str, Any], str]] = []
        self.read: set[tuple[ProgramNode, str]] = set()
        self._numbers: dict[tuple[ProgramNode, str], int] = {}
        self._groups: list[_Group] = []

    def add(self, node: ProgramNode, name: str) -> None:
        """Add a field of a node, unless it was added before."""
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
        """Note that a guard reads some fields together, with these numbers and divisors."""
        members = {self._numbers[each] for each in read if each in self._numbers}
        tied = [group for group in self._groups if group.members & members]
        if tied:
            self._groups = [group for group in self._groups if group not in tied]
            together = frozenset[int]().union(*[group.members for group in tied])
            largest = max([*numbers, 1, *[group.largest for group in tied]])
            self._groups.append(_Group(together, largest, math.lcm(*periods, *[group.period for group in tied])))

    def values(self) -> tuple[Any, ...]:
        """The values. Large counters are reduced so that comparisons and remainders stay the same."""
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
