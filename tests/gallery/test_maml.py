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


@pytest.mark.parametrize("is_second_order", [False, True])
def test_shared_and_unused_weights_are_adapted(is_second_order: bool) -> None:
    """A module under two names, a weight of two modules, and one that no loss depends on."""

    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.first = self.again = torch.nn.Linear(3, 3, bias=False)
            self.tied, self.last = torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 1)
            self.tied.weight = self.first.weight
            self.unused = torch.nn.Linear(2, 2)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return self.last(self.tied(self.again(self.first(batch).tanh()).tanh()))

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.first = torch.nn.Linear(3, 3, bias=False)
            torch.nn.Linear(3, 3, bias=False)
            self.last = torch.nn.Linear(3, 1)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            weight = self.first.weight
            hidden = (batch @ weight.T).tanh()
            return self.last((hidden @ weight.T).tanh() @ weight.T)

    models = [Shared().double(), Plain().double()]
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        supplied = {**resources(), "model": model, "optimizer": optimizer}
        PROCEDURE.trainer(graph=graph(is_second_order), resources=supplied).run()
    shared, plain = models
    assert all(weight.is_leaf for weight in shared.parameters())
    assert shared.again is shared.first
    assert shared.tied.weight is shared.first.weight
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(shared.get_parameter(name), weight)


@pytest.mark.full
def test_a_save_in_the_inner_loop_is_made_behind_it(whole: Trainer, tmp_path: Path) -> None:
    """The gradients keep a graph of operations, which no file holds."""
    first = second_order(tmp_path)
    first.run(until="6 batches")
    first.run(before="inner/adapt")
    first.advance(2)
    assert first.position == "inner/adapt"
    first.save()
    assert first.position == "accumulate"
    resumed = second_order(tmp_path)
    resumed.run()
    assert (resumed.digest(), resumed.metrics) == (whole.digest(), whole.metrics)


@pytest.mark.full
def test_a_model_may_have_the_step_as_a_method() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = resources()["model"]

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return training_step(self.layers, batch)

    results = []
    for own in (True, False):
        model = Model()
        optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.05, momentum=0.9)
        step = None if own else (lambda model, batch: training_step(model.layers, batch))
        trainer = second_order(model=model, optimizer=optimizer, training_step=step)
        trainer.run()
        results.append(tensors(trainer.resources, ("model",)))
    assert_equal(*results)
    expected = resources()
    seed_everything(0)
    by_hand(expected, second_order=True)
    assert torch.equal(results[0]["model.layers.3.weight"], expected["model"][3].weight)
