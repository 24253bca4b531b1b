"""Promise 5: a run or a loop that cannot end is refused with its nodes; one that some visit lets out is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from graphtrain import Graph, GraphError, Problem
from tests.graph.corpus import EVALUATE, FIT, KINDS, add, periodic, plain, small, tiny


def loops_of(graph: Graph) -> list[Problem]:
    return [problem for problem in graph.check() if problem.code.startswith("G5")]


def names_in(problem: Problem) -> set[str]:
    """The nodes that a run cannot leave."""
    listed = problem.message.partition("forever")[0]
    return set(listed.split("`")[1::2])


def waiting_from(every: str, start: str) -> Graph:
    """A round is counted, then a loop that counts ticks waits for `b` to be due."""
    units = {"rounds": "c.ticks", "ticks": "a.ticks"}
    graph = tiny({**TICKS, "c": "tick"}, "c a; a: end if due, b; b a", {"due": "b.due"}, units=units)
    return graph.set("b", every=every, **{"from": start})


TICKS = {"a": "tick", "b": "tick_at_times"}
JUNCTION = {"a": "tick", "b": "choice"}
OWN = dict.fromkeys(("train_batch", "again", "first", "second"), "own_pass")
UPDATE = {"train_batch", "accumulate", "exchange", "clip", "step", "zero_grad"}


def ticking(edges: str, guards: dict[str, str], **more: Any) -> Graph:
    """A node that is due at times, and one that counts."""
    return tiny(TICKS, edges, guards, units={"steps": "a.ticks"}).set("b", **more)


def waiting_for_loss() -> Graph:
    return tiny({"x": "tick", "y": "use_loss"}, "x y; y: end if enough, x", {"enough": "loss > 2"})


def counting() -> Graph:
    return tiny({"x": "tick", "y": "choice"}, "x y; y: end if over, x", {"over": "x.ticks > 2"})


ENDLESS: list[tuple[str, Graph, set[str]]] = [
    ("a guard that stays true hides the edges behind it", FIT.guard("epoch_done", "next_batch.last"),
     {"decide", "end_epoch", "log"}),
    ("a step after each pass, and never a batch", FIT.redirect("zero_grad", "decide", "train_batch"), UPDATE),
    ("an epoch that begins with no batch",
     replace(FIT.redirect("decide", "next_batch", "train_batch"), allow=("G304",)),
     {*UPDATE, "decide", "log", "validate", "schedule", "checkpoint"}),
    ("a window that is full with no pass", FIT.set("accumulate", every=1).guard(
        "finished", "accumulate.full and accumulate.count == 0"),
     {*UPDATE, "begin_epoch", "next_batch", "decide", "end_epoch", "log", "validate", "schedule", "checkpoint"}),
    ("an answer and its opposite one after the other", tiny(
        JUNCTION, "a: b if odd, a if even, end; b a",
        {"odd": "a.ticks % 2 == 1", "even": "not a.ticks % 2 == 1"}), {"a", "b"}),
    ("a count of passes that is the same at each visit",
     plain(train_batch=["accumulate"], accumulate=["end if two", "step"], zero_grad=["next_batch"])
     .guard("two", "accumulate.count > 1"), {"next_batch", "train_batch", "accumulate", "step", "zero_grad"}),
    ("a count that the ways which it allows keep the same", tiny(
        {**OWN, "a": "tick", "last": "step", "clear": "zero_grad"},
        "again: train_batch if empty, clip; clip step zero_grad train_batch accumulate; accumulate: again if few, "
        "last; last clear a; a: end if empty, again",
        {"empty": "accumulate.count == 0", "few": "accumulate.count < 2"}),
     {*UPDATE, "again"} - {"exchange"}),
    ("a loop that is entered with another count than there is after clearing", tiny(
        {**OWN, "a": "choice", "b": "tick"},
        "first second a; a: b if two, train_batch; b a; train_batch accumulate step zero_grad; "
        "zero_grad: end if done, a",
        {"two": "accumulate.count == 2", "done": "accumulate.runs > 3"}), {"a", "b"}),
    ("a body that does not count", tiny(
        {**OWN, "inner": EVALUATE},
        "inner accumulate; accumulate: train_batch if some, inner; train_batch step zero_grad end",
        {"some": "accumulate.count > 0"}), {"inner", "accumulate"}),
    ("a body that reads what only the graph around it changes", tiny(
        {"a": "tick", "body": (waiting_for_loss(), {"reads": {"loss": "a.ticks"}})}, "a body end"),
     {"body/x", "body/y"}),
    ("never", ticking("a b; b: end if due, a", {"due": "b.due"}, every="never"), {"a", "b"}),
    ("once is not due again", ticking("a b; b: end if due, a", {"due": "b.due"}, every="once"), {"a", "b"}),
    ("a start that is counted outside the loop", waiting_from("1 ticks", "3 rounds"), {"a", "b"}),
    ("an amount that is counted outside the loop", waiting_from("2 rounds", "3 ticks"), {"a", "b"}),
    ("what is due once, from a start that is counted outside the loop", waiting_from("once", "3 rounds"),
     {"a", "b"}),
    ("what is due once, and waited for again, from a start that the loop counts", ticking(
        "a b; b: end if often, a", {"often": "b.ticks >= 3"}, every="once", **{"from": "3 steps"}), {"a", "b"}),
    ("a start that the node itself would have to count",
     FIT.set("validate", **{"from": "5 validations"}, graph=replace(EVALUATE, optional=()))
     .guard("finished", "validate.runs >= 3 and accumulate.count == 0"),
     {*UPDATE, "begin_epoch", "next_batch", "decide", "end_epoch", "log", "schedule", "checkpoint"}),
    ("what a body counted, read by a loop without it", tiny(
        {"body": counting(), "a": "choice", "b": "tick"}, "body a; a: end if over, b; b a",
        {"over": "body/x.ticks > 5"}), {"a", "b"}),
]  # fmt: skip


@pytest.mark.first(10)
@pytest.mark.parametrize(("graph", "nodes"), [row[1:] for row in ENDLESS], ids=[row[0] for row in ENDLESS])
def test_a_graph_with_a_trap_is_refused_with_the_nodes_that_cannot_be_left(graph: Graph, nodes: set[str]) -> None:
    (problem,) = loops_of(graph)
    assert (problem.code, problem.severity) == ("G501", "error")
    assert names_in(problem) and names_in(problem) <= nodes
    assert set(problem.path) <= nodes


SOUND: list[tuple[str, Graph]] = [
    ("a count that grows", tiny({"a": "tick"}, "a: a if few, end", {"few": "a.runs < 3"})),
    ("a count that would end the run at once", tiny({"a": "tick"}, "a: end if few, a", {"few": "a.runs < 3"})),
    ("a trigger that fires whatever the guards before it answer", periodic(FIT, "again", KINDS["tick_at_times"])),
    ("a window that is longer than an epoch", FIT.set("accumulate", every=100)),
    ("what is due once, and not again after it has run",
     ticking("a b; b: a if due, end", {"due": "b.due"}, every="once")),
    ("a node at the hub that is due once", periodic(FIT, "again", KINDS["tick_at_times"], every="once")),
    ("an end that waits for what is due once, from some step on",
     ticking("a: b if due, a; b end", {"due": "b.due"}, every="once", **{"from": "3 steps"})),
    ("an end that waits for what is counted in the loop, from a start on", waiting_from("1 ticks", "3 ticks")),
    ("what a body counts, read by a loop around it",
     tiny({"body": counting(), "a": "choice"}, "body a; a: end if over, body", {"over": "body/x.ticks > 5"})),
    ("an end by steps alone", FIT.set("finish", after="3 steps")),
    ("an answer and its opposite, both of which lead on", tiny(
        JUNCTION, "a: b if odd, end if even, a; b a", {"odd": "a.ticks % 2 == 1", "even": "a.ticks % 2 != 1"})),
    ("a body that counts for the graph around it", tiny(
        {"inner": tiny(OWN, "train_batch end")},
        "inner accumulate; accumulate: step if full, inner; step zero_grad end",
        {"full": "accumulate.count >= accumulate.every"})),
    ("a body that is entered only when due, and reads that it is", tiny(
        {"a": "tick", "body": (tiny({"x": "tick", "y": "use_loss"}, "x y; y: end if over, x",
                                    {"over": "loss and x.ticks > 2"}),
                               {"every": "2 ticks", "reads": {"loss": "body.due"}})},
        "a body; body: end if done, a", {"done": "a.ticks > 5"}, units={"ticks": "a.ticks"})),
    ("a body that reads the count of passes around it, to which it adds", tiny(
        {"body": (tiny({"x": "own_pass", "y": "use_loss"}, "x y; y: end if enough, x", {"enough": "loss > 2"}),
                  {"reads": {"loss": "accumulate.count"}})}, "body accumulate step zero_grad end")),
    ("a body that reads a field of its own by way of the graph around it",
     tiny({"body": (waiting_for_loss(), {"reads": {"loss": "body/x.ticks"}})}, "body end")),
]  # fmt: skip


@pytest.mark.parametrize("graph", [row[1] for row in SOUND], ids=[row[0] for row in SOUND])
def test_a_graph_without_a_trap_is_silent(graph: Graph) -> None:
    assert loops_of(graph) == []


def ending_by_validation() -> Graph:
    return FIT.set("finish", after="never").guard("finished", "validate.runs >= 3 and accumulate.count == 0")


def test_a_run_that_only_a_resource_could_end_is_refused_without_it() -> None:
    (problem,) = loops_of(ending_by_validation())
    assert (problem.code, problem.severity) == ("G501", "warning"), "it may be supplied"
    assert problem.message.startswith("without `val_data` the run can loop through ")
    assert "only `val_check_batch`, `finished` could end the loop, " in problem.message
    assert "remove it from `optional`" in problem.hint
    with pytest.raises(GraphError, match="error G501: without `val_data`"):
        small(ending_by_validation()).but(val_data=lambda made: None).trainer()
    needed = ending_by_validation().set("validate", graph=replace(EVALUATE, optional=()))
    assert loops_of(needed) == []


def test_a_loop_that_ends_once_a_resource_is_supplied_is_refused_without_it_alone() -> None:
    once = FIT.nest("sanity", EVALUATE.set("begin_evaluation", split="sanity")).connect("sanity", "decide")
    once = once.guard("first", "sanity.runs == 0").connect("decide", "sanity", when="first")
    small(once).trainer()
    with pytest.raises(GraphError, match="without `val_data` the run can loop through `decide`, `sanity` forever"):
        small(once).but(val_data=lambda made: None).trainer()


def test_a_guard_that_divides_steps_names_the_loop_that_it_closes_and_a_trigger_instead() -> None:
    (problem,) = loops_of(FIT.guard("val_check_batch", "step.steps % 100 == 0"))
    assert problem.path == ("decide", "validate", "decide")
    assert 'every = "100 steps"' in problem.hint


def test_a_node_that_is_bypassed_changes_nothing() -> None:
    counted = FIT.set("finish", after="never").guard("finished", "clip.runs >= 3 and accumulate.count == 0")
    (problem,) = loops_of(counted)
    assert "only `finished` could end the loop" in problem.message
    assert loops_of(counted.set("clip", max_norm=1.0)) == []


def test_a_start_that_a_bypassed_node_counts_is_never_reached() -> None:
    needed = ending_by_validation().set("validate", graph=replace(EVALUATE, optional=()), **{"from": "3 clips"})
    counted = replace(needed, units={**needed.units, "clips": "clip.runs"})
    (problem,) = loops_of(counted)
    assert "only `val_check_batch`, `finished` could end the loop, " in problem.message
    assert loops_of(counted.set("clip", max_norm=1.0)) == []


@pytest.mark.parametrize("name", ["waiting", "reading"])
def test_a_loop_inside_a_graph_is_found_at_its_path(name: str) -> None:
    waiting = EVALUATE.guard("last_batch", "begin_evaluation.runs > 3")
    inside = {
        "waiting": waiting.guard("data_exhausted", "begin_evaluation.runs > 4"),
        "reading": add(EVALUATE, "tick", after="eval_batch").redirect("tick", "end_evaluation", "tick"),
    }
    (problem,) = loops_of(FIT.set("validate", graph=inside[name]))
    assert problem.where.split(" ")[-1].startswith("validate/")
    assert all(node.startswith("validate/") for node in problem.path)
