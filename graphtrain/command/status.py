"""`graphtrain status`."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from graphtrain.alive import is_alive
from graphtrain.command.failure import FAILED, STOPPED
from graphtrain.display.numbers import duration, metric
from graphtrain.display.panel import Panel
from graphtrain.display.snapshot import Snapshot
from graphtrain.errors import UsageError
from graphtrain.printable import one_line, shorten
from graphtrain.storage.run_directory import STATUS_FILE, read_status

_EXIT_CODES = {"finished": 0, "stopped": STOPPED}
ACTIVE = ("running", "stopping")
_WIDTH_OF_A_PIPE = 120
_MOST_CHARACTERS = 200
_CLOCKS_DIFFER = 5.0  # seconds
_END_OF_TIME = 1e12  # in seconds; beyond are mistakes


def status_command(run_dir: Path, *, as_json: bool, exit_code: bool = False) -> int:
    """Print the status of a run; of a folder that is none, but holds some, theirs as a table. Returns the exit code.

    Arguments:
        exit_code: True for that of the run. Default: 0.

    Raises:
        UsageError: there is no run; or it is a folder of runs, and the exit code of a run is asked for.
    """
    if run_dir.is_dir() and not (run_dir / STATUS_FILE).exists():
        from graphtrain.command.ls import ls_command, run_directories

        if any(run_directories(run_dir)):
            if exit_code:
                raise UsageError(f"--exit-code: `{run_dir}` is a folder of runs", "name the directory of one run")
            ls_command(run_dir, as_json=as_json)
            return 0
    status = present_status(run_dir)
    text = json.dumps(status, indent=2, allow_nan=False) if as_json else "\n".join(_lines(run_dir, status))
    encoding = sys.stdout.encoding or "utf-8"
    typer.echo(text.encode(encoding, "replace").decode(encoding))
    return _EXIT_CODES.get(str(status.get("state")), FAILED) if exit_code else 0


def present_status(run_dir: Path) -> dict[str, Any]:
    """The status that a run has left; a running one whose process is gone is interrupted.

    Raises:
        UsageError: there is no run, or its status cannot be read.
    """
    status = read_status(run_dir)
    if status.get("state") in ACTIVE and _alive(status) is False:
        status["state"] = "interrupted"
    return status


def _lines(run_dir: Path, status: dict[str, Any]) -> Iterator[str]:
    snapshot = Snapshot.from_plain(status)
    yield one_line(f"{run_dir}: {snapshot.state}, graph {snapshot.graph}{_place(snapshot)}")
    yield from (f"  {line}" for line in _panel(snapshot))
    if status.get("not_finite"):
        yield f"  {_text(status['not_finite'])}"
    yield f"  newest checkpoint {_text(status.get('checkpoint') or 'none yet')}"
    if isinstance(best := status.get("best"), dict):
        value = best.get("value")
        shown = metric(value) if isinstance(value, int | float) else _text(value)
        yield f"  best checkpoint {_text(best.get('checkpoint'))}, {_text(best.get('metric'))} {shown}"
    if status.get("digest"):
        yield f"  digest {_text(status['digest'])}"
    yield f"  written {age(status)} by process {_text(status.get('process'))}{_process(status)}"


def _place(snapshot: Snapshot) -> str:
    match snapshot.state:
        case "finished":
            return ""
        case "failed":
            return f", in node {snapshot.position}"
        case _:
            return f", next node {snapshot.position}"


def _panel(snapshot: Snapshot) -> list[str]:
    terminal = Console(file=sys.stdout)
    width = terminal.width - 2 if terminal.is_terminal else _WIDTH_OF_A_PIPE
    console = Console(file=sys.stdout, width=width, highlight=False)
    with console.capture() as drawn:
        console.print(Panel(snapshot))
    return [line.rstrip() for line in drawn.get().splitlines()]


def _text(value: Any) -> str:
    """A value from a file of others, on a line."""
    return shorten(one_line(str(value)), _MOST_CHARACTERS)


def age(status: dict[str, Any]) -> str:
    """How long ago a status was written."""
    written = status.get("written_at_unix_seconds")
    if isinstance(written, bool) or not isinstance(written, int | float) or not abs(written) < _END_OF_TIME:
        return "at an unknown time"
    age = time.time() - written
    # The clocks of two machines may differ by a little; a clock that was set back differs by more.
    return f"{duration(age)} ago" if age > -_CLOCKS_DIFFER else f"{duration(-age)} ahead of the clock here"


def _process(status: dict[str, Any]) -> str:
    """Whether the process is alive, which can be known on its own host only."""
    host = status.get("host")
    if host is not None and host != socket.gethostname():
        return f" on host {_text(host)}"
    if status.get("state") in ("finished", "stopped", "failed"):
        return ""
    alive = _alive(status)
    return "" if alive is None else ", which is alive" if alive else ", which is gone"


def _alive(status: dict[str, Any]) -> bool | None:
    """True if the process that wrote the status is alive; None if it runs on another host."""
    if status.get("host") not in (None, socket.gethostname()):
        return None
    process = status.get("process")
    if isinstance(process, bool) or not isinstance(process, int):
        return False
    return is_alive(process)
