"""What a resume let through once: it was called exact and was not, or it was exact and was called otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer, node
from tests.state.setups import in_place
from tests.state.setups.cutting import trainer_of
from tests.state.setups.rows import ROWS, seeded, squared

CUT_AT = 4  # steps, of seven in an epoch
NAMES = [name for name, row in ROWS.items() if row.make.__module__ == in_place.__name__]


@pytest.mark.first(1)
@pytest.mark.parametrize("name", NAMES)
def test_a_resume_is_exact_or_says_why_not(name: str, tmp_path: Path) -> None:
    """In one process: whatever a set of strings has as its order, another one is made here as well."""
    row, lines = ROWS[name], list[str]()
    if row.requires:
        pytest.importorskip(row.requires)
    whole, cut = trainer_of(row, tmp_path / "whole", []), trainer_of(row, tmp_path / "cut", [])
    whole.run()
    cut.run(until=f"{CUT_AT} steps")
    resumed = trainer_of(row, tmp_path / "cut", lines)
    resumed.run()
    (line,) = [line for line in lines if line.startswith("resumed ")]
    if not row.is_exact:
        assert "not exact" in line and row.reports in line
        return
    weights = (each.resources["model"].parameters() for each in (whole, resumed))
    assert all(map(torch.equal, *weights)) and line.endswith("exact") and "not exact" not in line, line


def leaf_in_a_slot(run_dir: Path, lines: list[str]) -> Trainer:
    """Made by one node, trained on by the step function, handed on by another."""

    @node(writes="leaf")
    def make() -> torch.Tensor:
        return torch.ones(3, requires_grad=True)

    @node(writes="leaf")
    def hand_on(leaf: torch.Tensor) -> torch.Tensor:
        return leaf

    def step(model: Any, batch: Any, leaf: torch.Tensor) -> torch.Tensor:
        weight = 1 if leaf.grad is None else 1 + leaf.grad.abs().sum().item()
        return squared(model, batch) * weight + (batch.mean(0) * leaf).sum()

    graph = Graph.load("fit").set("checkpoint", every="never").set("finish", after="2 epochs")
    graph = graph.insert("make", make, after="begin_epoch").insert("hand_on", hand_on, after="train_batch")
    resources = seeded(lambda: torch.nn.Linear(3, 1), training_step=step)
    return Trainer(graph, run_dir=run_dir, display=None, notify=lines.append, **resources)


def test_a_leaf_in_a_slot_keeps_its_gradient(tmp_path: Path) -> None:
    lines: list[str] = []
    whole = leaf_in_a_slot(tmp_path / "whole", [])
    whole.run()
    leaf_in_a_slot(tmp_path / "cut", []).run(until=f"{CUT_AT} steps")
    resumed = leaf_in_a_slot(tmp_path / "cut", lines)
    resumed.run()
    assert resumed.digest() == whole.digest()
    assert any(line.startswith("resumed ") and line.endswith("unchanged: exact") for line in lines), lines
