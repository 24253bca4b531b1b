"""Why this edge: how a transition is explained, and that an untraced run pays nothing for it."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
import types
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from graphtrain import Edge, Graph, GuardError, Node, Outcome, Trainer, node, progress
from graphtrain.kind import kind_of
from graphtrain.language.syntax import expand, parse
from graphtrain.program.table import Compiler
from graphtrain.program.triggers import Every
from graphtrain.proof import tracing
from graphtrain.proof.explanation import Explanation, GuardReading, Reading
from graphtrain.proof.tracing import Explainer
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


def answers(explanation: Explanation, number: int = 0) -> list[tuple[str, str | None, str]]:
    return [(one.target, one.when, one.answer) for one in explanation.choices[number].edges]


def guard_of(explanation: Explanation, name: str) -> GuardReading:
    found = [one.guard for choice in explanation.choices for one in choice.edges if one.when == name]
    assert found and found[0] is not None
    return found[0]


def read(guard: GuardReading) -> list[tuple[str, Any]]:
    return [(one.name, one.value) for one in guard.readings()]


# --- What is shown ----------------------------------------------------------------------------------------------------


def test_its_short_form_is_the_transition() -> None:
    trainer = tiny()
    assert repr(trainer.explain()) == f"<Explanation: {trainer.explain().note}>"
    advance_to(trainer, "accumulate")
    trainer.advance()
    assert repr(trainer.explain()) == "<Explanation: accumulate -> exchange>"


def test_before_anything_ran_it_reports_that() -> None:
    explanation = tiny().explain()
    assert explanation.choices == ()
    assert str(explanation) == "nothing has run yet in this process; `decide` is next"
    assert explanation.line == str(explanation)


def test_a_parameter_by_an_expression_is_shown_with_it() -> None:
    graph = Graph.load("fit").set("accumulate", reads={"every": "2 if next_batch.epoch < 1 else 3"})
    trainer = tiny(graph.guard("window_cut", "next_batch.last or finish.due or accumulate.every > 2"))
    advance_to(trainer, "accumulate")
    trainer.advance()
    explained = trainer.explain()
    assert 'accumulate.every = 2 (from "2 if next_batch.epoch < 1 else 3")' in str(explained)
    assert 'accumulate.every=2(from "2 if next_batch.epoch < 1 else 3")' in explained.line


def test_a_guard_that_did_not_hold_and_one_that_did() -> None:
    trainer = tiny(Graph.load("fit").set("accumulate", every=2).set("clip", max_norm=1.0))
    advance_to(trainer, "accumulate")
    assert trainer.advance() == "decide"
    refused = trainer.explain()
    assert answers(refused) == [("exchange", "accumulation_reached", "refused"), ("decide", None, "taken")]
    guard = guard_of(refused, "accumulation_reached")
    assert guard.value is False
    assert read(guard) == [
        ("accumulate.count", 1),
        ("accumulate.full", False),
        ("next_batch.empty", False),
        ("next_batch.last", False),
        ("finish.due", False),
    ]
    nested = guard.reads[1]
    assert isinstance(nested, GuardReading)
    assert (nested.name, nested.expression) == (
        "window_complete",
        "accumulate.full or next_batch.empty",
    )
    assert "accumulate.full = False (1 of 2)" in str(refused)

    advance_to(trainer, "accumulate")
    assert trainer.advance() == "clip"
    held = trainer.explain()
    assert answers(held) == [("exchange", "accumulation_reached", "taken"), ("decide", None, "not asked")]
    guard = guard_of(held, "accumulation_reached")
    assert read(guard) == [("accumulate.count", 2), ("accumulate.full", True)]
    assert guard.not_read == ("window_cut",)
    assert "window_cut was not asked" in str(held)
    assert held.line == (
        "accumulate -> exchange  accumulation_reached=True(accumulate.count=2 accumulate.full=True(2 of 2)) "
        "| exchange bypassed -> clip"
    )


def test_values_are_those_of_the_moment_whatever_comes_after() -> None:
    trainer = tiny(Graph.load("fit").set("accumulate", every=2).set("finish", after="1 epochs"))
    advance_to(trainer, "accumulate")
    trainer.advance()
    explanation = trainer.explain()
    before = (str(explanation), dataclasses.asdict(explanation))
    trainer.run()
    assert trainer.progress["accumulate"]["count"] == 0
    assert (str(explanation), dataclasses.asdict(explanation)) == before
    assert guard_of(explanation, "accumulation_reached").reads[0] == Reading("accumulate.count", 1)


def test_what_a_trigger_is_computed_from() -> None:
    trainer = tiny(Graph.load("fit").set("validate", every="0.5 epochs"), val_data=[torch.ones(2, 1)])
    for _ in range(2):
        advance_to(trainer, "train_batch")
        trainer.advance(4)
    assert trainer.position == "decide"
    assert trainer.advance() == "validate"
    asked = guard_of(trainer.explain(), "val_check_batch").reads[0]
    assert isinstance(asked, Reading) and asked.trigger is not None
    assert (asked.name, asked.value, asked.trigger.verb) == ("validate.due", True, "every")
    (clock,) = asked.trigger.clocks
    assert (clock.now, clock.last, clock.due_at) == (Fraction(2, 3), 0, Fraction(1, 2))
    trainer.advance()
    advance_to(trainer, "decide")
    trainer.advance()
    asked = guard_of(trainer.explain(), "val_check_batch").reads[0]
    assert str(asked) == "validate.due = False (every 0.5 epochs: epochs 2/3, due at 1, last 2/3)"


def test_minutes_are_shown_in_minutes() -> None:
    trainer = tiny(Graph.load("fit").set("checkpoint", every="2 minutes"))
    trainer.advance()
    asked = guard_of(trainer.explain(), "checkpoint_due").reads[0]
    assert isinstance(asked, Reading) and asked.trigger is not None
    (clock,) = asked.trigger.clocks
    assert (clock.unit, clock.now, clock.due_at) == ("minutes", 0, 2)


def test_what_makes_it_due_besides_its_trigger() -> None:
    graph = Graph.load("fit").set("validate", every="1 batches").set("checkpoint", every="2 epochs", best="val/loss")
    trainer = tiny(graph, val_data=[torch.ones(2, 1)])
    advance_to(trainer, "checkpoint")
    asked = guard_of(trainer.explain(), "checkpoint_due").reads[0]
    text = "every 2 epochs: epochs 1/3, due at 2, last 0; or improved = True"
    assert str(asked) == f"checkpoint.due = True ({text})"
    trainer.advance()
    assert f"`checkpoint` ran ({text})" in str(trainer.explain())
    trainer.advance()
    asked = guard_of(trainer.explain(), "checkpoint_due").reads[0]
    assert str(asked).startswith("checkpoint.due = False") and str(asked).endswith("or improved = False)")


def test_a_node_that_was_not_due_shows_when_it_will_be() -> None:
    graph = Graph.load("fit").set("log", every="2 batches").redirect("begin_epoch", "next_batch", "log")
    trainer = tiny(graph.disconnect("decide", "log").disconnect("log", "decide").connect("log", "next_batch"))
    advance_to(trainer, "log")
    trainer.advance()
    explanation = trainer.explain()
    choice = explanation.choices[0]
    assert (choice.node, choice.event) == ("log", "not due")
    assert choice.trigger is not None
    assert [(one.now, one.last, one.due_at) for one in choice.trigger.clocks] == [(0, 0, 2)]
    assert "`log` did nothing, it was not due (every 2 batches: batches 0, due at 2, last 0)" in str(explanation)
    advance_to(trainer, "log")
    trainer.advance()
    choice = trainer.explain().choices[0]
    assert (choice.event, trainer.progress["log"]["runs"]) == ("ran", 1)
    assert choice.trigger is not None and choice.trigger.clocks[0].now == 3


def test_a_body_that_begins_and_one_that_ends() -> None:
    trainer = tiny(val_data=[torch.ones(2, 1)])
    advance_to(trainer, "validate")
    assert trainer.advance() == "validate/begin_evaluation"
    entered = trainer.explain()
    assert (entered.choices[0].event, answers(entered)) == ("entered", [("decide", None, "not asked")])
    assert "`validate` began its own graph at `validate/begin_evaluation`" in str(entered)
    assert entered.line == "validate -> begin_evaluation  entered"

    advance_to(trainer, "validate/end_evaluation")
    assert trainer.advance() == "decide"
    ended = trainer.explain()
    assert [(one.node, one.event) for one in ended.choices] == [
        ("validate/end_evaluation", "ran"),
        ("validate", "body ended"),
    ]
    assert answers(ended, 0) == [("end", None, "taken")]
    assert answers(ended, 1) == [("decide", None, "taken")]
    assert (ended.next, ended.line) == ("decide", "validate/end_evaluation -> end  | validate -> decide")


def test_what_the_outer_node_chose_after_its_body_ended() -> None:
    graph = Graph.load("fit").guard("often", "validate.runs > 1").connect("validate", "checkpoint", when="often")
    trainer = tiny(graph, val_data=[torch.ones(2, 1)])
    advance_to(trainer, "validate/end_evaluation")
    trainer.advance()
    explanation = trainer.explain()
    assert answers(explanation, 1) == [("checkpoint", "often", "refused"), ("decide", None, "taken")]
    assert read(guard_of(explanation, "often")) == [("validate.runs", 1)], "counted before its edges are asked"


def test_a_node_that_is_passed_over() -> None:
    trainer = tiny()
    advance_to(trainer, "accumulate")
    assert trainer.advance() == "step"
    explanation = trainer.explain()
    assert (explanation.target, explanation.next) == ("exchange", "step")
    assert "`exchange` is bypassed" in str(explanation)
    assert explanation.line.endswith("| exchange bypassed -> step")
    trainer.advance(3)
    assert str(guard_of(trainer.explain(), "schedule_due").reads[0]) == "schedule.due = False (it is bypassed)"


def test_the_end() -> None:
    trainer = tiny()
    while trainer.position != "end":
        trainer.advance()
    explanation = trainer.explain()
    assert (explanation.next, explanation.target) == ("end", "end")
    assert str(explanation).endswith("the run is over")


def test_it_is_plain_data_and_shows_itself() -> None:
    trainer = tiny()
    trainer.advance()
    explanation = trainer.explain()
    assert json.loads(json.dumps(dataclasses.asdict(explanation), default=str))["next"] == "begin_epoch"
    html = explanation._repr_html_()
    assert html.startswith("<pre>") and "end_epoch.runs &lt; begin_epoch.runs" in html
    assert hash(explanation) == hash(trainer.explain())


# --- After a run that kept no trace -----------------------------------------------------------------------------------


def test_after_a_finished_run_the_end_is_explained_from_what_did_not_change_since() -> None:
    traced, plain = tiny(), tiny()
    while traced.position != "end":
        traced.advance()
    assert plain.run() is Outcome.FINISHED
    before = plain.digest()
    explanation = plain.explain()
    assert explanation.choices[0].edges == traced.explain().choices[0].edges
    assert (explanation.next, explanation.choices[0].event) == ("end", "asked again")
    assert plain.digest() == before
    assert plain.run() is Outcome.ALREADY_FINISHED, "explaining has asked for nothing"


def test_a_stopped_run_shows_what_it_does_not_know() -> None:
    trainer = tiny()
    trainer.advance(3)
    assert trainer.run(until="1 steps") is Outcome.REACHED
    explanation = trainer.explain()
    assert explanation.choices == (), "not the transition before the run"
    assert "records no transitions" in str(explanation) and "`next_batch` is next" in str(explanation)
    assert explanation.next == trainer.position == "next_batch"
    trainer.advance()
    assert trainer.explain().choices[0].node == "next_batch"


def test_a_rewired_run_does_not_take_another_graphs_edges_for_its_own() -> None:
    trainer = tiny()
    trainer.run()
    trainer.rewire(trainer.graph.set("finish", after="4 epochs"))
    explanation = trainer.explain()
    assert explanation.choices == () and "records no transitions" in str(explanation)
    trainer.advance()
    assert trainer.explain().choices[0].node == "decide", "which the raised ending led to"


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
    explanation = trainer.explain()
    assert [(one.node, one.event) for one in explanation.choices] == [("fragile", "failed")]
    assert explanation.error == "ZeroDivisionError: on purpose"
    assert "the run failed at `fragile`" in str(explanation) and "it raised ZeroDivisionError" in str(explanation)
    assert explanation.line == "fragile -> ?  failed raised ZeroDivisionError: on purpose"


@pytest.mark.parametrize("go", [fails_by_run, fails_by_hand])
def test_a_guard_that_raised(go: Callable[[Trainer], None]) -> None:
    trainer = broken_guard()
    with pytest.raises(GuardError):
        go(trainer)
    explanation = trainer.explain()
    assert [one.node for one in explanation.choices] == ["zero_grad"]
    assert answers(explanation) == [("checkpoint", "broken", "raised"), ("decide", None, "not asked")]
    guard = guard_of(explanation, "broken")
    assert (guard.value, guard.error) == (None, "ZeroDivisionError: division by zero")
    assert read(guard) == [("log.runs", 0), ("step.steps", 2)]
    assert "broken=raised ZeroDivisionError: division by zero(log.runs=0 step.steps=2)" in explanation.line


@pytest.mark.parametrize("go", [fails_by_run, fails_by_hand])
def test_a_guard_that_raised_once_a_body_had_ended(go: Callable[[Trainer], None]) -> None:
    graph = Graph.load("fit").guard("broken", "1 / (2 - validate.runs) > 5")
    trainer = tiny(graph.connect("validate", "checkpoint", when="broken"), val_data=[torch.ones(2, 1)])
    with pytest.raises(GuardError):
        go(trainer)
    explanation = trainer.explain()
    assert answers(explanation, -1) == [("checkpoint", "broken", "raised"), ("decide", None, "not asked")]
    assert read(guard_of(explanation, "broken")) == [("validate.runs", 2)]
    if go is fails_by_hand:
        assert [(one.node, one.event) for one in explanation.choices] == [
            ("validate/end_evaluation", "ran"),
            ("validate", "body ended"),
        ]
        assert answers(explanation) == [("end", None, "taken")]


def test_a_guard_that_raised_behind_a_node_that_did_nothing() -> None:
    """`schedule` has no scheduler: it is bypassed, and its edges are chosen from all the same."""
    graph = Graph.load("fit").redirect("zero_grad", "decide", "schedule").disconnect("decide", "schedule")
    trainer = tiny(graph.guard("broken", "1 / (2 - step.steps) > 0.5").connect("schedule", "log", when="broken"))
    with pytest.raises(GuardError):
        trainer.advance(1000)
    (choice,) = trainer.explain().choices
    assert (choice.node, choice.event) == ("schedule", "bypassed")
    assert [one.answer for one in choice.edges] == ["raised", "not asked"]


def test_the_end_of_a_body_that_failed_has_not_run_the_node_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(trigger: Every) -> None:
        raise OverflowError("on purpose")

    trainer = tiny(val_data=[torch.ones(2, 1)])
    advance_to(trainer, "validate/end_evaluation")
    monkeypatch.setattr(Every, "fire", refuse)
    with pytest.raises(OverflowError):
        trainer.advance()
    explanation = trainer.explain()
    assert [(one.node, one.event) for one in explanation.choices] == [("validate/end_evaluation", "ran")]
    assert (answers(explanation), explanation.error) == ([("end", None, "taken")], "OverflowError: on purpose")


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
    lines = [[re.sub(r"minutes [^;)]+", "minutes", each.line) for each in those] for those in (told, by_hand)]
    assert lines[0] == lines[1]
    assert [each.next for each in told] == [each.next for each in by_hand]
    assert other.explain() is told[-1]


def test_a_run_until_traces_no_transition_that_it_did_not_make() -> None:
    trainer = tiny()
    told = traced_run(trainer, until="1 steps")
    assert (told[-1].next, trainer.position) == ("next_batch", "next_batch")
    assert [one.choices[0].node for one in told].count("next_batch") == trainer.progress["next_batch"]["runs"] == 1
    trainer.advance()
    assert len(told) == len([one for one in told if one.step is not None]), "stepping tells nobody"


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


@pytest.mark.full
def test_a_traced_run_is_bitwise_a_plain_one_with_everything_random(tmp_path: Path) -> None:
    losses: dict[bool, list[float]] = {True: [], False: []}
    digests = {}
    for traced in (True, False):
        trainer = small_trainer(tmp_path / str(traced), losses=losses[traced])
        told = traced_run(trainer) if traced else []
        trainer.run()
        digests[traced] = trainer.digest()
        check_against_the_reference(trainer, told)
    assert losses[True] == losses[False] and digests[True] == digests[False]
    assert (tmp_path / "True/metrics.jsonl").read_bytes() == (tmp_path / "False/metrics.jsonl").read_bytes()


def check_against_the_reference(trainer: Trainer, told: list[Explanation]) -> None:
    """Every guard's answer is what its expression means for what it read, and it read what the meaning reads."""
    expressions = {}
    for scope in (trainer._session.compiled.program.main, *trainer._session.compiled.program.main.inner()):
        parsed = {name: parse(text) for name, text in scope.graph.guards.items()}
        expressions |= {(scope.prefix, name): expand(one, parsed, (name,)) for name, one in parsed.items()}
    asked = 0
    for explanation in told:
        for choice in explanation.choices:
            outside, slash, _ = choice.node.rpartition("/")
            for edge in choice.edges:
                assert (edge.guard is None) == (edge.when is None or edge.answer == "not asked")
                if edge.guard is None:
                    continue
                readings = iter(read(edge.guard))

                def following(name: str, readings: Iterator[tuple[str, Any]] = readings) -> Any:
                    found, value = next(readings)
                    assert found == name
                    return value

                expression = expressions[outside + slash, edge.guard.name]
                assert edge.guard.value == evaluate(expression, following)
                assert next(readings, None) is None, "it read no more than the meaning reads"
                assert edge.answer == ("taken" if edge.guard.value else "refused")
                asked += 1
    assert asked or not told


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
    assert {one.note for one in told} == {""}, "the edges taken led to where the run went"
    for explanation, following in itertools.pairwise(told):
        assert following.choices[0].node == explanation.next


