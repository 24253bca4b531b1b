"""Host seconds by activity, which are always measured, and of nodes, which are sampled; calls at intervals."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import final

from graphtrain.program.bind import ProgramNode

Visit = Callable[[], int]

# The activity that has all time not spent on another.
TRAINING = "train"
# After a call that took t seconds, the next comes after at least this many times t.
_LEAST_REST = 10
# One batch in this many is timed, so that training is as fast as without.
_ONE_IN = 128


@final
class Stopwatch:
    """Measures host seconds by activity while it runs. It does not wait for a device.

    Arguments:
        clock: returns the time in seconds. Default: `time.monotonic`.

    Attributes:
        now: returns the time of `clock`.
        next_tick: the time from which a timed visit calls `tick`. Default: never.
        spent: activity -> seconds, except training.

    >>> now = [0.0]
    >>> watch = Stopwatch(clock=lambda: now[0])
    >>> watch.start(); now[0] = 3.0; watch.enter("validate"); now[0] = 4.0; watch.enter(); watch.stop()
    >>> watch.seconds()
    {'train': 3.0, 'validate': 1.0}
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._due: dict[Callable[[], float], float] = {}
        self.now = clock or time.monotonic
        self.next_tick = math.inf
        self.spent: dict[str, float] = {}
        self._total = 0.0
        self._since: float | None = None  # when it was started
        self._activity, self._activity_since = TRAINING, 0.0

    def running(self) -> float:
        """The seconds for which it has run."""
        return self._total + (self.now() - self._since if self._since is not None else 0.0)

    def start(self, inside: str | None = None) -> None:
        """Start in an activity. Default: training."""
        self._since = self._activity_since = self.now()
        self._activity = inside or TRAINING

    def stop(self) -> None:
        """Stop; `start` continues."""
        self.enter()
        self._total, self._since = self.running(), None

    def enter(self, activity: str = TRAINING) -> None:
        """Begin an activity in place of the present one. Default: training."""
        now = self.now()
        if self._activity != TRAINING and self._since is not None:
            self.spent[self._activity] = self.spent.get(self._activity, 0.0) + now - self._activity_since
        self._activity, self._activity_since = activity, now

    def wrap(self, node: ProgramNode, visit: Visit) -> Visit:
        """The transition of a node; of one that fetches data, timed (0.2 us), with a tick after it.

        In a body with another activity, such as "validate", the time counts for that.
        """
        if node.kind.family != "data" or node.bypassed:
            return visit
        clock, activity = self.now, "data"
        spent = self.spent if node.scope.activity is None else {}
        spent.setdefault(activity, 0.0)

        def timed_visit() -> int:
            start = clock()
            position = visit()
            now = clock()
            spent[activity] += now - start
            if now >= self.next_tick:
                self.tick()
            return position

        return timed_visit

    def repeat(self, calls: Iterable[Callable[[], float]]) -> None:
        """Make these calls, and no others, at intervals; each returns the seconds until it is due again."""
        self._due = dict.fromkeys(calls, self.now())
        self.next_tick = min(self._due.values(), default=math.inf)

    def tick(self) -> None:
        """Make the calls that are due."""
        for call, due in self._due.items():
            start = self.now()
            if start >= due:
                seconds = call()
                end = self.now()
                # A slow terminal must not slow down training.
                self._due[call] = end + max(seconds, _LEAST_REST * (end - start))
        self.next_tick = min(self._due.values(), default=math.inf)

    @contextmanager
    def measure(self, activity: str) -> Iterator[None]:
        """A block of code whose time counts only for an activity."""
        around = self._activity
        self.enter(activity)
        try:
            yield
        finally:
            self.enter(around)

    def seconds(self) -> dict[str, float]:
        """Activity -> seconds until now, training included. Every moment counts once."""
        self.enter(self._activity)
        return {TRAINING: max(0.0, self.running() - sum(self.spent.values())), **self.spent}

    def load(self, seconds: Mapping[str, float]) -> None:
        """Continue from the seconds of an interrupted run."""
        # Not cleared: a timed visit relies on the entry of its activity.
        self.spent.update(dict.fromkeys(self.spent, 0.0))
        self.spent.update({name: value for name, value in seconds.items() if name != TRAINING})
        self._total = sum(seconds.values())


@final
class NodeTimes:
    """Times some of the visits of each node: one in 128 batches, for a node that every batch visits.

    The first visit of a process, which includes set-up, does not count. A device may still compute after a visit.
    """

    def __init__(self) -> None:
        self._timed: dict[str, list[float]] = {}  # seconds, and how many visits
        self._batches = 0

    def means(self) -> dict[str, float]:
        """Path of a node -> mean seconds of its timed visits, without the nodes inside it."""
        return {path: seconds / count for path, (seconds, count) in self._timed.items() if count > 0}

    def over(self, nodes: Sequence[ProgramNode], transitions: Sequence[Visit]) -> list[Visit]:
        """The transitions of nodes, some visits of which are timed; the others cost 0.1 us a batch.

        The list changes while it runs: a transition that was timed replaces itself by the one that is not, until a node
        that fetches batches puts the timed ones back.
        """

        def fetching(visit: Visit) -> Visit:
            def fetch() -> int:
                self._batches += 1
                if self._batches % _ONE_IN == 0:
                    table[:] = timed
                return visit()

            return fetch

        def timing(node: ProgramNode, visit: Visit, untimed: Visit) -> Visit:
            clock, index, sums = time.perf_counter, node.index, self._timed.setdefault(node.path, [0.0, -1])

            def timed_visit() -> int:
                start = clock()
                position = visit()
                if sums[1] >= 0:  # else it includes set-up
                    sums[0] += clock() - start
                    table[index] = untimed
                sums[1] += 1
                return position

            return timed_visit

        untimed = [
            fetching(visit) if node.kind.fetches else visit for node, visit in zip(nodes, transitions, strict=True)
        ]
        timed = list(map(timing, nodes, transitions, untimed))
        table = timed.copy()
        return table
