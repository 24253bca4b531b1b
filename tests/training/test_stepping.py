"""Promise 15: a run is stepped by hand, and stops at breakpoints before nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphtrain import Graph, LifeCycleError, Outcome, UsageError, fit, node
from tests.training.tiny import BATCHES, FIT, batches, tiny
from tests.world import world

WINDOWS = FIT.set("accumulate", every=2)


def test_it_stops_before_the_node_each_time() -> None:
    trainer, whole = world(WINDOWS).trainer(), world(WINDOWS).trainer()
    steps = []
    while (outcome := trainer.run(before="step")) is Outcome.BREAKPOINT:
        assert trainer.position == "step" and outcome.resumable
        steps.append((trainer.progress["step"]["steps"], trainer.progress["next_batch"]["batches"]))
    assert outcome is Outcome.FINISHED
    assert steps == [(0, 2), (1, 4), (2, 5), (3, 7), (4, 9), (5, 10)]
    whole.run()
    assert trainer.digest() == whole.digest() and trainer.metrics == whole.metrics


def test_stepping_by_hand_is_the_run_in_one() -> None:
    trainer, whole = world(WINDOWS).trainer(), world(WINDOWS).trainer()
    visited: list[str] = []
    whole.run(trace=lambda explained: visited.append(explained.node))
    stepped = []
    while trainer.position != "end":
        stepped.append(trainer.position)
        trainer.advance()
    assert [name for name in stepped if name in visited] == visited
    assert trainer.digest() == whole.digest() and trainer.metrics == whole.metrics
    with pytest.raises(LifeCycleError, match="the run is finished"):
        trainer.advance()
    assert whole.run() is Outcome.ALREADY_FINISHED


def test_a_node_of_a_body() -> None:
    trainer = tiny(val_data=batches(3))
    for count in (0, 1, 2):
        assert trainer.run(before="validate/eval_batch") is Outcome.BREAKPOINT
        assert trainer.position == "validate/eval_batch"
        assert trainer.progress["validate/next_batch"]["batches"] == count + 1
    assert trainer.run(before="validate") is Outcome.BREAKPOINT
    assert (trainer.position, trainer.progress["next_batch"]["batches"]) == ("validate", 2 * BATCHES)


def test_a_run_that_begins_there_stops_at_once_and_is_saved_and_resumed_past_it(tmp_path: Path) -> None:
    trainer = tiny(run_dir=tmp_path)
    assert trainer.run(before="decide") is Outcome.BREAKPOINT
    assert trainer.progress["decide"]["runs"] == 0
    for runs, again in enumerate((trainer, tiny(run_dir=tmp_path)), 1):
        assert again.run(before="decide") is Outcome.BREAKPOINT
        assert again.progress["decide"]["runs"] == runs
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["position"]) == ("stopped", "decide")
    resumed, whole = tiny(run_dir=tmp_path), tiny()
    assert resumed.run() is whole.run() is Outcome.FINISHED
    assert resumed.digest() == whole.digest()


def test_where_the_trigger_is_not_due_the_node_does_not_run() -> None:
    trainer = tiny(FIT.redirect("zero_grad", "decide", "log").set("log", every="3 steps"))
    assert trainer.run(before="log") is Outcome.BREAKPOINT
    assert trainer.progress["step"]["steps"] == 3


def test_with_an_amount_the_first_of_both_stops() -> None:
    trainer = tiny(FIT.set("accumulate", every=4))
    assert trainer.run(until="2 batches", before="step") is Outcome.REACHED
    assert trainer.run(until="6 batches", before="step") is Outcome.BREAKPOINT
    assert (trainer.position, trainer.progress["next_batch"]["batches"]) == ("step", 4)
    assert trainer.run(until="4 batches", before="zero_grad") is Outcome.BREAKPOINT
    assert trainer.run(until="1 epochs", before="next_batch") is Outcome.BREAKPOINT


@node(writes="thing")
def make_thing() -> object:
    """Write what cannot be saved."""
    return object()


@node(writes="thing", transient="thing")
def open_thing() -> Any:
    """Write what is declared transient."""
    return iter([1, 2])


@node
def use_thing(thing: Any) -> None:
    """Read it."""


def holding(maker: Any) -> Graph:
    return FIT.insert("make", maker, after="train_batch").insert("use", use_thing, after="make")


@pytest.mark.parametrize(
    ("maker", "reason"), [(make_thing, "slots['thing'] cannot be saved"), (open_thing, "declared transient")]
)
def test_where_nothing_can_be_saved(maker: Any, reason: str, tmp_path: Path) -> None:
    """A breakpoint stops there all the same; a save moves on to the next point."""
    said: list[str] = []
    trainer = tiny(holding(maker), tmp_path, said=said)
    assert trainer.run(before="use") is Outcome.BREAKPOINT
    assert trainer.position == "use" and not list((tmp_path / "checkpoints").iterdir())
    (line,) = [line for line in said if "save point" in line]
    assert line.startswith("`use` is not a save point (alive: ") and line.endswith("; nothing is saved here")
    assert trainer.save() is not None and trainer.position == "accumulate"
    assert said[-1].endswith("; training on to the next one") and reason in said[-1]
    assert ("use" in trainer.save_points()) == (maker is make_thing) and "accumulate" in trainer.save_points()
    assert trainer.run() is Outcome.FINISHED


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("stp", r"before: there is no node `stp`.*\n  hint: did you mean `step`\?"),
        ("validate", r"before: there is no node `validate`, or it is bypassed"),
        ("validate/eval_batch", r"before: there is no node `validate/eval_batch`"),
        ("schedule", r"before: there is no node `schedule`"),
    ],
)
def test_what_never_runs_is_refused(before: str, expected: str) -> None:
    trainer = tiny()
    with pytest.raises(UsageError, match=expected) as caught:
        trainer.run(before=before)
    assert "schedule" not in str(caught.value).partition("hint")[2]
    assert trainer.state == "ready" and trainer.run(before="step") is Outcome.BREAKPOINT


def test_what_can_be_read() -> None:
    trainer = tiny()
    trainer.run(until="2 batches")
    assert trainer.read("model") is trainer.resources["model"]
    assert trainer.read("batch").shape == (2, 1) and trainer.read("next_batch.batches") == 2
    for name, hint in (
        ("btach", "there is no `btach`; did you mean `batch`?"),
        ("stpe.steps", "there is no `stpe.steps`; did you mean `step.steps`?"),
        ("step.step", "there is no `step.step`; did you mean `step.steps`?"),
    ):
        with pytest.raises(KeyError) as caught:
            trainer.read(name)
        assert hint in str(caught.value)
    assert repr(trainer) == "<Trainer of fit: stopped, step 2, epoch 0.40, batch 2/5>"


def test_a_kind_asks_for_a_checkpoint(tmp_path: Path) -> None:
    @node(name="ask")
    class Ask:
        """Ask for a checkpoint."""

        def setup(self, checkpoints: Any) -> None:
            self._checkpoints = checkpoints

        def __call__(self) -> None:
            self._checkpoints.save()

    graph = fit(steps=2, save_every="never", keep=100)
    tiny(graph.insert("ask", Ask, after="step"), tmp_path).run()
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["000001-step-1", "000003-step-2"], "one a step, and that of the end in the place of the last"


def test_saving_from_inside_a_step_is_a_request(tmp_path: Path) -> None:
    answers: list[Any] = []

    def training_step(model: Any, batch: Any) -> Any:
        if not answers:
            answers.append(trainer.save())
        return model(batch).mean()

    trainer = tiny(fit(save_every="never"), tmp_path, training_step=training_step, not_state="training_step<answers>")
    trainer.run(until="1 batches")
    assert answers == [None]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2, "the one asked for, and the one of the stop"


class Past:
    """Ask the past of the run which batches were the last."""

    def setup(self, history: Any) -> None:
        self._history = history

    def __call__(self, noted: list[Any]) -> None:
        noted.append([self._history.batches(), self._history.batches(3), self._history.batches(99)])


def test_the_last_batches_of_the_epoch(tmp_path: Path) -> None:
    noted: list[Any] = []
    graph = FIT.set("finish", after="8 batches").insert("past", node(name="past")(Past), after="step")
    tiny(graph, tmp_path, noted=noted, val_data=batches(1), not_state=["noted"]).run()
    assert noted[1] == [[[0, 1]], [[0, 0], [0, 1]], [[0, 0], [0, 1]]]
    assert noted[7] == [[[1, 2]], [[1, 0], [1, 1], [1, 2]], [[1, 0], [1, 1], [1, 2]]]
