"""What the gallery's contract wants to know of a procedure: a small run of it, and the same run as a loop by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from graphtrain import Graph, Loader
from tests.shipped import GALLERY, GRAPHS, OVERLAYS, ROOT
from tests.world import Resources, World

Change = Callable[[World], World]


@dataclass(frozen=True)
class Procedure:
    """A procedure of the gallery, small.

    Attributes:
        name: of the shipped graph or overlay, and of the example.
        graph: two or three epochs of a few batches.
        resources: fresh, and equal at each call.
        by_hand: trains `resources()` by a plain loop, in place, and adds what else is compared. The generators were
            seeded just before, as by a Trainer.
        compared: the resources whose `state_dict` equals that of the loop by hand, and of the run never cut.
        one_rank_only: part of the message that refuses it at two ranks. Default: it trains there.
        bad: what is wrong, with the change that makes it so, and part of the message that comes before anything trains.
    """

    name: str
    graph: Callable[[], Graph]
    resources: Callable[[], Resources]
    by_hand: Callable[[Resources], None]
    compared: tuple[str, ...] = ("model", "optimizer")
    one_rank_only: str = ""
    bad: Mapping[str, tuple[Change, str]] = field(default_factory=dict)

    @property
    def world(self) -> World:
        """Its small run."""
        return World(self.graph(), self.resources, {"seed": 0})

    @property
    def toml(self) -> Path:
        """The file of the shipped graph, or of the overlay."""
        return {**GRAPHS, **OVERLAYS}[self.name]

    @property
    def example(self) -> Path:
        """The script that shows it."""
        folder = GALLERY / self.name
        return folder / f"{self.name}.py" if folder.exists() else ROOT / "examples" / f"{self.name}.py"


def squared_error(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """A training step: the sum of the inputs is learnt."""
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def network(*middle: torch.nn.Module, width: int = 4, outputs: int = 1) -> torch.nn.Sequential:
    """Three inputs, and layers in the middle: batch norm and dropout, unless others are given."""
    torch.manual_seed(1)
    layers = middle or (torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.2))
    return torch.nn.Sequential(torch.nn.Linear(3, width), *layers, torch.nn.Linear(width, outputs)).double()


def numbers(*sizes: int) -> list[torch.Tensor]:
    """Batches of these sizes."""
    return [torch.randn(size, 3, dtype=torch.float64) for size in sizes]


def momentum(model: torch.nn.Module, rate: float = 0.05) -> torch.optim.Optimizer:
    """The optimizer of most of them."""
    return torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=rate, momentum=0.9)


def regression(batches: int = 4, model: torch.nn.Module | None = None, **further: Any) -> Resources:
    """A small network, momentum, and `squared_error`.

    Arguments:
        batches: in an epoch.
        further: data sets, by name: the size of each of their batches.
    """
    made = network() if model is None else model
    sizes = {"train_data": [4] * batches, **further}
    return {
        "model": made,
        "optimizer": momentum(made),
        **{name: numbers(*each) for name, each in sizes.items()},
        "training_step": squared_error,
        "validation_step": squared_error,
    }


def short(graph: Graph, epochs: int, window: int = 1, log: str = "1 steps") -> Graph:
    """A shipped graph for so many epochs, without checkpoints."""
    graph = graph.set("finish", after=f"{epochs} epochs").set("checkpoint", every="never").set("log", every=log)
    return graph.set("accumulate", every=window) if window > 1 else graph


def windows(data: Iterable[Any], epochs: int, every: int = 1) -> Iterator[tuple[int, Any, bool]]:
    """The epoch, the batch, and whether a window ends with it: a short one ends with its epoch."""
    for epoch in range(epochs):
        batches = list(data)
        for number, batch in enumerate(batches, 1):
            yield epoch, batch, number % every == 0 or number == len(batches)


def step(*optimizers: torch.optim.Optimizer) -> None:
    """Step, and clear the gradients."""
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def step_with_mean_gradients(
    parameters: Iterable[torch.nn.Parameter], losses: list[torch.Tensor], *optimizers: torch.optim.Optimizer
) -> None:
    """Give some parameters the sum of the gradients of losses, added up as ranks do, and step."""
    weights = list(parameters)
    parts = [torch.autograd.grad(loss, weights) for loss in losses]
    for weight, gradients in zip(weights, zip(*parts, strict=True), strict=True):
        weight.grad = torch.stack(gradients).sum(0)
    step(*optimizers)


def train_again(resources: Resources, loader: Loader, epochs: int, number: int) -> None:
    """Train a new model; the number of trainings before it says which epochs of the loader of a run these are."""
    model = resources["model"]
    for module in reversed([*model.modules()]):
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    optimizer = resources["optimizer"] = momentum(model)
    for epoch in range(epochs):
        for _, batch, is_end in windows(loader.batches(number * epochs + epoch), 1, 2):
            (squared_error(model, batch) / 2).backward()  # type: ignore[no-untyped-call]
            if is_end:
                step(optimizer)
