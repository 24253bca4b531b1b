"""The mailbox of the loop, as kinds outside of the package use it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from graphtrain import Graph, UsageError, node
from graphtrain.kind.declaration import Ask
from graphtrain.program.requests import Requests, Return, SavePolicy, Saves
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


# ---- the mailbox itself


def test_a_request_of_one_process_is_posted_and_one_of_several_ranks_waits_until_they_agree() -> None:
    alone, ranked = Requests(), Requests(agrees=True)
    for requests in (alone, ranked):
        for request in ("stop", "save", "stop"):
            requests.ask(request)  # type: ignore[arg-type]
    assert (alone.pending, ranked.pending) == ({"stop", "save"}, set())
    assert alone.take_asked() == {}
    assert ranked.take_asked() == {"stop": 2, "save": 1} and ranked.take_asked() == {}
    alone.clear()
    assert alone.pending == set() and not alone.take("stop")


def test_one_process_is_busy_by_itself_and_one_of_several_ranks_by_what_they_agreed_on() -> None:
    class Writing(Saves):
        def is_writing(self) -> bool:
            return True

    alone, ranked = Requests(), Requests(agrees=True)
    assert (alone.is_busy(), ranked.is_busy()) == (False, False)
    alone.saves = ranked.saves = Writing()
    assert (alone.is_busy(), ranked.is_busy()) == (True, False)
    ranked.is_any_busy = True
    assert ranked.is_busy() is True
    none = Saves()
    assert (none.returns, none.is_writing(), [*none.saved_by()], none.outcomes()) == (0, False, [], (0, 0))


def test_a_checkpoint_is_saved_as_the_last_request_says() -> None:
    requests = Requests()
    assert requests.policy == SavePolicy("async", "stop", slim=False)
    requests.running = lambda: "checkpoint"
    requests.save(SavePolicy(if_failed="continue", slim=True), {"loss": 0.5, "error": 1.0})
    assert (requests.askers, requests.pending) == ({"checkpoint"}, {"save"})
    requests.running = lambda: "ask"
    requests.save(values={"error": None, "accuracy": 0.9})
    assert requests.values == {"loss": 0.5, "error": None, "accuracy": 0.9}, "of both nodes, each as it is now"
    assert requests.policy == SavePolicy("async", "continue", slim=True)
    assert requests.sync_policy == SavePolicy("sync", "stop", slim=True)
    assert requests.askers == {"checkpoint", "ask"}
    requests.saved()
    assert (requests.askers, requests.values, requests.pending) == (set(), {}, set())


def test_a_return_voids_all_requests_but_a_stop() -> None:
    requests = Requests()
    assert requests.take_return() is None
    for request in ("stop", "recorded", "pause"):
        requests.post(request)  # type: ignore[arg-type]
    requests.save()
    assert requests.take_return() is None and "save" in requests and requests.askers == {""}
    asked = Return("rollback", "checkpoint", ("rollback",))
    requests.go_back(asked)
    assert "return" in requests
    assert requests.take_return() == asked and requests.take_return() is None
    assert (requests.pending, requests.askers) == ({"stop", "pause"}, set())
