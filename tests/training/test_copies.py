"""Promise 7: resources that nodes make of others, such as averages: made once, saved as any, read by their names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, GraphError, Outcome, Trainer, UsageError, fit, node
from tests.training.tiny import tiny
from tests.world import said_at_resume

PLAIN = fit(epochs=2)
EMA = PLAIN.overlay("ema").set("ema", decay=0.5)


class Net(nn.Module):
    """A model with step functions of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.norm = nn.BatchNorm1d(1)
        self.validated = 0

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.norm(self.layer(batch)).square().mean()
        return loss + self.layer(batch).mean()

    def validation_step(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        self.validated += 1
        return {"loss": self.layer(batch).mean()}


def averaging(graph: Graph = EMA, run_dir: Path | None = None, **more: Any) -> Trainer:
    torch.manual_seed(0)
    data = {"train_data": [torch.rand(4, 2) for _ in range(4)], "val_data": [torch.rand(4, 2)]}
    return tiny(graph, run_dir, **{"model": Net(), "training_step": None, **data, **more})


def weights(module: nn.Module) -> list[Any]:
    return [tensor.tolist() for tensor in module.state_dict().values()]


def test_a_copy_is_made_before_anything_trains() -> None:
    trainer = averaging()
    model, average = trainer.resources["model"], trainer.resources["average"]
    assert type(average) is Net and average is not model
    assert weights(average) == weights(model)
    assert not any(parameter.requires_grad for parameter in average.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert trainer.run() is Outcome.FINISHED
    assert weights(average) != weights(model)
    assert torch.equal(average.norm.running_mean, model.norm.running_mean), "buffers are copied"
    assert (model.validated, average.validated) == (0, 2), "the average is validated with its own step function"
    with torch.no_grad():
        loss = average.eval().layer(trainer.resources["val_data"][0]).mean().item()
    assert [row["val/loss"] for row in trainer.metrics if "val/loss" in row][-1] == pytest.approx(loss)


def test_what_is_supplied_is_taken() -> None:
    mine = Net()
    assert averaging(average=mine).resources["average"] is mine


def lazy(graph: Graph, run_dir: Path | None = None, **more: Any) -> Trainer:
    """A model that has no form before its first batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 1))
    step = lambda model, batch: model(batch).square().mean()  # noqa: E731
    return averaging(graph.set("validate", every="never"), run_dir, model=model, training_step=step, **more)


@pytest.mark.parametrize("make", [averaging, pytest.param(lazy, marks=pytest.mark.full)])
def test_it_is_saved_and_loaded(make: Callable[..., Trainer], tmp_path: Path) -> None:
    whole = make(EMA)
    whole.run()
    make(EMA, tmp_path).run(until="5 steps")
    resumed = make(EMA, tmp_path)
    resumed.run()
    assert resumed.digest() == whole.digest()
    assert weights(resumed.resources["average"]) == weights(whole.resources["average"])
    assert weights(whole.resources["average"]) != weights(whole.resources["model"])


@pytest.mark.parametrize(
    ("before", "after", "reported"),
    [
        (PLAIN, EMA, "average new, a copy of model"),
        (EMA, PLAIN, "progress of ema left out, average left out"),
    ],
)
def test_a_copy_that_comes_or_goes_at_a_resume_is_reported(
    before: Graph, after: Graph, reported: str, tmp_path: Path
) -> None:
    averaging(before, tmp_path).run(until="5 steps")
    said: list[str] = []
    trainer = averaging(after, tmp_path, said=said)
    trainer.advance(0)
    assert reported in said_at_resume(said) and "exact except for" in said_at_resume(said)
    if after is EMA:
        assert weights(trainer.resources["average"]) == weights(trainer.resources["model"])
    assert trainer.run() is Outcome.FINISHED
    whole = averaging(PLAIN)
    whole.run()
    assert weights(trainer.resources["model"]) == weights(whole.resources["model"])


def test_a_rewired_run_gets_a_copy_too(tmp_path: Path) -> None:
    trainer = averaging(PLAIN, tmp_path)
    trainer.run(until="5 steps")
    trainer.rewire(EMA)
    assert weights(trainer.resources["average"]) == weights(trainer.resources["model"])
    trainer.run(until="6 steps")
    again = averaging(EMA, tmp_path)
    again.advance(0)
    assert again.digest() == trainer.digest()
    assert again.run() is Outcome.FINISHED


def test_a_node_names_what_is_copied_and_the_copy() -> None:
    graph = PLAIN.insert("follow", "ema", after="step", reads={"model": "critic", "average": "slow_critic"})
    critic = Net()
    trainer = averaging(graph, critic=critic)
    assert weights(trainer.resources["slow_critic"]) == weights(critic)
    assert "average" not in trainer.resources


def test_two_nodes_make_one_resource_once() -> None:
    assert isinstance(averaging(EMA.insert("second", "ema", after="ema")).resources["average"], Net)
    other = EMA.insert("second", "ema", after="ema", reads={"model": "critic"})
    with pytest.raises(GraphError, match="`ema` makes `average` as a copy of `model`, and `second` as one of `critic`"):
        averaging(other, critic=Net())


def test_what_cannot_be_copied_is_refused_with_its_name() -> None:
    model = Net()
    model.last = model.layer.weight * 2  # type: ignore[assignment]  # with a graph, which torch copies not
    with pytest.raises(UsageError, match="`average` is made as a copy of `model`, a Net that cannot be copied: ") as e:
        averaging(model=model)
    assert "average.load_state_dict(model.state_dict())" in e.value.hint


def test_a_wrong_declaration_is_refused() -> None:
    def blind(model: Any, average: Any) -> None:
        """Nothing."""

    with pytest.raises(TypeError, match="blind: copies: the kind must read both 'average' and the slot that it copies"):
        node(copies={"average": "critic"})(blind)


# ---- a model that gets new weights within a run: cuts and the loop by hand are those of `kfold` in the gallery


class Scaled(nn.Module):
    """A linear layer, and a parameter that no `reset_parameters` knows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.scale = nn.Parameter(torch.full((1,), 3.0))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.linear(inputs) * self.scale
        return output


def renewing(run_dir: Path | None = None, *, is_scheduled: bool = False) -> Trainer:
    torch.manual_seed(0)
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) if is_scheduled else None
    graph = fit(steps=3, schedule_every="1 steps").insert("renew", after="zero_grad")
    return tiny(graph, run_dir, model=model, optimizer=optimizer, scheduler=scheduler)


@pytest.mark.parametrize("is_scheduled", [False, True])
def test_what_has_no_reset_begins_again_as_setup_made_it_also_after_a_resume(
    is_scheduled: bool, tmp_path: Path
) -> None:
    first = renewing(tmp_path, is_scheduled=is_scheduled)
    model, optimizer = first.resources["model"], first.resources["optimizer"]
    first.run(before="renew")
    first.run(before="renew")
    assert model.scale.item() != 3
    cut = first.save()
    assert cut is not None
    first.advance()
    assert first.resources["model"] is model and model.scale.item() == 3
    assert (dict(optimizer.state), optimizer.param_groups[0]["lr"]) == ({}, 0.1)
    first.run()
    resumed = renewing(tmp_path, is_scheduled=is_scheduled)
    resumed.run(resume=cut)
    assert resumed.digest() == first.digest()
