"""The file of predictions: what a resume cuts off, how columns become one file, and whose file it is."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from graphtrain.errors import CheckpointError, UsageError
from graphtrain.storage.predictions import PredictionsFile, grown

NARROW, WIDE = torch.arange(6, dtype=torch.int16).reshape(3, 2), torch.arange(3.0, dtype=torch.float64)
LARGE = torch.arange(3.0 * (1 << 17), dtype=torch.float64).reshape(3, 1 << 17)  # several pieces
COLUMNS: dict[str, dict[str, Any]] = {
    "narrow": {"type": "I16", "shape": [2]},
    "wide": {"type": "F64", "shape": []},
}


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()


def predicted(file: PredictionsFile) -> dict[str, dict[str, Any]]:
    """The columns after three samples, the first of which came in a batch of its own."""
    file.open({})
    columns = COLUMNS
    for rows in (slice(0, 1), slice(1, 3)):
        contents = [bytes_of(NARROW[rows]), bytes_of(WIDE[rows])]
        file.append(contents)
        columns = {
            name: grown(column, content) for (name, column), content in zip(columns.items(), contents, strict=True)
        }
    return columns


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_columns_become_one_file_and_columns_again(tmp_path: Path) -> None:
    """Until the end of the run is saved, it may be resumed from before."""
    path = tmp_path / "p.safetensors"
    file = PredictionsFile(path)
    assert file.holds_tensors
    columns = predicted(file)
    assert [column["bytes"] for column in columns.values()] == [12, 24]
    parts = ["p.safetensors.0.part", "p.safetensors.1.part"]
    assert names(tmp_path) == parts
    file.append([b"lost", b"too"])
    file.open(columns)
    file.finish(columns, 3)
    assert names(tmp_path) == ["p.safetensors"]
    content = path.read_bytes()
    loaded = safetensors.torch.load(content)
    assert torch.equal(loaded["narrow"], NARROW) and torch.equal(loaded["wide"], WIDE)
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert header["wide"]["data_offsets"] == [0, 24], "wide values first, each at a multiple of its width"
    file.open(columns)
    assert names(tmp_path) == parts
    file.finish(columns, 3)
    assert path.read_bytes() == content and names(tmp_path) == ["p.safetensors"]


def test_parts_that_are_left_beside_the_whole_are_what_counts(tmp_path: Path) -> None:
    file = PredictionsFile(tmp_path / "p.safetensors")
    columns = predicted(file)
    (tmp_path / "p.safetensors").write_bytes(b"begun")
    file.open(columns)
    file.finish(columns, 3)
    assert torch.equal(safetensors.torch.load_file(tmp_path / "p.safetensors")["wide"], WIDE)


def test_columns_of_several_megabytes(tmp_path: Path) -> None:
    file, content = PredictionsFile(tmp_path / "p.safetensors"), bytes_of(LARGE)
    column = {"large": grown({"type": "F64", "shape": [1 << 17]}, content)}
    file.open({})
    file.append([content + b"lost"])
    for _ in range(2):
        file.open(column)
        file.finish(column, 3)
        assert torch.equal(safetensors.torch.load_file(tmp_path / "p.safetensors")["large"], LARGE)


def test_no_samples(tmp_path: Path) -> None:
    file = PredictionsFile(tmp_path / "p.safetensors")
    columns = {name: grown(column, b"") for name, column in COLUMNS.items()}
    file.open({})
    file.append([b"", b""])
    file.finish(columns, 0)
    loaded = safetensors.torch.load_file(tmp_path / "p.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in loaded.items()} == {"narrow": (0, 2), "wide": (0,)}


def test_lines_are_one_column(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    file, column = PredictionsFile(path), grown({}, b'{"a": 1}\n')
    assert not file.holds_tensors
    file.open({})
    file.append([b'{"a": 1}\n'])
    file.append([b"cut"])
    for _ in range(2):
        file.open({"": column})
        assert names(tmp_path) == ["p.jsonl.part"]
        file.finish({"": column}, 1)
        assert names(tmp_path) == ["p.jsonl"] and path.read_bytes() == b'{"a": 1}\n'


@pytest.mark.parametrize("suffix", ["safetensors", "jsonl"])
def test_a_new_run_removes_what_a_killed_one_has_left_and_nothing_else(suffix: str, tmp_path: Path) -> None:
    file = PredictionsFile(tmp_path / f"p.{suffix}")
    (tmp_path / "p.part").touch()
    file.open({})
    file.append([b"a"] if suffix == "jsonl" else [b"a"] * 3)
    assert len(names(tmp_path)) > 1
    file.open({})
    assert names(tmp_path) == ["p.part"]


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        PredictionsFile(tmp_path / "p.csv")
    assert str(refused.value) == (
        f"predictions_file: the name must end in .safetensors or .jsonl, got `{tmp_path}/p.csv`\n"
        "  hint: safetensors holds tensors; jsonl has a line of JSON for each sample"
    )
    with pytest.raises(UsageError) as refused:
        PredictionsFile(tmp_path / "none" / "p.jsonl")
    assert str(refused.value) == f"predictions_file: there is no folder `{tmp_path}/none`\n  hint: make it first"
    (tmp_path / "p.jsonl").touch()
    with pytest.raises(UsageError) as refused:
        PredictionsFile(tmp_path / "p.jsonl").open({})
    assert str(refused.value) == (
        f"`{tmp_path}/p.jsonl` exists; a file is never overwritten\n  hint: remove it, or choose another"
    )
    (tmp_path / "q.jsonl.part").mkdir()
    with pytest.raises(CheckpointError) as failed:
        PredictionsFile(tmp_path / "q.jsonl").append([b"a"])
    assert str(failed.value) == f"cannot write {tmp_path}/q.jsonl: Is a directory"


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: b"\x07" + data[1:], lambda data: b"", lambda data: b"\x07" + data]
)
def test_a_column_that_was_changed_is_refused(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    file = PredictionsFile(tmp_path / "p.safetensors")
    columns = predicted(file)
    part = tmp_path / "p.safetensors.1.part"
    part.write_bytes(change(part.read_bytes()))
    with pytest.raises(UsageError) as refused:
        file.open(columns)
    assert str(refused.value) == (
        f"`{part}` was changed since the run wrote it\n  hint: predict again, into another run directory"
    )


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"\x02" + bytes(7) + b"{}", b"\x02" + bytes(7) + b"[]"])
def test_a_whole_file_that_was_changed_is_refused(content: bytes, tmp_path: Path) -> None:
    file = PredictionsFile(tmp_path / "p.safetensors")
    columns = predicted(file)
    file.finish(columns, 3)
    (tmp_path / "p.safetensors").write_bytes(content)
    with pytest.raises(UsageError) as refused:
        file.open(columns)
    assert str(refused.value) == (
        f"`{tmp_path}/p.safetensors` was changed since the run wrote it\n  hint: predict into another file"
    )