@node(writes=("score",))
class Score:
    """Writes how often it has run."""

    visits: int = progress(0)

    def __call__(self) -> int:
        self.visits += 1
        return self.visits


@node
class Uses:
    """Makes slots of the graph around known to the guards of a body."""

    def __call__(self, best: int, rounds: int, is_due: bool) -> None: ...


def test_what_a_body_read_of_the_graph_around_it_before_its_end_changed_that() -> None:
    def of(name: str, kind: Any, **more: Any) -> Node:
        return Node(name, name, kind=kind_of(kind), **more)

    body = Graph(
        "body",
        "uses",
        {"uses": of("uses", Uses), "score": of("score", Score)},
        {"uses": (Edge("score"),), "score": (Edge("end", "better"), Edge("uses"))},
        {"better": "is_due and score.visits > best + rounds"},
        outputs=("score",),
    )
    outside = {"rounds": "body.runs", "is_due": "body.due"}
    graph = Graph(
        "around",
        "first",
        {
            "first": of("first", Score, writes={"score": "best"}),
            "dice": of("dice", Dice),
            "body": Node("body", "nested", {"every": "2 visits"}, outside, {"score": "best"}, body),
        },
        {"first": (Edge("dice"),), "dice": (Edge("body"),), "body": (Edge("end", "over"), Edge("dice"))},
        {"over": "body.runs + dice.visits > 8"},
        {"visits": "dice.visits"},
    )
    told = traced_run(Trainer(graph, notify=lambda line: None, display=None))
    ends = [one for one in told if len(one.choices) == 2]
    assert [read(guard_of(one, "better")) for one in ends] == [
        [("is_due", True), ("score.visits", 2), ("best", 1), ("rounds", 0)],
        [("is_due", True), ("score.visits", 4), ("best", 2), ("rounds", 1)],
        [("is_due", True), ("score.visits", 7), ("best", 4), ("rounds", 2)],
    ]
    assert [read(guard_of(one, "over"))[0] for one in ends] == [("body.runs", number) for number in (1, 2, 3)]
    assert {one.note for one in told} == {""}


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
    assert "not saved state" in trainer.explain().note


