"""How a name finds its kind or its graph: what a script declares, what is shipped, what other packages add."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Graph, Node, node
from graphtrain.graph import registry
from graphtrain.graph.registry import (
    GRAPHS,
    family_of_node,
    find_graph,
    find_kind,
    find_overlay,
    kind_of_node,
    known_graphs,
    known_kinds,
    known_overlays,
    may_be_bypassed,
    summary,
)

OTHERS = {"graphtrain.nodes": {"sway": f"{__name__}:sway"}, "graphtrain.graphs": {"duel": "graphtrain_duel"}}


def sway(model: Any) -> None:
    """What another package adds."""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points of another package."""

    def entries(group: str) -> dict[str, EntryPoint]:
        return {name: EntryPoint(name, value, group) for name, value in OTHERS.get(group, {}).items()}

    monkeypatch.setattr(registry, "_entry_points", entries)


def test_what_is_shipped_is_what_is_in_the_folder() -> None:
    files = (Path(__file__).parents[2] / "nodes").glob("[!_]*.py")
    assert sorted(registry._shipped.__wrapped__("nodes", ".py")) == sorted(file.stem for file in files)


def test_another_package_and_a_script_add_under_their_names(installed: None) -> None:
    own = node(name="own")(lambda model: None)
    assert find_kind("own") is vars(own)["__kind__"]
    assert "sway" in known_kinds() and "duel" in known_graphs()
    kind = find_kind("sway")
    assert kind is not None and kind.implementation is sway


def test_helpers_of_the_shipped_kinds_are_no_kinds() -> None:
    assert not [name for name in known_kinds() if name.startswith("_")]
    assert find_kind("_optimizers") is None
    assert known_graphs() == sorted(known_graphs())


@pytest.mark.full
def test_every_shipped_kind_is_found_without_torch() -> None:
    program = (
        "import sys\n"
        "from graphtrain.graph.registry import find_kind, known_kinds\n"
        "assert all(find_kind(name) is not None for name in known_kinds())\n"
        "assert not {'torch', 'numpy'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


@pytest.mark.parametrize(
    ("told", "family"),
    [
        ({"effects": "clip"}, "gradient"),
        ({"effects": ("zero_grad", "backward", "step")}, "update"),
        ({"effects": "backward"}, "compute"),
        ({"effects": "eval"}, "bookkeeping"),
        ({"observer": True}, "bookkeeping"),
        ({"family": "data", "writes": "batch"}, "data"),
        ({"effects": "clip", "family": "choice"}, "choice"),
        ({}, "other"),
    ],
)
def test_a_kind_of_a_script_is_drawn_by_what_it_declares(told: dict[str, Any], family: str) -> None:
    @node(name="clip", **told)
    def mine() -> None:
        """Mine."""

    assert family_of_node(Node("clip", "clip")) == family, "before the shipped one of that name"


def test_a_node_with_a_body_is_one_of_its_own_family() -> None:
    validate = Graph.load("fit").nodes["validate"]
    assert family_of_node(validate) == "nested"
    assert may_be_bypassed(validate) and not may_be_bypassed(replace(validate, body=Graph.load("fit")))
    kind = kind_of_node(validate)
    assert kind is not None and kind.name == "nested"
    assert kind_of_node(Node("x", "of_another_package")) is None


def test_graphs_and_overlays_are_apart() -> None:
    assert {"fit", "evaluate", "gan"} <= {*known_graphs()} and {"ema", "rollback"} <= {*known_overlays()}
    assert not {*known_graphs()} & {*known_overlays()}
    assert find_overlay("fit") is find_graph("ema") is find_graph("nothing") is None
    assert GRAPHS.hint("fitt") == "did you mean `fit`?"
    assert GRAPHS.hint("qqqqq") == f"known: {', '.join(known_graphs())}; a path ends in .toml"


def test_the_first_comment_of_a_file_describes_it(tmp_path: Path) -> None:
    for text, description in (("# One.\n# Two.\n", "One."), ("format = 1\n# One.\n", ""), ("#", ""), ("", "")):
        (tmp_path / "x.toml").write_text(text)
        assert summary(tmp_path / "x.toml") == description
    assert summary(None) == summary(tmp_path) == summary(tmp_path / "absent.toml") == ""
    assert all(summary(find_graph(name)) for name in known_graphs())
