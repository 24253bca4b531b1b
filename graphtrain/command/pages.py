"""`graphtrain report` and `watch`: runs in a browser."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import click

from graphtrain.command.cli import command
from graphtrain.command.runs import next_steps
from graphtrain.errors import UsageError
from graphtrain.printable import printable
from graphtrain.report.run import Run, run_directories
from graphtrain.storage.run_directory import STATUS_FILE


@command("graphtrain report runs/first -o first.html", "graphtrain report runs/first runs/second -o both.html")
@click.argument("run_dir", nargs=-1, required=True, type=Path)
@click.option("--output", "-o", required=True, type=Path, help="The file, as in run.html; it is overwritten.")
def report(run_dir: Sequence[Path], *, output: Path) -> None:
    """Write a page about runs, or a folder of runs, to an HTML file.

    It shows the graph with the counts and times of its nodes and edges, curves of the metrics, and a slider over the
    past; for several runs, also the settings that differ. The page needs only a browser, and makes no request.

    Exit codes: 0 written, 2 there is no run.
    """
    from graphtrain.report.page.document import write_report

    write_report(_runs_at(run_dir), output, next_steps)
    click.echo(printable(f"wrote {output}"))


@command("graphtrain watch runs/first", "graphtrain watch runs --port 0")
@click.argument("target", nargs=-1, required=True, type=Path)
@click.option("--port", type=int, default=8321, show_default=True, help="The port; 0 takes a free one.")
def watch(target: Sequence[Path], *, port: int = 8321) -> None:
    """Show runs, or a folder of runs, live in a browser.

    It only reads run directories, and does not affect the processes that train. It listens on this machine only.

    Exit codes: 0 stopped by Ctrl-C, 2 there is nothing to show, or the port is in use.
    """
    try:
        from graphtrain.report.page.server import Watched, serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("graphtrain"):
            raise
        why = f"the page is served by {error.name.partition('.')[0]}, which is not installed"
        raise UsageError(why, "install the extra `watch`: pip install '.[watch]'") from error
    runs = _runs_at(target)
    folder = target[0] if len(target) == 1 and runs != [*target] else None
    serve(Watched(next_steps, runs, folder), port, _announce)


def _runs_at(paths: Sequence[Path]) -> list[Path]:
    """The run directories among the paths, and those in the folders among them."""
    runs: list[Path] = []
    for path in paths:
        is_folder = path.is_dir() and not (path / STATUS_FILE).exists()
        if not (inner := [*run_directories(path)] if is_folder else [Run(path).path]):
            raise UsageError(f"there is no run in `{path}`", "name a run directory, or a folder of runs")
        runs += inner
    return runs


def _announce(port: int) -> None:
    click.echo(f"http://127.0.0.1:{port}/  (Ctrl-C stops it)")
    click.echo(printable(f"from another machine: ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}"))
