"""The manifest: what every field may be, what is written of it, and which checkpoints there are."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch

from graphtrain.errors import CheckpointError, LaterFormatError
from graphtrain.storage import checkpoint, regular
from graphtrain.storage.checkpoint import SavedCheckpoint, write_checkpoint
from graphtrain.storage.manifest import (
    MANIFEST_FILE,
    Lineage,
    Manifest,
    SkippedCheckpoints,
    check_files,
    checkpoint_number,
    checkpoint_paths,
    free_number,
    names_kept,
    own_checkpoint_paths,
    read_files,
    read_manifest,
)
from graphtrain.storage.regular import checksum_of
from graphtrain.storage.state_files import StagedState
from graphtrain.storage.tensor_files import StagingBuffers
from tests.storage.facts import FACTS

HASH = "0" * 32
SOUND: dict[str, Any] = {**FACTS, "format": 1, "digest": "", "files": {}}
# Field -> values that it may have, and values that it may not.
FIELDS: dict[str, tuple[list[Any], list[Any]]] = {
    "files": (
        [{}, {"a": [0, HASH]}, {"a" * 255: [1, HASH]}, {"é" * 127 + "a": [1, HASH]}],
        [{"a" * 256: [1, HASH]}, {"é" * 128: [1, HASH]}, {"a": [1]}, {"a": [1, HASH, 1]}, {"a": [-1, HASH]},
         {"a": [True, HASH]}, {"a": [1, 1]}, {"a": [1, HASH[1:]]}, {"a": [1, HASH + "0"]}, {"a": [1, "G" * 32]},
         {"a": (1, HASH)}, {"a": "ab"}, {1: [1, HASH]}, [], {"../a": [1, HASH]}],
    ),
    "graph": (["{}"], [b"{}", None]),
    "ended": ([True, False], [0, 1, None]),
    "step": ([0, 7], [-1, 1.0, True]),
    "epoch": ([0.5, -1, 2], [True, "1", None]),
    "clocks": ([{}, {"a": 1.5, "b": 2}], [{"a": True}, {"a": "1"}, {1: 1}, []]),
    "origin": (
        [{}, {"script": "a", "code": {"a": "b"}}, {"other": 1}], [{"script": 1}, {"code": {"a": 1}}, {"code": 1}],
    ),
    "data": ([{}, {"a": {}}], [{"a": 1}, {1: {}}]),
    "about": (
        [{"given": [], "arguments": {}, "weights": {}}, {"given": ["a"], "x": 1}],
        [{"given": "a"}, {"given": [1]}, {"arguments": []}, {"weights": 1}, []],
    ),
    "seconds": ([{"a": 0, "b": 1.5}], [{"a": -1}, {"a": float("inf")}, {"a": float("nan")}, {"a": True}, {"a": "1"}]),
    "unknown": ([[], ["a"]], [["a", 1], "a", {}]),
    "replaces": ([1, 9], [0, -1, True, 1.0]),
    "ranked": ([{}, {"a": None}, {"a": 0, "b": 0.5}], [{1: 1}, {"a": "x"}, {"a": True}, [], "a"]),
    "hyper_parameters": ([{}, {"a": {}}], [{"a": 1}, [], None]),
    "window_ranks": ([1, 2, 2**20], [0, -1, True, 1.5, 2**20 + 1]),
    "ranks": ([1, 2, 2**20], [0, -1, True, 1.5, 2**20 + 1]),
    "digests": ([[], ["a"]], [[1], "a", {"a": "b"}]),
    "own": (
        [[], [{}], [{"aliases": {}, "data_content": {"a": {}}, "unknown": ["a"]}]],
        [[1], [{"unknown": "a"}], [{"unknown": [1]}], [{"data_content": {"a": 1}}], [{"aliases": []}], {}],
    ),
    "tensors": (
        [{}, {"a": {}}, {"a": {"w": "b.safetensors"}}],
        [{"a": {"w": "b"}}, {"a": {"w": 1}}, {"a": {1: "b.safetensors"}}, {"a": 1}, {"../a": {}}, {".a": {}}, []],
    ),
    "own_drift": ([True], [1, None]),
    "saved_by": ([{}, {"a": "b"}, {"a": ""}], [{"a": 1}, {1: "a"}, []]),
    "returns": ([0, 1], [-1, True]),
}  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_what_a_field_may_be(field: str) -> None:
    fitting, others = FIELDS[field]
    for value in fitting:
        assert getattr(Manifest.of({**SOUND, field: value}), field) == value
    for value in others:
        with pytest.raises(ValueError, match=f"^{field}$"):
            Manifest.of({**SOUND, field: value})


def test_what_every_checkpoint_has_to_have() -> None:
    required = {"files", "graph", "graph_hash", "position", "ended", "digest", "step", "metrics_bytes"}
    for field in SOUND:
        table = {name: value for name, value in SOUND.items() if name != field}
        if field in required:
            with pytest.raises(ValueError, match=f"^{field}$"):
                Manifest.of(table)
        else:
            assert Manifest.of(table) == Manifest.of(SOUND)
    for table in ([], 1, None, {1: 1}):  # type: ignore[assignment]
        with pytest.raises(ValueError, match=r"^it is not a table$"):
            Manifest.of(table)
    for digests, own in ((["a"], []), ([], [{}]), (["a"] * 3, [{}] * 2)):
        with pytest.raises(ValueError, match=r"^ranks$"):
            Manifest.of({**SOUND, "ranks": 2, "digests": digests, "own": own})
    assert Manifest.of({**SOUND, "ranks": 2, "digests": ["a"] * 2, "own": [{}] * 2}).ranks == 2


def test_what_few_checkpoints_need_is_written_only_there() -> None:
    table = Manifest.of(SOUND).as_plain()
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


def test_a_lineage_names_the_last_checkpoint_of_each_node() -> None:
    lineage = Lineage.of(Manifest(saved_by={"a": "000001-step-1", "b": ""}, returns=2), "000002-step-5")
    assert lineage == Lineage({"a": "000001-step-1", "b": "000002-step-5"}, 2)
    assert lineage.with_saved("new", []) is lineage
    later = lineage.with_saved("new", {"c", "a"})
    assert later == Lineage({"a": "new", "b": "000002-step-5", "c": "new"}, 2)
    assert later.savers_of("new") == ["a", "c"] and later.savers_of("none") == []
    assert later.forgotten() == Lineage({}, 2)
    assert names_kept(Manifest(saved_by={"a": "000001-step-1", "b": "", "c": "x"})) == ["000001-step-1", "x"]


@pytest.mark.parametrize(("number", "lines"), [(0, 0), (1, 1), (5, 5), (6, 1)])
def test_many_skipped_checkpoints_are_one_line(number: int, lines: int) -> None:
    said: list[str] = []
    skipped = SkippedCheckpoints(said.append)
    for index in range(number):
        skipped.add(Path(f"folder/{index}"), f"reason {index}", f"line {index}")
    skipped.report()
    assert len(said) == lines
    if number > 5:
        assert said == ["skipped 6 checkpoints in folder: `0`, `1`, `2` and 3 more; the first: reason 0"]
    else:
        assert said == [f"line {index}" for index in range(number)]
    skipped.report()
    assert len(said) == lines, "each is reported once"


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


@pytest.mark.parametrize(
    ("version", "shown", "is_later"),
    [(2, "2", True), (0, "0", False), (-1, "-1", False), (1.0, "of type float", False), ("1", "of type str", False),
     (True, "True", False)],
)  # fmt: skip
def test_another_format_is_refused(version: Any, shown: str, is_later: bool, tmp_path: Path) -> None:
    path = written(tmp_path)
    seal(path, format=version)
    with pytest.raises(CheckpointError) as refused:
        read_manifest(path)
    assert str(refused.value) == f"{path}: format {shown} is not known to this version\n  hint: use a later graphtrain"
    assert isinstance(refused.value, LaterFormatError) is is_later


BROKEN: list[tuple[Callable[[Path], Any], str]] = [
    (Path.unlink, "the manifest cannot be read (No such file or directory)"),
    (lambda file: file.write_bytes(b"\xc1"), "the manifest is torn or foreign (FormatError)"),
    (lambda file: file.write_bytes(msgpack.packb({"a": 1})), "the manifest is torn or foreign (KeyError)"),
    (lambda file: file.write_bytes(msgpack.packb([])), "the manifest is torn or foreign (TypeError)"),
    (
        lambda file: file.write_bytes(msgpack.packb({"sha256": "", "manifest": b""})),
        "the manifest does not match its checksum",
    ),
    (
        lambda file: seal(file.parent, about={"a": msgpack.Timestamp(1)}),
        "the manifest is torn or foreign (it has a value of type Timestamp)",
    ),
    (lambda file: seal(file.parent, step=-1), "the manifest is torn or foreign (step)"),
    (
        lambda file: (file.unlink(), file.symlink_to("x")),
        f"{MANIFEST_FILE} is a link; in a run directory only `checkpoints` may be one",
    ),
    (
        lambda file: os.truncate(file, (64 << 20) + 1),
        f"{MANIFEST_FILE} has 67108865 bytes instead of at most 67108864",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "reason"), BROKEN)
def test_a_manifest_that_cannot_be_read(damage: Callable[[Path], Any], reason: str, tmp_path: Path) -> None:
    path = written(tmp_path)
    damage(path / MANIFEST_FILE)
    with pytest.raises(CheckpointError) as refused:
        read_manifest(path)
    assert str(refused.value) == f"{path}: {reason}"
    assert refused.value.__cause__ is None, "it is so for ever"


def test_what_may_be_temporary_is_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a checkpoint is not thought to be damaged for ever."""
    path = written(tmp_path)
    manifest = read_manifest(path)
    with monkeypatch.context() as patched:
        denied = PermissionError(errno.EACCES, "Permission denied")
        patched.setattr(regular.os, "open", lambda *words: (_ for _ in ()).throw(denied))
        for act, what in (
            (lambda: read_manifest(path), "the manifest"),
            (lambda: check_files(path, manifest), r"[a-z]+\.(safetensors|msgpack)"),
        ):
            with pytest.raises(
                CheckpointError, match=rf"^{path}: {what} cannot be read \(Permission denied\)$"
            ) as failed:
                act()
            assert failed.value.__cause__ is denied
    monkeypatch.setattr(regular, "_memory", lambda: 10)
    with pytest.raises(
        CheckpointError, match=r"its files cannot be read .* bytes are more than the 10 of memory"
    ) as failed:
        check_files(path, manifest)
    assert isinstance(failed.value.__cause__, OSError)


