"""One save of several ranks by itself: what each writes, what all are told, and whom they do not wait for."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain.errors import CheckpointError, GraphtrainError, RankFailedError, RanksDivergedError
from graphtrain.program.agreement import Agreement
from graphtrain.program.requests import Requests
from graphtrain.ranks import Ranks
from graphtrain.resume import rank_saves
from graphtrain.resume.rank_saves import RankSave, RankSaves
from graphtrain.storage.checkpoint import read_checkpoint
from graphtrain.storage.encoding import UnsaveableError
from graphtrain.storage.manifest import Manifest
from graphtrain.storage.rank_files import Slim
from graphtrain.storage.run_files import Written
from graphtrain.storage.sharing import MustBeEqual
from graphtrain.storage.state_files import StagedState
from graphtrain.storage.tensor_files import StagingBuffers
from tests.ranks.fake_ranks import FakeRank, run_ranks
from tests.storage.facts import FACTS
from tests.storage.test_rank_files import in_order, same, state_of

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


def outcomes(
    folder: Path, act: Callable[[RankSave, Path], Any] = write, count: int = 3, **options: Any
) -> list[tuple[type, str]]:
    """The type and the message of what is raised on each rank."""

    def program(ranks: Ranks) -> tuple[type, str]:
        try:
            return type(act(part_of(ranks, folder, **options), folder)), ""
        except GraphtrainError as error:
            return type(error), str(error)

    return run_ranks(count, program)


@pytest.mark.parametrize("slim", [None, Slim({"model": ["bias"]}, "000000-step-0")])
def test_all_ranks_write_one_checkpoint_and_know_it(slim: Slim | None, tmp_path: Path) -> None:
    left: list[dict[str, bytes]] = []

    def program(ranks: Ranks) -> Written:
        part = part_of(ranks, tmp_path, slim=slim if ranks.rank == 0 else None)
        assert not part.has_outcome(0.0) or not part.leads
        written = write(part, tmp_path)
        assert part.has_outcome(0.0)
        if isinstance(ranks, FakeRank):
            left.append(ranks.world.store)
        return written

    results = run_ranks(3, program)
    assert [written.path for written in results] == [tmp_path / NAME] * 3
    assert len({written.manifest.digest for written in results}) == 1
    assert {key.rpartition("/")[0]: bool(value) for key, value in left[0].items()} == {
        "run/save/1/folder": False, "run/save/1/summary": False, "run/save/1/files": False, "run/save/1/outcome": True,
    }  # fmt: skip
    for rank in range(3):
        read = read_checkpoint(tmp_path / NAME, rank=rank)
        assert same(read.sections, in_order(state_of(rank))) and read.manifest.unknown == [f"of {rank}"]
    assert any("frozen" in file for file in read.manifest.files) is (slim is not None)
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_one_process_writes_it_alone(tmp_path: Path) -> None:
    (written,) = run_ranks(1, lambda ranks: write(part_of(ranks, tmp_path), tmp_path))
    assert written.path == tmp_path / NAME and read_checkpoint(written.path).ranks == 1


def test_what_differs_is_an_error_on_all_of_them(tmp_path: Path) -> None:
    """The first three differences, and how many more."""
    required = MustBeEqual({"model": None}, {"resources": ["rank", "task"], "reachable": ["task"]})
    on_others = "differs between rank 0 and ranks 1, 2"
    message = (
        f"the tensor `mean` of `model` {on_others}; `rank` {on_others}; `task` {on_others}; and 2 more\n"
        "  hint: it must be the same on all ranks: do not change it on one rank only"
    )
    assert outcomes(tmp_path, required=required) == [(RanksDivergedError, message)] * 3
    three = MustBeEqual({"model": None}, {"resources": ["rank", "task"]}, {"next": ["position"]})
    ((_, shown), *_) = outcomes(tmp_path, required=three)
    assert shown == message.replace("; and 2 more", "")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("failing", [0, 2])
@pytest.mark.parametrize(
    ("error", "reason"),
    [(OSError(errno.ENOSPC, "No space left on device"), "No space left on device"), (KeyError("a"), "'a'")],
)
def test_a_rank_that_cannot_write_fails_the_save_of_all(
    error: Exception, reason: str, failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files = rank_saves.write_files

    def fails(folder: Path, rank: int, *more: Any) -> Any:
        if rank == failing:
            raise error
        return write_files(folder, rank, *more)

    monkeypatch.setattr(rank_saves, "write_files", fails)

    def act(part: RankSave, folder: Path) -> Any:
        try:
            return write(part, folder)
        except KeyError:
            assert failing == 0 and part.leads
            raise CheckpointError("as it is") from None

    first, *others = outcomes(tmp_path, act)
    if failing:
        message = f"rank {failing} cannot write its part of the checkpoint: {reason}"
        assert [first, *others] == [(CheckpointError, message)] * 3
    elif isinstance(error, OSError):
        assert [first, *others] == [(CheckpointError, f"cannot write the checkpoint {tmp_path / NAME}: {reason}")] * 3
    else:
        assert others == [(CheckpointError, "KeyError: 'a'")] * 2
    assert [*tmp_path.iterdir()] == []


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


def test_messages_that_are_over_are_no_messages(tmp_path: Path) -> None:
    def program(ranks: Ranks) -> str:
        if ranks.rank:
            return ""
        part = part_of(ranks, tmp_path)
        ranks.publish("run/save/1/folder/1", b"")
        with pytest.raises(CheckpointError) as failed:
            part._read("folder", 1)
        return str(failed.value)

    assert run_ranks(2, program)[0] == "rank 1 cannot write its part of the checkpoint: the checkpoint is over"


# ---- copies


def test_where_a_rank_cannot_copy_all_raise_what_it_said() -> None:
    def program(ranks: Ranks) -> list[str]:
        saves = RankSaves(Agreement(ranks, Requests(agrees=True)))
        assert not saves.are_one
        said = [str(saves.copied(lambda: ranks.rank))]

        def refuses() -> Any:
            if ranks.rank:
                raise UnsaveableError(f"slots[{ranks.rank}]", "it is a text", "save a list")
            return 0

        for _ in range(2):
            with pytest.raises(UnsaveableError) as refused:
                saves.copied(refuses)
            assert refused.value.path == "slots[1]"
            said.append(str(refused.value))
        ranks.read = lambda key, timeout_seconds=0.0: None  # type: ignore[method-assign]
        with pytest.raises(UnsaveableError) as refused:
            saves.copied(refuses)
        return [*said, str(refused.value)]

    refusal = "slots[1] cannot be saved: it is a text (rank 1)\n  hint: save a list"
    unknown = "the state cannot be saved: it gave no reason (rank 1)"
    assert run_ranks(3, program) == [
        ["0", refusal, refusal, unknown], ["1", refusal, refusal, refusal], ["2", refusal, refusal, unknown],
    ]  # fmt: skip


def test_saves_are_numbered_and_only_several_ranks_ask_what_must_be_equal(tmp_path: Path) -> None:
    def program(ranks: Ranks) -> list[Any]:
        saves = RankSaves(Agreement(ranks, Requests(agrees=True)))
        staged = StagedState({"resources": {"model": {"w": torch.ones(1)}}}, {}, StagingBuffers())
        asked: list[int] = []

        def required() -> MustBeEqual:
            asked.append(1)
            return MustBeEqual({"model": None})

        saves.run = "name"
        parts = [saves.save(staged, required, tmp_path, None) for _ in range(2)]
        assert (saves.begun, saves.failed) == (2, 0)
        return [saves.are_one, *(part._key for part in parts), len(asked), parts[0].leads]

    assert run_ranks(1, program) == [[True, "name/save/1", "name/save/2", 0, True]]
    assert run_ranks(2, program) == [[False, "name/save/1", "name/save/2", 2, rank == 0] for rank in range(2)]
