"""The command line: the list of its commands, and what all of them have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from graphtrain.command.failure import exit_on_failure
from graphtrain.lazy import imported
from graphtrain.ranks.launcher import launched
from graphtrain.version import __version__

# Every command, in groups, and the module of this package that declares it, which is imported when the command is used.
GROUPS = {
    "Train": {"new": "graphs", "run": "run", "test": "evaluate", "predict": "evaluate"},
    "Look at runs": {
        **{"ls": "runs", "status": "runs", "explain": "runs"},
        **{"watch": "pages", "report": "pages", "export": "runs"},
    },
    "Prove and repeat": {"verify": "prove", "replay": "prove"},
    "Graphs": dict.fromkeys(("graphs", "nodes", "show", "check", "copy", "render"), "graphs") | {"diff": "diff"},
}
COMMANDS = {name: module for group in GROUPS.values() for name, module in group.items()}

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 120}

Declared = TypeVar("Declared", bound=Callable[..., Any])


class Command(click.Command):
    """A command, which exits with the code that its function returns; a failure is one readable message."""

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function, if asked for in several processes, and exit."""
        with exit_on_failure():
            code = launched(ctx.params.get("processes"))
            code = super().invoke(ctx) if code is None else code
        ctx.exit(code or 0)


class CommandLine(click.Group):
    """The commands of `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, whose module is imported now."""
        module = imported(f"{__package__}.{COMMANDS[cmd_name]}") if cmd_name in COMMANDS else None
        return getattr(module, cmd_name, None)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups of commands, each command on a line."""
        for title, names in GROUPS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl([(name, each.get_short_help_str(66)) for name, each in commands if each])


def command(*examples: str, cls: type[Command] = Command) -> Callable[[Callable[..., int | None]], Command]:
    """Declare a command: a function that returns the exit code."""
    epilog = "\n  ".join(["\b\nExamples:", *examples])
    return click.command(cls=cls, epilog=epilog, context_settings=_CONTEXT)


def options(*declared: Callable[[Declared], Declared]) -> Callable[[Declared], Declared]:
    """Options that several commands have, as one decorator."""

    def declare(function: Declared) -> Declared:
        for each in reversed(declared):
            function = each(function)
        return function

    return declare


overlay_option = click.option(
    "--overlay", multiple=True, help="An overlay for the graph: a name, as in ema, or a TOML file. Repeatable."
)
output_option = click.option(
    "--output", "-o", type=Path, help="Draw it to a file: .svg, .png, .pdf, .dot or .mmd (Mermaid)."
)
processes_option = click.option(
    "--processes",
    type=click.IntRange(1),
    metavar="N",
    help="Run in N processes on this machine. Default: one, or those of torchrun.",
)
settings_argument = click.argument("settings", nargs=-1, metavar="[NAME=VALUE]...")


app = CommandLine(
    "graphtrain",
    help="Train PyTorch models with an explicit graph: edit it, draw it, check it, stop it, resume it bit for bit.",
    epilog="\b\nStart with:\n  graphtrain new train.py\n  python train.py",
    context_settings=_CONTEXT,
)
click.version_option(
    __version__, prog_name="graphtrain", message="%(prog)s %(version)s", help="Print the version and exit."
)(app)


def main() -> None:
    """Run the command with the arguments of this process, and exit with its code."""
    app(prog_name="graphtrain")
