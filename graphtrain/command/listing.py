"""Runs as rows of a table, by what their status files hold: columns, order, and how they are printed."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from graphtrain.command.output import aligned, console, notify, table
from graphtrain.errors import UsageError
from graphtrain.names import in_natural_order, nearest
from graphtrain.plain import json_value
from graphtrain.printable import shorten
from graphtrain.report.numbers import duration, metric
from graphtrain.report.run import Run, state_in_words
from graphtrain.report.snapshot import Snapshot
from graphtrain.storage.manifest import checkpoint_paths
from graphtrain.storage.run_directory import ACTIVE, CHECKPOINTS_FOLDER, STATUS_FILE, best_in

_DEPTH = 4
_MOST_METRICS = 3
_MOST_OF_AN_ERROR = 60
_STYLES = {
    "running": "cyan",
    "stopping": "cyan",
    "finished": "green",
    "failed": "red",
    "unreadable": "red",
}
_CLOCKS_DIFFER = 5.0  # seconds


def written_at(status: Mapping[str, Any]) -> float | None:
    """When a status was written, in Unix seconds; None if that cannot be."""
    written = status.get("written_at_unix_seconds")
    return written if isinstance(written, int | float) else None


def age(status: Mapping[str, Any]) -> str:
    """How long ago a status was written."""
    if (written := written_at(status)) is None:
        return "at an unknown time"
    seconds = time.time() - written
    # The clocks of two machines may differ by a little; a clock that was set back differs by more.
    return f"{duration(seconds)} ago" if seconds > -_CLOCKS_DIFFER else f"{duration(-seconds)} ahead of the clock here"


# ---- the run directories


def run_directories(folder: Path) -> Iterator[Path]:
    """The run directories at a folder and below it, by name; links and hidden folders are not followed."""
    if (folder / STATUS_FILE).is_file() or (folder / CHECKPOINTS_FOLDER).is_dir():
        if _is_run(folder):
            yield folder
        return
    start = len(folder.parts)
    for path, folders, _ in os.walk(folder):
        outer = Path(path)
        inner = in_order(outer / name for name in folders if not name.startswith("."))
        runs = [inner_path for inner_path in inner if not inner_path.is_symlink() and _is_run(inner_path)]
        yield from runs
        # Folders inside a run directory are not runs.
        is_deep = len(outer.parts) - start >= _DEPTH - 1
        folders[:] = [] if is_deep else [path.name for path in inner if path not in runs]


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Directories as they are listed: numbers in their names are compared as numbers."""
    return sorted(sorted(paths), key=lambda path: in_natural_order(path.name))


def _is_run(path: Path) -> bool:
    """True for a folder that a run has written to; a file with the name of a status may be anybody's."""
    try:
        if not (path / STATUS_FILE).is_file():
            return bool(checkpoint_paths(path / CHECKPOINTS_FOLDER))
        return (path / CHECKPOINTS_FOLDER).is_dir() or {"state", "position"} <= Run(path).status.keys()
    except (OSError, UsageError):
        return False


# ---- rows and columns


@dataclass(frozen=True)
class ListedRun:
    """A row: a run directory and its status, as far as that can be read."""

    path: Path
    status: Mapping[str, Any]

    @classmethod
    def of(cls, path: Path) -> ListedRun:
        """The run in a directory."""
        try:
            return cls(path, Run(path).status)
        except UsageError:
            return cls(path, {"state": "unreadable"})

    @cached_property
    def snapshot(self) -> Snapshot:
        """Its progress."""
        return Snapshot.from_plain(self.status)

    @property
    def tables(self) -> list[Mapping[str, Any]]:
        """Where a column is looked up: arguments of setup, metrics, parameters of nodes, other facts."""
        entries = [self.status.get("arguments"), self.snapshot.metrics, self.status.get("parameters"), self.status]
        return [entry for entry in entries if isinstance(entry, Mapping)]

    def value(self, column: str) -> Any:
        """The value in a column; None if it has none."""
        if column in _COLUMNS:
            return _COLUMNS[column](self)
        if (best := best_in(self.status).get(column)) is not None:
            return best.get("value")
        return next((entries[column] for entries in self.tables if column in entries), None)

    def key(self, column: str) -> tuple[int, float, list[tuple[int, str]]] | None:
        """What it is sorted by: numbers before texts. None for a value that is missing, or NaN."""
        value = -(written_at(self.status) or 0) if column == "age" else self.value(column)
        if isinstance(value, int | float):
            return None if math.isnan(value) else (0, value, [])
        return None if value in (None, "") else (1, 0, in_natural_order(str(value)))


