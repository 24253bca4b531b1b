"""What `graphtrain test` and `graphtrain predict` do with the weights of a checkpoint of a run.

The run itself is only read. These commands add the rows of tests to its directory, and a run directory for each
prediction.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from graphtrain.command.failure import STOPPED
from graphtrain.command.output import ignore, notify, notify_once
from graphtrain.command.rebuild import TrainerFactory
from graphtrain.command.run import ScriptOrClass
from graphtrain.command.script import load_graph
from graphtrain.errors import CheckpointError, UsageError
from graphtrain.graph import Graph
from graphtrain.outcome import Outcome
from graphtrain.plain import json_value
from graphtrain.ranks import current_ranks, on_all_ranks
from graphtrain.report.numbers import metric
from graphtrain.report.run import Run
from graphtrain.report.values import ROW_POSITION
from graphtrain.storage.checkpoint import SavedCheckpoint
from graphtrain.storage.manifest import own_checkpoint_paths, read_manifest
from graphtrain.storage.named import NEWEST, checkpoint_folder, existing_checkpoint, graph_of
from graphtrain.storage.regular import parsed_json, replace_file
from graphtrain.storage.run_directory import (
    ACTIVE,
    BEST,
    BEST_FILE,
    CHECKPOINTS_FOLDER,
    STATUS_FILE,
    read_rankings,
    readable_failure,
)
from graphtrain.trainer.trainer import Trainer
from graphtrain.trainer.watchers import display_for

TESTS_FILE = "test.jsonl"
PREDICTIONS_FOLDER = "predict"
_PREDICTIONS_FILE = "predictions.safetensors"
_SECONDS_BETWEEN_LOOKS = 2.0


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
        if self.name is None:
            first = next(iter(read_rankings(self.run_dir / BEST_FILE).values()), None)
            return checkpoint_folder(BEST if first is not None and first.values else NEWEST, folder)
        return existing_checkpoint(self.name, folder, "--weights", "best or newest")

    def trainer(self, trainers: TrainerFactory, path: Path, **options: Any) -> Trainer:
        """A trainer of another graph, in which `model` has these weights."""
        report, is_first = notify_once(quiet=self.quiet), trainers.changes is None
        checkpoint = SavedCheckpoint.read(path)
        options |= {"display": None if self.quiet else display_for(report), "notify": report}
        options |= {"device": self.device} if self.device is not None else {}
        trainer = trainers.trainer(checkpoint, from_the_beginning=False, **options)
        if is_first and trainers.changes:
            report(f"changed since the run: {trainers.changes}")
        source = self.model or _validated_model(graph_of(path, checkpoint.manifest))
        trainer.load(path, **({"model": source} if source != "model" else {}))
        report(f"weights: `{source}` of {path}")
        return trainer


def _validated_model(graph: Graph) -> str:
    """The name of the model that a run validates and ranks checkpoints by, such as an average."""
    node = graph.nodes.get("validate")
    source = node.reads.get("model") if node is not None else None
    return source if isinstance(source, str) and source.isidentifier() else "model"


def run_test(script: str, settings: Sequence[str], weights: Weights, graph: str, *, follow: bool) -> int:
    """Test the weights of one checkpoint of a run, or of each new one until the run is over; the exit code."""
    with on_all_ranks(f"in {script}"):
        trainers = TrainerFactory(ScriptOrClass(script=script), settings, ignore, load_graph(graph))
        _recorded(weights.run_dir / TESTS_FILE)  # refused before it is tested
        if not follow:
            return _test_checkpoint(trainers, weights, weights.path)
        if current_ranks().world_size > 1:
            raise UsageError("--follow: checkpoints are tested by one process", "leave --processes out")
        for path in _untested(weights.run_dir):
            try:
                code = _test_checkpoint(trainers, weights, path)
            except CheckpointError:
                if path.is_dir():
                    raise
                notify(f"{path} was removed before it was tested; a larger checkpoint.keep leaves more time")
                continue
            if code:
                return code
        return 0


def _test_checkpoint(trainers: TrainerFactory, weights: Weights, path: Path) -> int:
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
        rows = [parsed_json(line) for line in file.read_bytes().splitlines()]
        if all(isinstance(row, dict) and isinstance(row.get("checkpoint"), str) for row in rows):
            return rows
    except FileNotFoundError:
        return []
    except (OSError, ValueError):
        pass
    raise UsageError(f"`{file}` does not hold the rows of tests", "move it away")


def _untested(run_dir: Path) -> Iterator[Path]:
    """Every checkpoint of a run that has no row so far, the oldest first, until the run is over."""
    is_over = False
    if not (run_dir / STATUS_FILE).exists():
        notify(f"waiting for a run in `{run_dir}` to begin")
    while True:
        tested = {row["checkpoint"] for row in _recorded(run_dir / TESTS_FILE)}
        new = [path for path in own_checkpoint_paths(run_dir / CHECKPOINTS_FOLDER) if path.name not in tested]
        yield from new
        if is_over and not new:
            return
        # Checked before the folder is listed for the last time.
        is_over = _is_over(run_dir)
        if not new and not is_over:
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def _is_over(run_dir: Path) -> bool:
    """True for a run that nobody trains any more; one that has not begun may begin."""
    return (run_dir / STATUS_FILE).exists() and Run(run_dir).status.get("state") not in ACTIVE


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
