"""Who looks at a run while it runs: the display, the status file, loggers, whoever waits for a metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

from graphtrain.lazy import PARTS, installed
from graphtrain.notices import Notices
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.report.logger import Beginning, Logger, RunLogger
from graphtrain.report.snapshot import Display, Snapshot
from graphtrain.report.values import loss_that_is_not_finite

# The rest between two ticks of one watcher lasts at least this many times as long as a tick.
_LEAST_REST = 10
_NOT_FINITE = "--overlay check_finite names the batch, and can drop it"


class Watcher:
    """Looks at a run, in the main thread and between two transitions. Each method does nothing unless it is defined.

    Attributes:
        interval_seconds: the least time between two calls of `tick`. Default: it is never called.
    """

    interval_seconds = math.inf

    def announce(self, beginning: Beginning) -> None:
        """The run begins or is resumed, or continues in another graph."""

    def begin(self, *, is_shown: bool) -> None:
        """The run starts or continues in this process, on the display or not."""

    def row(self, row: Mapping[str, float], step: int) -> None:
        """A row of metrics is recorded."""

    def saved(self) -> None:
        """A checkpoint is made; it may still be written."""

    def written(self) -> None:
        """A checkpoint is on the disk, or ranked."""

    def tick(self) -> None:
        """Time has passed."""

    def end(self, state: str, error: BaseException | None) -> None:
        """The run has stopped, in a state of `LifeCycle`, by an exception or without one."""


@final
class Watchers(Watcher):
    """All who look at one run; `tick` is called by the transitions that are timed, when `Stopwatch.next_tick` comes."""

    def __init__(self, watch: Stopwatch, watchers: Iterable[Watcher]) -> None:
        self._watch = watch
        self._watchers = list(watchers)
        self._next = dict.fromkeys(self._watchers, math.inf)

    def announce(self, beginning: Beginning) -> None:
        for watcher in self._watchers:
            watcher.announce(beginning)

    def begin(self, *, is_shown: bool) -> None:
        now = self._watch.now()
        for watcher in self._watchers:
            watcher.begin(is_shown=is_shown)
            self._next[watcher] = now if watcher.interval_seconds < math.inf else math.inf
        self._watch.next_tick = min(self._next.values(), default=math.inf)

    def row(self, row: Mapping[str, float], step: int) -> None:
        if self._watch.now() >= self._watch.next_tick:  # of a graph whose transitions are not timed
            self.tick()
        for watcher in self._watchers:
            watcher.row(row, step)

    def saved(self) -> None:
        for watcher in self._watchers:
            watcher.saved()

    def written(self) -> None:
        for watcher in self._watchers:
            watcher.written()

    def tick(self) -> None:
        now = self._watch.now()
        for watcher, due in self._next.items():
            if now >= due:
                start = self._watch.now()
                watcher.tick()
                end = self._watch.now()
                # A terminal over a slow connection must not take the time of training.
                self._next[watcher] = end + max(watcher.interval_seconds, _LEAST_REST * (end - start))
        self._watch.next_tick = min(self._next.values(), default=math.inf)

    def end(self, state: str, error: BaseException | None) -> None:
        self._watch.next_tick = math.inf
        for watcher in self._watchers:
            watcher.end(state, error)


def display_for(notify: Callable[[str], Any], metrics: Sequence[str] | None = None) -> Display | None:
    """The display that fits where the run is: a terminal, a notebook, or lines; None if displays are not installed.

    Arguments:
        notify: takes a plain line.
        metrics: names of the metrics to show. Default: all.
    """
    displays = installed(PARTS["display"])
    return displays.display_for(notify, metrics) if displays is not None else None


@final
class OnDisplay(Watcher):
    """Shows the run on a display. One that fails, or a terminal that is gone, does not end the run.

    Arguments:
        snapshot: returns the run as it is now.
    """

    def __init__(self, display: Display | None, snapshot: Callable[[], Snapshot], notices: Notices) -> None:
        self._display, self._snapshot, self._notices = display, snapshot, notices
        self._is_shown = False

    def begin(self, *, is_shown: bool) -> None:
        self._is_shown = is_shown and self._display is not None
        self._draw(lambda display: display.begin(self._snapshot()))

    def tick(self) -> None:
        self._draw(lambda display: display.show(self._snapshot()))

    def end(self, state: str, error: BaseException | None) -> None:
        self._draw(lambda display: display.end(self._snapshot()))
        self._is_shown, self.interval_seconds = False, math.inf

    def _draw(self, call: Callable[[Display], None]) -> None:
        if not self._is_shown or self._display is None:
            self.interval_seconds = math.inf
            return
        try:
            self.interval_seconds = self._display.interval_seconds
            call(self._display)
        except Exception as error:
            self._display, self.interval_seconds = None, math.inf
            if not isinstance(error, OSError):
                self._notices.once(f"the display is off: it raised {type(error).__name__}: {error}")


@final
class ToLoggers(Watcher):
    """Tells the loggers that follow the run of everything but rows, which the recorder gives to each logger."""

    def __init__(self, loggers: Iterable[Logger]) -> None:
        self._loggers = [logger for logger in loggers if isinstance(logger, RunLogger)]

    def announce(self, beginning: Beginning) -> None:
        for logger in self._loggers:
            logger.begin(beginning)

    def saved(self) -> None:
        for logger in self._loggers:
            logger.flush()

    def end(self, state: str, error: BaseException | None) -> None:
        for logger in self._loggers:
            logger.ended(state, error)
            logger.close()


@final
class OfLosses(Watcher):
    """Reports the first loss that is not finite."""

    def __init__(self, notices: Notices) -> None:
        self._notices = notices
        self._are_finite = True

    def row(self, row: Mapping[str, float], step: int) -> None:
        if self._are_finite and (loss := loss_that_is_not_finite(row)):
            self._are_finite = False
            self._notices(f"{loss} at step {step}, the first loss that is not finite; {_NOT_FINITE}")
