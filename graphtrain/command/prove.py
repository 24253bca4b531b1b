"""`graphtrain verify` and `graphtrain replay`: a run that was made, or could be, repeated bit for bit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from graphtrain.command.cli import Option, argument, command
from graphtrain.command.run import processes_help, without
from graphtrain.distributed.current import is_one_of_several
from graphtrain.distributed.launcher import launched
from graphtrain.errors import UsageError

_OF_A_RUN, _OF_CUTS = "To verify a run that was made", "To verify a script, without a run"
_REPLAYS = processes_help("Replay in this many processes on this host: as many as have trained the run.")


def _of(section: str, name: str, help: str, **attributes: Any) -> Callable[[Any], Any]:
    return click.option(name, cls=Option, section=section, help=help, **attributes)


@command(
    "graphtrain verify train.py --run-dir runs/first",
    "graphtrain verify train.py --run-dir runs/first --last 1",
    "graphtrain verify train.py --run-dir runs/first --processes 2",
    "graphtrain verify train.py --cuts 20 --until '50 batches'",
    "graphtrain verify train.py lr=1e-3 accumulate.every=4 --cuts 5 --graph my_fit.toml",
)
@argument("script", "SCRIPT[:FUNCTION]", "The Python file that trains.")
@argument(
    "settings",
    "NAME=VALUE",
    "Arguments of setup; with --run-dir in place of those that the run had. With --cuts also NODE.PARAM=VALUE, "
    "parameters of nodes, as for run.",
    nargs=-1,
)
@_of(_OF_A_RUN, "--run-dir", "The run directory; it is only read.", type=Path, metavar="RUN_DIR")
@_of(_OF_A_RUN, "--last", "Only the N newest spans. Default: all.", type=int, metavar="N")
@_of(_OF_A_RUN, "--processes", _REPLAYS, type=int, metavar="NUMBER")
@_of(_OF_CUTS, "--cuts", "Cut the run at N random transitions.", type=int, metavar="N")
@_of(
    _OF_CUTS,
    "--graph",
    "A shipped graph, a TOML file, or another script. Default: the graph of the script.",
    metavar="GRAPH",
)
@_of(
    _OF_CUTS,
    "--overlay",
    "Add an overlay to the graph, as for run; can be given several times.",
    multiple=True,
    metavar="OVERLAY",
)
@_of(
    _OF_CUTS,
    "--until",
    "Where every run stops, as in '50 batches'. Default: where the graph ends it.",
    metavar="AMOUNT",
)
@_of(
    _OF_CUTS,
    "--seed",
    "Seed of Python, NumPy and torch, set before setup() is called. Default: 0.",
    type=int,
    metavar="NUMBER",
)
@_of(_OF_CUTS, "--device", "Where to train. Default: auto.", metavar="DEVICE")
@_of(_OF_CUTS, "--deterministic", "Ask torch for deterministic kernels.", is_flag=True)
@_of(
    _OF_CUTS,
    "--cuts-seed",
    "Chooses the transitions. Default: another number each time, which is printed.",
    type=int,
    metavar="NUMBER",
)
@_of(
    _OF_CUTS,
    "--keep",
    "A new folder for the run directories of cuts that are not exact, as they were when they were cut and after the "
    "resume. Default: none is kept.",
    type=Path,
    metavar="FOLDER",
)
@_of(_OF_CUTS, "--json", "Print the result as JSON.", is_flag=True)
def verify(script: str, settings: Sequence[str], **options: Any) -> int:
    """Prove that resuming is exact: of a run that was made, with --run-dir; or of a script, with --cuts.

    With --run-dir, the run is replayed from each checkpoint to the next, and everything is compared bit by bit. The
    cause of a difference is named: a field that was lost between saving and resuming, or the node whose computation is
    not repeatable.

    With --cuts, the script is trained once, and then again, cut at random transitions. Each cut is resumed in a new
    process to the same end, and compared with the run that was not cut: weights, optimizers, everything else that is
    saved, and the file of metrics. How long that takes is printed once the script has been trained for the first time.

    Exit codes: 0 bitwise equal, 1 different, 2 nothing to compare or bad usage.
    """
    _refuse_a_mixture(options)
    if options["cuts"] is None:
        if (code := launched(options["processes"])) is not None:
            return code
        from graphtrain.command.verify_spans import verify_spans

        return verify_spans(script, options["run_dir"], settings, options["last"])
    if is_one_of_several():
        raise UsageError(
            "verify --cuts was started as one of several processes, and it starts processes itself",
            "start it alone; of a run that several processes have made, --run-dir verifies the spans",
        )
    from graphtrain.command.verify_cuts import verify_cuts

    # What is left are words of `graphtrain run`.
    words = without(sys.argv[2:], ["--cuts=", "--cuts-seed=", "--keep=", "--json"])
    return verify_cuts(
        script, words, options["cuts"], seed=options["cuts_seed"], keep=options["keep"], as_json=options["json"]
    )


def _refuse_a_mixture(options: Mapping[str, Any]) -> None:
    """Refuse options of `verify` that do not belong together."""
    has_run = options["run_dir"] is not None
    if has_run == (options["cuts"] is not None):
        raise UsageError(
            f"verify takes either --run-dir or --cuts, got {'both' if has_run else 'neither'}",
            "--run-dir RUN_DIR verifies a run that was made, --cuts 20 the script, without a run",
        )
    mine, other = ("--run-dir", "--cuts") if has_run else ("--cuts", "--run-dir")
    sections = {
        parameter.name: getattr(parameter, "section", "") for parameter in click.get_current_context().command.params
    }
    wrong = _OF_CUTS if has_run else _OF_A_RUN
    given = [name for name, value in options.items() if sections[name] == wrong and value not in (None, (), False)]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"{names}: only with {other}, not with {mine}", "see graphtrain verify --help")


@command(
    "graphtrain replay train.py --run-dir runs/first --to '48211 steps'",
    "graphtrain replay train.py --run-dir runs/first --to '48211 steps' --pdb",
    "graphtrain replay train.py --run-dir runs/first --to '300 batches' --node validate/eval_batch",
    "graphtrain replay train.py --run-dir runs/first --to best --node train_batch",
    "graphtrain replay train.py --run-dir runs/first --to '48211 steps' --processes 2",
)
@argument("script", "SCRIPT[:FUNCTION]", "The Python file that the run was started with.")
@argument("settings", "NAME=VALUE", "Arguments of setup, in place of those that the run had.", nargs=-1)
@click.option("--run-dir", type=Path, required=True, metavar="RUN_DIR", help="The run directory; it is only read.")
@click.option(
    "--to",
    required=True,
    metavar="MOMENT",
    help="'48211 steps' stops right after that step, '300 batches' right after that batch is fetched; best, newest or "
    "the name of a checkpoint: where that was made.",
)
@click.option("--node", metavar="PATH", help="Continue from there until this node is the next to run.")
@click.option(
    "--runs",
    type=int,
    metavar="N",
    help="With --node: until it has run N times as well; inside a node, since that was entered. Default: the first "
    "time.",
)
@click.option(
    "--pdb",
    "debug",
    is_flag=True,
    help="Open Python's debugger at that moment, with trainer, model, batch, loss, gradients, ...",
)
@click.option("--processes", type=int, metavar="NUMBER", help=_REPLAYS)
def replay(script: str, settings: Sequence[str], processes: int | None, **options: Any) -> int:
    """Replay a past run to a moment exactly, and show its batch, loss and gradients.

    It starts from the newest checkpoint before that moment. The run directory is only read. Of several processes, what
    is shown is of rank 0.

    Exit codes: 0 done, 1 failed on the way, 2 the moment cannot be reached or bad usage.
    """
    if (code := launched(processes)) is not None:
        return code
    from graphtrain.command.replaying import replay_to

    return replay_to(script, settings, **options)
