"""A sharded run on 2, 4, 1 and 3 ranks in turn: each sample once, the values of one process, digests as saved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from graphtrain import Graph, Loader, PlannedRun, Trainer
from graphtrain.storage.manifest import read_manifest
from tests.ranks import sharded
from tests.ranks.processes import run_processes
from tests.ranks.test_sharded import assert_close

BATCH, WINDOW, EPOCHS = 2, 6, 5
BATCHES = 2 * WINDOW + 5  # an epoch, whose last window is short
GRAPH = Graph.load("fit").set("validate", every="never").set("checkpoint", every="never")


class Counted(torch.nn.Module):
    """A small network, and a number for each sample: what its gradient adds up to is how often the sample was used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(7, 7), torch.nn.Linear(7, 7)])
        self.used = torch.nn.Parameter(torch.zeros(BATCHES * BATCH))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.one_hot(samples % 7, 7).to(self.used)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        return hidden.sum(1).square().mean() + self.used[samples].sum()


def trainer_of(every: int, *, shards: bool = True, **options: Any) -> Trainer:
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = Counted().double()
    if shards:
        mesh = PlannedRun(GRAPH).mesh
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    groups = [
        {"params": [*model.layers.parameters()], "lr": 0.1, "momentum": 0.9},
        {"params": [model.used], "lr": 1.0, "momentum": 0.0},
    ]
    return Trainer(
        GRAPH.set("accumulate", every=every).set("finish", after=f"{EPOCHS} epochs"),
        model=model,
        optimizer=torch.optim.SGD(groups),
        train_data=Loader(torch.arange(BATCHES * BATCH), batch_size=BATCH, shuffle=True, seed=5),
        training_step=lambda model, samples: model(samples),
        seed=1,
        display=None,
        notify=lambda line: None,
        **options,
    )


@dataclass
class Leg:
    """What a run has come to on one number of ranks.

    Attributes:
        loaded: the digests of whole values of a checkpoint made as soon as it was resumed.
        saved: those of its last checkpoint.
        count: the micro-batches in the open window.
        parameters: all of each.
    """

    loaded: dict[str, str]
    saved: dict[str, str]
    count: int
    parameters: sharded.Parameters


def digests(folder: Path) -> dict[str, str]:
    return dict(read_manifest(max((folder / "checkpoints").glob("*-step-*"))).sharded)


def leg(folder: Path, steps: int | None) -> Leg:
    """Resume and save; train on until the window after these steps is open, or to the end; save again."""
    trainer = trainer_of(WINDOW // 2, run_dir=folder)
    trainer.advance(0)
    trainer.save()
    loaded = digests(folder)
    if steps is None:
        trainer.run()
    else:
        while not (
            trainer.progress["step"]["steps"] == steps and trainer.position == "next_batch" and is_open(trainer)
        ):
            trainer.advance()
        trainer.save()
    return Leg(loaded, digests(folder), trainer.progress["accumulate"]["count"], sharded.parameters(trainer))


def is_open(trainer: Trainer, steps: int) -> bool:
    """True in the window after so many steps, if it still gets batches of this epoch."""
    fields, is_here = trainer.progress["accumulate"], trainer.progress["step"]["steps"] == steps
    return is_here and 0 < fields["count"] < fields["window"] and not trainer.read("next_batch.last")


def alone() -> sharded.Parameters:
    trainer = trainer_of(WINDOW, shards=False)
    trainer.run()
    return sharded.parameters(trainer)


# The steps after which each number of ranks stops within a window: of full ones, and of the short one of each epoch.
STOPS = {"full": ((2, 1), (4, 3), (1, 7)), "short": ((2, 2), (4, 5), (1, 8))}


@pytest.mark.sweep
@pytest.mark.parametrize("window", STOPS)
def test_every_sample_counts_once_on_any_number_of_ranks(tmp_path: Path, window: str) -> None:
    (expected,) = run_processes(1, alone)
    saved: dict[str, str] | None = None
    for ranks, steps in STOPS[window]:
        legs = run_processes(ranks, leg, tmp_path, steps)
        assert saved is None or all(each.loaded == saved for each in legs), ranks
        saved, count = legs[0].saved, legs[0].count
        assert {"model", "optimizer", "gradients"} <= saved.keys()
        assert 0 < count < (WINDOW if window == "full" else BATCHES % WINDOW), (ranks, count)
    for last in run_processes(3, leg, tmp_path, None):
        assert last.loaded == saved
        assert_close(last.parameters, expected)
        used = torch.tensor(last.parameters["used"], dtype=torch.float64)
        assert torch.allclose(used, torch.full_like(used, -EPOCHS / WINDOW), rtol=0, atol=1e-12)
