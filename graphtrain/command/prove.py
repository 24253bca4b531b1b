"""`graphtrain verify` and `graphtrain replay`: a run repeated bit for bit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from graphtrain.command.adapted import adapter_options, script_argument, script_or_class
from graphtrain.command.cli import command, overlay_option, processes_option, settings_argument
from graphtrain.command.options import omit
from graphtrain.errors import UsageError
from graphtrain.ranks.current import is_one_of_several


@command(
    "graphtrain verify train.py --until '50 batches'",
    "graphtrain verify train.py lr=1e-3 accumulate.every=4 --cuts 5 --graph my_fit.toml",
    "graphtrain verify train.py --run-dir runs/first",
    "graphtrain verify train.py --run-dir runs/first --last 1",
    "graphtrain verify --lightning train.py:Net --run-dir runs/net",
)
@script_argument
@settings_argument
@click.option("--run-dir", type=Path, help="Verify this run, which is only read. Default: the script is verified.")
@click.option("--last", type=click.IntRange(1), metavar="N", help="With --run-dir: only the N newest spans.")
@processes_option
@click.option("--cuts", type=click.IntRange(1), metavar="N", help="How many cuts. Default: 10.")
@click.option("--cuts-seed", type=int, help="Seed of the choice of transitions. Default: random, and printed.")
@click.option("--graph", help="Another graph than that of the script.")
@overlay_option
@click.option("--until", metavar="AMOUNT", help="Where the training stops, as in '50 batches'. Default: at its end.")
@click.option("--seed", type=int, help="Seed of Python, NumPy and torch. Default: 0.")
@click.option("--device", help="Where to train. Default: auto.")
@click.option("--deterministic", is_flag=True, help="Ask torch for deterministic kernels.")
@adapter_options
def verify(
    script: str,
    settings: Sequence[str],
    *,
    run_dir: Path | None,
    last: int | None,
    processes: int | None,
    lightning: str | None,
    data: str | None,
    **of_a_script: Any,
) -> int:
    """Prove that resuming is exact, for a script or a run.

    A script is trained once, with checkpoints at random transitions (cuts). Then the training is repeated from each
    checkpoint to the next (a span), in another process, and everything is compared bit for bit: the first field that
    differs is named. A run is repeated in the same way, from each of its checkpoints to the next.

    NAME=VALUE sets an argument of setup; for a script also NODE.PARAM=VALUE a parameter of a node, as for run.

    Exit codes: 0 bitwise equal, 1 different, 2 nothing to compare or bad usage.
    """
    source, settings = script_or_class(script, settings, lightning=lightning, data=data)
    inapplicable = {"last": last, "processes": processes} if run_dir is None else of_a_script
    for name, value in inapplicable.items():
        if value not in (None, (), False):
            how = "with" if run_dir is None else "without"
            raise UsageError(f"--{name.replace('_', '-')}: only {how} --run-dir", "see graphtrain verify --help")
    if run_dir is not None:
        from graphtrain.command.verifying import verify_run

        return verify_run(source, run_dir, settings, last)
    if is_one_of_several():
        raise UsageError("verify without --run-dir starts a process itself", "start it alone")
    from graphtrain.command.verifying import verify_script

    # The other words are those of `graphtrain run`.
    words = omit(sys.argv[2:], ["--cuts=", "--cuts-seed="])
    return verify_script(source, settings, words, of_a_script["cuts"] or 10, of_a_script["cuts_seed"])


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
@click.option("--runs", type=int, metavar="N", help="With --node: and until that node has run N times.")
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
    """Replay a run to a moment, with its batch and gradients.

    It starts from the newest checkpoint before that moment. The run directory is only read. With several processes, the
    values shown are those of rank 0.

    --to '48211 steps' stops right after that step, '300 batches' right after that batch is fetched; best, newest or the
    name of a checkpoint stops where that was saved.

    Exit codes: 0 done, 1 the replay failed, 2 the moment cannot be reached or bad usage.
    """
    source, settings = script_or_class(script, settings, **adapted)
    from graphtrain.command.replaying import replay_to

    return replay_to(source, settings, run_dir, to, node, runs, debug=pdb)
