"""Saves of several ranks: all of them save, or none; one outcome; and what is in the folder."""

from __future__ import annotations

import errno
import random
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
import safetensors.torch
import torch

from graphtrain import Graph, Outcome, Trainer
from graphtrain.errors import CheckpointError, RanksDivergedError, SaveFailedError
from graphtrain.ranks import Ranks
from graphtrain.resume import rank_saves
from graphtrain.resume.restore import ResumeOptions
from graphtrain.storage.background import Background
from graphtrain.storage.manifest import Manifest, read_manifest
from graphtrain.storage.run_files import Written
from graphtrain.storage.sharing import MustBeEqual
from tests.ranks.fake_ranks import FakeRank, World, run_ranks
from tests.resume.rank_runs import run, trainer_of

Write = Callable[..., dict[str, list[Any]]]


def names(run_dir: Path) -> list[str]:
    """All in the folder of the checkpoints, temporary folders included."""
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def every_step(graph: Graph) -> Graph:
    return graph.set("checkpoint", every="1 steps")


@pytest.mark.full
def test_what_is_the_same_is_stored_once_and_weights_need_nothing_else(tmp_path: Path) -> None:
    ends = run(2, tmp_path, advance=7)  # in an open window, with buffers of each rank
    (folder,) = (tmp_path / "checkpoints").iterdir()
    manifest = read_manifest(folder)
    assert (manifest.ranks, manifest.window_ranks) == (2, 2)
    assert manifest.digests == [end.digest for end in ends]
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".msgpack"}
    assert not any(path.read_bytes()[:2] in (b"PK", b"\x80\x04") for path in folder.iterdir())

    weights = safetensors.torch.load_file(folder / "model.safetensors")
    assert weights.keys() == manifest.tensors["model"].keys()
    parameters = {name for name in weights if "running" not in name}
    assert parameters == {"0.weight", "0.bias", "1.weight", "1.bias", "1.num_batches_tracked", "3.weight", "3.bias"}
    assert torch.equal(weights["0.weight"].flatten(), ends[0].weights[:18])

    own = [safetensors.torch.load_file(folder / f"rank.{rank:05d}.safetensors") for rank in range(2)]
    assert own[0].keys() == own[1].keys() >= {"model/1.running_mean", "gradients/model/0.weight"}


