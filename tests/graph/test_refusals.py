"""Promises 1 to 5: what is written wrongly is refused at its place, with what to write instead.

The one place where the wording of these messages is asserted: by its parts, which " … " separates.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Edge, Graph, GraphError, GraphtrainError, Problem, UsageError
from tests.graph.corpus import EVALUATE, FIT, add, bound

Edit = Callable[[Any], Graph]


def without_last(graph: Graph, source: str) -> Graph:
    return replace(graph, edges={**graph.edges, source: graph.edges[source][:-1]})


def appended(graph: Graph, source: str, *edges: Edge) -> Graph:
    return replace(graph, edges={**graph.edges, source: (*graph.edges[source], *edges)})


def by_steps(graph: Graph) -> Graph:
    """The graph with a clock of steps alone."""
    graph = graph.set("validate", every="never").set("checkpoint", every="never").set("finish", after="9 steps")
    return replace(graph, units={"steps": "step.steps"})


def says(said: str, parts: str) -> bool:
    """True if all parts are said, one after the other."""
    return re.search(".*".join(map(re.escape, parts.split(" … "))), said, re.DOTALL) is not None


# Code and place, an edit of `fit`, and what is said: parts of the message and of the remedy.
CHECKED: list[tuple[str, Edit, str]] = [
    ("G101 start", lambda g: replace(g, start="decid"), "unknown node `decid` … did you mean `decide`?"),
    ("G101 edges.step", lambda g: appended(without_last(g, "step"), "step", Edge("zero_gard")),
     "unknown node `zero_gard` … did you mean `zero_grad`?"),
    ("G101 clock.x", lambda g: replace(g, units={**g.units, "x": "stp.steps"}),
     "unknown node `stp` in `stp.steps` … `step`"),
    ("G101 nodes.train_batch.reads.window", lambda g: g.set("train_batch", reads={"window": "acumulate.every"}),
     "unknown node `acumulate` in `acumulate.every` … `accumulate`"),
    ("G102 nodes.clip", lambda g: g.replace("clip", "clpi"), "unknown kind `clpi` … did you mean `clip`?"),
    ("G103 nodes.clip.max_nrm", lambda g: g.set("clip", max_nrm=1),
     "unknown parameter `clip.max_nrm` of kind `clip` … did you mean `max_norm`?"),
    ("G103 nodes.clip.gradient_clip_val", lambda g: g.set("clip", gradient_clip_val=1),
     "unknown parameter … that is `clip.max_norm = X` here"),
    ("G104 nodes.clip.max_norm", lambda g: g.set("clip", max_norm="fast"), 'expected a number, got "fast"'),
    ("G104 nodes.accumulate.every", lambda g: g.set("accumulate", every=2.0), "expected an integer, got 2.0"),
    ("G104 nodes.accumulate.every", lambda g: g.set("accumulate", every=10**19),
     "expected an integer > 0 of at most 64 bits, got 10000000000000000000"),
    ("G104 nodes.ema.decay", lambda g: g.overlay("ema").set("ema", decay=1.0), "expected a number < 1, got 1.0"),
    ("G104 nodes.unscale.init_scale", lambda g: g.overlay("fp16").set("unscale", init_scale=math.inf),
     "expected a number > 0 and < inf, got inf"),
    ("G104 nodes.log.every", lambda g: g.set("log", every=50), 'a trigger such as "100 steps", got 50'),
    ("G104 validate/nodes.begin_evaluation.split", lambda g: g.set("validate/begin_evaluation", split=3),
     "expected a string, got 3"),
    ("G104 nodes.clip", lambda g: g.replace("clip", "nested"), '`clip.graph` is missing … graph = "NAME"'),
    ("G105 edges.step", lambda g: g.connect("step", "end", when="log_deu"), "unknown guard `log_deu` … `log_due`"),
    ("G105 edges.step", lambda g: g.connect("step", "end", when="1 > 0"),
     "unknown guard `1 > 0` … define the expression under [guards]"),
    ("G106 nodes.log.every", lambda g: g.set("log", every="50 step"),
     'unknown unit `step` in log.every = "50 step", which [clock] does not define … did you mean `steps`?'),
    ("G106 nodes.finish.after", lambda g: g.set("finish", after=["1 epochs", "3 tokens"]), "unknown unit `tokens`"),
    ("G107 nodes.x", lambda g: g.insert("x", "choice").connect("x", "decide"),
     'no path leads from the start, `decide`, to `x` … remove = "x"'),
    ("G108 nodes.x", lambda g: g.insert("x", "choice").connect("step", "x", when="log_due").connect("x", "x"),
     "no path leads from `x` to `end` … add an edge"),
    ("G109 edges.finish", lambda g: without_last(g, "finish"),
     'the last edge, "end if finished", has a guard … write "end"'),
    ("G110 edges.finish", lambda g: appended(g, "finish", Edge("step", "log_due"), Edge("step")),
     '"decide" has no guard, so the edges after it are never taken: "step if log_due", "step" … move it to the end'),
    ("G206 edges.decide", lambda g: g.connect("decide", "log", when="log_due"),
     '"log if log_due" is never taken'),
    ("G113 edges.step", lambda g: g.disconnect("step", "zero_grad"), '`step` has no edge … step = ["..."]'),
    ("G114 nodes.not", lambda g: g.rename("step", "not"),
     "`not` is not a valid name for a node … not a keyword of Python"),
    ("G114 nodes.a b", lambda g: g.insert("a b", "choice", after="step"),
     "`a b` is not a valid name for a node … letters"),
    ("G114 nodes.edges", lambda g: g.insert("edges", "choice", after="step"), "cannot be the name of a node … [edges]"),
    ("G115 nodes.clip.reads", lambda g: g.set("clip", reads={"optimiser": "x"}),
     "`clip` has no slot or parameter `optimiser` … did you mean `optimizer`?"),
    ("G115 nodes.train_batch.writes", lambda g: g.set("train_batch", writes={"los": "x"}),
     "writes no slot `los` … `loss`"),
    ("G115 nodes.train_batch.writes.loss", lambda g: g.set("train_batch", writes={"loss": "a b"}),
     "`a b` is not a valid name for a slot"),
    ("G115 nodes.validate.writes", lambda g: g.set("validate", writes={"metric": "x"}),
     "writes no slot `metric` … did you mean `metrics`?"),
    ("G115 outputs", lambda g: replace(g, outputs=("los",)), "no node writes the output `los` … `loss`"),
    ("G116 clock.x", lambda g: g.clock("x", "step.stps"), "`step` has no field `stps` … did you mean `steps`?"),
    ("G116 clock.x", lambda g: g.clock("x", "steps"), 'expected "node.field", got "steps"'),
    ("G116 clock.x", lambda g: g.clock("x", "next_batch.last"), "`next_batch.last` is not a number"),
    ("G116 clock.x", lambda g: g.clock("x", "train_batch.window_count"), "restarts when … progress(0)"),
    ("G106 nodes.log.every", lambda g: g.set("log", every="50 iterations"),
     'unknown unit `iterations` … that is "N steps" of the optimizer, or "N batches", here'),
    ("G106 nodes.log.every", lambda g: by_steps(g).set("log", every="2 epochs"),
     'unknown unit `epochs` … count it on the clock: epochs = "next_batch.epochs"'),
    ("G116 clock.steps", lambda g: g.replace("step", "choice"), "`step` has no field `steps` … known: runs"),
    ("G201 guards.log_due", lambda g: g.guard("log_due", "log.due and"), "not an expression"),
    ("G201 guards.log_due", lambda g: g.guard("log_due", "log.due && step.steps > 3"),
     "not an expression … `node.field`, numbers, comparisons such as `==`, and the words `and`, `or`, `not`"),
    ("G202 guards.log_due", lambda g: g.guard("log_due", "true"), "unknown name `true` … did you mean `True`?"),
    ("G201 guards.log_due", lambda g: g.guard("log_due", "open('x')"), "unknown function `open`"),
    ("G202 guards.log_due", lambda g: g.guard("log_due", "log_deu"), "unknown name `log_deu` … `log_due`"),
    ("G202 guards.log_due", lambda g: g.guard("log_due", "log"), "unknown name `log` … `log` is a node; read one of"),
    ("G202 guards.log_due", lambda g: g.guard("log_due", "lgo.due"), "unknown node `lgo` in `lgo.due` … `log`"),
    *((("G202 guards.ending", lambda g, text=text: g.guard("ending", f"finish.due or {text}"),
        f"unknown name … {remedy}")) for text, remedy in (
            ("epochs >= 1", "read `next_batch.epochs`"), ("epoch > 1", "read `next_batch.epochs`"),
            ("steps > 9", "read `step.steps`"), ("batches > 9", "read `next_batch.batches`"),
            ("val_loss < 0.1", "early_stop.monitor"), ("accuracy > 0.9", "early_stop.monitor"),
            ("val/loss < 0.1", "return loss, graphtrain.STOP"))),
    ("G202 guards.ending", lambda g: g.guard("ending", "finish.due or model"),
     "no node writes a slot `model`: expressions read slots and fields, not resources"),
    ("G203 guards.log_due", lambda g: g.guard("log_due", "log.deu"), "`log` has no field `deu` … `due`"),
    ("G204 guards.log_due", lambda g: g.guard("log_due", "log.every"),
     "is not a number, text or truth value … `log.due`"),
    ("G203 guards.x_due", lambda g: g.insert("x", "choice", at="decide", before="log"),
     "`x` has no field `due` … its kind needs a parameter `every: Trigger`"),
    ("G204 guards.ending", lambda g: g.guard("ending", or_="loss < 0.1"),
     "the slot `loss` holds no number, text or truth value … early_stop.monitor … return loss, graphtrain.STOP"),
    ("G204 guards.log_due", lambda g: g.guard("log_due", "step.steps"), "expected true or false … `> 0`"),
    ("G204 guards.log_due", lambda g: g.guard("log_due", "'yes'"), "the expression is a string"),
    ("G204 guards.log_due", lambda g: g.guard("log_due", "not step.steps"), "takes a boolean, not a number … `> 0`"),
    ("G204 guards.log_due", lambda g: g.guard("log_due", "log.due + 1 > 0"), "`+` takes a number, not a boolean"),
    ("G204 guards.log_due", lambda g: g.guard("log_due", "step.steps == 'a'"), "`==` takes values of one type"),
    ("G204 guards.log_due", lambda g: g.guard("log_due", "'a' < 'b'"), "`<` compares numbers"),
    ("G204 guards.log_due", lambda g: g.guard("log_due", "log.fired == 1"), "is not a number, text or truth value"),
    ("G205 guards.log_due", lambda g: g.guard("log_due", "1 < 2"), "is always true … needs no guard"),
    ("G205 guards.log_due", lambda g: g.guard("log_due", "log.due and False"), "is always false … can be removed"),
    ("G206 edges.decide", lambda g: g.guard("log_due", "validate . due"), "has the same guard"),
    ("G207 guards.log_due", lambda g: g.guard("log_due", "not log_due"),
     "defined in terms of itself: log_due -> log_due"),
    ("G207 guards.log_due", lambda g: g.guard("log_due", "log.due and schedule_due").guard("schedule_due", "log_due"),
     "defined in terms of itself: log_due -> schedule_due -> log_due"),
    ("G208 guards.loss", lambda g: g.guard("log_due", "log.due or loss").guard("loss", "step.steps > 1"),
     "a slot has the same name, `loss` … rename the guard"),
    ("G114 guards.pi", lambda g: g.guard("pi", "step.steps > 1").connect("decide", "log", when="pi"),
     "`pi` is not a valid name for a guard"),
    ("G115 nodes.train_batch.writes.loss", lambda g: g.set("train_batch", writes={"loss": "pi"}),
     "`pi` is not a valid name for a slot"),
    ("G201 guards.log_due", lambda g: g.guard("log_due", "sqr(step.steps) > 1"), "unknown function `sqr`"),
    ("G204 guards.log_due", lambda g: g.guard("log_due", "max(step.steps, 'a') > 1"), "`max` takes a number"),
    ("G204 guards.log_due", lambda g: g.guard("log_due", "log.due if step.steps else True"),
     "`if` takes a boolean, not a number … `> 0`"),
    ("G204 guards.log_due", lambda g: g.guard("log_due", "log.due if step.steps > 1 else 1"),
     "`if` takes values of one type, not a boolean and a number"),
    ("G202 guards.log_due", lambda g: g.guard("log_due", "validate/nxt_batch.last"),
     "unknown node `validate/nxt_batch` in `validate/nxt_batch.last` … did you mean `validate/next_batch`?"),
    ("G203 guards.log_due", lambda g: g.guard("log_due", "validate/next_batch.lst"),
     "`validate/next_batch` has no field `lst` … did you mean `last`?"),
    *((f"{code} nodes.accumulate.reads.every", lambda g, text=text: g.set("accumulate", reads={"every": text}),
       f"accumulate.every: {fragment}") for code, text, fragment in (
           ("G201", "1 +", "not an expression"),
           ("G201", "sqr(4)", "unknown function `sqr`"),
           ("G202", "1 + lss", "no node writes a slot `lss` … did you mean `loss`?"),
           ("G202", "epoch", "no node writes a slot `epoch` … it is a unit of the clock: read `next_batch.epochs`"),
           ("G202", "model", "no node writes a slot `model`: expressions read slots and fields, not resources"),
           ("G202", "1 + stp.steps", "unknown node `stp` … did you mean `step`?"),
           ("G203", "1 + step.stps", "`step` has no field `stps` … did you mean `steps`?"),
           ("G203", "step.stps", "`step` has no field `stps` … did you mean `steps`?"),
           ("G204", "next_batch.epochs + 1", "expected an integer > 0, but the expression is a number … `floor`"),
           ("G204", "log.due", "expected an integer > 0, but the expression is a boolean"),
           ("G204", "1 + log.due", "`+` takes a number, not a boolean"),
           ("G207", "accumulate.every + 1", "defined in terms of itself: accumulate.every -> accumulate.every"))),
    ("G207 nodes.clip.reads.max_norm",
     lambda g: g.set("clip", reads={"max_norm": "2 * clip.norm_type", "norm_type": "clip.max_norm + 1"}),
     "defined in terms of itself: clip.max_norm -> clip.norm_type -> clip.max_norm"),
    ("G211 nodes.next_batch.reads.limit", lambda g: g.set("next_batch", reads={"limit": "step.steps + 1"}),
     "`next_batch.limit` cannot be given an expression … none"),
    ("G211 nodes.accumulate.reads.every", lambda g: g.set("accumulate", reads={"every": ["step.steps"]}),
     "or is a list"),
    ("G104 nodes.clip.max_norm", lambda g: g.set("clip", max_norm="1 / (1 + step.steps)"),
     "expected a number, got … reads = { max_norm"),
    ("G101 clock.x", lambda g: g.clock("x", "validate/nxt.batches"), "unknown node `validate/nxt`"),
    ("G116 clock.x", lambda g: g.clock("x", "validate/next_batch.lst"), "has no field `lst` … `last`"),
    ("G116 clock.x", lambda g: g.clock("x", "validate/next_batch.batches"), "in a nested graph … `validate` here"),
    ("G209 guards.spare", lambda g: g.guard("spare", "log.due"), "no edge and no expression names it"),
    ("G119 nodes.train_batch", lambda g: g.set("train_batch", precision="16-mixed"),
     "nothing scales the loss … --overlay fp16"),
    ("G102 nodes.my_kind", lambda g: g.insert("my_kind", after="step"),
     "unknown kind `my_kind` … declare it with @node, in a script that `check` imports with --script"),
    ("G102 nodes.grad_norm", lambda g: g.insert("grad_norm", after="step"),
     'unknown kind `grad_norm` … did you mean `gradient_norm`? … or declare it with @node'),
    ("G102 nodes.norm", lambda g: g.insert("norm", kind="gradient_norm", after="exchange"),
     'unknown kind `norm` … a node with another name than its kind has use = "KIND"; or declare it'),
    ("G119 nodes.rollback", lambda g: g.overlay("rollback").set("checkpoint", every="never"),
     'no node saves one … let a `checkpoint` save, as in `fit`: every = "1 epochs"'),
    ("G411 nodes.gradient_norm", lambda g: bound("d train_batch accumulate exchange clip step zero_grad")(g).overlay(
        "gradient_norm"), '`optimizer`, but no node runs backward for it … name another: reads = { optimizer = "d" }'),
    ("G501 edges.decide", lambda g: g.insert("again", graph=EVALUATE, at="decide", before="log"),
     'through `decide`, `again` forever … let its guard read `again.due`, … again.every = "100 steps"'),
    ("G501 edges.decide", lambda g: g.guard("log_due", "step.steps % 10 == 0"),
     'through `decide`, `log` forever … let its guard read `log.due`, … log.every = "100 steps"'),
    ("G501 edges.decide", lambda g: g.overlay("ema").guard("finished", "clip.max_norm > 3"),
     "only `finished` could end the loop … let the guard read progress of a node of the loop"),
    ("G303 edges.decide", lambda g: add(g, "score", after="train_batch").guard("ending", or_="score > 1"),
     "reads `score` before it is written … ask first, as in `score.runs > 0 and ...`"),
]  # fmt: skip

# A verb that is refused at once.
VERBS: list[tuple[Edit, str]] = [
    *((edit, f"{place}: there is no node `stp` … did you mean `step`?") for edit, place in (
        (lambda g: g.insert("x", after="stp"), "insert: after"),
        (lambda g: g.insert("x", before="stp"), "insert: before"),
        (lambda g: g.replace("stp", "step"), "replace"),
        (lambda g: g.remove("stp"), "remove"),
        (lambda g: g.remove("clip", to="stp"), "remove: to"),
        (lambda g: g.connect("stp", "clip"), "connect"),
        (lambda g: g.disconnect("stp", "clip"), "disconnect"),
        (lambda g: g.set("stp", x=1), "set"),
        (lambda g: g.rename("stp", "x"), "rename"),
        (lambda g: g.insert("x", between=("stp", "clip")), "insert: between"),
        (lambda g: g.insert("x", "choice", at="stp", before="log"), "insert: at"),
    )),
    (lambda g: g.insert("clip"), "insert: there is already a node `clip` … choose another name, or use `replace`"),
    (lambda g: g.insert("end", "choice"),
     "insert: there is already a node `end`"),
    (lambda g: g.insert("x", between=("step", "clip")),
     'insert: between: there is no edge from `step` to `clip` … its edges: "zero_grad"'),
    (lambda g: g.insert("x", between=("step",)),
     'insert: between: expected a list of 2: a string, a string, got ["step"]'),
    (lambda g: g.insert("x", after="step", before="clip"), "insert: give one of `after`, `before` and `between`"),
    (lambda g: g.insert("x", "clip", graph="evaluate"),
     "`x` has both `use` and `graph` … a node uses a kind, or has a graph as its body"),
    (lambda g: g.insert("x", EVALUATE),
     'insert: `use` of `x` takes a kind, got <Graph evaluate … a body is given as insert("x", graph=...)'),
    (lambda g: g.replace("clip", EVALUATE),
     'replace: `use` of `clip` takes a kind, got <Graph evaluate … a body is given as set("clip", graph=...)'),
    (lambda g: g.insert("x", graph="evalute"), "there is no graph `evalute` … did you mean `evaluate`?"),
    (lambda g: g.insert("x", graph=3), "graph: expected a name, a path or a Graph, got 3"),
    (lambda g: g.remove("finish"),
     'remove: `finish` has 2 targets … choose: remove("finish", to="end") or remove("finish", to="decide")'),
    (lambda g: g.insert("x", "choice").remove("x"), "remove: `x` has no edge to follow … give `to`"),
    (lambda g: g.connect("step", "clp"), "connect: there is no node `clp` … did you mean `clip`?"),
    (lambda g: g.connect("step", "clip"),
     'connect: `step` already has an unguarded edge, to `zero_grad` … use redirect("step", "zero_grad", "clip")'),
    (lambda g: g.disconnect("step", "clip"),
     'disconnect: there is no edge from `step` to `clip` … its edges: "zero_grad"'),
    (lambda g: g.redirect("step", "clip", "log"),
     'redirect: there is no edge from `step` to `clip` … its edges: "zero_grad"'),
    (lambda g: g.redirect("step", "zero_grad", "clp"), "redirect: there is no node `clp` … did you mean `clip`?"),
    (lambda g: g.set("validate.next_batch", limit=1),
     "set: there is no node `validate.next_batch` … did you mean `validate/next_batch`?"),
    (lambda g: g.set("clip/x", x=1), "set: `clip` has no graph inside … its parameters are set as `clip.NAME`"),
    (lambda g: g.set("validate/nxt_batch", x=1), "set: there is no node `nxt_batch` … did you mean `next_batch`?"),
    (lambda g: g.set("clip", reads=3), "clip.reads: expected a table, got 3"),
    (lambda g: g.set("clip", reads={"a": 3}), "clip.reads: a: expected a string or a list of strings, got 3"),
    (lambda g: g.set("clip", writes={"a": ["b"]}), 'clip.writes: a: expected a string, got ["b"]'),
    (lambda g: g.set("clip", max_norm=None),
     'clip.max_norm: None cannot be written in a graph … leave the parameter out for its default; … "never"'),
    (lambda g: g.set("clip", max_norm=object),
     "clip.max_norm: <class 'object'> cannot be written in a graph … goes into a resource of the Trainer"),
    (lambda g: g.set("clip", a=[1, {"b": None}]),
     "clip.a: None cannot be written in a graph … goes into a resource of the Trainer"),
    (lambda g: g.set("clip", a={1: 2}),
     "clip.a: {1: 2} cannot be written in a graph … goes into a resource of the Trainer"),
    (lambda g: g.rename("step", "clip"), "rename: there is already a node `clip`"),
    (lambda g: g.rename("validate/nxt_batch", "x"),
     "rename: there is no node `nxt_batch` … did you mean `next_batch`?"),
    (lambda g: g.rename("validate/next_batch", "eval_batch"), "rename: there is already a node `eval_batch`"),
    (lambda g: g.rename("step/x", "y"), "rename: there is no node `step/x`: `step` has no body"),
    (lambda g: g.rename("step", "end"), "rename: there is already a node `end`"),
    (lambda g: g.guard("x", 3), "guard: expression: expected a string, got 3"),
    (lambda g: g.clock("x", 3), "clock: field: expected a string, got 3"),
    (lambda g: g.clock("x", "stp.steps"), "clock: there is no node `stp` … did you mean `step`?"),
    (lambda g: g.remove(["step"]), 'remove: name: expected a string, got ["step"]'),
    (lambda g: g.insert("x", "choice", at="decide"),
     "insert: `at` takes `before` or `after`: which edge of `decide` is tried next to that to `x`"),
    (lambda g: g.insert("x", "choice", at="decide", after="next_batch"),
     "connect: after: the edge from `decide` to `next_batch` has no guard, so none after it is tried … use `before`"),
    (lambda g: g.connect("decide", "step", "log_due", before="log", after="log"),
     "connect: give one of `before` and `after`"),
    (lambda g: g.connect("step", "log", "log_due", before="clip"),
     'connect: before: there is no edge from `step` to `clip` … its edges: "zero_grad"'),
    (lambda g: g.connect("step", "log", "log_due", after="zero_grad"),
     "connect: after: the edge from `step` to `zero_grad` has no guard, so none after it is tried … use `before`"),
    (lambda g: g.insert("x", "choice").disconnect("x", "log"),
     "disconnect: there is no edge from `x` to `log` … its edges: none"),
    (lambda g: g.guard("x"), "guard: `x` takes an `expression`, or an `or` or `and` to widen it"),
    (lambda g: g.guard("endings", or_="a"), "guard: there is no guard `endings` to widen … did you mean `ending`?"),
    (lambda g: g.guard("ending", and_=3), "guard: and: expected a string, got 3"),
    (lambda g: g.replace("early_stop", "choice"), "replace: there is no node `early_stop`"),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "edit", "parts"), CHECKED, ids=[f"{one[0]} {one[2][:30]}" for one in CHECKED])
def test_one_mistake_is_one_problem_at_its_place(expected: str, edit: Edit, parts: str) -> None:
    (problem,) = edit(FIT).check()
    code, place = expected.split(" ", 1)
    assert (problem.code, problem.where.split(" ", 1)[-1].removeprefix("fit.toml:")) in {
        (code, place), (code, place.split(" ", 1)[-1])}  # fmt: skip
    assert says(f"{problem.message} {problem.hint}", parts), problem
    assert problem.severity == ("warning" if code == "G209" else "error")


@pytest.mark.parametrize(("verb", "parts"), VERBS, ids=[parts for _, parts in VERBS])
def test_a_verb_is_refused_and_changes_nothing(verb: Edit, parts: str) -> None:
    before = FIT.to_json()
    with pytest.raises(GraphtrainError) as caught:
        verb(FIT)
    assert says(f"{caught.value.message} {caught.value.hint}", parts), caught.value
    assert isinstance(caught.value, ValueError)
    assert FIT.to_json() == before


# ---- texts


TINY = """\
format = 1
name = "tiny"
start = "a"
[nodes]
a = { use = "choice" }
b = { use = "choice" }
[guards]
ready = "a.runs > 3"
[edges]
a = ["b if ready", "a"]
b = ["end"]
"""


def problems_of(text: str) -> list[Problem]:
    """The problems of reading and checking together, as `graphtrain check` reports them."""
    try:
        return Graph.loads(text, name="my.toml").check()
    except GraphError as error:
        assert isinstance(error, ValueError)
        return list(error.problems)


# What replaces what in `TINY`; the code of the one problem, and its line (0: the file alone).
TEXTS: list[tuple[str, str, str, str]] = [
    ("b = {", "b = {x = True, ", "G001 6", "Invalid value"),
    ("name =", "name :", "G001 2", "Expected '='"),
    ('b = { use', 'b = {\nuse', "G001 6", "an inline table is on one line … a table of its own: [nodes.NAME]"),
    ("format = 1", "format = " + "9" * 5000, "G001 0", "Exceeds the limit"),
    ("format = 1\n", "", "G003 0", "`format = 1` is expected at the top; it is missing"),
    ("format = 1", "format = 2", "G003 1", "`format = 1` is expected at the top; got 2"),
    ('start = "a"\n', "", "G003 0", '`start` is missing … `start = "NODE"` names the node that runs first'),
    ("name =", "max_epochs = 3\nname =", "G002 2",
     'unknown key `max_epochs` … that is `finish.after = "N epochs"` here'),
    ("name =", "nam =", "G002 2", "unknown key `nam` … did you mean `name`?"),
    ('name = "tiny"', "name = 3", "G003 2", "name: expected a string, got 3"),
    ('start = "a"', 'start = ["a"]', "G003 3", 'start: expected a string, got ["a"]'),
    ("[nodes]", 'optimizer = ""\n[nodes]', "G003 4", 'optimizer: expected the name of a resource or a slot, got ""'),
    ("name =", "allow = 3\nname =", "G003 2", "allow: expected a list of strings, got 3"),
    ("b = {", "max_epochs = 3\nb = {", "G003 6",
     'nodes.max_epochs: expected a table of parameters, got 3 … that is `finish.after = "N epochs"` here'),
    ('b = { use = "choice" }', "b = 3", "G003 6",
     "nodes.b: expected a table of parameters, got 3 … write `b = {}`, or a separate table: [nodes.b]"),
    ("b = {", 'edges = ["x"]\nb = {', "G003 6",
     'nodes.edges: expected a table of parameters, got ["x"] … it belongs at the top level, above [nodes]'),
    ("[guards]", 'edges = { a = ["b"] }\n[guards]', "G114 7",
     "`edges` cannot be the name of a node … write [edges] at the top level"),
    ('use = "choice" }\n[', "use = 3 }\n[", "G003 6", "nodes.b.use: expected a string, got 3"),
    ('use = "choice" }\n[', 'use = "nested" }\n[', "G104 6",
     '`b.graph` is missing … write graph = "NAME" instead of use = "nested"'),
    ('use = "choice" }\n[', "graph = 3 }\n[", "G003 6", "nodes.b.graph: expected a name, a path or a table, got 3"),
    ("b = {", 'b = { graph = "evaluate", ', "G003 6", "nodes.b has both `use` and `graph` … keep one of them"),
    ('use = "choice" }\n[', 'graph = "evalute" }\n[', "G004 6",
     "nodes.b.graph: there is no graph `evalute` … did you mean `evaluate`?"),
    ('use = "choice" }\n[', 'graph = "/etc/passwd" }\n[', "G004 6",
     "nodes.b.graph: `/etc/passwd`: a graph must name others by shipped name or relative path"),
    ("b = {", "b = { reads = 3, ", "G003 6", "nodes.b.reads: expected a table, got 3"),
    ("b = {", "b = { reads = { x = 3 }, ", "G003 6", "nodes.b.reads: x: expected a string or a list of strings, got 3"),
    ('ready = "a.runs > 3"', "ready = true", "G003 8", "guards.ready: expected a string, got true"),
    ("a.runs > 3", "a.rnus > 3", "G203 8",
     'guard `ready`: `a` has no field `rnus`\n    ready = "a.rnus > 3" … did you mean `runs`?'),
    ("[edges]", '[clock]\nx = "b.rnus"\n[edges]', "G116 10", "`b` has no field `rnus` … did you mean `runs`?"),
    ("[edges]", "[clock]\nx = 3\n[edges]", "G003 10", "clock.x: expected a string, got 3"),
    ("[edges]", 'clock = 3\n[edges]', "G003 9", "guards.clock: expected a string, got 3"),
    ('b = ["end"]', "b = 3", "G003 11", "edges.b: expected a list of strings, got 3"),
    ('["end"]', '["end if a.runs > 3", "end"]', "G003 11",
     'edges.b: expected "target" or "target if guard", got "end if … define the expression under [guards]'),
    ('["end"]', '["a -> end", "end"]', "G003 11", 'edges.b: expected "target" or "target if guard", got "a -> end"'),
    ('["end"]', '["end if raedy", "end"]', "G105 11", "unknown guard `raedy` … did you mean `ready`?"),
    ('["end"]', '[\n "a if ready",\n "endd",\n]', "G101 11", "unknown node `endd` … did you mean `end`?"),
    ('b = ["end"]', 'b = ["end"]\nc = ["end"]', "G101 12", "unknown node `c` … known: a, b"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "expected", "parts"), TEXTS, ids=[f"{row[1][:40]!r}" for row in TEXTS])
def test_a_mistake_in_a_file_has_its_line(old: str, new: str, expected: str, parts: str) -> None:
    assert TINY.count(old) == 1
    (problem,) = problems_of(TINY.replace(old, new))
    code, line = expected.split()
    assert problem.code == code
    assert problem.where.split(" ")[0] == (f"my.toml:{line}" if line != "0" else "my.toml")
    assert says(f"{problem.message} {problem.hint}", parts), problem
    assert len(str(problem)) < 400


# A bad table after the header [[edit]], which stands on line 3.
EDITS: list[tuple[str, str]] = [
    ('insert = "x"\nafter = "stp"', "insert: after: there is no node `stp` … did you mean `step`?"),
    ('insert = "x"\nafter = 3',
     "insert: after: expected a string, got 3"),
    ("remove = 3", "edit: remove: expected a string, got 3"),
    ('insert = "x"\nbetween = "step"', "insert: between: expected a list of 2: a string, a string"),
    ('inser = "x"', "edit: no verb in {'inser': 'x'} … did you mean `insert`?"),
    ('insert = "a"\nset = "b"',
     "edit: two verbs in one table, `insert` and `set` … begin a separate table with [[edit]]"),
    ('set = "clip"\nreads = 3', "clip.reads: expected a table, got 3"),
    ('set = "clip"\ngraph = 3', "graph: expected a name, a path or a Graph, got 3"),
    ('connect = "step"',
     "connect: missing a required argument: 'target' … it takes source, target, when, before, after"),
    ('rename = "clip"\nnew = "a"\nto = "x"',
     "rename: got an unexpected keyword argument 'to' … it takes old, new"),
    ('guard = "x"', "guard: `x` takes an `expression`, or an `or` or `and` to widen it"),
    ('nest = "v"\ngraph = "evalute"', "there is no graph `evalute` … did you mean `evaluate`?"),
    ('nest = "v"\ngraph = "no.toml"', "there is no graph `no.toml`"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "parts"), EDITS, ids=[table.replace("\n", ", ") for table, _ in EDITS])
def test_a_bad_edit_has_its_line(table: str, parts: str) -> None:
    (problem,) = problems_of(f'format = 1\nextends = "fit"\n[[edit]]\n{table}\n')
    assert problem.where == "my.toml:3"
    assert says(f"{problem.message} {problem.hint}", parts), problem


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        ('extends = "fitt"', 2, "there is no graph `fitt` … did you mean `fit`?"),
        ('extends = "/a/b.toml"', 2, "a graph must name others by shipped name or relative path"),
        ('extends = "fit"\nclock = "a"', 3, "unknown key `clock` … [[edit]]"),
        ('extends = "fit"\n[nodes]', 3, "unknown key `nodes` … [[edit]]"),
        ('extends = "fit"\nedit = 3', 3, "edit: expected tables written as [[edit]]"),
        ('extends = "fit"\nedit = [3]', 3, "edit: expected a table, got 3"),
        ('extends = "fit"\n[edit]\nset = "clip"', 3, "edit: expected tables written as [[edit]]"),
        ('extends = "fit"\nmax_steps = 3', 3, 'unknown key `max_steps` … `finish.after = "N steps"`'),
        *((f'extends = "fit"\n{key} = [1]', 3, f"unknown key `{key}`") for key in ("nodes", "edges", "guards")),
        ('start = "a"\n[edges]\na = ["end"]', 0, "`nodes` is missing … write it as [nodes]"),
        ('start = "a"\n[nodes]\na = { use = "choice" }', 0, "`edges` is missing … write it as [edges]"),
    ],
)
def test_bad_sections(text: str, line: int, parts: str) -> None:
    (problem,) = problems_of(f"format = 1\n{text}")
    assert problem.where == (f"my.toml:{line}" if line else "my.toml")
    assert says(f"{problem.message} {problem.hint}", parts), problem


def test_all_mistakes_of_a_text_come_at_once() -> None:
    text = """\
