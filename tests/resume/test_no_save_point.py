"""A checkpoint that can never be made is an error after a while, not a wish that is carried along forever."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from graphtrain import CheckpointError, Graph, Outcome, Trainer, node, progress
from graphtrain.errors import SaveFailedError

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
    return Trainer(graph, seed=0, run_dir=run_dir, device="cpu", display=None, notify=lambda line: None)


def trainer_of_a_line(graph: Graph, run_dir: Path, said: list[str], **options: Any) -> Trainer:
    """A trainer of a model of two weights; by default its loss is the mean square of what it returns."""
    model = torch.nn.Linear(2, 1)
    supplied = {"training_step": lambda model, batch: model(batch).square().mean(), **options}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(
        graph, run_dir=run_dir, device="cpu", display=None, notify=said.append, model=model, optimizer=optimizer,
        **supplied,
    )  # fmt: skip


def test_a_checkpoint_that_is_never_possible_is_an_error_that_names_what_is_alive(tmp_path: Path) -> None:
    graph = ring()
    assert [problem.code for problem in graph.check()] == ["G602"], "which is a warning, so the run begins"
    trainer = make_trainer(graph, tmp_path)
    with pytest.raises(CheckpointError, match=rf"no save point was reached in {MOST_TRANSITIONS} .*alive: stream"):
        trainer.run()
    assert trainer.progress["turn"]["turns"] == 5 + MOST_TRANSITIONS // 2, "asked for in the fifth round"
    assert trainer.position == "checkpoint", "and not one attempt more"
    assert not list((tmp_path / "checkpoints").iterdir())


# ---- what a person is told after a while


BODY_TURNS, PATIENCE = 150, 100


@node(writes="thing")
def make_thing() -> object:
    """Write a slot that turns out not to be saveable."""
    return object()


@node
def use_thing(thing: Any) -> None:
    """Read it."""


@node(writes="stream", transient="stream")
def begin_stream() -> Iterator[int]:
    """Write a slot that is declared transient."""
    return iter([1])


@node
def use_stream(stream: Any) -> None:
    """Read it."""


@node
class Turn:
    """Count, and call what a test has put here."""

    turns: int = progress(0)
    calls: ClassVar[dict[int, Callable[[], Any]]] = {}

    def __call__(self) -> None:
        self.turns += 1
        self.calls.pop(self.turns, lambda: None)()


@pytest.fixture(autouse=True)
def no_calls() -> Iterator[None]:
    """No call of another test is left."""
    yield
    vars(Turn)["calls"].clear()


def around_a_body(maker: Any, user: Any) -> Graph:
    """A slot is written before a body, and read after it."""
    body = Graph.loads(
        f"""
        format = 1
        name = "turns"
        start = "turn"
        [nodes]
        turn = {{ use = "choice" }}
        wait = {{ use = "choice" }}
        [guards]
        done = "turn.turns >= {BODY_TURNS}"
        [edges]
        turn = ["wait"]
        wait = ["end if done", "turn"]
        [clock]
        turns = "turn.turns"
        """
    )
    graph = Graph.loads(
        """
        format = 1
        name = "around"
        start = "first"
        [nodes]
        first = { use = "choice" }
        last = { use = "choice" }
        [guards]
        done = "first.runs >= 2"
        [edges]
        first = ["last"]
        last = ["end if done", "first"]
        """
    )
    return (
        graph.insert("make", maker, after="first")
        .insert("inner", graph=body.replace("turn", Turn), after="make")
        .insert("use", user, after="inner")
    )


def run_and_stop(graph: Graph, run_dir: Path, at_turn: int) -> tuple[list[str], Trainer]:
    """What a run said that a signal asked to stop."""
    said: list[str] = []
    trainer = Trainer(graph, seed=0, run_dir=run_dir, device="cpu", display=None, notify=said.append)
    vars(Turn)["calls"][at_turn] = lambda: os.kill(os.getpid(), signal.SIGTERM)
    assert trainer.run() is Outcome.STOPPED
    return [line for line in said if "no save point" in line], trainer


@pytest.mark.full
@pytest.mark.parametrize(
    ("maker", "user", "slot", "why"),
    [
        (make_thing, use_thing, "thing", "a builtins.object cannot be encoded"),
        (begin_stream, use_stream, "stream", "declared transient"),
    ],
)
def test_what_prevents_a_stop_is_told_once(maker: Any, user: Any, slot: str, why: str, tmp_path: Path) -> None:
    said, trainer = run_and_stop(around_a_body(maker, user), tmp_path, at_turn=10)
    assert said == [
        f"no save point in {PATIENCE} transitions: `{slot}` cannot be saved ({why}); training on to the next save point"
    ]
    assert trainer.position == "last", "the first position at which it is not needed any more"


def test_what_a_step_function_returns_and_cannot_be_saved_is_named_with_what_can(tmp_path: Path) -> None:
    trainer = trainer_of_a_line(
        Graph.load("fit").set("train_batch", writes={"hidden": "hidden"}).set("finish", after="1 epochs"),
        tmp_path,
        [],
        train_data=[torch.ones(2, 2)],
        training_step=lambda model, batch, hidden=None: {"loss": model(batch).square().mean(), "hidden": object()},
    )
    with pytest.raises(SaveFailedError, match=r"`hidden`: a builtins.object cannot be encoded") as raised:
        trainer.run()
    assert raised.value.hint == (
        "save numbers, text, lists, dicts, tensors or arrays from which it can be recreated; or write it again "
        "before it is read, so that it is not alive there"
    )
