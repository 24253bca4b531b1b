"""Runs of several ranks, as threads, that leave checkpoints: a small model, and what each rank trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from graphtrain import Graph, Loader, Outcome, Trainer
from graphtrain.ranks import Ranks, using_ranks
from tests.fake_ranks import run_ranks

BATCHES, VALIDATION = 11, 3


@dataclass
class End:
    """What a rank has come to.

    Attributes:
        lines: what it has reported.
        position: of the cut, for a run that was cut.
    """

    outcome: Outcome | None
    position: str
    digest: str
    weights: torch.Tensor
    metrics: list[dict[str, float]]
    progress: dict[str, dict[str, Any]]
    lines: list[str] = field(default_factory=list)


def trainer_of(
    run_dir: Path | None,
    *,
    trained: list[int] | None = None,
    is_plain: bool = False,
    notify: Callable[[str], None] = lambda line: None,
    graph: Callable[[Graph], Graph] = lambda graph: graph,
    **more: Any,
) -> Trainer:
    """Windows of two micro-batches a rank, 11 batches an epoch, a validation after each.

    Arguments:
        trained: receives the numbers of the samples that are trained on.
        is_plain: True without dropout and batch norm, of which each rank has its own.
    """
    torch.manual_seed(0)
    own = [torch.nn.Tanh()] if is_plain else [torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.2)]
    model = torch.nn.Sequential(torch.nn.Linear(3, 6), *own, torch.nn.Linear(6, 1)).double()
    inputs = torch.randn(BATCHES * 2, 3, dtype=torch.float64)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True), torch.arange(len(inputs)))

    def training_step(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        if trained is not None:
            trained.extend(batch[2].tolist())
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    def validation_step(model: torch.nn.Module, batch: Any) -> dict[str, torch.Tensor]:
        return {"error": torch.nn.functional.mse_loss(model(batch[0]), batch[1])}

    plain = Graph.load("fit").set("accumulate", every=2).set("finish", after="4 steps").set("log", every="1 steps")
    resources: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01),
        "train_data": Loader(data, batch_size=2, shuffle=True),
        "val_data": Loader(torch.utils.data.Subset(data, range(VALIDATION * 2)), batch_size=2),
        "training_step": training_step,
        "validation_step": validation_step,
    }
    resources |= more
    return Trainer(
        graph(plain.set("checkpoint", every="never", keep=50)),
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=notify,
        not_state=["training_step<trained>"] if trained is not None else (),
        **resources,
    )


def run(
    world_size: int,
    run_dir: Path | None,
    *,
    advance: int = 0,
    act: Callable[[Trainer], Outcome | None] = lambda trainer: trainer.run(),
    seed: int = 0,
    **options: Any,
) -> list[End]:
    """What every rank comes to.

    Arguments:
        advance: cut after so many transitions, and saved there. Default: it is not cut.
        act: what is done with the trainer otherwise. Default: it is run.
        seed: of the order of the ranks.
    """

    def program(ranks: Ranks) -> End:
        lines: list[str] = []
        trainer = trainer_of(run_dir, notify=lines.append, **options)
        outcome = None
        if advance:
            trainer.advance(advance)
            trainer.save()
        else:
            outcome = act(trainer)
        weights = [parameter.detach().flatten() for parameter in trainer.resources["model"].parameters()]
        progress = {path: dict(fields) for path, fields in trainer.progress.items()}
        return End(outcome, trainer.position, trainer.digest(), torch.cat(weights), trainer.metrics, progress, lines)

    if world_size > 1:
        return run_ranks(world_size, program, seed)
    with using_ranks(Ranks()):
        return [program(Ranks())]
