"""Chooses a display: a terminal, a notebook, or plain lines, which are here."""

from __future__ import annotations

import itertools
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, final

from graphtrain.plain import is_equal
from graphtrain.printable import one_line
from graphtrain.report.display import panel
from graphtrain.report.display.footer import can_be_drawn_on
from graphtrain.report.numbers import count
from graphtrain.report.snapshot import Display, Snapshot

_SILENCE_SECONDS = 60.0


@final
class PlainLines(Display):
    """Writes new metrics as a line, where there is no terminal to draw on.

    A line begins with the step and the epoch of the run, after the clocks of enclosing graphs, and ends with its
    progress and its pace; metrics that were recorded at an earlier step are marked with it. After a minute without new
    metrics there is a line without any. Metrics logged sooner than `interval_seconds` wait for the next line.
    """

    interval_seconds = 2.0

    def __init__(self, write: Callable[[str], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._written: Mapping[str, float] = {}
        self._last = -float("inf")

    def begin(self, snapshot: Snapshot | None = None) -> None:
        """The metrics in the snapshot are not new."""
        if snapshot is not None:
            self._written = dict(snapshot.metrics)
        self._last = max(self._last, self._clock() - self.interval_seconds)

    def show(self, snapshot: Snapshot) -> None:
        """Write new metrics, if the last line is old enough."""
        # A caller that waits for the interval calls a little too early by this clock half of the time.
        if (silence := self._clock() - self._last) >= 0.9 * self.interval_seconds:
            self._write_line(snapshot, is_needed=silence >= _SILENCE_SECONDS)

    def end(self, snapshot: Snapshot) -> None:
        """Write the remaining metrics, and the shares of host time."""
        self._write_line(snapshot)
        if shares := panel.host_time(snapshot):
            self._write("time: " + "  ".join(shares))

    def _write_line(self, snapshot: Snapshot, *, is_needed: bool = False) -> None:
        """Write the metrics from the first one on that has changed: the latest row is at the end."""
        values = [*snapshot.metrics.items()]
        changed = [not is_equal(self._written.get(name), value) for name, value in values]
        metrics = dict(values[changed.index(True) :]) if any(changed) else {}
        if not metrics and not is_needed:
            return
        self._written = {**self._written, **metrics}
        self._last = self._clock()
        row = snapshot.metrics if metrics else {}
        clocks = {name: row.get(name, value) for name, value in snapshot.clocks.items()}
        step, epoch = snapshot.step, snapshot.epoch
        if clocks != snapshot.clocks and step is not None:  # the values are of another training, which is over
            step, epoch = int(row.get("step", step)), row.get("epoch", epoch) if epoch is not None else None
        steps = {name: snapshot.metric_steps.get(name, step) for name in snapshot.measured if name in metrics}
        words = [
            *[f"{one_line(name)} {count(value)}" for name, value in clocks.items()],
            *([f"step {step}"] if step is not None else []),
            *([f"epoch {epoch:.2f}"] if epoch is not None else []),
        ]
        for at, names in itertools.groupby(steps, steps.__getitem__):  # those of an earlier step are followed by it
            pairs = [f"{name} {value}" for name, value in panel.metrics(snapshot, names)]
            words += pairs if step is None or at in (None, step) else [f"{', '.join(pairs)} (step {at:.0f})"]
        words += panel.batch(snapshot)
        if snapshot.evaluation is not None and snapshot.state == "running":
            words.append(panel.place(snapshot))
        self._write("  ".join(filter(None, [*words, *panel.rates(snapshot), *panel.left(snapshot)])))


def display_for(notify: Callable[[str], Any]) -> Display:
    """A panel on a terminal, an output that is updated in a notebook, plain lines, for `notify`, everywhere else."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    if hasattr(shell, "kernel"):  # not at the prompt of IPython
        from graphtrain.report.display.notebook import Notebook

        return Notebook()
    if multiprocessing.parent_process() is None and can_be_drawn_on(sys.stderr):  # the terminal of this process
        from graphtrain.report.display.live import Live

        return Live()
    return PlainLines(notify)
