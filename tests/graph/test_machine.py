"""Promises 1 and 3: every visit of a run is the one that the graph's text says; random graphs: test_soundness.py."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from graphtrain import DataError, Graph, Trainer
from tests.graph.machine import Machine
from tests.world import World, small_fit, world


def visits(trainer: Trainer, idle: Collection[str] = ()) -> list[str]:
    """The nodes that the engine visits up to the end, each compared with the machine."""
    machine = Machine(trainer.graph, trainer.read, idle)
    found: list[str] = []
    while trainer.position != "end":
        position = trainer.position
        assert machine.position == position, found[-10:]
        runs, is_at_the_end = trainer.read(f"{position}.runs"), False
        try:
            trainer.advance()
        except DataError:  # to come there without a batch is an error
            is_at_the_end = True
        machine.advance()
        assert trainer.read(f"{position}.runs") - runs <= 1
        found.append(position)
        if is_at_the_end:
            assert machine.position == "end" and trainer.read("next_batch.empty")
            return found
    assert machine.position == trainer.position
    return found


WORLDS: dict[str, World] = {
    "everything": world(),
    "windows of three": world(small_fit(accumulate=3, validate_every="2 batches", epochs=2.5, save_every="3 batches")),
    "carried windows": world(small_fit(accumulate=4, validate_every="2 epoch_batches", overlays="carry")),
    "dropped windows": world(small_fit(accumulate=4, validate_every=["2 steps", "7 samples"], overlays="drop")),
    "no length": world(data="unsized"),
    "a limit": world(small_fit().set("next_batch", limit=2).set("validate/next_batch", limit=1)),
    "never": world(small_fit(validate_every="never", epochs=1, steps=5)),
    "no batch": world(data=lambda: []),
}


@pytest.mark.first(2)
@pytest.mark.parametrize("name", WORLDS)
def test_a_training_goes_where_its_graph_says(name: str) -> None:
    found = visits(WORLDS[name].trainer(), idle={"exchange"})
    assert {"decide", "finish"} <= set(found)
    trains, validates = name != "no batch", name not in ("no batch", "never")
    assert ({"train_batch", "clip", "step", "zero_grad", "schedule", "log"} <= set(found)) == trains
    assert ({"validate", "validate/eval_batch", "validate/end_evaluation"} <= set(found)) == validates


@pytest.mark.full
def test_what_has_nothing_to_do_is_left_out() -> None:
    made = world(small_fit(clip=float("inf"))).but(val_data=lambda made: None, scheduler=lambda made: None)
    found = visits(made.trainer(), idle={"exchange", "clip"})
    assert "step" in found and not {"clip", "schedule", "validate", "validate/eval_batch"} & set(found)


def test_an_evaluation_goes_where_its_graph_says() -> None:
    made = world(Graph.load("evaluate"))
    each = ["next_batch", "eval_batch"] * 3
    assert visits(made.trainer()) == ["begin_evaluation", *each, "end_evaluation"]
    empty = made.but(val_data=lambda made: [])
    assert visits(empty.trainer()) == ["begin_evaluation", "next_batch", "end_evaluation"]
