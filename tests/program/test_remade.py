"""A node that makes a model and an optimizer into slots: saved by their states, and made again for a resume."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import CheckpointError, Graph, Outcome, Trainer, node, progress
from tests.program.folds import folds_of


class Net(torch.nn.Module):
    """Counts, has a buffer that is not persistent, and a probability that is annealed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(2, width), torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 1)
        )
        self.register_buffer("mean", torch.zeros(1), persistent=False)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.layers[2].p *= 0.9
        y = self.layers(x)
        self.mean.mul_(0.9).add_(y.detach().mean())
        return y - self.mean / self.calls


def training_step(model: Any, batch: Any) -> torch.Tensor:
    return model(batch).square().mean()


def folds() -> Graph:
    """For each fold a model and an optimizer, which a nested graph trains."""

    @node(writes="fold")
    class BeginFold:
        """Count the folds, from 1."""

        folds: int = progress(0)

        def __call__(self) -> int:
            self.folds += 1
            return self.folds

    @node(writes="model", remade="model")
    def make_model(fold: int, *, width: int = 4) -> torch.nn.Module:
        return Net(width + fold)

    @node(writes=("optimizer", "scheduler", "rate"), remade=("optimizer", "scheduler"))
    def make_optimizer(model: Any, fold: int) -> tuple[Any, Any, float]:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * fold)
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), 0.01 * fold

    @node
    class Judge:
        """Keep the result of each fold."""

        results: list[float] = progress([])

        def __call__(self, model: Any, rate: float) -> None:
            self.results = [*self.results, rate, *(float(p.detach().sum()) for p in model.parameters())]

    return folds_of({"make_model": "{}", "make_optimizer": "{}"})


def trainer_of(graph: Graph, run_dir: Path | None = None, **resources: Any) -> tuple[Trainer, list[str]]:
    torch.set_num_threads(1)  # undone after each test; others want the processors too
    lines: list[str] = []
    data = [torch.randn(4, 2, generator=torch.Generator().manual_seed(number)) for number in range(3)]
    supplied = {"train_data": data, "training_step": training_step, **resources}
    return Trainer(graph, seed=0, run_dir=run_dir, device="cpu", display=None, notify=lines.append, **supplied), lines


@pytest.fixture(scope="module")
def whole() -> Trainer:
    trainer, _ = trainer_of(folds())
    assert trainer.run() is Outcome.FINISHED
    return trainer


@pytest.mark.parametrize("interval", [8, pytest.param(1, marks=pytest.mark.sweep)])
def test_every_cut_is_exact(interval: int, whole: Trainer, tmp_path: Path) -> None:
    for cut in range(2, 42, interval):
        folder = tmp_path / str(cut)
        first, lines = trainer_of(folds(), folder)
        first.advance(cut)
        first.save()
        second, resumed = trainer_of(folds(), folder)
        second.advance(0)
        assert resumed[-1].endswith("exact"), (cut, resumed)
        assert second.position == first.position
        assert second.digest() == first.digest()
        second.run()
        assert second.progress["judge"]["results"] == whole.progress["judge"]["results"], cut
        assert second.digest() == whole.digest()
        assert not any("checkpoint can be made" in line for line in lines)


