"""`graphtrain run`, and the same command of a script that calls `graphtrain.main`, and its help."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Any

import click

from graphtrain.command.adapted import ADAPTER_OPTIONS, adapter_options, script_argument, script_or_class
from graphtrain.command.cli import Command, command, launched, settings_argument
from graphtrain.command.failure import exit_on_failure
from graphtrain.command.options import RunOptions, run_options
from graphtrain.command.output import notify_once
from graphtrain.command.script import Script, load_graph
from graphtrain.command.settings import print_arguments, print_parameters, split_settings


class ScriptCommand(Command):
    """A command that takes a script; if one is named, the help lists what can be set, else it imports nothing.

    Attributes:
        program: the script that is its own command, if it is one.
    """

    program: Script | None = None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words; if there is an option for help anywhere, as far as they can be parsed."""
        if not set(ctx.help_option_names) & set(args):
            return super().parse_args(ctx, args)
        ctx.resilient_parsing = True
        super().parse_args(ctx, [word for word in args if word not in ctx.help_option_names])
        ctx.resilient_parsing = False
        click.echo(ctx.get_help())
        with exit_on_failure():
            self._print_settings(**ctx.params)
        ctx.exit()

    def _print_settings(
        self,
        script: str | None = None,
        settings: Sequence[str] = (),
        graph: str | None = None,
        overlay: Sequence[str] = (),
        **options: Any,
    ) -> None:
        program = self.program
        if program is None and script is not None and script.partition(":")[0].endswith(".py"):
            program = Script.of_script(script)
        if program is not None:
            print_arguments(program.setup, program.function)
            named = options.get("run_dir") if graph == "saved" else graph
            print_parameters(load_graph(named or program.own_graph(), overlays=overlay), settings)


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
    """Train with a script: its setup() returns model, optimizer and data. A run that was interrupted is resumed.

    NAME=VALUE sets an argument of setup (lr=1e-3) or a parameter of a node (finish.after='9 epochs'). With a SCRIPT,
    --help also lists what can be set. FUNCTION is another function than setup.

    Exit codes: 0 done, 1 failed, 2 bad usage, 75 stopped and resumable.
    """
    made = RunOptions(**options)
    source, settings = script_or_class(script, settings, **{name: options[name] for name in ADAPTER_OPTIONS})
    if source.script:
        return _train(script, settings, made)
    return _train(source.program(lambda: split_settings(settings)[0]), settings, made)


def program_command(program: Script) -> Command:
    """The command of a script that calls `graphtrain.main`."""

    @command(
        f"{shlex.join(program.words)} accumulate.every=4 --run-dir runs/first",
        cls=ScriptCommand,
    )
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


def _train(program: Script | str, settings: Sequence[str], options: RunOptions) -> int:
    if (code := launched(options.processes)) is not None:
        return code
    if isinstance(program, str) and sys.stderr.isatty() and not options.quiet:
        notify_once()(f"importing {program}")  # and torch, which takes seconds
    from graphtrain.command.training import train

    return train(program, settings, options, click.get_current_context().obj)
