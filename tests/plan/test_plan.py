"""What a plan has of a graph: parameters, slots that an epoch forgets, and slots that guards read."""

from __future__ import annotations

import pytest

from graphtrain import Graph
from graphtrain.plan.flow import Flow, changers
from graphtrain.plan.plan import Plan
from graphtrain.plan.slots import Slots

FIT = Graph.load("fit")


# With an unknown kind, a parameter that is an expression, a slot of a step function, and a trigger at the end.
EDITED = (
    FIT.insert("odd", "of_another_package", after="step")
    .set("accumulate", reads={"every": "1 + step.steps // 7"})
    .set("train_batch", writes={"seen": "seen"})
    .set("log", every=["1 epochs", "end"])
    .set("checkpoint", best="val/loss")
)
_MAY_ACT = {"odd", "train_batch", "validate", "zero_grad"}
_MAY_RECORD = {"end_epoch", "finish", "log", "odd", "train_batch", "validate"}


@pytest.mark.parametrize(
    ("guard", "names"),
    [
        ("next_batch.last", {"next_batch"}),
        ("next_batch.last and step.steps > 3", {"next_batch", "step"}),
        ("accumulate.count > 1", _MAY_ACT),
        ("accumulate.window > 1", _MAY_ACT),
        ("accumulate.every > 1", {"step"}),
        ("clip.max_norm > 1", set()),
        ("validate.runs > 1", {"validate"}),
        ("validate/next_batch.batches > 1", {"validate"}),
        ("odd.x > 1", {"odd"}),
        ("seen > 2", {"train_batch"}),
        ("loss > 2", {"train_batch"}),
        ("schedule.due", {"schedule", "step"}),
        ("finish.due", {"next_batch"}),  # it keeps no state of its own
        ("log.due", {"log", "next_batch", "step", *_MAY_ACT}),
        ("checkpoint.improved", {"checkpoint", *_MAY_RECORD}),
        ("checkpoint.due", {"checkpoint", "next_batch", *_MAY_RECORD}),
    ],
)
def test_what_may_change_a_guard(guard: str, names: set[str]) -> None:
    plan = Plan(EDITED)
    assert changers(plan, plan.main, plan.main.parse(guard)) == names


def test_an_epoch_forgets_what_step_functions_return_unless_it_is_kept() -> None:
    graph = FIT.set("train_batch", writes={"seen": "seen", "state": "hidden"}, keep=["seen"])
    assert Plan(graph).main.forgotten == {"hidden"}
    assert Plan(FIT).main.forgotten == set()


def test_a_node_of_a_kind_that_is_not_known_has_no_parameters() -> None:
    plan = Plan(FIT.insert("x", "of_another_package", after="step"))
    assert dict(plan.by_path["x"].parameters) == {}
    assert plan.by_path["clip"].parameters["max_norm"] == float("inf")


def test_a_guard_reads_slots() -> None:
    graph = FIT.set("train_batch", writes={"seen": "seen"}).guard("log_due", "log.due and seen > 2")
    slots = Slots(Flow(Plan(graph)))
    (decide,) = [point for point in slots.guards if point.plan_node is not None and point.plan_node.path == "decide"]
    assert slots.guards[decide] == slots.bits(["seen"])
