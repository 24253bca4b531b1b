"""Promise 18: what a metric may be, that it is what it was when it was given, and means, sums and extremes of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from graphtrain import Graph, Max, Min, Sum, Trainer, UsageError, node
from tests.world import World, assert_exact, small_fit, world

BATCHES = 5


class Counted(nn.Module):
    """A layer, a weight and a buffer that change with every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> Any:
        self.seen += 1
        return self.scale * self.layer(inputs)


def live(model: Any, batch: Any) -> dict[str, Any]:
    """Metrics in the memory of the model itself, in every disguise."""
    loss = model(batch[0]).square().mean()
    return {"loss": loss, "scale": model.scale, "seen": model.seen, "view": model.layer.weight[0, 0], "one": loss[None]}


def mean(model: Any, batch: Any) -> Any:
    return model(batch[0]).square().mean()


def measured(step: Callable[..., Any] = live, graph: Graph | None = None, **resources: Any) -> World:
    graph = graph or small_fit(log_every="2 steps", accumulate=1, validate_every="1 epochs")
    return world(graph, model=Counted, optimizer="SGD", training_step=step, **resources)


def ran(it: World) -> Trainer:
    trainer = it.trainer()
    trainer.run()
    return trainer


def test_a_mean_is_of_the_values_as_they_were_at_each_batch() -> None:
    given: dict[str, list[tuple[float, int]]] = {"scale": [], "seen": [], "view": [], "one": []}

    def noted(model: Any, batch: Any) -> dict[str, Any]:
        result = live(model, batch)
        for name, values in given.items():
            values.append((result[name].item(), len(batch[0])))
        return result

    trainer = ran(measured(noted, validation_step=lambda: mean))
    (epoch,) = [row for row in trainer.metrics if "epoch/seen" in row and row["epoch"] == 1]
    for name, values in given.items():
        first = values[:BATCHES]
        assert epoch[f"epoch/{name}"] == sum(value * samples for value, samples in first) / 14
        assert len({value for value, _ in values}) > BATCHES, "it changes"
    validated = ran(measured(mean, validation_step=lambda: live))
    (row,) = [row for row in validated.metrics if "val/seen" in row and row["epoch"] == 1]
    assert row["val/seen"] == ((BATCHES + 1) * 5 + (BATCHES + 2) * 5 + (BATCHES + 3) * 4) / 14


# ---- sums and extremes


def reduced(model: Any, batch: Any) -> dict[str, Any]:
    """Numbers of which nothing but the batch decides."""
    targets = batch[1]
    low = Min(float(targets.min()))
    return {"loss": mean(model, batch), "total": Sum(targets.sum()), "high": Max(targets.max()), "low": low}


def values(rows: list[dict[str, float]], prefix: str) -> list[tuple[float, ...]]:
    names = [f"{prefix}{name}" for name in ("total", "high", "low")]
    return [tuple(row[name] for name in names) for row in rows if names[0] in row]


def of(batches: list[list[int]]) -> tuple[int, int, int]:
    numbers = [*itertools.chain.from_iterable(batches)]
    return sum(numbers), max(numbers), min(numbers)


OF_SUMS = measured(reduced, small_fit(log_every="2 steps"), validation_step=lambda: reduced)


def test_rows_epochs_and_validations_have_what_a_loop_computes() -> None:
    batches: list[list[int]] = []

    def training_step(model: nn.Module, batch: Any) -> dict[str, Any]:
        batches.append(batch[1].tolist())
        return reduced(model, batch)

    it = OF_SUMS.but(training_step=lambda made: training_step)
    trainer = ran(it)
    assert values(trainer.metrics, "epoch/") == [of(batches[:5]), of(batches[5:])]
    targets = [batch[1].tolist() for batch in it.resources()["val_data"]]
    assert {*values(trainer.metrics, "val/")} == {of(targets)}
    # Two micro-batches a step, the last one of an epoch alone; a row every two steps.
    assert values(trainer.metrics, "") == [of(batches[0:4]), of(batches[4:7]), of(batches[7:10])]


@pytest.mark.full
def test_means_and_sums_are_the_same_over_cuts(tmp_path: Path) -> None:
    """A save brings them up to date."""
    assert_exact(OF_SUMS, tmp_path, at=5)
    assert_exact(measured(), tmp_path / "means", at=4)


def test_nan_is_not_lost() -> None:
    for order in ((1.0, math.nan), (math.nan, 1.0)):

        def step(model: Any, batch: Any, batch_index: int, order: Any = order) -> dict[str, Any]:
            value = order[batch_index % 2]
            return {"loss": mean(model, batch), "high": Max(value), "low": Min(torch.tensor(value))}

        (row,) = [row for row in ran(measured(step)).metrics if "epoch/high" in row and row["epoch"] == 1]
        assert math.isnan(row["epoch/high"]) and math.isnan(row["epoch/low"])


# ---- what is refused


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({3: 1.0}, "a metric whose name is an int: 3"),
        ({"phase": torch.zeros((), dtype=torch.complex64)}, "`phase`, a tensor of complex numbers, of shape"),
        ({"step": 1.0}, "`step`, which every row of metrics has already"),
        ({"epoch": 1.0}, "`epoch`, which every row of metrics has already"),
        ({"all": Sum(torch.ones(2))}, "`all`"),
    ],
)
def test_an_invalid_metric_is_refused_at_the_first_batch(metrics: dict[Any, Any], expected: str) -> None:
    trainer = measured(lambda model, batch: {"loss": mean(model, batch), **metrics}).trainer()
    with pytest.raises(UsageError, match=f"`training_step` returned {expected}"):
        trainer.run()
    assert trainer.progress["next_batch"]["batches"] == 1


def test_one_name_is_reduced_in_one_way_and_a_rate_of_the_user_is_the_users() -> None:
    def step(model: Any, batch: Any, batch_index: int) -> dict[str, Any]:
        return {"loss": mean(model, batch), "lr": 3.0, "a": Sum(1.0) if batch_index < 1 or other else 1.0}

    other = True
    assert {row["lr"] for row in ran(measured(step)).metrics if "lr" in row} == {3.0}
    other = False
    with pytest.raises(UsageError, match="the metric `a` was a sum and is a mean now"):
        ran(measured(step))


def recording(value: Any, name: Any = "x") -> World:
    @node
    def record(recorder: Any) -> None:
        """Record one value."""
        recorder.row({name: value})

    return measured(mean, small_fit(log_every="never").insert("record", record, after="zero_grad"))


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
    whole = assert_exact(recording(value), tmp_path, at=[20])
    recorded = [row["x"] for row in whole.metrics if "x" in row]
    assert recorded == [kept] * 6 and {type(value) for value in recorded} <= {int, float}


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
    trainer = recording(value, name).trainer()
    with pytest.raises(UsageError, match=f"a row of metrics was given {expected}") as caught:
        trainer.run()
    assert "raised in node `record`" in caught.value.__notes__[0] and trainer.metrics == []
