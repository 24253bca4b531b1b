"""Untrusted files are read only if they are regular files: no links, devices or pipes, not larger than expected, not
nested too deeply. The files of a run directory are written atomically, never through links.
"""

from __future__ import annotations

import errno
import functools
import io
import json
import math
import mmap
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

import xxhash

_MAX_DEPTH = 100
_NOT_FINITE = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
_LIMIT_OF_THE_GROUP = Path("/sys/fs/cgroup/memory.max")  # of the container, where there is one
_PIECE = 1 << 20  # bytes in a read, hashed while they are in the cache, and in a write: of 4 MB, 1.1 to 5 times as long
# What interrupted processes leave behind, with their process ids.
_TEMPORARY_FILE = re.compile(r"\.(probe|status\.json|best\.json|source-[0-9a-f]+\.diff)\.\d+\.tmp")
_TEMPORARY_FOLDER = re.compile(r"\.\d{6,}-step-\d+(\.\d+\.\d+|\.removed(\.\d+)?)\.tmp")


class NotAsAgreedError(ValueError):
    """An unexpected file: a link, not a regular file, or of another size; the text follows the name of the file."""


@contextmanager
def opened_regular(path: Path, most: int, *, exactly: bool = False) -> Iterator[io.FileIO]:
    """Open a regular file for unbuffered reading.

    Arguments:
        most: the largest allowed size, in bytes.
        exactly: True if it must have exactly this size. Default: it may be smaller.

    Raises:
        NotAsAgreedError: it is not such a file; raised before any of it is read.
        OSError: it cannot be opened, or is larger than memory.
    """
    with open(open_regular(path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most or (exactly and size != most):
            expected = str(most) if exactly else f"at most {most}"
            raise NotAsAgreedError(f"has {size} bytes instead of {expected}")
        expect_room(size)
        yield file


def read_regular(path: Path, most: int, *, exactly: bool = False) -> bytes:
    """The bytes of a regular file; the arguments are those of `opened_regular`.

    Raises:
        NotAsAgreedError: it is not such a file; raised before any of it is read.
        OSError: it cannot be opened or read, or is larger than memory.
    """
    with opened_regular(path, most, exactly=exactly) as file, io.BufferedReader(file) as buffered:
        return buffered.read(os.fstat(file.fileno()).st_size)


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file that is not a link; returns its descriptor.

    Arguments:
        flags: as for `os.open`. Default: read-only.

    Raises:
        NotAsAgreedError: it is a link, a folder, a pipe or a device.
        OSError: it cannot be opened.
    """
    try:
        # Non-blocking: to open a pipe that has no writer would block forever.
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if os.path.islink(path):
            raise NotAsAgreedError("is a link; in a run directory only `checkpoints` may be one") from None
        if error.errno in (errno.ENXIO, errno.EISDIR):  # a pipe, a socket; a folder
            raise NotAsAgreedError("is not a regular file") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotAsAgreedError("is not a regular file")
    return descriptor


def expect_room(size: int) -> None:
    """Raise an OSError if this many bytes exceed the memory of this machine: a sparse file can have any size."""
    if size > (memory := _memory()):
        raise OSError(errno.ENOMEM, f"{size} bytes are more than the {memory} of memory here")


@functools.cache
def _memory() -> int:
    """The most memory that this process can have, in bytes."""
    limits = [2**63]
    with suppress(OSError, ValueError, AttributeError):  # another system; "max"
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):
        limits.append(int(_LIMIT_OF_THE_GROUP.read_text()))
    return min(limits)


def parsed_json(data: bytes | str, *, overflows: bool = False) -> Any:
    """Parse untrusted JSON. NaN and infinities, which JSON does not have, become strings: "nan", "inf", "-inf".

    Arguments:
        overflows: True makes infinities of numbers that no float can hold, in half the time. Default: strings.

    Raises:
        ValueError: it is not JSON, or nested too deeply.

    >>> parsed_json('{"loss": NaN, "lr": 1e999}')
    {'loss': 'nan', 'lr': 'inf'}
    """

    text = data if isinstance(data, str) else data.decode("utf-8", "surrogatepass")
    decoder, row = _OVERFLOWING if overflows else _DECODER, text.rstrip(" \t\n\r")
    try:
        try:
            value, end = decoder.raw_decode(row)  # without a search for space around it: 1 us a row
        except ValueError:  # space before it, or no JSON
            end = -1
        if end != len(row):
            value = decoder.decode(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > _MAX_DEPTH:  # it can be nested deeply; all else that JSON has is plain
        expect_plain(value)
    return value


def _number(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else repr(value)


# One for all: to make it takes as long as to parse a row.
_DECODER = json.JSONDecoder(parse_constant=_NOT_FINITE.__getitem__, parse_float=_number)
_OVERFLOWING = json.JSONDecoder(parse_constant=_NOT_FINITE.__getitem__)
_TOO_DEEP = f"it is nested more than {_MAX_DEPTH} deep"
_PLAIN = {type(None), bool, int, float, str, bytes, list, dict}


def expect_plain(value: Any) -> None:
    """Raise a ValueError for what is not plain data, or nested deeper than anything that graphtrain writes."""
    level = [value]
    for _ in range(_MAX_DEPTH + 1):
        if strange := {type(part) for part in level} - _PLAIN:
            raise ValueError(f"it has a value of type {strange.pop().__name__}")
        inner = [part.values() if type(part) is dict else part for part in level if type(part) in (dict, list)]
        level = [part for parts in inner for part in parts]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


def checksum_of(pieces: Iterable[bytes | memoryview]) -> str:
    """XXH3 (128 bits, hexadecimal; https://xxhash.com) of bytes that are in pieces.

    It finds damage and differences; it does not withstand somebody who looks for two files of one checksum. In return
    it takes a seventh of the time of SHA-256: as long as reading from memory.

    >>> checksum_of([b"a", b"b"]) == checksum_of([b"ab"])
    True
    """
    digest = xxhash.xxh3_128()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


@final
class HashedReader:
    """Reads a file once, from beginning to end, and hashes it on the way.

    Arguments:
        size: bytes of the file.
    """

    def __init__(self, file: io.FileIO, size: int) -> None:
        self._file, self._hash = file, xxhash.xxh3_128()
        self.size = self.left = size

    def fill(self, memory: memoryview) -> None:
        """Fill memory, a sequence of bytes, with the next bytes of the file.

        Raises:
            NotAsAgreedError: the file ends before.
        """
        while memory:
            count = self._file.readinto(memory[:_PIECE])
            if not count:
                raise NotAsAgreedError(f"has {self.size - self.left} bytes instead of {self.size}")
            self._hash.update(memory[:count])
            self.left -= count
            memory = memory[count:]

    def read(self, size: int) -> bytearray:
        """The next bytes.

        Raises:
            NotAsAgreedError: the file ends before.
        """
        data = bytearray(size)
        self.fill(memoryview(data))
        return data

    def rest(self) -> memoryview:
        """The bytes that are left, in the memory of the file: what is written to them is not written to the file.

        They were read once, so that a disk which refuses is an error. Use them soon: if the file becomes shorter, or a
        server of files forgets it, the system ends the process.

        Raises:
            NotAsAgreedError: the file ends before.
        """
        start = self.size - self.left
        self.checksum()
        try:
            return memoryview(mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_COPY))[start:]
        except ValueError:
            raise NotAsAgreedError(f"has less than {self.size} bytes") from None

    def checksum(self) -> str:
        """The checksum of the file, as of `checksum_of`; reads the rest of it."""
        if self.left:
            memory = memoryview(bytearray(min(self.left, _PIECE)))
            while self.left:
                self.fill(memory[: self.left])
        return self._hash.hexdigest()


# ---- writing


def temporary_name(path: Path, number: int | None = None) -> Path:
    """The name, in the same folder, under which this process writes or removes a path.

    >>> temporary_name(Path("r/status.json")).name == f".status.json.{os.getpid()}.tmp"
    True
    """
    numbers = f"{os.getpid()}" if number is None else f"{os.getpid()}.{number}"
    return path.with_name(f".{path.name}.{numbers}.tmp")


def write_pieces(file: io.FileIO, pieces: Iterable[bytes | memoryview]) -> int:
    """Write bytes that are in pieces, however large: the system takes no more than 2 GB of one. Returns how many."""
    size = 0
    for piece in pieces:
        view = memoryview(piece)
        size += len(view)
        while view:
            view = view[file.write(view[:_PIECE]) :]
    return size


def replace_file(path: Path, content: bytes | Iterable[bytes | memoryview], *, flush: bool = False) -> None:
    """Replace a file atomically; a link in its place is replaced, not followed.

    Arguments:
        content: as a whole, or in pieces.
        flush: True to flush the content to the disk first. Default: False.

    Raises:
        OSError: the disk refuses; nothing is left behind.
    """
    temporary = temporary_name(path)
    try:
        try:
            file = temporary.open("xb", buffering=0)  # must be new, so it is not a link
        except FileExistsError:  # left by a process that had the same id
            temporary.unlink()
            file = temporary.open("xb", buffering=0)
        with file:
            write_pieces(file, [content] if isinstance(content, bytes) else content)
            if flush:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_output(path: Path, content: bytes) -> None:
    """Write what a user has asked for: a file as by `replace_file`, but through links; a device is written to."""
    replace_file(path.resolve(), content) if path.is_file() or not path.exists() else path.write_bytes(content)


def remove_leftovers(run_dir: Path, checkpoints: Path) -> None:
    """Remove the temporary files of interrupted processes, and no others."""
    for path in _matching(run_dir, _TEMPORARY_FILE):
        with suppress(OSError):
            path.unlink()
    for path in _matching(checkpoints, _TEMPORARY_FOLDER):
        shutil.rmtree(path, ignore_errors=True)  # does not follow links


def _matching(folder: Path, names: re.Pattern[str]) -> list[Path]:
    return [path for path in folder.iterdir() if names.fullmatch(path.name)] if folder.is_dir() else []
