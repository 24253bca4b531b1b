"""``every = "end"``: due when the graph is about to end, unless the node has run since the last step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import graphtrain
from graphtrain import Edge, Graph, GraphError, Node, PlannedRun, UsageError, node
from graphtrain.language.syntax import FieldOf
from graphtrain.plan.flow import changers
from graphtrain.plan.plan import Plan
from tests.program.cuts import assert_cuts_are_exact
from tests.program.test_moments import FIT, Nudge, batches_at_runs, make_trainer, nudged
from tests.resume import rank_runs

VAL: dict[str, Any] = {"val_data": [torch.ones(2, 2)], "validation_step": lambda model, batch: model(batch).mean()}


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("every", "after", "expected"),
    [
        ("end", "7 steps", [14]),
        (["2 steps", "end"], "7 steps", [4, 8, 12, 14]),
        (["2 steps", "end"], "6 steps", [4, 8, 12]),  # it has run since the last step
        (["1 epochs", "end"], "15 batches", [6, 12, 15]),  # the ending cuts a window, which is stepped before
        ("end", "2 epochs", [12]),
        ("end", ["9 epochs", "5 batches"], [5]),
        (["once", "end"], "5 batches", [0, 5]),
        ("end", "0.5 run", None),
    ],
)
def test_when_it_is_due(every: Any, after: Any, expected: list[int] | None) -> None:
    graph = nudged(every).set("finish", after=after)
    if expected is None:
        with pytest.raises(GraphError, match="its length would depend on itself"):
            make_trainer(graph)
        return
    assert batches_at_runs(graph) == expected
    counted = PlannedRun(graph).steps(list(torch.zeros(6, 2, 2)), node="nudge")
    assert counted == len(expected)


@pytest.mark.full
def test_it_is_due_at_whatever_ends_the_run() -> None:
    def stops(model: torch.nn.Module, batch: Any, step: int) -> Any:
        return model(batch).square().mean(), graphtrain.STOP if step == 3 else None

    graph = nudged(["3 steps", "end"]).set("finish", after="9 epochs")
    assert batches_at_runs(graph.guard("ending", or_="step.steps >= 4")) == [6, 8]
    assert batches_at_runs(graph.guard("ending", and_="next_batch.batches >= 8").set("finish", after="1 steps")) == [
        6,
        8,
    ]
    early = graph.overlay("early_stop").set("early_stop", monitor="epoch/loss", stopping_threshold=1e9)
    assert batches_at_runs(early) == [6]  # at 3 steps; nothing was trained between that and the stop
    assert batches_at_runs(early.set("nudge", every="end")) == [6]


def test_it_can_be_the_only_time_and_is_not_due_without_a_step() -> None:
    trainer = make_trainer(FIT.set("validate", every="end").set("finish", after="5 steps"), **VAL)
    trainer.run()
    assert [row["step"] for row in trainer.metrics if "val/loss" in row] == [5]
    dropped = FIT.overlay("drop").set("validate", every="end").set("finish", after="1 batches")
    trainer = make_trainer(dropped, **VAL)
    trainer.run()
    assert (trainer.progress["validate"]["runs"], trainer.progress["step"]["steps"]) == (0, 0)


def test_a_bypassed_node_is_not_due_at_the_end() -> None:
    trainer = make_trainer(FIT.set("validate", every=["1 epochs", "end"]).set("finish", after="4 batches"))
    trainer.run()
    assert trainer.progress["validate"]["runs"] == 0


def equipped() -> Graph:
    """Everything periodic is due at the end too."""
    graph = FIT.overlay("swa", "ema").set("finish", after="5 batches").set("log", every=["2 steps", "end"])
    return (
        graph.set("validate", every=["2 steps", "end"])
        .set("checkpoint", every=["2 steps", "end"])
        .set("swa", every="end")
    )


@pytest.mark.full
@pytest.mark.parametrize("interval", [19, pytest.param(1, marks=pytest.mark.sweep)])
def test_a_cut_at_every_edge_is_exact(interval: int, tmp_path: Path) -> None:
    trainer, edges = make_trainer(equipped(), tmp_path, **VAL), 0
    while trainer.position != "end":
        trainer.advance()
        edges += 1
    assert [trainer.progress[name]["runs"] for name in ("log", "validate", "checkpoint", "swa")] == [2, 2, 2, 1]
    assert_cuts_are_exact(lambda run_dir: make_trainer(equipped(), run_dir, **VAL), range(1, edges, interval))


@pytest.mark.full
def test_a_raised_ending_has_an_end_again_and_what_is_due_by_amounts_stays_where_it_was(tmp_path: Path) -> None:
    def validated(after: str, run_dir: Path | None) -> list[Any]:
        graph = FIT.set("validate", every=["3 steps", "end"]).set("finish", after=after)
        trainer = make_trainer(graph, run_dir, **VAL)
        trainer.run()
        return [row["step"] for row in trainer.metrics if "val/loss" in row]

    assert validated("4 steps", tmp_path) == [3, 4]
    assert validated("4 steps", tmp_path) == [3, 4]  # finished
    assert validated("8 steps", tmp_path) == [3, 4, 6, 8]


@pytest.mark.full
def test_two_ranks_do_it_at_the_same_time_and_are_exact_over_a_cut(tmp_path: Path) -> None:
    def options() -> dict[str, Any]:
        return {"graph": lambda graph: graph.set("validate", every=["3 steps", "end"])}

    whole = rank_runs.run(2, None, **options())
    assert [[row["step"] for row in end.metrics if "val/error" in row] for end in whole] == [[3, 4], [3, 4]]
    for transitions in (44,):
        folder = tmp_path / str(transitions)
        rank_runs.run(2, folder, advance=transitions, **options())
        assert [end.digest for end in rank_runs.run(2, folder, **options())] == [end.digest for end in whole]


def test_in_a_body_it_is_due_at_each_of_its_ends() -> None:
    body = nudged(["2 steps", "end"], graph=FIT.set("finish", after="3 steps"))
    graph = Graph(
        "twice",
        "fit",
        {"fit": Node("fit", "nested", body=body), "decide": Node("decide", "choice")},
        {"fit": (Edge("decide"),), "decide": (Edge("end", "enough"), Edge("fit"))},
        {"enough": "fit.runs == 2"},
        {"steps": "fit/step.steps"},
    )
    assert graph.check() == []
    trainer, at = make_trainer(graph), []
    while trainer.position != "end":
        before = trainer.progress["fit/nudge"]["runs"]
        trainer.advance()
        if trainer.progress["fit/nudge"]["runs"] > before:
            at.append((trainer.progress["fit"]["runs"], trainer.progress["fit/step"]["steps"]))
    assert at == [(0, 2), (0, 3), (1, 2), (1, 3)]


def test_a_node_around_a_body_counts_its_steps() -> None:
    body = FIT.set("finish", after="3 steps")
    graph = Graph(
        "twice",
        "fit",
        {"fit": Node("fit", "nested", body=body), "decide": Node("decide", "choice")},
        {"fit": (Edge("decide"),), "decide": (Edge("end", "enough"), Edge("fit"))},
        {"enough": "fit.runs == 2"},
        {"steps": "fit/step.steps"},
    )
    graph = graph.insert("nudge", node(Nudge), at="decide", before="end", every="end")
    trainer = make_trainer(graph)
    trainer.run()
    assert trainer.progress["nudge"]["runs"] == 1


@pytest.mark.parametrize(
    ("graph", "code", "message", "hint"),
    [
        (FIT.set("finish", after="end"), "G104", 'finish.after: "end" says how often', "as in after"),
        (
            Graph.load("evaluate").insert("nudge", node(Nudge), after="eval_batch", every="end"),
            "G106",
            'nudge.every = "end" is counted in `steps`, which the clock does not have',
            'clock = "steps"',
        ),
        (
            nudged("end").insert("report", "choice", before="end"),
            "G104",
            'nudge.every = "end": the edge from `report` to "end" has no guard',
            "guard the edge",
        ),
        (
            nudged("end").guard("ending", or_="nudge.due"),
            "G207",
            "the end waits for `nudge.due`, and `nudge` for the end",
            "nudge.runs",
        ),
        (
            nudged("end").set("log", every="end").guard("ending", or_="accumulate.every > 1").set(
                "accumulate", reads={"every": "2 if log.due else 1"}
            ),
            "G207",
            "the end waits for `log.due`",
            "log.runs",
        ),
        (
            nudged("end")
            .insert("agree", after="train_batch", reads={"value": "loss"})
            .guard("ending", or_="agreed > 3"),
            "G104",
            "the guard of the end reads `agreed`",
            "`agree.value`",
        ),
        (
            nudged("end").guard("finished", "nudge.runs > 0 and accumulate.count == 0"),
            "G502",
            "can be left only as",
            "",
        ),
    ],
    ids=["after", "no steps", "no guard", "due", "due of a parameter", "slot", "waits for itself"],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_fix(graph: Graph, code: str, message: str, hint: str) -> None:
    problems = [problem for problem in graph.check() if problem.severity == "error" and message in problem.message]
    assert problems, graph.check()
    assert problems[0].code == code
    assert hint in problems[0].hint


@pytest.mark.parametrize(
    ("every", "text"),
    [
        ("end", "at the end"),
        (["2 steps", "end"], "every 2 steps or at the end"),
        (["once", "end"], "once or at the end"),
    ],
)
def test_what_is_shown_at_the_start(every: Any, text: str) -> None:
    (line,) = [line for line in str(make_trainer(nudged(every)).summary()).splitlines() if "nudge" in line]
    assert line.split(maxsplit=1) == ["nudge", text]


def test_what_asks_for_the_end_may_make_it_due() -> None:
    """The count of steps, the end that `finish` and the data reach, and the window that is open."""
    plan = Plan(nudged("end"))
    names = changers(plan, plan.main, FieldOf("nudge", "due"))
    assert names == {"nudge", "step", "next_batch", "train_batch", "zero_grad", "validate"}  # a body may run backward
    assert changers(plan, plan.main, FieldOf("schedule", "due")) == {"schedule", "step"}


def test_until_is_an_amount() -> None:
    with pytest.raises(UsageError, match=r"^until: expected an amount"):
        make_trainer(FIT).run(until="end")
