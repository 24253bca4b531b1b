"""What `--help` shows, and what follows an option that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from graphtrain.command.cli import COMMANDS, app
from tests.command.conftest import Command
from tests.command.running import TINY


@pytest.mark.parametrize("name", COMMANDS)
def test_no_type_of_python_is_shown(name: str, command: Command) -> None:
    out = command(name, "--help").out
    assert re.findall(r"<\w+|\b(?:TEXT|INTEGER|FLOAT|BOOLEAN)\b", out) == []
    assert "--help" in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_parameter_is_described(name: str) -> None:
    """In the docstring of the command, or in what several of them share."""
    declared = app.get_command(click.Context(app), name)
    assert [parameter.name for parameter in declared.params if not parameter.help] == []


@pytest.mark.parametrize("name", ["check", "render", "show", "copy", "diff"])
def test_whatever_has_a_graph_is_accepted(name: str, command: Command) -> None:
    out = " ".join(command(name, "--help").out.replace("│", " ").split())
    for word in ("shipped graph", "TOML file", "script", "run directory", "checkpoint", "imported"):
        assert word in out, word


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
        (["run", "tiny.py", "--run-dri", "r"], "There is no option `--run-dri`; did you mean `--run-dir`?"),
        (["run", "tiny.py", "--max_epochs", "3"], "There is no option `--max_epochs`; write finish.after='3 epochs'"),
        (["run", "tiny.py", "--max_epochs=3"], "write finish.after='3 epochs'"),
        (["run", "tiny.py", "--max_epochs"], 'that is `finish.after = "N epochs"` here'),
        (["run", "tiny.py", "--grad_clip", "0.5"], "write clip.max_norm=0.5"),
        (["run", "tiny.py", "--gpus", "2"], "There is no option `--gpus`; write --processes 2"),
        (["run", "tiny.py", "--lr", "3"], "a setting of that name, if there is one, is written without dashes: lr=3"),
        (
            ["diff", "fit", "fit", "--script", "x.py"],
            "There is no option `--script`; graphtrain diff --help lists them",
        ),
        (["render", "fit", "--outptu", "x.svg"], "did you mean `--output`?"),
        (["--verson"], "did you mean `--version`?"),
        (["statsu"], "There is no command `statsu`; did you mean `status`?"),
        (["train", "tiny.py"], "There is no command `train`; write graphtrain run SCRIPT NAME=VALUE ..."),
        (["resume", "r"], "the command that began a run resumes it: graphtrain run SCRIPT --run-dir RUN"),
        (["qqq"], "There is no command `qqq`"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_does_not_exist_has_a_suggestion(words: list[str], expected: str, tiny: Path, command: Command) -> None:
    result = command(*words)
    assert (result.code, result.out) == (2, "")
    assert expected in " ".join(result.err.replace("│", " ").split())
