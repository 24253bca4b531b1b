"""What `--help` shows, and what follows an option that does not exist."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from graphtrain.command.cli import COMMANDS, app
from tests.command.conftest import Command
from tests.command.running import TINY


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_described(name: str) -> None:
    declared = app.get_command(click.Context(app), name)
    assert [each.name for each in declared.params if isinstance(each, click.Option) and not each.help] == []


def test_types_and_defaults_of_a_setup_are_words(folder: Path, command: Command) -> None:
    signature = (
        "layer: type = torch.nn.Linear, call=lambda x: x, make: 'Callable[[], int] | None' = None, thing: object = 1"
    )
    text = "from collections.abc import Callable\n" + TINY.replace("lr: float = 0.1", f"lr: float = 0.1, {signature}")
    (folder / "typed.py").write_text(text)
    out = command("run", "typed.py", "--help").out
    lines = [line.split() for line in out.partition("Arguments of setup")[2].splitlines()]
    assert ["lr", "0.1", "number"] in lines
    assert ["layer", "Linear", "class"] in lines
    assert ["call", "a", "function"] in lines
    assert ["make", "none", "function"] in lines
    assert ["thing", "1", "any", "value"] in lines


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run", "tiny.py", "--run-dri", "r"], "No such option '--run-dri'"),
        (["run", "tiny.py", "--run-dri", "r"], "'--run-dir'"),
        (["qqq"], "No such command 'qqq'"),
    ],
    ids=str,
)
def test_what_does_not_exist_is_named(words: list[str], expected: str, tiny: Path, command: Command) -> None:
    result = command(*words)
    assert (result.code, result.out) == (2, "")
    assert expected in result.err
