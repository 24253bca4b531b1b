"""README is executed like the pages under docs/, and its output compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from graphtrain.command.cli import app
from tests.docs.execution import Page, texts_of

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)  # as in the processes that the page starts, also where torch was imported before
    return tmp_path


@pytest.mark.full
def test_every_block_is_executed(folder: Path) -> None:
    assert Page(README, folder).execute() >= 5


def test_the_refusal_shown_is_the_one_printed(folder: Path) -> None:
    text = (ROOT / "graphs" / "fit.toml").read_text(encoding="utf-8")
    text = text.replace('after = "10 epochs"', 'after = "10 epoch"').replace(
        "accumulate  = { every = 1 }", "accumulate  = { evry = 4 }"
    )
    Path("my_fit.toml").write_text(text, encoding="utf-8")
    result = CliRunner().invoke(app, ["check", "my_fit.toml"])
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    shown = re.search(r"\$ graphtrain check my_fit.toml\n(my_fit.*?)```", page, re.DOTALL)
    assert shown is not None
    assert result.output == shown.group(1)


def test_the_picture_is_what_its_command_draws(folder: Path) -> None:
    """The layout may differ between versions of graphviz; the texts may not."""
    words = re.search(r"`graphtrain (diff .* -o difference.svg)`", TEXT)
    assert words is not None
    assert CliRunner().invoke(app, words[1].split()).exit_code == 0
    drawn = texts_of(folder / "difference.svg")
    assert "+ ema" in drawn
    assert drawn == texts_of(ROOT / "docs" / "difference.svg")


def test_whoever_has_a_minute_has_seen_it_resume_and_its_figures() -> None:
    begin = "\n".join(TEXT.splitlines()[:40])
    for word in ("bitwise equal", " cuts** |", "print(trainer.run()"):
        assert word in begin


def test_the_examples_it_names_exist() -> None:
    for name in re.findall(r"\]\(([\w./]+)\)", TEXT):
        assert (ROOT / name).exists(), name
