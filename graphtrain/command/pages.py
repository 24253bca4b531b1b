"""`graphtrain report` and `watch`: runs and graphs in a browser."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphtrain.command.cli import command
from graphtrain.command.listing import run_directories
from graphtrain.errors import UsageError
from graphtrain.printable import printable
from graphtrain.storage.run_directory import STATUS_FILE

if TYPE_CHECKING:
    from graphtrain.page.server import Watched


@command("graphtrain report runs/first -o first.html", "graphtrain report runs/first runs/second -o both.html")
@click.argument("run_dir", nargs=-1, type=Path)
@click.option("--output", "-o", required=True, type=Path, help="The file, as in run.html; it is overwritten.")
def report(run_dir: Sequence[Path], *, output: Path) -> None:
    """Write a page about runs into one file: for mail, for the appendix of a paper, for an issue.

    It shows the graph with counts and time at its nodes and edges, the metrics as curves, a slider over the past, and
    of several runs the settings that differ. It makes no request, and needs nothing but a browser.

    Exit codes: 0 written, 2 there is no run.
    """
    if not run_dir:
        raise UsageError("no run is named", "graphtrain report RUN -o run.html")
    from graphtrain.page import document

    document.report([_run(path) for path in run_dir], output)
    click.echo(printable(f"wrote {output}"))


@command("graphtrain watch runs/first", "graphtrain watch runs --port 0")
@click.argument("target", nargs=-1)
@click.option("--port", type=int, default=8321, show_default=True, help="The port; 0 takes one that is free.")
def watch(target: Sequence[str], *, port: int = 8321) -> None:
    """Show runs, or a folder of runs, in a browser, as they change, until an interrupt.

    Run directories are only read, and the processes that train know nothing of it. It listens on this machine only.

    Exit codes: 0 ended, 2 there is nothing to show, or the port is in use.
    """
    if not target:
        raise UsageError("nothing to show is named", "name run directories, or a folder that holds some")
    try:
        from graphtrain.page import server
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("graphtrain"):
            raise
        why = f"the page is served by {error.name.partition('.')[0]}, which is not installed"
        raise UsageError(why, "pip install starlette uvicorn") from error
    server.serve(_watched(target), port, _announce)


def _watched(target: Sequence[str]) -> Watched:
    from graphtrain.page.server import Watched

    paths = [Path(each) for each in target]
    if len(paths) == 1 and paths[0].is_dir() and not (paths[0] / STATUS_FILE).exists():
        if not any(True for _ in run_directories(paths[0])):
            why = f"there is no run in `{paths[0]}`"
            raise UsageError(why, "name a run directory, or a folder that holds some")
        return Watched(folder=paths[0], runs_in=run_directories)
    return Watched(runs=[_run(path) for path in paths])


def _run(path: Path) -> Path:
    from graphtrain.report.run import Run

    return Run(path).path


def _announce(port: int) -> None:
    click.echo(f"http://127.0.0.1:{port}/  (an interrupt ends it)")
    click.echo(printable(f"from another machine: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}"))
