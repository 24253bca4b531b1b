"""Files as they are read and written: checksums, and writing that replaces a file as a whole."""

from __future__ import annotations

import errno
import gc
import hashlib
import io
import itertools
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import xxhash

from graphtrain.errors import CheckpointError, GraphtrainError

_PIECE = 1 << 20  # bytes in a write, hashed while they are in the cache: one of 4 MB takes 1.1 to 5 times as long
_TEMPORARY = ".graphtrain.tmp"  # the end of the names of what interrupted processes leave behind
_NUMBERS = itertools.count(1)


@contextmanager
def readable_failure(path: Path, kind: type[GraphtrainError] = CheckpointError) -> Iterator[None]:
    """Turn an error of the disk into a readable one of graphtrain."""
    try:
        yield
    except OSError as error:
        hint = "make it writable, then try again" if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) else ""
        raise kind(f"cannot write {path}: {error.strerror or error}", hint) from error


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection of garbage in a block that makes many objects: with 200,000 tensors it takes half of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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


def checksum_of_file(path: Path) -> str:
    """The checksum of a file, as of `checksum_of`, without holding it in memory."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


# ---- writing


def temporary_name(path: Path) -> Path:
    """A name in the same folder, another one at each call, under which this process writes or removes a path."""
    return path.with_name(f".{path.name}.{os.getpid()}.{next(_NUMBERS)}{_TEMPORARY}")


def write_pieces(file: io.FileIO, pieces: Iterable[bytes | memoryview]) -> list[Any]:
    """Write bytes that are in pieces; returns their number and checksum, found while they are in the cache."""
    size, digest = 0, xxhash.xxh3_128()
    for piece in pieces:
        view = memoryview(piece)
        while view:
            written = view[: file.write(view[:_PIECE])]
            digest.update(written)
            size += len(written)
            view = view[len(written) :]
    return [size, digest.hexdigest()]


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
        with temporary.open("wb", buffering=0) as file:
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


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders of interrupted processes, and no others."""
    for path in folder.glob(f".*{_TEMPORARY}"):
        with suppress(OSError):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
