"""Promise 7: a run of the graph is the same loop written by hand, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from graphtrain import Graph, Node
from tests.world import OPTIMIZERS, SCHEDULERS, assert_as_by_hand, small_fit, small_model, world

HALVES = {"validate": (3, 5)}  # after which of five batches
fit = partial(small_fit, validate_every="0.5 epochs")

# What a user does: arguments of the world, and what the loop by hand does.
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing but steps": ({"graph": fit(accumulate=1, clip=None)}, {"accumulate": 1, "clip": None}),
    "clip": ({"graph": fit(accumulate=1, clip=0.5)}, {"accumulate": 1, "clip": 0.5}),
    "a short last window": ({"graph": fit(accumulate=4)}, {"accumulate": 4}),
    "a last window that is scaled": ({"graph": fit(accumulate=3), "overlays": ["scaled"]},
                                     {"accumulate": 3, "window": "scaled"}),
    "a window that is carried into the next epoch": ({"graph": fit(accumulate=3), "overlays": ["carry"]},
                                                     {"accumulate": 3, "window": "carry"}),
    "a last window that is dropped": ({"graph": fit(accumulate=4), "overlays": ["drop"]},
                                      {"accumulate": 4, "window": "drop"}),
    "three epochs": ({"graph": fit(epochs=3)}, {"epochs": 3}),
    "a plain model": ({"model": small_model}, {}),
    "torch's loader": ({"data": "DataLoader"}, {}),
    "a loader with a generator of its own": ({"data": "own generator"}, {}),
    "a list of batches": ({"data": "list"}, {}),
    "data with a state": ({"data": "with state"}, {}),
    "worker processes": ({"workers": 2}, {}),
    **{name: ({"optimizer": name}, {}) for name in OPTIMIZERS},
    **{f"scheduler: {name}": ({"scheduler": name}, {}) for name in SCHEDULERS},
}  # fmt: skip
SECOND_TIER = {"worker processes", "three epochs", *list(OPTIMIZERS)[1:], "scheduler: linear", "scheduler: lambda"}


@pytest.mark.second(10)
@pytest.mark.first(6)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] if name in SECOND_TIER else []) for name in ROWS]
)
def test_as_by_hand(name: str) -> None:
    arguments, how = ROWS[name]
    assert_as_by_hand(world(**{"graph": fit(), **arguments}), **{**HALVES, **how})


def test_a_loss_that_is_not_divided_is_noticed() -> None:
    """The mutation: the window is taken for another number."""
    graph = fit(accumulate=4).set("train_batch", reads={"window": "clip.norm_type"})
    with pytest.raises(AssertionError):
        assert_as_by_hand(world(graph), **HALVES, accumulate=4)


def test_a_loss_is_divided_by_the_one_window_of_its_graph_that_nobody_names() -> None:
    graph: Graph = fit(accumulate=4)
    graph = replace(graph, nodes={**graph.nodes, "train_batch": Node("train_batch", "train_batch")})
    assert graph.check() == []
    assert_as_by_hand(world(graph), **HALVES, accumulate=4)
