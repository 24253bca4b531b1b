"""What a resume let through once: it was called exact and was not, or it was exact and was called otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from graphtrain import Graph, Trainer, node
from tests.state.setups.rows import seeded, squared

CUT_AT = 4  # steps, of seven in an epoch


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
