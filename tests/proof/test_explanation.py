"""Why this edge: how a transition is explained, and that an untraced run pays nothing for it."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from graphtrain import Graph, GuardError, Outcome, Trainer, node, progress
from graphtrain.language.syntax import expand, parse
from graphtrain.proof import tracing
from graphtrain.proof.tracing import Explainer, Explanation
from tests.checks.sound_graphs import SOUND, Sound
from tests.language.reference import evaluate
from tests.program.oracle import Event, Setting, trainer_of
from tests.program.small_run import small_graph, small_trainer


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
    return Trainer(graph, seed=0, notify=lambda line: None, display=None, **resources)


def advance_to(trainer: Trainer, path: str) -> None:
    """Advance until a node is the next to run."""
    for _ in range(200):
        if trainer.position == path:
            return
        trainer.advance()
    raise AssertionError(path)


def lines_until(trainer: Trainer, path: str) -> list[str]:
    """The lines of the transitions until a node is the next to run, and of one more."""
    lines = []
    for _ in range(200):
        is_there = trainer.position == path
        trainer.advance()
        lines.append(trainer.explain().line)
        if is_there:
            return lines
    raise AssertionError(path)


# --- What is shown ----------------------------------------------------------------------------------------------------


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
    assert lines_until(trainer, path)[-1] == line
    explanation = trainer.explain()
    assert str(explanation) == f"{explanation.where}: {line}"
    assert json.loads(json.dumps(dataclasses.asdict(explanation)))["node"] == path


# --- After a run that kept no trace -----------------------------------------------------------------------------------


def test_what_is_known_without_a_trace() -> None:
    trainer = tiny()
    assert str(trainer.explain()) == "nothing has run yet"
    trainer.advance(3)
    assert trainer.run(until="1 steps") is Outcome.REACHED
    assert "keeps no trace" in str(trainer.explain()), "not the transition before the run"
    assert (trainer.explain().node, trainer.explain().next) == ("", "next_batch")
    assert trainer.run() is Outcome.FINISHED
    before = trainer.digest()
    assert trainer.explain().line == "finish -> end  finished=True (finish.due=True accumulate.count=0)"
    assert trainer.digest() == before
    trainer.rewire(trainer.graph.set("finish", after="4 epochs"))
    assert "keeps no trace" in str(trainer.explain()), "another graph's edges are not its own"


@node
class Fragile:
    """Fails at its third visit."""

    visits: int = progress(0)

    def __call__(self) -> None:
        self.visits += 1
        if self.visits == 3:
            raise ZeroDivisionError("on purpose")


def fragile() -> Trainer:
    return tiny(Graph.load("fit").insert("fragile", Fragile, after="train_batch"))


def broken_guard() -> Trainer:
    graph = Graph.load("fit").guard("broken", "log.runs < 1 and 1 / (2 - step.steps) > 5")
    return tiny(graph.connect("zero_grad", "checkpoint", when="broken"))


def fails_by_run(trainer: Trainer) -> None:
    trainer.run()


def fails_by_hand(trainer: Trainer) -> None:
    trainer.advance(1000)


@pytest.mark.parametrize("go", [fails_by_run, fails_by_hand])
def test_a_node_that_failed(go: Callable[[Trainer], None]) -> None:
    trainer = fragile()
    with pytest.raises(ZeroDivisionError):
        go(trainer)
    assert trainer.explain().line == "fragile -> ?  raised ZeroDivisionError: on purpose"


@pytest.mark.parametrize("go", [fails_by_run, fails_by_hand])
def test_a_guard_that_raised(go: Callable[[Trainer], None]) -> None:
    trainer = broken_guard()
    with pytest.raises(GuardError):
        go(trainer)
    line = trainer.explain().line
    assert line.startswith("zero_grad -> ?  ") and "ZeroDivisionError: division by zero" in line
    if go is fails_by_hand:
        assert "broken=None (log.runs=0 step.steps=2) raised" in line


def test_a_guard_that_raised_once_a_body_had_ended() -> None:
    graph = Graph.load("fit").guard("broken", "1 / (2 - validate.runs) > 5")
    trainer = tiny(graph.connect("validate", "checkpoint", when="broken"), val_data=[torch.ones(2, 1)])
    with pytest.raises(GuardError):
        trainer.advance(1000)
    assert trainer.explain().line == (
        "validate/end_evaluation -> ?  broken=None (validate.runs=2) raised ZeroDivisionError: division by zero"
    )


# --- A run with a trace function --------------------------------------------------------------------------------------


def traced_run(trainer: Trainer, **more: Any) -> list[Explanation]:
    found: list[Explanation] = []
    trainer.run(trace=found.append, **more)
    return found


def test_every_transition_is_traced_as_stepping_explains_it() -> None:
    by_hand: list[Explanation] = []
    one, other = tiny(val_data=[torch.ones(2, 1)]), tiny(val_data=[torch.ones(2, 1)])
    while one.position != "end":
        one.advance()
        by_hand.append(one.explain())
    told = traced_run(other)
    assert told == by_hand
    assert other.explain() is told[-1]


def test_a_trace_function_that_raises_does_not_end_the_run() -> None:
    said: list[str] = []

    def refuse(explanation: Explanation) -> None:
        raise ValueError("no more")

    trainer = tiny()
    trainer._run.tracing()._notify = said.append
    assert trainer.run(trace=refuse) is Outcome.FINISHED
    assert said == ["transitions are no longer traced: that raised ValueError: no more"]


# --- Tracing changes nothing ------------------------------------------------------------------------------------------


@pytest.mark.first(3)
@pytest.mark.parametrize(
    "setting",
    [
        Setting(),
        Setting(accumulate=3, validate=("0.25 epochs",), checkpoint=("2 steps",)),
        Setting(lengths=(4, 0, 3), claim=None, accumulate=2, after=("9 batches",)),
        Setting(claim=2, accumulate=4, window="carry", validate=("3 epoch_batches",), after=("2.5 epochs",)),
    ],
)
def test_a_traced_run_does_what_a_plain_one_does(setting: Setting) -> None:
    plain: list[Event] = []
    traced: list[Event] = []
    one, other = trainer_of(setting, plain), trainer_of(setting, traced)
    one.run()
    told = traced_run(other)
    assert traced == plain and plain
    assert other.digest() == one.digest()
    check_against_the_reference(other, told)


def check_against_the_reference(trainer: Trainer, told: list[Explanation]) -> None:
    """Every guard's answer is what its expression means for what it read, and it read what the meaning reads."""
    expressions: dict[str, list[Any]] = {}
    for scope in (trainer._session.compiled.program.main, *trainer._session.compiled.program.main.inner()):
        parsed = {name: parse(text) for name, text in scope.graph.guards.items()}
        for name, one in parsed.items():
            expressions.setdefault(name, []).append(expand(one, parsed, (name,)))
    asked = [guard for explanation in told for guard in explanation.guards]
    for name, answer, reads in asked:
        assert any(_means(expression, answer, reads) for expression in expressions[name])
    assert asked or not told


