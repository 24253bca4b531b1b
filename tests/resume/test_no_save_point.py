"""A checkpoint that can never be made is an error after a while, not a wish that is carried along forever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphtrain import CheckpointError, Graph, Outcome, Trainer, node, progress

MOST_TRANSITIONS = 10_000
ROUNDS = 20_000  # of two transitions each: without a limit the run ends by itself


def ring() -> Graph:
    """A stream that cannot be saved is read in every round, so that no position is a save point."""

    @node(writes="stream", transient="stream")
    def open_stream() -> Iterator[int]:
        return iter([1, 2])

    @node
    class Turn:
        """Read the stream, and count."""

        turns: int = progress(0)

        def __call__(self, stream: Any) -> None:
            self.turns += 1

    return Graph.loads(
        f"""
        format = 1
        name = "ring"
        start = "open_stream"
        [nodes]
        open_stream = {{}}
        turn = {{}}
        checkpoint = {{ every = "5 turns" }}
        [guards]
        finished = "turn.turns >= {ROUNDS}"
        [edges]
        open_stream = ["turn"]
        turn = ["checkpoint"]
        checkpoint = ["end if finished", "turn"]
        [clock]
        turns = "turn.turns"
        """
    )


def make_trainer(graph: Graph, run_dir: Path) -> Trainer:
    return Trainer(graph, run_dir, device="cpu", display=None, notify=lambda line: None)


def test_a_checkpoint_that_is_never_possible_is_an_error_that_names_what_is_alive(tmp_path: Path) -> None:
    graph = ring()
    assert [problem.code for problem in graph.check()] == ["G602"], "which is a warning, so the run begins"
    trainer = make_trainer(graph, tmp_path)
    with pytest.raises(CheckpointError, match=rf"no save point was reached in {MOST_TRANSITIONS} .*alive: stream"):
        trainer.run()
    assert trainer.progress["turn"]["turns"] == 5 + MOST_TRANSITIONS // 2, "asked for in the fifth round"
    assert not list((tmp_path / "checkpoints").iterdir())


def test_checkpoints_that_each_come_late_do_not_add_up(tmp_path: Path) -> None:
    rounds, waited = 6, MOST_TRANSITIONS // 5

    @node(writes="stream", transient="stream")
    def open_stream() -> Iterator[int]:
        return iter([1, 2])

    @node
    def close_stream(stream: Any) -> None: ...

    graph = Graph.loads(
        f"""
        format = 1
        name = "late"
        start = "open_stream"
        [nodes]
        open_stream = {{}}
        checkpoint = {{ every = "1 rounds", keep = 100 }}
        wait = {{ use = "choice" }}
        close_stream = {{}}
        [guards]
        waited = "wait.runs % {waited} == 0"
        finished = "open_stream.runs >= {rounds}"
        [edges]
        open_stream = ["checkpoint"]
        checkpoint = ["wait"]
        wait = ["close_stream if waited", "wait"]
        close_stream = ["end if finished", "open_stream"]
        [clock]
        rounds = "open_stream.runs"
        """
    )
    trainer = make_trainer(graph, tmp_path)
    assert trainer.run() is Outcome.FINISHED
    assert rounds * waited > MOST_TRANSITIONS
    assert len(list((tmp_path / "checkpoints").iterdir())) == rounds
