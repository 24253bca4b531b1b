"""The files of a run directory: checksums of what is read, and writing that replaces a file as a whole."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

_NOT_FINITE = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
_PIECE = 1 << 20  # bytes in a read, hashed while they are in the cache, and in a write: of 4 MB, 1.1 to 5 times as long
# What interrupted processes leave behind, with their process ids.
_TEMPORARY_FILE = re.compile(r"\.(probe|status\.json|best\.json|source-[0-9a-f]+\.diff)\.\d+\.tmp")
_TEMPORARY_FOLDER = re.compile(r"\.\d{6,}-step-\d+(\.\d+\.\d+|\.removed(\.\d+)?)\.tmp")


def parsed_json(data: bytes | str) -> Any:
    """Parse JSON. NaN and infinities, which JSON does not have, become strings: "nan", "inf", "-inf".

    Raises:
        ValueError: it is not JSON.

    >>> parsed_json('{"loss": NaN, "lr": 1}')
    {'loss': 'nan', 'lr': 1}
    """
    try:
        return _DECODER.decode(data if isinstance(data, str) else data.decode("utf-8", "surrogatepass"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


_DECODER = json.JSONDecoder(parse_constant=_NOT_FINITE.__getitem__)  # to make it takes as long as to parse a row


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
        return checksum_of(iter(lambda: file.read(_PIECE), b""))


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
