"""The options of a run, declared once: their help, their values as typed, and the command line that says the same."""

from __future__ import annotations

import functools
import inspect
import shlex
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

import typer


@dataclass(frozen=True)
class RunOptions:
    """The options of the command, as typed.

    >>> RunOptions(run_dir=Path("runs/a"), seed=3).words()
    ['--run-dir', 'runs/a', '--seed', '3']
    """

    graph: Annotated[
        str | None,
        typer.Option(
            "--graph",
            help="A shipped graph or the path of a TOML file; saved: the one in the checkpoint that is gone on from. "
            "Default: what the script gives to main, if it is run itself; else fit.",
        ),
    ] = None
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", help="Where the run is kept; an existing run goes on. Default: runs/SCRIPT-001, ..."),
    ] = None
    resume: Annotated[
        str,
        typer.Option(
            "--resume",
            help="auto: go on from the newest checkpoint, or begin; never: refuse a directory that holds a run; "
            "or the name or path of a checkpoint.",
        ),
    ] = "auto"
    fork: Annotated[
        Path | None,
        typer.Option(
            "--fork",
            metavar="RUN_DIR",
            help="Begin from the newest checkpoint of another run, in a directory of its own.",
        ),
    ] = None
    init: Annotated[
        list[str],
        typer.Option(
            "--init",
            metavar="NAME=FILE",
            help="Begin with weights from a safetensors file, as in model=weights.safetensors; every name must fit.",
        ),
    ] = field(default_factory=list)
    rename: Annotated[
        list[str],
        typer.Option(
            "--rename",
            metavar="OLD=NEW",
            help="Where the graph has other names for its nodes than the saved one: which is which, with what is "
            "inside it, as in accumulate=gather or validate/next_batch=validate/fetch.",
        ),
    ] = field(default_factory=list)
    from_setup: Annotated[
        str,
        typer.Option(
            "--from-setup",
            metavar="NAMES",
            help="Where hyper-parameters are not those that the run was set up with, take these as they are now: "
            "optimizer.lr,scheduler",
        ),
    ] = ""
    from_saved: Annotated[
        bool, typer.Option("--from-saved", help="Where hyper-parameters differ so, keep the saved ones.")
    ] = False
    until: Annotated[str | None, typer.Option("--until", help="Stop before the end, as in '500 steps'.")] = None
    seed: Annotated[int, typer.Option("--seed", help="Seeds Python, NumPy and torch before setup is called.")] = 0
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, ...")] = "auto"
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Ask torch for deterministic kernels.")] = False
    show: Annotated[
        str, typer.Option("--show", metavar="NAMES", help="The metrics to show, as in loss,val/loss. Default: all.")
    ] = ""
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Log for TensorBoard too, inside the run directory.")
    ] = False
    trace: Annotated[
        bool,
        typer.Option(
            "--trace",
            help="Print a line on standard error for every transition: the node that ran, where it was left to, and "
            "every guard that was asked, with what it read. With --quiet, nothing else.",
        ),
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", help="Print errors only.")] = False

    def words(self) -> list[str]:
        """The options as words of a command line; those at their defaults are left out."""
        words = []
        for one in fields(self):
            value = getattr(self, one.name)
            if value == (one.default_factory() if one.default_factory is not MISSING else one.default):
                continue
            option = "--" + one.name.replace("_", "-")
            if value is True:
                words.append(option)
            else:
                words += [word for each in _listed(value) for word in (option, str(each))]
        return words


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def command_line(program: Sequence[str], settings: Sequence[str], options: RunOptions) -> str:
    """The command that runs a program with these options, as a shell reads it.

    >>> command_line(["python", "train.py"], ["finish.after=2 epochs"], RunOptions(run_dir=Path("runs/a")))
    "python train.py 'finish.after=2 epochs' --run-dir runs/a"
    """
    return shlex.join([*program, *settings, *options.words()])


def takes_run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with a parameter `options`, for typer: with the options in the place of it, each by its name."""
    hints = typing.get_type_hints(RunOptions, include_extras=True)
    own = inspect.signature(function, eval_str=True)
    parameters = [one for one in own.parameters.values() if one.name != "options"]
    for one in fields(RunOptions):
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        parameters.append(
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[one.name])
        )

    @functools.wraps(function)
    def gathered(**given: Any) -> Any:
        options = RunOptions(**{one.name: given.pop(one.name) for one in fields(RunOptions)})
        return function(**given, options=options)

    gathered.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    gathered.__annotations__ = {one.name: one.annotation for one in parameters}
    return gathered
