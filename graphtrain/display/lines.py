"""A plain line of progress now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from graphtrain.display.panel import parts
from graphtrain.display.snapshot import Display, Snapshot
from graphtrain.plain import is_equal

_SILENCE_SECONDS = 60.0


@final
class Lines(Display):
    """Says new metrics as a line, where there is no terminal to draw on.

    A line begins with the step and the epoch that its metrics belong to, and ends with how far the run is and how fast.
    After a minute without new metrics there is a line without any.

    Arguments:
        write: takes a line.
        interval_seconds: metrics that come sooner wait for the next line, or the end. Default: 2.
        clock: answers the time in seconds. Default: `time.monotonic`.
        metrics: names of the metrics to say. Default: all.

    >>> lines = []; display = Lines(lines.append, interval_seconds=0)
    >>> display.begin()
    >>> display.show(Snapshot("running", "fit", "step", step=10, epoch=0.5, metrics={"loss": 0.25}, batch=10))
    >>> display.end(Snapshot("stopped", "fit", "step", step=10, epoch=0.5, metrics={"loss": 0.25}, seconds={"data": 2}))
    >>> lines
    ['step 10  epoch 0.50  loss 0.25  batch 10', 'host time: data 100 %']
    """

    def __init__(
        self,
        write: Callable[[str], Any],
        interval_seconds: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        metrics: Sequence[str] | None = None,
    ) -> None:
        self.interval_seconds = interval_seconds
        self._write = write
        self._clock = clock
        self._metrics = metrics
        self._said: Mapping[str, float] = {}
        self._last = -float("inf")
        self._begun = False

    def begin(self, snapshot: Snapshot | None = None) -> None:
        """From now on lines are said, of metrics that the snapshot does not hold."""
        self._begun = True
        if snapshot is not None:
            self._said = dict(snapshot.metrics)
        self._last = max(self._last, self._clock() - self.interval_seconds)

    def show(self, snapshot: Snapshot) -> None:
        """Say what is new, if the last line is long enough ago."""
        if not self._begun:
            return
        silent = self._clock() - self._last
        # Whoever calls once in an interval calls a little too early by this clock half of the time.
        if silent >= 0.9 * self.interval_seconds and (new := self._new(snapshot)):
            self._notify(snapshot, new)
        elif silent >= max(_SILENCE_SECONDS, self.interval_seconds):
            self._notify(snapshot, {})

    def end(self, snapshot: Snapshot) -> None:
        """Say what is still unsaid, and where host time went."""
        if not self._begun:
            return
        self._begun = False
        if new := self._new(snapshot):
            self._notify(snapshot, new)
        if shares := parts(snapshot).host_time:
            self._write("host time: " + "  ".join(shares))

    def _new(self, snapshot: Snapshot) -> dict[str, float]:
        """The metrics from the first one on that is not what was said of it: the latest row stands last."""
        values = [*snapshot.metrics.items()]
        unlike = (number for number, (name, value) in enumerate(values) if not is_equal(self._said.get(name), value))
        return dict(values[next(unlike, len(values)) :])

    def _notify(self, snapshot: Snapshot, metrics: Mapping[str, float]) -> None:
        self._said = {**self._said, **metrics}
        self._last = self._clock()
        wanted = metrics if self._metrics is None else self._metrics
        said = parts(snapshot, [name for name in wanted if name in metrics and name not in ("step", "epoch")])
        row = snapshot.metrics if metrics else {}  # what the values belong to, which may lie some batches back
        step, epoch = row.get("step", snapshot.step), row.get("epoch", snapshot.epoch)
        words = [
            f"step {step:.0f}" if step is not None else "",
            f"epoch {epoch:.2f}" if epoch is not None else "",
            *(f"{name} {value}" for name, value in said.metrics),
            said.batch,
            *said.rates,
            said.left,
        ]
        self._write("  ".join(filter(None, words)))
