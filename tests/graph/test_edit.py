"""The verbs: what they change, what they leave unchanged, and what they refuse."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Edge, EditError, Graph, GraphtrainError, Node, Trigger, node
from graphtrain.graph.rename import rename_in_expression

FIT = Graph.load("fit")
EVALUATE = Graph.load("evaluate")


def leaving(graph: Graph, source: str) -> list[str]:
    return [str(edge) for edge in graph.edges[source]]


def changed_edges(graph: Graph, base: Graph = FIT) -> set[str]:
    return {source for source in {**graph.edges, **base.edges} if graph.edges.get(source) != base.edges.get(source)}


def test_insert_after_takes_the_edges_over() -> None:
    graph = FIT.insert("pause", "choice", after="accumulate")
    assert leaving(graph, "accumulate") == ["pause"]
    assert leaving(graph, "pause") == ["exchange if accumulation_reached", "decide"]
    assert changed_edges(graph) == {"accumulate", "pause"}
    assert graph.nodes["pause"].use == "choice"


def test_insert_after_is_directly_after() -> None:
    graph = FIT
    for name in ("first", "second", "third"):
        graph = graph.insert(name, "choice", after="validate")
    assert [leaving(graph, name) for name in ("validate", "third", "second", "first")] == [
        ["third"],
        ["second"],
        ["first"],
        ["decide"],
    ]


def test_insert_before_takes_all_predecessors() -> None:
    graph = FIT.insert("pause", "choice", before="next_batch")
    assert leaving(graph, "begin_epoch") == ["pause"]
    assert leaving(graph, "decide")[-1] == "pause"
    assert leaving(graph, "pause") == ["next_batch"]
    assert changed_edges(graph) == {"begin_epoch", "decide", "pause"}


def test_insert_before_the_start_moves_the_start() -> None:
    assert FIT.insert("hello", "choice", before="decide").start == "hello"
    assert FIT.insert("hello", "choice", before="step").start == "decide"


def test_insert_before_the_end() -> None:
    graph = FIT.insert("goodbye", "choice", before="end")
    assert leaving(graph, "finish") == ["goodbye if finished", "decide"]
    assert leaving(graph, "goodbye") == ["end"]
    assert changed_edges(graph) == {"finish", "goodbye"}


def test_insert_between_keeps_guard_and_priority() -> None:
    graph = FIT.insert("pause", "choice", between=("accumulate", "clip"))
    assert leaving(graph, "accumulate") == ["exchange if accumulation_reached", "decide"]
    assert leaving(graph, "exchange") == ["pause"]
    assert leaving(graph, "pause") == ["clip"]
    assert changed_edges(graph) == {"exchange", "pause"}
    graph = FIT.insert("pause", "choice", between=("accumulate", "exchange"))
    assert leaving(graph, "accumulate") == ["pause if accumulation_reached", "decide"]
    assert leaving(graph, "pause") == ["exchange"]
    assert changed_edges(graph) == {"accumulate", "pause"}


def test_between_and_redirect_span_nodes_that_may_be_bypassed_and_no_others() -> None:
    graph = FIT.insert("rest", "choice", between=("exchange", "clip"))
    with pytest.raises(EditError, match="no edge from `accumulate` to `clip`"):
        graph.insert("pause", "choice", between=("accumulate", "clip"))
    graph = FIT.insert("again", "exchange", after="exchange").insert("pause", "choice", between=("accumulate", "clip"))
    assert [leaving(graph, name) for name in ("exchange", "again", "pause")] == [["again"], ["pause"], ["clip"]]
    graph = FIT.redirect("accumulate", "clip", "step")
    assert changed_edges(graph) == {"exchange"}
    assert leaving(graph, "exchange") == ["step"]
    graph = FIT.connect("exchange", "decide", when="log_due")
    with pytest.raises(EditError, match="no edge from `accumulate` to `clip`"):
        graph.redirect("accumulate", "clip", "step")
    circle = FIT.redirect("exchange", "clip", "accumulate")
    with pytest.raises(EditError, match="no edge from `accumulate` to `clip`"):
        circle.insert("pause", "choice", between=("accumulate", "clip"))


def test_insert_without_a_place_connects_nothing() -> None:
    graph = FIT.insert("clip2", "clip", max_norm=3, reads={"optimizer": "d_optimizer"})
    assert graph.edges == FIT.edges
    assert graph.nodes["clip2"].parameters == {"max_norm": 3}
    assert graph.nodes["clip2"].reads == {"optimizer": "d_optimizer"}
    assert FIT.insert("discard").nodes["discard"].use == "discard"


def test_replace_keeps_edges_and_drops_parameters() -> None:
    graph = FIT.replace("train_batch", "distill", temperature=3)
    assert graph.edges == FIT.edges
    assert graph.nodes["train_batch"].use == "distill"
    assert graph.nodes["train_batch"].parameters == {"temperature": 3}
    assert graph.nodes["train_batch"].reads == {}
    assert {name for name in FIT.nodes if graph.nodes[name] != FIT.nodes[name]} == {"train_batch"}


def test_remove_bypasses() -> None:
    graph = FIT.remove("clip")
    assert "clip" not in graph.nodes
    assert "clip" not in graph.edges
    assert leaving(graph, "exchange") == ["step"]
    assert changed_edges(graph) == {"exchange", "clip"}
    assert graph.guards == FIT.guards


def test_remove_drops_edges_that_would_be_loops_and_only_their_guards() -> None:
    graph = FIT.remove("validate")
    assert not any("validate" in edge for edge in leaving(graph, "decide"))
    assert set(FIT.guards) - set(graph.guards) == {"val_check_batch"}
    assert graph.check() == []


def test_remove_keeps_guards_that_others_need() -> None:
    graph = FIT.guard("val_check_batch", "validate.due and fresh").guard("fresh", "step.steps > 0")
    graph = graph.guard("log_due", "log.due and fresh")
    removed = graph.remove("validate")
    assert "val_check_batch" not in removed.guards
    assert "fresh" in removed.guards, "log_due names it"


def test_remove_keeps_guards_named_by_a_guard_no_edge_uses_and_those_only_spelled_alike() -> None:
    graph = FIT.guard("spare", "not val_check_batch").guard("due", "step.steps > 0")
    removed = graph.remove("validate")
    assert "val_check_batch" in removed.guards, "without it `spare` could not be read"
    assert "due" in removed.guards, "`validate.due` is a field"


def test_remove_to_chooses_and_keeps_a_loop_that_was_there() -> None:
    graph = FIT.remove("accumulate", to="clip")
    assert leaving(graph, "train_batch") == ["clip"]
    assert leaving(graph, "next_batch") == ["clip if data_exhausted", "train_batch"]
    looped = FIT.connect("step", "step", when="log_due").remove("zero_grad")
    assert leaving(looped, "step") == ["step if log_due", "decide"]


def test_remove_the_start() -> None:
    assert EVALUATE.remove("begin_evaluation").start == "next_batch"


def test_connect_has_a_place_in_the_order() -> None:
    assert leaving(FIT.connect("decide", "step", when="log_due"), "decide")[0] == "step if log_due"
    assert leaving(FIT.connect("decide", "step", when="log_due", first=False), "decide")[-2:] == [
        "step if log_due",
        "next_batch",
    ]
    graph = FIT.disconnect("step", "zero_grad").connect("step", "end")
    assert leaving(graph, "step") == ["end"]
    assert changed_edges(graph) == {"step"}


def test_disconnect_takes_every_edge_to_the_target() -> None:
    graph = FIT.connect("decide", "log", when="finished").disconnect("decide", "log")
    assert leaving(graph, "decide") == [edge for edge in leaving(FIT, "decide") if not edge.startswith("log")]
    assert changed_edges(graph) == {"decide"}


def test_redirect_keeps_guard_and_priority() -> None:
    graph = FIT.redirect("decide", "log", "step")
    assert leaving(graph, "decide") == [edge.replace("log if", "step if") for edge in leaving(FIT, "decide")]
    assert changed_edges(graph) == {"decide"}
    assert leaving(FIT.redirect("step", "zero_grad", "end"), "step") == ["end"]


def test_set_merges() -> None:
    graph = FIT.set("checkpoint", keep=5).set("train_batch", reads={"model": "student"}, writes={"loss": "d_loss"})
    assert graph.nodes["checkpoint"].parameters == {"every": ["1 epochs", "10 minutes"], "keep": 5}
    assert graph.nodes["train_batch"].reads == {"window": "accumulate.window", "model": "student"}
    assert graph.nodes["train_batch"].writes == {"loss": "d_loss"}
    assert graph.edges == FIT.edges


def test_set_reaches_inside() -> None:
    graph = FIT.set("validate/next_batch", limit=5)
    body = graph.nodes["validate"].body
    assert body is not None
    assert body.nodes["next_batch"].parameters == {"limit": 5, "repeat": True}
    assert body.edges == EVALUATE.edges
    assert graph.nodes["next_batch"] == FIT.nodes["next_batch"]


def test_set_takes_a_parameter_of_any_name() -> None:
    graph = FIT.insert("x", "choice").set("x", name="a", self=1, after="b")
    assert graph.nodes["x"].parameters == {"name": "a", "self": 1, "after": "b"}


def test_set_use_keeps_what_is_set() -> None:
    graph = FIT.set("train_batch", precision="bf16-mixed").set("train_batch", use="sam_batch", compile=True)
    node = graph.nodes["train_batch"]
    assert node.use == "sam_batch"
    assert dict(node.parameters) == {"precision": "bf16-mixed", "compile": True}
    assert node.reads == FIT.nodes["train_batch"].reads
    assert graph.check() == []
    assert Graph.loads(graph.to_toml()) == graph
    assert [str(problem.code) for problem in FIT.set("clip", max_norm=1.0).set("clip", use="step").check()][:1] == [
        "G103"
    ]
    inner = FIT.set("validate/eval_batch", use="sam_batch").nodes["validate"].body
    assert inner is not None and inner.nodes["eval_batch"].use == "sam_batch"
    assert FIT.set("validate", use="choice").nodes["validate"].body is None
    with pytest.raises(EditError, match="has both `use` and `graph`"):
        FIT.set("clip", use="step", graph="evaluate")


def test_set_graph_replaces_the_body() -> None:
    graph = FIT.set("validate", graph=EVALUATE.set("next_batch", limit=2))
    body = graph.nodes["validate"].body
    assert body is not None
    assert body.nodes["next_batch"].parameters == {"limit": 2, "repeat": True}
    assert graph.nodes["validate"].parameters == {"every": "1 epochs"}


def test_guard_and_clock() -> None:
    graph = (
        FIT.guard("log_due", "log.due and step.steps > 0").guard("new", "log.due").clock("tokens", "next_batch.samples")
    )
    assert graph.guards == {**FIT.guards, "log_due": "log.due and step.steps > 0", "new": "log.due"}
    assert graph.units == {**FIT.units, "tokens": "next_batch.samples"}
    assert graph.edges == FIT.edges


def test_nest_is_insert_with_a_graph(tmp_path: Path) -> None:
    path = tmp_path / "inner.toml"
    EVALUATE.save(path)
    for graph in ("evaluate", path, str(path), EVALUATE):
        assert FIT.nest("test", graph, every="2 epochs") == FIT.insert("test", graph=graph, every="2 epochs")
        assert FIT.nest("test", graph).nodes["test"].body == EVALUATE


def test_rename_reaches_expressions_and_paths() -> None:
    graph = (
        FIT.set("clip", reads={"max_norm": "1 / (1 + step.steps / validate/next_batch.batches)"})
        .guard("log_due", "log.due and validate/next_batch.last and step.steps/2 > validate.runs")
        .clock("seen", "validate/next_batch.batches")
    )
    renamed = graph.rename("validate", "measure").rename("step", "go").rename("next_batch", "fetch")
    assert renamed.nodes["clip"].reads == {"max_norm": "1 / (1 + go.steps / measure/next_batch.batches)"}
    assert renamed.guards["log_due"] == "log.due and measure/next_batch.last and go.steps/2 > measure.runs"
    assert renamed.units["seen"] == "measure/next_batch.batches"
    assert renamed.rename("measure", "validate").rename("go", "step").rename("fetch", "next_batch") == graph


def test_a_value_and_an_expression_take_each_others_place() -> None:
    graph = FIT.set("clip", reads={"max_norm": "1.0 / (1 + step.steps)", "optimizer": "other"})
    assert graph.nodes["clip"].parameters == {}
    assert graph.set("clip", max_norm=2.0).nodes["clip"].parameters == {"max_norm": 2.0}
    assert graph.set("clip", max_norm=2.0).nodes["clip"].reads == {"optimizer": "other"}


def test_a_node_in_a_body_is_renamed_by_its_path_wherever_that_is_read() -> None:
    graph = (
        FIT.set("clip", reads={"max_norm": "1 / (1 + validate/next_batch.batches + next_batch.batches)"})
        .guard("log_due", "log.due and validate/next_batch.last")
        .clock("seen", "validate/next_batch.batches")
    )
    renamed = graph.rename("validate/next_batch", "fetch")
    assert renamed.nodes["clip"].reads == {"max_norm": "1 / (1 + validate/fetch.batches + next_batch.batches)"}
    assert renamed.guards["log_due"] == "log.due and validate/fetch.last"
    assert renamed.units["seen"] == "validate/fetch.batches"
    body = renamed.nodes["validate"].body
    assert body is not None and "fetch" in body.nodes and "next_batch" not in body.nodes
    assert renamed.check() == []
    assert renamed.rename("validate/fetch", "next_batch") == graph
    assert Graph.loads(renamed.to_toml()) == renamed
    edits = '[[edit]]\nrename = "validate/next_batch"\nnew = "fetch"\n'
    read = Graph.loads(f'format = 1\nextends = "fit"\n{edits}')
    assert read.nodes == FIT.rename("validate/next_batch", "fetch").nodes
    around = Graph("around", "fit", {"fit": Node("fit", "nested", body=graph)}, {"fit": (Edge("end", "seen"),)},
                   {"seen": "fit/validate/next_batch.batches > 0"})  # fmt: skip
    further = around.rename("fit/validate/next_batch", "fetch")
    assert further.guards == {"seen": "fit/validate/fetch.batches > 0"}
    assert further.nodes["fit"].body == renamed


def test_rename_reaches_everything() -> None:
    graph = FIT.rename("accumulate", "window").rename("decide", "choose").rename("next_batch", "fetch")
    text = graph.to_toml()
    assert "accumulate." not in text
    assert "next_batch." not in text
    assert "decide" not in text
    assert graph.start == "choose"
    assert graph.nodes["train_batch"].reads == {"window": "window.window"}
    assert graph.units["samples"] == "fetch.samples"
    assert graph.guards["window_cut"] == "fetch.last or ending"
    assert graph.nodes["window"].use == "accumulate"
    assert graph.nodes["window"].name == "window"
    assert "fetch" not in graph.nodes["validate"].body.nodes, "a graph inside has names of its own"  # type: ignore[union-attr]
    assert graph.check() == []
    assert graph.rename("window", "accumulate").rename("choose", "decide").rename("fetch", "next_batch") == FIT


def test_rename_reads_that_are_lists() -> None:
    graph = FIT.set("train_batch", reads={"window": ["accumulate.every", "other"]}).rename("accumulate", "a")
    assert graph.nodes["train_batch"].reads["window"] == ("a.every", "other")


@pytest.mark.parametrize(
    ("text", "renamed"),
    [
        ("step.steps > 3", "s.steps > 3"),
        ("  step.steps > 3", "  s.steps > 3"),
        ("'é step.x' == a and step.steps > step.runs", "'é step.x' == a and s.steps > s.runs"),
        ("(other.x\n  and step.x\n  or a.step)", "(other.x\n  and s.x\n  or a.step)"),
        ("\n step . x\n and step.y", "\n s . x\n and s.y"),
        ("step and steps.x and a.step", "step and steps.x and a.step"),
    ],
)
def test_rename_in_an_expression(text: str, renamed: str) -> None:
    assert rename_in_expression(text, "step", "s") == renamed


REFUSED: list[tuple[Callable[[Graph], Graph], str, str]] = [
    (lambda g: g.insert("clip"), "insert: there is already a node `clip`", "choose another name, or use `replace`"),
    (lambda g: g.insert("end", "choice"), "insert: `end` cannot be the name of a node",
     "it is reserved for the target that ends the graph"),
    (lambda g: g.insert("x", after="stp"), "insert: after: there is no node `stp`", "did you mean `step`?"),
    (lambda g: g.insert("x", before="stp"), "insert: before: there is no node `stp`", "did you mean `step`?"),
    (lambda g: g.insert("x", between=("stp", "clip")), "insert: between: there is no node `stp`",
     "did you mean `step`?"),
    (lambda g: g.insert("x", between=("step", "clip")), "insert: between: there is no edge from `step` to `clip`",
     'its edges: "zero_grad"'),
    (lambda g: g.insert("x", between=("step",)), "insert: `between` takes a source and a target, got ['step']", ""),
    (lambda g: g.insert("x", after="step", before="clip"), "insert: give one of `after`, `before` and `between`", ""),
    (lambda g: g.insert("x", "clip", graph="evaluate"), "`x` has both `use` and `graph`",
     "a node uses a kind, or has a graph as its body"),
    (lambda g: g.insert("x", EVALUATE),
     "insert: `use` of `x` takes a kind, got <Graph evaluate: 4 nodes, start begin_evaluation>",
     'a body is given as insert("x", graph=...)'),
    (lambda g: g.replace("clip", EVALUATE),
     "replace: `use` of `clip` takes a kind, got <Graph evaluate: 4 nodes, start begin_evaluation>",
     'a body is given as set("clip", graph=...)'),
    (lambda g: g.insert("x", graph="evalute"), "there is no graph `evalute`", "did you mean `evaluate`?"),
    (lambda g: g.insert("x", graph=3), "graph: expected a name, a path or a Graph, got 3", ""),
    (lambda g: g.replace("stp", "step"), "replace: there is no node `stp`", "did you mean `step`?"),
    (lambda g: g.remove("stp"), "remove: there is no node `stp`", "did you mean `step`?"),
    (lambda g: g.remove("finish"), "remove: `finish` has 2 targets",
     'choose: remove("finish", to="end") or remove("finish", to="decide")'),
    (lambda g: g.insert("x", "choice").remove("x"), "remove: `x` has no edge to follow", "give `to`"),
    (lambda g: g.remove("clip", to="clip"), "remove: the predecessors of `clip` cannot go to `clip`, which is removed",
     ""),
    (lambda g: g.remove("clip", to="stp"), "remove: to: there is no node `stp`", "did you mean `step`?"),
    (lambda g: g.remove("decide", to="end"), "remove: the graph starts at `decide`, and would start at its end",
     "give `to` another node"),
    (lambda g: g.connect("stp", "clip"), "connect: there is no node `stp`", "did you mean `step`?"),
    (lambda g: g.connect("step", "clp"), "connect: there is no node `clp`", "did you mean `clip`?"),
    (lambda g: g.connect("step", "clip"), "connect: `step` already has an unguarded edge, to `zero_grad`",
     'use redirect("step", "zero_grad", "clip"), or give the new edge a guard'),
    (lambda g: g.disconnect("step", "clip"), "disconnect: there is no edge from `step` to `clip`",
     'its edges: "zero_grad"'),
    (lambda g: g.disconnect("stp", "clip"), "disconnect: there is no node `stp`", "did you mean `step`?"),
    (lambda g: g.redirect("step", "clip", "log"), "redirect: there is no edge from `step` to `clip`",
     'its edges: "zero_grad"'),
    (lambda g: g.redirect("step", "zero_grad", "clp"), "redirect: there is no node `clp`", "did you mean `clip`?"),
    (lambda g: g.set("stp", x=1), "set: there is no node `stp`", "did you mean `step`?"),
    (lambda g: g.set("clip/x", x=1), "set: `clip` has no graph inside", "its parameters are set as `clip.NAME`"),
    (lambda g: g.set("validate/nxt_batch", x=1), "set: there is no node `nxt_batch`", "did you mean `next_batch`?"),
    (lambda g: g.set("clip", reads=3), 'clip.reads: expected a table such as { slot = "other" }, got 3', ""),
    (lambda g: g.set("clip", reads={"a": 3}), "clip.reads.a: expected the name of a slot, got 3", ""),
    (lambda g: g.set("clip", writes={"a": ["b"]}), 'clip.writes.a: expected the name of a slot, got ["b"]', ""),
    (lambda g: g.set("clip", max_norm=None), "clip.max_norm: None cannot be written in a graph",
     'leave the parameter out for its default; a trigger that never fires is "never"'),
    (lambda g: g.set("clip", max_norm=object), "clip.max_norm: <class 'object'> cannot be written in a graph",
     "a value other than a number, text, list or table goes into a resource of the Trainer, or into the kind"),
    (lambda g: g.set("clip", a=[1, {"b": None}]), "clip.a: None cannot be written in a graph",
     "a value other than a number, text, list or table goes into a resource of the Trainer, or into the kind"),
    (lambda g: g.set("clip", a={1: 2}), "clip.a: {1: 2} cannot be written in a graph",
     "a value other than a number, text, list or table goes into a resource of the Trainer, or into the kind"),
    (lambda g: g.rename("stp", "x"), "rename: there is no node `stp`", "did you mean `step`?"),
    (lambda g: g.rename("step", "clip"), "rename: there is already a node `clip`", ""),
    (lambda g: g.rename("validate/nxt_batch", "x"), "rename: there is no node `validate/nxt_batch`",
     "did you mean `validate/next_batch`?"),
    (lambda g: g.rename("validate/next_batch", "eval_batch"), "rename: there is already a node `validate/eval_batch`",
     ""),
    (lambda g: g.rename("step/x", "y"), "rename: there is no node `step/x`: `step` has no body", ""),
    (lambda g: g.rename("step", "end"), "rename: there is already a node `end`", ""),
    (lambda g: g.guard("x", 3), "guard: `x` takes an expression in quotes, got 3", ""),
    (lambda g: g.clock("x", 3), 'clock: `x` takes a field, "node.field"; got 3', ""),
    (lambda g: g.remove(["step"]), 'remove: expected the name of a node, got ["step"]', ""),
    (lambda g: g.insert("x", "choice", at="decide"),
     "insert: `at` takes `before` or `after`: which edge of `decide` is tried next to that to `x`",
     f"its edges lead to {', '.join(dict.fromkeys(edge.target for edge in FIT.edges['decide']))}"),
    (lambda g: g.insert("x", "choice", at="stp", before="log"), "insert: at: there is no node `stp`",
     "did you mean `step`?"),
    (lambda g: g.insert("x", "choice", at="decide", after="next_batch"),
     "insert: after: the edge from `decide` to `next_batch` has no guard, so none after it is tried", "use `before`"),
    (lambda g: g.insert("x", "choice", between="step"), "insert: `between` takes a source and a target, got ['step']",
     ""),  # type: ignore[arg-type]
    (lambda g: g.insert("x", "choice", between=("a", "b", "c")),
     "insert: `between` takes a source and a target, got ['a', 'b', 'c']", ""),  # type: ignore[arg-type]
    (lambda g: g.connect("decide", "step", "log_due", before="log", after="log"),
     "connect: give one of `before` and `after`", ""),
    (lambda g: g.connect("step", "log", "log_due", before="clip"),
     "connect: before: there is no edge from `step` to `clip`", 'its edges: "zero_grad"'),
    (lambda g: g.connect("step", "log", "log_due", after="zero_grad"),
     "connect: after: the edge from `step` to `zero_grad` has no guard, so none after it is tried", "use `before`"),
    (lambda g: g.insert("x", "choice").disconnect("x", "log"), "disconnect: there is no edge from `x` to `log`",
     "its edges: none"),
    (lambda g: g.guard("x"), "guard: `x` takes an `expression`, or an `or` or `and` to widen it", ""),
    (lambda g: g.guard("endings", or_="a"), "guard: there is no guard `endings` to widen", "did you mean `ending`?"),
    (lambda g: g.guard("ending", and_=3), "guard: `ending` takes an expression in quotes, got 3", ""),  # type: ignore[arg-type]
    (lambda g: g.rename(3, "x"), "rename: expected the name of a node, got 3", ""),  # type: ignore[arg-type]
    (lambda g: g.replace("early_stop", "choice"), "replace: there is no node `early_stop`",
     f"known: {', '.join(sorted(FIT.nodes))}"),
]  # fmt: skip


@pytest.mark.parametrize(("verb", "message", "hint"), REFUSED, ids=[message for _, message, _ in REFUSED])
def test_what_a_verb_refuses(verb: Callable[[Graph], Graph], message: str, hint: str) -> None:
    before = FIT.to_json()
    with pytest.raises(GraphtrainError) as caught:
        verb(FIT)
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert FIT.to_json() == before


def test_an_edit_error_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="no node"):
        FIT.remove("nothing")
    assert issubclass(EditError, ValueError)


def test_no_verb_changes_the_original() -> None:
    before = FIT.to_json()
    graph = FIT.insert("x", "choice", after="step").remove("clip").rename("log", "write").guard("a", "log.due")
    graph = graph.set("validate/next_batch", limit=3).clock("x", "step.steps").redirect("step", "x", "decide")
    assert graph != FIT
    assert FIT.to_json() == before == Graph.load("fit").to_json()


@pytest.mark.parametrize("name", ["nodes", "edges", "guards", "units", "places"])
def test_mappings_refuse_assignment(name: str) -> None:
    mapping: Any = getattr(FIT, name)
    with pytest.raises(TypeError):
        mapping["x"] = mapping[next(iter(mapping))]
    with pytest.raises(AttributeError):
        setattr(FIT, name, {})


def test_nodes_and_edges_refuse_assignment() -> None:
    step: Any = FIT.nodes["accumulate"]
    for name in ("parameters", "reads", "writes"):
        with pytest.raises(TypeError):
            getattr(step, name)["every"] = 2
    with pytest.raises(AttributeError):
        step.use = "x"
    edge: Any = FIT.edges["step"][0]
    with pytest.raises(AttributeError):
        edge.target = "x"


def test_a_graph_does_not_follow_the_values_it_was_made_from() -> None:
    every, table = ["1 epochs"], {"a": [1]}
    graph = FIT.set("log", every=every, table=table)
    every.append("2 steps")
    table["a"].append(2)
    assert graph.nodes["log"].parameters == {"every": ["1 epochs"], "table": {"a": [1]}}


def test_values_given_in_python_equal_those_of_the_text() -> None:
    graph = FIT.set("log", every=Trigger("1/2 epochs")).set("checkpoint", every=Trigger(["1 epochs", "2 hours"]))
    graph = graph.set("schedule", every=Trigger("never")).set("validate", every=("1 epochs", "10 steps"))
    assert graph.nodes["log"].parameters["every"] == "0.5 epochs"
    assert graph.nodes["checkpoint"].parameters["every"] == ["1 epochs", "2 hours"]
    assert graph.nodes["schedule"].parameters["every"] == "never"
    assert graph.nodes["validate"].parameters["every"] == ["1 epochs", "10 steps"]
    assert graph.check() == []
    assert Graph.loads(graph.to_toml()) == graph


def test_numbers_of_numpy_become_plain_ones() -> None:
    numpy = pytest.importorskip("numpy")
    graph = FIT.set("clip", max_norm=numpy.float64(0.5)).set("accumulate", every=numpy.int64(3))
    assert type(graph.nodes["clip"].parameters["max_norm"]) is float
    assert type(graph.nodes["accumulate"].parameters["every"]) is int
    assert Graph.loads(graph.to_toml()) == graph


def test_a_function_or_class_is_a_kind_from_then_on() -> None:
    def my_clip(optimizer: Any, *, ratio: float = 0.5) -> None:
        """Scale by half."""

    @node(name="other")
    def something() -> None:
        """Nothing."""

    graph = FIT.replace("clip", my_clip, ratio=0.25).insert("x", something, after="step")
    assert graph.nodes["clip"].use == "my_clip"
    assert graph.nodes["x"].use == "other"
    assert graph.check() == []
    assert [problem.code for problem in graph.set("clip", ratio="x").check()] == ["G104"]


def test_edges_given_in_python_check_like_those_of_a_text() -> None:
    graph = functools.reduce(lambda made, name: made.remove(name), ["clip", "log", "schedule"], FIT)
    assert graph.check() == []
    assert Edge("a", "b") == Edge("a", "b")


def test_a_guard_stays_that_others_name_in_turn() -> None:
    graph = Graph.load("fit").guard("deep", "step.steps > 3").guard("middle", "deep or step.steps > 5")
    graph = graph.guard("top", "not middle").insert("look", "log", at="decide", before="checkpoint")
    graph = graph.guard("look_due", "top").remove("schedule")
    assert {"deep", "middle", "top"} <= graph.guards.keys()
    assert not {"deep", "middle", "top"} & graph.remove("look").guards.keys()
