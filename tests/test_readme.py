"""The examples of README run, and what they say is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from graphtrain import Graph
from graphtrain.command.app import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
TYPED = re.findall(r"^\$ (graphtrain [^\n#]*)", README, re.MULTILINE)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_python_blocks_run(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})  # noqa: S102 - our own text
    assert "error" not in capsys.readouterr().err


def test_commands_exist_with_their_options() -> None:
    known = {command.name for command in app.registered_commands}
    assert TYPED
    for line in TYPED:
        assert line.split()[1] in known


def test_the_refusal_that_is_shown_is_the_one_that_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "graphs" / "fit.toml").read_text(encoding="utf-8")
    text = text.replace('after = "10 epochs"', 'after = "10 epoch"').replace(
        "accumulate  = { every = 1 }", "accumulate  = { evry = 4 }"
    )
    Path("my_fit.toml").write_text(text, encoding="utf-8")
    result = CliRunner().invoke(app, ["check", "my_fit.toml"])
    shown = re.search(r"\$ graphtrain check my_fit.toml\n(my_fit.*?)```", README, re.DOTALL)
    assert shown is not None
    assert result.output == shown.group(1)


def test_the_tree_names_what_there_is() -> None:
    for name in re.findall(r"^(\w+)/ ", README, re.MULTILINE):
        assert (ROOT / name).is_dir()
    assert Graph.load("fit").check() == []
