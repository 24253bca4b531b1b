"""Where the time goes: host seconds by activity, always on, and the moment at which a display may draw.

The seconds of each node are sampled.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import final

from graphtrain.program.bind import ProgramNode

Visit = Callable[[], int]

# Time not spent on anything else.
TRAINING = "train"
# A call rests at least this many times as long as it took.
_LEAST_REST = 10
# One batch in many is timed, so that training is as fast as without.
_ONE_IN = 128


@final
class Stopwatch:
    """Host seconds by activity, while it runs. It does not wait for a device.

    Arguments:
        clock: returns the time in seconds. Default: `time.monotonic`.

    Attributes:
        now: returns the time of the clock used for everything here.
        next_tick: the time of the next tick, which a timed visit makes once it is reached. Default: never.
        spent: seconds by activity, except training, which has the rest.

    >>> now = [0.0]
    >>> watch = Stopwatch(clock=lambda: now[0])
    >>> watch.start(); now[0] = 3.0; watch.enter("validate"); now[0] = 4.0; watch.enter(); watch.stop()
    >>> watch.seconds()
    {'train': 3.0, 'validate': 1.0}
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._due: dict[Callable[[], float], float] = {}
        self.now = clock
        self.next_tick = math.inf
        self.spent: dict[str, float] = {}
        self._total = 0.0
        self._since: float | None = None  # when it was started
        self._activity, self._activity_since = TRAINING, 0.0

    def running(self) -> float:
        """Total seconds that it has run."""
        return self._total + (self.now() - self._since if self._since is not None else 0.0)

    def start(self, inside: str | None = None) -> None:
        """Start; `inside` is the activity that the run is inside, if any."""
        self._since = self._activity_since = self.now()
        self._activity = inside or TRAINING

    def stop(self) -> None:
        """Stand still."""
        self.enter()
        self._total, self._since = self.running(), None

    def enter(self, activity: str = TRAINING) -> None:
        """An activity of several visits begins, in place of the present one. Default: training continues."""
        now = self.now()
        if self._activity != TRAINING and self._since is not None:
            self.spent[self._activity] = self.spent.get(self._activity, 0.0) + now - self._activity_since
        self._activity, self._activity_since = activity, now

    def wrap(self, node: ProgramNode, visit: Visit) -> Visit:
        """The transition of a node, timed if it fetches data: 0.2 us. A display may draw after it.

        Inside a body that is timed, the time belongs to the activity of that.
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
        """Make these calls from time to time, and no others; each returns the seconds until it is due again."""
        self._due = dict.fromkeys(calls, self.now())
        self.next_tick = min(self._due.values(), default=math.inf)

    def tick(self) -> None:
        """Make the calls that are due."""
        for call, due in self._due.items():
            start = self.now()
            if start >= due:
                seconds = call()
                end = self.now()
                # A terminal over a slow connection must not take the time of training.
                self._due[call] = end + max(seconds, _LEAST_REST * (end - start))
        self.next_tick = min(self._due.values(), default=math.inf)

    @contextmanager
    def measure(self, activity: str) -> Iterator[None]:
        """A block of code whose time is counted only under an activity."""
        around = self._activity
        self.enter(activity)
        try:
            yield
        finally:
            self.enter(around)

    def seconds(self) -> dict[str, float]:
        """Seconds by activity until now, including training: every moment is counted once."""
        self.enter(self._activity)
        return {TRAINING: max(0.0, self.running() - sum(self.spent.values())), **self.spent}

    def load(self, seconds: Mapping[str, float]) -> None:
        """Continue from the counts before an interruption."""
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
        """Path of a node -> mean seconds of its timed visits, without those of nodes in it."""
        return {path: seconds / count for path, (seconds, count) in self._timed.items() if count > 0}

    def over(self, nodes: Sequence[ProgramNode], transitions: Sequence[Visit]) -> list[Visit]:
        """The transitions of nodes, which are sometimes timed; 0.1 us a batch where they are not.

        A list that changes while it runs: a transition that was timed puts the other into its place, until a node that
        fetches batches puts the timed ones back.
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
