"""Random runs of several ranks: what they train, in which order they run, and what is asked of them on the way."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import torch

from graphtrain import CheckpointError, Graph, Loader, Outcome, Trainer
from tests.fake_ranks import FakeRank, World

Batch = torch.Tensor


@dataclass(frozen=True)
class Plan:
    """What is trained.

    Attributes:
        batches: of an epoch.
        every: micro-batches of each rank in a window.
        with_loader: True for a `Loader`, False for a list.
        settings: the parameters of nodes, as `Graph.set` takes them.
    """

    batches: int
    every: int
    validation: int
    with_loader: bool
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def drawn(cls, choose: random.Random) -> Plan:
        amounts = ["1 steps", "2 steps", "3 batches", "1 epochs", "5 samples", "never"]
        fractions = ["0.5 epochs", "2 epochs"]
        return cls(
            batches=choose.choice([1, 2, 3, 5, 7, 8]),
            every=choose.choice([1, 1, 2, 3, 5]),
            validation=choose.choice([1, 2, 3]),
            with_loader=choose.random() < 0.5,
            settings={
                "finish": {"after": choose.choice(["1 epochs", "2 epochs", "4 steps", "9 batches", "2.5 epochs"])},
                "log": {"every": choose.choice(amounts)},
                "validate": {"every": choose.choice([*amounts, *fractions])},
                "checkpoint": {"every": choose.choice([*amounts, *fractions])},
            },
        )

    def graph(self) -> Graph:
        graph = Graph.load("fit").set("accumulate", every=self.every)
        for node, parameters in self.settings.items():
            graph = graph.set(node, **parameters)
        return graph

    def trainer(self, graph: Graph | None = None, **options: Any) -> Trainer:
        """A model whose weight of a batch grows by one with every gradient of that batch that is stepped."""
        model = Counting(self.batches)
        numbers = torch.arange(self.batches)
        data: Any = Loader(numbers, batch_size=1) if self.with_loader else [numbers[n : n + 1] for n in numbers]
        validation = [torch.tensor([number]) for number in range(self.validation)]
        return Trainer(
            graph or self.graph(),
            seed=0,
            **{
                "display": None,
                "notify": lambda line: None,
                "model": model,
                "optimizer": torch.optim.SGD(model.parameters(), lr=1.0),
                "train_data": data,
                "val_data": validation,
                "validation_step": lambda model, batch: {"number": batch.double().mean()},
                "training_step": lambda model, batch: model(batch),
                **options,
            },
        )


class Counting(torch.nn.Module):
    """The loss of batch k is minus its weight, so that a step adds to the weight how often k is in the gradients."""

    def __init__(self, batches: int) -> None:
        super().__init__()
        self.counts = torch.nn.Parameter(torch.zeros(batches, dtype=torch.float64))

    def forward(self, batch: Batch) -> torch.Tensor:
        loss: torch.Tensor = -self.counts[batch].sum()
        return loss


@dataclass(frozen=True)
class End:
    """What a rank has come to.

    Attributes:
        counts: how often the gradient of each batch was stepped.
        unstepped: the same, of gradients that are in an open window.
    """

    outcomes: list[Outcome]
    position: str
    edges: list[tuple[int, int]]
    counts: list[float]
    progress: dict[str, dict[str, Any]]
    metrics: list[dict[str, float]]


def run_plan(plan: Plan, world_size: int, seed: int, requests: float = 0.0) -> list[End]:
    """Run a plan to its end on every rank, in an order drawn from a seed; a run that is stopped is continued.

    Arguments:
        requests: how probable it is, whenever another rank may run, that one of them is asked to stop or to save.
    """
    trainers: dict[int, Trainer] = {}

    def ask(world: World) -> None:
        if trainers and world.choose.random() < requests:
            asked: Any = world.choose.choice(["stop", "save"])
            trainers[world.choose.choice(sorted(trainers))]._run.requests.ask(asked)

    def program(ranks: FakeRank) -> End:
        trainer = plan.trainer()
        trainers[ranks.rank] = trainer
        edges = _noted_edges(trainer)
        outcomes = [trainer.run()]
        while outcomes[-1] is Outcome.STOPPED:
            outcomes.append(trainer.run())
        return End(
            outcomes,
            trainer.position,
            edges,
            (trainer.resources["model"].counts.detach() * world_size * plan.every).round(decimals=6).tolist(),
            {path: _of_all(fields) for path, fields in trainer.progress.items()},
            trainer.metrics,
        )

    world = World(world_size, random.Random(seed), ask)
    results: list[Any] = world.run(program)  # type: ignore[arg-type]
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _of_all(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The progress of a node that is the same on all ranks: not which batch it was given."""
    return {name: value for name, value in fields.items() if name not in ("last_batch", "own_batch_index")}


def _noted_edges(trainer: Trainer) -> list[tuple[int, int]]:
    """The edges that a run chooses from now on."""
    edges, agreement = list[tuple[int, int]](), trainer._session.world
    synchronise = agreement.synchronise

    def noting(*arguments: Any, **known: Any) -> Any:
        edges.extend(agreement._choices)
        return synchronise(*arguments, **known)

    agreement.synchronise = noting  # type: ignore[method-assign]
    return edges


def is_refused(error: CheckpointError) -> bool:
    """True for a resume with another number of ranks in the middle of a window; another error is raised."""
    if "was saved in the middle of a window or a batch" not in error.message:
        raise error
    return True


def ranks_of_newest(checkpoints: Path) -> int:
    """How many ranks have made the newest checkpoint."""
    manifest = msgpack.unpackb((max(checkpoints.glob("0*")) / "manifest.msgpack").read_bytes(), strict_map_key=False)
    return int(manifest.get("ranks", 1))
