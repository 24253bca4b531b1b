"""The sections of the state of a run: what each captures, and what it refuses to restore."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from graphtrain import Graph, Trigger, node, progress
from graphtrain.errors import CheckpointError
from graphtrain.program.run_state import SECTIONS, Exemptions
from graphtrain.program.stateful_objects import StatefulObjects
from graphtrain.report.recorder import Recorder
from graphtrain.state.baseline import Baseline
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


# ---- resources


def test_the_state_of_resources_is_captured_and_restored_by_name() -> None:
    run = objects(counter=Counter(3), other=Counter(4), data=[1])
    assert captured(run, "resources") == {"counter": {"count": 3}, "other": {"count": 4}}
    assert restored(run, "resources", {"counter": {"count": 7}, "other": {"count": 8}}, fresh=["other"]) == []
    assert captured(run, "resources") == {"counter": {"count": 7}, "other": {"count": 4}}


def test_a_copy_that_is_new_is_made_of_what_was_loaded() -> None:
    run = objects(made={"average": "counter"}, counter=Counter(3), average=Counter(4))
    assert restored(run, "resources", {"counter": {"count": 7}}) == ["average new, a copy of counter"]
    assert captured(run, "resources") == {"counter": {"count": 7}, "average": {"count": 7}}
    assert restored(run, "resources", {"counter": {"count": 9}}, fresh=["average"]) == []
    assert captured(run, "resources") == {"counter": {"count": 9}, "average": {"count": 7}}


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


def test_a_resource_whose_state_cannot_be_taken_is_named() -> None:
    with pytest.raises(CheckpointError) as caught:
        captured(objects(counter=Broken()), "resources")
    assert caught.value.message == "`counter` cannot be saved: its state_dict raised ValueError('no')"


def test_what_rewire_has_supplied_is_reported_where_it_changes_unseen() -> None:
    task, counter = SimpleNamespace(x=[1]), Counter()
    former, run = objects(counter=counter), objects(counter=counter, task=task)
    former.track(Baseline({"counter": counter}))
    run.track(Baseline({"counter": counter}), former)
    task.x.append(2)
    captured(run, "reachable")
    assert run.unknown == ["task.x has changed since `rewire` supplied it, and is in no `state_dict`"]


# ---- random generators


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


# ---- progress


def counting() -> Graph:
    @node(name="tally")
    class Tally:
        """Count."""

        every: Trigger = Trigger("1 steps")
        total: int = progress(0)
        name: str = progress("")
        seen: list[int] = progress([])
        hours: float = progress(0.0, in_digest=False)

        def __call__(self) -> None: ...

    return FIT.insert("tally", Tally, after="step")


def test_the_progress_of_nodes_is_captured_and_restored_by_field() -> None:
    run = objects(counting())
    tally = run.program.by_path["tally"].instance
    tally.total = 3
    saved = captured(run, "progress")
    assert saved["tally"] == {"total": 3, "name": "", "seen": [], "hours": 0.0, "runs": 0, "fired": {}}
    assert "clip" not in saved and "next_batch" in saved, "one that is bypassed has none"
    tally.total = 9
    assert restored(run, "progress", saved) == []
    assert tally.total == 3


@pytest.mark.parametrize(
    ("saved", "replaced", "lines", "fields"),
    [
        ({"total": 1}, [], ["tally.name new", "tally.seen new", "tally.runs new", "tally.fired new"], (1, "", [])),
        ({"total": 1, "old": 2, "gone": 3}, [],
         ["tally.gone left out", "tally.old left out", "tally.name new", "tally.seen new", "tally.runs new",
          "tally.fired new"], (1, "", [])),
        # The kind is another one: only values of the same type are taken.
        ({"total": 1.5, "name": 3, "seen": [4], "runs": True, "fired": {}}, ["tally"],
         ["tally.name left out", "tally.runs left out"], (1.5, "", [4])),
        ({"total": 1.5, "name": 3, "seen": [4], "runs": 2, "fired": {}}, [], [], (1.5, 3, [4])),
    ],
)  # fmt: skip
def test_progress_that_does_not_fit_is_left_out_and_said(
    saved: Any, replaced: list[str], lines: list[str], fields: Any
) -> None:
    run = objects(counting())
    assert restored(run, "progress", {"tally": saved, "elsewhere": {"runs": 1}}, replaced=replaced) == lines
    tally = run.program.by_path["tally"].instance
    assert (tally.total, tally.name, tally.seen) == fields


def test_a_kind_that_replaces_its_fields_as_it_takes_its_state_is_refused() -> None:
    @node(name="replacing")
    class Replacing:
        """Take its state as a whole."""

        def state_dict(self) -> dict[str, Any]:
            return {**vars(self)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.__dict__ = state

        def __call__(self) -> None: ...

    run = objects(FIT.insert("replacing", Replacing, after="step"))
    saved = captured(run, "progress")
    for act in (lambda: restored(run, "progress", saved), lambda: captured(run, "progress")):
        with pytest.raises(ValueError, match="replacing: the kind `replacing` replaced its `__dict__`, in which its "):
            act()


# ---- slots


def test_slots_that_are_alive_are_captured_and_those_that_exist_restored() -> None:
    run = objects()
    program = run.program
    program.slots[program.slot_index("loss")], program.slots[program.slot_index("samples")] = 0.5, 4
    alive = {program.slot_index("loss")}
    assert SECTIONS["slots"].capture(run, alive) == {"loss": 0.5}
    assert restored(run, "slots", {"samples": 9, "of_another_graph": 1}) == []
    assert [program.slots[program.slot_index(name)] for name in ("loss", "samples")] == [0.5, 9]
    program.slots[program.slot_index("loss")] = nn.Linear(1, 1)
    with pytest.raises(CheckpointError) as caught:
        run.capture(alive)
    assert caught.value.message == (
        "the slot `loss` cannot be saved: nothing is known that could make its Linear again"
    )
    assert caught.value.hint == ("supply it as a resource, which the node changes in place")
