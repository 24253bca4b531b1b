"""Resuming: what is pending at a save point, endings that are raised, runs in pieces. The sweep is in tests/resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphtrain import Graph, Outcome
from graphtrain.storage.run_directory import METRICS_FILE, read_status
from tests.program.small_run import small_graph, small_trainer


@pytest.mark.full
def test_a_cut_before_the_end_of_validation_keeps_what_was_pending(tmp_path: Path) -> None:
    """The save points include those inside a window, inside validation, and between a step and what it makes due."""
    trainer = small_trainer(tmp_path)
    seen = set()
    for _ in range(60):
        position = trainer.advance()
        seen.add((position, bool(trainer.progress["accumulate"]["count"])))
    assert {("validate/eval_batch", False), ("train_batch", True), ("validate", True), ("zero_grad", True)} <= seen


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("ending", ["1 epochs", "4 batches", "2 steps"])
def test_a_finished_run_whose_ending_is_raised_equals_the_longer_run(ending: str, tmp_path: Path) -> None:
    losses: list[float] = []
    shorter = small_graph(ending=ending)
    assert small_trainer(tmp_path, graph=shorter, losses=losses).run() is Outcome.FINISHED
    assert small_trainer(tmp_path, graph=shorter).run() is Outcome.ALREADY_FINISHED
    assert small_trainer(tmp_path, graph=small_graph(), losses=losses).run() is Outcome.FINISHED
    reference: list[float] = []
    small_trainer(tmp_path / "whole", graph=small_graph(), losses=reference).run()
    assert losses == reference
    assert read_status(tmp_path)["digest"] == read_status(tmp_path / "whole")["digest"]
    assert (tmp_path / METRICS_FILE).read_text() == (tmp_path / "whole" / METRICS_FILE).read_text()


def test_running_in_pieces_equals_running_at_once() -> None:
    at_once = small_trainer()
    at_once.run()
    expected = at_once.digest()
    in_pieces = small_trainer()
    outcomes = [in_pieces.run(until=f"{batches} batches") for batches in (1, 2, 5, 5, 7)]
    assert outcomes == [Outcome.REACHED] * 5
    assert in_pieces.progress["next_batch"]["batches"] == 7
    assert in_pieces.run() is Outcome.FINISHED
    assert in_pieces.digest() == expected
    assert in_pieces.metrics == at_once.metrics


def test_a_renamed_node_at_the_position_is_an_error_that_names_it(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path)
    while trainer.advance() != "zero_grad":
        pass
    trainer.save()
    renamed: Graph = small_graph().rename("zero_grad", "clear")
    with pytest.raises(ValueError, match="is at the node `zero_grad`"):
        small_trainer(tmp_path, graph=renamed).run()
