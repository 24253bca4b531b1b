"""The past of the run for a node: to which checkpoint it may return, how often, and which batches were the last."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from graphtrain import Graph, UsageError
from graphtrain.program.history import History
from graphtrain.program.requests import Requests, Saves
from tests.program.test_bind import FIT, bound

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
