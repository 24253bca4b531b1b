"""`graphtrain verify` and `graphtrain replay`: a run repeated bit for bit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from graphtrain.command.adapted import adapter_options, script_argument, script_or_class
from graphtrain.command.cli import command, launched, overlay_option, processes_option, settings_argument
from graphtrain.command.options import without
from graphtrain.errors import UsageError
from graphtrain.ranks.current import is_one_of_several

# Options of `verify` that need another one.
_OF_A_RUN = ("last", "processes")
_OF_CUTS = ("graph", "overlay", "until", "seed", "device", "deterministic", "cuts_seed")


@command(
    "graphtrain verify train.py --run-dir runs/first",
    "graphtrain verify train.py --run-dir runs/first --last 1",
    "graphtrain verify train.py --run-dir runs/first --processes 2",
    "graphtrain verify train.py --cuts 20 --until '50 batches'",
    "graphtrain verify train.py lr=1e-3 accumulate.every=4 --cuts 5 --graph my_fit.toml",
    "graphtrain verify --lightning train.py:Net --run-dir runs/net",
)
@script_argument
@settings_argument
@click.option("--run-dir", type=Path, help="Verify this run; it is only read.")
@click.option("--last", type=int, metavar="N", help="With --run-dir: only the N newest spans.")
@processes_option
@click.option("--cuts", type=int, metavar="N", help="Verify the script: cut it at N random transitions.")
@click.option("--graph", help="With --cuts, as the options below: another graph than that of the script.")
@overlay_option
@click.option("--until", metavar="AMOUNT", help="Where every run stops, as in '50 batches'.")
@click.option("--seed", type=int, help="Seed of Python, NumPy and torch. Default: 0.")
@click.option("--device", help="Where to train. Default: auto.")
@click.option("--deterministic", is_flag=True, help="Ask torch for deterministic kernels.")
@click.option("--cuts-seed", type=int, help="Chooses the transitions. Default: a random number, which is printed.")
@adapter_options
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
    **adapted: Any,
) -> int:
    """Prove that resuming is exact: for a run, with --run-dir; or for a script, with --cuts.

    With --run-dir, the run is replayed from each checkpoint to the next, and everything is compared bit by bit. The
    cause of a difference is named: a field that was lost between saving and resuming, or the node whose computation is
    not repeatable.

    With --cuts, the script is trained once, and then again, cut at random transitions. Each cut is resumed in a new
    process to the same end, and compared with the run that was not cut: weights, optimizers, everything else that is
    saved, and the file of metrics. The script is trained N + 2 times.

    NAME=VALUE sets an argument of setup; with --cuts also NODE.PARAM=VALUE a parameter of a node, as for run.

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
    words = without(sys.argv[2:], ["--cuts=", "--cuts-seed="])
    return verify_cuts(words, cuts, cuts_seed)


def _refuse_a_mixture(*, has_run: bool, has_cuts: bool) -> None:
    """Refuse options of `verify` that exclude each other."""
    if has_run == has_cuts:
        raise UsageError(
            f"verify takes either --run-dir or --cuts, got {'both' if has_run else 'neither'}",
            "--run-dir RUN_DIR verifies a run, --cuts 20 the script, without a run",
        )
    mine, other, names = ("--run-dir", "--cuts", _OF_CUTS) if has_run else ("--cuts", "--run-dir", _OF_A_RUN)
    values = click.get_current_context().params
    if given := [f"--{name.replace('_', '-')}" for name in names if values[name] not in (None, (), False)]:
        raise UsageError(f"{', '.join(given)}: only with {other}, not with {mine}", "see graphtrain verify --help")


@command(
    "graphtrain replay train.py --run-dir runs/first --to '48211 steps'",
    "graphtrain replay train.py --run-dir runs/first --to '48211 steps' --pdb",
    "graphtrain replay train.py --run-dir runs/first --to '300 batches' --node validate/eval_batch",
    "graphtrain replay train.py --run-dir runs/first --to best --node train_batch",
    "graphtrain replay train.py --run-dir runs/first --to '48211 steps' --processes 2",
    "graphtrain replay --lightning train.py:Net --run-dir runs/net --to '48211 steps'",
)
@script_argument
@settings_argument
@click.option("--run-dir", required=True, type=Path, help="The run directory; it is only read.")
@click.option("--to", required=True, metavar="MOMENT", help="'48211 steps', '300 batches', or a checkpoint.")
@click.option("--node", metavar="PATH", help="Continue from there until this node is the next to run.")
@click.option("--runs", type=int, metavar="N", help="With --node: until it has run N times as well.")
@click.option("--pdb", is_flag=True, help="Open Python's debugger at that moment, with trainer, model, batch, ...")
@processes_option
@adapter_options
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

    --to '48211 steps' stops right after that step, '300 batches' right after that batch is fetched; best, newest or the
    name of a checkpoint: where that was made.

    Exit codes: 0 done, 1 failed on the way, 2 the moment cannot be reached or bad usage.
    """
    source, settings = script_or_class(script, settings, **adapted)
    if (code := launched(processes)) is not None:
        return code
    from graphtrain.command.replaying import replay_to

    return replay_to(source, settings, run_dir, to, node, runs, debug=pdb)
