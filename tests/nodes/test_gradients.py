"""The norms of gradients as metrics, against what they are by definition."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, Trainer
from tests.ranks.fake_ranks import run_ranks

BATCHES, WINDOW = 5, 2


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


class Net(nn.Module):
    """Parameters of one, two and four dimensions, one that begins as zeros, one of no dimension, one that is unused."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 4))
        self.head = nn.Linear(4, 1)
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.unused = nn.Parameter(torch.ones(2))
        nn.init.zeros_(self.head.weight)


def loss_of(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return (model.scale * model.head(model.body(batch)) - batch.sum((1, 2, 3)).unsqueeze(1)).square().mean()


def resources() -> dict[str, Any]:
    torch.manual_seed(2)
    model = Net()
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05),
        "train_data": [torch.randn(6, 1, 3, 3) for _ in range(BATCHES)],
        "training_step": loss_of,
    }


def graph_of(*overlays: str) -> Graph:
    graph = Graph.load("fit").overlay(*overlays).set("accumulate", every=WINDOW).set("finish", after="2 epochs")
    return graph.set("log", every="2 steps").set("checkpoint", every="never")


def trainer_of(graph: Graph, run_dir: Path | None = None, **others: Any) -> Trainer:
    return Trainer(graph, seed=0, run_dir=run_dir, display=None, notify=lambda line: None, **{**resources(), **others})


def by_hand(p: float = 2.0) -> list[float]:
    """The total norm of every step."""
    supplied, norms = resources(), []
    model, optimizer = supplied["model"], supplied["optimizer"]
    for _ in range(2):
        for number, batch in enumerate(supplied["train_data"], start=1):
            (loss_of(model, batch) / WINDOW).backward()  # type: ignore[no-untyped-call]
            if number % WINDOW and number < BATCHES:
                continue
            norms.append(
                norm(torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None]), p)
            )
            optimizer.step()
            optimizer.zero_grad()
    return norms


def norm(tensor: torch.Tensor, p: float) -> float:
    absolute = tensor.double().abs()
    return float(absolute.max() if p == math.inf else absolute.pow(p).sum().pow(1 / p))


# ---- gradient_norm


@pytest.mark.first(4)
@pytest.mark.parametrize("p", [2.0, 1.0, 3.5, math.inf])
def test_rows_have_the_mean_norm_of_their_steps(p: float) -> None:
    norms = by_hand(p)
    graph = graph_of("gradient_norm").set("gradient_norm", norm_type=p)
    trainer = trainer_of(graph.set("clip", max_norm=1e9))
    trainer.run()
    rows = [row for row in trainer.metrics if "gradient_norm" in row]
    assert [row["step"] for row in rows] == [2, 4, 6]
    for index, row in enumerate(rows):
        assert row["gradient_norm"] == pytest.approx(sum(norms[2 * index : 2 * index + 2]) / 2, rel=1e-5)
    epoch = [row["epoch/gradient_norm"] for row in trainer.metrics if "epoch/gradient_norm" in row]
    assert epoch == pytest.approx([sum(norms[at : at + 3]) / 3 for at in (0, 3)], rel=1e-5)


def test_it_is_the_norm_before_clipping_and_changes_nothing() -> None:
    plain, measured = (
        trainer_of(graph_of().set("clip", max_norm=0.1)),
        trainer_of(graph_of("gradient_norm").set("clip", max_norm=0.1)),
    )
    for trainer in (plain, measured):
        trainer.run()
    for one, other in zip(*(trainer.resources["model"].parameters() for trainer in (plain, measured)), strict=True):
        assert torch.equal(one, other)
    assert max(row.get("gradient_norm", 0) for row in measured.metrics) > 0.2


def test_ranks_record_the_norm_of_what_they_have_exchanged() -> None:
    def run(ranks: Any) -> list[dict[str, float]]:
        trainer = trainer_of(graph_of("gradient_norm").set("accumulate", every=1).set("log", every="1 steps"))
        trainer.run()
        return trainer.metrics

    first, second = run_ranks(2, run)
    assert first == second
    norms = by_hand()
    recorded = [row["gradient_norm"] for row in first if "gradient_norm" in row]
    assert recorded == pytest.approx(norms, rel=1e-5)
