"""The manifest: what every field may be, what is written of it, and which checkpoints there are."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch

from graphtrain.errors import CheckpointError, LaterFormatError
from graphtrain.storage.checkpoint import SavedCheckpoint, write_checkpoint
from graphtrain.storage.manifest import (
    MANIFEST_FILE,
    Manifest,
    check_files,
    checkpoint_number,
    checkpoint_paths,
    free_number,
    own_checkpoint_paths,
    read_files,
    read_manifest,
)
from graphtrain.storage.regular import checksum_of
from graphtrain.storage.state_files import StagedState
from graphtrain.storage.tensor_files import StagingBuffers
from tests.storage.facts import FACTS


def test_what_few_checkpoints_need_is_written_only_there() -> None:
    table = Manifest().as_plain()
    assert table["format"] == 1 and table["epoch"] == 0 and table["tensors"] == {}
    omitted = {
        "clock_of": "a", "clocks": {"a": 1.0}, "replaces": 2, "not_finite": "a", "ranked": {"a": None},
        "hyper_parameters": {}, "hyper_parameters_in_force": {}, "window_ranks": 2, "ranks": 2, "digests": ["a"],
        "own": [{}], "own_drift": True, "saved_by": {"a": ""}, "returns": 1,
    }  # fmt: skip
    assert not table.keys() & omitted.keys()
    for name, value in omitted.items():
        assert Manifest(**{name: value}).as_plain()[name] == value


def test_what_is_in_force_and_the_lowest_number(tmp_path: Path) -> None:
    made, changed = {"a": {"lr": 1}}, {"a": {"lr": 2}}
    assert Manifest().in_force is None and Manifest(hyper_parameters=made).in_force == made
    assert Manifest(hyper_parameters=made, hyper_parameters_in_force=changed).in_force == changed
    path = tmp_path / "000007-step-9"
    assert checkpoint_number(path) == Manifest().first_number(path) == 7
    assert Manifest(replaces=3).first_number(path) == 3


def test_which_folders_are_checkpoints(tmp_path: Path) -> None:
    assert checkpoint_paths(tmp_path / "none") == [] and free_number(tmp_path / "none") == 1
    for name in ("000010-step-3", "000002-step-1", "1000000-step-9", "00001-step-1", "000003-step-", "x000004-step-4"):
        (tmp_path / name).mkdir()
    (tmp_path / "000002-step-1" / MANIFEST_FILE).symlink_to("nowhere")
    (tmp_path / "000011-step-3").symlink_to("000002-step-1")
    names = ["000002-step-1", "000010-step-3", "000011-step-3", "1000000-step-9"]
    assert [path.name for path in checkpoint_paths(tmp_path)] == names
    assert [path.name for path in own_checkpoint_paths(tmp_path)] == names[:1], "neither empty folders nor links"
    assert free_number(tmp_path) == 1_000_001


# ---- reading


def written(folder: Path, **facts: Any) -> Path:
    path = folder / "000001-step-1"
    state = {
        "resources": {"model": {"w": torch.ones(3)}, "optimizer": {"state": [{"lr": 1, "n": torch.ones(1)}]}},
        "progress": {"step": {"steps": 3, "rate": 0.5, "name": "x", "flag": True}},
    }
    write_checkpoint(path, StagedState(state, {}, StagingBuffers()), Manifest(**{**FACTS, **facts}))
    return path


def seal(path: Path, **changes: Any) -> None:
    table = msgpack.unpackb(msgpack.unpackb((path / MANIFEST_FILE).read_bytes())["manifest"])
    body = msgpack.packb({**table, **changes})
    outer = {"sha256": hashlib.sha256(body).hexdigest(), "manifest": body}
    (path / MANIFEST_FILE).write_bytes(msgpack.packb(outer))


@pytest.mark.parametrize(("version", "is_later"), [(2, True), (0, False), ("1", False)])
def test_another_format_is_refused(version: Any, is_later: bool, tmp_path: Path) -> None:
    path = written(tmp_path)
    seal(path, format=version)
    with pytest.raises(CheckpointError, match=f"format {version} is not known to this version") as refused:
        read_manifest(path)
    assert isinstance(refused.value, LaterFormatError) is is_later


BROKEN: list[tuple[Callable[[Path], Any], str]] = [
    (Path.unlink, "cannot be read (No such file or directory)"),
    (lambda file: file.write_bytes(b"\xc1"), "is damaged (FormatError)"),
    (lambda file: file.write_bytes(msgpack.packb({"a": 1})), "is damaged (KeyError)"),
    (lambda file: file.write_bytes(msgpack.packb([])), "is damaged (TypeError)"),
    (
        lambda file: file.write_bytes(msgpack.packb({"sha256": "", "manifest": b""})),
        "is damaged (it does not match its checksum)",
    ),
]


@pytest.mark.parametrize(("damage", "reason"), BROKEN)
def test_a_manifest_that_cannot_be_read(damage: Callable[[Path], Any], reason: str, tmp_path: Path) -> None:
    path = written(tmp_path)
    damage(path / MANIFEST_FILE)
    with pytest.raises(CheckpointError) as refused:
        read_manifest(path)
    assert str(refused.value) == f"{path}: the manifest {reason}"
    assert refused.value.__cause__ is None, "it is so for ever"


def test_what_may_be_temporary_is_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a checkpoint is not thought to be damaged for ever."""
    path = written(tmp_path)
    manifest = read_manifest(path)
    denied = PermissionError(errno.EACCES, "Permission denied")
    monkeypatch.setattr("pathlib.Path.open", lambda *words, **options: (_ for _ in ()).throw(denied))
    with pytest.raises(CheckpointError, match=r"cannot be read \(Permission denied\)$") as failed:
        check_files(path, manifest)
    assert failed.value.__cause__ is denied


