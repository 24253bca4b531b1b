"""`graphtrain render`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import typer

from graphtrain.command.output import notify
from graphtrain.command.script_graph import load_graph
from graphtrain.graph import Graph
from graphtrain.viz.render import render


def render_command(
    source: str,
    output: Path,
    run_dir: Path | None,
    *,
    overlays: Sequence[str] = (),
    contained: bool = False,
    seconds: bool = False,
    guards: bool = False,
) -> None:
    """Draw a graph to a file, with the counts and the position of a run if one is named, and its seconds if asked."""
    graph = load_graph(source, overlays=overlays, contained=contained)
    counts, position = _counts(run_dir, graph, source) if run_dir is not None else (None, None)
    took = _seconds(run_dir) if seconds else None
    bypassed = _bypassed(run_dir) if run_dir is not None else ()
    typer.echo(f"wrote {render(graph, output, counts, position, took, bypassed, guards=guards)}")


def _bypassed(run_dir: Path) -> list[str]:
    """The nodes that the run bypasses; none of a run that has left no status."""
    from graphtrain.storage.run_directory import STATUS_FILE, read_status

    bypassed = read_status(run_dir).get("bypassed") if (run_dir / STATUS_FILE).exists() else None
    return [path for path in bypassed if isinstance(path, str)] if isinstance(bypassed, list) else []


def _seconds(run_dir: Path | None) -> dict[str, float]:
    """How long the visits of each node took in the process that has trained the run last."""
    from graphtrain.errors import UsageError
    from graphtrain.storage.run_directory import read_status

    if run_dir is None:
        raise UsageError("--seconds: no run is named", "name the directory of one with --run-dir")
    took = read_status(run_dir).get("seconds_by_node")
    if not isinstance(took, dict) or not all(_is_duration(value) for value in took.values()):
        raise UsageError(f"--seconds: the nodes of the run in `{run_dir}` were not timed", "train with --time-nodes")
    return took


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf


def _counts(run_dir: Path, graph: Graph, source: str) -> tuple[dict[str, int], str | None]:
    """How often each node has run, and the position if the run is not done. That it has another graph is reported."""
    from graphtrain.errors import UsageError
    from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER
    from graphtrain.storage.saved_graph import graph_of
    from graphtrain.storage.store import FolderStore

    checkpoint = FolderStore(run_dir / CHECKPOINTS_FOLDER, notify).newest()
    if checkpoint is None:
        raise UsageError(f"there is no checkpoint in `{run_dir}`", "name the directory of a run with --run-dir")
    difference = graph_of(checkpoint.path, checkpoint.manifest).diff(graph)
    if difference.matters:
        count = len(difference.changes)
        differences = "1 difference" if count == 1 else f"{count} differences"
        notify(
            f"`{source}` is not the graph of the run in `{run_dir}` ({differences}): counts are drawn at the nodes of "
            f"the same name; graphtrain render {run_dir} draws the graph of the run"
        )
    counts = {path: int(fields.get("runs", 0)) for path, fields in checkpoint.sections["progress"].items()}
    return counts, None if checkpoint.manifest["ended"] else checkpoint.manifest["position"]
