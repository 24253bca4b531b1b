"""The smallest run: one weight, five batches of two samples, two epochs of `fit` unless a test says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import torch

from graphtrain import Graph, Trainer

BATCHES = 5
FIT = Graph.load("fit").set("finish", after="2 epochs")


def batches(count: int = BATCHES) -> list[torch.Tensor]:
    """Batch n holds the number n."""
    return [torch.full((2, 1), float(number)) for number in range(count)]


def squared(model: Any, batch: Any) -> torch.Tensor:
    """A step function of a loss that is not constant."""
    loss: torch.Tensor = model(batch).square().mean()
    return loss


def calling(act: Callable[[int], Any]) -> Callable[..., torch.Tensor]:
    """The step function, which first calls another one with the number of batches before this one of its epoch."""

    def training_step(model: Any, batch: Any, batch_index: int) -> torch.Tensor:
        act(batch_index)
        return squared(model, batch)

    return training_step


def tiny(
    graph: Graph | str = FIT, run_dir: Path | None = None, *, said: list[str] | None = None, **given: Any
) -> Trainer:
    """A trainer of new resources, which are always the same.

    Arguments:
        said: takes what the run has to say.
        given: further arguments and resources; None takes a resource away.
    """
    if "model" not in given:
        torch.manual_seed(0)
    model = given.pop("model") if "model" in given else torch.nn.Linear(1, 1)
    if model is not None and "optimizer" not in given:
        given["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    resources = {
        "model": model,
        "train_data": batches(),
        "training_step": squared,
        "seed": 0,
        **given,
    }
    notify = (lambda line: None) if said is None else said.append
    resources = {name: value for name, value in resources.items() if value is not None}
    options = {"run_dir": run_dir, "device": "cpu", "display": None, "notify": notify}
    return Trainer(graph, **{**options, **resources})


def manifest_of(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint says of itself."""
    content: dict[str, Any] = msgpack.unpackb(
        msgpack.unpackb((checkpoint / "manifest.msgpack").read_bytes())["manifest"]
    )
    return content
