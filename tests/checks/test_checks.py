"""The checks: each code from the smallest edit that deserves it, at its place, and nothing for a sound graph."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest

import graphtrain.checks.expressions
import graphtrain.checks.guards
import graphtrain.checks.structure
from graphtrain import Edge, Graph, Node, Problem, Trigger, node, progress
from graphtrain.checks import check_graph, gradient_rules
from graphtrain.plan.scope import value_type

FIT = Graph.load("fit")
EVALUATE = Graph.load("evaluate")


def without_last(graph: Graph, source: str) -> Graph:
    return replace(graph, edges={**graph.edges, source: graph.edges[source][:-1]})


def appended(graph: Graph, source: str, *edges: Edge) -> Graph:
    return replace(graph, edges={**graph.edges, source: (*graph.edges[source], *edges)})


# code, edit of `fit`, thing, message, hint. Exactly this one problem is found.
CASES: list[tuple[str, Callable[[Graph], Graph], str, str, str]] = [
    ("G101", lambda g: replace(g, start="decid"), "start", "unknown node `decid`", "did you mean `decide`?"),
    ("G101", lambda g: appended(without_last(g, "step"), "step", Edge("zero_gard")), "edges.step",
     "unknown node `zero_gard`", "did you mean `zero_grad`?"),
    ("G101", lambda g: g.clock("x", "stp.steps"), "clock.x", "unknown node `stp` in `stp.steps`", "`step`"),
    ("G101", lambda g: g.set("train_batch", reads={"window": "acumulate.every"}), "nodes.train_batch.reads.window",
     "unknown node `acumulate` in `acumulate.every`", "`accumulate`"),
    ("G102", lambda g: g.replace("clip", "clpi"), "nodes.clip", "unknown kind `clpi`", "did you mean `clip`?"),
    ("G103", lambda g: g.set("clip", max_nrm=1), "nodes.clip.max_nrm",
     "unknown parameter `clip.max_nrm` of kind `clip`",
     "did you mean `max_norm`?"),
    ("G103", lambda g: g.set("clip", gradient_clip_val=1), "nodes.clip.gradient_clip_val", "unknown parameter",
     "that is `clip.max_norm = X` here"),
    ("G104", lambda g: g.set("clip", max_norm="fast"), "nodes.clip.max_norm", 'expected a number, got "fast"', ""),
    ("G104", lambda g: g.set("accumulate", every=2.0), "nodes.accumulate.every", "expected an integer, got 2.0", ""),
    ("G104", lambda g: g.set("accumulate", every=10**19), "nodes.accumulate.every",
     "expected an integer > 0 of at most 64 bits, got 10000000000000000000", ""),
    ("G104", lambda g: g.overlay("ema").set("ema", decay=1.0), "nodes.ema.decay",
     "expected a number < 1, got 1.0", ""),
    ("G104", lambda g: g.overlay("fp16").set("unscale", init_scale=math.inf), "nodes.unscale.init_scale",
     "expected a number > 0 and < inf, got inf", ""),
    ("G104", lambda g: g.set("log", every=50), "nodes.log.every", 'a trigger such as "100 steps", got 50', ""),
    ("G104", lambda g: g.set("validate/begin_evaluation", split=3), "validate/nodes.begin_evaluation.split",
     "expected a string, got 3", ""),
    ("G104", lambda g: g.replace("clip", "nested"), "nodes.clip", "`clip.graph` is missing", 'graph = "NAME"'),
    ("G105", lambda g: g.connect("step", "end", when="log_deu"), "edges.step", "unknown guard `log_deu`", "`log_due`"),
    ("G105", lambda g: g.connect("step", "end", when="1 > 0"), "edges.step", "unknown guard `1 > 0`",
     "define the expression as a guard"),
    ("G106", lambda g: g.set("log", every="50 step"), "nodes.log.every", 'unknown unit `step` in log.every = "50 step"',
     "did you mean `steps`?"),
    ("G106", lambda g: g.set("finish", after=["1 epochs", "3 tokens"]), "nodes.finish.after",
     "unknown unit `tokens`", ""),
    ("G107", lambda g: g.insert("x", "choice").connect("x", "decide"), "nodes.x",
     "no path leads from the start, `decide`, to `x`", 'remove = "x"'),
    ("G108", lambda g: g.insert("x", "choice").connect("step", "x", when="log_due").connect("x", "x"), "nodes.x",
     "no path leads from `x` to `end`", "add an edge"),
    ("G109", lambda g: without_last(g, "finish"), "edges.finish", 'the last edge, "end if finished", has a guard',
     'write "end"'),
    ("G110", lambda g: appended(g, "finish", Edge("step", "log_due"), Edge("step")), "edges.finish",
     '"decide" has no guard, so what follows it is never taken: "step if log_due", "step"', "move it to the end"),
    ("G111", lambda g: g.connect("decide", "log", when="log_due"), "edges.decide",
     'the edge "log if log_due" is listed twice', ""),
    ("G113", lambda g: g.disconnect("step", "zero_grad"), "edges.step", "`step` has no edge", 'step = ["..."]'),
    ("G114", lambda g: g.rename("step", "not"), "nodes.not",
     "`not` is not a valid name for a node", "not a keyword of Python"),
    ("G114", lambda g: g.insert("a b", "choice", after="step"), "nodes.a b",
     "`a b` is not a valid name for a node", "letters"),
    ("G114", lambda g: g.insert("ﬁt", "choice", after="step"), "nodes.ﬁt", "`ﬁt` is not a valid name for a node", ""),
    ("G114", lambda g: g.insert("edges", "choice", after="step"), "nodes.edges", "cannot be the name of a node",
     "[edges]"),
    ("G115", lambda g: g.set("clip", reads={"optimiser": "x"}), "nodes.clip.reads", "`clip` reads no slot `optimiser`",
     "did you mean `optimizer`?"),
    ("G115", lambda g: g.set("train_batch", writes={"los": "x"}), "nodes.train_batch.writes", "writes no slot `los`",
     "`loss`"),
    ("G115", lambda g: g.set("train_batch", writes={"loss": "a b"}), "nodes.train_batch.writes.loss",
     "`a b` is not a valid name for a slot", ""),
    ("G115", lambda g: g.set("validate", writes={"metric": "x"}), "nodes.validate.writes", "writes no slot `metric`",
     "did you mean `metrics`?"),
    ("G115", lambda g: replace(g, outputs=("los",)), "outputs", "no node writes the output `los`", "`loss`"),
    ("G116", lambda g: g.clock("x", "step.stps"), "clock.x", "`step` has no field `stps`", "did you mean `steps`?"),
    ("G116", lambda g: g.clock("x", "steps"), "clock.x", 'expected "node.field", got "steps"', ""),
    ("G116", lambda g: g.clock("x", "next_batch.last"), "clock.x", "`next_batch.last` is not a number", ""),
    ("G201", lambda g: g.guard("log_due", "log.due and"), "guards.log_due", "not an expression", ""),
    ("G201", lambda g: g.guard("log_due", "open('x')"), "guards.log_due", "unknown function `open`", ""),
    ("G202", lambda g: g.guard("log_due", "log_deu"), "guards.log_due", "unknown name `log_deu`", "`log_due`"),
    ("G202", lambda g: g.guard("log_due", "log"), "guards.log_due", "unknown name `log`",
     "`log` is a node; read one of"),
    ("G202", lambda g: g.guard("log_due", "lgo.due"), "guards.log_due", "unknown node `lgo` in `lgo.due`", "`log`"),
    *(("G202", lambda g, text=text: g.guard("ending", f"finish.due or {text}"), "guards.ending", "unknown name", hint)
      for text, hint in (
          ("epochs >= 1", "read `next_batch.epochs`"), ("epoch > 1", "read `next_batch.epochs`"),
          ("steps > 9", "read `step.steps`"), ("batches > 9", "read `next_batch.batches`"),
          ("val_loss < 0.1", "early_stop.monitor"), ("accuracy > 0.9", "early_stop.monitor"),
          ("val/loss < 0.1", "return loss, graphtrain.STOP"),
      )),
    ("G202", lambda g: g.guard("ending", "finish.due or model"), "guards.ending",
     "no node writes a slot `model`: an expression reads saved state, no resources", ""),
    ("G203", lambda g: g.guard("log_due", "log.deu"), "guards.log_due", "`log` has no field `deu`", "`due`"),
    ("G204", lambda g: g.guard("log_due", "log.every"), "guards.log_due", "is not a number, text or truth value",
     "`log.due`"),
    ("G204", lambda g: g.guard("log_due", "step.steps"), "guards.log_due", "this is a number", "`> 0`"),
    ("G204", lambda g: g.guard("log_due", "'yes'"), "guards.log_due", "this is a string", ""),
    ("G204", lambda g: g.guard("log_due", "not step.steps"), "guards.log_due", "`not` takes a boolean", "`> 0`"),
    ("G204", lambda g: g.guard("log_due", "log.due + 1 > 0"), "guards.log_due", "`+` takes a number; `log.due`", ""),
    ("G204", lambda g: g.guard("log_due", "step.steps == 'a'"), "guards.log_due", "cannot be compared", ""),
    ("G204", lambda g: g.guard("log_due", "'a' < 'b'"), "guards.log_due", "`<` compares numbers", ""),
    ("G204", lambda g: g.guard("log_due", "log.fired == 1"), "guards.log_due", "is not a number, text or truth value",
     ""),
    ("G205", lambda g: g.guard("log_due", "1 < 2"), "guards.log_due", "is always true", "needs no guard"),
    ("G205", lambda g: g.guard("log_due", "log.due and False"), "guards.log_due", "is always false", "can be removed"),
    ("G206", lambda g: g.guard("log_due", "validate . due"), "edges.decide", 'has the same guard', ""),
    ("G207", lambda g: g.guard("log_due", "not log_due"), "guards.log_due",
     "defined in terms of itself: log_due -> log_due", ""),
    ("G207", lambda g: g.guard("log_due", "log.due and schedule_due").guard("schedule_due", "log_due"),
     "guards.log_due",
     "defined in terms of itself: log_due -> schedule_due -> log_due", ""),
    ("G208", lambda g: g.guard("log_due", "log.due or loss").guard("loss", "step.steps > 1"), "guards.loss",
     "a slot is called `loss` too", "rename the guard"),
    ("G208", lambda g: g.guard("pi", "step.steps > 1").connect("decide", "log", when="pi"), "guards.pi",
     "`pi` is the number in every expression", "rename the guard"),
    ("G208", lambda g: g.set("train_batch", writes={"loss": "pi"}).guard("log_due", "pi > 3 and log.due"),
     "guards.log_due", "a slot is called `pi`", "rename the slot"),
    ("G208", lambda g: g.set("validate", writes={"metrics": "validate"}).guard("log_due", "validate > 3 and log.due"),
     "guards.log_due", "a slot is called `validate`, as is a node with a body", "rename the slot"),
    ("G201", lambda g: g.guard("log_due", "sqr(step.steps) > 1"), "guards.log_due", "unknown function `sqr`",
     ""),
    ("G204", lambda g: g.guard("log_due", "max(step.steps, 'a') > 1"), "guards.log_due", "`max` takes a number", ""),
    ("G204", lambda g: g.guard("log_due", "log.due if step.steps else True"), "guards.log_due",
     "`if` takes a boolean; `step.steps` is a number", "`> 0`"),
    ("G204", lambda g: g.guard("log_due", "log.due if step.steps > 1 else 1"), "guards.log_due",
     "`log.due` is a boolean and `1` a number", ""),
    ("G202", lambda g: g.guard("log_due", "validate/nxt_batch.last"), "guards.log_due",
     "unknown node `validate/nxt_batch` in `validate/nxt_batch.last`", "did you mean `validate/next_batch`?"),
    ("G203", lambda g: g.guard("log_due", "validate/next_batch.lst"), "guards.log_due",
     "`validate/next_batch` has no field `lst`", "did you mean `last`?"),
    *((code, lambda g, text=text: g.set("accumulate", reads={"every": text}), "nodes.accumulate.reads.every",
       f"accumulate.every: {message}", hint) for code, text, message, hint in [
        ("G201", "1 +", "not an expression", ""),
        ("G201", "sqr(4)", "unknown function `sqr`", ""),
        ("G202", "1 + lss", "no node writes a slot `lss`", "did you mean `loss`?"),
        ("G202", "model", "no node writes a slot `model`: an expression reads saved state, no resources", ""),
        ("G202", "1 + stp.steps", "unknown node `stp`", "did you mean `step`?"),
        ("G203", "1 + step.stps", "`step` has no field `stps`", "did you mean `steps`?"),
        ("G203", "step.stps", "`step` has no field `stps`", "did you mean `steps`?"),
        ("G204", "next_batch.epochs + 1", "expected an integer > 0, and the expression is a number", "`floor`"),
        ("G204", "log.due", "expected an integer > 0, and the expression is a boolean", ""),
        ("G204", "1 + log.due", "`+` takes a number; `log.due` is a boolean", ""),
        ("G207", "accumulate.every + 1", "defined in terms of itself: accumulate.every -> accumulate.every", ""),
    ]),
    ("G207", lambda g: g.set("clip", reads={"max_norm": "2 * clip.norm_type", "norm_type": "clip.max_norm + 1"}),
     "nodes.clip.reads.max_norm", "defined in terms of itself: clip.max_norm -> clip.norm_type -> clip.max_norm", ""),
    ("G211", lambda g: g.set("next_batch", reads={"limit": "step.steps + 1"}), "nodes.next_batch.reads.limit",
     "`next_batch.limit` cannot be given an expression", "none"),
    ("G211", lambda g: g.set("accumulate", reads={"every": ["step.steps"]}), "nodes.accumulate.reads.every",
     "or is a list", ""),
    ("G104", lambda g: g.set("clip", max_norm="1 / (1 + step.steps)"), "nodes.clip.max_norm",
     "expected a number, got", "reads = { max_norm"),
    ("G101", lambda g: g.clock("x", "validate/nxt.batches"), "clock.x", "unknown node `validate/nxt`", ""),
    ("G116", lambda g: g.clock("x", "validate/next_batch.lst"), "clock.x", "has no field `lst`", "`last`"),
    ("G209", lambda g: g.guard("spare", "log.due"), "guards.spare", "no edge and no other guard names it", ""),
    ("G117", lambda g: replace(g, allow=("G490",)), "allow", "`G490` is not the code of a check", "did you mean `G4"),
    ("G117", lambda g: replace(g, allow=("G101",)), "allow", "`G101` cannot be allowed", "fix the graph"),
    ("G119", lambda g: g.set("train_batch", precision="16-mixed"), "nodes.train_batch", "nothing scales the loss",
     "--overlay fp16"),
    ("G102", lambda g: g.insert("my_kind", after="step"), "nodes.my_kind", "unknown kind `my_kind`",
     "declare it with @node, in a script that `check` imports by --script"),
    ("G102", lambda g: g.insert("grad_norm", after="step"), "nodes.grad_norm", "unknown kind `grad_norm`",
     'did you mean `gradient_norm`? A node of another name has use = "KIND". Or declare it with @node'),
]  # fmt: skip


@pytest.mark.first(68)
@pytest.mark.parametrize(
    ("code", "edit", "thing", "message", "hint"), CASES, ids=[f"{one[0]} {one[2]} {one[3][:30]}" for one in CASES]
)
def test_one_mistake_is_one_problem_with_its_code_and_place(
    code: str, edit: Callable[[Graph], Graph], thing: str, message: str, hint: str
) -> None:
    problems = edit(FIT).check()
    assert [problem.code for problem in problems] == [code], problems
    (problem,) = problems
    assert problem.where.split(" ", 1)[-1].removeprefix("fit.toml:") == thing or problem.where == thing
    assert message in problem.message
    assert hint in problem.hint
    assert problem.severity == ("warning" if code in ("G117", "G209") else "error")


def test_every_code_of_the_checks_is_met_above() -> None:
    said: set[str] = set()
    for module in (graphtrain.checks.expressions, graphtrain.checks.guards, graphtrain.checks.structure):
        with open(module.__file__) as file:
            said |= set(re.findall(r'"(G[12]\d\d)"', file.read()))
    assert said == {code for code, *_ in CASES}


@pytest.mark.parametrize("graph", [FIT, EVALUATE], ids=["fit", "evaluate"])
def test_shipped_graphs_have_no_problem(graph: Graph) -> None:
    assert check_graph(graph) == []
    assert Graph.loads(graph.to_toml()).check() == []
    assert Graph.from_json(graph.to_json()).check() == []


def test_a_problem_in_a_file_names_its_line() -> None:
    text = FIT.set("clip", max_norm="fast").to_toml()
    (problem,) = Graph.loads(text, name="my.toml").check()
    line = int(problem.where.removeprefix("my.toml:").split(" ")[0])
    assert text.split("\n")[line - 1].startswith("clip = ")


def test_a_problem_does_not_name_a_line_that_says_something_else() -> None:
    (problem,) = FIT.set("clip", max_norm="fast").check()
    assert problem.where == "nodes.clip.max_norm", "fit.toml says nothing wrong"
    (problem,) = FIT.guard("log_due", "log.deu").check()
    assert problem.where == "guards.log_due"


def test_a_prompt_shows_problems_as_lines() -> None:
    problems = FIT.set("clip", max_norm="fast").guard("spare", "log.due").check()
    assert repr(problems) == str(problems) == "\n".join(map(str, problems)) and len(problems) == 2
    assert repr(FIT.check()) == "[]"


def test_a_dead_end_has_a_witness() -> None:
    graph = FIT.insert("x", "choice").connect("step", "x", when="log_due").connect("x", "x")
    (problem,) = graph.check()
    assert problem.path[0] == "decide"
    assert problem.path[-2:] == ("step", "x")
    for source, target in zip(problem.path, problem.path[1:], strict=False):
        assert target in {edge.target for edge in graph.edges[source]}
    assert f"path: {' -> '.join(problem.path)}" in str(problem)


def test_one_missing_edge_is_not_reported_at_every_other_node() -> None:
    graph = FIT.disconnect("finish", "end").disconnect("finish", "decide")
    assert [problem.code for problem in graph.check()] == ["G113"]
    for graph in (EVALUATE.redirect("end_evaluation", "end", "eval_batch"), FIT.disconnect("finish", "end")):
        assert [problem.code for problem in graph.check()] == ["G108"]
    (problem,) = FIT.disconnect("finish", "end").check()
    assert "no path leads from `finish` to `end`, nor from the 14 others of its loop" in problem.message
    assert 'finish = ["end if GUARD", ...]' in problem.hint and problem.path == ("decide", "finish")
    two = FIT.connect("step", "log", when="log_due").redirect("log", "decide", "log")
    two = two.insert("x", "choice").connect("clip", "x", when="log_due").connect("x", "x")
    assert [(problem.code, problem.where.split(" ")[-1]) for problem in two.check()] == [
        ("G108", "nodes.log"),
        ("G108", "nodes.x"),
    ]


def test_warnings_can_be_allowed_and_errors_of_paths() -> None:
    spare = FIT.guard("spare", "log.due")
    assert replace(spare, allow=("G209",)).check() == []
    assert [problem.code for problem in replace(spare, allow=("G403",)).check()] == ["G209"]
    twice = FIT.insert("again", "step", after="step")
    assert [(one.code, one.severity) for one in twice.check()] == [("G403", "error")]
    assert replace(twice, allow=("G403",)).check() == []
    wrong = replace(FIT.set("clip", max_norm="x"), allow=("G104",))
    assert [problem.code for problem in wrong.check()] == ["G117", "G104"]


def test_what_depends_on_a_kind_that_is_not_known_is_no_problem_of_its_own() -> None:
    for edit in (
        lambda g: g.replace("step", "my_kind").clock("steps", "step.steps"),
        lambda g: g.replace("train_batch", "my_kind").guard("log_due", "log.due and my_loss > 0.5"),
        lambda g: g.replace("exchange", "my_kind").guard("accumulation_reached", and_="accumulate.exchanged"),
        lambda g: g.insert("judge", "my_kind", after="validate").guard("log_due", "log.due and judge.whatever > 3"),
        lambda g: g.set("validate", graph=EVALUATE.replace("next_batch", "my_kind")),
    ):
        assert [problem.code for problem in edit(FIT).check()] == ["G102"]


def test_what_the_outer_graph_allows_holds_inside() -> None:
    inside = FIT.set("validate", graph=EVALUATE.guard("spare", "next_batch.last"))
    assert [problem.where for problem in inside.check()] == ["validate/guards.spare"]
    assert replace(inside, allow=("G209",)).check() == []


def test_a_circle_is_reported_once_and_only_for_its_members() -> None:
    graph = FIT.guard("log_due", "a").guard("a", "b and log.due").guard("b", "c").guard("c", "b")
    found = [problem for problem in graph.check() if problem.code == "G207"]
    assert [problem.where for problem in found] == ["guards.b"]


def test_a_duplicate_is_seen_through_names() -> None:
    found = FIT.guard("log_due", "val_check_batch").check()
    assert [problem.code for problem in found] == ["G206"]
    assert '"validate if val_check_batch" is never taken: "log if log_due" is evaluated before' in found[0].message or (
        '"log if log_due" is never taken' in found[0].message
    )


@pytest.mark.parametrize(
    "expression", ["accumulate.every > 0", "validate.due", "clip.max_norm < 1", "accumulate.every == 1"]
)
def test_a_guard_of_a_parameter_is_not_constant(expression: str) -> None:
    assert FIT.guard("log_due", f"log.due and {expression}").check() == []


def test_a_renamed_slot_is_known_by_its_new_name_alone() -> None:
    renamed = FIT.set("train_batch", writes={"loss": "d_loss"})
    assert renamed.guard("good", "d_loss > 0").connect("train_batch", "accumulate", when="good").check() == []
    assert "G208" in [problem.code for problem in renamed.guard("d_loss", "log.due").check()]
    assert replace(renamed, outputs=("d_loss",)).check() == []


def test_slots_in_guards_may_hold_anything() -> None:
    assert FIT.guard("good", "loss > 0").connect("train_batch", "accumulate", when="good").check() == []


# --- With kinds of one's own ---------------------------------------------------------------------------------------


@pytest.fixture
def own() -> None:
    @node(name="own")
    class Own:
        """Has fields of every type."""

        needed: int
        mode: Literal["a", "b"] = "a"
        size: int | None = None
        sizes: list[int] = [1]  # noqa: RUF012
        pair: tuple[int, int] = (1, 2)
        anything: Any = None
        count: int = progress(0)
        seen: list[int] = progress([])

        @property
        def ratio(self) -> float:
            return 0.5

        def __call__(self) -> None: ...


def tiny(expression: str, **parameters: Any) -> Graph:
    nodes = {"own": Node("own", "own", parameters)}
    edges = {"own": (Edge("own", "again"), Edge("end"))}
    return Graph("tiny", "own", nodes, edges, {"again": expression}, allow=("G501", "G502"))


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("expression", "codes"),
    [
        ("own.count > 0", []),
        ("own.ratio < 0.5", []),
        ("own.size == 3", []),
        ("own.mode == 'a'", []),
        ("own.mode == 3", ["G204"]),
        ("own.mode", ["G204"]),
        ("own.sizes > 3", ["G204"]),
        ("own.pair == 3", ["G204"]),
        ("own.seen == 1", ["G204"]),
        ("own.anything and own.anything > 3", []),
        ("own.runs > 3", []),
        ("own.due", ["G203"]),
    ],
)
def test_types_of_fields(expression: str, codes: list[str]) -> None:
    assert [problem.code for problem in tiny(expression, needed=3).check()] == codes


@pytest.mark.usefixtures("own")
def test_a_parameter_without_default_is_missed() -> None:
    (problem,) = tiny("own.count > 0").check()
    assert (problem.code, problem.where) == ("G104", "nodes.own.needed")
    assert problem.message == "`own.needed` is missing: an integer"


@pytest.mark.usefixtures("own")
def test_lists_choices_and_tuples_are_checked() -> None:
    good = tiny("own.count > 0", needed=1, mode="b", size=3, sizes=[1, 2], pair=[3, 4], anything={"a": 1})
    assert good.check() == []
    bad = tiny("own.count > 0", needed=1.5, mode="c", size="x", sizes=[1, "a"], pair=[3])
    assert [problem.message for problem in bad.check()] == [
        "own.needed: expected an integer, got 1.5",
        'own.mode: expected one of "a", "b", got "c"',
        'own.size: expected an integer, got "x"',
        'own.sizes: expected an integer, got "a"',
        "own.pair: expected a list of 2: an integer, an integer, got [3]",
    ]


def test_the_unit_of_a_default_is_checked_too() -> None:
    @node
    def beep(*, every: Trigger = Trigger("5 steps")) -> None:  # noqa: B008
        """Beep."""

    (problem,) = EVALUATE.insert("beep", after="eval_batch").check()
    assert (problem.code, problem.where) == ("G106", "nodes.beep.every")
    assert EVALUATE.insert("beep", after="eval_batch").set("beep", every="3 batches").check() == []


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (bool, "boolean"),
        (int, "integer"),
        (float | None, "number"),
        (int | float, "number"),
        (str, "string"),
        (Literal["a", "b"], "string"),
        (Literal[1, 2], "integer"),
        (Literal["a", 1], "other"),
        (int | str, "other"),
        (list[int], "other"),
        (tuple[int, ...], "other"),
        (dict[str, int], "other"),
        (Callable[[int], int], "other"),
        (Trigger, "trigger"),
        (Trigger | None, "trigger"),
        (Any, "unknown"),
    ],
)
def test_value_types(annotation: Any, expected: str) -> None:
    assert value_type(annotation) == expected


def test_a_problem_prints_and_is_plain() -> None:
    problem = Problem("G101", "error", "a.toml:3", "what", "do this", ("a", "b"))
    assert str(problem) == "a.toml:3: error G101: what\n    path: a -> b\n    do this"
    assert problem.as_plain()["path"] == ["a", "b"]


def test_a_graph_given_as_a_kind_is_a_body() -> None:
    (problem,) = check_graph(FIT.insert("test", "evaluate", after="validate"))
    assert problem.code == "G102"
    assert problem.hint == '`evaluate` is a graph: give it as graph = "evaluate"'


def test_nodes_of_a_body_that_do_not_name_their_optimizer_are_one_problem_at_the_node_around_them() -> None:
    graph = Graph.loads(
        'format = 1\nstart = "a"\nnodes.a = { graph = "fit" }\n'
        'nodes.b = { graph = "fit", reads = { optimizer = "b_optimizer" } }\nedges.a = ["b"]\nedges.b = ["end"]'
    )
    (problem,) = graph.set("b/begin_epoch", use="begin_epoch").check()
    assert (problem.code, problem.where.split(" ")[-1]) == ("G410", "nodes.a")
    assert "as 4 more in `a` do" in problem.message and "for at `a`: reads = { optimizer" in problem.hint
    assert graph.set("a", reads={"optimizer": "optimizer"}).check() == []


def test_what_an_effect_does_to_gradients_is_said_for_one_process_and_for_several() -> None:
    effects = {effect for effect, _ in gradient_rules._rules(gradient_rules._TABLE)}
    assert effects == {effect for effect, _ in gradient_rules._rules(gradient_rules._TABLE_OF_RANKS)}
    states = {state for _, state in gradient_rules.RULES_OF_RANKS}
    assert {*gradient_rules.RULES_OF_RANKS} == {(effect, state) for effect in effects for state in states}
