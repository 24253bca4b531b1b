"""Learning rates: several schedulers and groups, warm-up, and what a schedule counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR, StepLR

from graphtrain import Graph, GraphError, PlannedRun, Trainer, UsageError

FIT = Graph.load("fit").set("log", every="1 steps").set("checkpoint", every="never").set("finish", after="2 epochs")
BATCHES = 6


def model_of() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))


def trainer_of(graph: Graph, model: torch.nn.Module, run_dir: Path | None = None, **more: Any) -> Trainer:
    torch.manual_seed(1)
    data = [torch.randn(4, 2) for _ in range(BATCHES)]
    step = {"training_step": lambda model, batch: model(batch).square().mean()}
    return Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=lambda line: None,
        model=model,
        train_data=data,
        **{**step, **more},
    )


def warm_up(optimizer: torch.optim.Optimizer, steps: int) -> SequentialLR:
    first = LinearLR(optimizer, start_factor=0.1, total_iters=3)
    return SequentialLR(optimizer, [first, CosineAnnealingLR(optimizer, steps - 3)], milestones=[3])


def warmed_up(run_dir: Path | None = None) -> Trainer:
    graph = FIT.set("accumulate", every=2)
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    steps = PlannedRun(graph).steps([None] * BATCHES)
    return trainer_of(graph, model, run_dir, optimizer=optimizer, scheduler=warm_up(optimizer, steps))


EACH = {"use": "log", "every": "1 steps"}
PLACES = {
    "before the schedule": FIT,
    "after the schedule": FIT.set("log", every="never").insert("rows", after="schedule", **EACH),
    "before the step": FIT.set("log", every="never").insert("rows", before="step", use="log", every="1 batches"),
    "at the end": FIT.set("log", every="3 batches").set("finish", after="8 steps"),
    "at the end, without log": FIT.remove("log").set("finish", after="4 steps"),
    "a schedule of batches": FIT.set("schedule", every="3 batches").set("finish", after="9 steps"),
    "manual": Graph.load("manual").set("log", every="1 batches").set("finish", after="2 epochs"),
    "lbfgs": Graph.load("lbfgs").set("log", every="5 batches").set("finish", after="2 epochs"),
}


@pytest.mark.first(7)
@pytest.mark.parametrize("name", PLACES)
def test_rows_have_the_rate_of_the_last_step_wherever_they_are_recorded(name: str, tmp_path: Path) -> None:
    """A hook of the optimizer notes the rate of each step."""

    def run(run_dir: Path | None = None) -> tuple[Trainer, list[float]]:
        def manual_step(model: Any, batch: Any, optimizer: Any, scheduler: Any) -> Any:
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            return {"loss": loss}

        model = model_of()
        make: Any = torch.optim.LBFGS if name == "lbfgs" else torch.optim.SGD
        optimizer, rates = make(model.parameters(), lr=0.01), list[float]()
        optimizer.register_step_pre_hook(lambda each, *_: rates.append(each.param_groups[0]["lr"]))
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda steps: 1 / (1 + steps))
        more = {"training_step": manual_step} if name == "manual" else {}
        given = {"optimizer": optimizer, "scheduler": scheduler, **more}
        return trainer_of(PLACES[name], model, run_dir, **given), rates

    whole, rates = run()
    whole.run()
    rows = [row for row in whole.metrics if "lr" in row]
    assert rows and rates[0] == 0.01
    for row in rows:
        assert row["lr"] == rates[max(int(row["step"]) - 1, 0)]
    first, _ = run(tmp_path)
    first.advance(20)
    first.save()
    second, _ = run(tmp_path)
    second.run()
    assert second.metrics == whole.metrics


@pytest.mark.full
def test_warm_up_is_that_of_torch_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    whole = warmed_up()
    whole.run()
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler, rates = warm_up(optimizer, 6), []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    # A row comes before the step of the schedule.
    assert [row["lr"] for row in whole.metrics if "lr" in row] == rates
    for cut in (20, 33):
        first = warmed_up(tmp_path / str(cut))
        first.advance(cut)
        first.save()
        second = warmed_up(tmp_path / str(cut))
        second.run()
        assert second.digest() == whole.digest()
        assert second.metrics == whole.metrics


@pytest.mark.parametrize(("every", "changes"), [("1 steps", 6), ("1 epochs", 2), ("3 batches", 4), ("4 steps", 1)])
def test_a_schedule_counts_steps_epochs_or_batches(every: str, changes: int) -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    graph = FIT.set("accumulate", every=2).set("schedule", every=every)
    trainer_of(graph, model, optimizer=optimizer, scheduler=StepLR(optimizer, 1, 0.5)).run()
    assert optimizer.param_groups[0]["lr"] == 0.5**changes


def test_the_rate_of_every_group_is_a_metric() -> None:
    model = model_of()
    groups = [
        {"params": [model[0].weight], "lr": 0.1},
        {"params": [model[0].bias], "lr": 0.2},
        {"params": model[1].parameters(), "lr": 0.3, "name": "head"},
    ]
    trainer = trainer_of(FIT, model, optimizer=torch.optim.SGD(groups, lr=1.0))
    trainer.run()
    row = next(row for row in trainer.metrics if "lr" in row)
    assert {name: value for name, value in row.items() if name.startswith("lr")} == {
        "lr": 0.1,
        "lr/1": 0.2,
        "lr/head": 0.3,
    }


def two_optimizers(every: str = "1 steps", *, as_list: bool) -> Trainer:
    model = model_of()
    body, head = torch.optim.SGD(model[0].parameters(), lr=1.0), torch.optim.SGD(model[1].parameters(), lr=2.0)
    given = {"body": body, "head": head, "first": StepLR(body, 1, 0.5), "second": StepLR(head, 1, 0.1)}
    graph = replace(FIT, optimizer="body").set("schedule", every="1 steps")
    for name in ("train_batch", "accumulate", "exchange", "clip", "step", "zero_grad", "log", "finish"):
        graph = graph.set(name, reads={"optimizer": ["body", "head"]})
    if as_list:
        graph = graph.set("schedule", reads={"scheduler": ["first", "second"]})
    else:
        graph = graph.set("schedule", reads={"scheduler": "first"})
        graph = graph.insert("slow", "schedule", at="decide", after="schedule", every=every)
        graph = graph.set("slow", reads={"scheduler": "second"})
    trainer = trainer_of(graph, model, **given)
    trainer.run()
    return trainer


def test_a_scheduler_of_each_optimizer() -> None:
    trainer = two_optimizers(as_list=True)
    assert trainer.resources["body"].param_groups[0]["lr"] == 0.5**12
    assert trainer.resources["head"].param_groups[0]["lr"] == pytest.approx(2 * 0.1**12)
    row = next(row for row in trainer.metrics if "lr" in row)
    assert (row["lr"], row["lr/1"]) == (1.0, 2.0)


def test_two_schedulers_at_different_times() -> None:
    trainer = two_optimizers("1 epochs", as_list=False)
    assert trainer.resources["body"].param_groups[0]["lr"] == 0.5**12
    assert trainer.resources["head"].param_groups[0]["lr"] == pytest.approx(2 * 0.1**2)


@pytest.mark.parametrize("is_one", [True, False])
def test_two_nodes_that_step_one_optimizer_at_one_time_are_an_error(is_one: bool) -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    graph = FIT.set("schedule", every="1 steps")
    graph = graph.insert("slow", "schedule", at="decide", after="schedule", every="1 steps")
    first = StepLR(optimizer, 1, 0.5)
    given: dict[str, Any] = {"optimizer": optimizer, "scheduler": first}
    if not is_one:
        graph = graph.set("slow", reads={"scheduler": "second"})
        given["second"] = StepLR(optimizer, 1, 0.5)
    stepped = "both step `scheduler`" if is_one else "step `scheduler` and `second`, of one optimizer,"
    with pytest.raises(ValueError, match=f"`schedule` and `slow` {stepped} at one time .1 steps.: each would") as error:
        trainer_of(graph, model, **given)
    assert isinstance(error.value, GraphError if is_one else UsageError)
    assert bool(graph.check()) == is_one
    if not is_one:
        trainer_of(graph.set("slow", every="1 epochs"), model, **given).run()
