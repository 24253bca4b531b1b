"""The files of a run next to its checkpoints: metrics, status, starts, ranking; and which checkpoints are kept."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from graphtrain.errors import CheckpointError, UsageError
from graphtrain.plain import json_value
from graphtrain.storage.regular import NotAsAgreedError, open_regular, parsed_json, read_regular, replace_file

METRICS_FILE = "metrics.jsonl"
TEXTS_FILE = "texts.jsonl"
NODES_FILE = "nodes.jsonl"
STATUS_FILE = "status.json"
STARTS_FILE = "starts.jsonl"
BEST_FILE = "best.json"
BEST = "best"  # `RUN/best` stands for a checkpoint of the run
CHECKPOINTS_FOLDER = "checkpoints"
ACTIVE = ("running", "stopping")
# The most seconds between two writes of the status while a run is active.
STATUS_SECONDS = 2.0
_MOST_BYTES_OF_A_STATUS = 1 << 20
_MOST_BYTES_OF_A_RANKING = 1 << 20
_MOST_BYTES_OF_STARTS = 64 << 20
_MOST_BYTES_OF_A_ROW = 64 << 20
_FIRST_OF_A_START = b'{"run"'
_NUMBERS = {int, float}
_COMPACT = json.JSONEncoder(separators=(",", ":"))

T = TypeVar("T")


def read_starts(path: Path) -> list[dict[str, Any]]:
    """The starts of the run in a directory, oldest first, as far as they can be read."""
    try:
        lines = read_regular(path / STARTS_FILE, _MOST_BYTES_OF_STARTS).splitlines()
    except (OSError, NotAsAgreedError):
        return []
    return tables_in(lines)


def tables_in(lines: Iterable[bytes]) -> list[dict[str, Any]]:
    """The tables among lines of JSON; lines that a kill has cut are left out."""
    tables = []
    for line in lines:
        with suppress(ValueError):
            tables.append(parsed_json(line))
    return [table for table in tables if isinstance(table, dict)]


def read_status(path: str | Path) -> dict[str, Any]:
    """The status of a run, as its process last wrote it.

    Raises:
        UsageError: there is no run, or its status cannot be read.
    """
    file = Path(path) / STATUS_FILE
    try:
        status = parsed_json(read_regular(file, _MOST_BYTES_OF_A_STATUS))
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"there is no run in `{path}`", f"a run directory holds a file {STATUS_FILE}") from None
    except NotAsAgreedError as error:
        raise UsageError(f"the status of `{path}` cannot be read: {STATUS_FILE} {error}") from None
    except (OSError, ValueError) as error:
        hint = "" if isinstance(error, OSError) else f"{STATUS_FILE} is damaged: remove it; a resume writes it again"
        raise UsageError(f"the status of `{path}` cannot be read: {error}", hint) from None
    if not isinstance(status, dict):
        raise UsageError(f"the status of `{path}` cannot be read: it is not a table")
    return status


def noted(status: Mapping[str, Any]) -> list[tuple[float, str]]:
    """What a run has reported last, as its status has it: times in Unix seconds, and lines."""
    notices = status.get("notices")
    pairs = [pair for pair in notices if isinstance(pair, list) and len(pair) == 2] if isinstance(notices, list) else []
    return [(at, line) for at, line in pairs if type(at) in (int, float) and isinstance(line, str)]


def is_status(path: Path) -> bool:
    """True for a status file that a run has written.

    It may be empty after a power failure: it is written too often to be flushed.
    """
    try:
        content = read_regular(path, _MOST_BYTES_OF_A_STATUS)
        return not content or {"state", "position"} <= parsed_json(content).keys()
    except (OSError, ValueError, AttributeError):  # no status: a link, no JSON, or no table
        return False


def has_begun(run_dir: Path) -> bool:
    """True for a directory with the status of a run that began; a run that failed before has a status without a place.

    An empty file counts, as above.
    """
    if not is_status(run_dir / STATUS_FILE):
        return False
    try:
        return bool(read_status(run_dir)["position"])
    except UsageError:
        return True


def are_starts(path: Path) -> bool:
    """True for a list of starts that a run has written; the first line may be cut."""
    try:
        with open(open_regular(path), "rb") as file:
            return file.read(len(_FIRST_OF_A_START)) in (b"", _FIRST_OF_A_START)
    except (OSError, NotAsAgreedError):
        return False


class MetricsFile:
    """Metric rows, rows of texts, or counts of nodes, one JSON object per line.

    Metrics and texts have no times: equal runs have equal files. Rows are written immediately. What a full disk did not
    take is kept, and written first when there is room again.

    Arguments:
        path: the file; created with the first row.
        holds: what the values of its rows are: "numbers"; "texts", with numbers among them; or "counts", which are any
            plain data, written without spaces and checked by their reader. Default: "numbers".
    """

    def __init__(self, path: Path, *, holds: Literal["numbers", "texts", "counts"] = "numbers") -> None:
        self._path, self._holds = path, holds
        self._descriptor: int | None = None
        self._waiting = b""

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Add rows. NaN and infinities are written as the strings "nan", "inf" and "-inf"."""
        for row in rows:
            # Counts are plain already, and looking at each number takes 20 us.
            text = _COMPACT.encode(row) if self._holds == "counts" else json.dumps(json_value(row))
            self._waiting += f"{text}\n".encode()
        with suppress(OSError, NotAsAgreedError):  # reported by `length`, where something depends on it
            self._write()

    def _write(self) -> None:
        if self._descriptor is None:
            self._descriptor = open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        while self._waiting:
            self._waiting = self._waiting[os.write(self._descriptor, self._waiting) :]

    def length(self) -> int:
        """The length of the file in bytes, after all rows so far were written.

        Raises:
            CheckpointError: the disk refuses.
        """
        with readable_failure(self._path):
            if self._waiting:
                self._write()
            if self._descriptor is None:
                return self._size()
            status = os.fstat(self._descriptor)
            if not os.path.lexists(self._path) or not os.path.samestat(status, self._path.lstat()):
                raise CheckpointError(f"{self._path} was moved or removed while rows were written to it")
            return status.st_size

    def flush(self) -> None:
        """Flush what was written to the disk.

        Raises:
            CheckpointError: the disk refuses.
        """
        if self._descriptor is not None:
            with readable_failure(self._path):
                os.fsync(self._descriptor)

    def cut(self, length: int) -> list[dict[str, Any]]:
        """Truncate the file to `length` bytes; returns the rows that remain, but no counts, on which nothing depends.

        Raises:
            UsageError: the file is shorter, so rows are lost; or they are not those that were written.
        """
        self.close()
        self._waiting = b""
        with readable_failure(self._path):
            size = self._size()
        if size < length:
            raise UsageError(
                f"{self._path} has {size} bytes, but the checkpoint was made when it had {length}",
                "it was changed since; resume from another checkpoint, or into another run directory",
            )
        rows = self.first_rows(length) if self._holds != "counts" else []
        if size > length:
            with readable_failure(self._path), open(open_regular(self._path, os.O_WRONLY), "wb", buffering=0) as file:
                file.truncate(length)
        return rows

    def first_rows(self, length: int) -> list[dict[str, Any]]:
        """The rows in the first `length` bytes.

        Raises:
            UsageError: they are not those that were written.
        """
        try:
            return list(self._rows(length))
        except (ValueError, AttributeError, TypeError) as error:
            raise UsageError(
                f"{self._path} does not hold the rows that were written ({error})",
                "it was changed since; resume into another run directory, with --fork",
            ) from None

    def complete_rows(self) -> list[dict[str, Any]]:
        """All rows but a last one that is still being written, or that a kill has cut; none where there is no file.

        Raises:
            UsageError: the file cannot be read, or a line is not a row.
        """
        return list(self.each_row())

    def each_row(
        self, checked: Callable[[dict[str, Any]], dict[str, Any]] = lambda row: row, beginning: bytes = b""
    ) -> Iterator[dict[str, Any]]:
        """The rows of `complete_rows`, one by one.

        Arguments:
            checked: returns a row; a ValueError says what is wrong with it. Default: nothing is.
            beginning: of the lines that are read; the others are left out. Default: all are read.

        Raises:
            UsageError: as `complete_rows`.
        """
        number = 0
        try:
            with open(open_regular(self._path), "rb") as file:
                while (line := file.readline(_MOST_BYTES_OF_A_ROW)).endswith(b"\n"):
                    number += 1
                    if line.startswith(beginning):
                        yield checked(self._row(line))
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"{self._path} cannot be read: {error.strerror or error}") from None
        except NotAsAgreedError as error:
            raise UsageError(f"{self._path} cannot be read: it {error}") from None
        except (ValueError, AttributeError, TypeError, LookupError) as error:
            raise UsageError(f"{self._path}:{number} is not a row that a run has written ({error})") from None

    def _row(self, line: bytes) -> dict[str, Any]:
        row = parsed_json(line, overflows=self._holds == "numbers")
        if type(row) is not dict:
            raise ValueError("it is no table")
        if self._holds == "counts" or {*map(type, row.values())} <= _NUMBERS:
            return row
        is_text = self._holds == "texts"
        return {name: value if is_text and isinstance(value, str) else _number(value) for name, value in row.items()}

    def _size(self) -> int:
        if not os.path.lexists(self._path):
            return 0
        descriptor = open_regular(self._path)
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def _rows(self, length: int) -> Iterator[dict[str, Any]]:
        """The rows in the first bytes of the file, which may have any size, so they are read one by one."""
        if not length:
            return
        with open(open_regular(self._path), "rb") as file:
            while length:
                line = file.readline(min(length, _MOST_BYTES_OF_A_ROW))
                length -= len(line)
                if not line.endswith(b"\n"):
                    raise ValueError("the last row is cut" if not length else "a row is too long")
                yield self._row(line)

    def close(self) -> None:
        """Close the file; a later row opens it again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def readable_failure(path: Path) -> Iterator[None]:
    """Turn an error of the disk, or an unexpected file, into a readable CheckpointError."""
    try:
        yield
    except NotAsAgreedError as error:
        raise CheckpointError(f"cannot write {path}: it {error}", "remove it, then resume") from None
    except OSError as error:
        hint = "make it writable, then try again" if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) else ""
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}", hint) from error


def _number(value: Any) -> float:
    if not isinstance(value, str | int | float):
        raise ValueError("a value is not a number")
    return float(value) if isinstance(value, str) else value


# ---- the ranking


@dataclass(frozen=True)
class Ranking:
    """Checkpoints ranked by a metric.

    Attributes:
        metric: its name.
        mode: "min" or "max".
        values: name of a checkpoint -> its value, the best first.
    """

    metric: str
    mode: str = "min"
    values: Mapping[str, float] = field(default_factory=dict)

    @property
    def best(self) -> dict[str, Any] | None:
        """The best checkpoint: its name, the metric and the value; None if there is none."""
        for name, value in self.values.items():
            return {"checkpoint": name, "metric": self.metric, "value": value}
        return None

    @classmethod
    def of(cls, table: Any) -> Ranking:
        """A ranking from a table that was read, without entries that are invalid.

        Raises:
            ValueError, KeyError, TypeError: it is not a ranking.
        """
        metric, mode, entries = table["metric"], table["mode"], table["checkpoints"]
        if not isinstance(metric, str) or mode not in ("min", "max") or not isinstance(entries, list):
            raise ValueError("not a ranking")
        pairs: list[tuple[Any, Any]] = [
            (entry.get("checkpoint"), entry.get("value")) for entry in entries if isinstance(entry, dict)
        ]
        values = {name: float(value) for name, value in pairs if isinstance(name, str) and _is_finite(value)}
        return cls(metric, mode, values)

    def as_plain(self) -> dict[str, Any]:
        """The table that is written."""
        entries = [{"checkpoint": name, "value": value} for name, value in self.values.items()]
        return {"metric": self.metric, "mode": self.mode, "checkpoints": entries}


def read_rankings(path: Path) -> dict[str, Ranking]:
    """Read the ranking of each node, by its path, the first node first; empty if the file is missing or holds none."""
    try:
        table = parsed_json(read_regular(path, _MOST_BYTES_OF_A_RANKING))
        others = {node: Ranking.of(other) for node, other in table.get("others", {}).items()}
        return {str(table.get("node", "")): Ranking.of(table), **others}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write_rankings(path: Path, rankings: Mapping[str, Ranking]) -> None:
    """Write the file, for people and other programs, atomically, or remove it if nothing is ranked.

    The table is the ranking of the first node, which has those of the others in it.

    Raises:
        CheckpointError: the disk refuses, or the file is not a ranking.
    """
    if not is_ranking(path):
        raise CheckpointError(f"{path} was not written by a run")
    with readable_failure(path):
        if not any(ranking.values for ranking in rankings.values()):
            path.unlink(missing_ok=True)
            return
        (node, first), *others = ((node, ranking.as_plain()) for node, ranking in rankings.items())
        table = {**first, "node": node, **({"others": dict(others)} if others else {})}
        replace_file(path, (json.dumps(table, indent=2) + "\n").encode(), flush=True)


def is_ranking(path: Path) -> bool:
    """True if the path does not exist, or holds rankings."""
    return not os.path.lexists(path) or bool(read_rankings(path))


def best_by_name(rankings: Mapping[str, Ranking]) -> dict[str, dict[str, Any] | None]:
    """The best checkpoint of each ranking, by its name in the run: ``best``; of further nodes ``best:NODE``."""
    names = [BEST, *(f"{BEST}:{node}" for node in [*rankings][1:])]
    return {BEST: None, **{name: ranking.best for name, ranking in zip(names, rankings.values(), strict=False)}}


def _is_finite(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def best_in(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The same as a status has it, without names whose ranking is empty."""
    named = {name: best for name, best in status.items() if name.partition(":")[0] == BEST}
    return {name: best for name, best in named.items() if isinstance(best, Mapping)}


