"""Host seconds of each node, sampled: one batch in many is timed, so that training goes as fast as without."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import final

from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Transition
from graphtrain.program.rounds import is_fetching

_ONE_IN = 128


@final
class NodeTimes:
    """Estimates how many seconds the visits of each node took, by those that were timed.

    Timed are the visits from one batch to the next, of the second batch and of one in 128 after it, whatever fetches
    them, and of other nodes the second visit too. The first ones of a process, in which much is set up, are not. A
    device may still compute when a visit is over.

    Arguments:
        clock: answers the time in seconds. Default: `time.perf_counter`.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._visits: dict[str, int] = {}
        self._timed: dict[str, list[float]] = {}  # seconds, and how many visits
        self._batches = 0
        self._is_timing = False

    def transitions(self, compiled: CompiledGraph) -> list[Transition]:
        """The transitions of a compiled graph, some of which are timed; 0.1 us for each that is not."""
        timed = []
        for bound, visit in zip(compiled.program.nodes, compiled.table.transitions, strict=True):
            timed.append(self._sampled(bound.path, visit, fetches=is_fetching(bound)))
        return timed

    def seconds(self) -> dict[str, float]:
        """Path of a node -> seconds of its visits in this process, the longest first; without those of nodes in it."""
        estimates = {
            path: seconds / count * self._visits[path] for path, (seconds, count) in self._timed.items() if count
        }
        return dict(sorted(estimates.items(), key=lambda item: -item[1]))

    def _sampled(self, path: str, visit: Transition, *, fetches: bool) -> Transition:
        visits, clock = self._visits, self._clock
        timed = self._timed.setdefault(path, [0.0, 0])
        visits.setdefault(path, 0)

        def sampled() -> int:
            visits[path] += 1
            if fetches:
                self._batches += 1
                self._is_timing = self._batches % _ONE_IN == 2
            if not (self._is_timing or visits[path] == 2):
                return visit()
            start = clock()
            position = visit()
            timed[0] += clock() - start
            timed[1] += 1
            return position

        return sampled
