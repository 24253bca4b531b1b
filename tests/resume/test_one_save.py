"""One save of several ranks by itself: what each writes, what all are told, and whom they do not wait for."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphtrain.errors import CheckpointError, GraphtrainError, RankFailedError
from graphtrain.ranks import Ranks
from graphtrain.resume import rank_saves
from graphtrain.resume.rank_saves import RankSave
from graphtrain.storage.manifest import Manifest
from graphtrain.storage.rank_files import Slim
from graphtrain.storage.run_files import Written
from graphtrain.storage.sharing import MustBeEqual
from graphtrain.storage.state_files import StagedState
from graphtrain.storage.tensor_files import StagingBuffers
from tests.ranks.fake_ranks import FakeRank, run_ranks
from tests.storage.facts import FACTS
from tests.storage.test_rank_files import state_of

NAME = "000001-step-1"


def part_of(ranks: Ranks, folder: Path, required: MustBeEqual | None = None, slim: Slim | None = None) -> RankSave:
    state = state_of(ranks.rank)
    staged = StagedState(state, {"progress": state["progress"]}, StagingBuffers())
    return RankSave(
        ranks, "run/save/1", staged, required or MustBeEqual(own_fields={"next": ["position"]}), folder, slim
    )


def write(part: RankSave, folder: Path) -> Written:
    """What the thread that writes does."""
    facts = Manifest(**{**FACTS, "unknown": [f"of {part._ranks.rank}"]})
    if part.leads:
        return part.lead(lambda write: Written(folder / NAME, write(folder / NAME, part._staged, facts)), facts)
    return part.follow(facts)


def test_a_rank_that_does_not_see_the_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "other").mkdir()

    def program(ranks: Ranks) -> str:
        folder = tmp_path / ("other" if ranks.rank else "run")
        with pytest.raises(CheckpointError) as failed:
            write(part_of(ranks, folder), folder)
        return str(failed.value)

    first, second = run_ranks(2, program)
    assert first == second
    assert first.startswith(
        f"rank 1 cannot write its part of the checkpoint: rank 0 writes to {tmp_path}/other/.{NAME}."
    ) and first.endswith(", which this rank does not see")


@pytest.mark.parametrize("how", ["ended", "silent", "hurried", "given up"])
def test_a_rank_that_does_not_come_is_not_waited_for(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not longer than the ranks wait for each other; ten seconds once the run has failed; one slice once it ended."""
    clock = [100.0]
    monkeypatch.setattr(rank_saves.time, "monotonic", lambda: clock[0])

    class Waiting(FakeRank):
        def read(self, key: str, timeout_seconds: float = 0.0) -> bytes | None:
            clock[0] += timeout_seconds
            return self.world.store.get(key)

        def ended(self) -> list[int]:
            return [1] if how == "ended" else []

    def program(ranks: Ranks) -> tuple[float, type, str]:
        if ranks.rank:
            return 0.0, int, ""
        assert isinstance(ranks, FakeRank)
        waiting = Waiting(ranks.world, 0)
        waiting.timeout_seconds = 60.0
        part = part_of(waiting, tmp_path)
        if how == "given up":
            part._staged.given_up.set()
        if how == "hurried":
            part.hurried.set()
        with pytest.raises(GraphtrainError) as failed:
            part._read("summary", 1)
        return clock[0] - 100, type(failed.value), str(failed.value)

    silent = "cannot write the checkpoint: rank 1 has not written its part of it"
    (found, _) = run_ranks(2, program)
    assert (
        found
        == {
            "ended": (1.0, RankFailedError, "rank 1 ended while a checkpoint was written"),
            "silent": (60.5, CheckpointError, silent),
            "hurried": (11.0, CheckpointError, silent),
            "given up": (0.5, CheckpointError, "the checkpoint was given up"),
        }[how]
    )