format = 3
start = 4
max_epochs = 3
[nodes]
a = 3
b = { reads = 3, graph = "absent" }
[guards]
g = 3
[edges]
a = ["b if x > 0", "b"]
b = { c = 1 }
[clock]
steps = []
"""
    places = [(int(one.where.removeprefix("my.toml:").split(" ")[0]), one.code) for one in problems_of(text)]
    expected = [(line, "G003") for line in (1, 2, 5, 6, 8, 10, 11, 13)] + [(3, "G002"), (6, "G004")]
    assert sorted(places) == sorted(expected)
    with pytest.raises(GraphError, match=r"graph `my.toml` has 10 problems:") as caught:
        Graph.loads(text, name="my.toml")
    assert str(caught.value).count("my.toml:") == 10


def test_all_mistakes_that_need_the_kinds_come_at_once() -> None:
    text = FIT.to_toml()
    for old, new in [
        ("accumulate = { every = 1 }", "accumulate = { accumulate_grad_batches = 4 }"),
        ("clip = { max_norm = inf }", 'clip = { max_norm = "fast" }'),
        ("step = {}", 'step = { use = "stpe" }'),
        ('"50 steps"', '"50 step"'),
        ("keep = 2", "keep = true"),
        ('"log.due"', '"log.deu"'),
        ('"10 epochs"', '"0 epochs"'),
        ('clip = ["step"]', 'clip = ["stp"]'),
    ]:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    found = {f"{one.code} {one.where.split(' ')[-1]}" for one in problems_of(text)}
    assert found >= {"G101 edges.clip", "G102 nodes.step", "G103 nodes.accumulate.accumulate_grad_batches",
                     "G104 nodes.clip.max_norm", "G104 nodes.checkpoint.keep", "G104 nodes.finish.after",
                     "G106 nodes.log.every", "G203 guards.log_due"}  # fmt: skip


# ---- files


def write(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x89PNG\r\n\x1a\n\0", "is not UTF-8 text (byte 0)"),
        (TINY.encode("utf-16"), "is not UTF-8 text (byte 0)"),
        (b"PK\x03\x04\0\0", "G001"),
        (b"", "`format = 1` is expected at the top; it is missing"),
    ],
)
def test_files_that_are_no_graphs(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(GraphtrainError) as caught:
        Graph.load(write(tmp_path / "x.toml", content))
    assert message in str(caught.value) and "x.toml" in str(caught.value)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "loop.toml").symlink_to(tmp_path / "loop.toml")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    sources: list[tuple[Any, str]] = [
        (tmp_path / "absent.toml", "there is no graph `"),
        (str(tmp_path / "absent.toml"), "there is no graph `"),
        (str(tmp_path), "there is no graph `"),
        (tmp_path / "run", "there is no checkpoint in"),
        (tmp_path / "loop.toml", "there is no graph `"),
        ("fitt", "did you mean `fit`?"),
        ("qqqqq", "; a path ends in .toml"),
        ("", "there is no graph ``"),
        ("a\0b.toml", "there is no graph `a\\x00b.toml`"),
        ("a" * 5000, "there is no graph `aaa"),
    ]
    for source, message in sources:
        with pytest.raises(UsageError) as caught:
            Graph.load(source)
        assert message in str(caught.value) and len(str(caught.value)) < 700


NAMING = {
    "extends": 'format = 1\nextends = "NAME"\n',
    "graph": TINY.replace('b = { use = "choice" }', 'b = { graph = "NAME" }'),
    "edit": 'format = 1\nextends = "fit"\n[[edit]]\nset = "validate"\ngraph = "NAME"\n',
    "inline": 'format = 1\nextends = "fit"\n[[edit]]\nset = "validate"\ngraph = { extends = "NAME" }\n',
}


@pytest.mark.parametrize("form", NAMING)
@pytest.mark.parametrize("other", ["itself", *NAMING])
def test_circles_of_files_are_named(tmp_path: Path, form: str, other: str) -> None:
    write(tmp_path / "a.toml", NAMING[form].replace("NAME", "a.toml" if other == "itself" else "sub/../b.toml"))
    (tmp_path / "sub").mkdir()
    if other != "itself":
        write(tmp_path / "b.toml", NAMING[other].replace("NAME", "a.toml"))
    with pytest.raises(GraphError, match=r"(?s)extend or contain each other in a cycle.*let one of them") as caught:
        Graph.load(tmp_path / "a.toml")
    (problem,) = caught.value.problems
    named = str(tmp_path / ("a.toml" if other == "itself" else "b.toml"))
    assert problem.where.startswith(named) or "sub" in problem.where
    assert str(tmp_path / "a.toml") in problem.message


def test_problems_of_a_nested_file_name_that_file(tmp_path: Path) -> None:
    inner = write(tmp_path / "inner.toml", TINY.replace('"end"', '"end if x > 0"'))
    with pytest.raises(GraphError) as caught:
        Graph.load(write(tmp_path / "a.toml", NAMING["graph"].replace("NAME", "inner.toml")))
    assert [problem.where for problem in caught.value.problems] == [f"{inner}:11"]


def test_what_cannot_be_saved_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("mine")
    odd = replace(FIT.nodes["clip"], parameters={"max_norm": None})
    for graph, name, message in (
        (FIT, "mine.toml", "exists; a file is never overwritten"),
        (FIT, "absent/x.toml", "No such file or directory"),
        (FIT.set("clip", a="\ud800"), "x.toml", "a lone surrogate"),
        (replace(FIT, nodes={**FIT.nodes, "clip": odd}), "x.toml", "clip.max_norm: None cannot be written"),
        *((FIT, name, f'graph.render("{tmp_path}/{name}")') for name in ("x.svg", "x.PNG", "x.pdf", "x.dot", "x.mmd")),
    ):
        with pytest.raises(GraphtrainError) as caught:
            graph.save(tmp_path / name)
        assert message in f"{caught.value.message} {caught.value.hint}"
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("mine.toml", "mine")]
