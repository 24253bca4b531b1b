"""Our files are replaced as a whole."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

from graphtrain.storage.regular import parsed_json, replace_file, temporary_name, write_pieces


def test_numbers_that_json_does_not_have_are_texts() -> None:
    assert parsed_json("[NaN, Infinity, -Infinity, 1.5, 2]") == ["nan", "inf", "-inf", 1.5, 2]


# ---- writing


@pytest.mark.parametrize("flush", [False, True])
def test_a_file_is_replaced_as_a_whole(flush: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a process of the same number has left its temporary file, and through no link."""
    path, flushed = tmp_path / "file", []

    def fsync(descriptor: int) -> None:
        assert path.read_bytes() != b"new", "before it has its name"
        flushed.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    (tmp_path / "other").write_bytes(b"other")
    path.symlink_to("other")
    temporary_name(path).write_bytes(b"left behind, and longer")
    replace_file(path, b"new", flush=flush)
    assert path.read_bytes() == b"new" and not path.is_symlink() and (tmp_path / "other").read_bytes() == b"other"
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "other"]
    assert flushed == ([3] if flush else [])


def test_a_file_that_cannot_be_replaced_stays_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "file" / "inside").mkdir(parents=True)
    with pytest.raises(OSError):
        replace_file(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "none" / "file", b"new")


def test_what_is_large_is_written_in_as_many_calls_as_the_system_wants() -> None:
    """It takes no more than 2 GB at a time, and says nothing of the rest."""
    taken: list[bytes] = []

    class Slow(io.FileIO):
        def write(self, data: Any) -> int:
            taken.append(bytes(data[:7]))
            return len(taken[-1])

    data = bytes(range(100))
    with Slow(os.devnull, "w") as file:
        assert write_pieces(file, [data, b"", memoryview(data)]) == 200
    assert b"".join(taken) == data + data
