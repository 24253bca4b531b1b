"""The package that `writing-a-kind.md` describes: installed, its kind and its graph are found by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.execution import Block, read_blocks

PAGE = Path(__file__).parents[2] / "docs" / "writing-a-kind.md"

LOOK = """
import json
from graphtrain import Graph
from graphtrain.graph.registry import find_kind, known_graphs, known_kinds, known_overlays
graph = Graph.load("with_ema")
print(json.dumps([
    "averaging" in known_kinds(), "with_ema" in known_graphs(), find_kind("averaging").implementation.__module__,
    graph.nodes["averaging"].use, [str(problem) for problem in graph.check()],
    "lookahead" in known_overlays(), Graph.load("fit").overlay("lookahead").layers.names,
]))
"""


def the_block(blocks: list[Block], name: str) -> str:
    (text,) = (block.text for block in blocks if block.words == (name,))
    return text


@pytest.mark.full
def test_kind_and_graph_of_the_package_are_found(tmp_path: Path) -> None:
    blocks = read_blocks(PAGE)
    project = tomllib.loads(the_block(blocks, "pyproject.toml"))["project"]
    package, installed = tmp_path / "my_nodes", tmp_path / "my_nodes-1.dist-info"
    (package / "graphs").mkdir(parents=True)
    installed.mkdir()
    script = the_block(blocks, "train.py").partition("\n\n\ndef setup")[0]
    (package / "averages.py").write_text("\n".join(line for line in script.splitlines() if "from small" not in line))
    (package / "graphs" / "with_ema.toml").write_text(the_block(blocks, "with_ema.toml"))
    (package / "overlays").mkdir()
    (package / "overlays" / "lookahead.toml").write_text('format = 1\n[[edit]]\nset = "clip"\nmax_norm = 1.0\n')
    (installed / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = project["entry-points"]
    rows = [f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in groups[group].items()) for group in groups]
    (installed / "entry_points.txt").write_text("\n".join(rows))
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True, True, "my_nodes.averages", "averaging", [], True, ["lookahead"]]
