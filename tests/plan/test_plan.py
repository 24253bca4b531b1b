"""What a plan has of a graph: parameters, slots that an epoch forgets, and slots that guards read."""

from __future__ import annotations

from graphtrain import Graph
from graphtrain.plan.flow import Flow
from graphtrain.plan.plan import Plan
from graphtrain.plan.slots import Slots

FIT = Graph.load("fit")


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
