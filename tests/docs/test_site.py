"""The site that `make docs` builds has every page, exported name and kind; its pictures are as the pages."""

from __future__ import annotations

import ast
import doctest
import json
import re
from pathlib import Path

import pytest

import graphtrain
from graphtrain import Graph, node
from graphtrain.viz.render import render
from tests.docs.execution import blocks_of, read_page, texts_of
from tests.shipped import KINDS, module_of
from tools.site import docstrings, gallery, generated, links, set_ups

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))


def directives(page: str) -> list[str]:
    """What a page shows the docstrings of."""
    return re.findall(r"^::: (\S+)$", read_page(DOCS / page), re.MULTILINE)


def test_every_page_is_in_the_navigation_once() -> None:
    listed = re.findall(r"^ +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted([*(path.name for path in PAGES), *links.PAGES.values()])


def test_the_api_has_every_name_that_is_exported() -> None:
    assert sorted(directives("api.md")) == sorted(f"graphtrain.{name}" for name in graphtrain.__all__)


def test_the_page_of_kinds_has_each_of_them() -> None:
    headings = re.findall(r"^### (\w+)\n\n::: (\S+)\.(\w+)$", read_page(DOCS / "kinds.md"), re.MULTILINE)
    assert sorted(name for name, _, _ in headings) == sorted(KINDS)
    for name, module, implementation in headings:
        assert module == module_of(KINDS[name])
        names = [getattr(each, "name", "") for each in ast.parse(KINDS[name].read_text(encoding="utf-8")).body]
        assert implementation in names, name


@pytest.mark.parametrize("module", [links, docstrings, gallery, set_ups], ids=lambda module: module.__name__)
def test_the_examples_in_the_hooks(module: object) -> None:
    tried = doctest.testmod(module)  # type: ignore[arg-type]
    assert tried.attempted > 0 and tried.failed == 0


@pytest.mark.parametrize("path", [*PAGES, *(ROOT / name for name in links.PAGES)], ids=lambda path: path.stem)
def test_no_link_leads_out_of_the_site_and_no_block_is_lost(path: Path) -> None:
    text, name = read_page(path), str(path.relative_to(ROOT))
    changed = links.for_the_site(text, name)
    place = links.place_in_site(name)
    outside = [target for target in links.targets_of(changed, place) if target.startswith("..")]
    assert outside == []
    assert all((ROOT / target).exists() for target in links.targets_of(text, name))
    after = [block.text for block in blocks_of(changed)]
    assert after == [block.text for block in blocks_of(text)]


def test_a_file_of_the_repository_is_shown_on_a_page_of_its_own() -> None:
    shown = links.page_of_source("graphs/evaluate.toml")
    (block,) = blocks_of(shown)
    assert block.language == "toml" and block.text == (ROOT / "graphs" / "evaluate.toml").read_text(encoding="utf-8")
    notebook = links.page_of_source("examples/rewire.ipynb")
    assert {block.language for block in blocks_of(notebook)} == {"python", "text"}
    folder = links.page_of_source("tests/company/lookahead")
    assert "## pyproject.toml" in folder and len(blocks_of(folder)) > 2


@pytest.mark.full
def test_the_example_of_a_report_is_of_a_run_that_was_resumed(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    generated.example_report(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    content = re.search(r'<script type="application/json" id="content">(.*?)</script>', text, re.DOTALL)
    assert content is not None
    (run,) = json.loads(content[1])["runs"]
    assert (run["path"], run["condition"]) == ("runs/digits", "finished")
    assert [mark["event"] for mark in run["marks"]] == ["begun", "resumed"]


def test_the_picture_of_the_tutorial_is_of_its_graph(tmp_path: Path) -> None:
    @node
    def average(model: object, mean: object, *, decay: float = 0.99) -> None:
        """As in the tutorial."""

    fit = Graph.load("fit")
    changed = fit.set("finish", after="20 epochs").set("accumulate", every=4).set("clip", max_norm=1.0)
    drawn = render(fit.diff(changed.insert("average", average, after="step")), tmp_path / "drawn.svg")
    assert texts_of(drawn) == texts_of(DOCS / "pictures" / "tutorial.svg")
