"""What the body of a node writes is its own: the next visit, and what it hands out, know nothing of the last."""

from __future__ import annotations

from typing import Any

from graphtrain import Edge, Graph, Node, Trainer, progress
from tests.checks.corpus import undeclared


class Count:
    """Count its visits, in a slot."""

    visits: int = progress(0)

    def __call__(self) -> int:
        self.visits += 1
        return self.visits


def _one() -> float:
    return 1.0


def test_what_an_earlier_visit_of_a_body_wrote_is_forgotten() -> None:
    inside: list[Any] = []
    outside: list[Any] = []

    def look_inside(score: Any = None) -> None:
        inside.append(score)

    def look_outside(score: Any = None) -> None:
        outside.append(score)

    kinds = {
        "look_inside": undeclared("look_inside", look_inside),
        "look_outside": undeclared("look_outside", look_outside),
        "write": undeclared("write", _one, writes="score"),
        "count": undeclared("count", Count, writes="visits"),
    }
    nodes = {name: Node(name, name, kind=kind) for name, kind in kinds.items()}
    body = Graph(
        "body",
        "look_inside",
        {name: nodes[name] for name in ("look_inside", "write")},
        {"look_inside": (Edge("end", "again"), Edge("write")), "write": (Edge("end"),)},
        {"again": "visits > 1"},
        outputs=("score",),
    )
    graph = Graph(
        "outer",
        "count",
        {
            "count": nodes["count"],
            "body": Node("body", "nested", body=body),
            "look_outside": nodes["look_outside"],
        },
        {
            "count": (Edge("body"),),
            "body": (Edge("look_outside"),),
            "look_outside": (Edge("end", "done"), Edge("count")),
        },
        {"done": "visits >= 3"},
    )
    trainer = Trainer(graph, device="cpu", notify=lambda line: None)
    trainer.run()
    assert inside == [None, None, None]
    assert outside == [1.0, None, None]
