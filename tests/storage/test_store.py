"""Checkpoints on disk: whole or not there, skipped when damaged, deleted when old."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch

from graphtrain.errors import CheckpointError
from graphtrain.storage.checkpoint import MANIFEST_FILE, read_checkpoint
from graphtrain.storage.manifest import Manifest
from graphtrain.storage.regular import remove_leftovers
from graphtrain.storage.run_directory import Retention
from graphtrain.storage.state_files import StagedState
from graphtrain.storage.store import FolderStore
from graphtrain.storage.tensor_files import StagingBuffers
from tests.program.small_run import small_trainer
from tests.storage.facts import FACTS

TREE: dict[str, dict[str, Any]] = {"resources": {"model": {"w": torch.arange(4.0)}}, "slots": {"n": 1}}
MANIFEST = {**FACTS, "digest": ""}


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, said: list[str]) -> FolderStore:
    return FolderStore(tmp_path / "checkpoints", said.append)


def save(store: FolderStore, state: Any, manifest: Any, *, step: int, keep: int = 1, **retention: Any) -> Path:
    """Save a state as a run does."""
    staged = StagedState(state, {}, StagingBuffers())
    path, _ = store.save(staged, Manifest(**{**manifest, "step": step}), {"": Retention(keep, **retention)}, {})
    return path


def test_names_count_saves_and_old_ones_go(store: FolderStore) -> None:
    for step in (10, 20, 30, 40):
        save(store, TREE, {**MANIFEST, "run": str(step)}, step=step, keep=2)
    assert [path.name for path in store.paths()] == ["000003-step-30", "000004-step-40"]
    newest = store.newest()
    assert newest is not None
    assert newest.manifest.run == "40"
    assert torch.equal(newest.sections["resources"]["model"]["w"], torch.arange(4.0))


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_of_an_incompatible_checkpoint_only_the_manifest_is_read(store: FolderStore, said: list[str]) -> None:
    save(store, TREE, {**MANIFEST, "run": "ours"}, step=1, keep=3)
    flip(save(store, TREE, {**MANIFEST, "run": "theirs"}, step=2, keep=3) / "model.safetensors")
    newest = store.newest(lambda manifest: "it is of another run" if manifest.run == "theirs" else "")
    assert newest is not None
    assert newest.manifest.run == "ours"
    assert [line.endswith("000002-step-2: it is of another run") for line in said] == [True]


def forge(path: Path, without: Collection[str] = (), **changes: Any) -> None:
    """Another manifest, with the right checksum."""
    saved = msgpack.unpackb(msgpack.unpackb((path / MANIFEST_FILE).read_bytes())["manifest"])
    body = msgpack.packb({name: value for name, value in {**saved, **changes}.items() if name not in without})
    outer = {"sha256": hashlib.sha256(body).hexdigest(), "manifest": body}
    (path / MANIFEST_FILE).write_bytes(msgpack.packb(outer))


def test_a_resource_of_any_name_is_read_again(store: FolderStore) -> None:
    tree = {"resources": {"my modèle": {"w": torch.ones(1)}}}
    assert store.newest() is None
    assert read_checkpoint(save(store, tree, MANIFEST, step=1, keep=1)).sections["resources"]["my modèle"]["w"] == 1


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_full_disk_fails_the_save_and_leaves_no_trace(
    call: str, store: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, TREE, MANIFEST, step=1, keep=1)

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*((os, "fsync", full) if call == "fsync" else (Path, "rename", full)))
    with pytest.raises(CheckpointError, match="No space left on device"):
        save(store, TREE, MANIFEST, step=2, keep=1)
    monkeypatch.undo()
    assert [path.name for path in store.folder.iterdir()] == ["000001-step-1"]


def test_what_an_interrupted_save_left_is_removed(store: FolderStore) -> None:
    save(store, TREE, MANIFEST, step=1, keep=1)
    ours = [".000002-step-2.71.1.tmp", ".000001-step-1.removed.tmp", ".000001-step-1.removed.71.tmp"]
    theirs = ["notes", ".000002-step-2.tmp", ".editor.tmp", ".step.71.1.tmp"]
    for name in (*ours, *theirs):
        (store.folder / name).mkdir()
    beside = [".status.json.71.tmp", ".best.json.71.tmp", ".probe.71.tmp"]
    others = [".editor.tmp", "status.old.tmp", ".notes.json.71.tmp", "71.tmp"]
    for name in (*beside, *others):
        (store.folder.parent / name).touch()
    remove_leftovers(store.folder.parent, store.folder)
    assert {path.name for path in store.folder.iterdir()} == {"000001-step-1", *theirs}
    assert {path.name for path in store.folder.parent.iterdir()} == {"checkpoints", *others}


@pytest.mark.full
def test_a_run_resumes_from_the_newest_sound_checkpoint(tmp_path: Path) -> None:
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
