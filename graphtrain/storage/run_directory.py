"""The files of one run next to its checkpoints: its metrics; its status and its starts, as others read them."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from graphtrain.errors import CheckpointError, UsageError
from graphtrain.plain import json_value
from graphtrain.storage.regular import NotAsAgreedError, read_regular

METRICS_FILE = "metrics.jsonl"
STATUS_FILE = "status.json"
STARTS_FILE = "starts.jsonl"
CHECKPOINTS_FOLDER = "checkpoints"
# How old the status may be while the run is running.
STATUS_SECONDS = 2.0
_MOST_BYTES_OF_A_STATUS = 1 << 20
_MOST_BYTES_OF_STARTS = 64 << 20
_MOST_BYTES_OF_LAST_ROWS = 256 << 10


def read_starts(path: Path) -> list[dict[str, Any]]:
    """Every start of the run in a directory, the first one first, as far as the list of starts can be read."""
    try:
        lines = read_regular(path / STARTS_FILE, _MOST_BYTES_OF_STARTS).splitlines()
    except (OSError, NotAsAgreedError):
        return []
    starts = []
    for line in lines:
        with suppress(ValueError, RecursionError):  # one that a kill has cut
            starts.append(json.loads(line))
    return [start for start in starts if isinstance(start, dict)]


def read_status(path: str | Path) -> dict[str, Any]:
    """The status of a run, as its process last wrote it.

    Raises:
        UsageError: there is no run, or its status cannot be read.
    """
    file = Path(path) / STATUS_FILE
    try:
        status = json.loads(read_regular(file, _MOST_BYTES_OF_A_STATUS))
    except FileNotFoundError:
        raise UsageError(f"there is no run in `{path}`", f"a run directory holds a file {STATUS_FILE}") from None
    except NotAsAgreedError as error:
        raise UsageError(f"the status of `{path}` cannot be read: {STATUS_FILE} {error}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"the status of `{path}` cannot be read: {error}") from None
    except RecursionError:
        raise UsageError(f"the status of `{path}` cannot be read: it is nested too deep") from None
    if not isinstance(status, dict):
        raise UsageError(f"the status of `{path}` cannot be read: it is no table")
    # Earlier versions held the fields of the snapshot in a table of their own, and some of them twice.
    inner = status.pop("snapshot", None)
    return {**status, **inner, "state": status.get("state")} if isinstance(inner, dict) else status


def last_rows(path: Path, length: int) -> list[dict[str, Any]]:
    """The last rows of metrics of the run in a directory, within the first `length` bytes; what cannot be read is not.

    As JSON has them: NaN and infinities are texts.
    """
    if not (path / METRICS_FILE).is_file():  # missing, or a pipe
        return []
    try:
        with (path / METRICS_FILE).open("rb") as file:
            start = max(length - _MOST_BYTES_OF_LAST_ROWS, 0)
            file.seek(start)
            lines = file.read(length - start).split(b"\n")
    except OSError:
        return []
    rows = []
    for line in lines[1 if start else 0 :]:
        with suppress(ValueError, RecursionError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


class MetricsFile:
    """Rows of metrics, one JSON object a line, without a clock: equal runs have equal files.

    A row is in the file at once, for whoever follows it; what a full disk did not take is kept, and written first when
    there is room again.

    Arguments:
        path: the file; made when the first row comes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._waiting = b""

    def append(self, row: Mapping[str, float]) -> None:
        """Add a row. NaN and infinities are written as the strings "nan", "inf" and "-inf"."""
        self._waiting += (json.dumps(json_value(row), separators=(", ", ": ")) + "\n").encode()
        with suppress(OSError):  # reported by `length`, where something depends on it
            self._write()

    def _write(self) -> None:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        while self._waiting:
            self._waiting = self._waiting[os.write(self._descriptor, self._waiting) :]

    def length(self) -> int:
        """Bytes in the file, all rows so far included.

        Raises:
            CheckpointError: the disk does not take them.
        """
        with readable_failure(self._path):
            if self._waiting:
                self._write()
            if self._descriptor is None:
                return self._path.stat().st_size if self._path.exists() else 0
            status = os.fstat(self._descriptor)
            if not self._path.exists() or not os.path.samestat(status, self._path.stat()):
                raise CheckpointError(f"{self._path} was moved or removed while rows were written to it")
            return status.st_size

    def flush(self) -> None:
        """Bring what was written to the disk.

        Raises:
            CheckpointError: the disk refuses.
        """
        if self._descriptor is not None:
            with readable_failure(self._path):
                os.fsync(self._descriptor)

    def cut(self, length: int) -> list[dict[str, float]]:
        """Cut the file back to `length` bytes; the rows that stay.

        Raises:
            UsageError: the file is shorter than that, so rows are lost; or they are not those that were written.
        """
        self.close()
        self._waiting = b""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size < length:
            raise UsageError(
                f"{self._path} has {size} bytes, but the checkpoint was made when it had {length}",
                "it was changed since; resume from another checkpoint, or into another run directory",
            )
        try:
            lines = self._path.read_bytes()[:length].decode().split("\n") if length else [""]
            rows = [{name: _number(value) for name, value in json.loads(line).items()} for line in lines[:-1]]
            if lines[-1]:
                raise ValueError("the last row is cut")
        except (ValueError, AttributeError, TypeError) as error:
            raise UsageError(
                f"{self._path} does not hold the rows that were written ({error})",
                "it was changed since; resume into another run directory, with --fork",
            ) from None
        if size > length:
            with readable_failure(self._path):
                os.truncate(self._path, length)
        return rows

    def close(self) -> None:
        """Close the file; a later row opens it again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def readable_failure(path: Path) -> Iterator[None]:
    """A disk that refuses is reported in words."""
    try:
        yield
    except OSError as error:
        hint = "make it writable, then resume" if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) else ""
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}", hint) from error


def _number(value: Any) -> float:
    return float(value) if isinstance(value, str) else value
