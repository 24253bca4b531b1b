"""Promise 16: why this edge: transitions explained as they are made, by hand, by `trace=` and by `run --trace`."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome, Trainer, fit
from tests.looking.conftest import Command
from tests.looking.running import TINY, Result
from tests.world import small_fit, world


def tiny(graph: Graph | None = None, **more: Any) -> Trainer:
    """One weight, three batches of two samples."""
    model = torch.nn.Linear(1, 1)
    resources = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_data": [torch.ones(2, 1)] * 3,
        "training_step": lambda model, batch: model(batch).mean(),
        **more,
    }
    graph = graph if graph is not None else Graph.load("fit").set("finish", after="2 epochs")
    return Trainer(graph, seed=0, display=None, **{"notify": lambda line: None, **resources})


def line_at(trainer: Trainer, path: str) -> str:
    """The line of the first transition from a node."""
    for _ in range(200):
        is_there = trainer.position == path
        trainer.advance()
        if is_there:
            return trainer.explain().line
    raise AssertionError(path)


FIT = Graph.load("fit").set("finish", after="2 epochs")
WITH_LOG = FIT.set("log", every="2 batches").redirect("begin_epoch", "next_batch", "log")


@pytest.mark.parametrize(
    ("graph", "path", "line"),
    [
        (
            FIT.set("accumulate", every=2),
            "accumulate",
            "accumulate -> decide  accumulation_reached=False (accumulate.count=1 accumulate.full=False "
            "next_batch.empty=False next_batch.last=False finish.due=False)",
        ),
        (FIT, "accumulate", "accumulate -> step  accumulation_reached=True (accumulate.count=1 accumulate.full=True)"),
        (FIT, "train_batch", "train_batch -> accumulate"),
        (
            FIT.set("accumulate", reads={"every": "2 if next_batch.epoch < 1 else 3"})
            .guard("long", "accumulate.every > 1 and accumulate.every < 9")
            .connect("zero_grad", "log", when="long"),
            "zero_grad",
            "zero_grad -> log  long=True (accumulate.every=2)",
        ),
        (
            WITH_LOG.disconnect("decide", "log").disconnect("log", "decide").connect("log", "next_batch"),
            "log",
            "log -> next_batch  not due",
        ),
        (
            Graph.load("fit").redirect("zero_grad", "decide", "schedule").disconnect("decide", "schedule")
            .guard("later", "step.steps > 1").connect("schedule", "log", when="later"),
            "schedule",
            "schedule -> decide  later=False (step.steps=1) bypassed",
        ),
        (FIT, "validate", "validate -> validate/begin_evaluation  entered"),
        (FIT, "validate/end_evaluation", "validate/end_evaluation -> decide"),
        (
            FIT.guard("often", "validate.runs > 1").connect("validate", "checkpoint", when="often"),
            "validate/end_evaluation",
            "validate/end_evaluation -> decide  often=False (validate.runs=1)",
        ),
        (FIT, "finish", "finish -> end  finished=True (finish.due=True accumulate.count=0)"),
    ],
)  # fmt: skip
def test_a_transition_is_a_line(graph: Graph, path: str, line: str) -> None:
    trainer = tiny(graph, val_data=[torch.ones(2, 1)])
    assert line_at(trainer, path) == line
    explanation = trainer.explain()
    assert str(explanation) == f"{explanation.where}: {line}"
    assert json.loads(json.dumps(dataclasses.asdict(explanation)))["node"] == path


def test_what_is_known_without_a_trace() -> None:
    trainer = tiny()
    assert str(trainer.explain()).startswith("no transition was traced")
    trainer.advance(3)
    assert trainer.run(until="1 steps") is Outcome.REACHED
    assert "no transition was traced" in str(trainer.explain()), "not the transition before the run"
    assert (trainer.explain().node, trainer.explain().next) == ("", "next_batch")
    assert trainer.run() is Outcome.FINISHED
    before = trainer.digest()
    assert trainer.explain().line == "finish -> end  finished=True (finish.due=True accumulate.count=0)"
    assert trainer.digest() == before
    trainer.rewire(trainer.graph.set("finish", after="4 epochs"))
    assert "no transition was traced" in str(trainer.explain()), "another graph's edges are not its own"


# ---- a run with a trace function


def traced_run(trainer: Trainer) -> list[Any]:
    found: list[Any] = []
    trainer.run(trace=found.append)
    return found


def test_every_transition_is_traced_as_stepping_explains_it() -> None:
    by_hand: list[Any] = []
    one, other = tiny(val_data=[torch.ones(2, 1)]), tiny(val_data=[torch.ones(2, 1)])
    while one.position != "end":
        one.advance()
        by_hand.append(one.explain())
    assert traced_run(other) == by_hand


GRAPHS = {
    "fit": small_fit(),
    "carried windows": fit(epochs=3, accumulate=4, log_every="2 steps", save_every="1 steps").overlay("carry"),
    "an early end": small_fit().overlay("early_stop"),
    "by batches": fit(accumulate=2).set("finish", after="8 batches").set("validate", every="3 batches"),
    "an average": small_fit().overlay("ema"),
    "limited": small_fit().set("next_batch", limit=2).guard("odd", "step.steps % 2 == 1 and not next_batch.last"),
}


@pytest.mark.first(3)
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_a_traced_run_does_what_a_plain_one_does_and_every_answer_is_what_its_guard_means(graph: Graph) -> None:
    if "odd" in graph.guards:
        graph = graph.connect("zero_grad", "log", when="odd")
    one, other = world(graph).trainer(), world(graph).trainer()
    one.run()
    told = traced_run(other)
    assert (other.digest(), other.metrics) == (one.digest(), one.metrics)
    for explanation, following in itertools.pairwise(told):
        assert following.node == explanation.next
    bodies = [graph, *(declared.body for declared in graph.nodes.values() if declared.body is not None)]
    asked = [guard for explanation in told for guard in explanation.guards]
    assert asked
    for name, answer, reads in asked:
        assert any(means(body, name, dict(reads)) is answer for body in bodies if name in body.guards), name


def means(graph: Graph, name: str, reads: dict[str, Any]) -> bool | None:
    """What a guard answers, by Python, for what it has read; None for what it would have read besides."""
    text = graph.guards[name]
    while (inner := re.search(rf"(?<![\w.])({'|'.join(graph.guards)})(?![\w.])", text)) is not None:
        text = text[: inner.start()] + f"({graph.guards[inner[1]]})" + text[inner.end() :]
    names = {path: f"read_{number}" for number, path in enumerate(reads)}
    for path in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<![\w.]){re.escape(path)}(?![\w.])", names[path], text)
    try:
        return bool(eval(text, {}, {names[path]: value for path, value in reads.items()}))  # noqa: S307
    except NameError:
        return None


# ---- the command


WITH_VALIDATION = TINY.replace('"training_step"', '"val_data": [torch.ones(2, 2)], "training_step"')
WORDS = ["run", "tiny.py", "accumulate.every=2", "finish.after=1 epochs"]
LINE = re.compile(
    r"trace  step (?P<step>\d+), epoch (?P<epoch>[\d.]+), batch (?P<batch>\d+)(?:/4)?(?:, window \d/2)?: "
    r"(?P<node>[\w/]+) -> (?P<next>[\w/?]+)(?:  (?P<reasons>\S.*))?"
)


@pytest.fixture
def script(folder: Path) -> Path:
    (folder / "tiny.py").write_text(WITH_VALIDATION)
    return folder


def lines_of(result: Result) -> list[re.Match[str]]:
    found = [LINE.fullmatch(line) for line in result.err.splitlines() if line.startswith("trace")]
    assert all(found), result.err
    return [one for one in found if one is not None]


def test_every_transition_is_a_line(script: Path, command: Command) -> None:
    result = command(*WORDS, "--run-dir", "r", "--trace")
    assert (result.code, result.out) == (0, "")
    lines = lines_of(result)
    assert [one["node"] for one in lines[:9]] == [
        "decide", "begin_epoch", "next_batch", "train_batch", "accumulate", "decide", "next_batch", "train_batch",
        "accumulate",
    ]  # fmt: skip
    assert (lines[-1]["node"], lines[-1]["next"]) == ("finish", "end")
    nodes = [one["node"] for one in lines]
    assert (nodes.count("train_batch"), nodes.count("step"), nodes.count("validate/eval_batch")) == (4, 2, 1)
    for one, following in itertools.pairwise(lines):
        assert following["node"] == one["next"]


def test_a_line_shows_what_was_evaluated_and_read(script: Path, command: Command) -> None:
    lines = lines_of(command(*WORDS, "--run-dir", "r", "--trace"))
    asked = [one["reasons"] for one in lines if one["node"] == "accumulate"]
    assert asked[0].startswith("accumulation_reached=False (accumulate.count=1 accumulate.full=False ")
    assert asked[1] == "accumulation_reached=True (accumulate.count=2 accumulate.full=True)"
    moments = [(one["step"], one["epoch"], one["batch"]) for one in lines if one["node"] == "step"]
    assert moments == [("1", "0.50", "2"), ("2", "1", "4")]
