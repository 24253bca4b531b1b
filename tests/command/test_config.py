"""`--config`: settings of a run in a TOML file, below those of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from graphtrain.command.settings import Settings
from graphtrain.storage.run_directory import read_status
from tests.command.conftest import Command
from tests.command.test_run import WITH_VALIDATION

CONFIG = """\
lr = 0.2
name = "a,b"

[accumulate]
every = 2
[finish]
after = "4 steps"
["validate/next_batch"]
limit = 1
"""


@pytest.fixture
def config(folder: Path) -> Path:
    (folder / "tiny.py").write_text(WITH_VALIDATION)
    (folder / "my.toml").write_text(CONFIG)
    return folder / "my.toml"


@pytest.mark.full
def test_a_file_sets_arguments_and_parameters_and_the_command_line_wins(config: Path, command: Command) -> None:
    words = ["run", "tiny.py", "--config", "my.toml", "lr=0.3", "finish.after=3 steps", "--run-dir", "r", "--quiet"]
    assert command(*words).code == 0
    status = read_status("r")
    assert status["arguments"] == {"lr": 0.3, "batches": 4, "name": "a,b"} and status["step"] == 3
    assert status["parameters"]["accumulate.every"] == 2 and status["parameters"]["validate/next_batch.limit"] == 1
    about = json.loads(Path("r/starts.jsonl").read_text())["about"]
    assert about["given"] == ["lr", "name"] and about["arguments"]["name"] == "'a,b'", (
        "a resume compares what is merged"
    )
    config.write_text(CONFIG.replace("a,b", "c"))
    result = command(*words)
    assert result.code == 2 and "changed since: name 'a,b' -> 'c'\n" in result.err


def test_what_the_file_sets_and_where(config: Path) -> None:
    settings = Settings.of(["lr=1", "finish.after=2 epochs"], config)
    assert settings.arguments == {"lr": 1, "name": "a,b"}
    assert settings.parameters == {"accumulate.every": 2, "finish.after": "2 epochs", "validate/next_batch.limit": 1}
    lines = {name: place.rpartition(":")[2] for name, place in settings.places.items()}
    assert lines == {"name": "2", "accumulate.every": "5", "validate/next_batch.limit": "9"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nmae = 1", "`nmae` is not an argument of tiny.py:setup\n  hint: did you mean `name`"),
        ("nmae = 1", "\n  my.toml:3 sets `nmae`\n"),
        ("batches = 1.5", "tiny.py:setup: batches: expected an integer, got 1.5\n  my.toml:3 sets `batches`\n"),
        ("acumulate.every = 1", "hint: did you mean `accumulate`?\n  my.toml:3 sets `acumulate.every`\n"),
        ("clip.max_nrm = 1", "    did you mean `max_norm`?\n  my.toml:3 sets `clip.max_nrm`\n"),
        ("validate.limit = 1", "my.toml:3 sets `validate.limit`"),
        ("x = 1 = 2", "--config: `my.toml` is not TOML: "),
    ],
)
def test_what_is_wrong_in_the_file_has_its_line(line: str, message: str, config: Path, command: Command) -> None:
    config.write_text(CONFIG.replace('b"\n\n', f'b"\n{line}\n'))
    result = command("run", "tiny.py", "--config", "my.toml", "--run-dir", "r")
    assert result.code == 2 and message in result.err, result.err


def test_all_that_is_wrong_in_the_file_is_reported_at_once_as_toml(config: Path, command: Command) -> None:
    config.write_text('batchez = 8\nepochs = 3\nlr = "x"\n[finnish]\nafter = "3 epochs"\n[clip]\nmax_norm = -1\n')
    result = command("run", "tiny.py", "--config", "my.toml", "--run-dir", "r")
    assert result.code == 2 and result.out == ""
    wrong = [line for line in result.err.splitlines() if line.startswith("    ") and "hint" not in line]
    assert [line.split("`")[1] for line in wrong if "`" in line][:3] == ["batchez", "epochs", "finnish.after"]
    assert "lr: expected a number" in result.err
    assert "to set a parameter of a node, write batchez = VALUE below the line [NODE]\n" in result.err
    assert '      hint: write after = "3 epochs" in the table [finish]\n' in result.err
    assert "  my.toml:1 sets `batchez`\n" in result.err and "  my.toml:5 sets `finnish.after`\n" in result.err


def test_a_word_of_the_command_line_has_no_place(config: Path, command: Command) -> None:
    result = command("run", "tiny.py", "--config", "my.toml", "lr=fast")
    assert result.code == 2 and "my.toml" not in result.err
    assert "--config: `no.toml` cannot be read: No such file" in command("run", "tiny.py", "--config", "no.toml").err
