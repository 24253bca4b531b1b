"""What prevents a checkpoint is told by name, once (12)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from graphtrain import CheckpointError, Graph, Outcome, Trainer, node, progress
from tests.world import small_fit, world


@node
class Turn:
    """Count, and call what a test has put here."""

    turns: int = progress(0)
    act: ClassVar[Callable[[int], object]] = lambda turns: None

    def __call__(self) -> None:
        self.turns += 1
        type(self).act(self.turns)


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


def around_turns(maker: Any, user: Any, turns: int, rounds: int = 2) -> Graph:
    """A slot is written, so many turns go by, each with a checkpoint that is due every five, and the slot is read."""
    graph = Graph.loads(
        f"""
        format = 1
        name = "around"
        start = "first"
        [nodes]
        first = {{ use = "choice" }}
        turn = {{ use = "choice" }}
        checkpoint = {{ every = "5 turns" }}
        last = {{ use = "choice" }}
        [guards]
        turned = "turn.turns >= {turns} * first.runs"
        done = "first.runs >= {rounds}"
        [edges]
        first = ["turn"]
        turn = ["checkpoint"]
        checkpoint = ["last if turned", "turn"]
        last = ["end if done", "first"]
        [clock]
        turns = "turn.turns"
        """
    )
    return graph.replace("turn", Turn).insert("make", maker, after="first").insert("use", user, before="last")


def trainer_of(graph: Graph, run_dir: Path, said: list[str]) -> Trainer:
    return Trainer(graph, seed=0, run_dir=run_dir, device="cpu", display=None, notify=said.append)


@pytest.mark.parametrize(
    ("maker", "user", "why"),
    [
        (make_thing, use_thing, "slots['thing'] cannot be saved"),
        (begin_stream, use_stream, "`stream` cannot be saved (declared transient)"),
    ],
)
def test_what_prevents_a_stop_is_told_once(
    maker: Any, user: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(turns: int) -> None:
        if turns == 10:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Turn, "act", staticmethod(act))
    said: list[str] = []
    trainer = trainer_of(around_turns(maker, user, 150).set("checkpoint", every="never"), tmp_path, said)
    assert trainer.run() is Outcome.STOPPED
    (line,) = [line for line in said if "no save point" in line]
    assert line.startswith(f"no save point in 100 transitions: {why}")
    assert trainer.position == "last", "the first position at which it is not needed any more"


def test_what_a_step_function_returns_and_cannot_be_saved_is_named(tmp_path: Path) -> None:
    graph = small_fit(validate_every="never").set("train_batch", writes={"hidden": "hidden"})

    def step(model: Any, batch: Any, hidden: Any = None) -> Any:
        return {"loss": model(batch[0]).square().mean(), "hidden": object()}

    with pytest.raises(CheckpointError, match=r"slots\['hidden'\] cannot be saved"):
        world(graph, data="list", training_step=step).trainer(tmp_path).run()
