"""`graphtrain ls`, `status` and `export`: what runs have left in their directories."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from graphtrain.alive import is_alive
from graphtrain.command.cli import command
from graphtrain.command.failure import FAILED, STOPPED
from graphtrain.command.output import console, notify, shown, table
from graphtrain.errors import UsageError
from graphtrain.lazy import PARTS, installed
from graphtrain.names import in_natural_order
from graphtrain.printable import one_line
from graphtrain.report.numbers import duration, metric
from graphtrain.report.snapshot import Snapshot
from graphtrain.storage.manifest import checkpoint_paths
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER, STATUS_FILE, read_status

ACTIVE = ("running", "stopping")
_EXIT_CODES = {"finished": 0, "stopped": STOPPED}
_DEPTH = 4
_MOST_METRICS = 3
_STYLES = {"running": "cyan", "stopping": "cyan", "finished": "green", "failed": "red", "unreadable": "red"}
_WIDTH_OF_A_PIPE = 120
_CLOCKS_DIFFER = 5.0  # seconds
_END_OF_TIME = 1e12  # in seconds; anything beyond is a mistake


def present_status(run_dir: Path) -> dict[str, Any]:
    """The last status of a run; one that is running in a process that is gone is interrupted.

    Raises:
        UsageError: there is no run, or its status cannot be read.
    """
    status = read_status(run_dir)
    if status.get("state") in ACTIVE and _alive(status) is False:
        status["state"] = "interrupted"
    return status


def _alive(status: dict[str, Any]) -> bool | None:
    """True if the process that wrote the status is alive; None if it runs on another host."""
    if status.get("host") not in (None, socket.gethostname()):
        return None
    process = status.get("process")
    return isinstance(process, int) and not isinstance(process, bool) and is_alive(process)


def _age(status: dict[str, Any]) -> str:
    """How long ago a status was written."""
    written = status.get("written_at_unix_seconds")
    if isinstance(written, bool) or not isinstance(written, int | float) or not abs(written) < _END_OF_TIME:
        return "at an unknown time"
    age = time.time() - written
    # The clocks of two machines may differ by a little; a clock that was set back differs by more.
    return f"{duration(age)} ago" if age > -_CLOCKS_DIFFER else f"{duration(-age)} ahead of the clock here"


# ---- ls


@command("graphtrain ls runs", "graphtrain ls runs --json")
def ls(folder: Path = Path("runs"), *, as_json: bool = False) -> None:
    """List the runs in a folder: state, place, graph, last metrics, age, and whether they can be resumed.

    Only status files are read. A run whose process is gone is `interrupted`.

    Exit codes: 0 listed, 2 there is no such folder.

    Arguments:
        folder: The folder that holds the run directories, at most 4 levels below it. Default: runs.

    Options:
        as_json: Print the status of each run, as JSON.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder `{folder}`", "name the folder that holds your run directories")
    _list([*run_directories(folder)], folder, as_json=as_json)


def _list(paths: list[Path], folder: Path, *, as_json: bool) -> None:
    runs = [(path, _listed_status(path)) for path in paths]
    if as_json:
        click.echo(json.dumps([{"run_dir": str(path), **status} for path, status in runs], indent=2, allow_nan=False))
        return
    if not runs:
        click.echo(f"no run in {folder}, nor in the folders below it", err=True)
        return
    snapshots = [Snapshot.from_plain(status) for _, status in runs]
    rows = [
        (
            str(path),
            snapshot.state,
            str(status.get("place") or ""),
            snapshot.graph,
            _last_metrics(snapshot),
            _age(status),
            _resumable(path, snapshot.state),
        )
        for (path, status), snapshot in zip(runs, snapshots, strict=True)
    ]
    columns = ["run", "state", "place", "graph", "last metrics", "age", "resumable"]
    console().print(table(columns, rows, styles=[_STYLES.get(snapshot.state) for snapshot in snapshots]))


def run_directories(folder: Path) -> Iterator[Path]:
    """The run directories at a folder and below it, by name; links and hidden folders are not followed."""
    if (folder / STATUS_FILE).is_file() or (folder / CHECKPOINTS_FOLDER).is_dir():
        if _is_run(folder):
            yield folder
        return
    start = len(folder.parts)
    for path, folders, _ in os.walk(folder):
        outer = Path(path)
        inner = [outer / name for name in sorted(folders, key=in_natural_order) if not name.startswith(".")]
        runs = [inner_path for inner_path in inner if not inner_path.is_symlink() and _is_run(inner_path)]
        yield from runs
        # Folders inside a run directory are not runs.
        is_deep = len(outer.parts) - start >= _DEPTH - 1
        folders[:] = [] if is_deep else [path.name for path in inner if path not in runs]


def _is_run(path: Path) -> bool:
    """True for a folder that a run has written to; a file with the name of a status may be anybody's."""
    try:
        if not (path / STATUS_FILE).is_file():
            return bool(checkpoint_paths(path / CHECKPOINTS_FOLDER))
        return (path / CHECKPOINTS_FOLDER).is_dir() or {"state", "position"} <= present_status(path).keys()
    except (OSError, UsageError):
        return False


def _listed_status(path: Path) -> dict[str, Any]:
    try:
        return present_status(path)
    except UsageError:
        return {"state": "unreadable" if (path / STATUS_FILE).exists() else "no status"}


