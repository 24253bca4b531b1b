"""`graphtrain ls`: the runs below a folder, by their status files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from graphtrain.command.output import escaped
from graphtrain.command.status import ACTIVE, age, present_status
from graphtrain.display.numbers import metric
from graphtrain.display.snapshot import Snapshot
from graphtrain.errors import UsageError
from graphtrain.names import in_natural_order
from graphtrain.storage.manifest import checkpoint_paths
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER, STATUS_FILE

_DEPTH = 4
_MOST_METRICS = 3
_STYLES = {"running": "cyan", "stopping": "cyan", "finished": "green", "failed": "red", "unreadable": "red"}


def ls_command(folder: Path, *, as_json: bool) -> None:
    """Print a row for every run directory in a folder, or further below it."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder `{folder}`", "name the folder that holds your run directories")
    runs = [(path, _status(path)) for path in run_directories(folder)]
    if as_json:
        typer.echo(json.dumps([{"run_dir": str(path), **status} for path, status in runs], indent=2, allow_nan=False))
        return
    if not runs:
        typer.echo(f"no run in {folder}, nor in the folders below it", err=True)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("run", "state", "place", "graph", "last metrics", "age", "resumable"):
        table.add_column(column, overflow="fold")
    for path, status in runs:
        snapshot = Snapshot.from_plain(status)
        cells = (
            str(path),
            snapshot.state,
            str(status.get("place") or ""),
            snapshot.graph,
            _last_metrics(snapshot),
            age(status),
            _resumable(path, snapshot.state),
        )
        table.add_row(*(escaped(text) for text in cells), style=_STYLES.get(snapshot.state))
    Console(highlight=False).print(table)


def run_directories(folder: Path) -> Iterator[Path]:
    """The run directories at a folder and below it, by name; links and hidden folders are not followed."""
    if (folder / STATUS_FILE).is_file() or (folder / CHECKPOINTS_FOLDER).is_dir():
        if _is_run(folder):
            yield folder
        return
    start = len(folder.parts)
    for path, folders, _ in os.walk(folder):
        here = Path(path)
        inner = [here / name for name in sorted(folders, key=in_natural_order) if not name.startswith(".")]
        runs = [inner_path for inner_path in inner if not inner_path.is_symlink() and _is_run(inner_path)]
        yield from runs
        # What is in a run directory is no run of its own.
        is_deep = len(here.parts) - start >= _DEPTH - 1
        folders[:] = [] if is_deep else [path.name for path in inner if path not in runs]


def _is_run(path: Path) -> bool:
    """True for a folder that a run has written to; a file of that name alone may be anybody's."""
    try:
        if not (path / STATUS_FILE).is_file():
            return bool(checkpoint_paths(path / CHECKPOINTS_FOLDER))
        return (path / CHECKPOINTS_FOLDER).is_dir() or {"state", "position"} <= present_status(path).keys()
    except (OSError, UsageError):
        return False


def _status(path: Path) -> dict[str, Any]:
    try:
        return present_status(path)
    except UsageError:
        return {"state": "unreadable" if (path / STATUS_FILE).exists() else "no status"}


def _last_metrics(snapshot: Snapshot) -> str:
    """The first of the latest metrics, losses before the others."""
    names = list(snapshot.measured)
    names.sort(key=lambda name: not name.endswith("loss"))
    shown = [f"{name} {metric(snapshot.metrics[name])}" for name in names[:_MOST_METRICS]]
    more = [f"+{len(names) - _MOST_METRICS} more"] if len(names) > _MOST_METRICS else []
    return "  ".join(shown + more)


def _resumable(path: Path, state: str) -> str:
    """Whether there is a checkpoint to resume from; empty for a run that is running, or done."""
    if state in (*ACTIVE, "finished"):
        return ""
    return "yes" if checkpoint_paths(path / CHECKPOINTS_FOLDER) else "no checkpoint"