def _means(expression: Any, answer: Any, reads: tuple[tuple[str, Any], ...]) -> bool:
    readings = iter(reads)

    def following(name: str) -> Any:
        found, value = next(readings, ("", None))
        if found != name:
            raise LookupError(name)
        return value

    try:
        return bool(answer == evaluate(expression, following)) and next(readings, None) is None
    except LookupError:
        return False


@pytest.mark.second(14)
@pytest.mark.first(5)
@pytest.mark.parametrize("sound", SOUND, ids=lambda sound: sound.title)
def test_every_rewiring_is_explained_as_it_goes(sound: Sound) -> None:
    model = torch.nn.Linear(2, 2)
    resources = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_data": [torch.ones(2, 2)] * 5,
        "val_data": [torch.ones(2, 2)] * 2,
        **{name: make() for name, make in sound.resources.items()},
    }
    trainer = tiny(sound.graph(), **resources)
    told = traced_run(trainer)
    check_against_the_reference(trainer, told)
    assert not [one.note for one in told if "answers otherwise now" in one.note]
    for explanation, following in itertools.pairwise(told):
        assert following.node == explanation.next


@node
class Fickle:
    """Has a field that is no pure function of saved state."""

    def __call__(self) -> None: ...

    @property
    def flag(self) -> bool:
        _ASKED.append("flag")
        return len(_ASKED) % 2 == 1


def test_a_guard_that_answers_otherwise_when_it_is_asked_again_is_reported() -> None:
    graph = Graph.load("fit").insert("fickle", Fickle, after="train_batch").guard("odd", "fickle.flag")
    trainer = tiny(graph.connect("fickle", "decide", when="odd"))
    _ASKED.clear()
    advance_to(trainer, "fickle")
    assert trainer.advance() == "decide"
    assert "answers otherwise now" in trainer.explain().note


_ASKED: list[str] = []


# --- Off costs nothing ------------------------------------------------------------------------------------------------


def test_a_plain_run_explains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any) -> Any:
        raise AssertionError("a plain run has no use for it")

    monkeypatch.setattr(Explainer, "transitions", refused)
    monkeypatch.setattr(tracing, "_leave", refused)
    assert small_trainer(graph=small_graph()).run() is Outcome.FINISHED
