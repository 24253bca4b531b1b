"""Cut at every save point, go on in another process: equal to the run never cut."""

from __future__ import annotations

import multiprocessing
import shutil
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Graph, Outcome, Trainer
from graphtrain.storage.run_directory import METRICS_FILE, read_status
from tests.engine.small_run import small_graph, small_trainer

# Every child is forked from a server that has imported torch and built nothing: no state of a run is left to lean on.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.engine.small_run", "torch._dynamo", "networkx", "transitions"])


def positions_to_the_end(trainer: Trainer) -> list[str]:
    visited = [trainer.advance()]
    while visited[-1] != "end":
        visited.append(trainer.advance())
    return visited


def go_on(run_dir: str, loader: str, workers: int) -> dict[str, Any]:
    """Resume a run directory and drive it to the end: what it visited, lost and became."""
    losses: list[float] = []
    trainer = small_trainer(run_dir, loader=loader, losses=losses, workers=workers)
    visited = positions_to_the_end(trainer)
    metrics = (Path(run_dir) / METRICS_FILE).read_text()
    return {"visited": visited, "losses": losses, "digest": trainer.digest(), "metrics": metrics}


def _all_cuts(loader: str, tmp_path: Path, workers: int = 0, stride: int = 1) -> int:
    whole = tmp_path / "whole"
    losses: list[float] = []
    trainer = small_trainer(whole, loader=loader, losses=losses, workers=workers)
    cuts, visited = [], []
    while not visited or visited[-1] != "end":
        visited.append(trainer.advance())
        path = trainer.save()
        assert path is not None
        cuts.append((len(visited), len(losses), path))
    assert visited == positions_to_the_end(small_trainer(loader=loader, workers=workers)), "saving must change nothing"
    metrics, digest = (whole / METRICS_FILE).read_text(), trainer.digest()
    jobs = []
    for index, (done, lost, path) in list(enumerate(cuts))[:-1:stride]:
        run_dir = tmp_path / f"cut-{index}"
        (run_dir / "checkpoints").mkdir(parents=True)
        shutil.move(path, run_dir / "checkpoints" / path.name)
        (run_dir / METRICS_FILE).write_text(metrics)  # rows of the lost time after the cut, to be cut back
        jobs.append((run_dir, done, lost))
    with ProcessPoolExecutor(2, mp_context=_CONTEXT, max_tasks_per_child=1) as pool:
        results = list(pool.map(go_on, [str(run_dir) for run_dir, _, _ in jobs], repeat(loader), repeat(workers)))
    for (_, done, lost), result in zip(jobs, results, strict=True):
        where = f"cut after {done} transitions, before {visited[done - 1]}"
        assert result["visited"] == visited[done:], where
        assert result["losses"] == losses[lost:], where
        assert result["metrics"] == metrics, where
        assert result["digest"] == digest, where
    return len(jobs)


def test_every_cut_is_exact(tmp_path: Path) -> None:
    assert _all_cuts("Loader", tmp_path) > 100


@pytest.mark.parametrize("loader", ["DataLoader", "own generator", "list", "unsized"])
def test_every_fifth_cut_is_exact(loader: str, tmp_path: Path) -> None:
    assert _all_cuts(loader, tmp_path, stride=5) > 20


@pytest.mark.sweep
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loader", ["Loader", "DataLoader", "own generator", "list", "unsized"])
def test_every_cut_of_every_loader_is_exact(loader: str, workers: int, tmp_path: Path) -> None:
    assert _all_cuts(loader, tmp_path, workers) > 100


@pytest.mark.parametrize("loader", ["Loader", "DataLoader"])
def test_cuts_are_exact_with_workers(loader: str, tmp_path: Path) -> None:
    assert _all_cuts(loader, tmp_path, workers=2, stride=23) > 3


def test_a_cut_before_the_end_of_validation_keeps_what_was_pending(tmp_path: Path) -> None:
    """The save points include those inside a window, inside validation, and between a step and what it makes due."""
    trainer = small_trainer(tmp_path)
    seen = set()
    for _ in range(60):
        position = trainer.advance()
        seen.add((position, bool(trainer.progress["accumulate"]["count"])))
    assert {("validate/eval_batch", False), ("train_batch", True), ("validate", True), ("zero_grad", True)} <= seen


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


def test_an_old_end_that_cut_a_window_is_said_when_it_is_raised(tmp_path: Path) -> None:
    for ending, cut in (("3 batches", True), ("1 epochs", False), ("4 batches", False)):
        said: list[str] = []
        small_trainer(tmp_path / ending, graph=small_graph(ending=ending)).run()
        longer = small_trainer(tmp_path / ending)
        longer._say = said.append
        longer.run()
        assert any("the former end cut a window of `accumulate` short (1 of 2)" in line for line in said) == cut


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
    with pytest.raises(ValueError, match="stands before the node `zero_grad`"):
        small_trainer(tmp_path, graph=renamed).run()
