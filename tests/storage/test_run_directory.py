"""The files beside the checkpoints: metrics of any number type, a status of whoever wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from graphtrain.errors import UsageError
from graphtrain.storage.run_directory import (
    MetricsFile,
    Ranking,
    read_rankings,
    read_status,
    write_rankings,
)
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
        (b'{"step": 1, "loss": null}\n', r"metrics.jsonl:1 is not a row that a run has written"),
        (b'{"step": 1, "loss": "low"}\n', r"metrics.jsonl:1 is not a row"),
    ],
)
def test_a_row_that_is_damaged_is_named_by_its_line(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(UsageError, match=said):
        MetricsFile(tmp_path / "metrics.jsonl").numbers()


def test_a_row_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "metrics.jsonl")
    assert file.numbers() == []
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "loss": "nan"}\n{"step": 2, "lo')
    (row,) = file.numbers()
    assert row["step"] == 1 and row["loss"] != row["loss"]


def test_a_text_that_is_no_utf8_is_kept(tmp_path: Path) -> None:
    RunFiles(tmp_path, print).started({}, {"source.diff": "caf\udce9"})
    assert (tmp_path / "source.diff").read_text() == "caf\\udce9"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Path.mkdir, "cannot be read"),
        (lambda file: file.write_bytes(b'{"a": "\xff"}'), "cannot be read"),
        (lambda file: file.write_text("[]"), "it is not a table"),
    ],
)
def test_a_status_that_cannot_be_read_is_reported(make: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    make(tmp_path / "status.json")
    with pytest.raises(UsageError, match=said):
        read_status(tmp_path)


# ---- rows


def rows_of(path: Path, count: int) -> MetricsFile:
    metrics = MetricsFile(path)
    for step in range(count):
        metrics.append({"step": step, "loss": float("nan")})
    return metrics


ROW = b'{"step": 0, "loss": "nan"}\n'


def test_rows_are_cut_back_to_those_of_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path)
    assert metrics.length() == 0 and not path.exists()
    metrics.cut(0)
    assert not path.exists()
    metrics = rows_of(path, 3)
    assert metrics.length() == 3 * len(ROW) == path.stat().st_size
    assert [row["step"] for row in metrics.numbers(2 * len(ROW))] == [0, 1]
    assert str(metrics.numbers(len(ROW))) == "[{'step': 0, 'loss': nan}]"
    metrics.cut(len(ROW))
    assert path.read_bytes() == ROW
    metrics.append({"step": 7})
    metrics.close()
    metrics.close()
    assert path.read_bytes() == ROW + b'{"step": 7}\n' and metrics.length() == len(ROW) + 12
    metrics.cut(len(ROW) + 12)
    assert metrics.numbers()[1] == {"step": 7}
    with pytest.raises(UsageError) as refused:
        metrics.cut(99)
    assert str(refused.value) == (
        f"{path} has 39 bytes, but the checkpoint was made when it had 99\n"
        "  hint: it was changed since; resume from another checkpoint, or into another run directory"
    )


# ---- whose file it is


# ---- the ranking


def test_rankings_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    assert read_rankings(path) == {}
    ranking, other = Ranking("loss", "max", {"b": 2.0, "a": 1.5}), Ranking("error")
    write_rankings(path, {"node": ranking})
    entries = [{"checkpoint": "b", "value": 2}, {"checkpoint": "a", "value": 1.5}]
    assert json.loads(path.read_text()) == {"metric": "loss", "mode": "max", "checkpoints": entries, "node": "node"}
    assert read_rankings(path) == {"node": ranking}
    write_rankings(path, {"other": other, "node": ranking})
    assert [*read_rankings(path).items()] == [("other", other), ("node", ranking)]
    assert ranking.best == {"checkpoint": "b", "metric": "loss", "value": 2.0} and other.best is None
    for _ in range(2):
        write_rankings(path, {"node": other})
        assert not path.exists()
    for damaged in ("of somebody", "[]", '{"metric": "loss"}'):
        path.write_text(damaged)
        assert read_rankings(path) == {}


# ---- which checkpoints are kept
