"""`graphtrain test` and `graphtrain predict`: other graphs, with the weights of a checkpoint of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from graphtrain.command.cli import command, launched
from graphtrain.command.run import ScriptCommand

_SHARED = """
Arguments:
    script (SCRIPT[:FUNCTION]): The Python file that the run was started with.
    settings (NAME=VALUE): NAME=VALUE sets an argument of setup, instead of the one that the run had; NODE.PARAM=VALUE
        a parameter of a node, as in next_batch.limit=10.

Options:
    weights (WHAT): A checkpoint: best, newest, the name of one of the run, or the path of another one. Default: the
        best, or the newest of a run that has ranked none by checkpoint.best.
    model (NAME): The model in the checkpoint that `model` takes its weights from, as in average. Default: the one
        that the run validates.
    device: Where to run: auto, cpu, cuda, ... Default: where the run was trained.
    processes (NUMBER): Evaluate in this many processes, each with its own part of the batches. Default: one, or those
        that torchrun has started.
    quiet: Print the result and errors only.
"""


@command(
    "graphtrain test train.py --run-dir runs/first",
    "graphtrain test train.py --run-dir runs/first --weights newest",
    cls=ScriptCommand,
    shared=_SHARED,
)
def test(
    script: str,
    settings: Sequence[str],
    *,
    run_dir: Path,
    weights: str | None = None,
    model: str | None = None,
    graph: str = "test",
    device: str | None = None,
    processes: int | None = None,
    quiet: bool = False,
) -> int:
    """Evaluate `test_data` of a script with the weights of a checkpoint of a run.

    It calls `test_step`, else `validation_step`, else `training_step`. The means are printed, and are a row of
    RUN_DIR/test.jsonl with the step and the name of the checkpoint. setup() is called with the arguments of the run.

    Exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped by a signal.

    Options:
        run_dir: The run whose weights are tested; it is not changed.
        graph: Another graph: evaluate, for the validation data, or a TOML file.
    """
    if (code := launched(processes)) is not None:
        return code
    from graphtrain.command.evaluation import Weights, run_test

    return run_test(script, settings, Weights(run_dir, weights, model, device, quiet), graph)


@command(
    "graphtrain predict train.py --run-dir runs/first",
    "graphtrain predict train.py --run-dir runs/first --weights newest --output predictions.jsonl",
    cls=ScriptCommand,
    shared=_SHARED,
)
def predict(
    script: str,
    settings: Sequence[str],
    *,
    run_dir: Path,
    weights: str | None = None,
    output: Path | None = None,
    model: str | None = None,
    graph: str = "predict",
    device: str | None = None,
    processes: int | None = None,
    quiet: bool = False,
) -> int:
    """Write what the model predicts for `predict_data` of a script, with the weights of a checkpoint of a run.

    It calls `predict_step`, or else the model with the batch. Every sample is written once, in the order of the data.
    If it was stopped or killed, the same command continues the file, with the same weights.

    Exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped by a signal and resumable.

    Options:
        run_dir: The run whose weights are used; it is not changed.
        output (FILE): The file to write, .safetensors or .jsonl; it must not exist. Default: predictions.safetensors in
            RUN_DIR/predict/CHECKPOINT.
        graph: Another graph, a TOML file.
    """
    if (code := launched(processes)) is not None:
        return code
    from graphtrain.command.evaluation import Weights, run_predict

    return run_predict(script, settings, Weights(run_dir, weights, model, device, quiet), graph, output)
