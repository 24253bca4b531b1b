"""`copy_weights`: a copy of a model that follows it; docs/recipes.md compares runs with loops by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer, UsageError

FIT = Graph.load("fit").set("finish", after="5 batches").set("checkpoint", every="never")


def run(steps: str = "1 steps", **more: Any) -> tuple[torch.nn.Module, torch.nn.Module]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    rate = {name: more.pop(name) for name in ("rate", "reads") if name in more}
    trainer = Trainer(
        FIT.insert("copy_weights", after="step", every=steps, **rate),
        seed=0,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[*torch.randn(5, 4, 2).unbind()],
        training_step=lambda model, batch: model(batch).square().sum(),
        display=None,
        notify=lambda line: None,
        **more,
    )
    trainer.run()
    return model, trainer.resources["target"]


def is_equal(model: torch.nn.Module, target: torch.nn.Module) -> bool:
    pairs = zip(model.state_dict().values(), target.state_dict().values(), strict=True)
    return all(torch.equal(left, right) for left, right in pairs)


def test_the_copy_is_equal_where_it_was_just_made_and_not_before() -> None:
    model, target = run()
    assert target is not model and is_equal(model, target)
    assert not any(parameter.requires_grad for parameter in target.parameters())
    assert not is_equal(*run("2 steps")), "the last copy is that of step 4"


def test_a_supplied_target_is_moved_by_a_part_of_the_way() -> None:
    supplied = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    before = supplied[0].weight.detach().clone()
    model, target = run("5 steps", target=supplied, rate=0.25)
    assert target is supplied
    assert torch.equal(supplied[0].weight, before.lerp(model[0].weight, 0.25))
    assert torch.equal(supplied[1].running_mean, model[1].running_mean)  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [1.5, -0.5])
def test_a_rate_beyond_the_two_models_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match=rf"copy_weights\.rate: expected a number from 0 to 1, got {rate}"):
        run(rate=rate)


def test_a_rate_of_0_where_its_schedule_ends_leaves_the_target_as_it_is() -> None:
    supplied = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    before = supplied[0].weight.detach().clone()
    run(target=supplied, reads={"rate": "0.0 * cos(pi * step.steps)"})
    assert torch.equal(supplied[0].weight, before)


class Remembering(torch.nn.Module):
    """Has a buffer from its first batch on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 3)
        self.register_buffer("recent", None)
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.recent = batch.mean(0)
        self.batches += 1
        result: torch.Tensor = self.linear(batch) + self.recent.sum()
        return result


@pytest.mark.parametrize("overlay", ["ema", "swa"])
def test_a_buffer_that_the_model_has_later_is_copied_by_its_name(overlay: str) -> None:
    torch.manual_seed(0)
    model = Remembering()
    trainer = Trainer(
        FIT.overlay(overlay),
        seed=0,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[*torch.randn(5, 4, 2).unbind()],
        training_step=lambda model, batch: model(batch).square().sum(),
        display=None,
        notify=lambda line: None,
    )
    trainer.run()
    averages = [value for value in trainer.resources.values() if isinstance(value, Remembering) and value is not model]
    assert averages, "the average is among the resources"
    for average in averages:
        assert torch.equal(average.recent, model.recent) and average.recent is not model.recent
        assert average.batches == model.batches
