"""The graph `manual`: what is counted, several optimizers, precision, and what a validation must not do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphtrain import Graph, Trainer
from tests.gallery.procedures import manual


def trainer_of(graph: Graph, **more: Any) -> Trainer:
    return Trainer(graph, seed=0, display=None, notify=lambda line: None, **{**manual.resources(), **more})


def test_steps_are_those_of_the_optimizer_and_not_batches() -> None:
    trainer = trainer_of(manual.graph())
    trainer.run()
    assert trainer.read("next_batch.batches") == manual.EPOCHS * manual.BATCHES
    assert trainer.read("step.steps") == manual.EPOCHS * (manual.BATCHES // manual.WINDOW)
    assert [row["step"] for row in trainer.metrics if "root" in row] == [1, 2, 3, 4, 5, 6, 6]  # after it, a batch more


@pytest.mark.parametrize(("counted", "steps"), [(["first", "second"], 3), ("second", 2)])
def test_of_several_optimizers_those_are_counted_that_the_node_reads(counted: Any, steps: int) -> None:
    model = manual.resources()["model"]
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name in ("first", "second")}

    def training_step(model: Any, batch: torch.Tensor, first: Any, second: Any) -> None:
        manual.loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
        for optimizer in (first, second, second):
            optimizer.step()

    graph = manual.graph().set("step", reads={"optimizer": counted}).set("finish", after="1 batches")
    graph = graph.set("log", reads={"optimizer": counted})
    given = {**manual.resources(), **optimizers, "model": model, "training_step": training_step}
    for name in ("optimizer", "scheduler"):
        del given[name]
    trainer = Trainer(graph, display=None, notify=lambda line: None, **given)
    trainer.run()
    assert trainer.read("step.steps") == steps
