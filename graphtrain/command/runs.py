"""`graphtrain ls`, `status` and `export`: what runs have left in their directories."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from graphtrain.command.cli import command
from graphtrain.command.failure import FAILED, STOPPED
from graphtrain.command.listing import age, print_runs, run_directories
from graphtrain.command.output import console, error_lines, notify, shown, shown_number
from graphtrain.errors import UsageError
from graphtrain.lazy import imported
from graphtrain.printable import one_line
from graphtrain.report.run import Run
from graphtrain.report.snapshot import Snapshot
from graphtrain.storage.manifest import checkpoint_paths
from graphtrain.storage.run_directory import ACTIVE, CHECKPOINTS_FOLDER, STATUS_FILE, best_in

_EXIT_CODES = {"finished": 0, "stopped": STOPPED}
_WIDTH_OF_A_PIPE = 120


# ---- ls


@command(
    "graphtrain ls runs",
    "graphtrain ls runs --columns lr,width,val/accuracy,best --sort -val/accuracy",
    "graphtrain ls runs --json",
)
@click.argument("folder", type=Path, default=Path("runs"), metavar="[FOLDER]")
@click.option("--columns", default="", metavar="NAMES", help="What to show after the run and its state.")
@click.option("--sort", default="", metavar="NAME", help="Sort by a column; -NAME begins with the largest.")
@click.option("--json", "as_json", is_flag=True, help="Print the status of each run as JSON, or only the columns.")
def ls(folder: Path = Path("runs"), *, columns: str = "", sort: str = "", as_json: bool = False) -> None:
    """List the runs in a folder: state, place, graph, last metrics, age, and whether they can be resumed.

    Only status files are read. A run whose process is gone is `interrupted`. Where standard output is no terminal,
    every run is one line, its cells are separated by at least two spaces, and an empty cell is `-`.

    --columns takes arguments of setup, metrics (their last values), parameters that the graph sets, and place, graph,
    last metrics, best (the metric of the best checkpoint), age, resumable, error: lr,accumulate.every,val/loss. Runs
    without a value are sorted last. FOLDER is runs if it is not given; runs are found at most 4 levels below it.

    Exit codes: 0 listed, 2 there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder `{folder}`", "name the folder that holds your run directories")
    names = [name.strip() for name in columns.split(",") if name.strip()]
    print_runs(run_directories(folder), folder, sort=sort, columns=names, as_json=as_json)


# ---- status


@command(
    "graphtrain status runs/digits-001",
    "graphtrain status runs/digits-001 --json",
    "graphtrain status runs/digits-001 --exit-code",
)
@click.argument("run_dir", type=Path)
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
@click.option("--exit-code", is_flag=True, help="Exit as the run did, which torchrun does not.")
def status(run_dir: Path, *, as_json: bool = False, exit_code: bool = False) -> int:
    """Show the progress of a run, whether it is running or not, from its run directory.

    The runs in a folder are listed as by ls.

    Exit codes: 0 shown, 2 there is no run; with --exit-code 0 for a run that is finished, 75 for one that is stopped
    and can be resumed, and 1 for one that has failed, was killed, or is running.
    """
    if run_dir.is_dir() and not (run_dir / STATUS_FILE).exists() and (inner := [*run_directories(run_dir)]):
        if exit_code:
            raise UsageError(f"--exit-code: `{run_dir}` is a folder of runs", "name the directory of one run")
        print_runs(inner, run_dir, as_json=as_json)
        return 0
    present = Run(run_dir).status
    paths = checkpoint_paths(run_dir / CHECKPOINTS_FOLDER) if present.get("state") == "interrupted" else []
    if paths and paths[-1].name != present.get("checkpoint"):  # saved after the status was written
        present |= {"checkpoint": paths[-1].name, "digest": None}
    text = json.dumps(present, indent=2, allow_nan=False) if as_json else "\n".join(_lines(run_dir, present))
    encoding = sys.stdout.encoding or "utf-8"
    click.echo(text.encode(encoding, "replace").decode(encoding))
    return (FAILED if present.get("error") else _EXIT_CODES.get(str(present.get("state")), FAILED)) if exit_code else 0


def _lines(run_dir: Path, status: dict[str, Any]) -> Iterator[str]:
    snapshot = Snapshot.from_plain(status)
    failed = f", in node {snapshot.position}" if snapshot.position else ", before it began"
    places = {"finished": "", "failed": failed}
    place = places.get(snapshot.state, f", next node {snapshot.position}")
    yield one_line(f"{run_dir}: {snapshot.state}, graph {snapshot.graph}{place}")
    yield from (f"  {line}" for line in _panel(snapshot))
    if status.get("error"):
        yield from (f"  {line}" for line in error_lines(status["error"]))
    if status.get("not_finite"):
        yield f"  {shown(status['not_finite'])}"
    yield f"  newest checkpoint {shown(status.get('checkpoint') or 'none yet')}"
    for name, best in best_in(status).items():
        number = shown_number(best.get("value"))
        yield f"  {shown(name)} checkpoint {shown(best.get('checkpoint'))}, {shown(best.get('metric'))} {number}"
    if status.get("digest"):
        yield f"  digest {shown(status['digest'])}"
    yield f"  written {age(status)} by process {shown(status.get('process'))}{_process(status)}"


def _panel(snapshot: Snapshot) -> list[str]:
    """The run as displays draw it."""
    from rich.console import Console

    panels = imported("graphtrain.report.display.panel")
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
@click.argument("run", type=Path)
@click.argument("path", type=Path)
@click.option("--model", metavar="NAME", help="Only this model, by the name that setup gives it. Default: all.")
def export(run: Path, path: Path, *, model: str | None = None) -> None:
    """Write the weights of a run to a file that needs nothing but safetensors to be read.

    Parameters and buffers have the names of the model's state_dict, with the name of the model in front where there are
    several. The file of a run of several processes is complete too; buffers that differ are those of rank 0.

    RUN is a run directory (its newest checkpoint), or a checkpoint in one; RUN/best is the best. PATH is a new file,
    .safetensors.

    Exit codes: 0 written, 1 the checkpoint is damaged, 2 there is no such run or model, or the file exists.
    """
    from graphtrain.command.weights import export_weights

    click.echo(export_weights(run, path, model, notify))
