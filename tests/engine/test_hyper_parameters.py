"""What setup sets differently on a resume: said, decided by a person, and then exactly as if it had always been so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from graphtrain import Graph, Trainer, UsageError

Make = Callable[[torch.optim.Optimizer], Any]


def trainer(
    run_dir: Path,
    make: Make | None = None,
    *,
    steps: int = 12,
    optimizer: Callable[..., Any] = torch.optim.SGD,
    graph: Graph | None = None,
    said: list[str] | None = None,
    **settings: Any,
) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    made = optimizer(model.parameters(), **{"lr": 0.1, **settings})
    graph = graph if graph is not None else Graph.load("fit").set("finish", after=f"{steps} steps")
    return Trainer(
        graph,
        run_dir,
        display=None,
        say=said.append if said is not None else lambda line: None,
        model=model,
        optimizer=made,
        scheduler=make(made) if make is not None else None,
        train_data=[torch.full((2, 3), float(n)) for n in range(6)],
        training_step=lambda model, batch: model(batch).square().mean(),
    )


SCHEDULES: dict[str, Make] = {
    "lambda": lambda one: lr_scheduler.LambdaLR(one, lambda step: 1 / (1 + step)),
    "step": lambda one: lr_scheduler.StepLR(one, 3, gamma=0.5),
    "multi-step": lambda one: lr_scheduler.MultiStepLR(one, [2, 5, 9]),
    "exponential": lambda one: lr_scheduler.ExponentialLR(one, 0.9),
    "linear": lambda one: lr_scheduler.LinearLR(one, 0.1, total_iters=8),
    "polynomial": lambda one: lr_scheduler.PolynomialLR(one, 20),
    "cosine": lambda one: lr_scheduler.CosineAnnealingLR(one, 20, eta_min=0.001),
    "warm restarts": lambda one: lr_scheduler.CosineAnnealingWarmRestarts(one, 4, T_mult=2),
    "cyclic": lambda one: lr_scheduler.CyclicLR(one, 0.01, 0.2, step_size_up=3, cycle_momentum=False),
    "chained": lambda one: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(one, 0.9), lr_scheduler.LinearLR(one, 0.5, total_iters=4)]
    ),
    "sequential": lambda one: lr_scheduler.SequentialLR(
        one, [lr_scheduler.LinearLR(one, 0.1, total_iters=4), lr_scheduler.ExponentialLR(one, 0.9)], [4]
    ),
}


def rates_by_hand(make: Make, steps: int, **settings: Any) -> list[float]:
    """The learning rate before each step, had the settings always been so."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], **{"lr": 0.1, **settings})
    scheduler, rates = make(optimizer), []
    for _ in range(steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates


def rates(run: Trainer, steps: int) -> list[float]:
    """The learning rate before each further step."""
    found = []
    for _ in range(steps):
        while run.position != "step":
            run.advance()
        found.append(float(run.resources["optimizer"].param_groups[0]["lr"]))
        run.advance()
    return found


def test_a_difference_is_refused_and_nothing_is_changed_on_the_disk(tmp_path: Path) -> None:
    trainer(tmp_path).run(until="6 steps")
    before = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
    with pytest.raises(UsageError, match="differs from what the run was set up with") as caught:
        trainer(tmp_path, lr=0.01, momentum=0.9).run()
    assert "optimizer.lr: 0.1 -> 0.01" in str(caught.value) and "optimizer.momentum: 0 -> 0.9" in str(caught.value)
    assert "--from-setup optimizer.lr,optimizer.momentum" in caught.value.hint
    assert {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()} == before


def test_from_setup_takes_the_new_ones_and_the_decision_is_remembered(tmp_path: Path) -> None:
    trainer(tmp_path).run(until="6 steps")
    new = trainer(tmp_path, lr=0.01, weight_decay=0.5)
    new.run(from_setup="optimizer.lr, optimizer.weight_decay", until="7 steps")
    group = new.resources["optimizer"].param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.01, 0.5)
    again = trainer(tmp_path, lr=0.01, weight_decay=0.5)
    again.run()
    assert again.resources["optimizer"].param_groups[0]["lr"] == 0.01
    with pytest.raises(UsageError, match=r"optimizer.lr: 0.01 -> 0.1"):
        trainer(tmp_path).run()


