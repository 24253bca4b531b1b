"""What a run compares itself with is what was there when it began, whatever happens to its graph and trainers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer, node


class Net(torch.nn.Module):
    """Counts its calls, and uses the count."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(2, 2)
        self.head = torch.nn.Linear(2, 1)
        self.frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
        self.register_buffer("mean", None)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.head(self.body(x)) * self.frozen + 1 / self.calls
        if self.calls == 3:
            self.mean = torch.ones(1)
        return y if self.mean is None else y + self.mean


@node
def averaging(model: Any, average: Any) -> None:
    """Move the weights of `average` a little towards those of `model`."""
    with torch.no_grad():
        for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(weight, 0.1)


def fit(end: int = 12) -> Graph:
    return Graph.load("fit").set("finish", after=f"{end} batches").set("checkpoint", every="never")


def resources() -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW([*model.body.parameters(), *model.head.parameters()], lr=0.02)

    def training_step(model: Any, batch: Any) -> torch.Tensor:
        if model.calls == 4 and len(optimizer.param_groups) == 1:
            model.frozen.requires_grad_(True)
            optimizer.add_param_group({"params": [model.frozen]})
        return torch.nn.functional.dropout(model(batch), 0.1).square().mean()

    data = [torch.randn(3, 2, generator=torch.Generator().manual_seed(number)) for number in range(4)]
    return {"model": model, "optimizer": optimizer, "train_data": data, "training_step": training_step}


def squared(model: Any, batch: Any) -> torch.Tensor:
    return model(batch).square().mean()


def trainer_of(graph: Graph, run_dir: Path | None, **supplied: Any) -> tuple[Trainer, list[str]]:
    lines: list[str] = []
    return Trainer(graph, seed=0, run_dir=run_dir, display=None, notify=lines.append, **(resources() | supplied)), lines


def test_a_graph_that_takes_the_place_does_not_begin_again(tmp_path: Path) -> None:
    whole, _ = trainer_of(fit(), None)
    whole.run()
    first, lines = trainer_of(fit(20), tmp_path)
    first.run(until="7 batches")
    first.rewire(fit())
    first.run(until="9 batches")
    first.save()
    assert not [line for line in lines if "exact" in line]
    second, lines = trainer_of(fit(), tmp_path)
    second.run()
    assert any(line.startswith("resumed ") and line.endswith("exact") for line in lines)
    assert (second.digest(), second.resources["model"].calls) == (whole.digest(), 12)


@pytest.mark.full
def test_what_a_rewired_graph_was_given_is_reported_where_a_state_dict_leaves_it_out(tmp_path: Path) -> None:
    graph = fit().insert("averaging", averaging, after="step")
    plain, counting = torch.nn.Linear(2, 1), Net()
    for average, is_exact in ((copy.deepcopy(plain), True), (copy.deepcopy(counting), False)):
        folder = tmp_path / str(is_exact)
        supplied: dict[str, Any] = {}
        if is_exact:
            optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
            supplied = {"model": plain, "optimizer": optimizer, "training_step": squared}
        first, lines = trainer_of(fit(), folder, **supplied)
        first.run(until="5 batches")
        first.rewire(graph, average=average)
        average(torch.ones(1, 2))
        first.run(until="7 batches")
        first.save()
        reports = [line for line in lines if "not be exact" in line]
        expected = (
            "a resume will not be exact: average has changed since `rewire` supplied it, and is in no `state_dict`"
        )
        assert reports == ([] if is_exact else [expected])


@pytest.mark.full
def test_two_trainers_over_one_model(tmp_path: Path) -> None:
    def both(first_dir: Path | None, second_dir: Path | None, until: str | None = None) -> tuple[Trainer, list[str]]:
        supplied = resources()
        first, _ = trainer_of(fit(5), first_dir, **supplied)
        first.run()
        optimizer = torch.optim.SGD(supplied["model"].parameters(), lr=0.01)
        second, lines = trainer_of(fit(8), second_dir, **(supplied | {"optimizer": optimizer}))
        second.run(until=until)
        return second, lines

    whole, _ = both(None, None)
    cut, _ = both(tmp_path / "first", tmp_path / "second", until="3 batches")
    cut.save()
    resumed, lines = both(tmp_path / "first", tmp_path / "second")
    assert any(line.startswith("resumed ") and line.endswith("exact") for line in lines)
    assert resumed.resources["model"].calls == whole.resources["model"].calls == 13
    assert resumed.digest() == whole.digest()


def test_a_step_function_may_hold_the_trainer_that_calls_it(tmp_path: Path) -> None:
    def trainer() -> tuple[Trainer, list[str]]:
        held: list[Trainer] = []

        def step(model: Any, batch: Any) -> torch.Tensor:
            return squared(model, batch) * (1 + len(held[0].metrics))

        made, lines = trainer_of(fit(), tmp_path, training_step=step)
        held.append(made)
        return made, lines

    trainer()[0].run(until="5 batches")
    again, lines = trainer()
    again.run()
    assert not any("not exact" in line for line in lines)