# ---- which checkpoints are kept: the newest ones, and the best


@dataclass(frozen=True)
class Retention:
    """Which checkpoints of a run a node keeps. Of several nodes, each keeps its own.

    Arguments:
        keep: how many of the newest are kept, at least 1. Default: 2.
        best: the metric by which the best are kept too. Default: only the newest are.
        best_mode: whether the smallest values are best, or the largest. Default: "min".
        keep_best: how many of the best are kept. Default: 1.

    >>> Retention(keep=1, best="loss").expired(["a", "b", "c"], {"a": 0.2, "b": 0.4})
    ['b']
    """

    keep: int = 2
    best: str | None = None
    best_mode: Literal["min", "max"] = "min"
    keep_best: int = 1

    def expired(
        self,
        oldest_first: Sequence[T],
        values: Mapping[T, float],
        unsound: Collection[T] = (),
        not_finite: Collection[T] = (),
    ) -> list[T]:
        """The checkpoints that need not be kept, oldest first.

        Arguments:
            values: of the metric, where it was measured for the weights in the checkpoint.
            unsound: those that could not be read; they are not counted as kept.
            not_finite: those with weights that are not finite. If there are others, such a checkpoint is kept only if
                it is the newest, in addition to `keep` others. Default: none.

        >>> Retention(keep=1).expired(["a", "b", "c", "d"], {}, not_finite=["c", "d"])
        ['a', 'c']
        """
        sound = [checkpoint for checkpoint in oldest_first if checkpoint not in unsound]
        finite = [checkpoint for checkpoint in sound if checkpoint not in not_finite]
        newest = (finite or sound)[-max(self.keep, 1) :]
        kept = {*newest, *sound[-1:], *self.ranked(values)[: self.keep_best]}
        return [checkpoint for checkpoint in oldest_first if checkpoint not in kept]

    def is_among_best(self, value: float, others: Sequence[float]) -> bool:
        """True if a value is among the `keep_best` best, given the earlier values; NaN never is.

        >>> Retention(best="loss", keep_best=2).is_among_best(0.3, [0.2, 0.3])
        False
        """
        index = len(others)
        return index in self.ranked(dict(enumerate([*others, value])))[: self.keep_best]

    def ranked(self, values: Mapping[T, float]) -> list[T]:
        """The checkpoints, best first; equal ones in their order. NaN is left out."""
        sign = 1 if self.best_mode == "min" else -1
        numbers = {checkpoint: value for checkpoint, value in values.items() if not math.isnan(value)}
        return sorted(numbers, key=lambda checkpoint: sign * numbers[checkpoint])
