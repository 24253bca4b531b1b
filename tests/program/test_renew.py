"""A model that gets new weights within a run: cuts and the loop by hand are those of `kfold` in the gallery."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer, UsageError
from tests.ranks.fake_ranks import run_ranks


class Scaled(torch.nn.Module):
    """A linear layer, and a parameter that no `reset_parameters` knows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)
        self.scale = torch.nn.Parameter(torch.full((1,), 3.0))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.linear(inputs) * self.scale


def trainer_of(run_dir: Path | None = None, model: torch.nn.Module | None = None, **others: Any) -> Trainer:
    model = Scaled() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    graph = (
        Graph.load("fit")
        .insert("renew", after="zero_grad")
        .set("finish", after="3 steps")
        .set("schedule", every="1 steps")
    )
    return Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if others.get("scheduled") else None,
        train_data=[torch.ones(2, 2)] * 3,
        training_step=lambda model, batch: model(batch).square().mean(),
    )


@pytest.mark.parametrize("scheduled", [False, True])
def test_what_has_no_reset_begins_again_as_setup_made_it_also_after_a_resume(scheduled: bool, tmp_path: Path) -> None:
    first = trainer_of(tmp_path, scheduled=scheduled)
    model, optimizer = first.resources["model"], first.resources["optimizer"]
    while not (first.position == "renew" and first.read("renew.runs")):
        first.advance()
    assert model.scale.item() != 3
    cut = first.save()
    first.advance()
    assert first.resources["model"] is model
    assert model.scale.item() == 3
    assert (dict(optimizer.state), optimizer.param_groups[0]["lr"]) == ({}, 0.1)
    first.run()
    resumed = trainer_of(tmp_path, scheduled=scheduled)
    resumed.run(resume=cut)
    assert resumed.digest() == first.digest()


def test_all_ranks_get_the_same_weights() -> None:
    def weights() -> list[float]:
        trainer = trainer_of(model=torch.nn.Linear(2, 1))
        while trainer.read("renew.runs") < 1:
            trainer.advance()
        renewed = trainer.resources["model"].weight.flatten().tolist()
        trainer.run()
        return [*renewed, *trainer.resources["model"].weight.flatten().tolist()]

    first, second = run_ranks(2, lambda ranks: weights())
    assert first == second
    assert first[:2] != first[2:]


def test_a_sharded_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of()
    monkeypatch.setattr(Scaled, "set_requires_gradient_sync", None, raising=False)
    with pytest.raises(UsageError, match="`model` is sharded over ranks"):
        trainer.run()