_ASKED: list[str] = []


@node
class Dice:
    """Fields whose every reading is noticed."""

    visits: int = progress(0)

    def __call__(self) -> None:
        self.visits += 1

    def _number(self, name: str, most: int) -> int:
        _ASKED.append(name)
        return (self.visits * {"a": 7, "b": 5, "c": 3}[name] + self.visits // 3) % most

    @property
    def a(self) -> int:
        return self._number("a", 4)

    @property
    def b(self) -> int:
        return self._number("b", 3)

    @property
    def flag(self) -> bool:
        return self._number("c", 2) == 1


ATOMS = ("dice.flag", "dice.a > 1", "dice.a == dice.b", "0 < dice.a <= dice.b + 1", "dice.a % 2 == 1", "dice.b >= 1")


def joined(inside: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        inside.map("(not {})".format),
        st.tuples(inside, st.sampled_from(["and", "or"]), inside).map(lambda parts: f"({' '.join(parts)})"),
        st.tuples(inside, inside, inside).map(lambda parts: f"({parts[0]} and {parts[1]} and {parts[2]})"),
    )


BASE = Graph.loads(
    """
format = 1
start = "dice"
[nodes]
dice = {}
left = { use = "choice" }
right = { use = "choice" }
[guards]
named = "dice.flag"
first = "dice.a > 0"
second = "dice.b > 0"
enough = "dice.visits > 40"
[edges]
dice = ["left if first", "right if second", "end if enough", "dice"]
left = ["dice if named", "right"]
right = ["dice"]
"""
).replace("dice", Dice)


def dice_run(graph: Graph, trace: Callable[[Explanation], Any] | None) -> tuple[list[str], str]:
    """What was asked, and what became of it."""
    trainer = Trainer(graph, seed=0, notify=lambda line: None, display=None, not_state=[f"{__name__}:_ASKED"])
    _ASKED.clear()
    assert trainer.run(trace=trace) is Outcome.FINISHED
    return list(_ASKED), trainer.digest()


@pytest.mark.sweep
@settings(max_examples=40)
@given(
    named=st.recursive(st.sampled_from(ATOMS), joined, max_leaves=4),
    first=st.recursive(st.sampled_from([*ATOMS, "named"]), joined, max_leaves=6),
    second=st.recursive(st.sampled_from([*ATOMS, "named", "first"]), joined, max_leaves=6),
)
def test_every_name_that_is_traced_was_read_as_often_and_in_the_same_order(named: str, first: str, second: str) -> None:
    graph = BASE.guard("named", named).guard("first", f"({first}) and not enough")
    graph = graph.guard("second", f"({second}) and not enough")
    assume(not [one for one in graph.check() if one.severity == "error"])  # one guard twice under two names
    plain = dice_run(graph, None)
    told: list[Explanation] = []
    assert dice_run(graph, told.append)[1] == plain[1]
    assert plain[0], "or nothing was compared"
    in_order = [name for one in told for choice in one.choices for edge in choice.edges if edge.guard is not None
                for name, _ in read(edge.guard) if name != "dice.visits"]  # fmt: skip
    fields = {"dice.a": "a", "dice.b": "b", "dice.flag": "c"}
    assert [fields[name] for name in in_order] == plain[0]


# --- Off costs nothing ------------------------------------------------------------------------------------------------


def reachable(calls: Iterable[Any]) -> set[types.CodeType]:
    """The code of everything that some calls hold, however deep."""
    codes: set[types.CodeType] = set()
    seen: dict[int, Any] = {}
    waiting: list[Any] = list(calls)
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        if isinstance(one, types.FunctionType):
            codes.add(one.__code__)
            waiting += [cell.cell_contents for cell in one.__closure__ or () if _is_filled(cell)]
        elif isinstance(one, types.MethodType):
            waiting += [one.__func__, one.__self__]
        elif isinstance(one, functools.partial):
            waiting += [one.func, *one.args, *one.keywords.values()]
        elif isinstance(one, list | tuple):
            waiting += one
        elif type(one).__module__.startswith(("graphtrain.program.table", "graphtrain.program.visits")):
            waiting += vars(one).values()
    return codes


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def calls_of(table: Compiler) -> list[Any]:
    return [*table.transitions, *table.exits, *table.visits.setups]


def test_the_table_holds_nothing_of_tracing() -> None:
    trainer = small_trainer(graph=small_graph())
    table = trainer._session.compiled.compiler
    before = calls_of(table)
    trainer.advance(20)
    trainer.explain()
    assert all(call is former for call, former in zip(calls_of(table), before, strict=True))
    assert not [code for code in reachable(before) if code.co_filename == tracing.__file__]
    traced = reachable(trainer._run.tracing().transitions(trainer._session.compiled))
    assert [code for code in traced if code.co_filename == tracing.__file__], "or the line above sees nothing"


def test_a_plain_run_explains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any) -> Any:
        raise AssertionError("a plain run has no use for it")

    monkeypatch.setattr(Explainer, "transitions", refused)
    monkeypatch.setattr(tracing, "choice_at", refused)
    assert small_trainer(graph=small_graph()).run() is Outcome.FINISHED
