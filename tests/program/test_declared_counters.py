"""The clock reads what kinds declare of their counters, whatever the names: how far they count, and the last window."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, Trainer, node, progress


def trainer_of(graph: Graph) -> Trainer:
    model = nn.Linear(1, 1)
    return Trainer(
        graph,
        seed=0,
        device="cpu",
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.ones(2, 1)] * 5,
        training_step=lambda model, batch: model(batch).mean(),
    )


def window_of_own(last: str = "stepped", **declared: Any) -> Graph:
    """The graph fit with a window whose fields have other names than those of `accumulate`.

    Arguments:
        last: the field that holds the size of the last one; the engine knows `last_gathered`.
    """

    class Gather:
        """Gather gradients."""

        size: int = 3
        gathered: int = progress(0, counts="backward", **declared)

        def __call__(self) -> None:
            setattr(self, last, self.gathered)

    setattr(Gather, last, progress(0))
    Gather.__annotations__[last] = int

    guards = {
        "window_complete": "accumulate.gathered >= accumulate.size or next_batch.empty",
        "accumulation_reached": "accumulate.gathered > 0 and (window_complete or window_cut)",
        "finished": "(finish.due or next_batch.empty) and accumulate.gathered == 0",
    }
    graph = (
        Graph.load("fit").replace("accumulate", node(Gather)).set("train_batch", reads={"window": "accumulate.size"})
    )
    for name, text in guards.items():
        graph = graph.guard(name, text)
    return graph


@pytest.mark.parametrize(
    ("declared", "window", "described"),
    [({"target": "size"}, (1, 3), "window 1/3"), ({}, (1, 0), "window 1/?")],
)
def test_an_open_window(declared: dict[str, str], window: tuple[int, int], described: str) -> None:
    trainer = trainer_of(window_of_own(**declared))
    while trainer.position != "accumulate":
        trainer.advance()
    clock = trainer._session.compiled.run_clock
    assert clock.window() == window
    assert clock.describe().endswith(f"batch 1/5, {described}")
