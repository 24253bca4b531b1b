"""Promises 1, 4 and 10: what nodes are given inside bodies, and by a counter of batches of one's own, over cuts too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, GraphError, Outcome, Trainer, node, progress
from tests.graph.corpus import small, tiny

ROUNDS = 3


def quiet(graph: Graph, run_dir: Path | None = None) -> Trainer:
    return Trainer(graph, seed=0, run_dir=run_dir, device="cpu", display=None, notify=lambda line: None)


# ---- what a body was set up with is in every checkpoint made inside it, since a resume sets its nodes up again


def body_of(collect: Any, leave: Any = "choice") -> Graph:
    nodes = {"enter": "choice", "collect": collect, "leave": leave}
    return tiny(nodes, "enter collect; collect: collect if again, leave; leave end", {"again": "collect.runs < 3"})


def around(measure: Any, body: Graph, total: Any = "choice") -> Graph:
    nodes = {"measure": measure, "before": "choice", "body": body, "total": total}
    edges = "measure before body total; total: end if finished, measure"
    return tiny(nodes, edges, {"finished": "measure.runs >= 3"})


@node(writes="level", name="b_measure")
class Measure:
    """Write another level in every round."""

    rounds: int = progress(0)

    def __call__(self) -> Any:
        self.rounds += 1
        return 10**self.rounds


@node(writes="collected", name="b_collect")
class Collect:
    """Add up the level that it was set up with."""

    summed: int = progress(0)

    def setup(self, level: int) -> None:
        self._level = level

    def __call__(self) -> int:
        self.summed += self._level
        return self.summed


@node(name="b_total")
class Total:
    """Add up what the body hands out."""

    total: int = progress(0)

    def __call__(self, collected: int) -> None:
        self.total += collected


@pytest.mark.parametrize("position", ["body/enter", "body/collect", "body/leave"])
def test_a_resume_inside_a_body_sets_it_up_with_what_it_was_set_up_with(position: str, tmp_path: Path) -> None:
    graph = around(Measure, replace(body_of(Collect), outputs=("collected",)), Total)
    assert graph.check() == []
    whole = quiet(graph)
    assert whole.run() is Outcome.FINISHED
    assert whole.progress["total"]["total"] == 3 * sum(10**number for number in range(1, ROUNDS + 1))
    cut = quiet(graph, tmp_path)
    while cut.progress["measure"]["rounds"] < 2 or cut.position != position:
        cut.advance()
    cut.save()
    resumed = quiet(graph, tmp_path)
    assert resumed.run() is Outcome.FINISHED
    assert resumed.digest() == whole.digest()


def test_a_resume_two_bodies_deep_sets_the_outer_body_up_with_what_it_was_set_up_with(tmp_path: Path) -> None:
    received: list[int | None] = []

    @node(name="b_take")
    class Take:
        """Note what it is set up with."""

        def setup(self, level: int) -> None:
            received.append(level)

        def __call__(self) -> None: ...

    graph = around(Measure, body_of(Take, body_of("choice")))
    assert graph.check() == []
    cut = quiet(graph, tmp_path)
    while cut.position != "body/leave/collect":
        cut.advance()
    cut.save()
    received.clear()
    assert quiet(graph, tmp_path).run() is Outcome.FINISHED
    assert received == [10, 100, 1000]


def test_a_body_that_was_set_up_with_what_cannot_be_saved_holds_no_save_point() -> None:
    @node(writes="stream", transient="stream", name="b_open")
    def open_stream() -> Iterator[int]:
        return iter(range(100))

    @node(name="b_draw")
    class Draw:
        """Draw from the stream that it was set up with."""

        drawn: int = progress(0)

        def setup(self, stream: Any) -> None:
            self._stream = stream

        def __call__(self) -> None:
            self.drawn += next(self._stream)

    trainer = quiet(around(open_stream, body_of(Draw)))
    assert set(trainer.progress) - set(trainer.save_points()) == {
        "before", "body", "body/enter", "body/collect", "body/leave",
    }  # fmt: skip


# ---- a kind of one's own may count batches by its own names


def drawing(**step_inputs: str) -> Graph:
    """A graph whose batches are counted by a kind without `epoch` and `batch_index`, unless it declares them."""

    @node(writes=("batch", "samples"), family="data", step_inputs=step_inputs, name="b_draw_batch")
    class DrawBatch:
        """Draw the next batch, round and round."""

        drawn: int = progress(0)
        is_done: bool = progress(False)

        def setup(self, train_data: Any) -> None:
            self._batches = list(train_data)

        def __call__(self) -> tuple[Any, int]:
            batch = self._batches[self.drawn % len(self._batches)]
            self.drawn += 1
            self.is_done = self.drawn == 2 * len(self._batches)
            return batch, len(batch)

        @property
        def rounds(self) -> int:
            return (self.drawn - 1) // 5

        @property
        def place(self) -> int:
            return (self.drawn - 1) % 5

    edges = "draw_batch train_batch step zero_grad; zero_grad: end if done, draw_batch"
    units = {"batches": "draw_batch.drawn", "steps": "step.steps"}
    return tiny({"draw_batch": DrawBatch}, edges, {"done": "draw_batch.is_done"}, units=units)


def asking_for(name: str, received: list[Any], default: str = "") -> Callable[..., Any]:
    names: dict[str, Any] = {"received": received}
    exec(  # noqa: S102 - a text of our own
        f"def step(model, batch, {name}{default}):\n    received.append({name})\n    return model(batch).mean()", names
    )
    step: Callable[..., Any] = names["step"]
    return step


EXPECTED = {
    "step": [*range(10)],
    "epoch": [0] * 5 + [1] * 5,
    "batch_index": [*range(5)] * 2,
    "batch_idx": [*range(5)] * 2,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_step_function_is_given_what_the_kind_counts_or_is_refused(name: str) -> None:
    received: list[Any] = []
    declared = drawing(epoch="rounds", batch_index="place", batch_idx="place")
    trainer = small(declared).trainer(training_step=asking_for(name, received))
    assert trainer.run() is Outcome.FINISHED and received == EXPECTED[name]
    if name == "step":
        return
    assert drawing().check() == []
    with pytest.raises(GraphError) as caught:
        small(drawing()).trainer(training_step=asking_for(name, received))
    assert f"`{name}`" in str(caught.value) and "train" in str(caught.value)
    assert [(problem.code, bool(problem.hint)) for problem in caught.value.problems] == [("G301", True)]
    received.clear()
    assert small(drawing()).trainer(training_step=asking_for(name, received, "=None")).run() is Outcome.FINISHED
    assert received == [None] * 10


def test_a_resource_of_that_name_comes_first() -> None:
    received: list[Any] = []
    asks = asking_for("epoch", received)
    trainer = small(drawing(epoch="rounds")).trainer(training_step=asks, epoch=7, train_data=[torch.ones(2, 2)])
    assert trainer.run() is Outcome.FINISHED and received == [7] * 2
