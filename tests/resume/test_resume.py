"""Resuming: what is pending at a save point, endings that are raised, runs in pieces. The sweep is in tests/resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphtrain import Outcome
from graphtrain.storage.run_directory import METRICS_FILE, read_status
from tests.program.small_run import small_graph, small_trainer


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
