"""What the gallery's contract wants to know of a procedure: a small run of it, and the same run as a loop by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from graphtrain import Graph, Trainer
from tests.shipped import GALLERY, GRAPHS, OVERLAYS, ROOT

Resources = dict[str, Any]
Change = Callable[[Graph, Resources], tuple[Graph, Resources]]


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
    compared: tuple[str, ...] = ("model",)
    one_rank_only: str = ""
    bad: Mapping[str, tuple[Change, str]] = field(default_factory=dict)

    @property
    def toml(self) -> Path:
        """The file of the shipped graph, or of the overlay."""
        return {**GRAPHS, **OVERLAYS}[self.name]

    @property
    def example(self) -> Path:
        """The script that shows it."""
        folder = GALLERY / self.name
        return folder / f"{self.name}_example.py" if folder.exists() else ROOT / "examples" / f"{self.name}.py"

    @property
    def picture(self) -> Path:
        """What it changes, drawn."""
        folder = GALLERY / self.name
        return (folder if folder.exists() else ROOT / "docs" / "gallery") / f"{self.name}.svg"

    def trainer(
        self, run_dir: Path | None = None, *, graph: Graph | None = None, resources: Resources | None = None
    ) -> Trainer:
        """A trainer of the small run, or of another graph or other resources."""
        supplied = self.resources() if resources is None else resources
        return Trainer(
            self.graph() if graph is None else graph,
            seed=0,
            run_dir=run_dir,
            display=None,
            notify=lambda line: None,
            **supplied,
        )


def without(name: str) -> Change:
    """Without one of its resources."""
    return lambda graph, resources: (graph, {key: value for key, value in resources.items() if key != name})


def setting(node: str, **parameters: Any) -> Change:
    """With other parameters of a node."""
    return lambda graph, resources: (graph.set(node, **parameters), resources)


def squared_error(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """A training step: the sum of the inputs is learnt."""
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def regression(batches: int = 4, **further: Any) -> Resources:
    """A small network with batch norm and dropout, momentum, and that step.

    Arguments:
        batches: in an epoch.
        further: data sets, by name: the size of each of their batches.
    """
    torch.manual_seed(1)
    layers = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1)
    model = torch.nn.Sequential(*layers).double()
    sizes = {"train_data": [4] * batches, **further}
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        **{name: [torch.randn(size, 3, dtype=torch.float64) for size in each] for name, each in sizes.items()},
        "training_step": squared_error,
        "validation_step": squared_error,
    }


def tensors(resources: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The `state_dict` of each of these resources, flat: a path and its value."""
    return {path: value for name in names for path, value in _flat(name, resources[name].state_dict())}


def _flat(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [pair for key, item in value.items() for pair in _flat(f"{path}.{key}", item)]
    if isinstance(value, list | tuple):
        return [pair for number, item in enumerate(value) for pair in _flat(f"{path}.{number}", item)]
    return [(path, value)]


def assert_equal(left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    """Equal to the last bit."""
    assert left.keys() == right.keys()
    for path, value in left.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, right[path]), path
        else:
            assert value == right[path], path
