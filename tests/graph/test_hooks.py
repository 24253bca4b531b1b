"""Hooks are nodes at named places: when each is called, in which order, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphtrain import EditError, Graph, Trainer, node
from graphtrain.graph.hooks import HOOKS, hooks_of

OF_FIT = [name for name in HOOKS if "test" not in name and "predict" not in name]


def hooked(graph: Graph, places: list[str], calls: list[str]) -> Graph:
    """A graph with two nodes at each place, which note that they are called."""
    for place in places:
        for suffix in ("", "_again"):

            @node(name=f"note_{place}{suffix}")
            def note(name: str = f"{place}{suffix}") -> None:
                calls.append(name)

            graph = graph.hook(place, note)
    return graph


def train(graph: Graph, batches: int = 3, data: Any = None) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    Trainer(
        graph.set("finish", after="2 epochs").set("checkpoint", every="never"),
        device="cpu",
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        train_data=[torch.ones(4, 2)] * batches if data is None else data,
        val_data=[torch.ones(4, 2)] * 2,
        training_step=lambda model, batch: model(batch).square().mean(),
    ).run()


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
    graph = hooked(Graph.load("fit").set("accumulate", every=2), OF_FIT, calls)
    assert graph.check() == []
    train(graph)
    assert calls == by_hand()


def test_there_is_no_call_of_a_batch_without_one() -> None:
    """Data that promises more batches than it gives ends its epoch without a batch."""

    class Short:
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Any:
            return iter([torch.ones(4, 2)] * 2)

    calls: list[str] = []
    train(hooked(Graph.load("fit"), ["on_train_batch_end"], calls), data=Short())
    assert calls == twice("on_train_batch_end") * 4


@pytest.mark.parametrize("graph", ["fit", "evaluate", "test", "predict", "manual", "lbfgs"])
def test_a_graph_has_places_that_can_be_used(graph: str) -> None:
    loaded = Graph.load(graph)
    places = [name for name, _, _ in hooks_of(loaded)]
    assert places
    assert hooked(loaded, places, []).check() == []


def test_in_toml_as_in_python() -> None:
    text = 'format = 1\nextends = "fit"\n[[edit]]\nhook = "on_train_batch_end"\nuse = "choice"\nname = "here"\n'
    assert (
        Graph.loads(text).nodes.keys()
        == Graph.load("fit").hook("on_train_batch_end", "choice", name="here").nodes.keys()
    )
    assert Graph.loads(text).edges == Graph.load("fit").hook("on_train_batch_end", "choice", name="here").edges


@pytest.mark.parametrize(
    ("graph", "place", "message"),
    [
        ("fit", "on_train_batch_ends", "there is no place `on_train_batch_ends`"),
        ("evaluate", "on_train_batch_end", "the graph has no place `on_train_batch_end`"),
        ("fit", "on_test_start", "the graph has no place `on_test_start`"),
    ],
)
def test_what_is_no_place_is_refused(graph: str, place: str, message: str) -> None:
    with pytest.raises(EditError, match=message):
        Graph.load(graph).hook(place, "choice")


def test_a_graph_trains_if_it_has_a_batch_to_train_on_or_a_step() -> None:
    fit = Graph.load("fit")
    for graph, trains in ((fit, True), (fit.rename("train_batch", "pair"), True), (Graph.load("evaluate"), False)):
        assert ("on_train_end" in {name for name, _, _ in hooks_of(graph)}) is trains