def test_a_decision_is_on_disk_before_anything_is_trained(tmp_path: Path) -> None:
    trainer(tmp_path).run(until="6 steps")
    trainer(tmp_path, lr=0.01).advance(0, from_setup="optimizer.lr")
    assert trainer(tmp_path, lr=0.01).run().resumable is False


def test_from_saved_keeps_the_old_ones(tmp_path: Path) -> None:
    trainer(tmp_path / "a").run()
    trainer(tmp_path / "b").run(until="6 steps")
    kept = trainer(tmp_path / "b", lr=0.01)
    kept.run(from_saved=True, until="8 steps")
    assert kept.resources["optimizer"].param_groups[0]["lr"] == 0.1
    again = trainer(tmp_path / "b", lr=0.01)
    again.run()
    whole = trainer(tmp_path / "a")
    whole.run()
    assert torch.equal(again.resources["model"].weight, whole.resources["model"].weight)


def test_one_of_each(tmp_path: Path) -> None:
    trainer(tmp_path).run(until="6 steps")
    new = trainer(tmp_path, lr=0.01, momentum=0.9)
    with pytest.raises(UsageError, match=r"optimizer.momentum: 0 -> 0.9"):
        new.run(from_setup="optimizer.lr")
    new = trainer(tmp_path, lr=0.01, momentum=0.9)
    new.run(from_setup=["optimizer.lr"], from_saved=True)
    group = new.resources["optimizer"].param_groups[0]
    assert (group["lr"], group["momentum"]) == (0.01, 0)


@pytest.mark.parametrize("names", ["optimiser.lr", "optimizer.rate", "model.width", "nothing"])
def test_a_name_that_means_nothing_is_refused(names: str, tmp_path: Path) -> None:
    trainer(tmp_path).run(until="6 steps")
    with pytest.raises(UsageError, match=f"from_setup: there is no `{names}`"):
        trainer(tmp_path, lr=0.2).run(from_setup=names)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_goes_on_as_if_the_rate_had_always_been_the_new_one(name: str, tmp_path: Path) -> None:
    make = SCHEDULES[name]
    trainer(tmp_path, make).run(until="7 steps")
    new = trainer(tmp_path, make, lr=0.3)
    new.advance(0, from_setup="optimizer.lr") if name != "cyclic" else new.advance(0)
    assert rates(new, 5) == rates_by_hand(make, 12, lr=0.3)[7:]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_that_is_as_it_was_goes_on_exactly(name: str, tmp_path: Path) -> None:
    make = SCHEDULES[name]
    trainer(tmp_path, make).run(until="7 steps")
    same = trainer(tmp_path, make)
    same.advance(0)
    assert rates(same, 5) == rates_by_hand(make, 12)[7:]


def test_a_changed_schedule_is_gone_through_again_with_the_saved_rate_or_the_new_one(tmp_path: Path) -> None:
    old, new = SCHEDULES["step"], lambda one: lr_scheduler.StepLR(one, 2, gamma=0.7)
    for folder, names, rate in (("a", "scheduler,optimizer.lr", 0.3), ("b", "scheduler", 0.1)):
        trainer(tmp_path / folder, old).run(until="7 steps")
        resumed = trainer(tmp_path / folder, new, lr=0.3)
        resumed.advance(0, from_setup=names, from_saved=True)
        assert rates(resumed, 5) == pytest.approx(rates_by_hand(new, 12, lr=rate)[7:], rel=1e-12)


