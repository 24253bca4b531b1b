"""What a metric may be, and that it is what it was when it was given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from graphtrain import Graph, Trainer, UsageError, node
from graphtrain.report.recorder import Recorder
from graphtrain.state.random import seed_everything
from tests.program.test_by_hand import assert_same

BATCHES = 4


class Counted(nn.Module):
    """A layer, a weight and a buffer that change with every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> Any:
        self.seen += 1
        return self.scale * self.layer(inputs)


def live(model: Any, batch: Any) -> dict[str, Any]:
    """Metrics in the memory of the model itself, in every disguise."""
    loss = model(batch).square().mean()
    return {"loss": loss, "scale": model.scale, "seen": model.seen, "view": model.layer.weight[0, 0], "one": loss[None]}


def make_trainer(
    step: Callable[[Any, Any], Any] = live, run_dir: Path | None = None, graph: Graph | None = None, **resources: Any
) -> Trainer:
    torch.set_num_threads(1)
    seed_everything(7)
    model = Counted()
    generator = torch.Generator().manual_seed(5)
    return Trainer(
        (graph or Graph.load("fit"))
        .set("checkpoint", every="1 batches", keep=1000)
        .set("log", every="2 steps")
        .set("finish", after="2 epochs"),
        seed=0,
        run_dir=run_dir,
        device="cpu",
        display=None,
        notify=lambda line: None,
        **{
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.5),
            "train_data": [torch.randn(2, 3, generator=generator) for _ in range(BATCHES)],
            "training_step": step,
            **resources,
        },
    )


def test_a_mean_is_of_the_values_as_they_were_at_each_batch() -> None:
    means: dict[str, list[float]] = {"scale": [], "seen": [], "view": [], "one": []}

    def noted(model: Any, batch: Any) -> dict[str, Any]:
        result = live(model, batch)
        for name, values in means.items():
            values.append(result[name].item())
        return result

    trainer = make_trainer(noted)
    trainer.run()
    assert means["seen"] == list(range(1, 2 * BATCHES + 1))
    (epoch,) = [row for row in trainer.metrics if "epoch/seen" in row and row["epoch"] == 1]
    for name, values in means.items():
        assert epoch[f"epoch/{name}"] == sum(value * 2 for value in values[:BATCHES]) / (2 * BATCHES)
        assert len(set(values)) > BATCHES, "it changes"


def test_so_is_one_of_validation() -> None:
    data = [torch.zeros(2, 3)] * 3
    trainer = make_trainer(lambda model, batch: model(batch).mean(), val_data=data, validation_step=live)
    trainer.run(until="1 epochs")
    (row,) = [row for row in trainer.metrics if "val/seen" in row]
    assert row["val/seen"] == BATCHES + 2


@pytest.mark.full
def test_when_a_mean_is_brought_up_to_date_makes_no_difference(tmp_path: Path) -> None:
    """A save does it; so a run that is cut must come to the same rows."""
    whole = make_trainer()
    whole.run()
    saved = make_trainer(run_dir=tmp_path)
    saved.run()
    assert saved.metrics == whole.metrics
    for path in sorted((tmp_path / "checkpoints").iterdir()):
        cut = make_trainer()
        cut.run(resume=path)
        assert cut.digest() == whole.digest()
        assert cut.metrics == whole.metrics[len(whole.metrics) - len(cut.metrics) :]


def test_what_a_kind_adds_to_means_is_kept_as_it_was() -> None:
    recorder = Recorder(lambda: (1, 0.5))
    means, value = recorder.means("train", ("log",)), torch.zeros(())
    for _ in range(3):
        value += 1
        means.add({"value": value}, samples=1)
    assert means.take("log") == {"value": 2.0}


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({3: 1.0}, "a metric whose name is an int: 3"),
        ({"phase": torch.zeros((), dtype=torch.complex64)}, "`phase`, a tensor of complex numbers, of shape"),
        ({"step": 1.0}, "`step`, which every row of metrics has already"),
        ({"epoch": 1.0}, "`epoch`, which every row of metrics has already"),
    ],
)
def test_an_invalid_metric_is_refused_at_the_first_batch(metrics: dict[Any, Any], expected: str) -> None:
    trainer = make_trainer(lambda model, batch: {"loss": model(batch).mean(), **metrics})
    with pytest.raises(UsageError, match=f"`training_step` returned {expected}"):
        trainer.run()
    assert trainer.progress["next_batch"]["batches"] == 1


def test_a_rate_that_the_user_gives_is_the_users() -> None:
    trainer = make_trainer(lambda model, batch: {"loss": model(batch).square().mean(), "lr": 3.0})
    trainer.run()
    assert {row["lr"] for row in trainer.metrics if "lr" in row} == {3.0}


def recording(value: Any, name: Any = "x") -> Graph:
    @node
    def record(recorder: Recorder) -> None:
        """Record one value."""
        recorder.row({name: value})

    return Graph.load("fit").insert("record", record, after="zero_grad")


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (True, 1),
        (numpy.float32(1.5), 1.5),
        (numpy.int64(3), 3),
        (torch.tensor(0.25), 0.25),
        (torch.tensor(True), 1),
        (2**60, 2**60),
    ],
)
def test_every_kind_of_number_in_a_row_can_be_saved_and_resumed(value: Any, kept: Any, tmp_path: Path) -> None:
    def trainer(run_dir: Path) -> Trainer:
        return make_trainer(lambda model, batch: model(batch).mean(), run_dir, recording(value))

    whole = trainer(tmp_path / "whole")
    whole.run()
    recorded = [row["x"] for row in whole.metrics if "x" in row]
    assert recorded == [kept] * 2 * BATCHES and {type(value) for value in recorded} <= {int, float}
    trainer(tmp_path / "cut").run(until="3 batches")
    cut = trainer(tmp_path / "cut")
    cut.run()
    assert cut.metrics == whole.metrics
    assert_same(cut.resources["model"].state_dict(), whole.resources["model"].state_dict())


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("x", None, "`x`, nothing; metrics are numbers"),
        ("x", "good", "`x`, a str; metrics are numbers"),
        ("x", torch.zeros(2), r"`x`, a tensor of shape \(2,\); metrics are numbers"),
        (("a", "b"), 1.0, "a metric whose name is a tuple"),
        ("step", 1, "`step`, which every row"),
    ],
)
def test_anything_else_in_a_row_is_refused(name: Any, value: Any, expected: str) -> None:
    trainer = make_trainer(lambda model, batch: model(batch).mean(), graph=recording(value, name))
    with pytest.raises(UsageError, match=f"a row of metrics was given {expected}") as caught:
        trainer.run()
    assert "raised in node `record`" in caught.value.__notes__[0]
    assert trainer.metrics == []
