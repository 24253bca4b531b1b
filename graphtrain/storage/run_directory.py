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
from graphtrain.storage.regular import parsed_json, replace_file

METRICS_FILE = "metrics.jsonl"
NODES_FILE = "nodes.jsonl"
STATUS_FILE = "status.json"
STARTS_FILE = "starts.jsonl"
BEST_FILE = "best.json"
BEST = "best"  # `RUN/best` stands for a checkpoint of the run
CHECKPOINTS_FOLDER = "checkpoints"
ACTIVE = ("running", "stopping")
# The most seconds between two writes of the status while a run is active.
STATUS_SECONDS = 2.0
_NUMBERS = {int, float}

T = TypeVar("T")


def read_starts(path: Path) -> list[dict[str, Any]]:
    """The starts of the run in a directory, oldest first, as far as they can be read."""
    try:
        lines = (path / STARTS_FILE).read_bytes().splitlines()
    except OSError:
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
        status = parsed_json(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"there is no run in `{path}`", f"a run directory holds a file {STATUS_FILE}") from None
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


def has_begun(run_dir: Path) -> bool:
    """True for a directory with a run that began; one that failed before has a status without a place."""
    try:
        return bool(read_status(run_dir).get("position"))
    except UsageError:  # no status, or one that a power failure has cut
        return bool(read_starts(run_dir))


def is_foreign(status_file: Path) -> bool:
    """True for a status file of another program; one that a power failure has emptied is ours."""
    try:
        content = status_file.read_bytes()
        return bool(content) and "position" not in parsed_json(content)
    except OSError:
        return False
    except (ValueError, TypeError):
        return True


class MetricsFile:
    """Rows of plain data, one JSON object per line: metrics, or counts of nodes.

    Rows are written immediately. What a full disk did not take is kept, and written first when there is room again.

    Arguments:
        path: the file; created with the first row.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._waiting = b""

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Add rows. NaN and infinities are written as the strings "nan", "inf" and "-inf"."""
        self._waiting += "".join(json.dumps(json_value(row)) + "\n" for row in rows).encode()
        with suppress(OSError):  # reported by `length`, where something depends on it
            self._write()

    def _write(self) -> None:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
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
                return self._path.stat().st_size if self._path.exists() else 0
            status = os.fstat(self._descriptor)
            if not self._path.exists() or not os.path.samestat(status, self._path.stat()):
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

    def cut(self, length: int) -> None:
        """Truncate the file to `length` bytes.

        Raises:
            UsageError: the file is shorter, so rows are lost.
        """
        self.close()
        self._waiting = b""
        if (size := self.length()) < length:
            raise UsageError(
                f"{self._path} has {size} bytes, but the checkpoint was made when it had {length}",
                "it was changed since; resume from another checkpoint, or into another run directory",
            )
        if size > length:
            with readable_failure(self._path):
                os.truncate(self._path, length)

    def rows(
        self, length: int | None = None, *, read: Callable[[dict[str, Any]], dict[str, Any]] = dict
    ) -> Iterator[dict[str, Any]]:
        """The rows, one by one, but for a last one that is still being written; none where there is no file.

        Arguments:
            length: the bytes that are read. Default: all.
            read: makes a row of the table in a line. Default: the table is one.

        Raises:
            UsageError: the file cannot be read, or a line is not a row that a run has written.
        """
        number = end = 0
        try:
            with open(self._path, "rb") as file:
                for line in file:
                    if end == length:
                        return
                    number, end = number + 1, end + len(line)
                    if not line.endswith(b"\n"):
                        return
                    if length is not None and end > length:
                        raise ValueError("a row is longer than it was")
                    yield read(parsed_json(line))
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"{self._path} cannot be read: {error.strerror or error}") from None
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise UsageError(
                f"{self._path}:{number} is not a row that a run has written ({error})",
                "it was changed since; resume into another run directory, with --fork",
            ) from None

    def numbers(self, length: int | None = None) -> list[dict[str, float]]:
        """Rows of metrics, in which NaN and infinities are texts in the file.

        Raises:
            UsageError: as `rows`.
        """
        return list(self.rows(length, read=_numbers))

    def close(self) -> None:
        """Close the file; a later row opens it again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def readable_failure(path: Path) -> Iterator[None]:
    """Turn an error of the disk into a readable CheckpointError."""
    try:
        yield
    except OSError as error:
        hint = "make it writable, then try again" if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) else ""
        raise CheckpointError(f"cannot write {path}: {error.strerror or error}", hint) from error


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    if {*map(type, row.values())} <= _NUMBERS:
        return row
    return {name: float(value) if isinstance(value, str) else value + 0 for name, value in row.items()}


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
    def of(cls, table: Mapping[str, Any]) -> Ranking:
        """The ranking that `as_plain` has written."""
        values = {entry["checkpoint"]: entry["value"] for entry in table["checkpoints"]}
        return cls(table["metric"], table["mode"], values)

    def as_plain(self) -> dict[str, Any]:
        """The table that is written."""
        entries = [{"checkpoint": name, "value": value} for name, value in self.values.items()]
        return {"metric": self.metric, "mode": self.mode, "checkpoints": entries}


def read_rankings(path: Path) -> dict[str, Ranking]:
    """Read the ranking of each node, by its path, the first node first; empty if the file is missing or holds none."""
    try:
        table = parsed_json(path.read_bytes())
        others = {node: Ranking.of(other) for node, other in table.get("others", {}).items()}
        return {str(table.get("node", "")): Ranking.of(table), **others}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write_rankings(path: Path, rankings: Mapping[str, Ranking]) -> None:
    """Write the file, for people and other programs, atomically, or remove it if nothing is ranked.

    The table is the ranking of the first node, which has those of the others in it.

    Raises:
        CheckpointError: the disk refuses.
    """
    with readable_failure(path):
        if not any(ranking.values for ranking in rankings.values()):
            path.unlink(missing_ok=True)
            return
        (node, first), *others = ((node, ranking.as_plain()) for node, ranking in rankings.items())
        table = {**first, "node": node, **({"others": dict(others)} if others else {})}
        replace_file(path, (json.dumps(table, indent=2) + "\n").encode(), flush=True)


def best_by_name(rankings: Mapping[str, Ranking]) -> dict[str, dict[str, Any] | None]:
    """The best checkpoint of each ranking, by its name in the run: ``best``; of further nodes ``best:NODE``."""
    names = [BEST, *(f"{BEST}:{node}" for node in [*rankings][1:])]
    return {BEST: None, **{name: ranking.best for name, ranking in zip(names, rankings.values(), strict=False)}}


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