def test_one_field_of_a_schedule(tmp_path: Path) -> None:
    trainer(tmp_path, SCHEDULES["step"]).run(until="7 steps")
    resumed = trainer(tmp_path, lambda one: lr_scheduler.StepLR(one, 2, gamma=0.7))
    resumed.advance(0, from_setup="scheduler.gamma", from_saved=True)
    assert rates(resumed, 5) == rates_by_hand(lambda one: lr_scheduler.StepLR(one, 3, gamma=0.7), 12)[7:]


def test_another_scheduler_a_new_one_and_none(tmp_path: Path) -> None:
    for folder, before, now, expected in (
        ("other", SCHEDULES["step"], SCHEDULES["cosine"], rates_by_hand(SCHEDULES["cosine"], 5)),
        ("new", None, SCHEDULES["cosine"], rates_by_hand(SCHEDULES["cosine"], 5)),
    ):
        trainer(tmp_path / folder, before).run(until="6 steps")
        with pytest.raises(UsageError, match=r"scheduler.class: (StepLR|absent) -> CosineAnnealingLR"):
            trainer(tmp_path / folder, now).run()
        resumed = trainer(tmp_path / folder, now)
        resumed.advance(0, from_setup="scheduler")
        assert rates(resumed, 5) == expected, "its schedule begins when it begins"
    trainer(tmp_path / "none", SCHEDULES["step"]).run(until="6 steps")
    with pytest.raises(UsageError, match=r"scheduler.class: StepLR -> absent"):
        trainer(tmp_path / "none").run()
    resumed = trainer(tmp_path / "none")
    resumed.run(from_setup="scheduler")
    assert resumed.progress["step"]["steps"] == 12


def test_another_optimizer_begins_anew_and_cannot_be_kept(tmp_path: Path) -> None:
    trainer(tmp_path, momentum=0.9).run(until="6 steps")
    with pytest.raises(UsageError, match="the saved state of `optimizer` cannot be used"):
        trainer(tmp_path, optimizer=torch.optim.AdamW).run(from_saved=True)
    new = trainer(tmp_path, optimizer=torch.optim.AdamW)
    new.run(from_setup="optimizer", until="7 steps")
    assert [int(one["step"]) for one in new.resources["optimizer"].state.values()] == [1, 1]


def test_a_plateau_keeps_what_it_has_seen(tmp_path: Path) -> None:
    """Its steps need a metric, so it cannot be gone through again: settings change, state and rate stay."""

    def make(patience: int) -> Make:
        return lambda one: lr_scheduler.ReduceLROnPlateau(one, patience=patience, factor=0.5)

    without = Graph.load("fit").set("finish", after="12 steps").set("schedule", every="never")
    first = trainer(tmp_path, make(2), graph=without)
    first.run(until="5 steps")
    for value in (1.0, 2.0, 2.0):
        first.resources["scheduler"].step(value)
    first.save()
    new = trainer(tmp_path, make(5), graph=without, lr=0.4)
    new.advance(0, from_setup="scheduler.patience,optimizer.lr")
    scheduler = new.resources["scheduler"]
    assert (scheduler.patience, scheduler.best, scheduler.num_bad_epochs) == (5, 1.0, 2)
    assert new.resources["optimizer"].param_groups[0]["lr"] == 0.4


def test_a_used_scheduler_in_a_new_trainer_is_no_difference_but_cannot_be_renewed(tmp_path: Path) -> None:
    first = trainer(tmp_path, SCHEDULES["step"])
    first.run(until="7 steps")
    objects = {
        name: first.resources[name] for name in ("model", "optimizer", "scheduler", "train_data", "training_step")
    }
    again = Trainer(first.graph, tmp_path, display=None, say=lambda line: None, **objects)
    again.run(until="8 steps")
    objects["scheduler"].gamma = 0.3
    changed = Trainer(first.graph, tmp_path, display=None, say=lambda line: None, **objects)
    with pytest.raises(UsageError, match="`scheduler` was stepped before this Trainer was made"):
        changed.run(from_setup="scheduler")


