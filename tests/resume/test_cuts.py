"""A run that is cut anywhere and resumed is the run never cut, whatever gives its batches (promise 10).

Rows of other kinds are in `test_table.py`.
"""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path

import pytest

from graphtrain import Outcome
from tests.shipped import ROOT
from tests.world import DATA, SAMPLES, WITHOUT_LENGTH, assert_exact, in_a_process, rows_of, small_fit, world

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata asks torch for it
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than there may be cores
]
KINDS = [kind for kind in DATA if kind != "StatefulDataLoader" or importlib.util.find_spec("torchdata")]
WITH_WORKERS = KINDS[:6]
CUTS = 149  # of one run: as many as it has transitions but the last; without a length it has ten less
FIRST = ("list", "with state", "Loader", "shuffle buffer")


@pytest.mark.second(4)
@pytest.mark.first(2)
@pytest.mark.parametrize("kind", sorted(KINDS, key=lambda kind: kind not in FIRST))
def test_some_cuts_are_exact(kind: str, tmp_path: Path) -> None:
    assert_exact(world(data=kind, graph=small_fit(kind, epochs=1)), tmp_path, at=1)


@pytest.mark.sweep
@pytest.mark.parametrize(("kind", "workers"), [*((kind, 2) for kind in WITH_WORKERS), ("Loader", 3)])
def test_some_cuts_with_workers_are_exact(kind: str, workers: int, tmp_path: Path) -> None:
    assert_exact(world(data=kind, workers=workers), tmp_path, at=4)


@pytest.mark.sweep
@pytest.mark.parametrize(("workers", "then"), [(0, 2), (2, 0), (2, 3)])
def test_cuts_are_exact_with_another_number_of_workers(workers: int, then: int, tmp_path: Path) -> None:
    assert_exact(world(workers=workers), tmp_path, at=4, resumed=world(workers=then))


@pytest.mark.sweep
@pytest.mark.parametrize("kind", KINDS)
def test_every_cut_is_exact(kind: str, tmp_path: Path) -> None:
    doubts = "before its second batch, so nothing shows whether" if kind == "with state" else None
    whole = assert_exact(world(data=kind), tmp_path, at=0, doubts=doubts)
    assert len(whole.visited) - 1 == CUTS - 10 * (kind in WITHOUT_LENGTH)


def test_readme_and_the_comparison_tell_how_many_cuts_the_sweep_makes() -> None:
    cuts = f"{len(DATA) * CUTS - 10 * len(WITHOUT_LENGTH):,}"
    for page in ("README.md", "docs/comparison.md"):
        assert f"{cuts} of {cuts} cuts" in (ROOT / page).read_text(encoding="utf-8")


def test_the_run_has_everything_that_a_resume_can_get_wrong() -> None:
    """Otherwise the cuts would prove less than they claim."""
    trainer, seen, thawed, position = world().trainer(), set(), set(), ""
    while position != "end":
        position = trainer.advance()
        model = trainer.resources["model"]
        open_window = bool(trainer.read("accumulate.count"))
        inside = trainer.read("next_batch.epoch_batches") not in (0, -(-SAMPLES // 3))
        seen.add((position, open_window, inside))
        thawed.add((model.frozen.weight.requires_grad, model.norm.training))
    assert {
        ("validate/eval_batch", True, True),
        ("train_batch", True, True),
        ("zero_grad", True, True),
        ("clip", True, False),
        ("schedule", False, True),
    } <= seen
    assert {(False, True), (True, False)} <= thawed
    assert len({row["val/loss"] for row in trainer.metrics if "val/loss" in row}) > 1


@pytest.mark.full
@pytest.mark.parametrize("ending", ["1 epochs", "4 batches", "2 steps"])
def test_a_finished_run_whose_ending_is_raised_equals_the_longer_run(ending: str, tmp_path: Path) -> None:
    shorter, longer, losses, expected = small_fit().set("finish", after=ending), world(), list[float](), list[float]()
    assert world(shorter).trainer(tmp_path / "r", losses=losses).run() is Outcome.FINISHED
    assert world(shorter).trainer(tmp_path / "r", losses=losses).run() is Outcome.ALREADY_FINISHED
    raised, whole = longer.trainer(tmp_path / "r", losses=losses), longer.trainer(tmp_path / "whole", losses=expected)
    assert raised.run() is whole.run() is Outcome.FINISHED
    assert (losses, raised.digest()) == (expected, whole.digest())
    assert rows_of(tmp_path / "r") == rows_of(tmp_path / "whole")


def test_running_in_pieces_equals_running_at_once() -> None:
    at_once, in_pieces = world().trainer(), world().trainer()
    at_once.run()
    outcomes = [in_pieces.run(until=f"{batches} batches") for batches in (1, 2, 5, 5, 7)]
    assert outcomes == [Outcome.REACHED] * 5
    assert in_pieces.read("next_batch.batches") == 7
    assert in_pieces.run() is Outcome.FINISHED
    assert (in_pieces.digest(), in_pieces.metrics) == (at_once.digest(), at_once.metrics)


@pytest.mark.sweep
def test_workers_start_while_a_slow_disk_is_written_to(tmp_path: Path) -> None:
    """Workers are forked, nearly each while a checkpoint is written; nobody waits forever."""
    flush = os.fsync

    def train(seconds: float, workers: int, mode: str) -> str:
        os.fsync = lambda descriptor: (time.sleep(seconds), flush(descriptor))[1]
        graph = small_fit(epochs=12, save_every="2 batches").set("checkpoint", mode=mode)
        trainer = world(graph, workers=workers).trainer(tmp_path / mode)
        trainer.run()
        return trainer.digest()

    slow, fast = in_a_process(lambda: train(0.03, 2, "async")), in_a_process(lambda: train(0.0, 0, "sync"))
    assert slow == fast
