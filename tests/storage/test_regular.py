"""Files of strangers are read only if they are regular ones; ours are replaced as a whole."""

from __future__ import annotations

import errno
import io
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from graphtrain.storage import regular
from graphtrain.storage.regular import (
    HashedReader,
    NotAsAgreedError,
    expect_plain,
    expect_room,
    open_regular,
    opened_regular,
    parsed_json,
    read_regular,
    replace_file,
    temporary_name,
    write_pieces,
)


def as_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


LINK, IRREGULAR = "is a link; in a run directory only `checkpoints` may be one", "is not a regular file"


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_WRONLY | os.O_CREAT])
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Path.mkdir, IRREGULAR), (os.mkfifo, IRREGULAR), (as_socket, IRREGULAR),
        (lambda path: path.symlink_to("/"), LINK), (lambda path: path.symlink_to("nowhere"), LINK),
    ],
)  # fmt: skip
def test_what_is_no_regular_file_is_never_opened(
    make: Callable[[Path], Any], reason: str, flags: int, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    make(path)
    before = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    with pytest.raises(NotAsAgreedError) as refused:
        open_regular(path, flags)
    assert str(refused.value) == reason
    assert not before or os.listdir("/proc/self/fd") == before, "nothing stays open"


def test_a_new_file_has_the_rights_of_any_other(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "file")
    mask = os.umask(0)
    try:
        os.close(open_regular(tmp_path / "file", os.O_WRONLY | os.O_CREAT))
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666


def test_a_file_has_the_size_agreed_on_and_fits_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert read_regular(path, 10) == read_regular(path, 11) == read_regular(path, 10, exactly=True) == b"0123456789"
    for most, exactly, expected in ((9, False, "at most 9"), (9, True, "9"), (11, True, "11")):
        with pytest.raises(NotAsAgreedError) as refused:
            read_regular(path, most, exactly=exactly)
        assert str(refused.value) == f"has 10 bytes instead of {expected}"
    monkeypatch.setattr(regular, "_memory", lambda: 10)
    assert read_regular(path, 10) == b"0123456789"
    expect_room(10)
    monkeypatch.setattr(regular, "_memory", lambda: 9)
    with pytest.raises(OSError, match="10 bytes are more than the 9 of memory here") as failed:
        read_regular(path, 10)
    assert failed.value.errno == errno.ENOMEM


@pytest.mark.parametrize(
    ("pages", "limit", "memory"),
    [(10, "max\n", 40960), (10, None, 40960), (10, "5000\n", 5000), (10, "99999\n", 40960), (None, None, 2**63),
     (None, "5000\n", 5000)],
)  # fmt: skip
def test_the_memory_is_that_of_the_machine_or_of_the_container(
    pages: int | None, limit: str | None, memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sysconf(name: str) -> int:
        if pages is None:
            raise ValueError("unrecognized configuration name")
        return {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": pages}[name]

    monkeypatch.setattr(regular.os, "sysconf", sysconf)
    monkeypatch.setattr(regular, "_LIMIT_OF_THE_GROUP", tmp_path / "memory.max")
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
    assert regular._memory.__wrapped__() == memory


def nested(depth: int, around: Callable[[Any], Any]) -> Any:
    value: Any = around(())
    for _ in range(depth - 1):
        value = around([value])
    return value


@pytest.mark.parametrize("around", [list, lambda parts: dict(enumerate(parts))], ids=["lists", "tables"])
def test_how_deep_plain_data_may_be(around: Callable[[Any], Any]) -> None:
    expect_plain(nested(101, around))
    with pytest.raises(ValueError, match=r"^it is nested more than 100 deep$"):
        expect_plain(nested(102, around))
    with pytest.raises(ValueError, match=r"^it has a value of type set$"):
        expect_plain([{"a": [set()]}])


def test_numbers_that_json_does_not_have_are_texts() -> None:
    assert parsed_json("[NaN, Infinity, -Infinity, 1e999, -1e999, 1.5, 2]") == [
        "nan",
        "inf",
        "-inf",
        "inf",
        "-inf",
        1.5,
        2,
    ]


def test_a_file_is_hashed_while_it_is_read(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9000  # more than two pieces
    (tmp_path / "file").write_bytes(data)
    for first in (0, 5, len(data)):
        with opened_regular(tmp_path / "file", len(data)) as file:
            reader = HashedReader(file, len(data))
            assert reader.read(first) == data[:first]
            assert (reader.size, reader.left) == (len(data), len(data) - first)
            assert reader.checksum() == xxhash.xxh3_128_hexdigest(data) and reader.left == 0
    with opened_regular(tmp_path / "file", len(data)) as file:
        reader = HashedReader(file, len(data) + 2)
        with pytest.raises(NotAsAgreedError) as refused:
            reader.checksum()
        assert str(refused.value) == f"has {len(data)} bytes instead of {len(data) + 2}"


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
