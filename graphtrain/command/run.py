"""`graphtrain run`, and the same command of a script that calls `graphtrain.main`, and its help."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Any

import click

from graphtrain.command.adapted import ADAPTER_OPTIONS, ScriptOrClass, adapter_options, script_argument, script_or_class
from graphtrain.command.cli import Command, command, launched, settings_argument
from graphtrain.command.failure import exit_on_failure
from graphtrain.command.options import RunOptions, run_options
from graphtrain.command.output import notify_once
from graphtrain.command.script import Script
from graphtrain.command.settings import setup_rows


class ScriptCommand(Command):
    """A command that takes a script; if one is named, the help lists the arguments of its setup, else it imports none.

    Attributes:
        program: the script that is its own command, if it is one.
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
def run(script: str, settings: Sequence[str], **options: Any) -> int:
    """Train with a script, or resume a run that was interrupted.

    The setup() of the script returns model, optimizer and data; FUNCTION is another function.
    NAME=VALUE sets an argument of setup (lr=1e-3) or a parameter of a node (finish.after='9 epochs'). With a SCRIPT,
    --help also lists the arguments of setup; `graphtrain show SCRIPT` prints its nodes with their parameters.

    Exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped and resumable.
    """
    source, settings = script_or_class(script, settings, **{name: options[name] for name in ADAPTER_OPTIONS})
    return _train(source, settings, RunOptions(**options))


def program_command(program: Script) -> Command:
    """The command of a script that calls `graphtrain.main`."""

    @command(f"{shlex.join(program.words)} accumulate.every=4 --run-dir runs/first", cls=ScriptCommand)
    @settings_argument
    @run_options
    def run(settings: Sequence[str], **options: Any) -> int:
        """Train with this script. A run that was interrupted is resumed.

        NAME=VALUE sets an argument of setup (lr=1e-3) or a parameter of a node (finish.after='9 epochs').

        Exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped and resumable.
        """
        return _train(program, settings, RunOptions(**options))

    assert isinstance(run, ScriptCommand)
    run.program = program
    return run


def _train(program: Script | ScriptOrClass, settings: Sequence[str], options: RunOptions) -> int:
    if (code := launched(options.processes)) is not None:
        return code
    if isinstance(program, ScriptOrClass) and sys.stderr.isatty() and not options.quiet:
        notify_once()(f"importing {shlex.join(program.words)}")  # and torch, which takes seconds
    from graphtrain.command.training import train

    return train(program, settings, options, click.get_current_context().obj)
