"""What `graphtrain test` and `graphtrain predict` do with the weights of a checkpoint of a run.

The run itself is only read. These commands add the rows of tests to its directory, and a run directory for each
prediction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from graphtrain.command.adapted import ScriptOrClass
from graphtrain.command.failure import STOPPED
from graphtrain.command.output import ignore, notify_once
from graphtrain.command.rebuild import TrainerFactory
from graphtrain.command.script import load_graph
from graphtrain.errors import UsageError
from graphtrain.lazy import imported
from graphtrain.outcome import Outcome
from graphtrain.plain import json_value
from graphtrain.ranks import current_ranks, on_all_ranks
from graphtrain.report.numbers import metric
from graphtrain.report.values import ROW_POSITION
from graphtrain.storage.files import readable_failure
from graphtrain.storage.manifest import SavedCheckpoint, read_manifest
from graphtrain.storage.named import NEWEST, checkpoint_folder, graph_of
from graphtrain.storage.run_directory import BEST, CHECKPOINTS_FOLDER
from graphtrain.trainer.trainer import Trainer


def run_test(run_dir: Path, weights: str | None, quiet: bool, **given: Any) -> int:
    """Test the weights of a checkpoint of a run; the exit code."""
    with on_all_ranks(f"in {given['script']}"):
        path = _checkpoint(run_dir, weights)
        trainer = _trainer(path, notify_once(quiet=quiet), quiet=quiet, **given)
        if trainer.run() is Outcome.STOPPED:
            return STOPPED
        values = {name: value for row in trainer.metrics for name, value in row.items() if name not in ROW_POSITION}
        if not current_ranks().rank:
            shown = "  ".join(f"{name} {metric(value)}" for name, value in values.items())
            click.echo(f"{path.name}  {shown}")  # also where it cannot be recorded
            manifest, file = read_manifest(path), run_dir / "test.jsonl"
            row = {"step": manifest.step, "epoch": manifest.epoch, "checkpoint": path.name, **values}
            with readable_failure(file), file.open("a", encoding="utf-8") as rows:
                rows.write(json.dumps(json_value(row)) + "\n")
        return 0


def run_predict(output: Path | None, run_dir: Path, weights: str | None, quiet: bool, **given: Any) -> int:
    """Write what a model predicts, with the weights of a checkpoint of a run; the exit code."""
    with on_all_ranks(f"in {given['script']}"):
        report, path = notify_once(quiet=quiet), _checkpoint(run_dir, weights)
        # Each prediction is a run of its own, which resumes.
        folder = run_dir / "predict" / path.name if output is None else output.with_name(f"{output.name}.run")
        file = folder / "predictions" if output is None else output.absolute()
        trainer = _trainer(path, report, quiet=quiet, run_dir=folder, predictions_file=file, **given)
        outcome = trainer.run()
        if outcome is Outcome.STOPPED:
            report("the same command continues the file")
            return STOPPED
        if not file.exists():
            raise UsageError(f"`{file}` was predicted before, and is gone", f"remove `{folder}` to predict it again")
        report(f"{outcome}: {file}")
        return 0


def _checkpoint(run_dir: Path, weights: str | None) -> Path:
    """The checkpoint that is evaluated: the named one, else the best, or the newest if none was ranked."""
    if not (run_dir / CHECKPOINTS_FOLDER).is_dir():
        raise UsageError(f"there is no run in `{run_dir}`", "name the directory of a run with --run-dir")
    if weights is not None:
        return checkpoint_folder(weights, run_dir, hint="--weights takes best, newest, or a name")
    try:
        return checkpoint_folder(BEST, run_dir)
    except UsageError:  # nothing is ranked
        return checkpoint_folder(NEWEST, run_dir)


def _trainer(
    path: Path,
    report: Callable[[str], None],
    *,
    script: str,
    settings: Sequence[str],
    graph: str,
    model: str | None,
    device: str | None,
    quiet: bool,
    **options: Any,
) -> Trainer:
    """A trainer of another graph, in which `model` has the weights of a checkpoint.

    Arguments:
        model: the one in the checkpoint. Default: the one that the run validates, such as an average.
    """
    trainers = TrainerFactory(ScriptOrClass(script=script), settings, ignore, load_graph(graph))
    checkpoint = SavedCheckpoint.sound(path)
    display = None if quiet else imported("graphtrain.report.display.choose").display_for(report)
    options |= {"display": display, "notify": report, **({"device": device} if device is not None else {})}
    trainer = trainers.trainer(checkpoint, from_the_beginning=False, **options)
    if trainers.changes:
        report(f"changed since the run: {trainers.changes}")
    validating = graph_of(path, checkpoint.manifest).nodes.get("validate")
    validated = validating.reads.get("model") if validating is not None else None
    source = model or (validated if isinstance(validated, str) and validated.isidentifier() else "model")
    trainer.load(path, **({"model": source} if source != "model" else {}))
    report(f"weights: `{source}` of {path}")
    return trainer