def test_a_file_is_read_once_and_compared_with_its_checksum(tmp_path: Path) -> None:
    content = b"0123456789"
    (tmp_path / "file").write_bytes(content)
    files = {"file": [10, checksum_of([content])]}

    def failing(error: Exception) -> Callable[..., Any]:
        def read(name: str, file: Any) -> Any:
            file.read(3)
            raise error

        return read

    assert read_files(tmp_path, files, lambda name, file: (name, bytes(file.read(4)))) == {"file": ("file", b"0123")}
    for read, reason in (
        (failing(ValueError("is no file")), "file is no file"),
        (failing(MemoryError()), "file has 10 bytes, which do not fit into memory"),
        (lambda name, file: file.read(11), "file has 10 bytes instead of 10"),
    ):
        with pytest.raises(CheckpointError) as refused:
            read_files(tmp_path, files, read)
        assert str(refused.value) == f"{tmp_path}: {reason}"
    for read in (failing(ValueError("is no file")), lambda name, file: b""):
        with pytest.raises(CheckpointError) as refused:
            read_files(tmp_path, {"file": [10, HASH]}, read)
        assert str(refused.value) == f"{tmp_path}: file does not match its checksum", "its content says nothing"
    with pytest.raises(CheckpointError) as refused:
        read_files(tmp_path, {"file": [9, HASH]}, lambda name, file: b"")
    assert str(refused.value) == f"{tmp_path}: file has 10 bytes instead of 9"


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


def test_a_past_checkpoint_keeps_its_numbers(tmp_path: Path) -> None:
    read = SavedCheckpoint.read(written(tmp_path, step=7, epoch=1.5, returns=2, saved_by={"a": ""}))
    assert read.counts == {"step": {"steps": 3, "rate": 0.5, "flag": True}}
    assert (read.device, read.ranks, read.returns, read.trained) == ("cpu", 1, 2, (7, 1.5))


def test_the_device_is_the_first_that_is_not_the_cpu() -> None:
    tensor, moved = torch.ones(1), torch.ones(1, device="meta")
    for value, device in (
        (tensor, ""), (moved, "meta"), ({"a": tensor, "b": [1, (tensor, moved)]}, "meta"), ([tensor, "text", {}], ""),
    ):  # fmt: skip
        assert checkpoint._device(value) == device
