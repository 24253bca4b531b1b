"""What `graphtrain test` and `graphtrain predict` do with the weights of a checkpoint of a run.

The run itself is only read. These commands add the rows of tests to its directory, and a run directory for each
prediction.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from graphtrain.command.adapted import ScriptOrClass
from graphtrain.command.failure import STOPPED
from graphtrain.command.output import ignore, notify_once
from graphtrain.command.rebuild import TrainerFactory
from graphtrain.command.script import load_graph
from graphtrain.errors import UsageError
from graphtrain.graph.elements import GraphData
from graphtrain.lazy import imported
from graphtrain.outcome import Outcome
from graphtrain.plain import json_value
from graphtrain.ranks import current_ranks, on_all_ranks
from graphtrain.report.numbers import metric
from graphtrain.report.values import ROW_POSITION
from graphtrain.storage.files import readable_failure, replace_file
from graphtrain.storage.manifest import SavedCheckpoint, read_manifest
from graphtrain.storage.named import NEWEST, checkpoint_folder, graph_of
from graphtrain.storage.run_directory import BEST, CHECKPOINTS_FOLDER
from graphtrain.trainer.trainer import Trainer

TESTS_FILE = "test.jsonl"
PREDICTIONS_FOLDER = "predict"
_PREDICTIONS_FILE = "predictions"


@dataclass(frozen=True)
class Weights:
    """Which weights are evaluated, and how.

    Attributes:
        run_dir: the run.
        name: "best", "newest", the name of a checkpoint of the run, or a path. Default: the best, or the newest if
            none was ranked.
        model: the model in the checkpoint that `model` takes its weights from. Default: the one that the run validates.
        device: where. Default: where the run was trained.
        quiet: True prints errors only.
    """

    run_dir: Path
    name: str | None = None
    model: str | None = None
    device: str | None = None
    quiet: bool = False

    @property
    def path(self) -> Path:
        """The checkpoint.

        Raises:
            UsageError: there is none.
        """
        folder = self.run_dir / CHECKPOINTS_FOLDER
        if not folder.is_dir():
            raise UsageError(f"there is no run in `{self.run_dir}`", "name the directory of a run with --run-dir")
        if self.name is not None:
            return checkpoint_folder(self.name, self.run_dir, hint="--weights takes best, newest, or a name")
        try:
            return checkpoint_folder(BEST, self.run_dir)
        except UsageError:  # nothing is ranked
            return checkpoint_folder(NEWEST, self.run_dir)

    def trainer(self, trainers: TrainerFactory, path: Path, **options: Any) -> Trainer:
        """A trainer of another graph, in which `model` has these weights."""
        report, is_first = notify_once(quiet=self.quiet), trainers.changes is None
        checkpoint = SavedCheckpoint.sound(path)
        shown = None if self.quiet else imported("graphtrain.report.display.choose").display_for(report)
        options |= {"display": shown, "notify": report}
        options |= {"device": self.device} if self.device is not None else {}
        trainer = trainers.trainer(checkpoint, from_the_beginning=False, **options)
        if is_first and trainers.changes:
            report(f"changed since the run: {trainers.changes}")
        source = self.model or _validated_model(graph_of(path, checkpoint.manifest))
        trainer.load(path, **({"model": source} if source != "model" else {}))
        report(f"weights: `{source}` of {path}")
        return trainer


def _validated_model(graph: GraphData) -> str:
    """The name of the model that a run validates and ranks checkpoints by, such as an average."""
    node = graph.nodes.get("validate")
    source = node.reads.get("model") if node is not None else None
    return source if isinstance(source, str) and source.isidentifier() else "model"


def run_test(script: str, settings: Sequence[str], weights: Weights, graph: str) -> int:
    """Test the weights of a checkpoint of a run; the exit code."""
    with on_all_ranks(f"in {script}"):
        trainers = TrainerFactory(ScriptOrClass(script=script), settings, ignore, load_graph(graph))
        _recorded(weights.run_dir / TESTS_FILE)  # refused before it is tested
        path = weights.path
        trainer = weights.trainer(trainers, path)
        if trainer.run() is Outcome.STOPPED:
            return STOPPED
        values = {name: value for row in trainer.metrics for name, value in row.items() if name not in ROW_POSITION}
        manifest = read_manifest(path)
        row = {"step": manifest.step, "epoch": manifest.epoch, "checkpoint": path.name, **values}
        if not current_ranks().rank:
            shown = "  ".join(f"{name} {metric(value)}" for name, value in values.items())
            click.echo(f"{path.name}  {shown}")  # also where it cannot be recorded
            _record(weights.run_dir / TESTS_FILE, row)
        return 0


def _record(file: Path, row: dict[str, Any]) -> None:
    """Add a row, or replace that of the same checkpoint."""
    rows = [*(other for other in _recorded(file) if other["checkpoint"] != row["checkpoint"]), row]
    with readable_failure(file):
        replace_file(file, "".join(json.dumps(json_value(each)) + "\n" for each in rows).encode())


def _recorded(file: Path) -> list[dict[str, Any]]:
    """The rows of tests so far.

    Raises:
        UsageError: the file was not written by `graphtrain test`.
    """
    try:
        rows = [json.loads(line) for line in file.read_bytes().splitlines()]
        if all(isinstance(row, dict) and isinstance(row.get("checkpoint"), str) for row in rows):
            return rows
    except FileNotFoundError:
        return []
    except (OSError, ValueError):
        pass
    raise UsageError(f"`{file}` does not hold the rows of tests", "move it away")


def run_predict(script: str, settings: Sequence[str], weights: Weights, graph: str, output: Path | None) -> int:
    """Write what a model predicts, with the weights of a checkpoint of a run; the exit code."""
    with on_all_ranks(f"in {script}"):
        report = notify_once(quiet=weights.quiet)
        trainers = TrainerFactory(ScriptOrClass(script=script), settings, ignore, load_graph(graph))
        path = weights.path
        run_dir = weights.run_dir / PREDICTIONS_FOLDER / path.name
        file = run_dir / _PREDICTIONS_FILE
        if output is not None:  # each file is a run of its own, which is beside it where the run is read-only
            file = output.absolute()
            parent = run_dir.parent if os.access(weights.run_dir, os.W_OK) else file.parent / PREDICTIONS_FOLDER
            run_dir = parent / f"{path.name}-{hashlib.sha256(os.fsencode(file)).hexdigest()[:8]}"
        elif not current_ranks().rank:
            try:
                run_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"cannot write `{run_dir}`: {error.strerror}", "name a file with --output") from None
        trainer = weights.trainer(trainers, path, run_dir=run_dir, predictions_file=file)
        outcome = trainer.run()
        if outcome is Outcome.STOPPED:
            report("the same command continues the file")
            return STOPPED
        if not file.exists():
            raise UsageError(f"`{file}` was predicted before, and is gone", f"remove `{run_dir}` to predict it again")
        report(f"{outcome}: {file}")
        return 0
