"""The graph `lbfgs` at two ranks against a loop by hand, and what its node refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer
from graphtrain.ranks import Ranks
from tests.gallery.procedures import lbfgs
from tests.ranks.fake_ranks import run_ranks

BATCHES = 5  # in the last round one of two ranks has none


def resources() -> dict[str, Any]:
    supplied = lbfgs.resources()
    supplied["model"][2].p = 0.0  # each rank has random numbers of its own
    torch.manual_seed(2)
    return supplied | {"train_data": [torch.randn(6, 3, dtype=torch.float64) for _ in range(BATCHES)]}


def weights(supplied: dict[str, Any]) -> list[Any]:
    return [parameter.tolist() for parameter in supplied["model"].parameters()]


def by_graph(graph: Graph, **more: Any) -> Trainer:
    trainer = Trainer(graph, seed=0, display=None, notify=lambda line: None, **{**resources(), **more})
    trainer.run()
    return trainer


@pytest.mark.full
def test_two_ranks_train_as_the_loop_by_hand() -> None:
    """Each evaluation has the gradients and the losses of both; so a line search stops at the same place on each."""

    def program(ranks: Ranks) -> tuple[list[Any], list[Any], int, float]:
        trainer = by_graph(lbfgs.graph())
        rows = [(row["loss"], row["largest"]) for row in trainer.metrics if "loss" in row]
        return weights(trainer.resources), rows, trainer.read("step.steps"), float(trainer.read("loss"))

    by_hand = resources()
    model, optimizer = by_hand["model"], by_hand["optimizer"]
    parameters, rows, evaluations = [*model.parameters()], [], []
    for _ in range(lbfgs.EPOCHS):
        for start in range(0, BATCHES, 2):
            batches = by_hand["train_data"][start : start + 2]
            evaluated: list[list[dict[str, Any]]] = []

            def closure(batches: Any = batches, evaluated: Any = evaluated) -> torch.Tensor:
                evaluated.append([lbfgs.training_step(model, batch) for batch in batches])
                parts = [torch.autograd.grad(each["loss"] / len(batches), parameters) for each in evaluated[-1]]
                for parameter, gradients in zip(parameters, zip(*parts, strict=True), strict=True):
                    parameter.grad = torch.stack(gradients).sum(0)
                return torch.stack([each["loss"].detach() / len(batches) for each in evaluated[-1]]).sum()

            loss = optimizer.step(closure)
            means = [sum(each[name].item() for each in evaluated[0]) / len(batches) for name in ("loss", "largest")]
            rows.append(tuple(means))
            evaluations.append(len(evaluated))
    assert max(evaluations) > 2, "the line search had something to do"
    first, second = run_ranks(2, program)
    assert first == second
    assert first[0] == weights(by_hand)
    assert first[2] == len(rows) == lbfgs.EPOCHS * 3
    assert torch.allclose(torch.tensor(first[1]), torch.tensor(rows))
    assert first[3] == float(loss), "the mean of both ranks, by which the line search goes"
