"""How many steps a run will make, counted ahead, against runs that are made."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphtrain import Edge, Graph, Node, PlannedRun, Trainer, Trigger, UsageError
from graphtrain.data.samplers import EpochLength
from graphtrain.plan.plan import Plan
from graphtrain.program.whole_run import WholeRun
from tests.checks.corpus import undeclared

FIT = Graph.load("fit").set("checkpoint", every="never").set("log", every="never")


def trained(graph: Graph, data: Any, node: str = "step", **resources: Any) -> int:
    """How often a node has run when a run is over; in a body, over all runs of that."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    runs = 0
    trainer = Trainer(
        graph,
        seed=0,
        device="cpu",
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        train_data=data,
        training_step=lambda model, batch: model(batch).mean(),
        **resources,
    )
    if "/" not in node:
        trainer.run()
        return int(trainer.progress[node]["runs"])
    before = 0
    while trainer.position != "end":
        trainer.advance()
        now = trainer.progress[node]["runs"] if node in trainer.progress else 0
        runs, before = runs + max(now - before, 0), now
    return runs


def batches(number: int) -> list[torch.Tensor]:
    return [torch.ones(2, 1)] * number


def phases() -> Graph:
    """Two trainings, one after the other, then again."""
    inner = FIT.set("accumulate", every=3).set("finish", after="2 epochs")
    first, second = inner, inner.set("finish", after="7 steps")
    nodes = {
        "first": Node("first", "nested", body=first),
        "second": Node("second", "nested", body=second),
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
    "four to an epoch": FIT.set("accumulate", every=5),
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


LENGTHS = (1, 4, 10, 11)


# In a sweep every graph with data of every length.
@pytest.mark.second(15)
@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("name", "length"),
    [
        pytest.param(name, length, marks=[] if row % 2 == column % 2 else pytest.mark.sweep)
        for row, name in enumerate(GRAPHS)
        for column, length in enumerate(LENGTHS)
    ],
)
def test_it_is_the_number_of_steps_that_are_made(name: str, length: int) -> None:
    graph, resources = GRAPHS[name], {}
    if name in ("validations", "once"):
        resources = {"val_data": batches(2), "validation_step": lambda model, batch: model(batch).mean()}
    run = PlannedRun(graph)
    data = torch.utils.data.DataLoader(torch.ones(2 * length, 1), batch_size=2)  # type: ignore[arg-type]
    assert run.steps(data) == trained(graph, data, **resources)
    assert run.steps(data, node="train_batch") == trained(graph, data, "train_batch", **resources)


@pytest.mark.first(6)
@pytest.mark.parametrize(
    "every", ["2 steps", "0.3 epochs", ["3 batches", "7 samples"], "4 epoch_batches", "3 per epoch"]
)
@pytest.mark.parametrize("start", [None, "1.5 epochs", "9 steps"])
def test_what_is_due_now_and_then(every: Any, start: str | None) -> None:
    graph = FIT.set("log", every=every, **({"from": start} if start else {})).set("finish", after="4 epochs")
    data = torch.utils.data.DataLoader(torch.ones(21, 1), batch_size=2)  # type: ignore[arg-type]
    assert PlannedRun(graph).steps(data, node="log") == trained(graph, data, "log")


def test_a_scheduler_is_counted_as_it_is_stepped() -> None:
    graph = FIT.set("schedule", every="3 steps")
    assert PlannedRun(graph).steps(batches(10), node="schedule") == 33


@pytest.mark.full
def test_bodies_are_multiplied() -> None:
    graph = phases()
    run = PlannedRun(graph)
    for node in ("first", "first/step", "second/step", "second/train_batch"):
        assert run.steps(batches(10), node=node) == trained(graph, batches(10), node)


def test_evaluate_alone() -> None:
    assert PlannedRun(Graph.load("evaluate")).steps([], val_data=batches(7), node="eval_batch") == 7


