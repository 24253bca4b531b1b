"""`graphtrain status`."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import typer

from graphtrain.storage.run_directory import read_status


def status_command(run_dir: Path, *, as_json: bool) -> None:
    """Print the status of a run; a run whose process is gone is said to be interrupted."""
    status = read_status(run_dir)
    if status.get("state") in ("running", "stopping") and not _alive(status.get("process")):
        status["state"] = "interrupted"
    if as_json:
        typer.echo(json.dumps(status, indent=2))
        return
    typer.echo(f"{run_dir}: {status.get('state')}, graph {status.get('graph')}{_place(status)}")
    typer.echo(
        f"  step {status.get('step')}, epoch {_rounded(status.get('epoch'))}, "
        f"newest checkpoint {status.get('checkpoint')}"
    )
    row = status.get("metrics")
    metrics = {key: value for key, value in (row or {}).items() if key not in ("step", "epoch")}
    if metrics:
        typer.echo("  " + "  ".join(f"{key} {_rounded(value)}" for key, value in metrics.items()))
    if status.get("digest"):
        typer.echo(f"  digest {status['digest']}")
    written = status.get("written_at_unix_seconds")
    if isinstance(written, int | float):
        typer.echo(f"  written {max(0, time.time() - written):.0f} seconds ago by process {status.get('process')}")


def _place(status: dict[str, Any]) -> str:
    match status.get("state"):
        case "finished":
            return ""
        case "failed":
            return f", in node {status.get('position')}"
        case _:
            return f", next node {status.get('position')}"


def _alive(process: Any) -> bool:
    if not isinstance(process, int) or process <= 0:
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _rounded(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
