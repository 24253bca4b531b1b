"""Running means over samples, and the rows recorded of them.

Metrics are a named store, not slots: any node may add to it, and none has to be wired for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from graphtrain.metrics.logger import Logger as Logger
from graphtrain.metrics.rows import Rows
from graphtrain.metrics.values import OF_THE_ROW, as_number, check_metric, check_names, held

# Values wait on their device until a mean is asked for; this many at most, so that a run that never asks stays flat.
_MOST_WAITING = 1024


class Means:
    """Means of named values, weighted by samples, over one or more horizons that end independently.

    The sums are kept in double precision and grow one value at a time, in order: when they are brought up to date makes
    no difference to a bit of them.

    Arguments:
        horizons: names of the spans that means are taken over, such as ``("log", "epoch")``.

    >>> means = Means(("log", "epoch"))
    >>> means.add({"loss": 1.0}, samples=1); means.add({"loss": 4.0}, samples=2)
    >>> means.take("log")
    {'loss': 3.0}
    >>> means.take("log"), means.take("epoch")
    ({}, {'loss': 3.0})
    """

    def __init__(self, horizons: tuple[str, ...]) -> None:
        self._waiting: list[tuple[Any, int]] = []
        # horizon -> name -> [sum of value * samples, sum of samples]
        self._sums: dict[str, dict[str, list[float]]] = {horizon: {} for horizon in horizons}

    def add(self, values: Mapping[str, Any] | torch.Tensor, samples: int) -> None:
        """Add values that hold for `samples` samples, as they are now. Nothing is transferred here.

        Arguments:
            values: by name; or the loss alone, detached, in memory that nothing else writes to.
        """
        if not isinstance(values, torch.Tensor):
            values = {name: held(value) for name, value in values.items()}
        self._waiting.append((values, samples))
        if len(self._waiting) >= _MOST_WAITING:
            self.settle()

    def take(self, horizon: str) -> dict[str, float]:
        """The means since this horizon was last taken; it begins anew."""
        self.settle()
        sums = self._sums.get(horizon, {})
        self._sums[horizon] = {}
        return {name: total / samples for name, (total, samples) in sums.items() if samples}

    def clear(self) -> None:
        """Forget everything added so far."""
        self._waiting.clear()
        self._sums = {horizon: {} for horizon in self._sums}

    def settle(self) -> None:
        """Bring the sums up to date: one transfer for all tensors that wait on a device."""
        entries: list[tuple[str, Any, int]] = []
        for values, samples in self._waiting:
            named = {"loss": values} if isinstance(values, torch.Tensor) else values
            entries += [(name, value, samples) for name, value in named.items()]
        self._waiting.clear()
        numbers = _numbers([value for _, value, _ in entries])
        for (name, _, samples), number in zip(entries, numbers, strict=True):
            for sums in self._sums.values():
                total = sums.setdefault(name, [0.0, 0])
                total[0] += number * samples
                total[1] += samples

    def state_dict(self) -> dict[str, Any]:
        """The sums, as plain data."""
        self.settle()
        return {horizon: {name: list(total) for name, total in sums.items()} for horizon, sums in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved sums."""
        self._waiting.clear()
        self._sums = {
            **{horizon: {} for horizon in self._sums},
            **{horizon: {name: list(total) for name, total in sums.items()} for horizon, sums in state.items()},
        }


def _numbers(values: list[Any]) -> list[float]:
    """Every value as a Python number; tensors of one device and type cross together."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if tensors and len({(one.device, one.dtype, one.shape) for one in tensors}) == 1 and tensors[0].ndim == 0:
        crossed = iter(torch.stack(tensors).tolist())
        return [float(next(crossed) if isinstance(value, torch.Tensor) else value) for value in values]
    return [float(value) for value in values]


class Recorder:
    """The store of means, the rows made of them, and whoever is told of a new row.

    Arguments:
        position: answers the step (of the optimizer) and the epoch (fractional) that a row belongs to.

    Attributes:
        rows: every row so far, oldest first.
        latest: the last value of every metric, those of the last row last, with its step and epoch.
    """

    def __init__(self, position: Callable[[], tuple[int, float]]) -> None:
        self._position = position
        self._means: dict[str, Means] = {}
        self.rows = Rows()
        self.latest: dict[str, float] = {}
        self.loggers: list[Logger] = []

    def means(self, name: str, horizons: tuple[str, ...] = ()) -> Means:
        """The running means called `name`; `horizons` are given by whoever adds to them."""
        if name not in self._means:
            self._means[name] = Means(horizons)
        means = self._means[name]
        for horizon in horizons:
            means._sums.setdefault(horizon, {})
        return means

    def row(self, values: Mapping[str, float]) -> None:
        """Record a row: step, epoch and these values; every logger is called with it.

        Raises:
            UsageError: a name is no text, or the row's own; or a value is neither a number nor a scalar tensor.
        """
        for name, value in values.items():
            check_metric(name, value, "a row of metrics was given")
        check_names(values, "a row of metrics was given")
        step, epoch = self._position()
        row = {"step": step, "epoch": epoch, **{name: as_number(value) for name, value in values.items()}}
        self.rows.append(row)
        self._remember(row)
        for logger in self.loggers:
            logger(row, step)

    def recorded_at(self, step: int) -> dict[str, float]:
        """What was recorded at this step: metric -> value, the last one."""
        found: dict[str, float] = {}
        for row in reversed(self.rows):
            if row["step"] != step:
                break
            found = {**row, **found}
        return {name: value for name, value in found.items() if name not in OF_THE_ROW}

    def go_on_from(self, rows: list[dict[str, float]]) -> None:
        """Go on after the rows of a run that was resumed."""
        self.rows = Rows(rows)
        self.latest = {}
        for row in rows:
            self._remember(row)

    def _remember(self, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            self.latest.pop(name, None)  # so that what came last stands last
            self.latest[name] = value

    def state_dict(self) -> dict[str, Any]:
        """All running means, as plain data; rows are kept in their own file."""
        return {name: means.state_dict() for name, means in self._means.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from saved means."""
        for name, sums in state.items():
            self.means(name, tuple(sums)).load_state_dict(sums)
