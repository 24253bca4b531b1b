"""The two ways in which a flow is analysed: values that settle, and states that can be reached.

Source: Kildall, "A unified approach to global program optimization", 1973.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar, final

Point = TypeVar("Point", bound=Hashable)
Value = TypeVar("Value")
State = TypeVar("State", bound=Hashable)


def solve(
    start: Mapping[Point, Value],
    transfer: Callable[[Point, Value], Iterable[tuple[Point, Value]]],
    join: Callable[[Value, Value], Value],
) -> dict[Point, Value]:
    """The value at every point that is reached: the join of the values that come in there.

    Arguments:
        start: the points that are reached from outside, with what comes in.
        transfer: where a value leads from a point, and what it becomes on the way.

    >>> edges = {1: [2, 3], 2: [3], 3: [2]}
    >>> solve({1: 0}, lambda point, steps: [(after, min(steps + 1, 9)) for after in edges[point]], min)
    {1: 0, 2: 1, 3: 1}
    """
    values = dict(start)
    waiting = deque(values)
    while waiting:
        point = waiting.popleft()
        for target, value in transfer(point, values[point]):
            if target in values:
                value = join(known := values[target], value)
                if value == known:
                    continue
            values[target] = value
            waiting.append(target)
    return values


@final
class Ways(Generic[State]):
    """The states that can be reached, the nearest first; each is found when it is iterated over.

    Arguments:
        follow: the states that come next after one.

    >>> ways = Ways([1], {1: [2, 3], 2: [4], 3: [4], 4: []}.__getitem__)
    >>> list(ways), ways.to(4)
    ([1, 2, 3, 4], [1, 2, 4])
    """

    def __init__(self, start: Iterable[State], follow: Callable[[State], Iterable[State]]) -> None:
        self._came_from: dict[State, State | None] = dict.fromkeys(start)
        self._follow = follow

    def __iter__(self) -> Iterator[State]:
        waiting = deque(self._came_from)
        while waiting:
            state = waiting.popleft()
            yield state
            for after in self._follow(state):
                if after not in self._came_from:
                    self._came_from[after] = state
                    waiting.append(after)

    def __len__(self) -> int:
        """How many were found so far."""
        return len(self._came_from)

    def to(self, state: State) -> list[State]:
        """A shortest way to a state that was found."""
        way = [state]
        while (before := self._came_from[way[-1]]) is not None:
            way.append(before)
        return way[::-1]
