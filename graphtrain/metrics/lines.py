"""A plain line of progress now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any


class ProgressLines:
    """A logger that says a row of metrics as a line, at most once in `interval_seconds`.

    Arguments:
        write: takes the line.
        interval_seconds: rows that come sooner are not said. Default: 2.
        clock: answers the time in seconds. Default: `time.monotonic`.

    >>> lines = []; say = ProgressLines(lines.append)
    >>> say({"step": 10, "epoch": 0.5, "loss": 0.25}, 10); say({"step": 11, "epoch": 0.6, "loss": 0.25}, 11)
    >>> lines
    ['step 10  epoch 0.50  loss 0.25']
    """

    def __init__(
        self,
        write: Callable[[str], Any],
        interval_seconds: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._interval = interval_seconds
        self._clock = clock
        self._next = 0.0
        self._latest: Mapping[str, float] = {}

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        self._latest = {**self._latest, **metrics}
        if self._clock() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Say what came since the last line, if anything."""
        if not self._latest:
            return
        values = [f"{name} {value:.4g}" for name, value in self._latest.items() if name not in ("step", "epoch")]
        self._write("  ".join([f"step {self._latest['step']}", f"epoch {self._latest['epoch']:.2f}", *values]))
        self._latest = {}
        self._next = self._clock() + self._interval
