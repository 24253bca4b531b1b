"""The contract that every shipped graph passes, and what an evaluation leaves as it was."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import Graph, Loader, Outcome, Trainer
from graphtrain.graph.registry import known_graphs
from graphtrain.state.random import seed_everything
from tests.shipped import GRAPHS, PROCEDURES

SHIPPED = sorted(GRAPHS)


@pytest.fixture(params=SHIPPED)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def graph(name: str) -> Graph:
    return Graph.load(name)


def test_every_file_in_the_folder_is_known_by_its_name(name: str) -> None:
    assert name in known_graphs()
    assert Graph.load(name) == Graph.load(GRAPHS[name])
    assert Graph.load(name).name == name


def test_its_first_line_says_what_it_does(name: str) -> None:
    line = GRAPHS[name].read_text().splitlines()[0]
    assert line.startswith("# ") and line.endswith(".")


def test_it_has_no_problem_not_even_a_warning(graph: Graph) -> None:
    assert graph.check() == []
    assert graph.allow == ()


@pytest.mark.first(12)
def test_it_saves_and_loads_back_equal(graph: Graph, tmp_path: Path) -> None:
    path = tmp_path / "copy.toml"
    graph.save(path)
    again = Graph.load(path)
    assert again == graph
    assert again.structural_hash == graph.structural_hash
    assert again.to_toml() == graph.to_toml() == path.read_text()
    assert again.check() == []


def test_its_canonical_json_reads_back_equal(graph: Graph) -> None:
    text = graph.to_json()
    again = Graph.from_json(text)
    assert again == graph
    assert again.to_json() == text
    assert again.structural_hash == graph.structural_hash
    assert set(json.loads(text)["nodes"]) == set(graph.nodes)


def test_an_edit_is_another_graph(graph: Graph) -> None:
    edited = graph.insert("pause", "choice", before=graph.start)
    assert edited != graph
    assert edited.structural_hash != graph.structural_hash
    assert Graph.from_json(edited.to_json()) == edited != Graph.from_json(graph.to_json())


@pytest.mark.second(3)
@pytest.mark.full
def test_its_pictures_show_every_node(graph: Graph, tmp_path: Path) -> None:
    from graphtrain.viz import render, svg

    for suffix in ("dot", "mmd", "svg"):
        text = render(graph, tmp_path / f"{graph.name}.{suffix}").read_text()
        for node in graph.nodes:
            assert node in text, suffix
    assert svg(graph).startswith("<svg")


class Net(torch.nn.Module):
    """A model with everything that an evaluation could spoil: modes, buffers, random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
        self.frozen = torch.nn.BatchNorm1d(4).eval()
        self.head = torch.nn.Linear(4, 1)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.head(self.frozen(self.layers(batch)))

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        return self(batch).square().mean()


def batches(count: int, seed: int, size: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(size, 3, generator=generator) for _ in range(count)]


@pytest.mark.full
@pytest.mark.parametrize("name", sorted({*SHIPPED} - {*PROCEDURES}))
def test_it_runs_to_its_end_with_stand_ins(graph: Graph, tmp_path: Path) -> None:
    """Those of the gallery have resources of their own, and tests that run them."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(
        graph,
        run_dir=tmp_path / "run",
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.LinearLR(optimizer),
        train_data=batches(2, 0),
        val_data=batches(2, 1),
        test_data=batches(2, 1),
        predict_data=batches(2, 1),
        **({"predictions_file": tmp_path / "predictions.jsonl"} if graph.name == "predict" else {}),
        device="cpu",
        notify=lambda line: None,
    )
    assert trainer.position == graph.start
    assert trainer.run() is Outcome.FINISHED
    assert trainer.position == "end"
    assert trainer.metrics or (tmp_path / "predictions.jsonl").read_text()


# An evaluation on its own


def evaluating(model: Net, data: Any, **more: Any) -> Trainer:
    return Trainer("evaluate", model=model, val_data=data, device="cpu", notify=lambda line: None, **more)


def generators() -> list[Any]:
    return [random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist()]


def weights(model: torch.nn.Module) -> dict[str, list[float]]:
    return {name: value.tolist() for name, value in model.state_dict().items()}


def drawing_step(model: Net, batch: torch.Tensor) -> torch.Tensor:
    """A validation step that draws from every generator."""
    assert not torch.is_grad_enabled()
    assert not model.training
    return model(batch).mean() + random.random() + numpy.random.rand() + torch.rand(())


class Drawing:
    """A data set whose samples draw from every generator."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(3) + random.random() + float(numpy.random.rand())


