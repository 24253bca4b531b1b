"""`graphtrain test` and `graphtrain predict`: other graphs, with the weights of a checkpoint of a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from graphtrain.command.cli import command, options, processes_option, settings_argument
from graphtrain.command.run import ScriptCommand

_shared_options = options(
    click.argument("script", metavar="SCRIPT[:FUNCTION]"),
    settings_argument,
    click.option("--run-dir", required=True, type=Path, help="The run whose weights are used."),
    click.option("--weights", metavar="WHAT", help="best, newest, the name of a checkpoint, or a path. Default: best."),
    click.option("--model", metavar="NAME", help="The model whose weights are used. Default: the validated one."),
    click.option("--device", help="auto, cpu, cuda, ... Default: where the run was trained."),
    processes_option,
    click.option("--quiet", is_flag=True, help="Print the result and errors only."),
)


@command(
    "graphtrain test train.py --run-dir runs/first",
    "graphtrain test train.py --run-dir runs/first --weights newest",
    cls=ScriptCommand,
)
@_shared_options
@click.option("--graph", default="test", help="Another graph: evaluate, for the validation data, or a TOML file.")
def test(**values: Any) -> int:
    """Evaluate a script's `test_data` with the weights of a run.

    It calls `test_step`, else `validation_step`, else `training_step`. It prints the means, and adds
    them to RUN_DIR/test.jsonl with the step and the name of the checkpoint. setup() is called with the arguments of the
    run; NAME=VALUE sets another one, NODE.PARAM=VALUE a parameter of a node, as in next_batch.limit=10.

    Exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped by a signal.
    """
    from graphtrain.command.evaluation import run_test

    return run_test(SimpleNamespace(**values))


@command(
    "graphtrain predict train.py --run-dir runs/first",
    "graphtrain predict train.py --run-dir runs/first --weights newest --output predictions.jsonl",
    cls=ScriptCommand,
)
@_shared_options
@click.option("--graph", default="predict", help="Another graph, as a TOML file.")
@click.option("--output", "-o", type=Path, help="A new folder, or a .jsonl file. Default: a folder in RUN_DIR/predict.")
def predict(**values: Any) -> int:
    """Write predictions for a script's `predict_data`.

    It calls `predict_step`, or else the model with the batch. Every sample is written once, in the order of the data.
    After a stop or a kill, the same command continues the file, with the same weights.

    Exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped by a signal and resumable.
    """
    from graphtrain.command.evaluation import run_predict

    return run_predict(SimpleNamespace(**values))
