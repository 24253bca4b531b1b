"""Resources that nodes make of others: copies, made once, saved as any, and read by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, GraphError, Outcome, Trainer, UsageError, copy_of, node

FIT = Graph.load("fit").set("finish", after="2 epochs").set("log", every="never")
EMA = FIT.overlay("ema").set("ema", decay=0.5)


class Net(torch.nn.Module):
    """A model with step functions of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.norm = torch.nn.BatchNorm1d(1)
        self.validated = 0

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.norm(self.layer(batch)).square().mean()
        return loss + self.layer(batch).mean()

    def validation_step(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        self.validated += 1
        return {"loss": self.layer(batch).mean()}


def trainer_of(graph: Graph, run_dir: Path | None = None, said: list[str] | None = None, **others: Any) -> Trainer:
    torch.manual_seed(0)
    model = Net()
    resources = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_data": [torch.rand(4, 2) for _ in range(4)],
        "val_data": [torch.rand(4, 2)],
    }
    notify = (lambda line: None) if said is None else said.append
    return Trainer(graph, seed=0, run_dir=run_dir, display=None, notify=notify, **{**resources, **others})


def weights(module: torch.nn.Module) -> list[Any]:
    return [tensor.tolist() for tensor in module.state_dict().values()]


def test_a_copy_is_made_before_anything_trains() -> None:
    trainer = trainer_of(EMA)
    model, average = trainer.resources["model"], trainer.resources["average"]
    assert type(average) is Net and average is not model
    assert weights(average) == weights(model)
    assert not any(parameter.requires_grad for parameter in average.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert trainer.run() is Outcome.FINISHED
    assert weights(average) != weights(model)
    assert torch.equal(average.norm.running_mean, model.norm.running_mean), "buffers are copied"


def test_the_average_is_validated_with_its_own_step_function() -> None:
    trainer = trainer_of(EMA)
    trainer.run()
    assert (trainer.resources["model"].validated, trainer.resources["average"].validated) == (0, 2)
    last = trainer.metrics[-1]["val/loss"]
    with torch.no_grad():
        average = trainer.resources["average"].eval()
        assert last == pytest.approx(average.layer(trainer.resources["val_data"][0]).mean().item())


def test_what_is_supplied_is_taken() -> None:
    mine = Net()
    trainer = trainer_of(EMA, average=mine)
    assert trainer.resources["average"] is mine


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    whole = trainer_of(EMA)
    whole.run()
    first = trainer_of(EMA, tmp_path)
    first.run(until="5 steps")
    second = trainer_of(EMA, tmp_path)
    second.run()
    assert second.digest() == whole.digest()
    assert weights(second.resources["average"]) == weights(whole.resources["average"])


def test_a_run_that_had_none_begins_with_a_copy_of_what_is_loaded(tmp_path: Path) -> None:
    trainer_of(FIT, tmp_path).run(until="5 steps")
    said: list[str] = []
    trainer = trainer_of(EMA, tmp_path, said)
    trainer.advance(0)
    assert weights(trainer.resources["average"]) == weights(trainer.resources["model"])
    assert any("average new, a copy of model" in line and "exact except for" in line for line in said)
    assert trainer.run() is Outcome.FINISHED


@pytest.mark.full
def test_a_copy_that_no_node_makes_any_more_is_left_out(tmp_path: Path) -> None:
    trainer_of(EMA, tmp_path).run(until="5 steps")
    said: list[str] = []
    trainer = trainer_of(FIT, tmp_path, said)
    assert trainer.run() is Outcome.FINISHED
    assert any("progress of ema left out, average left out" in line and "exact except for" in line for line in said)
    plain = trainer_of(FIT)
    plain.run()
    assert weights(trainer.resources["model"]) == weights(plain.resources["model"])


@pytest.mark.full
def test_a_rewired_run_gets_a_copy_too(tmp_path: Path) -> None:
    trainer = trainer_of(FIT, tmp_path)
    trainer.run(until="5 steps")
    trainer.rewire(EMA)
    assert weights(trainer.resources["average"]) == weights(trainer.resources["model"])
    trainer.run(until="6 steps")
    again = trainer_of(EMA, tmp_path)
    again.advance(0)
    assert again.digest() == trainer.digest()
    assert again.run() is Outcome.FINISHED


def test_a_node_names_what_is_copied_and_the_copy() -> None:
    critic = FIT.insert("follow", "ema", after="step", reads={"model": "critic", "average": "slow_critic"})
    net = Net()
    trainer = trainer_of(critic, critic=net)
    assert weights(trainer.resources["slow_critic"]) == weights(net)
    assert "average" not in trainer.resources


def test_two_nodes_make_one_resource_once() -> None:
    both = EMA.insert("second", "ema", after="ema")
    trainer = trainer_of(both)
    assert isinstance(trainer.resources["average"], Net)
    other = EMA.insert("second", "ema", after="ema", reads={"model": "critic"})
    with pytest.raises(GraphError, match="`ema` makes `average` as a copy of `model`, and `second` as one of `critic`"):
        trainer_of(other, critic=Net())


def test_what_cannot_be_copied_is_refused_with_its_name() -> None:
    net = Net()
    net.last = net.layer.weight * 2  # type: ignore[assignment]  # with a graph, which torch copies not
    with pytest.raises(UsageError, match="`average` is made as a copy of `model`, a Net that cannot be copied: "):
        trainer_of(EMA, model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))


@pytest.mark.full
def test_a_lazy_model_is_averaged_once_it_has_its_form(tmp_path: Path) -> None:
    def lazy(run_dir: Path | None = None) -> Trainer:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.Linear(3, 1))
        return trainer_of(
            EMA.set("validate", every="never"),
            run_dir,
            model=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
            training_step=lambda model, batch: model(batch).square().mean(),
        )

    whole = lazy()
    whole.run()
    assert weights(whole.resources["average"]) != weights(whole.resources["model"])
    lazy(tmp_path).run(until="3 steps")
    again = lazy(tmp_path)
    again.run()
    assert again.digest() == whole.digest()


def test_a_wrong_declaration_is_refused() -> None:
    with pytest.raises(TypeError, match=r"wrong: it makes `average` as 'model'; write copy_of\(SLOT\), and read both"):

        @node(makes={"average": "model"})  # type: ignore[dict-item]
        def wrong(model: Any, average: Any) -> None:
            """Nothing."""

    with pytest.raises(TypeError, match=r"blind: it makes `average` as .*; write copy_of\(SLOT\), and read both"):

        @node(makes={"average": copy_of("model")})
        def blind(model: Any) -> None:
            """Nothing."""
