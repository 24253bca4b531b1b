"""Effects as the engine counts them: on the optimizer of a slot, and where a visit reports that it ran backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphtrain import Edge, Graph, Node, Trainer, UsageError
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


def test_a_backward_pass_counts_where_the_visit_reports_it() -> None:
    visits = []

    def visit() -> bool:
        visits.append(1)
        return len(visits) != 2

    assert counts_of(visit, effects="backward?") == [(1, 0), (1, 0), (2, 0)]


@pytest.mark.parametrize("writes", [("loss",), ("loss", "norm")])
def test_what_a_visit_reports_comes_behind_what_it_writes(writes: tuple[str, ...]) -> None:
    def visit() -> tuple[Any, ...]:
        return (*range(len(writes)), True)

    assert counts_of(visit, effects="backward?", writes=writes)[-1] == (3, 0)


@pytest.mark.parametrize(
    ("writes", "returned", "message"),
    [
        (
            (),
            None,
            "visit: a kind with the effect `backward\\?` returns, last, whether it did; got 1 values, .* NoneType",
        ),
        (("loss",), 0.5, "got 1 values, the last of type float\n.*return 1 values that it writes, and True or False"),
        (("loss",), (0.5, 1), "got 2 values, the last of type int"),
        (("loss",), (0.5, 0.5, True), "got 3 values, the last of type bool"),
    ],
)
def test_a_visit_that_does_not_report_is_an_error(writes: tuple[str, ...], returned: Any, message: str) -> None:
    def visit() -> Any:
        return returned

    with pytest.raises(UsageError, match=message):
        counts_of(visit, effects="backward?", writes=writes)