def test_it_stops_inside_the_nested_graph(whole: Trainer, tmp_path: Path) -> None:
    calls = 0

    def interrupting(model: Any, batch: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return training_step(model, batch)

    first, _ = trainer_of(folds(), tmp_path, training_step=interrupting)
    assert first.run() is Outcome.STOPPED
    assert calls == 4
    second, _ = trainer_of(folds(), tmp_path, training_step=interrupting)
    calls = 10
    second.run()
    assert second.progress["judge"]["results"] == whole.progress["judge"]["results"]


def test_what_was_made_is_kept_by_a_graph_that_takes_the_place(whole: Trainer, tmp_path: Path) -> None:
    first, _ = trainer_of(folds(), tmp_path)
    first.advance(9)
    graph = first.graph.rename("make_model", "build")
    first.rewire(graph, {"make_model": "build"})
    first.advance(3)
    first.save()
    second, resumed = trainer_of(graph, tmp_path)
    second.advance(0)
    assert resumed[-1].endswith("exact")
    second.run()
    assert second.progress["judge"]["results"] == whole.progress["judge"]["results"]


def test_a_renamed_node_makes_it_again(whole: Trainer, tmp_path: Path) -> None:
    first, _ = trainer_of(folds(), tmp_path)
    first.advance(12)
    first.save()
    graph = first.graph.rename("make_model", "build")
    second, _ = trainer_of(graph, tmp_path)
    second.run(rename={"make_model": "build"})
    assert second.progress["judge"]["results"] == whole.progress["judge"]["results"]


def test_without_a_declaration_the_slot_is_named_once(tmp_path: Path) -> None:
    folds()

    @node(writes="model")
    def make_model(fold: int, *, width: int = 4) -> torch.nn.Module:
        return Net(width + fold)

    graph = folds().replace("make_model", make_model)
    first, lines = trainer_of(graph, tmp_path)
    first.advance(8)
    first.save()
    reports = [line for line in lines if "no checkpoint can be made" in line]
    assert len(reports) == 1
    assert "the slot `model` cannot be saved: nothing is known that could make its Net again" in reports[0]
    assert '@node(..., remade="model")' in reports[0]
    assert first.position == "checkpoint", "the first position at which no model is needed"


def test_an_input_that_cannot_be_saved_is_named(tmp_path: Path) -> None:
    @node(writes="fold")
    def begin_fold() -> object:
        return object()

    @node(writes="model", remade="model")
    def make_model(fold: object) -> torch.nn.Module:
        return torch.nn.Linear(2, 1)

    @node
    def use(model: Any) -> None: ...

    graph = Graph.loads(
        """
        format = 1
        name = "short"
        start = "begin_fold"
        [nodes]
        begin_fold = {}
        make_model = {}
        use = {}
        [edges]
        begin_fold = ["make_model"]
        make_model = ["use"]
        use = ["end"]
        """
    )
    trainer = Trainer(graph, seed=0, run_dir=tmp_path, display=None, notify=(lines := []).append)
    trainer.advance(2)
    trainer.save()
    assert any(
        "the slot `fold`, which `make_model` needs to make `model` again, cannot be saved: a builtins.object" in line
        for line in lines
    ), lines


def test_a_graph_without_the_node_is_an_error(tmp_path: Path) -> None:
    first, _ = trainer_of(folds(), tmp_path)
    first.advance(12)
    first.save()
    second, _ = trainer_of(first.graph.rename("make_model", "build"), tmp_path)
    with pytest.raises(CheckpointError, match="`make_model` has made `model`, and no such node makes it now"):
        second.run()


def declared(**arguments: Any) -> Callable[[], Any]:
    def declare() -> Any:
        return node(**arguments)(lambda: None)

    return declare


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"writes": "model", "remade": "modle"}, "remade slot 'modle' is not among what it writes"),
        ({"writes": "model", "remade": "model", "transient": "model"}, "is either remade or transient"),
        ({"writes": "model", "remade": "model", "effects": "step"}, "it has the effect 'step'"),
    ],
)
def test_declarations_that_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        node(name="maker", **arguments)(lambda: None)


def test_a_class_is_refused_and_what_has_no_state() -> None:
    with pytest.raises(TypeError, match="it is a class, which has progress"):

        @node(writes="model", remade="model")
        class Maker:
            def __call__(self) -> None: ...

    @node(writes="model", remade="model")
    def make_model(fold: int) -> int:
        return 3

    trainer, _ = trainer_of(folds().replace("make_model", make_model))
    with pytest.raises(TypeError, match="`model` is declared `remade`, which is for objects with a `state_dict`"):
        trainer.run()
