"""Meta-learning through the inner loop: the second order, its cuts, and what the first order leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Trainer
from graphtrain.state.random import seed_everything
from tests.gallery.procedure import assert_equal, tensors
from tests.gallery.procedures.maml import INNER_STEPS, PROCEDURE, by_hand, graph, resources, training_step


def second_order(run_dir: Path | None = None, **others: Any) -> Trainer:
    return PROCEDURE.trainer(run_dir, graph=graph(second_order=True), resources={**resources(), **others})


@pytest.fixture(scope="module")
def whole() -> Trainer:
    trainer = second_order()
    trainer.run()
    return trainer


@pytest.mark.full
def test_the_second_order_equals_the_loop_by_hand_and_no_first_order(whole: Trainer) -> None:
    expected = resources()
    seed_everything(0)
    by_hand(expected, second_order=True)
    assert_equal(tensors(whole.resources, PROCEDURE.compared), tensors(expected, PROCEDURE.compared))
    first = PROCEDURE.trainer()
    first.run()
    weights = [trainer.resources["model"][3].weight for trainer in (whole, first)]
    assert not torch.equal(*weights)


def test_its_gradient_is_that_of_the_loss_after_the_steps() -> None:
    """Against differences of the loss, of one task and without dropout."""
    trainer = second_order()
    trainer.resources["model"].eval()
    task = trainer.resources["train_data"][0]
    weight = trainer.resources["model"][3].weight
    trainer.run(before="accumulate")

    def loss_after_steps() -> float:
        model = resources()["model"].eval()
        model.load_state_dict(trainer.resources["model"].state_dict())
        trained = [each for each in model.parameters() if each.requires_grad]
        for _ in range(INNER_STEPS):
            gradients = torch.autograd.grad(training_step(model, task["support"]), trained)
            for each, gradient in zip(trained, gradients, strict=True):
                each.data -= 0.03 * gradient
        return training_step(model, task["query"]).item()

    for place in range(3):
        values = []
        for change in (1e-5, -2e-5):
            weight.data[0, place] += change
            values.append(loss_after_steps())
        weight.data[0, place] += 1e-5
        assert 2 * float(weight.grad[0, place]) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5)
