"""The manifest of a checkpoint: read, with every field of its type. Needs no torch, so a graph is soon found in it."""

from __future__ import annotations

import errno
import functools
import hashlib
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, final

import msgpack

from graphtrain.errors import CheckpointError, LaterFormatError
from graphtrain.names import quoted
from graphtrain.printable import one_line
from graphtrain.storage.background import side_by_side
from graphtrain.storage.regular import (
    HashedReader,
    NotAsAgreedError,
    expect_plain,
    expect_room,
    opened_regular,
    read_regular,
)

T = TypeVar("T")

FORMAT = 1
MANIFEST_FILE = "manifest.msgpack"
_MOST_BYTES_OF_A_MANIFEST = 64 << 20
_MOST_BYTES_OF_A_NAME = 255
_MOST_LINES = 5
WORTH_A_THREAD = 4 << 20  # bytes, which are hashed in 3 ms; to start a thread takes 0.1 ms
# What is wrong with the files themselves; any other failure to read may pass.
_NO_SUCH_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EISDIR)
_MOST_RANKS = 1 << 20
_NAME = re.compile(r"(\d{6,})-step-(\d+)")


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint folder, each field of its type; what is absent is empty.

    Raises:
        CheckpointError: it is missing, torn, altered, or of a later format.
    """
    try:
        if path.is_symlink():
            raise CheckpointError(f"{path} is a link; in a run directory only `checkpoints` may be one")
        outer = msgpack.unpackb(read_regular(path / MANIFEST_FILE, _MOST_BYTES_OF_A_MANIFEST))
        body = outer["manifest"]
        if hashlib.sha256(body).hexdigest() != outer["sha256"]:
            raise CheckpointError(f"{path}: the manifest is not as it was written")
        manifest = msgpack.unpackb(body)
        expect_plain(manifest)
        version = manifest["format"]
    except OSError as error:
        raise CheckpointError(f"{path}: the manifest cannot be read ({error.strerror})") from _passing(error)
    except NotAsAgreedError as error:
        raise CheckpointError(f"{path}: {MANIFEST_FILE} {error}") from None
    except (msgpack.UnpackException, ValueError, KeyError, TypeError, MemoryError) as error:
        reason = str(error) if type(error) is ValueError else type(error).__name__
        raise CheckpointError(f"{path}: the manifest is torn or foreign ({one_line(reason, 200)})") from None
    if version != FORMAT or isinstance(version, bool | float):
        later = isinstance(version, int) and version > FORMAT
        raise (LaterFormatError if later else CheckpointError)(
            f"{path}: format {_shown(version)} is not known to this version", "use a later graphtrain"
        )
    try:
        return checked(manifest)
    except ValueError as error:
        raise CheckpointError(f"{path}: the manifest is torn or foreign ({error})") from None


def read_files(path: Path, manifest: Mapping[str, Any], read: Callable[[str, HashedReader], T]) -> dict[str, T]:
    """What is read of the files of a checkpoint folder beside the manifest: side by side, and every byte once.

    Arguments:
        read: is given a name and the open file, in any thread. It need not read all of it, and raises a ValueError for
            a content that it does not know.

    Raises:
        CheckpointError: a file is missing, torn or altered, or has another content.
    """
    files: Mapping[str, tuple[int, str]] = manifest["files"]
    try:
        expect_room(sum(size for size, _ in files.values()))
    except OSError as error:
        raise CheckpointError(f"{path}: its files cannot be read ({error.strerror})") from error
    names = sorted(files, key=lambda name: -files[name][0])  # the largest is begun first
    jobs = [functools.partial(_read_file, path, name, *files[name], read) for name in names]
    is_large = sum(size for size, _ in files.values()) >= WORTH_A_THREAD
    return dict(zip(names, side_by_side(jobs) if is_large else [job() for job in jobs], strict=True))


def check_files(path: Path, manifest: Mapping[str, Any]) -> None:
    """Find out that the files of a checkpoint folder are as they were written; none of them is held in memory.

    Raises:
        CheckpointError: a file is missing, torn or altered.
    """
    read_files(path, manifest, lambda name, file: None)


def _read_file(path: Path, name: str, size: int, expected: str, read: Callable[[str, HashedReader], T]) -> T:
    try:
        with opened_regular(path / name, size, exactly=True) as opened:
            file = HashedReader(opened, size)
            try:
                content = read(name, file)
            except NotAsAgreedError:
                raise
            except ValueError as error:
                # What is damaged need not be what it was.
                if file.checksum() == expected:
                    raise CheckpointError(f"{path}: {name} {error}") from None
            if file.checksum() == expected:
                return content
    except OSError as error:
        raise CheckpointError(f"{path}: {name} cannot be read ({error.strerror})") from _passing(error)
    except MemoryError as error:
        raise CheckpointError(f"{path}: {name} has {size} bytes, for which there is no memory") from _passing(
            OSError(str(error))
        )
    except NotAsAgreedError as error:
        raise CheckpointError(f"{path}: {name} {error}") from None
    raise CheckpointError(f"{path}: {name} is not as it was written")


def checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder of them, oldest first, sound or not."""
    return [folder / name for _, name in _numbered(folder)]


