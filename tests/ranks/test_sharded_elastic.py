"""A sharded run on 2, 4, 1 and 3 ranks in turn: each sample once, and the values of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from graphtrain import Graph, Loader, PlannedRun, Trainer
from tests.ranks import sharded, sharded_files
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
        mesh = PlannedRun(GRAPH, "cpu").mesh
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
        device="cpu",
        display=None,
        notify=lambda line: None,
        **options,
    )


def leg(folder: Path, steps: int | None) -> sharded.Parameters:
    """Resume; train until the window of these steps is over, or to the end; save again."""
    trainer = trainer_of(WINDOW // 2, run_dir=folder)
    if steps is None:
        trainer.run()
    else:
        sharded_files.to_the_end_of_a_window(trainer, steps)
    return sharded.parameters(trainer)


def alone() -> sharded.Parameters:
    trainer = trainer_of(WINDOW, shards=False)
    trainer.run()
    return sharded.parameters(trainer)


STOPS = ((2, 1), (4, 3), (1, 7))  # the steps after which each number of ranks stops


@pytest.mark.sweep
def test_every_sample_counts_once_on_any_number_of_ranks(tmp_path: Path) -> None:
    (expected,) = run_processes(1, alone)
    for ranks, steps in STOPS:
        run_processes(ranks, leg, tmp_path, steps)
    for last in run_processes(3, leg, tmp_path, None):
        assert_close(last, expected)
        used = torch.tensor(last["used"], dtype=torch.float64)
        assert torch.allclose(used, torch.full_like(used, -EPOCHS / WINDOW), rtol=0, atol=1e-12)
