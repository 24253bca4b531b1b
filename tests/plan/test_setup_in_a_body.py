"""What a body was set up with is in every checkpoint made inside it, since a resume sets its nodes up again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Graph, Outcome, Trainer, node, progress

ROUNDS = 3

BODY = """
format = 1
name = "body"
start = "enter"

[nodes]
enter = { use = "choice" }
collect = {}
leave = { use = "choice" }

[guards]
again = "collect.runs < 3"

[edges]
enter = ["collect"]
collect = ["collect if again", "leave"]
leave = ["end"]
"""

AROUND = """
format = 1
name = "around"
start = "measure"

[nodes]
measure = {}
before = { use = "choice" }
body = { use = "choice" }
total = {}

[guards]
finished = "measure.rounds >= 3"

[edges]
measure = ["before"]
before = ["body"]
body = ["total"]
total = ["end if finished", "measure"]
"""


def graph_set_up_with_a_slot() -> Graph:
    """`level` is written around the body and read by nothing but the `setup` of a node in it."""

    @node(writes="level")
    class Measure:
        """Write another level in every round."""

        rounds: int = progress(0)

        def __call__(self) -> int:
            self.rounds += 1
            return 10**self.rounds

    @node(writes="collected")
    class Collect:
        """Add up the level that it was set up with."""

        summed: int = progress(0)

        def setup(self, level: int) -> None:
            self._level = level

        def __call__(self) -> int:
            self.summed += self._level
            return self.summed

    @node
    class Total:
        """Add up what the body hands out."""

        total: int = progress(0)

        def __call__(self, collected: int) -> None:
            self.total += collected

    body = replace(Graph.loads(BODY), outputs=("collected",))
    graph = Graph.loads(AROUND).set("body", graph=body)
    assert graph.check() == []
    return graph


def make_trainer(graph: Graph, run_dir: Path | None = None) -> Trainer:
    return Trainer(graph, seed=0, run_dir=run_dir, device="cpu", display=None, notify=lambda line: None)


@pytest.mark.parametrize("position", ["body/enter", "body/collect", "body/leave"])
def test_a_resume_inside_a_body_sets_it_up_with_what_it_was_set_up_with(position: str, tmp_path: Path) -> None:
    graph = graph_set_up_with_a_slot()
    whole = make_trainer(graph)
    assert whole.run() is Outcome.FINISHED
    assert whole.progress["total"]["total"] == 3 * sum(10**number for number in range(1, ROUNDS + 1))

    cut = make_trainer(graph, tmp_path)
    while cut.progress["measure"]["rounds"] < 2 or cut.position != position:
        cut.advance()
    assert cut.save() is not None and cut.position == position
    resumed = make_trainer(graph, tmp_path)
    assert resumed.run() is Outcome.FINISHED
    assert resumed.progress["total"]["total"] == whole.progress["total"]["total"]
    assert resumed.digest() == whole.digest()


def test_a_resume_two_bodies_deep_sets_the_outer_body_up_with_what_it_was_set_up_with(tmp_path: Path) -> None:
    received: list[int | None] = []

    @node(writes="level")
    def measure() -> int:
        return 5

    @node
    class Take:
        """Note what it is set up with."""

        def setup(self, level: int) -> None:
            received.append(level)

        def __call__(self) -> None: ...

    inner = Graph.loads(BODY).replace("collect", "choice")
    body = Graph.loads(BODY).replace("collect", Take).replace("leave", "choice").set("leave", graph=inner)
    graph = Graph.loads(AROUND).replace("measure", measure).replace("total", "choice").set("body", graph=body)
    graph = graph.guard("finished", "measure.runs >= 3")
    assert graph.check() == []
    cut = make_trainer(graph, tmp_path)
    while cut.position != "body/leave/collect":
        cut.advance()
    assert cut.save() is not None and cut.position == "body/leave/collect"
    received.clear()
    resumed = make_trainer(graph, tmp_path)
    assert resumed.run() is Outcome.FINISHED
    assert received == [5] * ROUNDS


def test_a_body_that_was_set_up_with_what_cannot_be_saved_holds_no_save_point() -> None:
    @node(writes="stream", transient="stream")
    def open_stream() -> Iterator[int]:
        return iter(range(100))

    @node
    class Draw:
        """Draw from the stream that it was set up with."""

        drawn: int = progress(0)

        def setup(self, stream: Any) -> None:
            self._stream = stream

        def __call__(self) -> None:
            self.drawn += next(self._stream)

    body = Graph.loads(BODY).replace("collect", "draw")
    graph = Graph.loads(AROUND).replace("measure", "open_stream").replace("total", "choice")
    graph = graph.guard("finished", "measure.runs >= 3").set("body", graph=body)
    trainer = make_trainer(graph)
    assert set(trainer.progress) - set(trainer.save_points()) == {
        "before",
        "body",
        "body/enter",
        "body/collect",
        "body/leave",
    }
