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
    rate = {"rate": more.pop("rate")} if "rate" in more else {}
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


def test_a_rate_beyond_the_model_is_refused() -> None:
    with pytest.raises(UsageError, match=r"copy_weights\.rate: expected a number of at most 1, got 1\.5"):
        run(rate=1.5)
