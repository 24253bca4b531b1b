"""What binding a graph to resources says of it: bypassed nodes, the clock, unusable and unread resources, limits."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch

from graphtrain import Edge, Graph, Node, Trigger
from graphtrain.data.samplers import EpochLength
from graphtrain.kind import Read
from graphtrain.plan.plan import Plan
from graphtrain.plan.scope import ResourceTarget
from graphtrain.program.bind import Program
from graphtrain.program.compiled_graph import _may_record
from graphtrain.program.resources import without_unread
from graphtrain.program.whole_run import WholeRun

FIT = Graph.load("fit")
EVALUATE = Graph.load("evaluate")
SUPPLIED = {"val_data": [1], "scheduler": object()}


def bound(graph: Graph, **resources: Any) -> Program:
    """A graph bound to these resources, and to those that let no node of `fit` be bypassed."""
    plan = Plan(graph)
    return Program(plan, {**SUPPLIED, **resources}, WholeRun(plan, lambda name: EpochLength(10)))


def around(body: Graph) -> Graph:
    """A graph with one node, which has this body."""
    return Graph("around", "inner", {"inner": Node("inner", "nested", body=body)}, {"inner": (Edge("end"),)})


# ---- nodes that are bypassed

NO_VALIDATION = "no `val_data`, so `validate` does not run"


@pytest.mark.parametrize(
    ("graph", "resources", "lines", "bypassed"),
    [
        (FIT, {}, [], {"exchange", "clip"}),
        (FIT.set("clip", max_norm=1.0), {}, [], {"exchange"}),
        (FIT, {"val_data": None}, [NO_VALIDATION], {"exchange", "clip", "validate"}),
        (FIT, {"val_data": None, "scheduler": None}, [NO_VALIDATION],
         {"exchange", "clip", "validate", "schedule"}),
        (FIT.guard("log_due", "log.due and validate/next_batch.batches > 3 and validate.runs > 1 and validate.due"),
         {"val_data": None}, [f"{NO_VALIDATION}, and `validate.runs`, `validate/next_batch.batches` never changes"],
         {"exchange", "clip", "validate"}),
    ],
)  # fmt: skip
def test_a_node_without_work_is_bypassed_and_its_resource_named(
    graph: Graph, resources: dict[str, Any], lines: list[str], bypassed: set[str]
) -> None:
    program = bound(graph, **resources)
    assert program.absent == lines
    assert {each.path for each in program.nodes if each.bypassed} == bypassed
    assert ("validate/" in program.scopes) == ("validate" not in bypassed)
    assert program.main.at("validate/eval_batch") is program.by_path.get("validate/eval_batch")


# ---- what the clock decides


@pytest.mark.parametrize(
    ("graph", "names"),
    [
        (FIT, ""),  # `checkpoint` observes
        (FIT.set("validate", every=["1 epochs", "5 minutes"]), "`validate`"),
        (FIT.set("validate", **{"every": "1 epochs", "from": "5 minutes"}), "`validate`"),
        (FIT.guard("log_due", "log.due and late").guard("late", "next_batch.seconds > 3").guard("unused",
         "next_batch.seconds > 1"), "the guard `late`"),
        (FIT.set("clip", reads={"max_norm": "1 + next_batch.seconds"}).set("finish", after="5 minutes"),
         "`finish`, `clip.max_norm`"),
    ],
)  # fmt: skip
def test_what_depends_on_the_clock_is_said(graph: Graph, names: str) -> None:
    line = f"wall-clock time decides about {names}: a resumed run may differ from one that was never cut"
    assert bound(graph).timed() == ([line] if names else [])


def test_a_share_of_the_run_is_counted_with_the_ranks_at_its_beginning() -> None:
    program = bound(FIT.set("log", every="0.1 run").set("validate", every=["1 epochs", "0.5 run"]))
    begun = "which is counted as if the run had begun with"
    rest = "and its windows are of that size: count steps instead"
    assert program.window_ranks == 1
    assert list(program.begun_with(2)) == [
        f'`log` is due by "0.1 run", {begun} 1 rank; it began with 2, {rest}',
        f'`validate` is due by "0.5 run", {begun} 1 rank; it began with 2, {rest}',
    ]
    assert program.window_ranks == 2
    assert list(program.begun_with(2)) == []
    assert next(program.begun_with(1)) == (f'`log` is due by "0.1 run", {begun} 2 ranks; it began with 1, {rest}')
    assert list(bound(FIT).begun_with(2)) == []


def test_a_share_of_a_run_that_cannot_be_counted_is_refused() -> None:
    program = bound(FIT.set("log", every="0.1 run").set("finish", after="1 hours"))
    log = program.by_path["log"]
    with pytest.raises(ValueError, match=r'`log` is due by "0\.1 run": `finish\.after` = "1 hours" ends'):
        program.terms(log, Trigger("0.1 run"))
    (term,) = [term for _, _, term in bound(FIT).terms(log, Trigger("0.1 run"))]
    assert (str(term), str(term.base)) == ("0.1 run", "10 steps")


# ---- data that gives no batches


class Samples(torch.utils.data.Dataset[Any]):
    """Samples that are read by index."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


class Stream(torch.utils.data.IterableDataset[Any]):
    """Data that may give batches."""

    def __iter__(self) -> Any:
        return iter([1])


def mapping(keys: str, key: str) -> tuple[str, str]:
    return (
        f"`train_data` is a mapping ({keys}): iterating over it gives its keys, not batches",
        f"supply one of its values, as in train_data=data['{key}']; a dataset of tensors is "
        "TensorDataset(*data.values()), in a Loader",
    )


