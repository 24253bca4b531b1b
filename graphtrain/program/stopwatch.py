"""Where the time goes: host seconds by activity, always on, and the moment at which a display may draw."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import final

Visit = Callable[[], int]

# What is not spent on anything else.
TRAINING = "train"


@final
class Stopwatch:
    """Host seconds by activity, while it runs. What a device still has to do is not waited for.

    Arguments:
        tick: called with the time after a timed visit, once the time is `next_tick`.
        clock: answers the time in seconds. Default: `time.monotonic`.

    Attributes:
        next_tick: the time of the next tick. Default: never.
        spent: seconds by activity, what is left for training aside.

    >>> now = [0.0]
    >>> watch = Stopwatch(lambda time: None, clock=lambda: now[0])
    >>> watch.start(); now[0] = 3.0; watch.enter("validate"); now[0] = 4.0; watch.leave(); watch.stop()
    >>> watch.seconds()
    {'train': 3.0, 'validate': 1.0}
    """

    def __init__(self, tick: Callable[[float], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tick = tick
        self._clock = clock
        self.next_tick = math.inf
        self.spent: dict[str, float] = {}
        self._total = 0.0
        self._since: float | None = None
        self._inside: tuple[str, float] | None = None

    def now(self) -> float:
        """The time, by the clock that everything here goes by."""
        return self._clock()

    def running(self) -> float:
        """Seconds that it has run in all."""
        return self._running_at(self._clock())

    def _running_at(self, now: float) -> float:
        return self._total + (now - self._since if self._since is not None else 0.0)

    def start(self, inside: str | None = None) -> None:
        """Run from now on; `inside` is the activity that the run stands in the middle of, if any."""
        self._since = self._clock()
        self._inside = (inside, self._since) if inside is not None else None

    def stop(self) -> None:
        """Stand still."""
        if self._since is None:
            return
        self._total += self._clock() - self._since
        self.leave()
        self._since = None

    def enter(self, activity: str) -> None:
        """An activity of several visits begins."""
        self._inside = (activity, self._clock())

    def leave(self) -> None:
        """It ends; nothing happens if there is none."""
        if self._inside is not None:
            activity, since = self._inside
            self._add(activity, self._clock() - since)
            self._inside = None

    def timed(self, visit: Visit, activity: str) -> Visit:
        """A visit whose time is counted under an activity; 0.2 us a visit."""
        clock, spent = self._clock, self.spent
        spent.setdefault(activity, 0.0)

        def timed_visit() -> int:
            start = clock()
            position = visit()
            now = clock()
            spent[activity] += now - start
            if now >= self.next_tick:
                self._tick(now)
            return position

        return timed_visit

    def ticking(self, visit: Visit) -> Visit:
        """A visit after which a display may draw; its time belongs to what it is inside of."""
        clock = self._clock

        def ticking_visit() -> int:
            position = visit()
            if (now := clock()) >= self.next_tick:
                self._tick(now)
            return position

        return ticking_visit

    def measure(self, activity: str) -> _Span:
        """A block of code whose time is counted under an activity, and under nothing else."""
        return _Span(self, activity)

    def seconds(self) -> dict[str, float]:
        """Seconds by activity until now, training among them: every moment is counted once."""
        now = self._clock()
        total = self._running_at(now)
        spent = dict(self.spent)
        if self._inside is not None:
            activity, since = self._inside
            spent[activity] = spent.get(activity, 0.0) + now - since
        return {TRAINING: max(0.0, total - sum(spent.values())), **spent}

    def load(self, seconds: Mapping[str, float]) -> None:
        """Go on from what was counted before an interruption."""
        known = {name: value for name, value in seconds.items() if isinstance(value, int | float) and 0 <= value < 1e12}
        # Not cleared: a visit that is timed counts on its activity being there.
        self.spent.update(dict.fromkeys(self.spent, 0.0))
        self.spent.update({name: value for name, value in known.items() if name != TRAINING})
        self._total = sum(known.values())

    def _add(self, activity: str, seconds: float) -> None:
        self.spent[activity] = self.spent.get(activity, 0.0) + seconds

    def _put_off(self, seconds: float) -> None:
        """What the present activity is not to be counted for."""
        if self._inside is not None:
            activity, since = self._inside
            self._inside = (activity, since + seconds)


class _Span:
    def __init__(self, watch: Stopwatch, activity: str) -> None:
        self._watch, self._activity = watch, activity

    def __enter__(self) -> None:
        self._start = self._watch._clock()

    def __exit__(self, *_: object) -> None:
        if self._watch._since is not None:
            seconds = self._watch._clock() - self._start
            self._watch._add(self._activity, seconds)
            self._watch._put_off(seconds)
