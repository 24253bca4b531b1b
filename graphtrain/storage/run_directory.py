"""The files of a run besides its checkpoints: rows of metrics and counts, the status, and the list of starts."""

from __future__ import annotations

import io
import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from graphtrain.errors import UsageError
from graphtrain.plain import json_value
from graphtrain.storage.files import readable_failure, replace_file

METRICS_FILE = "metrics.jsonl"
NODES_FILE = "nodes.jsonl"
STATUS_FILE = "status.json"
STARTS_FILE = "starts.jsonl"
BEST = "best"  # `RUN/best` stands for a checkpoint of the run
CHECKPOINTS_FOLDER = "checkpoints"
ACTIVE = ("running", "stopping")
# While a run is active, the status is written at least this often.
STATUS_SECONDS = 2.0
_NUMBERS = {int, float}


def read_starts(path: Path) -> list[dict[str, Any]]:
    """The starts of the run in a directory, oldest first, without lines that a kill has cut."""
    starts: list[Any] = []
    with suppress(OSError):
        for line in (path / STARTS_FILE).read_bytes().splitlines():
            with suppress(ValueError):
                starts.append(json.loads(line))
    return [start for start in starts if isinstance(start, dict)]


# ---- the status


def read_status(path: str | Path) -> dict[str, Any]:
    """The status of a run, as its process last wrote it; raises a UsageError if there is none, or it is damaged."""
    try:
        return {**json.loads((Path(path) / STATUS_FILE).read_bytes())}
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"there is no run in `{path}`", f"a run directory holds a file {STATUS_FILE}") from None
    except (OSError, ValueError, TypeError) as error:
        hint = "" if isinstance(error, OSError) else f"remove {STATUS_FILE}, which is damaged; a resume writes it again"
        raise UsageError(f"the status of `{path}` cannot be read: {error}", hint) from None


def last_status(path: Path) -> dict[str, Any]:
    """The status of a run; empty if there is none, or if it cannot be read, as after a power failure."""
    try:
        return read_status(path)
    except UsageError:
        return {}


def write_status(folder: Path, status: Mapping[str, Any]) -> None:
    """Atomically replace the status file, which other processes read; raises a CheckpointError if that fails."""
    plain = json_value({**status, **process_facts("written_at_unix_seconds")})
    lines = [f"  {json.dumps(name)}: {json.dumps(value, default=str)}" for name, value in plain.items()]
    with readable_failure(folder / STATUS_FILE):  # with `indent`, it takes five times as long
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / STATUS_FILE, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def process_facts(time_field: str) -> dict[str, Any]:
    """The number of this process, its host, and the time in a field of this name."""
    return {"process": os.getpid(), "host": socket.gethostname(), time_field: round(time.time(), 3)}


def best_in(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The entries of a status for the best checkpoints: ``"best"``, or ``"best:NODE"`` -> checkpoint."""
    return {name: best for name, best in status.items() if name.partition(":")[0] == BEST and best}


# ---- rows


class RowsFile:
    """A file of rows, one JSON object per line: metrics, counts, or starts.

    Rows are written immediately. Rows for which the disk is full are kept, and written before the next ones. `length`
    and `flush` raise a CheckpointError if they cannot be written.

    Arguments:
        path: the file, which the first row creates, and which stays open until `close`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting = b""
        self._file: io.FileIO | None = None

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Append rows. NaN and infinities are written as the strings "nan", "inf" and "-inf"."""
        self._waiting += "".join([json.dumps(json_value(row)) + "\n" for row in rows]).encode()
        with suppress(OSError):
            self._write()

    def _write(self) -> None:
        while self._waiting:
            if self._file is None:  # opening it takes as long as writing several rows
                self._file = self._path.open("ab", buffering=0)
            self._waiting = self._waiting[os.write(self._file.fileno(), self._waiting) :]

    def close(self) -> None:
        """Close the file until the next row."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def length(self) -> int:
        """The length of the file in bytes, after writing all rows so far."""
        with readable_failure(self._path):
            self._write()
            return self._path.stat().st_size if self._path.exists() else 0

    def flush(self) -> None:
        """Flush what was written to the disk; may be called in any thread."""
        if self._path.exists():
            with readable_failure(self._path), self._path.open("ab") as file:
                os.fsync(file.fileno())

    def cut(self, length: int) -> None:
        """Truncate the file to `length` bytes.

        Raises:
            UsageError: the file is shorter: rows are missing.
        """
        self._waiting = b""
        if (size := self.length()) < length:
            raise UsageError(
                f"{self._path} is shorter than when the checkpoint was written: {size} bytes instead of {length}",
                "restore the file, resume from an earlier checkpoint, or fork into another run directory",
            )
        if size > length:
            with readable_failure(self._path):
                os.truncate(self._path, length)

    def rows(
        self, length: int | None = None, *, read: Callable[[dict[str, Any]], dict[str, Any]] = dict
    ) -> Iterator[dict[str, Any]]:
        """Read the rows, without a last one that is still being written. There are none if there is no file.

        Arguments:
            length: how many bytes are read. Default: all.
            read: converts the JSON object of a line to a row. Default: a dictionary as it is.

        Raises:
            UsageError: the file cannot be read, or a line is not a row.
        """
        number = end = 0
        try:
            with self._path.open("rb") as file:
                for line in file:
                    number, end = number + 1, end + len(line)
                    if not line.endswith(b"\n") or (length is not None and end > length):
                        return
                    yield read(json.loads(line))
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"{self._path} cannot be read: {error.strerror or error}") from None
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise UsageError(
                f"{self._path}:{number} is not a row that a run has written ({error})",
                "the file was changed: restore it, or resume into another run directory with --fork",
            ) from None

    def numbers(self, length: int | None = None) -> list[dict[str, float]]:
        """The rows of a file of metrics, as numbers; NaN and infinities are strings in the file."""
        return list(self.rows(length, read=_numbers))


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    if {*map(type, row.values())} <= _NUMBERS:
        return row
    return {name: float(value) if isinstance(value, str) else value + 0 for name, value in row.items()}
