"""How a name finds its kind or its graph: what a script declares, what is shipped, what other packages add."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from graphtrain import Node, node
from graphtrain.graph import registry
from graphtrain.graph.registry import family_of_node, find_kind, known_graphs, known_kinds

OTHERS = {"graphtrain.nodes": {"sway": f"{__name__}:sway"}, "graphtrain.graphs": {"duel": "graphtrain_duel"}}


def sway(model: Any) -> None:
    """What another package adds."""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points of another package."""

    def entries(group: str) -> dict[str, EntryPoint]:
        return {name: EntryPoint(name, value, group) for name, value in OTHERS.get(group, {}).items()}

    monkeypatch.setattr(registry, "_entry_points", entries)


def test_another_package_adds_under_its_names(installed: None) -> None:
    assert "sway" in known_kinds() and "duel" in known_graphs()
    kind = find_kind("sway")
    assert kind is not None and kind.implementation is sway


def test_helpers_of_the_shipped_kinds_are_no_kinds() -> None:
    assert not [name for name in known_kinds() if name.startswith("_")]
    assert find_kind("_optimizers") is None
    assert known_graphs() == sorted(known_graphs())


def test_names_are_known_and_families_drawn_without_importing_a_kind() -> None:
    program = (
        "import sys\n"
        "from graphtrain.graph import Graph\n"
        "from graphtrain.graph.registry import family_of_node, known_graphs, known_kinds\n"
        "assert 'clip' in known_kinds() and 'fit' in known_graphs()\n"
        "assert family_of_node(Graph.load('fit').nodes['step']) == 'update'\n"
        "assert not [name for name in sys.modules if name.startswith('graphtrain.nodes') or name == 'torch']\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


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
