"""`graphtrain verify` and `graphtrain replay`: a run repeated bit for bit."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from graphtrain.command.cli import command, launched, parameters_of
from graphtrain.command.run import ADAPTER_OPTIONS, RunOptions, script_or_class, without
from graphtrain.errors import UsageError
from graphtrain.ranks.current import is_one_of_several

_ADAPTED = [each for each in parameters_of(RunOptions) if each.name in ADAPTER_OPTIONS]
_OF_A_RUN, _OF_CUTS = "To verify a run", "To verify a script, without a run"

_VERIFY = f"""
Arguments:
    script (SCRIPT[:FUNCTION]): The Python file that trains.
    settings (NAME=VALUE): Arguments of setup; with --run-dir instead of those that the run had. With --cuts also
        NODE.PARAM=VALUE, parameters of nodes, as for run.

{_OF_A_RUN}:
    run_dir: The run directory; it is only read.
    last (N): Only the N newest spans. Default: all.
    processes (NUMBER): Replay in this many processes on this host: as many as trained the run. Default: one,
        or those that torchrun has started.

{_OF_CUTS}:
    cuts (N): Cut the run at N random transitions.
    graph: A shipped graph, a TOML file, or another script. Default: the graph of the script.
    overlay: Add an overlay to the graph, as for run; can be given several times.
    until (AMOUNT): Where every run stops, as in '50 batches'. Default: where the graph ends it.
    seed (NUMBER): Seed of Python, NumPy and torch, set before setup() is called. Default: 0.
    device: Where to train. Default: auto.
    deterministic: Ask torch for deterministic kernels.
    cuts_seed (NUMBER): Chooses the transitions. Default: a random number, which is printed.
    keep (FOLDER): A new folder for the run directories of cuts that are not exact, as they were when they were cut
        and after the resume. Default: none is kept.
    as_json: Print the result as JSON.
"""


@command(
    "graphtrain verify train.py --run-dir runs/first",
    "graphtrain verify train.py --run-dir runs/first --last 1",
    "graphtrain verify train.py --run-dir runs/first --processes 2",
    "graphtrain verify train.py --cuts 20 --until '50 batches'",
    "graphtrain verify train.py lr=1e-3 accumulate.every=4 --cuts 5 --graph my_fit.toml",
    "graphtrain verify --lightning train.py:Net --run-dir runs/net",
    shared=_VERIFY,
    params=_ADAPTED,
)
def verify(
    script: str = "",
    settings: Sequence[str] = (),
    *,
    run_dir: Path | None = None,
    last: int | None = None,
    processes: int | None = None,
    cuts: int | None = None,
    graph: str | None = None,
    overlay: Sequence[str] = (),
    until: str | None = None,
    seed: int | None = None,
    device: str | None = None,
    deterministic: bool = False,
    cuts_seed: int | None = None,
    keep: Path | None = None,
    as_json: bool = False,
    **adapted: Any,
) -> int:
    """Prove that resuming is exact: for a run, with --run-dir; or for a script, with --cuts.

    With --run-dir, the run is replayed from each checkpoint to the next, and everything is compared bit by bit. The
    cause of a difference is named: a field that was lost between saving and resuming, or the node whose computation is
    not repeatable.

    With --cuts, the script is trained once, and then again, cut at random transitions. Each cut is resumed in a new
    process to the same end, and compared with the run that was not cut: weights, optimizers, everything else that is
    saved, and the file of metrics. How long that takes is printed once the script has been trained for the first time.

    Exit codes: 0 bitwise equal, 1 different, 2 nothing to compare or bad usage.
    """
    source, settings = script_or_class(script, settings, **adapted)
    _refuse_a_mixture(has_run=run_dir is not None, has_cuts=cuts is not None)
    if run_dir is not None:
        if (code := launched(processes)) is not None:
            return code
        from graphtrain.command.replaying import verify_spans

        return verify_spans(source, run_dir, settings, last)
    if is_one_of_several():
        raise UsageError(
            "verify --cuts was started as one of several processes, but it starts processes itself",
            "start it alone; for a run of several processes, --run-dir verifies the spans",
        )
    from graphtrain.command.verify_cuts import verify_cuts

    assert cuts is not None, "one of them is given"
    # The other words are those of `graphtrain run`.
    words = without(sys.argv[2:], ["--cuts=", "--cuts-seed=", "--keep=", "--json"])
    return verify_cuts(shlex.join(source.words), words, cuts, seed=cuts_seed, keep=keep, as_json=as_json)


def _refuse_a_mixture(*, has_run: bool, has_cuts: bool) -> None:
    """Refuse options of `verify` that exclude each other."""
    if has_run == has_cuts:
        raise UsageError(
            f"verify takes either --run-dir or --cuts, got {'both' if has_run else 'neither'}",
            "--run-dir RUN_DIR verifies a run, --cuts 20 the script, without a run",
        )
    mine, other, section = ("--run-dir", "--cuts", _OF_CUTS) if has_run else ("--cuts", "--run-dir", _OF_A_RUN)
    context = click.get_current_context()
    others = [parameter for parameter in context.command.params if getattr(parameter, "section", "") == section]
    given = [option.opts[-1] for option in others if context.params[f"{option.name}"] not in (None, (), False)]
    if given:
        raise UsageError(f"{', '.join(given)}: only with {other}, not with {mine}", "see graphtrain verify --help")


@command(
    "graphtrain replay train.py --run-dir runs/first --to '48211 steps'",
    "graphtrain replay train.py --run-dir runs/first --to '48211 steps' --pdb",
    "graphtrain replay train.py --run-dir runs/first --to '300 batches' --node validate/eval_batch",
    "graphtrain replay train.py --run-dir runs/first --to best --node train_batch",
    "graphtrain replay train.py --run-dir runs/first --to '48211 steps' --processes 2",
    "graphtrain replay --lightning train.py:Net --run-dir runs/net --to '48211 steps'",
    params=_ADAPTED,
)
def replay(
    script: str = "",
    settings: Sequence[str] = (),
    *,
    run_dir: Path,
    to: str,
    node: str | None = None,
    runs: int | None = None,
    pdb: bool = False,
    processes: int | None = None,
    **adapted: Any,
) -> int:
    """Replay a past run to a moment exactly, and show its batch, loss and gradients.

    It starts from the newest checkpoint before that moment. The run directory is only read. With several processes, the
    values shown are those of rank 0.

    Exit codes: 0 done, 1 failed on the way, 2 the moment cannot be reached or bad usage.

    Arguments:
        script (SCRIPT[:FUNCTION]): The Python file that the run was started with.
        settings (NAME=VALUE): Arguments of setup, instead of those that the run had.

    Options:
        run_dir: The run directory; it is only read.
        to (MOMENT): '48211 steps' stops right after that step, '300 batches' right after that batch is fetched; best,
            newest or the name of a checkpoint: where that was made.
        node (PATH): Continue from there until this node is the next to run.
        runs (N): With --node: until it has run N times as well; inside a node, since that was entered. Default: the
            first time.
        pdb: Open Python's debugger at that moment, with trainer, model, batch, loss, gradients, ...
        processes (NUMBER): Replay in this many processes on this host: as many as trained the run. Default: one,
            or those that torchrun has started.
    """
    source, settings = script_or_class(script, settings, **adapted)
    if (code := launched(processes)) is not None:
        return code
    from graphtrain.command.replaying import replay_to

    return replay_to(source, settings, run_dir, to, node, runs, debug=pdb)
