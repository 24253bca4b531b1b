"""`graphtrain render`."""

from __future__ import annotations

from pathlib import Path

import typer

from graphtrain.command.script_graph import load_graph
from graphtrain.viz.render import render


def render_command(source: str, output: Path, run_dir: Path | None) -> None:
    """Draw a graph to a file, with the counts and the position of a run if one is named."""
    graph = load_graph(source)
    counts, position = _counts(run_dir) if run_dir is not None else (None, None)
    typer.echo(f"wrote {render(graph, output, counts=counts, position=position)}")


def _counts(run_dir: Path) -> tuple[dict[str, int], str]:
    from graphtrain.errors import UsageError
    from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER
    from graphtrain.storage.store import FolderStore

    checkpoint = FolderStore(run_dir / CHECKPOINTS_FOLDER, lambda line: typer.echo(line, err=True)).newest()
    if checkpoint is None:
        raise UsageError(f"there is no checkpoint in `{run_dir}`")
    counts = {path: int(fields.get("runs", 0)) for path, fields in checkpoint.sections["progress"].items()}
    return counts, checkpoint.manifest["position"]
