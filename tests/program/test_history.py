"""The past of the run for a node: to which checkpoint it may return, how often, and which batches were the last."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from graphtrain import Graph, UsageError
from graphtrain.errors import NotFiniteError
from graphtrain.program.history import History
from graphtrain.program.requests import Requests, Return, Saves
from tests.program.test_bind import FIT, around, bound

FURTHER = FIT.insert("near", "choice", after="step")


class Saved(Saves):
    """Checkpoints that some nodes have requested, after a number of returns."""

    def __init__(self, paths: Collection[str], times: int) -> None:
        self._paths, self._times = paths, times

    @property
    def returns(self) -> int:
        return self._times

    def saved_by(self) -> Collection[str]:
        return self._paths


def history(graph: Graph, path: str, *saved_by: str, times: int = 0) -> tuple[History, Requests]:
    program, requests = bound(graph), Requests()
    requests.saves = Saved(saved_by, times)
    return History(program.by_path[path], program, requests), requests


@pytest.mark.parametrize(
    ("graph", "path", "arguments", "asked"),
    [
        (FURTHER, "near", {}, Return("near", "checkpoint", ("near",))),
        (FURTHER, "near", {"to": "log"}, None),  # it has saved nothing
        (FURTHER, "near", {"keep": ["clip", "step"]}, Return("near", "checkpoint", ("clip", "step"))),
        (FURTHER, "near", {"keep": []}, Return("near", "checkpoint", ())),
        (FURTHER, "near", {"most": 3}, Return("near", "checkpoint", ("near",))),
        (FURTHER, "validate/eval_batch", {}, Return("validate/eval_batch", "checkpoint", ("validate/eval_batch",))),
        (around(FURTHER), "inner/near", {}, None),
    ],
)
def test_a_return_goes_to_what_a_node_of_its_graph_or_around_it_has_saved(
    graph: Graph, path: str, arguments: dict[str, Any], asked: Return | None
) -> None:
    past, requests = history(graph, path, "checkpoint", times=2)
    assert past.restore(**arguments) is (asked is not None)
    assert requests.take_return() == asked


@pytest.mark.parametrize(("times", "words"), [(1, "once"), (2, "2 times")])
def test_a_run_returns_at_most_so_often(times: int, words: str) -> None:
    past, requests = history(FURTHER, "near", "checkpoint", times=times)
    with pytest.raises(NotFiniteError) as caught:
        past.restore(most=times)
    assert caught.value.message == (
        "`near` asks the run to go back to what `checkpoint` has saved, and it has gone back "
        f"{words}, of at most {times}"
    )
    assert caught.value.hint == (
        "resume with a smaller learning rate, or with clipping; or let it leave out more, and raise the limit"
    )
    assert requests.take_return() is None


@pytest.mark.parametrize(
    ("path", "arguments", "name", "hint"),
    [
        ("near", {"to": "checkpoints"}, "checkpoints", "did you mean `checkpoint`?"),
        ("near", {"keep": ["stp"]}, "stp", "did you mean `step`?"),
        # What is kept is near, and not around it.
        ("validate/eval_batch", {"keep": ["step"]}, "step",
         "known: begin_evaluation, end_evaluation, eval_batch, next_batch"),
    ],
)  # fmt: skip
def test_a_node_that_is_not_there_is_named(path: str, arguments: dict[str, Any], name: str, hint: str) -> None:
    past, _ = history(FURTHER, path, "checkpoint")
    with pytest.raises(UsageError) as caught:
        past.restore(**arguments)
    assert caught.value.message == f"`{path}` names `{name}`, and there is no such node in its graph"
    assert caught.value.hint == hint


def test_the_last_batches_of_the_epoch() -> None:
    program = bound(FURTHER)
    past = History(program.by_path["near"], program, Requests())
    fetched = program.by_path["next_batch"].instance
    fetched.epoch, fetched.epoch_batches = 3, 5
    last = fetched.batch_index
    assert past.batches() == [[3, last]]
    assert past.batches(3) == [[3, last - 2], [3, last - 1], [3, last]]
    assert past.batches(99) == [[3, number] for number in range(last + 1)]


def test_a_graph_that_counts_no_batches_has_none() -> None:
    graph = Graph("uncounted", FIT.start, FIT.nodes, FIT.edges, FIT.guards)
    for each in (graph, graph.clock("batches", "decide.runs")):
        past, _ = history(each, "decide")
        with pytest.raises(UsageError) as caught:
            past.batches()
        assert caught.value.message == (
            "`decide` asks which batch of which epoch it is, and nothing counts them in its graph"
        )
        assert caught.value.hint == 'let the clock count them, as in batches = "next_batch.batches"'
