"""A row of the table, as something else than graphtrain uses it."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader

from tests.resume.setups import ROWS
from tests.rows import fingerprint

EPOCHS = 2

Train = Callable[..., dict[str, Any]]
"""`train(name, folder, cut=None, resume=False)`: train a row, to its end or until it is killed after `cut` batches."""

_RESOURCES = {"model", "optimizer", "scheduler", "train_data", "val_data", "training_step", "validation_step"}
_PARAMETERS = {("accumulate", "every"), ("zero_grad", "set_to_none"), ("log", "every")}
_PLACE = {"step", "epoch", "batch_index"}


class NotExpressibleError(Exception):
    """The row uses something that only graphtrain has."""


class Killed(Exception):  # noqa: N818
    """The run is cut here."""


class SetUp:
    """The resources of a row, made from the seeds that every run begins with, and the losses so far.

    Raises:
        NotExpressibleError: a resource, parameter or argument of a step function exists in graphtrain alone.
    """

    def __init__(self, name: str) -> None:
        row = ROWS[name]
        torch.manual_seed(1)
        random.seed(1)
        numpy.random.seed(1)
        resources = row.make()
        parameters = {(node, key): value for node, keys in row.parameters.items() for key, value in keys.items()}
        if further := [*(resources.keys() - _RESOURCES), *(parameters.keys() - _PARAMETERS)]:
            raise NotExpressibleError(str(further[0]))
        self.every: int = parameters.get(("accumulate", "every"), 1)
        self.set_to_none: bool = parameters.get(("zero_grad", "set_to_none"), True)
        self.model = resources["model"]
        self.optimizer = resources["optimizer"]
        self.scheduler = resources.get("scheduler")
        self.train_data = resources["train_data"]
        self.val_data = resources.get("val_data")
        self._training_step = resources["training_step"]
        self._validation_step = resources.get("validation_step", self._training_step)
        self.losses: list[list[Any]] = []

    def train_loss(self, batch: Any, **place: int) -> Any:
        """The loss of a batch, which is recorded.

        Arguments:
            place: the steps, epochs and batches so far, for a step function that takes them.
        """
        loss = _loss(self._training_step, self.model, batch, place)
        self.losses.append([place["epoch"], loss.item().hex()])
        return loss

    def validate(self, **place: int) -> None:
        """Once over the validation data, if there is any."""
        if self.val_data is not None:
            self.model.eval()
            with torch.no_grad():
                for index, batch in enumerate(self.val_data):
                    loss = _loss(self._validation_step, self.model, batch, {**place, "batch_index": index})
                    self.losses.append(["val", loss.item().hex()])
            self.model.train()

    def result(self) -> dict[str, Any]:
        """What is compared of two runs."""
        return {
            "losses": self.losses,
            "weights": fingerprint(self.model.state_dict()),
            "optimizer": fingerprint(self.optimizer.state_dict()),
        }


def _loss(step_function: Any, model: Any, batch: Any, place: dict[str, int]) -> Any:
    taken = [
        name
        for name, parameter in inspect.signature(step_function).parameters.items()
        if name in _PLACE or (parameter.default is parameter.empty and parameter.kind is parameter.KEYWORD_ONLY)
    ]
    if further := [name for name in taken if name not in place]:
        raise NotExpressibleError(f"a step function that takes {further[0]}")
    loss = step_function(model, batch, **{name: place[name] for name in taken})
    return loss["loss"] if isinstance(loss, dict) else loss


def loader_of(data: Any) -> DataLoader[Any]:
    """The data as a DataLoader, which a list of batches is not yet."""
    return data if isinstance(data, DataLoader) else DataLoader(torch.cat(data), batch_size=len(data[0]))  # type: ignore[arg-type]


def checkpoint_in(folder: Path, pattern: str) -> Path:
    """The only checkpoint of a run that was killed."""
    (path,) = folder.glob(pattern)
    return path


def steps_at(cut: int, run: SetUp) -> int:
    """The steps of the optimizer at a cut in the second epoch, whose last window may be short."""
    length = len(loader_of(run.train_data))
    return -(-length // run.every) + (cut - length) // run.every
