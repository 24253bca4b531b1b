"""Promise 7: how many steps a run will make is counted ahead, as runs that are made say; schedulers are held to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from graphtrain import Edge, Graph, Node, PlannedRun, UsageError
from tests.training.tiny import batches, tiny

FIT = Graph.load("fit").set("checkpoint", every="never").set("log", every="never")


def trained(graph: Graph, data: Any, path: str = "step", **resources: Any) -> int:
    """How often a node has run when a run is over; in a body, over all runs of that."""
    trainer, runs, before = tiny(graph, train_data=data, **resources), 0, 0

    def look(transition: Any) -> None:
        nonlocal runs, before
        now = trainer.progress[path]["runs"] if path in trainer.progress else 0
        runs, before = runs + max(now - before, 0), now

    trainer.run(trace=look if "/" in path else None)
    return runs if "/" in path else int(trainer.progress[path]["runs"])


def phases() -> Graph:
    """Two trainings, one after the other, then again."""
    inner = FIT.set("accumulate", every=3).set("finish", after="2 epochs")
    nodes = {
        "first": Node("first", "nested", body=inner),
        "second": Node("second", "nested", body=inner.set("finish", after="7 steps")),
        "decide": Node("decide", "choice"),
    }
    edges = {
        "first": (Edge("second"),),
        "second": (Edge("decide"),),
        "decide": (Edge("end", "enough"), Edge("first")),
    }
    guards = {"enough": "second.runs == 3 or first/step.steps + second/step.steps > 99"}
    return Graph("phases", "first", nodes, edges, guards)


GRAPHS = {
    "plain": FIT,
    "window": FIT.set("accumulate", every=4),
    "carry": FIT.overlay("carry").set("accumulate", every=4),
    "drop": FIT.overlay("drop").set("accumulate", every=4),
    "steps": FIT.set("accumulate", every=4).set("finish", after="17 steps"),
    "batches": FIT.overlay("carry").set("accumulate", every=4).set("finish", after="33 batches"),
    "part of an epoch": FIT.set("accumulate", every=3).set("finish", after="2.35 epochs"),
    "either": FIT.set("finish", after=["3 epochs", "20 steps"]),
    "samples": FIT.set("accumulate", every=2).set("finish", after="45 samples"),
    "limit": FIT.set("next_batch", limit=6).set("accumulate", every=4),
    "varying": FIT.set("accumulate", reads={"every": "1 if next_batch.epoch < 4 else 2"}),
    "varying within": FIT.set("accumulate", reads={"every": "1 + step.steps // 7 % 3"}),
    "rounded": FIT.set("accumulate", reads={"every": "ceil(1 + step.steps / 10)"}),
    "irregular": FIT.set("accumulate", reads={"every": "1 + floor(sqrt(step.steps))"}),
    "guard": FIT.set("finish", after="never").guard("ending", or_="step.steps >= 21 and next_batch.epochs > 2.5"),
    "remainder": FIT.guard("ending", and_="step.steps % 7 == 0").set("finish", after="20 steps"),
    "all overlays": FIT.overlay("ema", "swa", "plateau", "sanity", "save_first").set("accumulate", every=3),
    "infinity": FIT.guard("ending", and_="step.steps < inf and min(inf, step.steps) >= 0"),
    "validations": FIT.set("validate", every="7 steps").set("finish", after="5 validations"),
    "once": FIT.insert(
        "test", graph="evaluate", at="decide", before="checkpoint", every="once", reads={"val_data": "train_data"}
    )
    .guard("ending", or_="test.runs == 1 and step.steps >= 12")
    .set("test/begin_evaluation", split="test"),
}


@pytest.mark.second(16)
@pytest.mark.first(8)
@pytest.mark.parametrize(
    "length",
    [4, pytest.param(11, marks=pytest.mark.full), *(pytest.param(n, marks=pytest.mark.sweep) for n in (1, 23))],
)
@pytest.mark.parametrize("name", GRAPHS)
def test_it_is_the_number_of_steps_that_are_made(name: str, length: int) -> None:
    graph, resources = GRAPHS[name], {}
    if name in ("validations", "once"):
        resources = {"val_data": batches(2), "validation_step": lambda model, batch: model(batch).mean()}
    data = torch.utils.data.DataLoader(torch.ones(2 * length, 1), batch_size=2)  # type: ignore[arg-type]
    run = PlannedRun(graph)
    assert run.steps(data) == trained(graph, data, **resources)
    assert run.steps(data, node="train_batch") == trained(graph, data, "train_batch", **resources)


@pytest.mark.parametrize(
    ("every", "start"),
    [
        ("2 steps", None),
        ("0.3 epochs", "1.5 epochs"),
        (["3 batches", "7 samples"], "9 steps"),
        ("4 epoch_batches", "1.5 epochs"),
        ("1/3 epochs", "9 steps"),
    ],
)
def test_what_is_due_now_and_then(every: Any, start: str | None) -> None:
    graph = FIT.set("log", every=every, **({"from": start} if start else {})).set("finish", after="4 epochs")
    data = torch.utils.data.DataLoader(torch.ones(21, 1), batch_size=2)  # type: ignore[arg-type]
    assert PlannedRun(graph).steps(data, node="log") == trained(graph, data, "log")


@pytest.mark.full
def test_bodies_are_multiplied() -> None:
    for path in ("first", "first/step", "second/step", "second/train_batch"):
        assert PlannedRun(phases()).steps(batches(10), node=path) == trained(phases(), batches(10), path)


SEVERAL = {"a": batches(3), "b": batches(5)}


@pytest.mark.parametrize(
    ("graph", "data", "more", "steps"),
    [
        (FIT.set("schedule", every="3 steps"), batches(10), {"node": "schedule"}, 33),
        (FIT, batches(10), {"node": "exchange"}, 0),  # which is bypassed in one process
        (FIT.overlay("unfreeze").set("accumulate", every=3), batches(10), {}, 10 * 4),  # two optimizers, one backward
        (Graph.load("evaluate"), [], {"val_data": batches(7), "node": "eval_batch"}, 7),
        (FIT.overlay("early_stop").set("finish", after="3 epochs"), batches(10), {}, 30),  # a metric may end it before
        (FIT.set("finish", after="2 epochs"), SEVERAL, {}, 2 * 5),  # cycled through in training, in turn elsewhere
        (FIT.set("finish", after="2 epochs"), batches(4), {"node": "validate/eval_batch", "val_data": SEVERAL}, 16),
    ],
)  # fmt: skip
def test_what_is_counted(graph: Graph, data: Any, more: dict[str, Any], steps: int) -> None:
    assert PlannedRun(graph).steps(data, **more) == steps


LONG = FIT.set("accumulate", every=64)
MILLION = 1_000_003


@pytest.mark.parametrize(
    ("graph", "length", "steps"),
    [
        (LONG.set("finish", after="7777 epochs"), MILLION, 7777 * -(-MILLION // 64)),
        (LONG.set("finish", after="0.37 epochs"), MILLION, -(-(37 * MILLION // 100 + 1) // 64)),
        # Windows that an epoch begins with a part of come back after 64 epochs, which is too long to be noticed.
        (LONG.overlay("carry").set("finish", after="7777 epochs"), 10**6, -(-7777 * 10**6 // 64)),
        (LONG.overlay("drop").set("finish", after="7777 epochs"), MILLION, 7777 * (MILLION // 64)),
        (FIT.set("finish", after="100000 epochs"), 1, 100_000),
        (FIT.set("finish", after="100000 epochs"), 5, 500_000),
    ],
)
def test_millions_of_batches_are_counted_at_once(graph: Graph, length: int, steps: int) -> None:
    """Of what is too irregular 50,000 nodes are followed: these would be millions."""
    assert PlannedRun(graph).steps(range(length)) == steps


_NEVER = FIT.set("finish", after="never")
_AMOUNT = 'finish.after = "10 epochs"'


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("graph", "data", "path", "message", "hint"),
    [
        (FIT.set("finish", after="2 hours"), batches(3), "step", '`finish.after` = "2 hours" ends by time', _AMOUNT),
        (FIT.set("finish", after=["3 epochs", "10 minutes"]), batches(3), "step", '"10 minutes" ends by time', _AMOUNT),
        (_NEVER, batches(3), "step", "nothing that is counted ends the graph `fit`", _AMOUNT),
        (_NEVER.overlay("early_stop"), batches(3), "step", "it ends only as early_stop.stop decide", _AMOUNT),
        (_NEVER.set("checkpoint", every="5 minutes").guard("ending", or_="checkpoint.due"), batches(3), "step",
         "it ends only as next_batch.seconds decide", _AMOUNT),
        (phases().guard("enough", "first/step.steps > second/validate.runs + 999"), batches(3), "first/step",
         "nothing that is counted ends the graph `phases`", ""),
        (FIT, iter(batches(3)), "step", "`train_data` has no length", "give the data a `__len__`"),
        (FIT, batches(3), "stp", "there is no node `stp`", "did you mean `step`?"),
        (FIT, batches(3), "validate/eval_batch", "how many batches `val_data` has is not known", "val_data=..."),
        (FIT.set("checkpoint", every=["1 epochs", "10 minutes"]), batches(3), "checkpoint",
         "how often `checkpoint` runs is not known ahead", "count steps or epochs"),
        (FIT.set("accumulate", reads={"every": "1 + validate.runs"}).set("validate", every="1 minutes"), batches(3),
         "step", "`accumulate.every` depends on `validate.runs`, which is not known ahead", "compute the number in"),
        (GRAPHS["irregular"].set("finish", after="9 epochs"), range(99_991), "step",
         "`fit` is too irregular to be counted ahead", "compute the number of steps in `setup`"),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_told_is_an_error(graph: Graph, data: Any, path: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        PlannedRun(graph).steps(data, node=path)
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
