"""One small training, which the three sides of a translation have in common: graphtrain, Lightning, a plain loop.

Nothing in it is random, so that final weights can be compared bit for bit. No import of graphtrain or Lightning: the
environment in which Lightning is installed need not have the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 2
RATE = 0.01
HOOKS = (
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_before_zero_grad",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_batch_start",
    "on_validation_batch_end",
    "on_validation_end",
    "on_train_epoch_end",
)
_APART = 1_000_000  # between the numbers of two sets of validation data


@dataclass(frozen=True)
class Training:
    """What is trained, and on what.

    Arguments:
        batches: how many batches the training data has.
        val: how many batches each set of validation data has.
        val_losses: the losses that the validations report, in turn. Default: those of the model.
        schedule: the unit of the learning rate's scheduler, "step" or "epoch". Default: no scheduler.
        dtype: of weights and data, by its name in torch.
        shuffle: True if the training data is shuffled.
        hooks: True if the calls of hooks are recorded too.
    """

    batches: int = 10
    val: tuple[int, ...] = (3,)
    val_losses: tuple[float, ...] = ()
    schedule: str | None = None
    dtype: str = "float32"
    shuffle: bool = False
    hooks: bool = False


@dataclass
class Record:
    """What happened.

    Attributes:
        events: in order: ("train", epoch, index, steps, last, number) for a batch, where `last` is True for the last of
            its epoch and `number` is that of the batch in the data; ("step",) for a step of the optimizer;
            ("val", set, index) for a batch of validation data; ("hook", name).
        weights: the final ones.
        rates: the learning rate at every step.
        more: whatever else one side observed and another has to match.
    """

    events: list[tuple[Any, ...]] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)


class Materials:
    """Model, optimizer, scheduler and data, made afresh, and the record that they keep."""

    def __init__(self, training: Training) -> None:
        self.record = Record()
        dtype = getattr(torch, training.dtype)
        generator = torch.Generator().manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=0.9)
        self.optimizer.register_step_post_hook(self._count_step)  # before it, Lightning computes the loss
        self.scheduler = (
            None
            if training.schedule is None
            else torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda calls: 0.5 ** (calls // 2))
        )
        self.train_data = _loader(training.batches, dtype, generator, shuffle=training.shuffle)
        self.val_data = [
            _loader(length, dtype, generator, _APART * number) for number, length in enumerate(training.val)
        ]
        self._val_losses: Iterator[float] = iter(training.val_losses)
        self._reported = 0.0
        self._scripted = bool(training.val_losses)
        self._hooks = training.hooks

    def _count_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.record.events.append(("step",))
        self.record.rates.append(float(optimizer.param_groups[0]["lr"]))

    def train_loss(self, batch: Any, epoch: int, index: int, steps: int, last: bool) -> torch.Tensor:
        """The loss of a batch, which is recorded."""
        self.record.events.append(("train", epoch, index, steps, last, int(batch[2][0]) // BATCH_SIZE))
        return self._loss(batch)

    def val_loss(self, batch: Any, index: int) -> torch.Tensor:
        """The loss of a batch of validation data, which is recorded."""
        self.record.events.append(("val", int(batch[2][0]) // _APART, index))
        if self._scripted:
            if index == 0:
                self._reported = next(self._val_losses)
            return torch.tensor(self._reported)
        return self._loss(batch)

    def hook(self, name: str) -> None:
        """Record the call of a hook."""
        if self._hooks:
            self.record.events.append(("hook", name))

    def seconds(self) -> float:
        """The time by a clock of which every batch takes a second."""
        return float(sum(event[0] == "train" for event in self.record.events))

    def _loss(self, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(self.model(batch[0]), batch[1])

    def finished(self) -> Record:
        """The record, with the final weights."""
        parameters = [parameter.detach().double().flatten() for parameter in self.model.parameters()]
        self.record.weights = torch.cat(parameters).tolist()
        return self.record


def _loader(
    length: int, dtype: torch.dtype, generator: torch.Generator, first: int = 0, *, shuffle: bool = False
) -> DataLoader[Any]:
    inputs = torch.randn(length * BATCH_SIZE, 4, generator=generator).to(dtype)
    numbers = first + torch.arange(length * BATCH_SIZE)
    return DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True), numbers), BATCH_SIZE, shuffle=shuffle)
