"""The mailbox of the loop, as kinds outside of the package use it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphtrain import Graph, UsageError, node
from graphtrain.kind.declaration import Ask
from graphtrain.program.visits import StepRequests
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


def test_ranks_tell_the_requests_of_many_nodes_apart() -> None:
    nodes = [
        SimpleNamespace(path=f"n{number}", fields={"asking": ""}, is_set_up_with=lambda name: name == "asks")
        for number in range(33)
    ]
    agreement: Any = SimpleNamespace(asked=0)
    program: Any = SimpleNamespace(nodes=nodes)
    requests = StepRequests(program, agreement)
    for asking in nodes[:32]:
        for ask in Ask:
            agreement.asked = 0
            requests.of(asking)(ask)  # type: ignore[arg-type]
            agreement.learn(agreement.asked)
            assert [each.path for each in nodes if each.fields["asking"]] == [asking.path]
            assert asking.fields["asking"] == ask.name
            asking.fields["asking"] = ""
    with pytest.raises(UsageError, match="so may 32 nodes before it"):
        requests.of(nodes[32])(Ask.STOP)  # type: ignore[arg-type]
