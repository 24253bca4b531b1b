"""`graphtrain run`, and the same command of a script that calls `graphtrain.main`, and its help."""

from __future__ import annotations

import multiprocessing
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from graphtrain.command.adapted import ScriptOrClass, adapter_options, script_argument, script_or_class
from graphtrain.command.cli import Command, command, settings_argument
from graphtrain.command.failure import exit_on_failure
from graphtrain.command.options import RunOptions, run_options
from graphtrain.command.script import IS_IMPORTING, Script, graph_of_module
from graphtrain.command.settings import setup_rows
from graphtrain.errors import UsageError


class ScriptCommand(Command):
    """A command that takes a script; where one is named, the help lists the arguments of its setup.

    Attributes:
        program: the script whose own command this is; None for a command that takes any script.
    """

    program: Script | None = None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words; the help looks for a script in them."""
        scripts = [word for word in args if word.partition(":")[0].endswith(".py")]
        ctx.meta["script"] = scripts[0] if scripts else None
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, and the arguments of the script's setup."""
        super().format_options(ctx, formatter)
        with exit_on_failure():
            script = ctx.meta["script"]
            program = self.program or (Script.of_script(script) if script else None)
            if program is not None:
                with formatter.section(f"Arguments of {program.function}"):
                    formatter.write_dl([*setup_rows(program.setup)] or [("none", "")])


@command(
    "graphtrain run examples/digits.py accumulate.every=4 --run-dir runs/first",
    "graphtrain run train.py:setup lr=1e-3 finish.after='500 steps' --graph my_fit.toml",
    "graphtrain run train.py --overlay ema --overlay early_stop early_stop.patience=2",
    "graphtrain run --lightning train.py:Net lr=1e-3 max_epochs=5 --run-dir runs/net",
    "graphtrain run train.py --help",
    cls=ScriptCommand,
)
@script_argument
@settings_argument
@run_options
@adapter_options
def run(script: str, settings: Sequence[str], lightning: str | None, data: str | None, **options: Any) -> int:
    """Train with a script, or resume a run that was interrupted.

    The function setup() of the script, or FUNCTION, returns the model, the optimizer and the data.
    NAME=VALUE sets an argument of setup (lr=1e-3) or a parameter of a node (finish.after='9 epochs'). With a SCRIPT,
    --help also lists the arguments of setup; `graphtrain show SCRIPT` prints its nodes with their parameters.

    Exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped and resumable.
    """
    return _train(*script_or_class(script, settings, lightning, data), RunOptions(**options))


def program_command(program: Script) -> Command:
    """The command of a script that calls `graphtrain.main`."""

    @command(f"{shlex.join(program.words)} accumulate.every=4 --run-dir runs/first", cls=ScriptCommand)
    @settings_argument
    @run_options
    def run(settings: Sequence[str], **options: Any) -> int:
        """Train with this script, or resume a run that was interrupted.

        NAME=VALUE sets an argument of setup (lr=1e-3) or a parameter of a node (finish.after='9 epochs').

        Exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped and resumable.
        """
        return _train(program, settings, RunOptions(**options))

    assert isinstance(run, ScriptCommand)
    run.program = program
    return run


def _train(program: Script | ScriptOrClass, settings: Sequence[str], options: RunOptions) -> int:
    from graphtrain.command.training import train  # imports torch

    return train(program, settings, options, click.get_current_context().obj)


# ---- a script that is its own command


def main(setup: Callable[..., Any]) -> None:
    """Turn the script that calls this into the command ``graphtrain run``, with `setup` as its function.

    ``python train.py lr=1e-3 accumulate.every=4 --run-dir r`` trains, ``python train.py --help`` lists what can be set.
    Exits the process with the exit code of the command. Does nothing if the script is only imported, by a loader worker
    or by ``graphtrain run``.

    Arguments:
        setup: returns the resources as a mapping; Python, NumPy and torch are seeded before it is called. Its arguments
            are set on the command line and checked against its signature.

    The graph is the variable `graph` at the top level of the script, or else `fit`, for every command that is given the
    script; ``--graph`` overrides it.

    >>> def setup(lr: float = 1e-3):
    ...     ...
    >>> if __name__ == "__main__":
    ...     main(setup)
    """
    if IS_IMPORTING.get() or _in_a_worker(setup):
        return
    if not callable(setup):
        raise UsageError(
            f"main takes the function that returns the resources, got a {type(setup).__name__}",
            "write main(setup), without parentheses after setup",
        )
    program, name = sys.modules["__main__"], getattr(setup, "__name__", "setup")
    file, spec = getattr(program, "__file__", None), getattr(program, "__spec__", None)
    module = spec.name.removesuffix(".__main__") if spec is not None and spec.name not in (None, "__main__") else ""
    words = ["python", *(["-m", module] if module else [sys.argv[0]])]
    source = [] if file is None or module else [words[1] + (f":{name}" if name != "setup" else "")]
    path = Path(file) if file else None
    script = Script(setup, name, path, words, source, lambda arguments: graph_of_module(program))
    program_command(script)(prog_name=" ".join(words))


def _in_a_worker(setup: Callable[..., Any]) -> bool:
    """True in a child process that only imports the script; a child that runs it as its program trains."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        return True  # the child still imports its main module
    return multiprocessing.parent_process() is not None and getattr(setup, "__module__", "") != "__main__"
