"""Effects as the engine counts them: on the optimizer of a slot, and where a visit reports that it ran backward."""

from __future__ import annotations

from typing import Any

import torch

from graphtrain import Edge, Graph, Node, Trainer
from tests.checks.corpus import undeclared


def weight() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)


def counts_of(visit: Any, **declared: Any) -> list[tuple[int, int]]:
    """The counts of `optimizer` and `inner_optimizer` after each of three visits of a node."""
    kind = undeclared("visit", visit, **declared)
    nodes = {
        "visit": Node("visit", "visit", kind=kind),
        "outer": Node("outer", "accumulate", reads={"optimizer": "optimizer"}),
        "inner": Node("inner", "accumulate", reads={"optimizer": "inner_optimizer"}),
    }
    edges = {"visit": (Edge("outer"),), "outer": (Edge("inner"),), "inner": (Edge("end", "done"), Edge("visit"))}
    allow = ("G401", "G403", "G404", "G405", "G407", "G408", "G410", "G411")
    graph = Graph("counts", "visit", nodes, edges, {"done": "visit.runs >= 3"}, allow=allow)
    resources = {"optimizer": weight(), "inner_optimizer": weight()}
    trainer = Trainer(graph, seed=0, device="cpu", notify=lambda line: None, **resources)
    counts = []
    while trainer.position != "end":
        if trainer.advance() in ("visit", "end"):
            counts.append((trainer.read("outer.count"), trainer.read("inner.count")))
    return counts


def test_an_effect_acts_on_the_optimizer_of_its_slot() -> None:
    def visit() -> None: ...

    effects = ("backward", "backward inner_optimizer", "zero_grad inner_optimizer")
    assert counts_of(visit, effects=effects) == [(1, 0), (2, 0), (3, 0)]
    assert counts_of(visit, effects=("zero_grad", "backward inner_optimizer")) == [(0, 1), (0, 2), (0, 3)]
