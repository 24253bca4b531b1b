"""A damaged file is one error that names it, and the newest sound checkpoint is found; no name leads outside."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch

from graphtrain.errors import CheckpointError
from graphtrain.storage.checkpoint import read_checkpoint
from graphtrain.storage.decoding import unpack
from graphtrain.storage.manifest import MANIFEST_FILE, Manifest
from graphtrain.storage.run_directory import Retention
from graphtrain.storage.state_files import PROGRESS_FILE, StagedState
from graphtrain.storage.store import FolderStore
from graphtrain.storage.tensor_files import StagingBuffers
from tests.storage.facts import FACTS

STATE: dict[str, dict[str, Any]] = {
    "resources": {"model": {"w": torch.arange(4.0)}},
    "progress": {"step": {"steps": 1, "recent": [(1, 2.5)]}},
    "slots": {"loss": torch.ones(())},
}
NAMES = [MANIFEST_FILE, PROGRESS_FILE, "model.safetensors"]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, said: list[str]) -> FolderStore:
    """A store with a sound checkpoint and a newer one, which the tests damage."""
    store = FolderStore(tmp_path / "checkpoints", said.append)
    for step in (1, 2):
        state = StagedState(STATE, {}, StagingBuffers())
        store.save(state, Manifest(**{**FACTS, "step": step}), {"": Retention(9)}, {})
    return store


def flipped(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "flipped": flipped,
    "cut": lambda file: os.truncate(file, file.stat().st_size - 1),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"\0"),
    "empty": lambda file: os.truncate(file, 0),
    "gone": Path.unlink,
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_is_named_and_the_older_checkpoint_found(
    how: str, name: str, store: FolderStore, said: list[str]
) -> None:
    sound, damaged = store.paths()
    DAMAGES[how](damaged / name)
    newest = store.newest()
    assert newest is not None and newest.path == sound
    if (how, name) != ("gone", MANIFEST_FILE):
        assert len(said) == 1 and str(damaged) in said[0] and said[0].isprintable()
        assert name.partition(".")[0] in said[0]


def test_every_byte_counts(store: FolderStore) -> None:
    chance, path = random.Random(1), store.paths()[-1]
    for name in NAMES:
        content = (path / name).read_bytes()
        for _ in range(40):
            changed = bytearray(content)
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
            (path / name).write_bytes(changed)
            with pytest.raises(CheckpointError):
                read_checkpoint(path)
        (path / name).write_bytes(content)
    assert read_checkpoint(path).manifest.step == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {"../outside": [1, "0" * 32]}}, {"files": {"/etc/passwd": [1, "0" * 32]}},
        {"tensors": {"model.safetensors": {"w": "../outside"}}}, {"tensors": {"../model": {}}}, {"files": 3},
    ],
)  # fmt: skip
def test_no_name_leads_out_of_the_folder(changes: dict[str, Any], store: FolderStore) -> None:
    path = store.paths()[-1]
    body = msgpack.unpackb(msgpack.unpackb((path / MANIFEST_FILE).read_bytes())["manifest"])
    data = msgpack.packb({**body, **changes})
    outer = msgpack.packb({"sha256": hashlib.sha256(data).hexdigest(), "manifest": data})
    (path / MANIFEST_FILE).write_bytes(outer)
    with pytest.raises(CheckpointError, match="the manifest is damaged"):
        read_checkpoint(path)


def test_no_code_makes_an_object_of_any_other_class() -> None:
    """What comes of all codes is of the types that `pack` takes, whatever is named."""
    types: set[type] = set()
    names = ["os.system", "builtins.eval", f"{__name__}.Path", "float32", "cpu"]
    simple: list[Any] = [None, 1, b"\0" * 8, [], *names, *([name, []] for name in names), ["float32", [2], b"\0" * 8]]
    for code in range(64):
        for value in simple:
            try:
                types.add(type(unpack(msgpack.packb(msgpack.ExtType(code, msgpack.packb(value))), {})))
            except ValueError:
                continue
    assert {kind.__module__.partition(".")[0] for kind in types} <= {"builtins", "collections", "torch", "numpy"}
    assert not any(issubclass(kind, type | BaseException) for kind in types)
