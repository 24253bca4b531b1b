"""A kind of the user asks for a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graphtrain import Graph, node
from tests.trainer.test_trainer import tiny


def test_a_kind_asks_for_a_checkpoint(tmp_path: Path) -> None:
    @node(name="ask")
    class Ask:
        """Ask for a checkpoint."""

        def setup(self, checkpoints: Any) -> None:
            self._checkpoints = checkpoints

        def __call__(self) -> None:
            self._checkpoints.save()

    graph = Graph.load("fit").set("finish", after="2 steps").set("checkpoint", every="never", keep=100)
    tiny(graph.insert("ask", Ask, after="step"), run_dir=tmp_path).run()
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["000001-step-1", "000003-step-2"], "one a step, and that of the end in the place of the last"
