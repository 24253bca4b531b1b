"""Promise 7: how many steps a run will make is counted ahead, as runs that are made say; schedulers are held to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from graphtrain import Graph, PlannedRun, UsageError
from tests.training.tiny import batches, tiny

FIT = Graph.load("fit").set("checkpoint", every="never").set("log", every="never")


GRAPHS = {
    "plain": FIT,
    "window": FIT.set("accumulate", every=4),
    "carry": FIT.overlay("carry").set("accumulate", every=4),
    "drop": FIT.overlay("drop").set("accumulate", every=4),
    "steps": FIT.set("accumulate", every=4).set("finish", after="17 steps"),
    "batches": FIT.overlay("carry").set("accumulate", every=4).set("finish", after="33 batches"),
    "part of an epoch": FIT.set("accumulate", every=3).set("finish", after="2.35 epochs"),
    "part of an epoch, dropped": FIT.overlay("drop").set("accumulate", every=3).set("finish", after="2.35 epochs"),
    "either": FIT.set("finish", after=["3 epochs", "20 steps"]),
    "limit": FIT.set("next_batch", limit=6).set("accumulate", every=4),
    "by count": FIT.set("accumulate", every=3).guard("window_complete", "accumulate.count >= accumulate.every"),
    "all overlays": FIT.overlay("ema", "swa", "plateau", "sanity", "save_first").set("accumulate", every=3),
}


@pytest.mark.second(16)
@pytest.mark.first(8)
@pytest.mark.parametrize(
    "length",
    [4, pytest.param(11, marks=pytest.mark.full), *(pytest.param(n, marks=pytest.mark.sweep) for n in (1, 23))],
)
@pytest.mark.parametrize("name", GRAPHS)
def test_it_is_the_number_of_steps_that_are_made(name: str, length: int) -> None:
    data = torch.utils.data.DataLoader(torch.ones(2 * length, 1), batch_size=2)  # type: ignore[arg-type]
    trainer = tiny(GRAPHS[name], train_data=data)
    trainer.run(until="40 epochs")
    assert PlannedRun(GRAPHS[name]).steps(data) == trainer.progress["step"]["runs"]


DISCARDING = FIT.overlay("check_finite").set("check_loss", action="drop")
SPIKES = FIT.guard("spike", "accumulate.count > 0 and loss > 3").insert("discard").connect("discard", "decide")


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("graph", "named"),
    [
        (FIT.overlay("early_stop"), "`early_stop.stop`"),
        (DISCARDING, "`check_loss -> discard`"),
        (DISCARDING.overlay("early_stop"), "`early_stop.stop`, `check_loss -> discard`"),
        (SPIKES.connect("accumulate", "discard", when="spike"), "`loss`"),
        (SPIKES.connect("clip", "discard", when="spike"), "`clip -> discard`"),
        (FIT.guard("ending", or_="loss > 9.5"), "`loss`"),
    ],
)
def test_what_may_make_the_steps_fewer_is_named(graph: Graph, named: str) -> None:
    lines: list[str] = []
    assert PlannedRun(graph, notify=lines.append).steps(batches(6)) == 60
    assert lines == [f"run.steps: at most 60 steps, fewer depending on {named}"]


@pytest.mark.parametrize("graph", [*GRAPHS.values(), DISCARDING.set("finish", after="9 steps")])
def test_nothing_is_said_where_the_number_is_exact(graph: Graph) -> None:
    lines: list[str] = []
    PlannedRun(graph, notify=lines.append).steps(batches(6))
    assert lines == []


def test_the_number_of_a_run_that_discards_windows_is_at_most_the_one_that_was_named() -> None:
    def step(model: Any, batch: Any) -> Any:
        return model(batch).mean() * (float("nan") if batch.sum() > 0 else 1.0)

    data = [torch.full((1, 1), float(number % 3)) for number in range(6)]
    trainer = tiny(DISCARDING, train_data=data, training_step=step)
    trainer.run()
    assert trainer.progress["step"]["runs"] == 20 < PlannedRun(DISCARDING, notify=lambda line: None).steps(data)


SEVERAL = {"a": batches(3), "b": batches(5)}
LONG = FIT.set("accumulate", every=64)
MILLION = 1_000_003


@pytest.mark.parametrize(
    ("graph", "data", "steps"),
    [
        (FIT.overlay("early_stop").set("finish", after="3 epochs"), batches(10), 30),  # a metric may end it before
        (FIT.set("finish", after="2 epochs"), SEVERAL, 2 * 5),  # cycled through
        (LONG.set("finish", after="7777 epochs"), range(MILLION), 7777 * -(-MILLION // 64)),
        (LONG.overlay("drop").set("finish", after="7777 epochs"), range(MILLION), 7777 * (MILLION // 64)),
    ],
)
def test_what_is_counted(graph: Graph, data: Any, steps: int) -> None:
    assert PlannedRun(graph).steps(data) == steps


_AMOUNT = 'finish.after = "10 epochs"'


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("graph", "data", "message", "hint"),
    [
        (FIT.set("finish", after="2 hours"), batches(3), '`finish.after` = "2 hours"', _AMOUNT),
        (FIT.set("finish", after=["3 epochs", "10 minutes"]), batches(3), '"3 epochs or 10 minutes"', _AMOUNT),
        (FIT.set("finish", after="never").overlay("early_stop"), batches(3), '"never"', _AMOUNT),
        (FIT, iter(batches(3)), "the data has no length", "give the data a `__len__`"),
        (FIT.set("accumulate", reads={"every": "1 + step.steps // 7"}), batches(3), "`accumulate.every` is an "
         "expression", "compute the number in `setup`"),
        (FIT.guard("ending", and_="step.steps % 7 == 0"), batches(3), "a guard reads `step.steps`", "in `setup`"),
        (FIT.guard("ending", or_="validate.due"), batches(3), "a guard reads `validate.due`", "in `setup`"),
        (FIT.guard("window_cut", "False"), batches(3), "leads to a step when a window is full", "in `setup`"),
        (FIT.insert("second", "train_batch", after="train_batch", writes={"loss": "other"}), batches(3),
         "2 nodes run backward", "in `setup`"),
        (Graph.load("kfold"), batches(3), "no nodes fetch batches", "in `setup`"),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_told_is_an_error(graph: Graph, data: Any, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        PlannedRun(graph).steps(data)
    assert caught.value.message.startswith("run.steps: ") and message in caught.value.message
    assert hint in caught.value.hint


# ---- a scheduler that counts epochs


def run_with(make: Callable[[Any], Any], graph: Graph) -> None:
    weight = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
    given = {"model": weight, "optimizer": optimizer, "scheduler": make(optimizer), "train_data": batches(10)}
    tiny(graph, **given).run(until="2 batches")


def stepped_before(optimizer: Any) -> int:
    optimizer.param_groups[0]["initial_lr"] = 0.1
    return 3


@pytest.mark.parametrize(
    ("make", "graph"),
    [
        (lambda optimizer: lr_scheduler.StepLR(optimizer, 5), FIT),
        (lambda optimizer: lr_scheduler.StepLR(optimizer, 5000), FIT.dry_run()),  # wherever it changes the rate first
        (lambda optimizer: lr_scheduler.StepLR(optimizer, 5, last_epoch=stepped_before(optimizer)), FIT),
        (lambda optimizer: lr_scheduler.MultiStepLR(optimizer, []), FIT.set("finish", after="2 hours")),
        (lambda optimizer: [lr_scheduler.ExponentialLR(optimizer, 0.9)], FIT.set("schedule", from_="1 epochs")),
    ],
)
def test_a_scheduler_of_epochs_is_not_stepped_by_steps_unless_that_is_written(make: Any, graph: Graph) -> None:
    with pytest.raises(UsageError, match="counts epochs by its documentation") as caught:
        run_with(make, graph)
    for every in ("1 steps", "1 epochs"):
        assert f'schedule.every="{every}"' in caught.value.hint
        run_with(make, graph.set("schedule", every=every))
