"""Folds of a model that is made again: the number of ranks changes in the second one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Factory, Graph, Loader, Trainer, node, progress
from graphtrain.ranks import Alone, Ranks, using_ranks
from tests.ranks.fake_ranks import run_ranks
from tests.ranks.test_renew import GRAPH


def trainer_of(run_dir: Path | None) -> Trainer:
    @node(name="begin_fold")
    class BeginFold:
        folds: int = progress(0)

        def __call__(self) -> None:
            self.folds += 1

    def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.1)

    data = torch.arange(28, dtype=torch.float64).sin().reshape(7, 4)
    return Trainer(
        Graph.loads(GRAPH).replace("begin_fold", BeginFold).set("fit/finish", after="2 epochs"),
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=lambda line: None,
        model=Factory(lambda: torch.nn.Linear(4, 1).double()),
        optimizer=Factory(make_optimizer),
        train_data=Loader(data, batch_size=1, shuffle=True),
        val_data=Loader(data, batch_size=2),
        training_step=lambda model, batch: model(batch).square().mean(),
    )


@pytest.mark.sweep
@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.sweep)])
def test_the_number_of_ranks_changes_in_the_second_fold(tmp_path: Path, world_size: int) -> None:
    def cut(ranks: Ranks) -> None:
        trainer = trainer_of(tmp_path)
        while trainer.progress["begin_fold"]["folds"] < 2 or trainer.progress["fit/step"]["steps"] != 2:
            trainer.advance()
        trainer.save()

    def finish(ranks: Ranks, run_dir: Path | None) -> tuple[list[float], Any]:
        trainer = trainer_of(run_dir)
        trainer.run()
        return trainer.resources["model"].weight.flatten().tolist(), trainer.metrics

    whole, metrics = run_ranks(3, lambda ranks: finish(ranks, None))[0]
    run_ranks(3, cut)
    if world_size == 1:
        with using_ranks(Alone()):
            ends = [finish(Alone(), tmp_path)]
    else:
        ends = run_ranks(world_size, lambda ranks: finish(ranks, tmp_path))
    for weights, rows in ends:
        assert weights == pytest.approx(whole, abs=1e-12)
        assert len(rows) == len(metrics)
