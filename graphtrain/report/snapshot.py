"""The progress of a run as one value: what every display renders, and what `status.json` holds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from graphtrain.plain import json_value


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment. Units that the graph does not count are None, and so are epochs that never change.

    In nested graphs steps, epochs, batches and the window are those of the innermost training graph around the
    position, or else of the one that trained last.

    Attributes:
        state: ready, running, stopping, stopped, finished, failed or interrupted.
        graph: the file of the graph, or its name if it has none.
        position: the path of the node that runs next, or is running.
        step: steps of the optimizer.
        epoch: epochs, as a fraction.
        clocks: the clocks of the graphs around the one that trains, the outermost first: ``{"fold": 2}``.
        end: the amounts that end the graph that trains and those around it: ``("10 epochs",)``.
        done: the share of the run that is done, 0 to 1; None if its end is not known.
        until: the amounts at which the run stops before its end, as given to `run`: ``("500 steps",)``.
        until_done: the share of that which is done, 0 to 1; None if not known.
        batch: batches fetched in the current epoch.
        epoch_batches: batches of the whole epoch, if the length of the data is known.
        evaluation: the name of the evaluation that the run is inside: ``"val"``.
        evaluation_batch, evaluation_batches: batches fetched in it, and its total, if known.
        window: backward passes in the open window, and its size; None between two windows.
        metrics: the latest value of each metric, by name, the latest row's last.
        metric_steps: the step at which each was recorded.
        rates: for each unit of things trained on (`batches`, `samples`, `tokens`): the recent number per second.
        elapsed_seconds: the running time, summed over interruptions, without pauses.
        seconds_left: the time until the end, at the average pace of this process, including evaluations.
        memory_bytes: memory in use on the device of the model.
        device: the device of the model: ``"cpu"``, ``"cuda:0"``.
        seconds: host time by activity, summed over interruptions: `data`, `train`, `validate`, `save`, ...
    """

    state: str
    graph: str
    position: str
    step: int | None = None
    epoch: float | None = None
    clocks: Mapping[str, float] = field(default_factory=dict)
    end: tuple[str, ...] = ()
    done: float | None = None
    until: tuple[str, ...] = ()
    until_done: float | None = None
    batch: int | None = None
    epoch_batches: int | None = None
    evaluation: str | None = None
    evaluation_batch: int | None = None
    evaluation_batches: int | None = None
    window: tuple[int, int] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    metric_steps: Mapping[str, float] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    elapsed_seconds: float = 0.0
    seconds_left: float | None = None
    memory_bytes: int | None = None
    device: str = "cpu"
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def measured(self) -> dict[str, float]:
        """The metrics without the other columns of rows: step, epoch and the clocks of outer graphs.

        >>> Snapshot("running", "fit", "step", clocks={"fold": 2}, metrics={"step": 1, "fold": 2, "loss": 0.5}).measured
        {'loss': 0.5}
        """
        position = {"step", "epoch", *self.clocks}
        return {name: value for name, value in self.metrics.items() if name not in position}

    @property
    def is_at_its_end(self) -> bool:
        """True if an amount that ends the run is reached."""
        return self.done is not None and self.done >= 1

    def as_plain(self) -> dict[str, Any]:
        """This snapshot as plain JSON data; NaN and infinities are the strings "nan", "inf" and "-inf".

        >>> Snapshot("running", "fit", "step", metrics={"loss": math.inf}).as_plain()["metrics"]
        {'loss': 'inf'}
        """
        return {entry.name: json_value(getattr(self, entry.name)) for entry in fields(self)}

    @staticmethod
    def from_plain(mapping: Mapping[str, Any]) -> Snapshot:
        """A snapshot from the data of `as_plain`; entries that are missing or have another form are left out.

        >>> Snapshot.from_plain({"state": "running", "metrics": {"loss": "nan"}, "step": "many", "x": 1}).metrics
        {'loss': nan}
        """
        values = {entry.name: _read(str(entry.type), mapping.get(entry.name)) for entry in fields(Snapshot)}
        known = {name: value for name, value in values.items() if value is not None}
        return Snapshot(**{**dict.fromkeys(("state", "graph", "position"), "?"), **known})


class Display(ABC):
    """Shows one run. It is called from the main thread only, so that no lock is held when loader workers are forked.

    Attributes:
        interval_seconds: the least time between two calls of `show`. Default: 0.25.
    """

    interval_seconds: float = 0.25

    @abstractmethod
    def begin(self, snapshot: Snapshot | None = None) -> None:
        """The run starts or continues. The metrics in the snapshot, if there is one, are not new."""

    @abstractmethod
    def show(self, snapshot: Snapshot) -> None:
        """Show the run as it is now."""

    @abstractmethod
    def end(self, snapshot: Snapshot) -> None:
        """The run has stopped, for any reason. The last display stays visible."""


def _read(declared: str, value: Any) -> Any:
    """A JSON value as the declared type of a field; None if it is not one."""
    try:
        match declared.removesuffix(" | None"), value:
            case "str", str():
                return value
            case (("int" | "float"), int() | float()) if math.isfinite(value):
                return value
            case ("tuple[str, ...]", list()) | ("tuple[int, int]", [int(), int()]):
                return tuple(value)
            case "Mapping[str, float]", Mapping():  # "nan" and "inf" are texts in JSON
                return {name: float(each) if isinstance(each, str) else each - 0 for name, each in value.items()}
    except (TypeError, ValueError, OverflowError):
        return None
    return None
