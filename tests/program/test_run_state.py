"""The sections of the state of a run: what each captures, and what it refuses to restore."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph
from graphtrain.errors import CheckpointError
from graphtrain.program.run_state import SECTIONS, Exemptions
from graphtrain.program.stateful_objects import StatefulObjects
from graphtrain.report.recorder import Recorder
from tests.program.test_bind import FIT, bound


class Counter:
    """An object with state."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Broken(Counter):
    """An object whose state cannot be taken."""

    def state_dict(self) -> dict[str, Any]:
        raise ValueError("no")


def objects(graph: Graph = FIT, made: dict[str, str] | None = None, **resources: Any) -> StatefulObjects:
    return StatefulObjects(bound(graph, **resources), resources, Recorder(lambda: (0, 0.0)), made or {})


def restored(run: StatefulObjects, section: str, saved: Any, **exempt: Any) -> list[str]:
    """The lines that restoring a section gives."""
    return [*(SECTIONS[section].restore(run, saved, Exemptions(**exempt)) or ())]


def captured(run: StatefulObjects, section: str) -> dict[str, Any]:
    return {**SECTIONS[section].capture(run, set())}


MISSING = {"counter": {"count": 7}, "gone": {}, "absent": {}}


@pytest.mark.parametrize(
    ("saved", "fresh", "message"),
    [
        (MISSING, [], "the checkpoint has the state of `absent`, which was not supplied now"),
        (MISSING, ["absent"], "the checkpoint has the state of `gone`, which was not supplied now"),
        ({}, [], "the checkpoint has no state of `counter`, which is new"),
        ({"counter": {}}, [], "the state of `counter` no longer fits: 'count'"),
    ],
)
def test_state_that_does_not_fit_the_resources_is_refused(saved: Any, fresh: list[str], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        restored(objects(counter=Counter()), "resources", saved, fresh=fresh)
    hint = "make it as in the saved run; or begin another run, with another --run-dir" * ("no longer fits" in message)
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert restored(objects(counter=Counter()), "resources", saved, fresh=["counter", "gone", "absent"]) == []


def test_a_resource_whose_state_cannot_be_taken_is_named() -> None:
    with pytest.raises(CheckpointError) as caught:
        captured(objects(counter=Broken()), "resources")
    assert caught.value.message == "`counter` cannot be saved: its state_dict raised ValueError('no')"


def test_a_group_that_is_missing_is_named_with_what_to_do() -> None:
    model = nn.Linear(1, 1)
    one = torch.optim.SGD([model.weight], lr=0.1)
    two = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias]}], lr=0.1)
    hint = "a group that was added during training is missing after `setup`: add it in `setup`"
    otherwise = "make it as in the saved run; or begin another run, with another --run-dir"
    for optimizer, other, expected in ((one, two, hint), (two, one, otherwise)):
        with pytest.raises(CheckpointError) as caught:
            restored(objects(optimizer=optimizer), "resources", {"optimizer": other.state_dict()})
        assert caught.value.message == (
            "the state of `optimizer` no longer fits: loaded state dict has a different number of parameter groups"
        )
        assert caught.value.hint == expected


def test_a_generator_that_is_gone_is_named_with_what_to_do() -> None:
    generator = torch.Generator().manual_seed(5)
    run = objects(train_data=generator)
    saved = captured(run, "random")
    assert saved["generators"].keys() == {"train_data/0"}
    drawn = torch.rand((), generator=generator)
    restored(run, "random", saved)
    assert torch.rand((), generator=generator) == drawn
    with pytest.raises(CheckpointError) as caught:
        restored(objects(train_data=[1]), "random", saved)
    assert (caught.value.message, caught.value.hint) == (
        "the checkpoint has the state of a random generator of `train_data`, which has no such one now",
        'make it again in `setup`; or, if this is other data on purpose: Trainer(..., not_state=["train_data"])',
    )
