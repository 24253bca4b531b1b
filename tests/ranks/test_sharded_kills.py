"""One rank of a sharded run is killed at random moments, in saves too; it ends as one that was not, to the bit."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Graph
from graphtrain.ranks import current_ranks
from tests.ranks import sharded
from tests.ranks.processes import KILLED, outcomes_of, run_processes
from tests.ranks.sharded import Case

CASE = Case(every=2, epochs=2)
KILLS, MOST_LIVES = 20, 60
TRAINING, SAVING = "training", "saving"


def often_saved(graph: Graph) -> Graph:
    """A checkpoint after every round, so within windows too."""
    return graph.set("checkpoint", every="1 batches")


class Calls:
    """Counts the calls of Python functions by the thread that trains, or by those that save; may kill at one of them.

    Arguments:
        where: which threads.
        last: the call at which this process is killed. Default: none.
    """

    def __init__(self, where: str, last: int | None = None) -> None:
        self.where, self.last, self.count = where, last, 0

    def __enter__(self) -> Calls:
        self._set(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        self._set(None)

    def _set(self, function: Any) -> None:
        (sys.setprofile if self.where == TRAINING else threading.setprofile)(function)

    def _profile(self, frame: Any, event: str, argument: Any) -> None:
        self.count += event == "call"
        if self.last is not None and self.count > self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def life(folder: Path, where: str, killed: int | None = None, last: int | None = None) -> tuple[str, str, int]:
    """Resume and run to the end, unless this is the rank that is killed; what it has come to, and the calls it took."""
    os.environ["GRAPHTRAIN_TIMEOUT_SECONDS"] = "60"
    trainer = sharded.trainer_of(CASE, often_saved, seed=1, run_dir=folder)
    with Calls(where, last if current_ranks().rank == killed else None) as calls:
        trainer.run()
    return trainer.digest(), sharded.digest(sharded.state_of(trainer)), calls.count


@pytest.mark.sweep
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_killed_at_random_moments_changes_no_bit(tmp_path: Path, ranks: int) -> None:
    draw, kills, run, lives = random.Random(ranks), {TRAINING: 0, SAVING: 0}, 0, 0
    whole = {where: run_processes(ranks, life, tmp_path / where, where) for where in kills}
    expected = [found[:2] for found in whole[TRAINING]]  # a digest is of one rank
    assert [found[:2] for found in whole[SAVING]] == expected
    while sum(kills.values()) < KILLS or (tmp_path / f"{run}").exists():
        lives += 1
        assert lives < MOST_LIVES, kills
        where, killed = min(kills, key=kills.__getitem__), draw.randrange(ranks)
        last = draw.randrange(whole[where][killed][2] // 2)
        is_last = sum(kills.values()) >= KILLS
        ended = outcomes_of(ranks, life, tmp_path / f"{run}", where, None if is_last else killed, last)
        if all(is_returned for is_returned, _ in ended):
            assert [found[:2] for _, found in ended] == expected, (run, lives)
            run += 1
            continue
        assert ended[killed] == (False, KILLED), ended[killed]
        for rank, (_, error) in enumerate(ended):
            assert rank == killed or "RankFailedError" in str(error), (killed, where, last, error)
        kills[where] += 1
