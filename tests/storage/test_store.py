"""Checkpoints on disk: whole or not there, passed over when unsound, let go when old."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from graphtrain.errors import CheckpointError
from graphtrain.storage.checkpoint import MANIFEST_FILE, read_checkpoint
from graphtrain.storage.store import FolderStore
from tests.engine.small_run import small_trainer

TREE: dict[str, dict[str, Any]] = {"resources": {"model": {"w": torch.arange(4.0)}}, "slots": {"n": 1}}


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, said: list[str]) -> FolderStore:
    return FolderStore(tmp_path / "checkpoints", said.append)


def test_names_count_saves_and_old_ones_go(store: FolderStore) -> None:
    for step in (10, 20, 30, 40):
        store.save(TREE, {"note": step}, step=step, keep=2)
    assert [path.name for path in store.paths()] == ["000003-step-30", "000004-step-40"]
    newest = store.newest()
    assert newest is not None
    assert newest.manifest["note"] == 40
    assert torch.equal(newest.tree["resources"]["model"]["w"], torch.arange(4.0))


def test_the_model_file_is_readable_by_safetensors_alone(store: FolderStore) -> None:
    path = store.save(TREE, {}, step=1, keep=1)
    assert list(safetensors.torch.load_file(path / "model.safetensors")) == ["w"]


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def halve(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize("damage", [flip, halve, Path.unlink, lambda file: file.write_bytes(b"")])
@pytest.mark.parametrize("file", [MANIFEST_FILE, "progress.msgpack", "model.safetensors"])
def test_an_unsound_checkpoint_is_named_and_passed_over(
    damage: Callable[[Path], None], file: str, store: FolderStore, said: list[str]
) -> None:
    sound = store.save(TREE, {}, step=1, keep=3)
    torn = store.save(TREE, {}, step=2, keep=3)
    damage(torn / file)
    newest = store.newest()
    assert newest is not None
    assert newest.path == sound
    assert len(said) == 1
    assert str(torn) in said[0]
    with pytest.raises(CheckpointError, match="000002-step-2"):
        read_checkpoint(torn)


def test_a_later_format_is_refused(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphtrain.storage.checkpoint.FORMAT", 2)
    path = store.save(TREE, {}, step=1, keep=1)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="format 2 is not known"):
        read_checkpoint(path)


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_full_disk_fails_the_save_and_leaves_no_trace(
    call: str, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(TREE, {}, step=1, keep=1)

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*((os, "fsync", full) if call == "fsync" else (Path, "rename", full)))
    with pytest.raises(CheckpointError, match="No space left on device"):
        store.save(TREE, {}, step=2, keep=1)
    monkeypatch.undo()
    assert [path.name for path in store.folder.iterdir()] == ["000001-step-1"]


def test_what_an_interrupted_save_left_is_removed(store: FolderStore) -> None:
    store.save(TREE, {}, step=1, keep=1)
    (store.folder / ".000002-step-2.1.tmp").mkdir()
    (store.folder / "notes").mkdir()
    store.remove_leftovers()
    assert sorted(path.name for path in store.folder.iterdir()) == ["000001-step-1", "notes"]


def test_a_run_goes_on_from_the_newest_sound_checkpoint(tmp_path: Path) -> None:
    small_trainer(tmp_path / "whole").run()
    trainer = small_trainer(tmp_path)
    for _ in range(3):
        trainer.advance(20)
        newest = trainer.save()
    assert newest is not None
    flip(newest / "optimizer.safetensors")
    again = small_trainer(tmp_path)
    again.run()
    assert (tmp_path / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
