"""Metrics that are no means: sums, and extremes, over rows, epochs, validations, cuts and ranks."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Max, Min, Outcome, Sum, Trainer
from graphtrain.errors import UsageError
from graphtrain.report.recorder import Means
from tests.resume.rank_runs import run


def measured(model: torch.nn.Module, batch: Any) -> dict[str, Any]:
    """Numbers of which nothing but the batch decides."""
    losses = (model(batch[0]) - batch[1]).square()
    numbers = batch[2]
    return {
        "loss": losses.mean(),
        "total": Sum(numbers.sum()),
        "high": Max(numbers.max()),
        "low": Min(float(numbers.min())),
    }


def values(rows: list[dict[str, float]], prefix: str) -> list[tuple[float, ...]]:
    return [
        tuple(row[f"{prefix}{name}"] for name in ("total", "high", "low")) for row in rows if f"{prefix}total" in row
    ]


def flat(batches: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


def graph(fit: Graph) -> Graph:
    return fit.set("log", every="2 steps").set("finish", after="2 epochs")


def test_rows_epochs_and_validations_have_what_a_loop_computes(tmp_path: Path) -> None:
    batches: list[list[int]] = []

    def training_step(model: torch.nn.Module, batch: Any) -> dict[str, Any]:
        batches.append(batch[2].tolist())
        return measured(model, batch)

    given: dict[str, Any] = {"training_step": training_step, "validation_step": measured, "graph": graph}
    (end,) = run(1, None, **given)
    epochs = [flat(batches[:11]), flat(batches[11:])]
    assert values(end.metrics, "epoch/") == [(sum(epoch), max(epoch), min(epoch)) for epoch in epochs]
    assert values(end.metrics, "val/") == [(15, 5, 0)] * 2
    # Two micro-batches a step, the last one of an epoch alone; a row every two steps.
    spans = [batches[0:4], batches[4:8], batches[8:11], batches[11:15], batches[15:19], batches[19:22]]
    numbers = [flat(span) for span in spans]
    assert values(end.metrics, "") == [(sum(span), max(span), min(span)) for span in numbers]


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("world_size", [1, 2])
def test_they_are_the_same_over_cuts_and_ranks(tmp_path: Path, world_size: int) -> None:
    given: dict[str, Any] = {"training_step": measured, "validation_step": measured, "graph": graph, "is_plain": True}
    whole = run(world_size, None, **given)[0]
    for cut in (10, 51):
        run(world_size, tmp_path / str(cut), advance=cut, **given)
        cut_end = run(world_size, tmp_path / str(cut), **given)[0]
        assert cut_end.outcome is Outcome.FINISHED
        assert cut_end.metrics == whole.metrics, cut
    if world_size > 1:
        (alone,) = run(1, None, **given)
        assert values(whole.metrics, "epoch/") == values(alone.metrics, "epoch/")
        assert values(whole.metrics, "val/") == values(alone.metrics, "val/")


def test_nan_is_not_lost() -> None:
    for order in ((1.0, math.nan), (math.nan, 1.0)):
        means = Means(("log",))
        for value in order:
            means.add({"high": Max(value), "low": Min(torch.tensor(value))}, 1)
        assert all(map(math.isnan, means.take("log").values()))


def test_one_name_is_reduced_in_one_way() -> None:
    means = Means(("log",))
    means.add({"a": Sum(1.0)}, 2)
    means.add({"a": 1.0}, 2)
    with pytest.raises(UsageError, match="the metric `a` was sum and is a mean now"):
        means.take("log")


def test_what_is_no_number_is_refused() -> None:
    model = torch.nn.Linear(2, 1)
    trainer = Trainer(
        "fit",
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.ones(2, 2)],
        training_step=lambda model, batch: {"loss": model(batch).mean(), "all": Sum(torch.ones(2))},
        display=None,
        notify=lambda line: None,
    )
    with pytest.raises(UsageError, match="`training_step` returned `all`"):
        trainer.run()
