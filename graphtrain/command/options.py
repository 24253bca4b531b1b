"""The options of a run, and the command that resumes it."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import click

from graphtrain.command.cli import options, overlay_option, processes_option
from graphtrain.graph.registry import kind_of_node

if TYPE_CHECKING:
    from graphtrain.report.run import Run

LOGGERS = ("tensorboard", "wandb")


class RunOptions(SimpleNamespace):
    """The options of a run: those of `run_options`, as attributes."""


run_options = options(
    click.option("--graph", help="A name, a TOML file, a script, or saved. Default: that of the script, else fit."),
    overlay_option,
    click.option("--run-dir", type=Path, help="The run directory. Default: a new one in runs."),
    click.option("--resume", default="auto", metavar="WHAT", help="auto (default), never, best, newest, NAME or PATH."),
    click.option("--fork", type=Path, metavar="RUN", help="Start a new run from a checkpoint of another run."),
    click.option("--init", multiple=True, metavar="NAME=FILE", help="Load weights: model=FILE, 'model.body.*=FILE'."),
    click.option("--rename", multiple=True, metavar="OLD=NEW", help="When resuming, the saved node OLD is now NEW."),
    click.option("--from-setup", default="", metavar="NAMES", help="When resuming, take these values from setup."),
    click.option("--from-saved", is_flag=True, help="When resuming, keep the saved hyper-parameters."),
    click.option("--until", metavar="AMOUNT", help="Stop early, at '500 steps' or '2 hours' of the run."),
    click.option("--dry-run", is_flag=True, help="Run every node once, and write nothing."),
    click.option("--seed", type=click.IntRange(0, 2**63 - 1), metavar="N", default=0, help="The seed. Default: 0."),
    click.option("--device", default="auto", help="Where to train: auto (default), cpu, cuda, cuda:1, ..."),
    processes_option,
    click.option("--deterministic", is_flag=True, help="Ask torch for deterministic kernels."),
    click.option("--logger", multiple=True, type=click.Choice(LOGGERS), help="Send metrics there too. Repeatable."),
    click.option("--trace", is_flag=True, help="Print each transition and the guards it evaluated."),
    click.option("--quiet", is_flag=True, help="Print errors only."),
)


def omit(words: Sequence[str], options: Collection[str]) -> list[str]:
    """The words of a command line without these options; the name of an option that takes a value ends in ``=``.

    >>> omit(["a.py", "--until", "2 steps", "--resume=best", "--quiet"], ["--until=", "--quiet"])
    ['a.py', '--resume=best']
    """
    kept, remaining = [], iter(words)
    for word in remaining:
        name, equals, _ = word.partition("=")
        if word not in options and f"{name}=" not in options:
            kept.append(word)
        elif word not in options and not equals:
            next(remaining, None)
    return kept


# Options that only the start of a run has, and limits that a run has reached: a resume repeats neither.
OF_THE_START = ("--resume=", "--fork=", "--from-setup=", "--from-saved", "--rename=")
OF_THE_END = ("--until=",)


def ended_by(run: Run) -> str:
    """Which node ended a run before its amount, and what to set; empty if no node reported that."""
    if not (name := run.ending_notice.partition(": ")[0]):
        return ""
    node = run.graph.nodes[name]
    kind, example = kind_of_node(node), f"{name}.PARAM=VALUE"
    for parameter in kind.parameters.values() if kind is not None else ():
        if type(parameter.default) is int:
            example = f"{name}.{parameter.name}={2 * node.parameters.get(parameter.name, parameter.default)}"
    return f"`{name}` ended it: change its parameters, as in {example}"


def resume_command(words: Sequence[str], run_dir: Path, *, is_reached: bool) -> str:
    """The command that resumes a run in its directory: the one that was typed, without the options of its start.

    >>> words = ["graphtrain", "run", "a.py", "--fork", "r", "--until", "2 steps", "--run-dir", "old"]
    >>> resume_command(words, Path("moved"), is_reached=True)
    'graphtrain run a.py --run-dir moved'
    """
    kept = omit(words, ["--run-dir=", *OF_THE_START, *(OF_THE_END if is_reached else ())])
    return shlex.join([*kept, "--run-dir", str(run_dir)])


def replay_command(source: Sequence[str], run_dir: Path, where: Sequence[str], ranks: int) -> str:
    """The command that repeats a run up to a moment, in as many processes as it had.

    >>> replay_command(["a.py"], Path("r"), ["--to", "9 batches"], ranks=2)
    "graphtrain replay a.py --run-dir r --to '9 batches' --processes 2"
    """
    processes = ["--processes", str(ranks)] if ranks > 1 else []
    return shlex.join(["graphtrain", "replay", *source, "--run-dir", str(run_dir), *where, *processes])
