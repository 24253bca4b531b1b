"""README is executed like the pages under docs/, and its output compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from graphtrain import Graph, node
from graphtrain.command.cli import app
from graphtrain.viz.render import render
from tests.docs.execution import Page

ROOT = Path(__file__).parent.parent
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
    assert Page(README, folder).execute() >= 8


def test_the_refusal_shown_is_the_one_printed(folder: Path) -> None:
    text = (ROOT / "graphs" / "fit.toml").read_text(encoding="utf-8")
    text = text.replace('after = "10 epochs"', 'after = "10 epoch"').replace(
        "accumulate  = { every = 1 }", "accumulate  = { evry = 4 }"
    )
    Path("my_fit.toml").write_text(text, encoding="utf-8")
    result = CliRunner().invoke(app, ["check", "my_fit.toml"])
    shown = re.search(r"\$ graphtrain check my_fit.toml\n(my_fit.*?)```", TEXT, re.DOTALL)
    assert shown is not None
    assert result.output == shown.group(1)


def test_the_picture_is_of_the_graph_in_the_text(folder: Path) -> None:
    """The layout may differ between versions of graphviz; the texts may not."""

    @node
    def average(model: object, mean: object, *, decay: float = 0.999) -> None:
        """As in README."""

    drawn = render(Graph.load("fit").insert("average", average, after="step"), folder / "average.svg")
    words = [re.findall(r"<text[^>]*>([^<]*)</text>", svg.read_text()) for svg in (drawn, ROOT / "docs/average.svg")]
    assert "average" in words[0]
    assert sorted(words[0]) == sorted(words[1])


def test_the_tree_names_what_exists() -> None:
    for name in re.findall(r"^(\w+)/ ", TEXT, re.MULTILINE):
        assert (ROOT / name).is_dir()
    for line in re.findall(r"^  (\w\S*/.*|\w+\.py.*?)  ", TEXT, re.MULTILINE):
        for name in line.split():
            assert (ROOT / "graphtrain" / name).exists(), name


def test_the_examples_it_names_exist() -> None:
    for name in re.findall(r"\]\(([\w./]+)\)", TEXT):
        assert (ROOT / name).exists(), name
