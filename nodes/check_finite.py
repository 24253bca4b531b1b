"""Losses, gradients or weights that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from graphtrain.errors import NotFiniteError, UsageError
from graphtrain.kind import node, progress
from graphtrain.lazy import lazy_import
from graphtrain.nodes._optimizers import gradients_of, optimizers_of, parameters_of
from graphtrain.nodes.gradient_norm import norms_of
from graphtrain.report.values import as_numbers

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from graphtrain.program.agreement import Agreement
else:
    torch = lazy_import("torch")


_WHAT = {"loss": "the loss", "gradients": "a gradient", "parameters": "a weight"}
_MOST_WAITING = 1024  # values that stay on the device; a run that records no row stays small


@node(synchronises=True, family="bookkeeping")
class CheckFinite:
    """Ask at every visit whether a loss, gradients or weights are finite, and stop, or drop the window, where not.

    With "report" and "stop" the values stay on the device until a row of metrics is recorded, as by `log`; then they
    are read, together, and the first batch at fault is named.

    Reads:
        loss: the loss of the batch; None on a rank that had no batch in the round.
        epoch, batch, seen: the place of the batch, for the message: the epoch, its number in that, and the samples of
            the run with it.
        samples: of the batch.

    Arguments:
        of: "loss", "gradients" of `optimizer`, or the "parameters" that it updates. Default: "loss".
        action: "report" prints a line, once, and trains on; "stop" ends the run with an error; "drop" sets `found`,
            which a guard on an edge to `discard` reads: each visit then waits for the device, and, among several ranks,
            for the others; "off" asks nothing. Default: "stop".

    Guard fields:
        found: at this visit something was not finite; always false but with "drop".
        dropped: how often that was so.

    Raises:
        NotFiniteError: something is not finite, and the action is "stop".
        UsageError: the action is "drop", of weights, which no edge brings back.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("check_finite").set("check_loss", action="drop")
    >>> graph.check()
    []
    """

    of_rank: ClassVar[tuple[str, ...]] = ("state",)  # each has losses of its own that were not read yet

    of: Literal["loss", "gradients", "parameters"] = "loss"
    action: Literal["off", "report", "stop", "drop"] = "stop"

    found: bool = progress(False)
    dropped: int = progress(0)
    reported: bool = progress(False)

    _optimizers: tuple[Any, ...]
    _notify: Callable[[str], None]
    _ranks: Agreement | None
    _values: list[Tensor | float]
    _places: list[tuple[int, int, int, int]]

    def __init__(self) -> None:
        self._values, self._places = [], []

    def setup(self, optimizer: Any, notify: Callable[[str], None], ranks: Agreement | None = None) -> None:
        self._optimizers, self._notify, self._ranks = optimizers_of(optimizer), notify, ranks
        if self.action == "drop" and self.of == "parameters":
            raise UsageError(
                'check_finite: action = "drop" of "parameters": weights that are not finite stay, whatever is dropped',
                'use "stop"; or check "gradients" before the step',
            )

    def __call__(self, loss: Any = None, samples: Any = 0, epoch: int = 0, batch: int = 0, seen: int = 0) -> None:
        if self.action == "off":
            return
        value = self._value(loss)
        if self.action == "drop":
            faults = self._faults([float(value) if value is not None else 0.0], [(epoch, batch, seen, samples or 0)])
            self.found = bool(faults)
            self.dropped += self.found
            if faults and not self.reported:
                self.reported = True
                self._notify(f"{faults[0]}; the window is dropped, and so are later ones like it")
        elif value is not None:
            self._values.append(value)
            self._places.append((epoch, batch, seen, samples or 0))
            if len(self._values) >= _MOST_WAITING and self._ranks is None:
                self._read()

    def on_metrics(self, row: Mapping[str, float], is_evaluation: bool) -> None:
        if self.action in ("report", "stop"):
            self._read()

    def at_end(self) -> None:
        if self.action in ("report", "stop"):
            self._read()

    def _value(self, loss: Any) -> Any:
        """One number that is finite if all that is checked is; still on the device."""
        if self.of == "loss":
            return loss
        tensors = (gradients_of if self.of == "gradients" else parameters_of)(self._optimizers)
        checked = [tensor.detach() for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
        return norms_of(checked, math.inf).max() if checked else None

    def _read(self) -> None:
        """Read what is on the device: one transfer for all of it."""
        numbers = as_numbers(self._values)
        places = self._places
        count, faults = len(numbers), self._faults(numbers, places)
        self._values, self._places = [], []
        if not faults or (self.action == "report" and self.reported):
            return
        of_several = f"; {len(faults)} of {count} since the row before" if len(faults) > 1 else ""
        message = f"{faults[0]}{of_several}"
        if self.action == "stop":
            raise NotFiniteError(
                message,
                "resume from an earlier checkpoint with a smaller learning rate, or with clipping; "
                'action = "drop" drops such windows',
                samples=next(
                    (place[2] for number, place in zip(numbers, places, strict=True) if not math.isfinite(number)), 0
                ),
                check=self,
            )
        self.reported = True
        self._notify(message)

    def _faults(self, numbers: list[float], places: list[tuple[int, int, int, int]]) -> list[str]:
        """A line for each value that is not finite, in order; those of all ranks, on all of them."""
        faults = [[*place, number] for number, place in zip(numbers, places, strict=True) if not math.isfinite(number)]
        if self._ranks is None:
            return [self._described(fault) for fault in faults]
        of_ranks = enumerate(self._ranks.gather(faults))
        together = sorted(((fault, rank) for rank, faults in of_ranks for fault in faults), key=lambda pair: pair[0][2])
        return [f"{self._described(fault)}, on rank {rank}" for fault, rank in together]

    def _described(self, fault: list[Any]) -> str:
        epoch, batch, seen, samples, number = fault
        samples_of_run = f", samples {seen - samples + 1} to {seen} of the run" if samples and seen else ""
        where = f"batch {batch} of epoch {epoch + 1}{samples_of_run}"
        at = {"loss": "at", "gradients": "in the window that ends with", "parameters": "after"}[self.of]
        return f"{_WHAT[self.of]} is {number} {at} {where}"

    def state_dict(self) -> dict[str, Any]:
        """What was not read yet."""
        return {"values": as_numbers(self._values), "places": [list(place) for place in self._places]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load it."""
        self._values = list(state["values"])
        self._places = [(epoch, batch, seen, samples) for epoch, batch, seen, samples in state["places"]]
