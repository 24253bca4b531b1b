"""The meaning of names: what a graph trains, which types its fields have, and what an expression can read."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any, Literal

import pytest

from graphtrain import Edge, Graph, Node, Trigger
from graphtrain.kind.parameter import Above
from graphtrain.plan.scope import Scope, field_type, is_countable, named_by, readable_fields, reads_of, value_type

FIT = Graph.load("fit")
EVALUATE = Graph.load("evaluate")
UNKNOWN = FIT.insert("odd", "of_another_package", after="step")


def around(body: Graph, **units: str) -> Graph:
    """A graph with one node, which has this body."""
    nodes = {"inner": Node("inner", "nested", body=body)}
    return Graph("around", "inner", nodes, {"inner": (Edge("end"),)}, {}, units)


def without_clock(graph: Graph) -> Graph:
    return Graph(graph.name, graph.start, graph.nodes, graph.edges, graph.guards, {})


@pytest.mark.parametrize(
    ("graph", "steps", "counts_training"),
    [
        (FIT, True, True),
        (EVALUATE, False, False),
        (FIT.remove("step"), False, False),
        (around(FIT), False, False),  # the training is that of the body
        (around(without_clock(FIT)), True, False),
        (around(without_clock(FIT), steps="inner/step.steps"), True, True),
        (around(without_clock(FIT), epochs="inner/next_batch.epochs"), True, True),
        (around(without_clock(FIT), visits="inner.runs"), True, False),
        (around(EVALUATE, steps="inner.runs"), False, False),
        (UNKNOWN, True, True),
    ],
)
def test_a_graph_trains_if_a_node_steps_or_a_body_that_does_not_count_that(
    graph: Graph, steps: bool, counts_training: bool
) -> None:
    assert (Scope(graph).steps, Scope(graph).counts_training) == (steps, counts_training)


@pytest.mark.parametrize(
    ("annotation", "sort"),
    [
        (Trigger, "trigger"),
        (Trigger | None, "trigger"),
        (bool, "boolean"),
        (int, "integer"),
        (int | None, "integer"),
        (Annotated[int, Above(0)], "integer"),
        (Annotated[int, Above(0)] | None, "integer"),
        (float, "number"),
        (Fraction, "number"),
        (int | float, "number"),
        (str, "string"),
        (Any, "unknown"),
        (Literal["a", "b"], "string"),
        (Literal[1, 2], "integer"),
        (Literal[1, "a"], "other"),
        (int | str, "other"),
        (list[int], "other"),
        (dict, "other"),
    ],
)
def test_the_sort_of_a_type(annotation: Any, sort: str) -> None:
    assert value_type(annotation) == sort


@pytest.mark.parametrize(
    ("node", "field", "sort", "countable"),
    [
        ("step", "steps", "integer", True),
        ("next_batch", "epochs", "number", True),
        ("next_batch", "last", "boolean", False),
        ("next_batch", "limit", "number", False),
        ("next_batch", "epoch_length", "integer", True),
        ("next_batch", "length", "integer", False),  # it may be None
        ("validate", "every", "trigger", False),
        ("validate/next_batch", "batches", "integer", True),
        ("step", "nothing", None, False),
        ("odd", "anything", "unknown", True),
        ("nowhere", "anything", "unknown", True),
        ("step/inside", "anything", "unknown", True),
    ],
)
def test_the_type_of_a_field_and_whether_a_clock_can_count_it(
    node: str, field: str, sort: str | None, countable: bool
) -> None:
    scope = Scope(UNKNOWN)
    assert (field_type(scope, node, field), is_countable(scope, node, field)) == (sort, countable)


def test_an_expression_reads_fields_and_parameters_but_no_triggers() -> None:
    scope = Scope(UNKNOWN)
    assert readable_fields(scope, "log") == ["runs", "due"]
    assert readable_fields(scope, "clip") == ["runs", "max_norm", "norm_type"]
    assert readable_fields(scope, "odd") == readable_fields(scope, "nowhere") == []
    graph = UNKNOWN.set("odd", reads={"x": "step.steps"}).set("clip", reads={"max_norm": "loss", "optimizer": "own"})
    graph = graph.set("validate", reads={"val_data": "own"})
    expressions = {name: Scope(graph).expressions(node) for name, node in graph.nodes.items()}
    assert {name: names for name, names in expressions.items() if names} == {"clip": ["max_norm"]}


def test_what_a_graph_reads_has_the_names_of_that_graph() -> None:
    graph = FIT.set("clip", reads={"max_norm": "scale * 2 + step.steps + validate/eval_batch.runs", "optimizer": "own"})
    assert reads_of(graph) - reads_of(FIT) == {"scale", "own"}
    assert reads_of(graph.set("train_batch", reads={"model": ["a", "step.steps"]})) - reads_of(FIT) == {
        "scale",
        "own",
        "a",
    }
    assert reads_of(FIT.set("clip", reads={"max_norm": "scale *"})) == reads_of(FIT), "it cannot be parsed"
    # What the body writes itself is not read from around it.
    assert reads_of(EVALUATE) - reads_of(around(EVALUATE)) == {"batch", "samples", "split", "training_state"}
    assert reads_of(around(UNKNOWN)) == reads_of(around(FIT))


def test_an_unknown_kind_may_write_anything() -> None:
    assert [Scope(graph).may_hold("loss") for graph in (FIT, EVALUATE, UNKNOWN)] == [True, False, True]
    assert [Scope(graph).may_hold("nothing") for graph in (FIT, EVALUATE, UNKNOWN)] == [False, False, True]
    outer = Scope(FIT)
    inner = outer.body_of(FIT.nodes["validate"])
    assert (inner.may_hold("loss"), inner.may_hold("nothing")) == (True, False)
    assert [Scope(graph).may_hold("") for graph in (FIT, UNKNOWN, around(UNKNOWN))] == [False, True, False]


def with_plain_training() -> Graph:
    """The graph `fit`, whose node `train_batch` names nothing that it reads."""
    nodes = {**FIT.nodes, "train_batch": Node("train_batch", "train_batch")}
    return Graph(FIT.name, FIT.start, nodes, FIT.edges, FIT.guards, FIT.units)


@pytest.mark.parametrize(
    ("edit", "window"),
    [
        (lambda g: g, "accumulate.window"),
        (lambda g: g.set("train_batch", reads={"window": "own"}), "own"),
        (lambda g: g.insert("second", "accumulate"), "window"),  # which of them?
        (lambda g: g.insert("second", "accumulate", reads={"optimizer": "other"}), "accumulate.window"),
        (lambda g: g.set("train_batch", reads={"optimizer": "other"}), "window"),
        (lambda g: g.with_optimizer("other"), "accumulate.window"),
        (lambda g: g.remove("accumulate", to="clip"), "window"),
        (lambda g: g.set("eval_batch", writes={"metrics": "window"}), "window"),  # a slot of that name
        (lambda g: g.insert("inner", graph=FIT), "accumulate.window"),
    ],
)
def test_the_window_of_a_node_is_that_of_its_optimizer(edit: Callable[[Graph], Graph], window: str) -> None:
    graph = edit(with_plain_training().insert("eval_batch", "eval_batch"))
    assert named_by(graph, graph.nodes["train_batch"], "window") == window