def samples(name: str) -> tuple[str, str]:
    return (
        f"`{name}` is a Samples: iterating over it gives samples, not batches",
        f"supply Loader({name}, batch_size=...); if its items are batches already, DataLoader({name}, batch_size=None)",
    )


@pytest.mark.parametrize(
    ("data", "problems"),
    [
        ([1], []),
        (Stream(), []),
        (Samples(), [samples("train_data")]),
        ({"a": torch.ones(2), "b": 1}, [mapping("`a`, `b`", "a")]),
        ({}, [mapping("no keys", "key")]),
        ({str(number): 1 for number in range(6)}, [mapping("`0`, `1`, `2`, `3` and 2 more", "0")]),
        ({"a": [1], "b": [2]}, []),
        ({"a": [1], "b": Samples()}, [samples("train_data['b']")]),
    ],
)
def test_data_that_gives_no_batches_is_a_problem(data: Any, problems: list[tuple[str, str]]) -> None:
    program = bound(FIT, train_data=data)
    found = program.problems({"train_data": data}, ["train_data"])
    assert [(each.message, each.hint) for each in found] == problems
    assert {(each.code, each.severity, each.where) for each in found} <= {("G309", "error", "fit: nodes.next_batch")}
    allowed = Graph(FIT.name, FIT.start, FIT.nodes, FIT.edges, FIT.guards, FIT.units, allow=("G309",))
    assert bound(allowed, train_data=data).problems({"train_data": data}, ["train_data"]) == []


# ---- resources that nothing reads

OTHERS = {"teacher": 3, "modl": torch.nn.Linear(1, 1), "max_epochs": 3, "sampels": 4, "nothing": None}
TEACHER, MODEL = "nothing in the graph reads `teacher`", "nothing in the graph reads `modl`; did you mean `model`?"
EPOCHS = 'nothing in the graph reads `max_epochs`; that is `finish.after = "N epochs"` here'
SAMPLES = "nothing in the graph reads `sampels`"


@pytest.mark.parametrize(
    ("given", "hints"),
    [
        ([], {}),
        (["teacher"], {"teacher": "leave it out, or insert a node that reads it"}),
        (["modl", "nothing"], {}),  # state is saved, and None is nothing
        (["max_epochs"], {"max_epochs": 'that is `finish.after = "N epochs"` here'}),
    ],
)
def test_a_resource_that_nothing_reads_is_a_problem_if_it_is_new(given: Collection[str], hints: dict[str, str]) -> None:
    program = bound(FIT, train_data=[1], **OTHERS)
    found = program.problems(OTHERS, given)
    assert {each.message: each.hint for each in found} == {
        f"nothing reads a resource `{name}`": hint for name, hint in hints.items()
    }
    assert {(each.code, each.where) for each in found} <= {("G302", "fit")}
    assert program.unread_resources() == [TEACHER, MODEL, EPOCHS, SAMPLES, "nothing in the graph reads `nothing`"]


def test_resources_of_other_graphs_are_left_out_and_named() -> None:
    kept, lines = without_unread(FIT, {**OTHERS, "train_data": [1]})
    assert kept == {"modl": OTHERS["modl"], "nothing": None, "train_data": [1]}
    assert lines == [TEACHER, EPOCHS, SAMPLES]


def test_a_step_function_of_a_graph_that_only_evaluates_is_at_step_zero() -> None:
    program = bound(EVALUATE)
    assert program.step_input(program.by_path["eval_batch"], Read("step")) == ResourceTarget("step")
    assert program.resource("step", Read("step"), "eval_batch") == 0 and program.missing == {}


def test_the_metrics_of_several_nodes_have_their_names() -> None:
    def prefixes(graph: Graph) -> dict[str, str]:
        nodes = bound(graph).nodes
        return {each.path: each.metric_prefix for each in nodes if each.is_set_up_with("metric_prefix")}

    assert prefixes(FIT) == {"train_batch": ""}
    assert prefixes(FIT.insert("second", "train_batch", after="train_batch")) == {
        "train_batch": "",
        "second": "second/",
    }
    two = FIT.rename("train_batch", "first").insert("second", "train_batch", after="first")
    assert prefixes(two) == {"first": "first/", "second": "second/"}
    assert prefixes(around(two)) == {"inner/first": "first/", "inner/second": "second/"}


@pytest.mark.parametrize(
    ("limit", "found"),
    [
        ("3 steps", [("", "step", "steps", "3 steps")]),
        (["2 epochs", "5 minutes"],
         [("", "next_batch", "epochs", "2 epochs"), ("", "next_batch", "seconds", "5 minutes")]),
        ("4 validations", [("", "validate", "runs", "4 validations")]),
    ],
)  # fmt: skip
def test_a_limit_is_counted_by_the_graph_that_trains(limit: Any, found: list[tuple[str, str, str, str]]) -> None:
    for graph, prefix in ((FIT, ""), (around(FIT), "inner/")):
        limits = bound(graph).limits(Trigger(limit))
        expected = [(prefix, f"{prefix}{owner}", field, text) for _, owner, field, text in found]
        assert [(each.scope.prefix, each.owner.path, each.field, str(each.term)) for each in limits] == expected


def test_which_nodes_may_record() -> None:
    quiet = Graph("quiet", "wait", {"wait": Node("wait", "choice")}, {"wait": (Edge("end"),)})
    graph = FIT.insert("quiet", graph=quiet, after="step").insert("loud", graph=FIT, after="step")
    graph = graph.set("checkpoint", every="never").set("log", every="never")
    for resources, others in (({}, {"validate"}), ({"val_data": None}, set())):
        nodes = bound(graph, **resources).main.nodes
        assert {name for name, each in nodes.items() if _may_record(each)} == {
            "train_batch",
            "end_epoch",
            "loud",
            *others,
        }
