"""Promise 1: each setting of `graphtrain.fit` is one edit of the graph `fit`."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import graphtrain
from graphtrain import Graph, UsageError

FIT_GRAPH = Graph.load("fit")

# Setting, value, and the same as edits.
EDITS: list[tuple[dict[str, Any], Graph]] = [
    ({"epochs": 3}, FIT_GRAPH.set("finish", after="3 epochs")),
    ({"epochs": 0.5}, FIT_GRAPH.set("finish", after="0.5 epochs")),
    ({"steps": 100}, FIT_GRAPH.set("finish", after="100 steps")),
    ({"epochs": 3, "steps": 100}, FIT_GRAPH.set("finish", after=["3 epochs", "100 steps"])),
    ({"accumulate": 4}, FIT_GRAPH.set("accumulate", every=4)),
    ({"clip": 1.0}, FIT_GRAPH.set("clip", max_norm=1.0)),
    ({"precision": "bf16-mixed"}, FIT_GRAPH.set("train_batch", precision="bf16-mixed")),
    ({"precision": "16-mixed"}, FIT_GRAPH.overlay("fp16")),
    ({"compile": True}, FIT_GRAPH.set("train_batch", compile=True)),
    ({"validate_every": "500 steps"}, FIT_GRAPH.set("validate", every="500 steps")),
    ({"schedule_every": "1 epochs"}, FIT_GRAPH.set("schedule", every="1 epochs")),
    ({"log_every": "10 steps"}, FIT_GRAPH.set("log", every="10 steps")),
    ({"save_every": ["1 epochs", "5 minutes"]}, FIT_GRAPH.set("checkpoint", every=["1 epochs", "5 minutes"])),
    ({"keep": 5}, FIT_GRAPH.set("checkpoint", keep=5)),
    ({"best": "val/loss"}, FIT_GRAPH.set("checkpoint", best="val/loss")),
    ({"ema": 0.99}, FIT_GRAPH.overlay("ema").set("ema", decay=0.99)),
    ({"early_stop": 5}, FIT_GRAPH.overlay("early_stop").set("early_stop", patience=5)),
    ({"overlays": ["carry"], "ema": 0.9}, FIT_GRAPH.overlay("carry", "ema").set("ema", decay=0.9)),
    ({"overlays": "carry"}, FIT_GRAPH.overlay("carry")),
    ({}, FIT_GRAPH),
]


@pytest.mark.parametrize(("settings", "graph"), EDITS, ids=[str(settings) for settings, _ in EDITS])
def test_a_setting_is_an_edit(settings: dict[str, Any], graph: Graph) -> None:
    assert graphtrain.fit(**settings) == graph


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epoch": 3}, "unexpected keyword argument 'epoch'\n  hint: did you mean `epochs`?"),
        ({"max_epochs": 3}, "unexpected keyword argument 'max_epochs'\n  hint: that is `epochs` here"),
        ({"warm_up": 3}, "unexpected keyword argument 'warm_up'\n  hint: it takes epochs, steps, accumulate,"),
        ({"epochs": "3"}, 'fit: epochs: expected a number, got "3"'),
        ({"epochs": True}, "fit: epochs: expected a number, got true"),
        ({"overlays": 3}, "fit: overlays: expected a string or a path or a list, got 3"),
    ],
)
def test_another_setting_is_named_with_the_one_that_is_meant(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        graphtrain.fit(**settings)
    assert message in str(caught.value)


def test_every_setting_is_tried() -> None:
    declared = {name for name, each in inspect.signature(graphtrain.fit).parameters.items() if each.kind == 3}
    assert {name for settings, _ in EDITS for name in settings} == declared
