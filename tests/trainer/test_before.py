"""`run(before=...)`: a breakpoint before a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from graphtrain import Graph, Outcome, Trainer, UsageError, node
from graphtrain.storage.run_directory import read_status

BATCHES = 5


def make_trainer(
    graph: Graph | None = None, run_dir: Path | None = None, said: list[str] | None = None, **more: Any
) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    resources = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "train_data": [torch.full((2, 1), float(number)) for number in range(BATCHES)],
        "training_step": lambda model, batch: model(batch).square().mean(),
        **more,
    }
    graph = graph if graph is not None else Graph.load("fit")
    notify = said.append if said is not None else lambda line: None
    return Trainer(
        graph.set("finish", after="2 epochs"),
        seed=0,
        run_dir=run_dir,
        device="cpu",
        display=None,
        notify=notify,
        **resources,
    )


def validated(**more: Any) -> Trainer:
    data = [torch.ones(2, 1)] * 3
    return make_trainer(val_data=data, validation_step=lambda model, batch: {"loss": model(batch).mean()}, **more)


def test_it_stops_before_the_node_each_time(tmp_path: Path) -> None:
    trainer, whole = (
        make_trainer(Graph.load("fit").set("accumulate", every=2)),
        make_trainer(Graph.load("fit").set("accumulate", every=2)),
    )
    steps = []
    while (outcome := trainer.run(before="step")) is Outcome.BREAKPOINT:
        assert trainer.position == "step" and outcome.resumable
        steps.append((trainer.progress["step"]["steps"], trainer.progress["next_batch"]["batches"]))
    assert outcome is Outcome.FINISHED
    assert steps == [(0, 2), (1, 4), (2, 5), (3, 7), (4, 9), (5, 10)]
    whole.run()
    assert trainer.digest() == whole.digest() and trainer.metrics == whole.metrics


def test_a_node_of_a_body() -> None:
    trainer = validated()
    for count in (0, 1, 2):
        assert trainer.run(before="validate/eval_batch") is Outcome.BREAKPOINT
        assert trainer.position == "validate/eval_batch"
        assert trainer.progress["validate/next_batch"]["batches"] == count + 1
    assert trainer.run(before="validate") is Outcome.BREAKPOINT
    assert (trainer.position, trainer.progress["next_batch"]["batches"]) == ("validate", 2 * BATCHES)


def test_a_run_that_begins_there_stops_at_once(tmp_path: Path) -> None:
    trainer = make_trainer(run_dir=tmp_path)
    assert trainer.run(before="decide") is Outcome.BREAKPOINT
    assert trainer.progress["decide"]["runs"] == 0
    for again in (trainer, make_trainer(run_dir=tmp_path)):
        assert again.run(before="decide") is Outcome.BREAKPOINT
        assert again.progress["decide"]["runs"] == (1 if again is trainer else 2)


def test_where_the_trigger_is_not_due_the_node_does_not_run() -> None:
    graph = Graph.load("fit").redirect("zero_grad", "decide", "log").set("log", every="3 steps")
    trainer = make_trainer(graph)
    assert trainer.run(before="log") is Outcome.BREAKPOINT
    assert trainer.progress["step"]["steps"] == 3


def test_with_an_amount_the_first_of_both_stops() -> None:
    trainer = make_trainer(Graph.load("fit").set("accumulate", every=4))
    assert trainer.run(until="2 batches", before="step") is Outcome.REACHED
    assert trainer.run(until="6 batches", before="step") is Outcome.BREAKPOINT
    assert (trainer.position, trainer.progress["next_batch"]["batches"]) == ("step", 4)
    assert trainer.run(until="4 batches", before="zero_grad") is Outcome.BREAKPOINT
    assert trainer.run(until="1 epochs", before="next_batch") is Outcome.BREAKPOINT


@pytest.mark.full
def test_it_is_saved_there_and_resumed_past_it(tmp_path: Path) -> None:
    first, whole = make_trainer(run_dir=tmp_path), make_trainer()
    assert first.run(before="step") is Outcome.BREAKPOINT
    assert read_status(tmp_path)["state"] == "stopped" and len([*(tmp_path / "checkpoints").iterdir()]) == 1
    second = make_trainer(run_dir=tmp_path)
    assert second.run(before="step") is Outcome.BREAKPOINT
    assert (second.position, second.progress["step"]["steps"]) == ("step", 1)
    assert make_trainer(run_dir=tmp_path).run() is whole.run() is Outcome.FINISHED
    assert read_status(tmp_path)["digest"] == whole.digest()


def test_where_nothing_can_be_saved_it_stops_all_the_same(tmp_path: Path) -> None:
    @node(writes="thing")
    def make_thing() -> object:
        return object()

    @node
    def use_thing(thing: Any) -> None: ...

    graph = Graph.load("fit").insert("make", make_thing, after="train_batch").insert("use", use_thing, after="make")
    said: list[str] = []
    trainer = make_trainer(graph, tmp_path, said)
    assert trainer.run(before="use") is Outcome.BREAKPOINT
    assert trainer.position == "use" and not list((tmp_path / "checkpoints").iterdir())
    (line,) = [line for line in said if "save point" in line]
    assert line.startswith("`use` is not a save point (alive: ") and line.endswith("; nothing is saved here")
    assert trainer.run() is Outcome.FINISHED


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("stp", r"before: there is no node `stp`\n  hint: did you mean `step`\?"),
        ("validate", r"before: the node `validate` never runs: it is bypassed, .*\n  hint: .*the nodes that run: "),
        ("validate/eval_batch", r"before: the node `validate/eval_batch` never runs"),
        ("schedule", r"before: the node `schedule` never runs"),
    ],
)
def test_what_never_runs_is_refused(before: str, expected: str) -> None:
    trainer = make_trainer()
    with pytest.raises(UsageError, match=expected) as caught:
        trainer.run(before=before)
    assert "schedule" not in str(caught.value).partition("the nodes")[2]
    assert trainer.state == "ready" and trainer.run(before="step") is Outcome.BREAKPOINT
