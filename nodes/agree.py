"""Reducing a value over ranks."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Literal

from graphtrain.errors import UsageError
from graphtrain.kind import node, progress
from graphtrain.lazy import lazy_import
from graphtrain.report.values import REDUCTIONS

if TYPE_CHECKING:
    import torch

    from graphtrain.program.agreement import Agreement
else:
    torch = lazy_import("torch")


@node(writes="agreed", synchronises=True, family="ranks")
class Agree:
    """Reduce a value that differs between ranks, such as a loss, to one number that a guard may read.

    Every rank trains on its own batches, so a value computed from a batch differs between ranks, and with a guard on it
    the ranks would diverge. In one process the result is the value itself as a Python number; reading it from a tensor
    synchronizes with the device.

    Reads:
        value: a number, or a one-element tensor; ``reads = { value = "loss" }``. A rank without a batch in this round
            has no value and is left out.
        weight: weight of the value in the mean, such as the samples of the batch: ``weight = "samples"``. Default: all
            ranks have the same weight.

    Arguments:
        how: "mean", "sum", "min" or "max" over ranks, or "first" for the value of rank 0. Default: "mean".

    Writes:
        agreed: a Python number, the same on all ranks.

    Guard fields:
        value: the same number, or 0 before the first; a clock may count it if it never decreases.

    Raises:
        UsageError: the value, or the weight, is not a number.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").insert("agree", after="train_batch", reads={"value": "loss", "weight": "samples"})
    >>> graph = graph.guard("spike", "agreed > 1e6").insert("discard").connect("discard", "accumulate")
    >>> graph = graph.connect("agree", "discard", when="spike")  # no step is taken with this window
    >>> graph.check(ranks=True)
    []
    """

    how: Literal["mean", "sum", "min", "max", "first"] = "mean"

    value: float = progress(0.0)

    _ranks: Agreement | None

    def setup(self, ranks: Agreement | None = None) -> None:
        self._ranks = ranks

    def __call__(self, value: Any, weight: Any = 1.0) -> float:
        number = None if value is None else (_number(value, "value"), _number(weight, "weight"))
        numbers = self._ranks.gather(number) if self._ranks is not None else [number]
        present = [each for each in numbers if each is not None]
        if not present:
            raise UsageError("agree: `value` is not written yet, on any rank", "put it after the node that writes it")
        values = [number for number, _ in present]
        if self.how == "first" or (self.how == "mean" and len(values) == 1):
            self.value = values[0]
        elif self.how == "mean":
            weights = sum(weight for _, weight in present)
            self.value = sum(number * weight for number, weight in present) / weights if weights else math.nan
        elif self.how == "sum":
            self.value = sum(values)
        else:
            self.value = functools.reduce(REDUCTIONS[self.how], values)
        return self.value


def _number(value: Any, name: str) -> float:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, int | float):
        return float(value)
    received = (
        f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
    )
    raise UsageError(
        f"agree: `{name}` is {received}, which is not a number", "let it read a number, or a tensor with one"
    )
