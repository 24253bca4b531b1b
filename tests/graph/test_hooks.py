"""Promise 2: hooks are nodes at named places: when each is called, in which order, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from graphtrain import EditError, Graph, node
from tests.graph.corpus import EVALUATE, FIT
from tests.world import cross_entropy, small_model, world

OF_TRAINING = ["on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_after_backward",
               "on_before_optimizer_step", "on_before_zero_grad", "on_train_batch_end", "on_train_epoch_end",
               "on_train_end"]  # fmt: skip
OF_FIT = [*OF_TRAINING, "on_validation_start", "on_validation_batch_start", "on_validation_batch_end",
          "on_validation_epoch_end", "on_validation_end"]  # fmt: skip


def hooked(graph: Graph, places: list[str], calls: list[str]) -> Graph:
    """A graph with two nodes at each place, which note that they are called."""
    for place in places:
        for suffix in ("", "_again"):

            @node(name=f"note_{place}{suffix}")
            def note(name: str = f"{place}{suffix}") -> None:
                calls.append(name)

            graph = graph.hook(place, note)
    return graph


class Batches:
    """Data that may promise more batches than it gives."""

    def __init__(self, promised: int, given: int) -> None:
        self.promised, self.given = promised, given

    def __len__(self) -> int:
        return self.promised

    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.ones(4, 6), torch.zeros(4, dtype=torch.long))] * self.given)


def train(graph: Graph, promised: int = 3, given: int = 3) -> None:
    edited = graph.set("finish", after="2 epochs").set("checkpoint", every="never")
    world(
        edited, model=small_model, training_step=cross_entropy, scheduler="none",
        data=lambda: Batches(promised, given), val_data=lambda: Batches(2, 2),
    ).trainer().run()  # fmt: skip


def twice(*names: str) -> list[str]:
    return [each for name in names for each in (name, f"{name}_again")]


def by_hand() -> list[str]:
    """The calls of two epochs of three batches in windows of two, each validated on two."""
    calls = twice("on_train_start")
    for _ in range(2):
        calls += twice("on_train_epoch_start")
        for batch in range(3):
            calls += twice("on_train_batch_start", "on_after_backward")
            calls += twice("on_before_optimizer_step", "on_before_zero_grad") if batch else []
            calls += twice("on_train_batch_end")
        calls += twice("on_train_epoch_end", "on_validation_start")
        calls += twice("on_validation_batch_start", "on_validation_batch_end") * 2
        calls += twice("on_validation_epoch_end", "on_validation_end")
    return calls + twice("on_train_end")


def test_every_hook_is_called_where_its_name_says_and_in_order() -> None:
    calls: list[str] = []
    graph = hooked(FIT.set("accumulate", every=2), OF_FIT, calls)
    assert graph.check() == []
    train(graph)
    assert calls == by_hand()


def test_there_is_no_call_of_a_batch_without_one() -> None:
    calls: list[str] = []
    train(hooked(FIT, ["on_train_batch_end"], calls), given=2)
    assert calls == twice("on_train_batch_end") * 4


OF_EVALUATION = ["start", "batch_start", "batch_end", "epoch_end"]


@pytest.mark.parametrize(
    ("graph", "places"),
    [
        ("fit", OF_FIT),
        ("evaluate", [f"on_validation_{name}" for name in OF_EVALUATION]),
        ("test", [f"on_test_{name}" for name in OF_EVALUATION]),
        ("predict", [f"on_predict_{name}" for name in OF_EVALUATION]),
        ("manual", ["on_train_batch_start", "on_train_batch_end", "on_train_end"]),
        ("lbfgs", ["on_train_batch_end", "on_train_end"]),
    ],
)
def test_a_graph_has_places_that_can_be_used(graph: str, places: list[str]) -> None:
    assert hooked(Graph.load(graph), places, []).check() == []


@pytest.mark.parametrize(
    ("graph", "place", "message"),
    [
        (FIT, "on_train_batch_ends", "the graph has no place `on_train_batch_ends`"),
        (EVALUATE, "on_train_batch_end", "the graph has no place `on_train_batch_end`"),
        (EVALUATE, "on_train_end", "the graph has no place `on_train_end`"),
        (FIT, "on_test_start", "the graph has no place `on_test_start`"),
    ],
)
def test_what_is_no_place_is_refused(graph: Graph, place: str, message: str) -> None:
    with pytest.raises(EditError, match=message):
        graph.hook(place, "choice")
    assert hooked(FIT.rename("train_batch", "pair"), ["on_train_end"], []).check() == [], "it has a step"
