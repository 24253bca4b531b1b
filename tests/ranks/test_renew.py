"""A model that is made again on several ranks is the same on all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphtrain import Factory, Graph, Loader, Trainer, node, progress
from graphtrain.errors import UsageError
from graphtrain.program.agreement import Agreement
from tests.ranks.fake_ranks import run_ranks

GRAPH = """
format = 1
start = "begin_fold"
[nodes]
begin_fold = {}
renew = { resource = "model" }
fit = { graph = "fit" }
decide = { use = "choice" }
[guards]
all_done = "begin_fold.folds == 2"
[edges]
begin_fold = ["renew"]
renew = ["fit"]
fit = ["decide"]
decide = ["end if all_done", "begin_fold"]
[clock]
folds = "begin_fold.folds"
steps = "fit/step.steps"
"""


def folds_of_rank() -> tuple[list[list[float]], list[dict[str, float]]]:
    weights: list[list[float]] = []

    @node(name="begin_fold")
    class BeginFold:
        folds: int = progress(0)

        def __call__(self, model: Any) -> None:
            weights.append(model.weight.detach().flatten().tolist())
            self.folds += 1

    def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    data = torch.randn(10, 4)
    trainer = Trainer(
        Graph.loads(GRAPH).replace("begin_fold", BeginFold).set("fit/finish", after="2 epochs"),
        seed=0,
        display=None,
        notify=lambda line: None,
        model=Factory(lambda: torch.nn.Linear(4, 1)),
        optimizer=Factory(make_optimizer),
        train_data=Loader(data, batch_size=2, shuffle=True),
        val_data=Loader(data, batch_size=4),
        training_step=lambda model, batch: model(batch).square().mean(),
    )
    trainer.run()
    return [*weights, trainer.resources["model"].weight.detach().flatten().tolist()], trainer.metrics


@pytest.mark.full
def test_all_ranks_make_the_same_model_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = run_ranks(3, lambda ranks: folds_of_rank())
    assert first == second == third
    assert len({tuple(weights) for weights in first[0]}) == 3
    monkeypatch.setattr(Agreement, "seed", lambda self: 17 + self.rank)
    with pytest.raises(UsageError, match=r"ranks differ in `model.weight`"):
        run_ranks(2, lambda ranks: folds_of_rank())