def _last_metrics(snapshot: Snapshot) -> str:
    """The first of the latest metrics, losses before the others."""
    names = sorted(snapshot.measured, key=lambda name: not name.endswith("loss"))
    latest = [f"{name} {metric(snapshot.metrics[name])}" for name in names[:_MOST_METRICS]]
    more = [f"+{len(names) - _MOST_METRICS} more"] if len(names) > _MOST_METRICS else []
    return "  ".join(latest + more)


def _resumable(path: Path, state: str) -> str:
    """Whether there is a checkpoint to resume from; empty for a run that is running, or done."""
    if state in (*ACTIVE, "finished"):
        return ""
    return "yes" if checkpoint_paths(path / CHECKPOINTS_FOLDER) else "no checkpoint"


# ---- status


@command(
    "graphtrain status runs/digits-001",
    "graphtrain status runs/digits-001 --json",
    "graphtrain status runs/digits-001 --exit-code",
)
def status(run_dir: Path, *, as_json: bool = False, exit_code: bool = False) -> int:
    """Show the progress of a run, whether it is running or not, from its run directory.

    Exit codes: 0 shown, 2 there is no run; with --exit-code also 75 for a run that is stopped and can be resumed, and 1
    for one that has failed, was killed, or is running.

    Arguments:
        run_dir: The directory of a run; or a folder of them, listed as by ls.

    Options:
        as_json: Print the status as JSON.
        exit_code: Exit as the run did, which torchrun does not: 0 finished, 75 stopped and resumable, else 1.
    """
    if run_dir.is_dir() and not (run_dir / STATUS_FILE).exists() and (inner := [*run_directories(run_dir)]):
        if exit_code:
            raise UsageError(f"--exit-code: `{run_dir}` is a folder of runs", "name the directory of one run")
        _list(inner, run_dir, as_json=as_json)
        return 0
    present = present_status(run_dir)
    text = json.dumps(present, indent=2, allow_nan=False) if as_json else "\n".join(_lines(run_dir, present))
    encoding = sys.stdout.encoding or "utf-8"
    click.echo(text.encode(encoding, "replace").decode(encoding))
    return _EXIT_CODES.get(str(present.get("state")), FAILED) if exit_code else 0


def _lines(run_dir: Path, status: dict[str, Any]) -> Iterator[str]:
    snapshot = Snapshot.from_plain(status)
    places = {"finished": "", "failed": f", in node {snapshot.position}"}
    place = places.get(snapshot.state, f", next node {snapshot.position}")
    yield one_line(f"{run_dir}: {snapshot.state}, graph {snapshot.graph}{place}")
    yield from (f"  {line}" for line in _panel(snapshot))
    if status.get("not_finite"):
        yield f"  {shown(status['not_finite'])}"
    yield f"  newest checkpoint {shown(status.get('checkpoint') or 'none yet')}"
    if isinstance(best := status.get("best"), dict):
        value = best.get("value")
        number = metric(value) if isinstance(value, int | float) else shown(value)
        yield f"  best checkpoint {shown(best.get('checkpoint'))}, {shown(best.get('metric'))} {number}"
    if status.get("digest"):
        yield f"  digest {shown(status['digest'])}"
    yield f"  written {_age(status)} by process {shown(status.get('process'))}{_process(status)}"


def _panel(snapshot: Snapshot) -> list[str]:
    """The run as displays draw it; no line where they are not installed."""
    from rich.console import Console

    if (panels := installed(PARTS["panel"])) is None:
        return []
    terminal = console()
    width = terminal.width - 2 if terminal.is_terminal else _WIDTH_OF_A_PIPE
    drawing = Console(file=sys.stdout, width=width, highlight=False)
    with drawing.capture() as drawn:
        drawing.print(panels.Panel(snapshot))
    return [line.rstrip() for line in drawn.get().splitlines()]


def _process(status: dict[str, Any]) -> str:
    """Whether the process is alive, by the state; known only on its own host."""
    if status.get("host") not in (None, socket.gethostname()):
        return f" on host {shown(status['host'])}"
    if status.get("state") == "interrupted":
        return ", which is gone"
    return ", which is alive" if status.get("state") in ACTIVE else ""


# ---- export


@command(
    "graphtrain export runs/first weights.safetensors",
    "graphtrain export runs/first/best weights.safetensors",
    "graphtrain export runs/first/checkpoints/000003-step-120 weights.safetensors --model generator",
)
def export(run: Path, path: Path, *, model: str | None = None) -> None:
    """Write the weights of a run to one file that needs nothing but safetensors to be read.

    Parameters and buffers have the names of the model's state_dict, with the name of the model in front where there are
    several. The file of a run of several processes is complete too; buffers that differ are those of rank 0.

    Exit codes: 0 written, 1 the checkpoint is damaged, 2 there is no such run or model, or the file exists.

    Arguments:
        run: A run directory (its newest checkpoint), or a checkpoint in one; RUN/best is the best.
        path (FILE): The file to write, .safetensors; it must not exist.

    Options:
        model (NAME): Only this model, by the name that setup gives it. Default: all.
    """
    from graphtrain.command.weights import export_weights

    click.echo(export_weights(run, path, model, notify))
