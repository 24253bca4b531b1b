"""The files beside the checkpoints: metrics of any number type, a status of whoever wrote it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from graphtrain.errors import UsageError
from graphtrain.storage.run_directory import MetricsFile, read_status
from graphtrain.storage.run_files import RunFiles


@pytest.mark.parametrize("number", [float, numpy.float32, numpy.float64, torch.tensor, numpy.array])
def test_numbers_of_other_libraries_are_numbers(number: Callable[[float], Any], tmp_path: Path) -> None:
    values = {"loss": 0.5, "none": float("nan"), "large": float("-inf")}
    row: dict[str, Any] = {"step": 3, **{name: number(value) for name, value in values.items()}}
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.append(row)
    metrics.close()
    expected = '{"step": 3, "loss": 0.5, "none": "nan", "large": "-inf"}\n'
    assert (tmp_path / "metrics.jsonl").read_text() == expected
    RunFiles(tmp_path, print).write_status({"metrics": row})
    assert read_status(tmp_path)["metrics"] == json.loads(expected)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"step": 1}\n[]\n', r"metrics.jsonl:2 is not a row"),
        (b'{"step": 1}\n\xff\n', r"metrics.jsonl:2 is not a row"),
        (b'{"step": 1, "loss": null}\n', r"metrics.jsonl:1 is not a row that a run has written \(a value is not"),
        (b'{"step": 1, "loss": "low"}\n', r"metrics.jsonl:1 is not a row"),
    ],
)
def test_a_row_that_is_damaged_is_named_by_its_line(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(UsageError, match=said):
        MetricsFile(tmp_path / "metrics.jsonl").complete_rows()


def test_a_row_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    assert file.complete_rows() == []
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "loss": "nan"}\n{"step": 2, "lo')
    (row,) = file.complete_rows()
    assert row["step"] == 1 and row["loss"] != row["loss"]


@pytest.mark.parametrize("make", [os.mkfifo, lambda file: file.symlink_to("/dev/zero"), Path.mkdir])
def test_rows_are_in_a_regular_file(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "metrics.jsonl")
    with pytest.raises(UsageError, match=r"metrics.jsonl cannot be read: it is"):
        MetricsFile(tmp_path / "metrics.jsonl").complete_rows()


def test_a_text_that_is_no_utf8_is_kept(tmp_path: Path) -> None:
    RunFiles(tmp_path, print).started({}, {"source.diff": "caf\udce9"})
    assert (tmp_path / "source.diff").read_text() == "caf\\udce9"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "is not a regular file"),
        (lambda file: file.symlink_to("/dev/zero"), "is a link; in a run directory only `checkpoints` may be one"),
        (Path.mkdir, "cannot be read"),
        (lambda file: file.write_text(" " * 2_000_000), "has 2000000 bytes instead of at most 1048576"),
        (lambda file: file.write_text("[" * 100_000), "nested more than 100 deep"),
        (lambda file: file.write_text('{"step": ' + "9" * 5000 + "}"), "cannot be read"),
        (lambda file: file.write_bytes(b'{"a": "\xff"}'), "cannot be read"),
        (lambda file: file.write_text("[]"), "it is not a table"),
    ],
)
def test_a_status_that_cannot_be_read_is_reported(make: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    make(tmp_path / "status.json")
    begun = time.process_time()
    with pytest.raises(UsageError, match=said):
        read_status(tmp_path)
    assert time.process_time() - begun < 5
