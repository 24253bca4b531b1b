"""What a plan has of a graph: parameters, slots that an epoch forgets, and slots that guards read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from graphtrain import Edge, Graph, Node, Trigger, node
from graphtrain.plan.flow import Flow, changers
from graphtrain.plan.plan import Plan
from graphtrain.plan.scope import ResourceTarget
from graphtrain.plan.slots import SavePoints, Slots, alive, alive_for_a_resume
from tests.checks.corpus import tiny

FIT = Graph.load("fit")


# With a parameter that is an expression, a slot of a step function, and a trigger at the end.
EDITED = (
    FIT.set("accumulate", reads={"every": "1 + step.steps // 7"})
    .set("train_batch", writes={"seen": "seen"})
    .set("log", every="1 epochs")
    .set("checkpoint", best="val/loss")
)
_MAY_ACT = {"train_batch", "validate", "zero_grad"}
_MAY_RECORD = {"end_epoch", "finish", "log", "train_batch", "validate"}


@pytest.mark.parametrize(
    ("guard", "names"),
    [
        ("next_batch.last", {"next_batch"}),
        ("next_batch.last and step.steps > 3", {"next_batch", "step"}),
        ("accumulate.count > 1", _MAY_ACT),
        ("accumulate.window > 1", _MAY_ACT - {"zero_grad"}),
        ("accumulate.every > 1", {"step"}),
        ("clip.max_norm > 1", set()),
        ("validate.runs > 1", {"validate"}),
        ("validate/next_batch.batches > 1", {"validate"}),
        ("seen > 2", {"train_batch"}),
        ("loss > 2", {"train_batch"}),
        ("schedule.due", {"schedule", "step"}),
        ("finish.due", {"next_batch"}),  # it keeps no state of its own
        ("log.due", {"log", "next_batch"}),
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
    assert slots.guards[decide] == slots.bits(["seen"]) > slots.bits(["model"]) == 0


SMALL = Graph.loads(
    """
    format = 1
    name = "small"
    start = "measure"
    clock.rounds = "a.runs"
    guards = { small = "measure.runs < 3", big = "b.runs > 2", log_due = "log.due" }
    [nodes]
    measure = {}
    a = { use = "choice" }
    b = { use = "choice" }
    show = {}
    log = { every = "2 rounds" }
    late = { use = "log", every = "3 rounds" }
    [edges]
    measure = ["a"]
    a = ["b if small", "show if small", "log if log_due", "log"]
    b = ["late if small", "end if big", "end"]
    show = ["end"]
    log = ["end"]
    late = ["end"]
    """
)


def test_an_edge_whose_guard_is_known_is_taken_by_no_run_but_may_be_by_a_resume() -> None:
    flow = Flow(Plan(SMALL.replace("measure", measure).replace("show", show)))
    (a,), (b,), (entry, due) = flow.exits["a"], flow.exits["b"], flow.entries["log"]
    assert [arrow.target for arrow in a.arrows] == [*flow.entries["b"], due, entry]
    assert [arrow.target for arrow in b.arrows] == [flow.entries["late"][0]], "not due as far as is known"
    assert [arrow.target for arrow in a.closed] == [*flow.entries["show"]]
    assert [arrow.target for arrow in b.closed] == [flow.end, flow.end]
    slots = Slots(flow)
    assert (slots.named(alive(slots).before[a]), slots.named(alive_for_a_resume(slots).before[a])) == ([], ["level"])


WATCHED = (
    FIT.insert("odd", "of_another_package", after="step")
    .set("log", **{"every": "2 steps", "from": "1 epochs"})
    .set("validate", every="never")
    .set("checkpoint", every="never", best="val/loss")
)


@pytest.mark.parametrize(
    ("path", "trigger", "start", "extra", "is_never_due", "can_be_skipped"),
    [
        ("step", None, None, (), False, False),
        ("log", "2 steps", "1 epochs", (), False, True),
        ("finish", "10 epochs", None, (), False, False),
        ("validate", "never", None, (), True, True),
        ("checkpoint", "never", None, ("improved",), False, True),  # a good value makes it due
        ("odd", None, None, (), False, False),
    ],
)
def test_when_a_node_is_due(
    path: str, trigger: str | None, start: str | None, extra: tuple[str, ...], is_never_due: bool, can_be_skipped: bool
) -> None:
    planned = Plan(WATCHED).by_path[path]
    expected = [None if text is None else Trigger(text) for text in (trigger, start)]
    assert [planned.trigger, planned.start] == expected
    assert planned.triggers == tuple(each for each in expected if each is not None)
    assert (planned.extra_due_fields, planned.is_never_due, planned.can_be_skipped) == (
        extra,
        is_never_due,
        can_be_skipped,
    )


def test_what_a_node_writes_clears_and_needs() -> None:
    body = replace(Graph.load("evaluate"), outputs=("metrics?", "samples"))
    plan = Plan(
        FIT.set("validate", graph=body)
        .set("train_batch", writes={"seen": "seen"})
        .insert("odd", "strange", after="step")
    )
    validate, train, odd = (plan.by_path[path] for path in ("validate", "train_batch", "odd"))
    assert (validate.writes, validate.maybe, validate.own_writes) == (
        ("metrics", "samples"),
        ("metrics",),
        ("metrics", "samples"),
    )
    assert (train.writes, train.maybe, train.own_writes, train.returned) == (
        ("loss", "seen"),
        (),
        ("loss",),
        {"seen": "seen"},
    )
    assert (odd.writes, odd.maybe, odd.kills, odd.optional) == ((), (), frozenset(), ())
    assert (plan.by_path["begin_epoch"].kills, train.kills) == ({"seen"}, frozenset())
    assert {each.path for each in plan.nodes if each.needs_ranks} == {"exchange"}
    assert [target.name for target in validate.optional if isinstance(target, ResourceTarget)] == ["val_data"]
    assert plan.by_path["step"].optimizers == ("optimizer",)
    assert [(action.effect, action.optimizers) for action in plan.by_path["clip"].actions] == [("clip", ("optimizer",))]


def test_what_is_read_of_a_body_from_around_it() -> None:
    plan = Plan(FIT.guard("log_due", "log.due and validate/next_batch.batches > 3 and validate.runs > 1"))
    assert plan.fields_read_of("validate") >= {("validate", "runs"), ("validate/next_batch", "batches")}
    assert ("validate/next_batch", "last") not in plan.fields_read_of("validate"), "only inside"
    assert ("validate/next_batch", "last") in plan.fields_read
    assert plan.fields_read_of("clip") == frozenset()
    assert ("end_epoch", "runs") in plan.fields_read and ("clip", "runs") not in plan.fields_read
    assert plan.terms(plan.main, Trigger("3 steps"))[0][:2] == (plan.by_path["step"], "steps")
    # The runs of a node that only an unused unit counts are not read; a trigger makes them so.
    assert ("validate", "runs") not in Plan(FIT).fields_read
    assert ("validate", "runs") in Plan(FIT.set("finish", after="3 validations")).fields_read


def test_a_backward_pass_reads_the_size_of_the_window_that_it_may_open() -> None:
    opened = {path: [read.name for read, _ in planned.opens] for path, planned in Plan(EDITED).by_path.items()}
    assert {path: names for path, names in opened.items() if names} == {"train_batch": ["accumulate.every"]}


@node(writes="level")
def measure() -> int:
    return 1


@node
def show(level: Any) -> None: ...


@node
class SetUpWithLevel:
    """Read a slot once, if there is one."""

    def setup(self, level: Any = None) -> None: ...

    def __call__(self) -> None: ...


@node
class NeedsLevel:
    """Read a slot once."""

    def setup(self, level: Any) -> None: ...

    def __call__(self) -> None: ...


@pytest.mark.parametrize("kind", [SetUpWithLevel, NeedsLevel])
def test_what_a_body_was_set_up_with_is_saved_and_need_not_be_there_if_it_has_a_default(kind: type) -> None:
    body = Graph("body", "wait", {"wait": Node("wait", "choice")}, {"wait": (Edge("end"),)})
    body = body.insert("reading", kind, after="wait")
    graph = FIT.insert("measure", measure, after="step").insert("inner", graph=body, after="measure")
    points = SavePoints(Slots(Flow(Plan(graph))))
    for path, saved in (("measure", []), ("inner", ["level"]), ("inner/wait", ["level"]), ("zero_grad", [])):
        assert points.alive(path) == saved, path
        assert points.needed(path) == (saved if kind is NeedsLevel else []), path


def test_a_way_that_no_run_takes_may_be_that_of_a_resume() -> None:
    """Where a guard is evaluated again its value is known; a resume may go on with another graph."""
    names = {"next_batch": "next_batch", "hub": "choice", "again": "choice", "read_score": "read_score"}
    edges = {
        "next_batch": ["first"],
        "first": ["hub"],
        "hub": ["read_score if odd", "second"],
        "second": ["again"],
        "again": ["read_score if odd", "end"],
        "read_score": ["end"],
    }
    graph = tiny(names | {"first": "score", "second": "score"}, edges, {"odd": "next_batch.batches % 2 == 1"})
    graph = replace(graph, start="next_batch")
    assert SavePoints(Slots(Flow(Plan(graph)))).alive("again") == ["score"]


def test_a_guard_that_says_nothing_of_a_trigger_makes_no_node_due() -> None:
    names = {"next_batch": "next_batch", "hub": "choice", "at_times": "score_at_times", "read_score": "read_score"}
    edges = {
        "next_batch": ["hub"],
        "hub": ["at_times if odd", "end"],
        "at_times": ["read_score"],
        "read_score": ["end"],
    }
    graph = tiny(names, edges, {"odd": "next_batch.batches % 2 == 1"}, units={"steps": "next_batch.batches"})
    assert [problem.code for problem in graph.check() if "score" in problem.message] == ["G304"]