def test_a_file_is_compared_with_its_checksum_before_it_is_read(tmp_path: Path) -> None:
    content = b"0123456789"
    (tmp_path / "file").write_bytes(content)
    files = {"file": [10, checksum_of([content])]}

    def failing(error: Exception) -> Callable[[Path], Any]:
        def read(file: Path) -> Any:
            raise error

        return read

    assert read_files(tmp_path, files, Path.read_bytes) == {"file": content}
    for listed, read, reason in (
        (files, failing(ValueError("is no file")), "file is damaged: it is no file"),
        (files, failing(MemoryError()), "file has 10 bytes, which do not fit into memory"),
        (
            {"file": [10, "0" * 32]},
            failing(ValueError("no")),
            "file is damaged: it does not match its checksum",
        ),
        ({"file": [9, "0" * 32]}, Path.read_bytes, "file is damaged: it has 10 bytes instead of 9"),
    ):
        with pytest.raises(CheckpointError) as refused:
            read_files(tmp_path, listed, read)
        assert str(refused.value) == f"{tmp_path}: {reason}"


# ---- checkpoints of a past run


def saved(**facts: Any) -> SavedCheckpoint:
    return SavedCheckpoint(Path("000001-step-1"), Manifest(**facts), {}, "cpu")


INNER = {"clock_of": "stage", "position": "stage/step"}
LEADS: list[tuple[dict[str, Any], dict[str, Any], bool]] = [
    ({"step": 1, "epoch": 0.5}, {"step": 1, "epoch": 0.5}, True),
    ({"step": 1, "epoch": 0.5}, {"step": 2, "epoch": 0.5}, True),
    ({"step": 2, "epoch": 0.5}, {"step": 1, "epoch": 0.5}, False),
    ({"step": 1, "epoch": 1}, {"step": 2, "epoch": 0.5}, False),
    ({"metrics_bytes": 5}, {"metrics_bytes": 5}, True),
    ({"metrics_bytes": 5}, {"metrics_bytes": 4, "step": 9}, False),
    # In one stage, by its own steps; in another, by the clocks around it.
    ({**INNER, "clocks": {"a": 1}, "step": 3}, {**INNER, "clocks": {"a": 1}, "step": 2}, False),
    ({**INNER, "clocks": {"a": 1}, "step": 3}, {**INNER, "clocks": {"a": 1}, "step": 3}, True),
    ({**INNER, "clocks": {"a": 1}, "step": 3}, {**INNER, "clocks": {"a": 2}, "step": 1}, True),
    ({**INNER, "clocks": {"a": 2}, "step": 1}, {**INNER, "clocks": {"a": 1}, "step": 3}, False),
    ({**INNER, "clocks": {"a": 1}, "step": 3}, {**INNER, "clocks": {"a": 1}, "step": 2, "position": "stage"}, True),
    # Which training it is in is not known where no clock is around it.
    ({**INNER, "clocks": {}, "step": 3}, {**INNER, "clocks": {}, "step": 2}, True),
    ({"step": 3}, {**INNER, "clocks": {"a": 1}, "step": 2}, True),
]  # fmt: skip


@pytest.mark.parametrize(("older", "newer", "leads"), LEADS)
def test_whether_a_run_came_from_one_checkpoint_to_another(
    older: dict[str, Any], newer: dict[str, Any], leads: bool
) -> None:
    assert saved(**older).leads_to(saved(**newer)) is leads