def counting_step(seen: list[int], amount: int) -> Callable[..., torch.Tensor]:
    """A step that remembers something of its own."""

    def step(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        seen[0] += amount
        return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

    return step


@pytest.mark.full
def test_what_is_taken_of_rank_0_is_named(tmp_path: Path) -> None:
    def cut(ranks: Ranks) -> None:
        trainer = trainer_of(tmp_path, training_step=counting_step([0], ranks.rank + 1))
        trainer.advance(12)
        trainer.save()

    run_ranks(2, cut)
    lines: list[str] = []
    seen = [0]
    trainer = trainer_of(tmp_path, training_step=counting_step(seen, 0), notify=lines.append)
    trainer.run()
    assert seen == [2], "that of rank 0"
    (line,) = (line for line in lines if line.startswith("resumed"))
    assert "(other random numbers, what has changed since `setup` of rank 0)" in line


@pytest.mark.full
def test_gradients_that_were_summed_are_the_same(tmp_path: Path) -> None:
    run(2, tmp_path, advance=10, is_plain=True)  # before `step`
    (folder,) = (tmp_path / "checkpoints").iterdir()
    assert "model/0.weight" in read_manifest(folder).tensors["gradients"]


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("failing", [0, 1])
def test_a_disk_that_one_rank_cannot_write_stops_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    calls = count_and_fail(monkeypatch, failing, numbers=[2])
    follow = rank_saves.RankSave.follow

    def follow_late(save: rank_saves.RankSave, facts: Manifest) -> Any:
        try:
            return follow(save, facts)
        finally:
            time.sleep(0.2)  # this rank knows the outcome later than rank 0

    monkeypatch.setattr(rank_saves.RankSave, "follow", follow_late)

    def program(ranks: Ranks) -> str:
        trainer = trainer_of(tmp_path, graph=every_step)
        with pytest.raises(SaveFailedError) as caught:
            trainer.run()
        return f"{trainer.position}: {caught.value}"

    first, second = run_ranks(2, program)
    assert first == second
    assert "No space left on device" in first
    assert names(tmp_path)[:1] == ["000001-step-1"]
    assert len(names(tmp_path)) == 1, "no part of the checkpoint that failed is left"
    monkeypatch.undo()
    assert calls
    whole = run(2, None)
    assert [end.digest for end in run(2, tmp_path)] == [end.digest for end in whole]


@pytest.mark.full
def test_a_disk_that_one_rank_cannot_write_is_reported_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_and_fail(monkeypatch, 1, numbers=[1])

    def graph(graph: Graph) -> Graph:
        return every_step(graph).set("checkpoint", if_failed="continue", keep=9)

    ends = run(2, tmp_path, graph=graph)
    assert [end.outcome for end in ends] == [Outcome.FINISHED] * 2
    assert names(tmp_path)[-1].endswith("step-4")
    (line,) = (line for line in ends[0].lines if "No space left" in line)
    assert line.startswith("rank 1 cannot write its part of the checkpoint")
    assert line.endswith("earlier checkpoints are kept, and the run continues")


def count_and_fail(monkeypatch: pytest.MonkeyPatch, failing: int, numbers: list[int]) -> list[int]:
    """Let the writes of a rank fail that have these numbers; the ranks that have written."""
    write: Write = rank_saves.write_files
    calls: list[int] = []

    def failing_write(folder: Path, rank: int, *more: Any) -> dict[str, list[Any]]:
        calls.append(rank)
        if rank == failing and calls.count(rank) in numbers:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(folder, rank, *more)

    monkeypatch.setattr(rank_saves, "write_files", failing_write)
    return calls


@pytest.mark.full
def test_a_save_that_one_rank_asks_for_is_one_checkpoint(tmp_path: Path) -> None:
    def program(ranks: Ranks) -> Outcome:
        asked = []

        def step(model: torch.nn.Module, batch: Any) -> torch.Tensor:
            if ranks.rank == 1 and not asked:
                asked.append(trainer.save())
            return torch.nn.functional.mse_loss(model(batch[0]), batch[1])

        trainer = trainer_of(tmp_path, training_step=step)
        return trainer.run()

    assert run_ranks(2, program) == [Outcome.FINISHED] * 2
    assert names(tmp_path) == ["000001-step-1", "000002-step-4"], "behind the window"


@pytest.mark.full
def test_a_stop_waits_for_the_end_of_a_window(tmp_path: Path) -> None:
    def program(ranks: Ranks) -> tuple[Outcome, str]:
        trainer = trainer_of(tmp_path, is_plain=True)
        trainer.advance(3)
        if ranks.rank == 1:
            trainer._run.requests.ask("stop")
        assert trainer.position == "train_batch"
        return trainer.run(), trainer.position

    assert run_ranks(2, program) == [(Outcome.STOPPED, "decide")] * 2
    assert run(1, tmp_path, is_plain=True)[0].outcome is Outcome.FINISHED


class Odd:
    """A value that cannot be saved."""


def test_where_one_rank_cannot_copy_its_state_none_saves(tmp_path: Path) -> None:
    refused: list[str] = []

    def program(ranks: Ranks) -> list[str]:
        trainer = trainer_of(tmp_path)
        trainer.advance(3)  # the batch is alive
        batch = trainer._session.compiled.program.slot_index("batch")
        kept = trainer._session.compiled.program.slots[batch]
        if ranks.rank == 1:
            trainer._session.compiled.program.slots[batch] = Odd()
        with trainer._running(ResumeOptions()):
            assert not trainer._run.save(trainer._run.requests.sync_policy)
        refused.append(trainer._run.writer.refusal)
        trainer._session.compiled.program.slots[batch] = kept
        trainer.advance(1)
        trainer.save()
        return names(tmp_path)

    assert run_ranks(2, program) == [["000001-step-0"]] * 2
    assert refused[0] == refused[1]
    assert "Odd cannot be encoded (rank 1)" in refused[0]


def test_a_rank_that_stops_elsewhere_than_the_others_is_named_at_once(tmp_path: Path) -> None:
    def program(ranks: Ranks) -> str:
        trainer = trainer_of(tmp_path, is_plain=True)
        with pytest.raises(RanksDivergedError) as caught:
            trainer.advance(3 + ranks.rank)
        return caught.value.message

    for message in run_ranks(2, program):
        assert "rank 0 is at `train_batch`" in message and "rank 1 at `accumulate`" in message and "stop" in message


class Unreadable:
    """The state of a rank whose memory cannot be read."""

    given_up = Event()

    @property
    def summary(self) -> Any:
        raise OSError(errno.EIO, "Input/output error")


def test_the_others_hear_why_rank_0_fails_before_it_has_said_anything(tmp_path: Path) -> None:
    world, said = World(2, random.Random(0)), []
    state: Any = SimpleNamespace(given_up=Event(), summary=SimpleNamespace(as_plain=dict))
    follows, leads = (
        rank_saves.RankSave(FakeRank(world, rank), "key", staged, MustBeEqual(), tmp_path)
        for rank, staged in ((1, state), (0, Unreadable()))
    )

    def write(write_folder: Callable[..., Manifest]) -> Written:
        try:
            return Written(tmp_path / "a", write_folder(tmp_path / "a", Unreadable(), Manifest()))
        finally:
            said.append(msgpack.unpackb(zlib.decompress(world.store["key/files/1"])))

    # In threads of their own, as messages are exchanged.
    saves = [Background(lambda: leads.lead(write, Manifest())), Background(lambda: follows.follow(Manifest()))]
    for save in saves:
        with pytest.raises(CheckpointError, match="Input/output error"):
            save.result()
    why = "Input/output error"
    assert said == [{"failed": f"rank 0 cannot write its part of the checkpoint: {why}"}] and not any(
        tmp_path.iterdir()
    )


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda trainer: trainer.resources["model"][0].bias.data.add_(1.0), "the tensor `0.bias` of `model` differs"),
        (lambda trainer: trainer.resources["optimizer"].param_groups[0].update(lr=0.5), "`optimizer` differs"),
        (
            lambda trainer: setattr(trainer._session.compiled.program.by_path["log"].instance, "runs", 7),
            "",
        ),
        (
            lambda trainer: setattr(trainer._session.compiled.program.by_path["step"].instance, "steps", 7),
            "`step.steps` differs between rank 0 and rank 1",
        ),
    ],
)
def test_what_must_be_the_same_and_is_not_is_named(
    tmp_path: Path, change: Callable[[Trainer], Any], message: str
) -> None:
    def program(ranks: Ranks) -> str:
        trainer = trainer_of(tmp_path)
        trainer.advance(5)
        if ranks.rank == 1:
            change(trainer)
        try:
            trainer.save()
        except RanksDivergedError as error:
            return error.message
        return ""

    first, second = run_ranks(2, program)
    assert first == second
    assert message in first
    assert bool(message) is bool(first)
    assert len(names(tmp_path)) == (0 if message else 1)


# ---- damaged pieces


def truncate(folder: Path) -> None:
    path = folder / "rank.00001.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def remove(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def mix(folder: Path) -> None:
    older = min(folder.parent.iterdir())
    shutil.copyfile(older / "rank.00001.msgpack", folder / "rank.00001.msgpack")


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("damage", [remove, truncate, mix])
def test_a_checkpoint_of_which_one_rank_cannot_read_its_piece_is_skipped_by_all(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    def graph(graph: Graph) -> Graph:
        return graph.set("checkpoint", every="1 steps", keep=9)

    whole = run(2, tmp_path, graph=graph)
    newest = max((tmp_path / "checkpoints").iterdir())
    damage(newest)
    with pytest.raises(CheckpointError, match=newest.name):
        run(2, tmp_path / "other", act=lambda trainer: trainer.run(resume=newest))
    ends = run(2, tmp_path, graph=graph)
    assert [end.digest for end in ends] == [end.digest for end in whole]
    assert any("skipped a damaged checkpoint" in line for line in ends[0].lines)