@pytest.mark.parametrize("epochs", ["7777 epochs", "0.37 epochs"])
@pytest.mark.parametrize("overlay", [None, "carry", "drop"])
def test_millions_of_batches_take_few_visits(epochs: str, overlay: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphtrain.program.counting.MOST_VISITS", 20_000)
    graph = FIT.set("accumulate", every=64).set("finish", after=epochs)
    graph = graph.overlay(overlay) if overlay else graph
    # Windows that an epoch begins with a part of come back after 64 epochs, which is too long to be noticed.
    length, whole = 1_000_000 if overlay == "carry" else 1_000_003, epochs.startswith("7777")
    visits = WholeRun(Plan(graph), lambda name: EpochLength(length)).visits("step")
    fetched = 7777 * length if whole else -(-37 * length // 100)
    expected = {
        None: 7777 * -(-length // 64) if whole else -(-fetched // 64),
        "carry": -(-fetched // 64),
        "drop": 7777 * (length // 64) if whole else fetched // 64,
    }
    assert visits == expected[overlay]


@pytest.mark.full
def test_what_follows_no_line_is_gone_through_and_given_up_after_a_number_of_visits() -> None:
    graph = FIT.set("accumulate", reads={"every": "1 + floor(sqrt(step.steps))"})
    assert PlannedRun(graph.set("finish", after="4 epochs")).steps(range(50)) == trained(
        graph.set("finish", after="4 epochs"), batches(50)
    )
    message = r"`fit` is too irregular to be counted ahead: it was followed for 50,000 nodes"
    with pytest.raises(UsageError, match=message) as raised:
        PlannedRun(graph.set("finish", after="9 epochs")).steps(range(99_991))
    assert "compute the number of steps in `setup`" in raised.value.hint


def test_a_window_of_two_optimizers_counts_a_backward_pass_once() -> None:
    graph = FIT.overlay("unfreeze").set("accumulate", every=3)
    assert PlannedRun(graph).steps(batches(10)) == 10 * 4


class AtTimes:
    """Do nothing, at times."""

    every: Trigger = Trigger("1 steps")

    def __call__(self) -> None: ...


def test_an_amount_of_a_body_counts_from_zero_with_each_of_its_runs() -> None:
    kind = undeclared("at_times", AtTimes)
    graph = phases().clock("steps", "second/step.steps").insert("seen", kind.implementation, after="second")
    assert PlannedRun(graph.set("seen", every="5 steps")).steps(batches(10), node="seen") == 3, "of 7 steps each"


@pytest.mark.parametrize("length", [1, 5])
def test_many_short_epochs_take_few_visits(length: int) -> None:
    run = WholeRun(Plan(FIT.set("finish", after="100000 epochs")), lambda _: EpochLength(length))
    assert run.visits("step") == 100_000 * length


def test_windows_of_different_sizes_decide_together() -> None:
    """Neither in the first nor in the last of rounds that are multiplied, but between them."""
    kind = undeclared("passes", lambda: None, effects="backward")
    nodes = {
        "next_batch": Node("next_batch", "next_batch"),
        "passes": Node("passes", "passes", kind=kind),
        "short": Node("short", "accumulate", {"every": 30}),
        "long": Node("long", "accumulate", {"every": 200}),
        "hub": Node("hub", "choice"),
        "between": Node("between", "choice"),
    }
    edges = {
        "next_batch": (Edge("passes"),),
        "passes": (Edge("short"),),
        "short": (Edge("long"),),
        "long": (Edge("hub"),),
        "hub": (Edge("end", "done"), Edge("between", "is_between"), Edge("next_batch")),
        "between": (Edge("next_batch"),),
    }
    guards = {"is_between": "short.full and not long.full", "done": "next_batch.batches >= 300"}
    assert (
        WholeRun(Plan(Graph("windows", "next_batch", nodes, edges, guards)), lambda _: EpochLength(1000)).visits(
            "between"
        )
        == 200 - 30
    )


def test_a_node_that_is_bypassed_in_one_process_does_not_run() -> None:
    assert PlannedRun(FIT).steps(batches(10), node="exchange") == 0


@pytest.mark.parametrize(
    "name", ["window", "carry", "varying", "varying within", "remainder", "batches", "samples", "limit"]
)
@pytest.mark.parametrize("length", [5, 23, 64])
def test_what_is_multiplied_is_what_would_be_gone_through(
    name: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps() -> int:
        return WholeRun(Plan(GRAPHS[name]), lambda _: EpochLength(length, 2, 1)).visits("step")

    multiplied = steps()
    monkeypatch.setattr("graphtrain.program.counting.CountedRun._multiply", lambda self, heads: False)
    assert steps() == multiplied


def test_several_loaders_are_cycled_through_in_training_and_read_in_turn_elsewhere() -> None:
    graph, several = FIT.set("finish", after="2 epochs"), {"a": batches(3), "b": batches(5)}
    assert PlannedRun(graph).steps(several) == 2 * 5
    assert PlannedRun(graph).steps(batches(4), node="validate/eval_batch", val_data=several) == 2 * (3 + 5)


def test_metrics_do_not_end_it() -> None:
    graph = FIT.overlay("early_stop").set("finish", after="3 epochs")
    assert PlannedRun(graph).steps(batches(10)) == 30


_NEVER = FIT.set("finish", after="never")
_AN_AMOUNT = 'give finish.after an amount, as in finish.after = "10 epochs"'
_NO_TIME = 'count epochs or steps, as in finish.after = "10 epochs"'
_NO_LENGTH = "has no length, so how many batches `next_batch` will fetch is not known ahead"
_IN_SETUP = "compute the number in `setup`"


@pytest.mark.parametrize(
    ("graph", "data", "node", "message", "hint"),
    [
        (FIT.set("finish", after="2 hours"), batches(3), "step",
         '`finish.after` = "2 hours" ends by time, and how many steps that takes is not known ahead', _NO_TIME),
        (FIT.set("finish", after=["3 epochs", "10 minutes"]), batches(3), "step",
         '`finish.after` = "10 minutes" ends by time, and how many steps that takes is not known ahead', _NO_TIME),
        (_NEVER, batches(3), "step", "nothing that is counted ends the graph `fit`", _AN_AMOUNT),
        (_NEVER.overlay("early_stop"), batches(3), "step",
         "nothing that is counted ends the graph `fit`: it ends only as early_stop.stop decide", _AN_AMOUNT),
        (_NEVER.set("checkpoint", every="5 minutes").guard("ending", or_="checkpoint.due"), batches(3), "step",
         "nothing that is counted ends the graph `fit`: it ends only as next_batch.seconds decide", _AN_AMOUNT),
        (phases().guard("enough", "first/step.steps > second/validate.runs + 999"), batches(3), "first/step",
         "nothing that is counted ends the graph `phases`", ""),
        (FIT, iter(batches(3)), "step", f"`train_data` {_NO_LENGTH}",
         "give the data a `__len__`, or compute the number where it is needed from what you know of the data"),
        (FIT, batches(3), "stp", "there is no node `stp`", "did you mean `step`?"),
        (FIT, batches(3), "validate/eval_batch",
         "how many batches `val_data` has is not known, which `validate/next_batch` fetches",
         "supply it: run.steps(..., val_data=...)"),
        (FIT.set("checkpoint", every=["1 epochs", "10 minutes"]), batches(3), "checkpoint",
         "how often `checkpoint` runs is not known ahead: time or a metric makes it due (1 epochs or 10 minutes)",
         'count steps or epochs, as in checkpoint.every = "1 epochs"'),
        (FIT.set("finish", after="0.5 run"), batches(3), "step",
         '`finish` is due by "0.5 run": `step.steps` at the end of the run depends on when a part of the run is over, '
         "which depends on it",
         "count what decides the length of the run by epochs or steps"),
        (FIT.set("accumulate", reads={"every": "1 + validate.runs"}).set("validate", every="1 minutes"), batches(3),
         "step", "`accumulate.every` depends on `validate.runs`, which is not known ahead", _IN_SETUP),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_told_is_an_error(graph: Graph, data: Any, node: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        PlannedRun(graph).steps(data, node=node)
    assert (caught.value.message, caught.value.hint) == (f"run.steps: {message}", hint)
