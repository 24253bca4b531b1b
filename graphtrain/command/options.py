"""The options of a run, declared once: their help, their values, and the equivalent command line."""

from __future__ import annotations

import functools
import inspect
import shlex
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import typer


def processes_option(does: str, panel: str | None = None) -> Any:
    """The option of every command that starts several processes.

    Arguments:
        does: what the command does in them, as a sentence.
        panel: of the help. Default: that of all options.
    """
    text = f"{does} Default: one, or those that torchrun has started."
    return typer.Option("--processes", metavar="NUMBER", help=text, rich_help_panel=panel)


@dataclass(frozen=True)
class RunOptions:
    """The options of the command.

    >>> RunOptions(run_dir=Path("runs/a"), seed=3).words()
    ['--run-dir', 'runs/a', '--seed', '3']
    """

    graph: Annotated[
        str | None,
        typer.Option(
            "--graph",
            metavar="GRAPH",
            help="A shipped graph, a TOML file, or another script; saved: the graph in the checkpoint that is resumed. "
            "Default: the graph of the script, which is what it passes to main or calls `graph`; else fit.",
        ),
    ] = None
    overlay: Annotated[
        list[str],
        typer.Option(
            "--overlay",
            metavar="OVERLAY",
            help="Add an overlay to the graph: a shipped one, as in ema (see graphtrain graphs), or a TOML file; "
            "can be given several times.",
        ),
    ] = field(default_factory=list)
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir",
            metavar="RUN_DIR",
            help="The run directory; an existing run is resumed. Default: runs/SCRIPT-001, ...",
        ),
    ] = None
    resume: Annotated[
        str,
        typer.Option(
            "--resume",
            metavar="WHAT",
            help="auto: resume from the newest checkpoint, or start a new run; never: refuse a directory that has a "
            "run; or the name or path of a checkpoint: best and newest, also as RUN_DIR/best.",
        ),
    ] = "auto"
    fork: Annotated[
        Path | None,
        typer.Option(
            "--fork",
            metavar="RUN_DIR",
            help="Start from the newest checkpoint of another run, in a new run directory.",
        ),
    ] = None
    init: Annotated[
        list[str],
        typer.Option(
            "--init",
            metavar="NAME=FILE",
            help="Load weights from a safetensors file or a checkpoint first, as in model=weights.safetensors or "
            "model=runs/first/best; all names must match.",
        ),
    ] = field(default_factory=list)
    rename: Annotated[
        list[str],
        typer.Option(
            "--rename",
            metavar="OLD=NEW",
            help="The node OLD of the saved graph is called NEW now, as in accumulate=gather or "
            "validate/next_batch=validate/fetch; can be given several times.",
        ),
    ] = field(default_factory=list)
    from_setup: Annotated[
        str,
        typer.Option(
            "--from-setup",
            metavar="NAMES",
            help="If setup() now sets other hyper-parameters than when the run began: take the new values of these, as "
            "in optimizer.lr,scheduler.",
        ),
    ] = ""
    from_saved: Annotated[
        bool, typer.Option("--from-saved", help="If setup() now sets other hyper-parameters: keep the saved ones.")
    ] = False
    until: Annotated[
        str | None,
        typer.Option(
            "--until",
            metavar="AMOUNT",
            help="Stop early, as in '500 steps' or '2 hours'. The same command without it continues the run.",
        ),
    ] = None
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="NODE",
            help="Stop when this node is the next to run, as in step or validate/eval_batch. The same command runs it, "
            "and stops before it the next time.",
        ),
    ] = None
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only try it: one batch, every trigger due once, the end after one epoch; without a run directory and "
            "loggers. The nodes that were not reached are listed.",
        ),
    ] = False
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="NUMBER", help="Seed of Python, NumPy and torch, set before setup() is called."),
    ] = 0
    device: Annotated[
        str, typer.Option("--device", metavar="DEVICE", help="Where to train: auto, cpu, cuda, cuda:1, ...")
    ] = "auto"
    processes: Annotated[
        int | None,
        processes_option(
            "Train in this many processes on this host, each with its own part of the batches and, with CUDA, its own "
            "device."
        ),
    ] = None
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Ask torch for deterministic kernels.")] = False
    log_every: Annotated[
        str | None,
        typer.Option(
            "--log-every",
            metavar="AMOUNT",
            help="How often a row of metrics is recorded, as in 10 (steps) or '1 epochs': `every` of each node `log`.",
        ),
    ] = None
    show: Annotated[
        str, typer.Option("--show", metavar="NAMES", help="The metrics to show, as in loss,val/loss. Default: all.")
    ] = ""
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also log to TensorBoard, inside the run directory.")
    ] = False
    time_nodes: Annotated[
        bool,
        typer.Option(
            "--time-nodes",
            help="Time the nodes of one batch in 128; graphtrain render RUN_DIR --run-dir RUN_DIR --seconds draws "
            "where the time goes.",
        ),
    ] = False
    csv: Annotated[
        bool, typer.Option("--csv", help="Also write a table, metrics.csv, with one row for what one step has.")
    ] = False
    trace: Annotated[
        bool,
        typer.Option(
            "--trace",
            help="Print a line on standard error for every transition: the node that ran, the next node, and every "
            "guard that was evaluated, with the values it read. With --quiet, nothing else.",
        ),
    ] = False
    contained: Annotated[
        bool,
        typer.Option(
            "--contained",
            help="For graphs of strangers: refuse a graph that names files outside of its folder (of a name: the "
            "current folder), links that lead out of it, and another script in --graph.",
        ),
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", help="Print errors only.")] = False

    def words(self) -> list[str]:
        """The options as words of a command line, without those that have their defaults."""
        words = []
        for option in fields(self):
            value = getattr(self, option.name)
            if value == _default(option):
                continue
            word = "--" + option.name.replace("_", "-")
            if value is True:
                words.append(word)
            else:
                for item in value if isinstance(value, list) else [value]:
                    words += [word, str(item)]
        return words


def _default(option: Field[Any]) -> Any:
    return option.default if option.default_factory is MISSING else option.default_factory()


def command_line(program: Sequence[str], settings: Sequence[str], options: RunOptions) -> str:
    """The shell command that runs a program with these options.

    >>> command_line(["python", "train.py"], ["finish.after=2 epochs"], RunOptions(run_dir=Path("runs/a")))
    "python train.py 'finish.after=2 epochs' --run-dir runs/a"
    """
    return shlex.join([*program, *settings, *options.words()])


def takes_run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose parameter `options` is replaced, for typer, by one parameter for each option."""
    hints = typing.get_type_hints(RunOptions, include_extras=True)
    signature = inspect.signature(function, eval_str=True)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "options"]
    parameters += [
        inspect.Parameter(
            option.name, inspect.Parameter.KEYWORD_ONLY, default=_default(option), annotation=hints[option.name]
        )
        for option in fields(RunOptions)
    ]

    @functools.wraps(function)
    def wrapper(**arguments: Any) -> Any:
        options = RunOptions(**{option.name: arguments.pop(option.name) for option in fields(RunOptions)})
        return function(**arguments, options=options)

    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper
