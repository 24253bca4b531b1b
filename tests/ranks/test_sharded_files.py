"""Sharded models in files: written and read in parts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphtrain.command.weights import export_weights
from tests.ranks import sharded, sharded_files
from tests.ranks.processes import run_processes
from tests.ranks.test_sharded import EXACT, SHORT, assert_close

PLAIN = replace(SHORT, shards=False)


@pytest.mark.full
def test_an_export_begins_runs(tmp_path: Path) -> None:
    trained = run_processes(2, sharded_files.finished, SHORT, tmp_path / "run")[0]
    file = tmp_path / "weights.safetensors"
    assert "10 tensors" in export_weights(tmp_path / "run", file, None, print)

    def assert_trained(got: dict[str, Any]) -> None:
        assert {name: got[name] for name in trained} == trained

    newest = max((tmp_path / "run" / "checkpoints").glob("*-step-*"))
    for path in (file, newest):
        assert_trained(sharded_files.warm_started(PLAIN, path))
    for ranks, path in ((2, file), (3, file), (3, newest)):
        for got in run_processes(ranks, sharded_files.warm_started, SHORT, path):
            assert_trained(got)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.full
def test_a_damaged_piece_is_named_and_the_earlier_checkpoint_taken(tmp_path: Path) -> None:
    run_processes(2, sharded_files.saved_twice, SHORT, tmp_path / "run")
    what = {flip: "match", shorten: "is damaged", Path.unlink: "cannot be read"}
    for ranks in (2, 1):
        folders = [tmp_path / f"{ranks}-{number}" for number in range(len(what))]
        for folder, damage in zip(folders, what, strict=True):
            shutil.copytree(tmp_path / "run", folder)
            damage(max((folder / "checkpoints").glob("*-step-*")) / "rank.00001.sharded.safetensors")
        texts, *_ = run_processes(ranks, sharded_files.told, SHORT, folders)
        for text, words in zip(texts, what.values(), strict=True):
            skipped, resumed = text.splitlines()
            assert skipped.startswith("skipped a damaged checkpoint: ")
            assert words in skipped
            assert "step 1" in resumed


@pytest.mark.full
def test_a_full_disk_of_one_rank_is_named(tmp_path: Path) -> None:
    for message, saved in run_processes(2, sharded_files.full_disk, SHORT, tmp_path):
        assert message.startswith("rank 1 cannot write its part of the checkpoint: No space left on device")
        assert not saved


@pytest.mark.full
def test_swa_as_in_one_process() -> None:
    (alone,) = run_processes(1, sharded_files.averaged, replace(EXACT, every=4, shards=False))
    for got in run_processes(2, sharded_files.averaged, EXACT):
        assert_close(got, alone)


@pytest.mark.full
def test_what_sharded_models_cannot_do_is_refused() -> None:
    for copied, lbfgs in run_processes(2, sharded_files.refusals, SHORT):
        assert "let `setup` return a `swa_model`, made as `model` is" in copied
        assert lbfgs.startswith("`optimizer` is a torch.optim.LBFGS, which takes all weights as one vector")


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 1])
def test_one_process_continues_without_shards(tmp_path: Path, ranks: int) -> None:
    case = replace(EXACT, samples=48, every=4 // ranks)
    ((alone, _),) = run_processes(1, sharded.trained, replace(case, every=4, shards=False))
    run_processes(ranks, sharded_files.stopped, case, tmp_path, 1)
    for problem, got in run_processes(1, sharded_files.crossed, replace(case, shards=False), tmp_path):
        assert problem == ""
        assert_close(got, alone)


@pytest.mark.full
def test_a_run_without_shards_is_not_continued_with_them(tmp_path: Path) -> None:
    sharded_files.stopped(replace(EXACT, shards=False), tmp_path, 1)
    for problem, _ in run_processes(2, sharded_files.crossed, EXACT, tmp_path):
        assert "its models are not sharded over ranks, and those of `setup` are; leave fully_shard out" in problem
