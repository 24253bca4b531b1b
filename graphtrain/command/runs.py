"""`graphtrain ls`, `status`, `explain` and `export`, which read run directories."""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from graphtrain.command.cli import command
from graphtrain.command.failure import FAILED, STOPPED
from graphtrain.command.options import OF_THE_END, OF_THE_START, ended_by, omit, replay_command, resume_command
from graphtrain.command.output import aligned, console, notify, plural, shown_number
from graphtrain.errors import GraphtrainError, UsageError
from graphtrain.graph.elements import nodes_of
from graphtrain.lazy import imported
from graphtrain.names import in_natural_order
from graphtrain.plain import json_value
from graphtrain.printable import error_lines, one_line, printable, shown
from graphtrain.report.numbers import duration, metric
from graphtrain.report.run import Run, run_directories
from graphtrain.storage.run_directory import ACTIVE

_EXIT_CODES = {"finished": 0, "stopped": STOPPED}
_USUAL = ("run", "state", "place", "last metrics", "age", "resumable")
_MOST_METRICS = 3
_MOST_OF_AN_ERROR = 60
_MOST_STARTS = 6
_WIDTH_OF_A_PIPE = 120


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
    """List the runs in a folder: state, place, metrics, age.

    Only status files are read. A run whose process is gone is `interrupted`. Every run is one line, shortened to the
    width of a terminal: cells are separated by at least two spaces, and an empty cell is `-`.

    --columns takes arguments of setup, metrics (their last values), parameters that the graph sets, and place, graph,
    last metrics, best (the metric of the best checkpoint), age, resumable, error: lr,accumulate.every,val/loss. Runs
    without a value are sorted last. FOLDER is runs by default; runs are found at most 4 levels below it.

    Exit codes: 0 listed, 2 there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder `{folder}`", "name the folder that holds your run directories")
    runs = [_listed(path) for path in run_directories(folder)]
    if not runs and not as_json:
        notify(f"there is no run in {folder}, or in the folders below it")
        return
    by, chosen = sort.removeprefix("-"), [name.strip() for name in columns.split(",") if name.strip()]
    for name in dict.fromkeys(filter(None, [by, *chosen])):
        if runs and all(run.get(name) is None for run, _ in runs):
            notify(f"no run in {folder} has `{name}`")
    if by:
        present = [run for run in runs if _key(run[0].get(by)) is not None]
        missing = [run for run in runs if run not in present]
        runs = [*sorted(present, key=lambda run: _key(run[0].get(by)) or (), reverse=by != sort), *missing]
    errors = ["error"] if any(run.get("error") for run, _ in runs) else []
    names = [*dict.fromkeys(["run", "state", *chosen])] if chosen else [*_USUAL, *errors]
    if as_json:
        cells = ({name: json_value(run.get(name)) for name in names} for run, _ in runs)
        statuses = ({"run_dir": run["run"], **status} for run, status in runs)
        click.echo(json.dumps([*(cells if chosen else statuses)], indent=2, allow_nan=False))
        return
    rows = [[_text(name, run.get(name)) for name in names] for run, _ in runs]
    width = printed.width if (printed := console()).is_terminal else 0
    click.echo("\n".join(aligned(names, rows, width)))


def _listed(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """All columns of a run, and its status."""
    try:
        run = Run(path)
    except UsageError:
        return {"run": str(path), "state": "unreadable"}, {"state": "unreadable"}
    status, parameters = run.status, run.status.get("parameters")
    snapshot = run.snapshot()
    measured = sorted(snapshot.measured.items(), key=lambda item: not item[0].endswith("loss"))
    latest = [f"{name} {metric(value)}" for name, value in measured[:_MOST_METRICS]]
    more = [f"+{len(measured) - _MOST_METRICS} more"] if len(measured) > _MOST_METRICS else []
    columns = {
        **status,
        **(parameters if isinstance(parameters, dict) else {}),
        **snapshot.metrics,
        **run.arguments,
        **{"best": None, **{name: best.get("value") for name, best in run.best.items()}},
        "run": str(path),
        "state": run.condition,
        "place": run.place,
        "last metrics": ", ".join(latest + more),
        "age": run.age_seconds,
        "resumable": run.resumable,
        "error": one_line(str(status.get("error") or ""), _MOST_OF_AN_ERROR),
    }
    return columns, status


def _key(value: Any) -> tuple[int, float, list[tuple[int, str]]] | None:
    """The sort key: numbers before texts; None for a value that is missing, or NaN."""
    if isinstance(value, int | float):
        return None if math.isnan(value) else (0, value, [])
    return None if value in (None, "") else (1, 0, in_natural_order(str(value)))


def _text(column: str, value: Any) -> str:
    if column == "age" and value is not None:
        return f"{' '.join(duration(value).split()[:2])} ago"
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@command(
    "graphtrain status runs/digits-001",
    "graphtrain status runs/digits-001 --json",
    "graphtrain status runs/digits-001 --exit-code",
)
@click.argument("run_dir", type=Path)
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
@click.option("--exit-code", is_flag=True, help="Exit with the code of the run, which torchrun does not.")
def status(run_dir: Path, *, as_json: bool = False, exit_code: bool = False) -> int:
    """Show the progress of a run, whether it is running or not.

    Exit codes: 0 shown, 2 there is no run; with --exit-code 0 for a run that is finished, 75 for one that is stopped
    and can be resumed, and 1 for one that has failed, was killed, or is running.
    """
    run = Run(run_dir)
    text = json.dumps(run.status, indent=2, allow_nan=False) if as_json else "\n".join(_progress(run))
    encoding = sys.stdout.encoding or "utf-8"
    click.echo(text.encode(encoding, "replace").decode(encoding))
    return (FAILED if run.status.get("error") else _EXIT_CODES.get(run.state, FAILED)) if exit_code else 0


def _progress(run: Run) -> Iterator[str]:
    """The run as displays draw it, its checkpoints, and the process that wrote its status."""
    status, snapshot = run.status, run.snapshot()
    place = {"finished": "", "failed": f", in node {snapshot.position}"}.get(
        run.state, f", next node {snapshot.position}"
    )
    yield one_line(f"{run.path}: {run.state}, graph {snapshot.graph}{place}")
    drawing = console()
    drawing.width = drawing.width - 2 if drawing.is_terminal else _WIDTH_OF_A_PIPE
    with drawing.capture() as drawn:
        drawing.print(imported("graphtrain.report.display.panel").Panel(snapshot))
    yield from (f"  {line.rstrip()}" for line in drawn.get().splitlines())
    if status.get("not_finite"):
        yield f"  {shown(status['not_finite'])}"
    yield from (f"  started from {shown(start['checkpoint'])}" for start in run.starts[:1] if start["checkpoint"])
    since = ", saved after what is shown above" if run.is_behind else ""
    yield f"  newest checkpoint {shown(status.get('checkpoint') or 'none yet')}{since}"
    yield from (f"  {line}" for line in _best(run))
    if status.get("digest"):
        yield f"  digest {shown(status['digest'])}"
    process = ", which is gone" if run.state == "interrupted" else ", which is alive" if run.state in ACTIVE else ""
    if status.get("host") not in (None, socket.gethostname()):
        process = f" on host {shown(status['host'])}"
    writer = f" by process {shown(status['process'])}" if status.get("process") is not None else ""
    yield f"  written {run.age}{writer}{process}"
    yield from (f"  {line}" for line in error_lines(status.get("error") or "") if line)


def _best(run: Run) -> Iterator[str]:
    for name, best in run.best.items():
        number = shown_number(best.get("value"))
        yield f"{shown(name)} checkpoint {shown(best.get('checkpoint'))}, {shown(best.get('metric'))} {number}"


@command("graphtrain explain runs/first", "graphtrain explain G404")
@click.argument("run_dir", type=Path, metavar="RUN_DIR|CODE")
def explain(run_dir: Path) -> None:
    """Say why a run ended and what to do next, or what a code means.

    Of a run: why it ended, stopped or failed, its starts and checkpoints, and the command that resumes it. All of it is
    read from the run directory; the script is not needed, and nothing is written.

    Of the code of a problem that `check` reports, such as G404: what is found, what would happen without the check, and
    what to do.

    Exit codes: 0 explained, 2 there is no such run or code.
    """
    if re.fullmatch(r"G\d+", str(run_dir)) and not run_dir.is_dir():
        click.echo(_explained(str(run_dir)))
        return
    run = Run(run_dir)
    place = f", {one_line(run.place, 200)}" if run.place else ""
    click.echo("\n  ".join([f"{run.path}: {run.state}{place}, {run.age}", *run.why()]))
    sections = {
        "starts": [*map(_start, run.starts[-_MOST_STARTS:])],
        "reported": [f"{_moment(at)}  {shown(line, 300)}" for at, line in run.status.get("notices") or ()],
        "checkpoints": [*_checkpoints(run)],
        "next": [row for words, text in next_steps(run) for row in (words, "    " * bool(words) + text) if row.strip()],
    }
    for title, lines in sections.items():
        if lines:
            click.echo("\n  ".join([f"\n{title}:", *lines]))


def _explained(name: str) -> str:
    from graphtrain.checks.codes import CODES  # with all checks, which a run does not need

    if (code := CODES.get(name)) is None:
        raise UsageError(f"there is no code `{name}`", "docs/checks.md lists all of them")
    parts = {"without the check": code.consequence, "what to do": code.remedy}
    wrapped = {title: click.wrap_text(text, min(100, console().width), "  ", "  ") for title, text in parts.items()}
    return "\n\n".join([f"{name}: {code.title}", *(f"{title}:\n{text}" for title, text in wrapped.items())])


def _start(start: dict[str, Any]) -> str:
    origin = start["checkpoint"]  # a path for a checkpoint of another run
    how = f"{'resumed' if Path(origin).name == origin else 'started'} from {shown(origin)}" if origin else "started"
    at = _moment(start.get("started_at_unix_seconds"))
    return f"{at}  {how} on {shown(start.get('host'))} by process {shown(start.get('process'))}"


def _moment(at: Any) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (TypeError, ValueError, OverflowError, OSError):
        return "at an unknown time"


def _checkpoints(run: Run) -> Iterator[str]:
    """The newest and the best checkpoint, and how often the run went back to one."""
    if (manifest := run.manifest) is not None:
        yield f"newest {shown(run.newest)}, step {manifest.step}"
        if manifest.not_finite:
            yield f"`{shown(manifest.not_finite)}` in it is not finite"
            finite = run.newest_finite
            yield f"newest with finite weights {finite.name}" if finite is not None else "none has finite weights"
        if manifest.returns:
            yield f"the run went back to a checkpoint {plural(manifest.returns, 'time')}"
    elif run.newest:
        yield f"newest {shown(run.newest)}, which cannot be read"
    yield from _best(run)


def next_steps(run: Run) -> Iterator[tuple[str, str]]:
    """What to do next: commands, each with what it does; either may be empty."""
    state, command, path = run.state, run.command, str(run.path)
    replay = run.status.get("replay")
    if state == "failed" and isinstance(replay, list) and replay:
        ranks = run.manifest.ranks if run.manifest is not None else 1
        words = replay_command([run.script], run.path, [*map(str, replay)], ranks)
        yield shown(words, 500), "replays it up to the node that failed; --pdb opens a debugger there"
    if state in ACTIVE:
        yield f"graphtrain status {shlex.quote(printable(path))}", ""
    elif state != "finished":
        resume = resume_command(command, run.path, is_reached=str(run.status.get("reason")).startswith("--"))
        how = "" if command else "run the program again, with this run directory: that "
        effect = "resumes it" if run.newest else "starts it from the beginning, as there is no checkpoint"
        cause = f"; fix the error first: {run.error[-1].removeprefix('hint: ')}" if run.error else ""
        yield shown(resume, 1000) if command else "", f"{how}{effect}{cause}"
    elif not run.status.get("not_finite"):
        longer = "a later end, such as a larger finish.after, trains it further"
        yield "", f"nothing; {longer if run.snapshot().is_at_its_end else ended_by(run) or 'it ended by itself'}"
    if state not in ACTIVE and run.status.get("not_finite") and command:
        yield from _search(run, command)


def _search(run: Run, command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The command that finds the batch at which a loss diverged, unless the graph has looked for it."""
    try:
        if any(node.use == "check_finite" for node in nodes_of(run.graph).values()):
            return
    except GraphtrainError:  # without a checkpoint, or of a kind of graph that this version does not read
        return
    free = next(path for number in itertools.count(2) if not (path := Path(f"{run.path}-{number}")).exists())
    fork = ["--fork", str(run.path / finite.name)] if (finite := run.newest_finite) is not None else []
    kept = omit(command, [*OF_THE_START, *OF_THE_END, "--run-dir="])
    words = [*kept, *fork, "--overlay", "check_finite", "--run-dir", str(free)]
    yield shown(shlex.join(words), 1000), "names the batch at which the loss diverges"


@command(
    "graphtrain export runs/first weights.safetensors",
    "graphtrain export runs/first/best weights.safetensors",
    "graphtrain export runs/first/checkpoints/000003-step-120 weights.safetensors --model generator",
)
@click.argument("run", type=Path)
@click.argument("path", type=Path)
@click.option("--model", metavar="NAME", help="Only this model, by its name in setup. Default: all.")
def export(run: Path, path: Path, *, model: str | None = None) -> None:
    """Write the weights of a run to a safetensors file.

    Parameters and buffers have the names of the model's state_dict; if there are several models, the name of the model
    comes first. The file of a run of several processes is complete too; buffers that differ are those of rank 0.

    RUN is a run directory (its newest checkpoint), or a checkpoint in one; RUN/best is the best. PATH is a new
    .safetensors file.

    Exit codes: 0 written, 1 the checkpoint is damaged, 2 there is no such run or model, or the file exists.
    """
    from graphtrain.command.weights import export_weights

    click.echo(export_weights(run, path, model, notify))
