"""The file of predictions: what a resume keeps, how batches become one file, and whose file it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

from graphtrain.errors import CheckpointError, UsageError
from graphtrain.storage.encoding import TYPES
from graphtrain.storage.predictions import PredictionsFile

VALUES = {
    "narrow": torch.arange(6, dtype=torch.int16).reshape(3, 2),
    **{str(dtype): torch.zeros(3, dtype=dtype) for dtype in TYPES},
}
LINES = [b"1\n", b"2\n", b"3\n"]


def predicted(file: PredictionsFile) -> None:
    """Three samples, the first of which came in a batch of its own; and one that is lost."""
    file.open(0)
    for first, rows in ((0, slice(0, 1)), (1, slice(1, 3)), (3, slice(0, 1))):
        tensors = {name: values[rows].clone() for name, values in VALUES.items()}
        file.append(first, safetensors.torch.save(tensors) if file.holds_tensors else b"".join(LINES[rows]))


def check(path: Path) -> None:
    if path.suffix == ".jsonl":
        assert path.read_bytes() == b"".join(LINES)
        return
    loaded = safetensors.torch.load_file(path)
    assert loaded.keys() == VALUES.keys()
    assert all(loaded[name].dtype == values.dtype for name, values in VALUES.items())
    assert torch.equal(loaded["narrow"], VALUES["narrow"]) and {len(values) for values in loaded.values()} == {3}


@pytest.mark.parametrize("suffix", ["safetensors", "jsonl"])
def test_batches_become_one_file_and_a_run_goes_on_from_before(suffix: str, tmp_path: Path) -> None:
    """Until the end of the run is saved, it may be resumed from an earlier sample."""
    path = tmp_path / f"p.{suffix}"
    file = PredictionsFile(path)
    predicted(file)
    assert [part.name for part in tmp_path.iterdir()] == [f"p.{suffix}.parts"]
    file.open(3)
    file.finish(3)
    assert [part.name for part in tmp_path.iterdir()] == [path.name]
    check(path)
    file.open(1)
    assert not path.exists()
    rest = {name: values[1:].clone() for name, values in VALUES.items()}
    file.append(1, safetensors.torch.save(rest) if file.holds_tensors else b"".join(LINES[1:]))
    file.finish(3)
    check(path)
    with pytest.raises(UsageError, match="exists; a file is never overwritten"):
        file.open(0)


@pytest.mark.parametrize("suffix", ["safetensors", "jsonl"])
def test_a_part_that_is_gone_is_found(suffix: str, tmp_path: Path) -> None:
    file = PredictionsFile(tmp_path / f"p.{suffix}")
    predicted(file)
    file.open(3)
    next((tmp_path / f"p.{suffix}.parts").glob("*1.*")).unlink()
    with pytest.raises(UsageError, match="was changed since the run wrote it"):
        file.finish(3)


def test_where_no_file_can_be(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the name must end in \.safetensors or \.jsonl"):
        PredictionsFile(tmp_path / "p.csv")
    with pytest.raises(UsageError, match="there is no folder"):
        PredictionsFile(tmp_path / "none" / "p.jsonl")
    (tmp_path / "q.jsonl.parts").touch()
    with pytest.raises(CheckpointError, match=r"cannot write .*q\.jsonl: File exists"):
        PredictionsFile(tmp_path / "q.jsonl").append(0, b"a\n")
