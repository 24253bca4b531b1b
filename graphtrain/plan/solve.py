"""Analyses of a flow: fixed points, reachable states, and strongly connected components.

Source: Kildall, "A unified approach to global program optimization", 1973.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar, final

Point = TypeVar("Point", bound=Hashable)
Value = TypeVar("Value")
State = TypeVar("State", bound=Hashable)


def solve(
    start: Mapping[Point, Value],
    transfer: Callable[[Point, Value], Iterable[tuple[Point, Value]]],
    join: Callable[[Value, Value], Value],
) -> dict[Point, Value]:
    """The value at every reachable point: the join of the incoming values.

    Arguments:
        start: the points entered from outside, with their incoming values.
        transfer: the successors of a point with a value, each with the value there.

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
    """The reachable states, the nearest first, found lazily by iteration.

    Arguments:
        follow: returns the successors of a state.

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
        """A shortest path to a state that was found."""
        way = [state]
        while (before := self._came_from[way[-1]]) is not None:
            way.append(before)
        return way[::-1]


def circle(start: State, targets: Mapping[State, list[State]]) -> list[State]:
    """A shortest path from a point back to itself; there must be one.

    >>> circle(2, {1: [2], 2: [3, 1], 3: [4], 4: [2]})
    [2, 1, 2]
    """
    ways = Ways([start], lambda point: targets.get(point, ()))
    return [*next(ways.to(point) for point in ways if start in targets.get(point, ())), start]


def components(points: Collection[Point], targets: Mapping[Point, Iterable[Point]]) -> list[frozenset[Point]]:
    """The strongly connected components of some points that contain a cycle.

    >>> components([1, 2, 3, 4], {1: [2], 2: [1, 3], 3: [4], 4: [4]})
    [frozenset({4}), frozenset({1, 2})]
    """
    import networkx  # which takes a while

    network = networkx.DiGraph({point: targets[point] for point in points}).subgraph(points)
    parts = networkx.strongly_connected_components(network)
    return [frozenset(part) for part in parts if len(part) > 1 or any(network.has_edge(point, point) for point in part)]
