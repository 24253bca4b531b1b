"""What `graphtrain test` and `graphtrain predict` do with the weights of a checkpoint of a run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
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
from graphtrain.storage.run_directory import BEST
from graphtrain.trainer.trainer import Trainer


def run_test(options: SimpleNamespace) -> int:
    """Test the weights of a checkpoint of a run; the exit code."""
    with on_all_ranks(f"in {options.script}"):
        path, run_dir = _checkpoint(options), options.run_dir
        trainer = _trainer(path, options)
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


def run_predict(options: SimpleNamespace) -> int:
    """Write what a model predicts, with the weights of a checkpoint of a run; the exit code."""
    with on_all_ranks(f"in {options.script}"):
        path, output = _checkpoint(options), options.output
        # Each prediction is a run of its own, which resumes.
        folder = options.run_dir / "predict" / path.name if output is None else output.with_name(f"{output.name}.run")
        file = folder / "predictions" if output is None else output.absolute()
        report = notify_once(quiet=options.quiet)
        outcome = _trainer(path, options, run_dir=folder, predictions_file=file).run()
        if outcome is Outcome.STOPPED:
            report("the same command continues the file")
            return STOPPED
        if not file.exists():
            raise UsageError(f"`{file}` was predicted before, and is gone", f"remove `{folder}` to predict it again")
        report(f"{outcome}: {file}")
        return 0


def _checkpoint(options: SimpleNamespace) -> Path:
    """The checkpoint that is evaluated: the named one, else the best, or the newest if none was ranked."""
    if options.weights is not None:
        return checkpoint_folder(options.weights, options.run_dir, hint="--weights takes best, newest, or a name")
    try:
        return checkpoint_folder(BEST, options.run_dir)
    except UsageError:  # nothing is ranked
        return checkpoint_folder(NEWEST, options.run_dir, hint="name the directory of a run with --run-dir")


def _trainer(path: Path, options: SimpleNamespace, **overrides: Any) -> Trainer:
    """A trainer of another graph, in which `model` has the weights of a checkpoint."""
    trainers = TrainerFactory(ScriptOrClass(script=options.script), options.settings, ignore, load_graph(options.graph))
    checkpoint, report = SavedCheckpoint.verified(path), notify_once(quiet=options.quiet)
    overrides["display"] = None if options.quiet else imported("graphtrain.report.display.choose").display_for(report)
    overrides |= {"device": options.device} if options.device is not None else {}
    trainer = trainers.trainer(checkpoint, from_the_beginning=False, notify=report, **overrides)
    if trainers.changes:
        report(f"changed since the run: {trainers.changes}")
    validating = graph_of(path, checkpoint.manifest).nodes.get("validate")
    validated = validating.reads.get("model") if validating is not None else None  # such as an average
    source = options.model or (validated if isinstance(validated, str) and validated.isidentifier() else "model")
    trainer.load(path, **({"model": source} if source != "model" else {}))
    report(f"weights: `{source}` of {path}")
    return trainer
