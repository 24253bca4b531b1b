"""The words of the command are few: `run` has at most 20 options, all commands together 40; the help is a page."""

from __future__ import annotations

import click

from graphtrain.command.cli import COMMANDS, app
from tests.looking.conftest import Command


def test_options_are_few() -> None:
    context = click.Context(app)
    commands = {name: app.get_command(context, name) for name in COMMANDS}
    options = {
        name: {each.opts[0] for each in one.params if isinstance(each, click.Option)}
        for name, one in commands.items()
        if one is not None
    }
    assert options.keys() == COMMANDS.keys()
    assert len(options["run"]) <= 20
    assert len(set().union(*options.values())) <= 40


def test_the_help_is_a_page(command: Command) -> None:
    lines = command("--help").out.splitlines()
    assert len(lines) <= 40 and not [line for line in lines[1:] if line.endswith("...")], "a sentence is cut"
    assert {"Train:", "Look at runs:", "Prove and repeat:", "Graphs:"} <= {*lines}