def _last_metrics(run: ListedRun) -> str:
    """The first of the latest metrics, losses before the others."""
    measured = run.snapshot.measured
    names = sorted(measured, key=lambda name: not name.endswith("loss"))
    latest = [f"{name} {metric(measured[name])}" for name in names[:_MOST_METRICS]]
    more = [f"+{len(names) - _MOST_METRICS} more"] if len(names) > _MOST_METRICS else []
    return ", ".join(latest + more)


def _resumable(run: ListedRun) -> str:
    """Whether there is a checkpoint to resume from; empty for a run that is running, or done."""
    if run.snapshot.state in (*ACTIVE, "finished"):
        return ""
    return "yes" if checkpoint_paths(run.path / CHECKPOINTS_FOLDER) else "no checkpoint"


_COLUMNS: Mapping[str, Callable[[ListedRun], Any]] = {
    "run": lambda run: str(run.path),
    "state": lambda run: state_in_words(run.status),
    "place": lambda run: run.status.get("place"),
    "graph": lambda run: run.snapshot.graph if run.status.get("graph") else None,
    "last metrics": _last_metrics,
    "best": lambda run: best_in(run.status).get("best", {}).get("value"),
    "age": lambda run: age(run.status),
    "resumable": _resumable,
    "error": lambda run: shorten(run.status.get("error") or "", _MOST_OF_AN_ERROR),
}
_ALWAYS = ("run", "state")
_USUAL = ("run", "state", "place", "graph", "last metrics", "age", "resumable")


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def print_runs(
    paths: Iterable[Path], folder: Path, *, sort: str = "", columns: Sequence[str] = (), as_json: bool = False
) -> None:
    """Print runs as a table: on a terminal folded to its width, elsewhere a line for each; or as JSON.

    Arguments:
        folder: where they are, for messages.
        sort: the column to sort by, with ``-`` in front for the largest first. Default: the order given.
        columns: those after the run and its state. Default: the usual ones, and `error` if a run has one; as JSON, the
            whole status.
    """
    runs = [ListedRun.of(path) for path in paths]
    by = sort.removeprefix("-")
    if runs:
        for name in filter(None, dict.fromkeys([by, *columns])):
            _expect(name, runs, folder)
    if by:
        missing = [run for run in runs if run.key(by) is None]
        present = [run for run in runs if run.key(by) is not None]
        runs = [*sorted(present, key=lambda run: run.key(by) or (), reverse=by != sort), *missing]
    if as_json:
        names = [*dict.fromkeys([*_ALWAYS, *columns])]
        listed = [
            {name: json_value(run.value(name)) for name in names}
            if columns
            else {"run_dir": str(run.path), **run.status}
            for run in runs
        ]
        click.echo(json.dumps(listed, indent=2, allow_nan=False))
        return
    if not runs:
        notify(f"no run in {folder}, nor in the folders below it")
        return
    errors = ["error"] if any(run.value("error") for run in runs) else []
    names = [*dict.fromkeys([*_ALWAYS, *columns])] if columns else [*_USUAL, *errors]
    rows = [[_text(run.value(name)) for name in names] for run in runs]
    printed = console()
    if printed.is_terminal:
        printed.print(table(names, rows, styles=[_STYLES.get(run.snapshot.state) for run in runs]))
    else:
        for line in aligned(names, rows):
            click.echo(line)


def _expect(column: str, runs: Sequence[ListedRun], folder: Path) -> None:
    """Report a column that no run has: it may be misspelt, or not recorded yet."""
    if column not in _COLUMNS and all(run.value(column) is None for run in runs):
        known = {name for run in runs for entries in run.tables for name in entries} | _COLUMNS.keys()
        close = nearest(column, known)
        notify(f"no run in {folder} has `{column}`" + (f"; did you mean `{close}`?" if close else ""))