def own_checkpoint_paths(folder: Path) -> list[Path]:
    """The same without those that are somebody else's, of whom there may be thousands."""
    return [folder / name for _, name in _numbered(folder) if holds_a_checkpoint(f"{folder}{os.sep}{name}")]


def holds_a_checkpoint(path: str | Path) -> bool:
    """True for a folder that has a manifest, sound or not: any other of such a name is somebody else's."""
    return os.path.lexists(f"{path}{os.sep}{MANIFEST_FILE}") and not os.path.islink(path)


def free_number(folder: Path) -> int:
    """A number after those of all checkpoints in a folder, whosever they are."""
    return max((number for number, _ in _numbered(folder)), default=0) + 1


def _numbered(folder: Path) -> list[tuple[int, str]]:
    """What has the name of a checkpoint, by its number."""
    matches = map(_NAME.fullmatch, os.listdir(folder) if folder.is_dir() else ())
    return sorted((int(match.group(1)), match.string) for match in matches if match is not None)


@final
class SkippedCheckpoints:
    """The checkpoints that are skipped, for a person: a line for each, or one for all where they are many.

    Arguments:
        notify: receives the lines.

    >>> skipped = SkippedCheckpoints(print)
    >>> for number in range(9):
    ...     skipped.add(Path(f"checkpoints/{number:06d}-step-5"), "torn", "skipped a damaged checkpoint: torn")
    >>> skipped.report()
    skipped 9 checkpoints in checkpoints: `000000-step-5`, `000001-step-5`, `000002-step-5` and 6 more; the first: torn
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._skipped: list[tuple[Path, str, str]] = []

    def add(self, path: Path, reason: str, line: str) -> None:
        """Note one, with the line that is reported of it where they are few."""
        self._skipped.append((path, reason, line))

    def report(self) -> None:
        """Report all that were noted since the last time."""
        skipped, self._skipped = self._skipped, []
        if len(skipped) <= _MOST_LINES:
            for _, _, line in skipped:
                self._notify(line)
            return
        names = quoted((path.name for path, _, _ in skipped), 3)
        folder, first = skipped[0][0].parent, skipped[0][1]
        self._notify(f"skipped {len(skipped)} checkpoints in {folder}: {names}; the first: {first}")


def checkpoint_number(path: Path) -> int:
    """The number of a checkpoint, by the name of its folder: saves are counted."""
    match = _NAME.fullmatch(path.name)
    assert match is not None, "its name was matched before"
    return int(match.group(1))


_HASH = re.compile(r"[0-9a-f]{64}")


def checked(manifest: Any) -> dict[str, Any]:
    """A manifest in which every field that is read anywhere has its type, and those of later versions are filled in.

    Raises:
        ValueError: it is no manifest; the field is named.

    >>> checked({"format": 1, "files": {"../x": [1, ""]}})
    Traceback (most recent call last):
    ValueError: files
    """
    if not _is_table(manifest):
        raise ValueError("it is no table")
    tables: dict[str, Any] = {name: {} for name in ("origin", "data", "environment", "about", "seconds", "metrics")}
    lists: dict[str, Any] = {name: [] for name in ("unknown", "digests", "own")}
    filled = {**tables, **lists, "run": "", "ranks": 1, "tensors": {}, **manifest}
    for name, fits in _FIELDS.items():
        if not (fits(filled.get(name)) or (name in _WITHOUT_A_DEFAULT and name not in filled)):
            raise ValueError(name)
    if any(len(filled[name]) not in (0, filled["ranks"]) for name in ("digests", "own")):
        raise ValueError("ranks")
    return filled


def _shown(version: Any) -> str:
    return str(version) if isinstance(version, int) else f"of type {type(version).__name__}"


def _passing(error: OSError) -> OSError | None:
    """The error, if it says nothing of the file itself: what is not read now may be read tomorrow."""
    return None if error.errno in _NO_SUCH_FILE else error


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_value(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_amount(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value) and value >= 0


def _is_table(value: Any, of: Callable[[Any], bool] = lambda inner: True) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) and of(inner) for name, inner in value.items())


def _is_origin(value: Any) -> bool:
    return _is_table(value) and _is_text(value.get("script", "")) and _is_table(value.get("code", {}), _is_text)


def _is_about(value: Any) -> bool:
    given = value.get("given", []) if _is_table(value) else None
    tables = [value.get(name, {}) for name in ("arguments", "weights")] if _is_table(value) else []
    return isinstance(given, list) and all(map(_is_text, given)) and all(map(_is_table, tables))


def _are_files(value: Any) -> bool:
    """Names that stay inside the folder, each with a size and a checksum."""
    return _is_table(value, _is_file) and all(is_file_name(name) for name in value)


def is_file_name(name: str) -> bool:
    """True for the name of a file; one of a resource, which is not always an identifier."""
    is_safe = name.isprintable() and not name.startswith(".") and not {"/", "\\"} & set(name)
    return is_safe and 0 < len(os.fsencode(name)) <= _MOST_BYTES_OF_A_NAME


def _is_file(value: Any) -> bool:
    if not (isinstance(value, list) and len(value) == 2):
        return False
    size, checksum = value
    return _is_count(size) and _is_text(checksum) and _HASH.fullmatch(checksum) is not None


def _is_count_of_ranks(value: Any) -> bool:
    return _is_count(value) and 1 <= value <= _MOST_RANKS


def _is_own(value: Any) -> bool:
    return _is_table(value) and _is_table(value.get("aliases", {})) and _FIELDS["unknown"](value.get("unknown", []))


def _are_places(value: Any) -> bool:
    """For every tensor of a file, the file that it is in, its global shape, and where in it this piece begins."""
    return _is_table(value, lambda tensors: _is_table(tensors, _is_place)) and all(map(is_file_name, value))


def _is_place(value: Any) -> bool:
    if not (isinstance(value, list) and len(value) == 3):
        return False
    file, shape, offset = value
    sizes = isinstance(shape, list) and isinstance(offset, list) and len(shape) == len(offset)
    return _is_text(file) and file.endswith(".safetensors") and sizes and all(map(_is_count, [*shape, *offset]))


_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "files": _are_files,
    "graph": _is_text,
    "graph_hash": _is_text,
    "position": _is_text,
    "ended": lambda value: isinstance(value, bool),
    "digest": _is_text,
    "step": _is_count,
    "clock_of": _is_text,
    "clocks": lambda value: _is_table(value, _is_number),
    "metrics_bytes": _is_count,
    "origin": _is_origin,
    "data": lambda value: _is_table(value, _is_table),
    "environment": _is_table,
    "about": _is_about,
    "seconds": lambda value: _is_table(value, _is_amount),
    "metrics": lambda value: _is_table(value, _is_number),
    "run": _is_text,
    "unknown": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "replaces": lambda value: _is_count(value) and value > 0,
    "not_finite": lambda value: isinstance(value, str),
    "best": lambda value: _is_table(value) and _is_text(value.get("metric")) and _is_value(value.get("value")),
    "hyper_parameters": lambda value: _is_table(value, _is_table),
    "hyper_parameters_in_force": lambda value: _is_table(value, _is_table),
    "window_ranks": _is_count_of_ranks,
    "ranks": _is_count_of_ranks,
    "digests": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "own": lambda value: isinstance(value, list) and all(map(_is_own, value)),
    "tensors": _are_places,
}
# Not to know them is something else than that there were none; and a checkpoint may take the place of no other, and be
# made where nothing is ranked.
_WITHOUT_A_DEFAULT = (
    "hyper_parameters", "hyper_parameters_in_force", "replaces", "best", "clock_of", "clocks", "window_ranks",
    "not_finite",
)  # fmt: skip