def test_groups_are_compared_one_by_one(tmp_path: Path) -> None:
    def grouped(parameters: Any, lr: float, second: float = 0.5) -> torch.optim.Optimizer:
        first, last = parameters
        return torch.optim.SGD([{"params": [first], "lr": lr}, {"params": [last], "lr": second}])

    trainer(tmp_path, optimizer=grouped).run(until="6 steps")
    with pytest.raises(UsageError, match=r"optimizer.lr: \[0.1, 0.5\] -> \[0.1, 0.7\]"):
        trainer(tmp_path, optimizer=grouped, second=0.7).run()
    new = trainer(tmp_path, optimizer=grouped, second=0.7)
    new.run(from_setup="optimizer")
    assert [one["lr"] for one in new.resources["optimizer"].param_groups] == [0.1, 0.7]


def test_a_rate_that_is_a_tensor_keeps_its_identity(tmp_path: Path) -> None:
    adam = torch.optim.Adam
    trainer(tmp_path, optimizer=adam, lr=torch.tensor(0.1)).run(until="6 steps")
    new = trainer(tmp_path, optimizer=adam, lr=torch.tensor(0.3))
    new.run(from_setup="optimizer.lr", until="7 steps")
    rate = new.resources["optimizer"].param_groups[0]["lr"]
    assert isinstance(rate, torch.Tensor) and float(rate) == float(torch.tensor(0.3))


def test_other_resources_with_state_are_compared_too(tmp_path: Path) -> None:
    class Curriculum:
        def __init__(self, hardest: int) -> None:
            self.hardest, self.seen = hardest, [0]

        def state_dict(self) -> dict[str, Any]:
            return {"hardest": self.hardest, "seen": self.seen}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.hardest, self.seen = state["hardest"], state["seen"]

    def with_curriculum(hardest: int) -> Trainer:
        made = trainer(tmp_path)
        objects = {name: made.resources[name] for name in made.resources if name != "scheduler"}
        return Trainer(
            made.graph, tmp_path, display=None, say=lambda line: None, curriculum=Curriculum(hardest), **objects
        )

    first = with_curriculum(3)
    first.resources["curriculum"].seen = [0]
    first.run(until="6 steps")
    first.resources["curriculum"].seen.append(7)
    first.save()
    second = with_curriculum(5)
    with pytest.raises(UsageError, match=r"curriculum.hardest: 3 -> 5"):
        second.run()
    third = with_curriculum(5)
    third.run(from_setup="curriculum.hardest")
    assert (third.resources["curriculum"].hardest, third.resources["curriculum"].seen) == (5, [0, 7])


def test_a_module_that_is_new_begins_without_a_past(tmp_path: Path) -> None:
    """As the mean of weights does, which the new graph reads and the old one had not."""
    first = trainer(tmp_path)
    first.run(until="6 steps")
    objects = {name: first.resources[name] for name in ("optimizer", "train_data", "training_step", "model")}

    def with_mean() -> Trainer:
        mean = torch.nn.Linear(3, 1)
        return Trainer(first.graph, tmp_path, display=None, say=lambda line: None, mean=mean, **objects)

    with pytest.raises(UsageError, match=r"mean.class: absent -> there"):
        with_mean().run()
    second = with_mean()
    second.run(from_setup="mean", until="8 steps")
    assert second.progress["step"]["steps"] == 8
    third = with_mean()
    third.run()
    assert torch.equal(third.read("mean").weight, second.read("mean").weight), "it has a past now"


def test_what_was_decided_is_said(tmp_path: Path) -> None:
    trainer(tmp_path).run(until="6 steps")
    said: list[str] = []
    trainer(tmp_path, said=said, lr=0.01, momentum=0.9).run(from_setup="optimizer.lr", from_saved=True)
    line = next(one for one in said if one.startswith("resumed"))
    assert line.endswith("; changed: optimizer.lr: 0.1 -> 0.01 (taken), optimizer.momentum: 0 -> 0.9 (kept as saved)")
