"""A kind of one's own may count batches by its own names: a step function gets right values, or is refused at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, GraphError, Outcome, Trainer, node, progress

BATCHES = 5
ROUNDS = 2

DRAWING = """
format = 1
name = "drawing"
start = "draw_batch"

[nodes]
draw_batch = {}
train_batch = {}
step = {}
zero_grad = {}

[guards]
done = "draw_batch.is_done"

[edges]
draw_batch = ["train_batch"]
train_batch = ["step"]
step = ["zero_grad"]
zero_grad = ["end if done", "draw_batch"]

[clock]
batches = "draw_batch.drawn"
steps = "step.steps"
"""


def drawing(**step_inputs: str) -> Graph:
    """A graph whose batches are counted by a kind without `epoch` and `batch_index`, unless it declares them."""

    @node(writes=("batch", "samples"), family="data", step_inputs=step_inputs)
    class DrawBatch:
        """Draw the next batch, round and round."""

        drawn: int = progress(0)
        is_done: bool = progress(False)

        def setup(self, train_data: Any) -> None:
            self._batches = list(train_data)

        def __call__(self) -> tuple[Any, int]:
            batch = self._batches[self.drawn % len(self._batches)]
            self.drawn += 1
            self.is_done = self.drawn == ROUNDS * len(self._batches)
            return batch, len(batch)

        @property
        def rounds(self) -> int:
            return (self.drawn - 1) // BATCHES

        @property
        def place(self) -> int:
            return (self.drawn - 1) % BATCHES

    return Graph.loads(DRAWING)


def make_trainer(graph: Graph, training_step: Callable[..., Any]) -> Trainer:
    model = nn.Linear(1, 1)
    return Trainer(
        graph,
        seed=0,
        device="cpu",
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.ones(2, 1)] * BATCHES,
        training_step=training_step,
    )


def step_function_asking_for(name: str, received: list[int]) -> Callable[..., Any]:
    def step(model: nn.Module, batch: Any, step: int) -> Any:
        received.append(step)
        return model(batch).mean()

    def epoch(model: nn.Module, batch: Any, epoch: int) -> Any:
        received.append(epoch)
        return model(batch).mean()

    def batch_index(model: nn.Module, batch: Any, batch_index: int) -> Any:
        received.append(batch_index)
        return model(batch).mean()

    def batch_idx(model: nn.Module, batch: Any, batch_idx: int) -> Any:
        received.append(batch_idx)
        return model(batch).mean()

    return {"step": step, "epoch": epoch, "batch_index": batch_index, "batch_idx": batch_idx}[name]


def test_the_graph_is_sound() -> None:
    assert drawing().check() == []


def test_a_step_function_may_ask_for_what_the_graph_counts() -> None:
    received: list[int] = []
    trainer = make_trainer(drawing(), step_function_asking_for("step", received))
    assert trainer.run() is Outcome.FINISHED
    assert received == list(range(ROUNDS * BATCHES))


EXPECTED = {
    "epoch": [number for number in range(ROUNDS) for _ in range(BATCHES)],
    "batch_index": [*range(BATCHES)] * ROUNDS,
    "batch_idx": [*range(BATCHES)] * ROUNDS,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_the_graph_does_not_count_is_refused_before_the_first_batch(name: str) -> None:
    received: list[int] = []
    graph = drawing()
    try:
        trainer = make_trainer(graph, step_function_asking_for(name, received))
    except GraphError as error:
        assert f"`{name}`" in str(error), "it names what is asked for"
        assert "training_step" in str(error) or "train_batch" in str(error), "and who asks"
        assert all(problem.hint for problem in error.problems), "and what to do"
        assert [problem.code for problem in error.problems] == ["G301"]
        return
    assert trainer.run() is Outcome.FINISHED
    assert received == EXPECTED[name]


@pytest.mark.parametrize("name", ["epoch", "batch_index"])
def test_a_default_stands_for_what_the_graph_does_not_count(name: str) -> None:
    received: list[int | None] = []

    def asks_for_epoch(model: nn.Module, batch: Any, epoch: int | None = None) -> Any:
        received.append(epoch)
        return model(batch).mean()

    def asks_for_batch_index(model: nn.Module, batch: Any, batch_index: int | None = None) -> Any:
        received.append(batch_index)
        return model(batch).mean()

    training_step = {"epoch": asks_for_epoch, "batch_index": asks_for_batch_index}[name]
    assert make_trainer(drawing(), training_step).run() is Outcome.FINISHED
    assert received in ([None] * (ROUNDS * BATCHES), EXPECTED[name])


@pytest.mark.parametrize("name", EXPECTED)
def test_a_kind_declares_what_a_step_function_may_ask_for(name: str) -> None:
    received: list[int] = []
    graph = drawing(epoch="rounds", batch_index="place", batch_idx="place")
    assert make_trainer(graph, step_function_asking_for(name, received)).run() is Outcome.FINISHED
    assert received == EXPECTED[name]


def test_a_resource_of_that_name_comes_first() -> None:
    received: list[int] = []

    def asks(model: nn.Module, batch: Any, epoch: int) -> Any:
        received.append(epoch)
        return model(batch).mean()

    model = nn.Linear(1, 1)
    trainer = Trainer(
        drawing(epoch="rounds"),
        device="cpu",
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.ones(2, 1)],
        training_step=asks,
        epoch=7,
    )
    assert trainer.run() is Outcome.FINISHED
    assert received == [7] * ROUNDS
