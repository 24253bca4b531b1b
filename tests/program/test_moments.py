"""Triggers beside plain amounts: once, so many per epoch, not before an amount, and a part of the whole run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphtrain import Edge, Graph, GraphError, Node, Trainer, UsageError, node
from graphtrain.kind.trigger import Trigger
from tests.program.cuts import assert_cuts_are_exact

LENGTH = 6
FIT = (
    Graph.load("fit")
    .set("checkpoint", every="never")
    .set("log", every="never")
    .set("accumulate", every=2)
    .set("finish", after="3 epochs")
)


@node
def nudge(model: Any) -> None:
    """Change the weights, so that when it runs makes a difference."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)


class Nudge:
    """The same as a class, which has a trigger."""

    every: Trigger = Trigger("never")

    def __call__(self, model: Any) -> None:
        nudge(model)


def nudged(every: Any, start: str | None = None, graph: Graph = FIT) -> Graph:
    further = {"from": start} if start is not None else {}
    return graph.insert("nudge", node(Nudge), at="decide", before="schedule", every=every, **further)


def make_trainer(graph: Graph, run_dir: Any = None, data: Any = None, **resources: Any) -> Trainer:
    torch.manual_seed(3)
    model = torch.nn.Linear(2, 1)
    return Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        device="cpu",
        display=None,
        notify=resources.pop("notify", lambda line: None),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        train_data=data if data is not None else list(torch.arange(24.0).reshape(LENGTH, 2, 2) / 24),
        training_step=lambda model, batch: model(batch).square().mean(),
        **resources,
    )


def batches_at_runs(graph: Graph, **resources: Any) -> list[int]:
    """After how many batches the node has run."""
    trainer, at, before = make_trainer(graph, **resources), [], 0
    while trainer.position != "end":
        trainer.advance()
        now = trainer.progress["nudge"]["runs"]
        if now > before:
            at.append(trainer.progress["next_batch"]["batches"])
        before = now
    return at


@pytest.mark.second(4)
@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("every", "start", "expected"),
    [
        ("once", None, [0]),
        ("once", "1.5 epochs", [9]),
        (["once", "1 epochs"], None, [0, 6, 12, 18]),
        ("4 per epoch", None, [2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18]),
        ("100 per epoch", None, [*range(1, 19)]),
        ("1 per epoch", "2 epochs", [12, 18]),
        ("1 epochs", "2 epochs", [12, 18]),
        ("4 batches", "9 batches", [9, 12, 16]),  # due since 8, and held until 9
        ("4 batches", ["9 batches", "1 epochs"], [6, 8, 12, 16]),
        ("1/3 run", None, [6, 12, 18]),
        ("3 per run", None, [6, 12, 18]),
        ("3 steps", "0.5 run", [10, 12, 18]),
    ],
)
def test_when_it_is_due(every: Any, start: Any, expected: list[int]) -> None:
    assert batches_at_runs(nudged(every, start)) == expected


@pytest.mark.full
@pytest.mark.parametrize("interval", [7, pytest.param(1, marks=pytest.mark.sweep)])
def test_a_cut_at_every_edge_is_exact(interval: int) -> None:
    graph = nudged(["once", "2 per epoch", "0.5 run"], "2 batches").set("finish", after="4 batches")
    data = list(torch.ones(3, 2, 2))
    trainer, edges = make_trainer(graph, data=data), 0
    while trainer.position != "end":
        trainer.advance()
        edges += 1
    assert trainer.progress["nudge"]["runs"] == 3
    assert_cuts_are_exact(lambda run_dir: make_trainer(graph, run_dir, data), range(1, edges, interval))


@pytest.mark.full
def test_validations_are_a_unit() -> None:
    resources = {"val_data": [torch.ones(2, 2)], "validation_step": lambda model, batch: model(batch).mean()}
    graph = nudged("2 validations", graph=FIT.set("validate", every="2 batches"))
    assert batches_at_runs(graph, **resources) == [4, 8, 12, 16]
    assert_cuts_are_exact(lambda run_dir: make_trainer(graph, run_dir, **resources), (5, 21, 50))


def test_once_in_a_body_is_once_each_time() -> None:

    body = nudged("once", graph=FIT.set("finish", after="1 epochs"))
    graph = Graph(
        "twice",
        "fit",
        {"fit": Node("fit", "nested", body=body), "decide": Node("decide", "choice")},
        {"fit": (Edge("decide"),), "decide": (Edge("end", "enough"), Edge("fit"))},
        {"enough": "fit.runs == 2"},
    )
    trainer, runs, before = make_trainer(graph), 0, 0
    while trainer.position != "end":
        trainer.advance()
        now = trainer.progress["fit/nudge"]["runs"]
        runs, before = runs + max(now - before, 0), now
    assert runs == 2


def test_a_bypassed_node_is_never_due_once() -> None:
    lines: list[str] = []
    trainer = make_trainer(FIT.set("validate", every="once"), notify=lines.append)
    trainer.run()
    assert trainer.progress["validate"]["runs"] == 0
    assert "no `val_data`, so `validate` does not run" in lines


def test_once_is_part_of_the_digest() -> None:
    before, after = make_trainer(nudged("once")), make_trainer(nudged("once"))
    after._session.compiled.program.by_path["nudge"].instance.runs = 1
    assert before.digest() != after.digest()


def test_a_part_of_an_epoch_needs_a_length() -> None:
    class Unsized:
        def __iter__(self) -> Any:
            return iter([torch.ones(2, 2)] * 3)

    with pytest.raises(UsageError) as caught:
        make_trainer(nudged("4 per epoch"), data=Unsized()).run()
    assert caught.value.message.startswith('nudge.every = "4 per epoch": `train_data` has no length')
    with pytest.raises(UsageError) as caught:
        make_trainer(nudged("0.1 run"), data=Unsized())
    assert caught.value.message.startswith('`nudge` is due by "0.1 run": `train_data` has no length')
    with pytest.raises(GraphError, match='= "2 hours" ends it by time'):
        make_trainer(nudged("0.1 run").set("finish", after="2 hours"))


@pytest.mark.parametrize(
    ("graph", "message", "hint"),
    [
        (FIT.set("finish", after="once"), "finish.after takes an amount that is reached once", 'after = "5 epochs"'),
        (FIT.set("log", **{"from": "never"}), "log.from takes an amount that is reached once", 'from = "5 epochs"'),
        (FIT.set("log", **{"from": "5 epoch"}), "unknown unit `epoch` in log.from", "did you mean `epochs`?"),
        (FIT.set("log", every="0.1 runs"), "unknown unit `runs` in log.every", "did you mean `run`?"),
        (
            FIT.insert("test", graph="evaluate", after="end_epoch", **{"from": "5 epochs"}),
            "test.from needs `every`, and `test` has none",
            'every = "1 epochs"',
        ),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_a_wrong_moment_is_refused_with_the_fix(graph: Graph, message: str, hint: str) -> None:
    problems = [problem for problem in graph.check() if message in problem.message]
    assert len(problems) == 1, graph.check()
    assert hint in problems[0].hint


@pytest.mark.parametrize("until", ["once", "4 per epoch", "0.5 run"])
def test_until_is_an_amount(until: str) -> None:
    with pytest.raises(UsageError, match=r"^until"):
        make_trainer(FIT).run(until=until)


def test_the_summary_shows_what_it_waits_for() -> None:
    trainer = make_trainer(nudged("once", "1 epochs"))
    trainer.run(until="2 epochs")
    assert "nudge  " in str(trainer.summary())
    assert "once, from 1 epochs" in str(trainer.summary())