DATA: dict[str, Callable[[], Any]] = {
    "list": lambda: batches(3, 2),
    "shuffled DataLoader": lambda: DataLoader(Drawing(), batch_size=2, shuffle=True),
    "shuffled DataLoader, 2 workers": lambda: DataLoader(Drawing(), batch_size=2, shuffle=True, num_workers=2),
    "Loader": lambda: Loader(Drawing(), batch_size=2, shuffle=True),
    "no batch": lambda: [],
}


@pytest.mark.full
@pytest.mark.parametrize("made", DATA.values(), ids=DATA)
@pytest.mark.parametrize("seed", [None, 5])
def test_an_evaluation_leaves_modes_weights_and_generators_as_they_were(
    made: Callable[[], Any], seed: int | None
) -> None:
    """Without a seed the generators are where they were before the run, with one where it put them at its beginning."""
    model = Net()
    model.head.eval()
    trainer = evaluating(model, made(), validation_step=drawing_step, seed=seed)
    modes = {name: module.training for name, module in model.named_modules()}
    seed_everything(5)
    if seed is None:
        torch.rand(3), random.random(), numpy.random.rand()  # somewhere in the middle of a training
    before = generators(), weights(model)
    if seed is not None:
        torch.rand(3), random.random(), numpy.random.rand()
    trainer.run()
    assert (generators(), weights(model)) == before
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert set(modes.values()) == {True, False}
    assert all(parameter.grad is None for parameter in model.parameters())


def test_its_metrics_are_means_over_samples() -> None:
    data = [torch.full((size, 3), float(size)) for size in (1, 2, 5)]

    def step(model: Net, batch: torch.Tensor) -> dict[str, Any]:
        return {"size": batch.mean(), "one": 1}

    trainer = evaluating(Net(), data, validation_step=step)
    trainer.run()
    [row] = trainer.metrics
    assert row["val/size"] == pytest.approx((1 * 1 + 2 * 2 + 5 * 5) / 8)
    assert row["val/one"] == 1
    renamed = Trainer(
        Graph.load("evaluate").set("begin_evaluation", split="test"),
        model=Net(),
        val_data=data,
        validation_step=step,
        device="cpu",
        notify=lambda line: None,
    )
    renamed.run()
    assert set(renamed.metrics[0]) == {"step", "epoch", "test/size", "test/one"}


def test_without_a_validation_step_the_training_step_is_asked_without_gradients() -> None:
    model = Net()
    data = batches(2, 4)
    trainer = evaluating(model, data)
    trainer.run()
    model.eval()
    with torch.no_grad():
        expected = sum(float(model.training_step(batch)) for batch in data) / 2
    assert trainer.metrics[0]["val/loss"] == pytest.approx(expected)


def test_every_evaluation_of_a_run_sees_the_same_random_numbers() -> None:
    model = Net()
    trainer = Trainer(
        Graph.load("fit").set("finish", after="2 epochs").set("validate", every="1 batches"),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        train_data=batches(3, 0),
        val_data=DataLoader(Drawing(), batch_size=2, shuffle=True),
        validation_step=lambda model, batch: {"noise": batch.sum() + torch.rand(()) + random.random()},
        device="cpu",
        notify=lambda line: None,
    )
    trainer.run()
    noise = [row["val/noise"] for row in trainer.metrics if "val/noise" in row]
    assert len(noise) == 6
    assert len(set(noise)) == 1


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("made", DATA.values(), ids=DATA)
def test_training_goes_the_same_way_with_validation_and_without(made: Callable[[], Any]) -> None:
    def trained(**more: Any) -> dict[str, list[float]]:
        torch.manual_seed(0)
        model = Net()
        graph = Graph.load("fit").set("finish", after="2 epochs").set("validate", every="2 batches")
        Trainer(
            graph,
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            train_data=DataLoader(batches(6, 0, 2), batch_size=None, shuffle=True),
            validation_step=drawing_step,
            device="cpu",
            notify=lambda line: None,
            **more,
        ).run()
        return weights(model)

    assert trained() == trained(val_data=made())
