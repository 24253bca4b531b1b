"""Running means over samples, and the rows that are recorded from them.

Metrics are a store with names, not slots: any node may add to it without being connected to it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Integral
from typing import Any

import torch

from graphtrain.errors import UsageError
from graphtrain.report.logger import Logger as Logger
from graphtrain.report.logger import Loggers, Shown
from graphtrain.report.values import REDUCTIONS, ROW_POSITION, Reduced, as_numbers, check_metric, detached

Place = float | list[float]
Sums = dict[str, list[Any]]
"""Name -> the sum of value * samples, and the sum of samples; or the reduced value, and the reduction."""

# Values stay on their device until a mean is read, but at most this many: a run that never reads one stays small.
_MOST_WAITING = 1024


class Means:
    """Means of named values, weighted by samples, over one or more intervals that are reset independently.

    The sums are in double precision and updated one value at a time, in order: their bits do not depend on when they
    are updated. With `only_finite`, what is added with a loss that is not finite is left out, and every `add` waits for
    the device. `gather` sends the sums of an interval to all ranks, and returns those of each.

    >>> means = Means(("log", "epoch"))
    >>> means.add({"loss": 1.0}, samples=1); means.add({"loss": 4.0}, samples=2)
    >>> means.take("log")
    {'loss': 3.0}
    >>> means.take("log"), means.take("epoch")
    ({}, {'loss': 3.0})
    """

    def __init__(self, intervals: tuple[str, ...], gather: Callable[[Sums], list[Sums]] | None = None) -> None:
        self._gather = gather
        self.only_finite = False
        self._waiting: list[tuple[Any, Any, Collection[str]]] = []
        self._sums: dict[str, Sums] = {interval: {} for interval in intervals}

    def add(self, values: Mapping[str, Any] | torch.Tensor, samples: Any, sums: Collection[str] = ()) -> None:
        """Add the current values, which are means over `samples` samples. Nothing is transferred to the host here.

        Arguments:
            values: by name; or only the loss, detached, in memory that nothing else writes to.
            samples: the number of samples, or of other units that are averaged over: a number or a tensor with one.
            sums: the names of values that are sums over them. Default: all are means.
        """
        if not isinstance(values, torch.Tensor):
            values = {name: detached(value) for name, value in values.items()}
        if self.only_finite:
            named = {"loss": values} if isinstance(values, torch.Tensor) else values
            losses = [value for name, value in named.items() if name.rpartition("/")[2] == "loss"]
            if not all(math.isfinite(loss.value if isinstance(loss, Reduced) else loss) for loss in losses):
                return
        self._waiting.append((values, samples, sums))
        if len(self._waiting) >= _MOST_WAITING:
            self.settle()

    def take(self, interval: str, *, ends: bool = True) -> dict[str, float]:
        """The means, or other reductions, of all ranks since this interval was reset; resets it if that `ends` it."""
        self.settle()
        sums = self._sums.get(interval, {})
        if ends:
            self._sums[interval] = {}
        whole = added(self._gather(sums)) if self._gather is not None else sums
        return {name: total if samples in REDUCTIONS else total / samples for name, (total, samples) in whole.items()}

    def clear(self) -> None:
        """Drop everything added so far."""
        self._waiting.clear()
        self._sums = {interval: {} for interval in self._sums}

    def settle(self) -> None:
        """Update the sums: one transfer for all tensors that are still on the device."""
        entries: list[tuple[str, Any, Any, str]] = []  # a total is divided as a mean is
        for values, samples, summed in self._waiting:
            if isinstance(values, torch.Tensor):  # as for every batch: 0.1 us less
                entries.append(("loss", values, samples, "total" if "loss" in summed else "mean"))
                continue
            for name, value in values.items():
                if isinstance(value, Reduced):
                    entries.append((name, value.value, samples, type(value).__name__.lower()))
                else:
                    entries.append((name, value, samples, "total" if name in summed else "mean"))
        self._waiting.clear()
        numbers = as_numbers([value for _, value, _, _ in entries])
        weights = [samples for _, _, samples, _ in entries]
        if any(isinstance(samples, torch.Tensor) for samples in weights):
            weights = as_numbers(weights)
        for (name, _, _, how), number, weight in zip(entries, numbers, weights, strict=True):
            if how in REDUCTIONS:
                part = [number, how]
            elif weight:
                part = [number if how == "total" else number * weight, weight]
            else:  # a mean over nothing is not a number
                continue
            for sums in self._sums.values():
                whole = sums.get(name)
                if whole is None or how in REDUCTIONS or whole[1] in REDUCTIONS:
                    sums[name] = _joined(name, whole, part)
                else:  # in place, as for every loss: 0.5 us less
                    whole[0] += part[0]
                    whole[1] += part[1]


def added(parts: Iterable[Sums]) -> Sums:
    """The sums of all ranks, added in order; metrics of only some ranks count as well.

    >>> added([{"loss": [3.0, 2]}, {"loss": [1.0, 1], "accuracy": [1.0, 1]}])
    {'loss': [4.0, 3], 'accuracy': [1.0, 1]}
    """
    sums: Sums = {}
    for part in parts:
        for name, value in part.items():
            sums[name] = _joined(name, sums.get(name), value)
    return sums


def _joined(name: str, whole: list[Any] | None, part: list[Any]) -> list[Any]:
    """The sum, or another reduction, with a further part; a UsageError if it was reduced in another way before."""
    if whole is None:
        return [0.0 + part[0], part[1]]  # turns minus zero into zero
    how, other = (value[1] if value[1] in REDUCTIONS else "mean" for value in (whole, part))
    if how != other:
        hint = "give it one of graphtrain.Sum, Max and Min, or none, at every batch"
        raise UsageError(f"the metric `{name}` was a {how} and is a {other} now", hint)
    return [REDUCTIONS[how](whole[0], part[0]), how] if how in REDUCTIONS else [whole[0] + part[0], whole[1] + part[1]]


class Recorder:
    """The running means, the rows recorded from them, and the loggers that receive each new row.

    A row begins with its `position`: step, epoch, and those of `columns` that are clocks of graphs around now.

    Attributes:
        running_means: by name.
        rows: every row so far, oldest first.
        latest: the last value of every metric, with step and epoch; those of the last row come last.
        steps: the step of each of them.
    """

    def __init__(
        self,
        position: Callable[[], Mapping[str, float]],
        columns: Callable[[], tuple[str, ...]] = tuple,
        gather: Callable[[Sums], list[Sums]] | None = None,
    ) -> None:
        self._gather = gather
        self._position, self._columns = position, columns
        self.running_means: dict[str, Means] = {}
        self.rows: list[dict[str, float]] = []
        self.latest: dict[str, float] = {}
        self.steps: dict[str, float] = {}
        self.loggers: list[Logger] = []

    def means(self, name: str, intervals: tuple[str, ...] = ()) -> Means:
        """The running means called `name`, created if missing; a caller that adds to them passes `intervals`."""
        if name not in self.running_means:
            self.running_means[name] = Means(intervals, self._gather)
        means = self.running_means[name]
        for interval in intervals:
            means._sums.setdefault(interval, {})
        return means

    @property
    def place(self) -> Place:
        """The place of a row recorded now, as for `place_of`."""
        return self.place_of(self._position())

    def place_of(self, row: Mapping[str, float]) -> Place:
        """The common place of the rows of one moment: the clocks of outer graphs, if any, then the step.

        Since these clocks grow with each of their bodies, places never decrease during a run.
        """
        outer = [row.get(name, 0) for name in self._columns()]
        return [*outer, row["step"]] if outer else row["step"]

    def metrics_in(self, names: Iterable[str]) -> list[str]:
        """The names in rows that are not part of a row's position."""
        position = {*ROW_POSITION, *self._columns()}
        return [name for name in names if name not in position]

    def row(self, values: Mapping[str, float], *, may_repeat: bool = True) -> None:
        """Record a row of step, epoch, the clocks of outer graphs and these values, and call every logger with it.

        A value with the name of such a clock replaces it. If it may not repeat, a row that equals the last is left out.

        Raises:
            UsageError: a name is not a string, or is `step` or `epoch`; or a value is not a number or scalar tensor.
        """
        for name, value in values.items():
            check_metric(name, value, "a row of metrics was given")
        plain = {name: value.item() if isinstance(value, torch.Tensor) else value for name, value in values.items()}
        numbers = {name: int(value) if isinstance(value, Integral) else float(value) for name, value in plain.items()}
        row = {**self._position(), **numbers}
        if not may_repeat and self.rows[-1:] == [row]:
            return
        self.rows.append(dict(row))
        self._remember(row)
        for logger in self.loggers:
            logger(row, int(row["step"]))

    def show(self, values: Mapping[str, Shown]) -> None:
        """Pass texts, images and histograms to the loggers that accept them; they are in no row."""
        step = int(self._position()["step"])
        for logger in self.loggers:
            if isinstance(logger, Loggers):
                for name, value in values.items():
                    logger.call("show", name, value, step)

    def recorded_now(self) -> dict[str, float]:
        """The last value of every metric recorded at the present step."""
        values: dict[str, float] = {}
        place = self.place
        for row in reversed(self.rows):
            if self.place_of(row) != place:
                break
            values = {**row, **values}
        return {name: values[name] for name in self.metrics_in(values)}

    def load_rows(self, rows: list[dict[str, float]]) -> None:
        """Replace the rows by those of the run that is resumed."""
        self.rows, self.latest = rows, {}
        for row in rows:
            self._remember(row)

    def _remember(self, row: Mapping[str, float]) -> None:
        for name in {*self._columns()} - row.keys():
            self.latest.pop(name, None)  # of another graph that trains
        for name, value in row.items():
            self.latest.pop(name, None)  # so that the newest values come last
            self.latest[name], self.steps[name] = value, row.get("step", 0)

    def state_dict(self) -> dict[str, Any]:
        """All running means, as plain data; rows have their own file."""
        for means in self.running_means.values():
            means.settle()
        return copy.deepcopy({name: means._sums for name, means in self.running_means.items()})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load saved means."""
        for name, sums in state.items():
            self.means(name).clear()
            self.running_means[name]._sums |= copy.deepcopy({**sums})
