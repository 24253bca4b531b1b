"""Reports a run while it runs: to a display, to the status file, to loggers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import final

from graphtrain.display.snapshot import Display, Snapshot
from graphtrain.metrics.logger import Beginning, Logger, RunLogger
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.storage.run_directory import STATUS_SECONDS

# The rest between two drawings lasts at least this many times as long as a drawing.
_LEAST_REST = 10


@final
class Reporter:
    """Reports the run, in the main thread and between two transitions.

    Arguments:
        snapshot: returns the run as it is now.
        write_status: called every few seconds: writes the status file, if there is a run directory.
        notify: called with a line when the display fails.
    """

    def __init__(
        self,
        watch: Stopwatch,
        snapshot: Callable[[], Snapshot],
        display: Display | None,
        write_status: Callable[[], None],
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
        """Tell the loggers that follow the run that it starts or resumes."""
        for logger in self.loggers:
            if isinstance(logger, RunLogger):
                logger.begin(beginning)

    def begin(self, now: float, *, shown: bool) -> None:
        """The run starts or continues; `shown` on the display or not."""
        self._showing = shown and self._display is not None
        self._next_show = now if self._showing else math.inf
        if self._showing:
            self._draw(lambda display: display.begin(self._snapshot()))
        self._watch.next_tick = self._next_status = now

    def tick(self, now: float) -> None:
        """Show what is due; called after the transitions that are timed."""
        if now >= self._next_show and self._display is not None:
            interval = self._display.interval_seconds
            self._draw(lambda display: display.show(self._snapshot()))
            drawn = self._watch.now()
            # A terminal over a slow connection must not take the time of training.
            self._next_show = drawn + max(interval, _LEAST_REST * (drawn - now)) if self._display else math.inf
        if now >= self._next_status:
            self._write_status()
            self._next_status = now + STATUS_SECONDS
        self._watch.next_tick = min(self._next_show, self._next_status)

    def row(self, metrics: Mapping[str, float], step: int) -> None:
        """A logger: a graph whose transitions are not timed is shown when a row is logged."""
        now = self._watch.now()
        if now >= self._watch.next_tick:
            self.tick(now)

    def flush(self) -> None:
        """A checkpoint is made."""
        for logger in self.loggers:
            if isinstance(logger, RunLogger):
                logger.flush()

    def end(self, state: str, error: BaseException | None) -> None:
        """The run has stopped, in a state of `LifeCycle`; `error` is the exception that has stopped it, if one has."""
        self._watch.next_tick = math.inf
        if self._showing:
            self._draw(lambda display: display.end(self._snapshot()))
            self._showing = False
        for logger in self.loggers:
            if isinstance(logger, RunLogger):
                logger.ended(state, error)
                logger.close()

    def _draw(self, call: Callable[[Display], None]) -> None:
        """Call the display. One that fails, or a terminal that is gone, must not end the run."""
        if self._display is None:
            return
        try:
            call(self._display)
        except Exception as error:
            self._display = None
            if not isinstance(error, OSError):
                self._notify(f"the display is off: it raised {type(error).__name__}: {error}")
