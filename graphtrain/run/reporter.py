"""Whoever is told of a run while it goes on: a display, the status for those outside, loggers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import final

from graphtrain.display.snapshot import Display, Snapshot
from graphtrain.metrics.logger import Beginning, Logger, RunLogger
from graphtrain.program.stopwatch import Stopwatch

# How old the status may be while the run goes on.
_STATUS_SECONDS = 2.0
# Between two drawings there is at least this many times what one takes.
_LEAST_REST = 10


@final
class Reporter:
    """Tells the run, in the main thread and between two visits.

    Arguments:
        snapshot: answers the run as it is now.
        write_status: writes the status; None if there is nowhere to.
        notify: told of what cannot be shown or written, once each.
    """

    def __init__(
        self,
        watch: Stopwatch,
        snapshot: Callable[[], Snapshot],
        display: Display | None,
        write_status: Callable[[], None] | None,
        loggers: Iterable[Logger],
        notify: Callable[[str], None],
    ) -> None:
        self._watch = watch
        self._snapshot = snapshot
        self._display = display
        self._write_status = write_status
        self._notify = notify
        self.loggers = tuple(loggers)
        self._showing = False
        self._next_show = self._next_status = math.inf

    def announce(self, beginning: Beginning) -> None:
        """Tell the loggers that follow the run that it begins, or is gone on with."""
        for logger in self.loggers:
            if isinstance(logger, RunLogger):
                logger.begin(beginning)

    def begin(self, now: float, *, shown: bool) -> None:
        """The run goes on from here; `shown` on the display or not."""
        self._showing = shown and self._display is not None
        if self._showing:
            self._draw(lambda display: display.begin(self._snapshot()))
        self._next_show = now if self._showing else math.inf
        self._next_status = now if self._write_status is not None else math.inf
        self._watch.next_tick = now

    def tick(self, now: float) -> None:
        """Show what is due; called after the visits that are timed."""
        if now >= self._next_show and self._display is not None:
            interval = self._display.interval_seconds
            self._draw(lambda display: display.show(self._snapshot()))
            drawn = self._watch.now()
            # A terminal at the end of a slow line must not take the time of training.
            self._next_show = drawn + max(interval, _LEAST_REST * (drawn - now)) if self._display else math.inf
        if now >= self._next_status and self._write_status is not None:
            self._write_status()
            self._next_status = now + _STATUS_SECONDS
        self._watch.next_tick = min(self._next_show, self._next_status)

    def row(self, metrics: Mapping[str, float], step: int) -> None:
        """A logger: a graph whose visits are not timed is shown when a row comes."""
        now = self._watch.now()
        if now >= self._watch.next_tick:
            self.tick(now)

    def end(self) -> None:
        """The run stands still."""
        self._watch.next_tick = math.inf
        if self._showing:
            self._draw(lambda display: display.end(self._snapshot()))
            self._showing = False
        for logger in self.loggers:
            if isinstance(logger, RunLogger):
                logger.close()

    def _draw(self, call: Callable[[Display], None]) -> None:
        """A display that fails costs nobody a run, nor does a terminal that has gone away."""
        if self._display is None:
            return
        try:
            call(self._display)
        except Exception as error:
            self._display = None
            if not isinstance(error, OSError):
                self._notify(f"nothing is shown any more: the display raised {type(error).__name__}: {error}")
