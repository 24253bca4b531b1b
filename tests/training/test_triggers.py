"""Promise 3: when something is due: once, parts of an epoch, not before an amount, a part of the run, until an end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from graphtrain import Edge, Graph, Node, Outcome, Trainer, Trigger, UsageError, fit, node
from tests.training.tiny import tiny
from tests.world import assert_exact, world

LENGTH = 6
FIT = fit(epochs=3, accumulate=2, save_every="never").set("log", every="never")


class Nudge:
    """Change the weights, so that when it runs makes a difference."""

    every: Trigger = Trigger("never")

    def __call__(self, model: Any) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.01)


def nudged(every: Any, start: str | list[str] | None = None, graph: Graph = FIT) -> Graph:
    further = {"from": start} if start is not None else {}
    return graph.insert("nudge", node(Nudge), at="decide", before="schedule", every=every, **further)


def six() -> list[torch.Tensor]:
    return [torch.full((2, 1), number / 10) for number in range(LENGTH)]


def batches_at_runs(graph: Graph, path: str = "nudge", **resources: Any) -> list[int]:
    """After how many batches a node has run; in a body each of its runs counts from 0 again."""
    trainer, found, before = tiny(graph, **{"train_data": six(), **resources}), list[int](), 0

    def look(transition: Any) -> None:
        nonlocal before
        now = trainer.progress.get(path, {"runs": 0})["runs"]
        if now > before:
            found.append(trainer.progress[path.replace("nudge", "next_batch")]["batches"])
        before = now

    trainer.run(trace=look)
    return found


@pytest.mark.first(5)
@pytest.mark.parametrize(
    ("every", "start", "expected"),
    [
        ("once", None, [0]),
        ("once", "1.5 epochs", [9]),
        (["once", "1 epochs"], None, [0, 6, 12, 18]),
        ("0.25 epochs", None, [2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18]),
        ("0.01 epochs", None, [*range(1, 19)]),
        ("1 epochs", "2 epochs", [12, 18]),
        ("4 batches", "9 batches", [9, 12, 16]),  # due since 8, and held until 9
        ("4 batches", ["9 batches", "1 epochs"], [6, 8, 12, 16]),
        ("3 steps", "4.5 steps", [10, 12, 18]),
    ],
)
def test_when_it_is_due(every: Any, start: Any, expected: list[int]) -> None:
    assert batches_at_runs(nudged(every, start)) == expected


def test_validations_are_a_unit() -> None:
    graph = nudged("2 validations", graph=FIT.set("validate", every="2 batches"))
    assert batches_at_runs(graph, val_data=six()[:1]) == [4, 8, 12, 16]


@pytest.mark.full
@pytest.mark.parametrize(
    "graph",
    [
        nudged(["once", "0.5 epochs", "3 steps"], "2 batches"),
        nudged("2 validations", graph=FIT.set("validate", every="2 batches")),
    ],
    ids=["mixed", "validations"],
)
def test_it_is_due_at_the_same_moments_after_a_cut(graph: Graph, tmp_path: Path) -> None:
    assert_exact(world(graph), tmp_path, at=5)


def test_once_in_a_body_is_once_each_time() -> None:
    body = nudged("once", graph=FIT.set("finish", after="1 epochs"))
    nodes = {"fit": Node("fit", "nested", body=body), "decide": Node("decide", "choice")}
    edges = {"fit": (Edge("decide"),), "decide": (Edge("end", "enough"), Edge("fit"))}
    assert batches_at_runs(Graph("twice", "fit", nodes, edges, {"enough": "fit.runs == 2"}), "fit/nudge") == [0, 0]


def test_a_bypassed_node_is_never_due_once() -> None:
    said: list[str] = []
    trainer = tiny(FIT.set("validate", every="once"), said=said)
    trainer.run()
    assert trainer.progress["validate"]["runs"] == 0
    assert "no `val_data`, so `validate` does not run" in said


# ---- amounts that cannot be counted


class Unsized:
    """Five batches, and no length."""

    def __iter__(self) -> Any:
        return iter([torch.ones(2, 1)] * 5)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([torch.ones(1)] * 10)


UNSIZED: list[Callable[[], Any]] = [Unsized, lambda: DataLoader(Stream(), 2)]
EPOCHS = fit(epochs=2, save_every="never")
NO_LENGTH = "`train_data` has no length"


@pytest.mark.parametrize("data", UNSIZED)
@pytest.mark.parametrize(
    ("node_name", "trigger"),
    [
        ("validate", {"every": "0.25 epochs"}),
        ("log", {"every": ["50 steps", "1/3 epochs"]}),
        ("finish", {"after": "1.5 epochs"}),
    ],
    ids=str,
)
def test_a_part_of_an_epoch_without_a_length_is_refused_before_anything_trains(
    node_name: str, trigger: dict[str, Any], data: Callable[[], Any], tmp_path: Path
) -> None:
    trainer = tiny(EPOCHS.set(node_name, **trigger), tmp_path, train_data=data(), val_data=six()[:1])
    with pytest.raises(UsageError) as caught:
        trainer.run()
    assert f"{node_name}." in caught.value.message and NO_LENGTH in caught.value.message
    assert trainer.progress["next_batch"]["batches"] == 0
    trainer.rewire(EPOCHS)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["validate"]["runs"] == 2


@pytest.mark.parametrize("until", ["0.5 epochs", "3/2 epochs"])
def test_nor_is_it_an_amount_to_run_until(until: str) -> None:
    with pytest.raises(UsageError, match=NO_LENGTH):
        tiny(EPOCHS, train_data=Unsized()).run(until=until)
    trainer = tiny(EPOCHS, train_data=Unsized())
    assert trainer.run(until="1 epochs") is Outcome.REACHED
    assert trainer.progress["next_batch"]["batches"] == 5


def test_a_run_that_is_rewired_or_resumed_with_it_stays_as_it_was(tmp_path: Path) -> None:
    trainer = tiny(EPOCHS, tmp_path, train_data=Unsized(), val_data=six()[:1])
    trainer.run(until="3 batches")
    other = EPOCHS.set("validate", every="0.25 epochs")
    with pytest.raises(UsageError, match=r"validate\.every"):
        trainer.rewire(other)
    with pytest.raises(UsageError, match=r"validate\.every"):
        tiny(other, tmp_path, train_data=Unsized(), val_data=six()[:1]).run()
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["next_batch"]["batches"] == 10


@pytest.mark.parametrize(
    ("graph", "message", "hint"),
    [
        (FIT.set("finish", after="once"), "finish.after takes an amount that is reached once", 'after = "5 epochs"'),
        (FIT.set("finish", after=3), "finish.after: expected a trigger", 'after = "3 epochs"'),
        (FIT.set("log", **{"from": "never"}), "log.from takes an amount that is reached once", 'from = "5 epochs"'),
        (FIT.set("log", **{"from": "5 epoch"}), "unknown unit `epoch` in log.from", "did you mean `epochs`?"),
        (FIT.set("log", every="0.1 run"), "unknown unit `run` in log.every", "known: "),
        (FIT.insert("test", graph="evaluate", after="end_epoch", **{"from": "5 epochs"}),
         "test.from needs `every`", 'every = "1 epochs"'),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)  # fmt: skip
def test_a_wrong_moment_is_refused_with_the_fix(graph: Graph, message: str, hint: str) -> None:
    problems = [problem for problem in graph.check() if message in problem.message]
    assert len(problems) == 1, graph.check()
    assert hint in problems[0].hint


@pytest.mark.parametrize("until", ["once", "0.5 run", "often", "3 dozens", "0 steps"])
def test_until_is_an_amount(until: str) -> None:
    with pytest.raises(UsageError, match=r"^until"):
        tiny(FIT).run(until=until)


def test_until_does_everything_that_is_due_first() -> None:
    trainer = tiny(val_data=six()[:1])
    assert trainer.run(until="1 epochs") is Outcome.REACHED
    assert (trainer.progress["validate"]["runs"], trainer.progress["step"]["steps"]) == (1, 5)
    assert trainer.position == "next_batch"


# ---- an ending that is changed while the run is stopped


def rewired(graph: Graph, until: str, then: Graph, run_dir: Path) -> Trainer:
    trainer = tiny(graph)
    assert trainer.run(until=until) is Outcome.REACHED
    trainer.rewire(then)
    return trainer


def resumed(graph: Graph, until: str, then: Graph, run_dir: Path) -> Trainer:
    assert tiny(graph, run_dir).run(until=until) is Outcome.REACHED
    return tiny(then, run_dir)


@pytest.mark.parametrize("change", [rewired, resumed])
def test_an_ending_that_is_changed(change: Callable[..., Trainer], tmp_path: Path) -> None:
    """One that is behind the run is taken when the graph asks next; one that is raised lets the run go on."""
    trainer = change(fit(epochs=10), "7 steps", fit(steps=7), tmp_path)
    assert trainer.run() is Outcome.FINISHED
    assert trainer.progress["step"]["steps"] == 8
    trainer.rewire(fit(epochs=3))
    assert (trainer.state, trainer.position) == ("finished", "end")
    assert trainer.run() is Outcome.FINISHED
    longer = tiny(fit(epochs=3))
    longer.run()
    assert trainer.digest() == longer.digest()
    assert trainer.run() is Outcome.ALREADY_FINISHED
