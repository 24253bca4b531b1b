"""Several nodes of the kind `train_batch` in one graph: each records under its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer

BATCHES = [torch.full((2, 1), float(number)) for number in range(4)]


def two(first: str = "train_batch") -> Graph:
    """Two losses a batch, and one step with the gradients of both."""
    graph = Graph.load("fit").insert(
        "second", "train_batch", after="train_batch", reads={"training_step": "other_step"}
    )
    graph = (
        graph.set("second", writes={"loss": "other_loss"}).set("log", every="2 steps").set("finish", after="2 epochs")
    )
    return graph.rename("train_batch", first) if first != "train_batch" else graph


def other_step(model: torch.nn.Module, batch: torch.Tensor) -> dict[str, Any]:
    return {"loss": (model(batch) * 0 + 10 * batch).mean(), "more": 1.0}


def trainer_of(graph: Graph, run_dir: Path | None = None, **more: Any) -> Trainer:
    model = torch.nn.Linear(1, 1)
    return Trainer(
        graph.set("checkpoint", every="never"),
        seed=0,
        run_dir=run_dir,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        train_data=BATCHES,
        training_step=lambda model, batch: (model(batch) * 0 + batch).mean(),
        display=None,
        notify=lambda line: None,
        **{name: step for name, step in {"other_step": other_step, **more}.items() if step is not None},
    )


@pytest.mark.parametrize("first", ["train_batch", "first"])
def test_each_has_means_of_its_own(first: str) -> None:
    trainer = trainer_of(two(first))
    trainer.run()
    own = "" if first == "train_batch" else "first/"
    rows: list[dict[str, Any]] = [
        {name: row[name] for name in row if name.endswith(("loss", "more"))} for row in trainer.metrics
    ]
    epoch = {f"epoch/{own}loss": 1.5, "epoch/second/loss": 15.0, "epoch/second/more": 1.0}
    first_two = {f"{own}loss": 0.5, "second/loss": 5.0, "second/more": 1.0}
    last_two = {f"{own}loss": 2.5, "second/loss": 25.0, "second/more": 1.0}
    assert rows == [first_two, last_two, epoch] * 2


def test_one_alone_has_no_name_before_its_own() -> None:
    graph = Graph.load("fit").rename("train_batch", "mine").set("finish", after="1 epochs")
    trainer = trainer_of(graph, other_step=None)
    trainer.run()
    assert any("epoch/loss" in row for row in trainer.metrics)


@pytest.mark.full
def test_cuts_change_nothing(tmp_path: Path) -> None:
    whole = trainer_of(two())
    whole.run()
    for cut in (9, 16, 44):
        first = trainer_of(two(), tmp_path / str(cut))
        first.advance(cut)
        first.save()
        again = trainer_of(two(), tmp_path / str(cut))
        again.run()
        assert again.metrics == whole.metrics, cut
