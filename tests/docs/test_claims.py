"""The names in the prose of the pages exist: options, parameters, fields, verbs, links."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import click
import pytest
from torch.distributed.run import get_args_parser

from graphtrain import Graph, Outcome, Trainer
from graphtrain.command.cli import COMMANDS, app
from graphtrain.graph.edit import VERBS
from graphtrain.graph.registry import kind_of_node
from graphtrain.kind.declaration import Declared
from tests.docs.execution import read_blocks, read_page, without_code, without_fences

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
LINKED = [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def by_name(path: Path) -> str:
    return path.stem


def spans(path: Path) -> list[str]:
    """The code spans of a page's prose."""
    return _CODE.findall(without_fences(read_page(path)))


def anchors(path: Path) -> set[str]:
    """The anchors of the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", without_fences(read_page(path)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", LINKED, ids=by_name)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    for target in _LINK.findall(without_code(read_page(path))):
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        file_path = path.parent / file if file else path
        assert file_path.exists(), f"{path.name}: {target}"
        if anchor:
            assert anchor in anchors(file_path), f"{path.name}: {target}"


@pytest.mark.parametrize("path", PAGES, ids=by_name)
def test_every_option_named_exists(path: Path) -> None:
    context = click.Context(app)
    commands = [app, *(app.get_command(context, name) for name in COMMANDS)]
    known = {option for command in commands for parameter in command.params for option in parameter.opts} | {"--help"}
    known |= {option for action in get_args_parser()._actions for option in action.option_strings}  # of torchrun
    named = {option for span in spans(path) for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", span)}
    named -= {"--signal"}  # of sbatch
    assert named <= known, f"{path.name}: {sorted(named - known)}"


@pytest.mark.parametrize("path", PAGES, ids=by_name)
def test_every_parameter_and_field_named_exists(path: Path) -> None:
    fit = Graph.load("fit")
    nodes = dict(fit.nodes)
    inner = nodes["validate"].body
    assert inner is not None
    nodes |= {f"validate/{name}": inner_node for name, inner_node in inner.nodes.items()}
    for span in spans(path):
        for owner, field in re.findall(r"(?<![\w./])((?:validate/)?[a-z_]+)\.([a-z_]+)\b(?!\()", span):
            if owner not in nodes:
                continue
            kind = kind_of_node(nodes[owner])
            assert kind is not None
            of_overlays = {"radius"} if "--overlay sam" in span else set()
            assert field in {*kind.parameters, *kind.fields} | of_overlays, f"{path.name}: `{span}`"


def test_every_attribute_of_a_trainer_named_exists() -> None:
    for path in PAGES:
        for span in spans(path):
            for name in re.findall(r"(?<!/)\btrainer\.([a-z]\w*)", span):
                assert hasattr(Trainer, name), f"{path.name}: `{span}`"


def test_every_verb_is_used_and_described() -> None:
    page = DOCS / "rewiring.md"
    used = set()
    for block in [*read_blocks(page), *read_blocks(DOCS / "graph-file.md")]:
        if block.language == "toml":
            used |= {key for edit in tomllib.loads(block.text).get("edit", ()) for key in edit}
    assert used >= set(VERBS)
    rows = re.findall(r"^\| `(\w+) = \"[A-Z]+\"` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(VERBS)


def test_every_argument_of_the_mark_is_described() -> None:
    section = (DOCS / "writing-a-kind.md").read_text(encoding="utf-8").split("## The arguments of `@node`")[1]
    rows = re.findall(r"^\| `(\w+)` \|", section.split("\n## ")[0], re.MULTILINE)
    assert rows == [*Declared.__annotations__]


def test_every_outcome_is_named() -> None:
    assert {outcome.name for outcome in Outcome} <= set(spans(DOCS / "resuming.md"))
