"""What setup sets differently on a resume: reported, decided by a person, and then as if it had always been so (13)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from graphtrain import Graph, Outcome, Trainer, UsageError

Make = Callable[[torch.optim.Optimizer], Any]


def trainer(
    run_dir: Path,
    make: Make | None = None,
    *,
    steps: int = 12,
    optimizer: Callable[..., Any] = torch.optim.SGD,
    said: list[str] | None = None,
    every: str = "1 steps",
    more: dict[str, Any] | None = None,
    graph: Graph | None = None,
    **settings: Any,
) -> Trainer:
    """A run of a linear model.

    Arguments:
        make: its scheduler.
        more: further resources, or others.
        settings: of the optimizer.
    """
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    made = optimizer(model.parameters(), **{"lr": 0.1, **settings})
    resources = {
        "model": model,
        "optimizer": made,
        "scheduler": make(made) if make is not None else None,
        "train_data": [torch.full((2, 3), float(number)) for number in range(6)],
        "training_step": lambda model, batch: model(batch).square().mean(),
        **(more or {}),
    }
    return Trainer(
        (graph or Graph.load("fit")).set("finish", after=f"{steps} steps").set("schedule", every=every),
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=said.append if said is not None else lambda line: None,
        **resources,
    )


SCHEDULES: dict[str, Make] = {
    "sequential": lambda it: lr_scheduler.SequentialLR(
        it, [lr_scheduler.LinearLR(it, 0.1, total_iters=4), lr_scheduler.ExponentialLR(it, 0.9)], [4]
    ),
    "chained": lambda it: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(it, 0.9), lr_scheduler.LinearLR(it, 0.5, total_iters=4)]
    ),
    "cosine": lambda it: lr_scheduler.CosineAnnealingLR(it, 20, eta_min=0.001),
    "lambda": lambda it: lr_scheduler.LambdaLR(it, lambda step: 1 / (1 + step)),
    "cyclic": lambda it: lr_scheduler.CyclicLR(it, 0.01, 0.2, step_size_up=3, cycle_momentum=False),
    "step": lambda it: lr_scheduler.StepLR(it, 3, gamma=0.5),
    "multi-step": lambda it: lr_scheduler.MultiStepLR(it, [2, 5, 9]),
    "exponential": lambda it: lr_scheduler.ExponentialLR(it, 0.9),
    "linear": lambda it: lr_scheduler.LinearLR(it, 0.1, total_iters=8),
    "polynomial": lambda it: lr_scheduler.PolynomialLR(it, 20),
    "warm restarts": lambda it: lr_scheduler.CosineAnnealingWarmRestarts(it, 4, T_mult=2),
}
MOVING_MOMENTUM: dict[str, Make] = {
    "one cycle": lambda it: lr_scheduler.OneCycleLR(it, 0.3, total_steps=30),
    "cyclic with momentum": lambda it: lr_scheduler.CyclicLR(it, 0.01, 0.2, step_size_up=3),
}


def by_hand(make: Make, steps: int, **settings: Any) -> tuple[list[float], Any]:
    """The learning rate before each step, and the scheduler in the end, had the settings always been so."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], **{"lr": 0.1, **settings})
    scheduler, rates = make(optimizer), []
    for _ in range(steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates, scheduler


def rates(run: Trainer, steps: int) -> list[float]:
    """The learning rate before each further step."""
    found = []
    for _ in range(steps):
        while run.position != "step":
            run.advance()
        found.append(float(run.resources["optimizer"].param_groups[0]["lr"]))
        run.advance()
    return found


def rate(run: Trainer) -> Any:
    return run.resources["optimizer"].param_groups[0]["lr"]


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


# ---- what is refused


def test_a_difference_is_refused_and_nothing_is_changed_on_the_disk(tmp_path: Path) -> None:
    trainer(tmp_path).run(until="6 steps")
    before = files(tmp_path)
    with pytest.raises(UsageError, match="set up now differ from the saved ones") as caught:
        trainer(tmp_path, lr=0.01, momentum=0.9).run()
    assert "optimizer.lr: 0.1 -> 0.01" in str(caught.value) and "optimizer.momentum: 0 -> 0.9" in str(caught.value)
    assert "--from-setup optimizer.lr,optimizer.momentum" in caught.value.hint
    assert files(tmp_path) == before


@pytest.mark.parametrize("names", ["optimiser.lr", "optimizer.rate", "nothing"])
def test_a_name_that_means_nothing_is_refused(names: str, tmp_path: Path) -> None:
    trainer(tmp_path).run(until="1 steps")
    with pytest.raises(UsageError, match=f"from_setup: there is no `{names}`"):
        trainer(tmp_path, lr=0.2).run(from_setup=names)


# ---- what is decided


def test_from_setup_takes_the_new_ones_and_the_decision_is_remembered(tmp_path: Path) -> None:
    trainer(tmp_path).run(until="6 steps")
    new = trainer(tmp_path, lr=0.01, weight_decay=0.5)
    new.run(from_setup="optimizer.lr, optimizer.weight_decay", until="7 steps")
    assert (rate(new), new.resources["optimizer"].param_groups[0]["weight_decay"]) == (0.01, 0.5)
    again = trainer(tmp_path, lr=0.01, weight_decay=0.5)
    again.run()
    assert rate(again) == 0.01
    with pytest.raises(UsageError, match=r"optimizer.lr: 0.01 -> 0.1"):
        trainer(tmp_path).run()


def test_from_saved_keeps_the_old_ones(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "a")
    whole.run()
    trainer(tmp_path / "b").run(until="6 steps")
    kept = trainer(tmp_path / "b", lr=0.01)
    kept.run(from_saved=True, until="8 steps")
    assert rate(kept) == 0.1
    again = trainer(tmp_path / "b", lr=0.01)
    again.run(from_saved=True)
    assert torch.equal(again.resources["model"].weight, whole.resources["model"].weight)


@pytest.mark.full
def test_what_was_decided_is_reported(tmp_path: Path) -> None:
    trainer(tmp_path).run(until="6 steps")
    said: list[str] = []
    trainer(tmp_path, said=said, lr=0.01, momentum=0.9).run(from_setup="optimizer.lr", from_saved=True)
    line = next(line for line in said if line.startswith("resumed"))
    changes = "optimizer.lr: 0.1 -> 0.01 (taken), optimizer.momentum: 0 -> 0.9 (kept as saved)"
    assert line.endswith(f"; exact except for what changed: {changes}")


@pytest.mark.first(1)
@pytest.mark.parametrize("make", [SCHEDULES["step"], None], ids=["step", "constant"])
def test_a_decision_that_is_repeated_is_no_change(make: Make | None, tmp_path: Path) -> None:
    trainer(tmp_path, make).run(until="6 steps")
    trainer(tmp_path, make, lr=0.01).run(from_setup="optimizer.lr")
    before = files(tmp_path)
    again = trainer(tmp_path, make, lr=0.01)
    assert again.run(from_setup="optimizer.lr") is Outcome.ALREADY_FINISHED
    assert files(tmp_path) == before, "not even a checkpoint"


def test_a_rate_that_was_changed_on_the_way_is_set_up_again_and_reported(tmp_path: Path) -> None:
    first = trainer(tmp_path)
    first.run(until="6 steps")
    first.resources["optimizer"].param_groups[0]["lr"] = 0.001
    first.run(until="7 steps")
    said: list[str] = []
    again = trainer(tmp_path, said=said)
    again.run(from_setup="optimizer.lr", until="8 steps")
    assert rate(again) == 0.1
    (line,) = [line for line in said if line.startswith("resumed")]
    assert line.endswith("; exact except for what changed: settings of optimizer as set up")


# ---- schedules


@pytest.mark.second(5)
@pytest.mark.first(2)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_continues_as_if_the_rate_had_always_been_the_new_one(name: str, tmp_path: Path) -> None:
    make = SCHEDULES[name]
    trainer(tmp_path, make).run(until="7 steps")
    new = trainer(tmp_path, make, lr=0.3)
    new.advance(0, from_setup="optimizer.lr") if name != "cyclic" else new.advance(0)
    expected, scheduler = by_hand(make, 12, lr=0.3)
    assert rates(new, 5) == expected[7:]
    new.run()
    if name not in ("lambda", "cyclic"):
        assert repr(new.resources["scheduler"].state_dict()) == repr(scheduler.state_dict())


@pytest.mark.first(1)
@pytest.mark.parametrize("names", ["scheduler", "optimizer.lr", "scheduler.gamma"])
def test_a_changed_schedule_restarts_with_its_rate(names: str, tmp_path: Path) -> None:
    trainer(tmp_path, SCHEDULES["step"]).run(until="7 steps")
    new = lambda it: lr_scheduler.StepLR(it, 2, gamma=0.7)  # noqa: E731
    resumed = trainer(tmp_path, new, lr=0.3)
    resumed.advance(0, from_setup=names)
    assert rates(resumed, 5) == pytest.approx(by_hand(new, 12, lr=0.3)[0][7:], rel=1e-12)


def test_each_schedule_of_a_rate_restarts_with_its_own_steps(tmp_path: Path) -> None:
    graph = Graph.load("fit").insert(
        "slow", "schedule", after="zero_grad", every="3 steps", reads={"scheduler": "slow"}
    )

    def of_rate(lr: float) -> Trainer:
        optimizer = torch.optim.SGD((model := torch.nn.Linear(3, 1)).parameters(), lr)
        schedules = {"scheduler": SCHEDULES["exponential"](optimizer), "slow": lr_scheduler.StepLR(optimizer, 1, 0.5)}
        return trainer(tmp_path, graph=graph, more={"model": model, "optimizer": optimizer, **schedules})

    of_rate(0.1).run(until="7 steps")
    new = of_rate(0.3)
    new.advance(0, from_setup="optimizer.lr")
    assert rate(new) == pytest.approx(0.3 * 0.9**7 * 0.5**2, rel=1e-12)


SWAPPED: dict[str, tuple[Make | None, Make | None, str]] = {
    "another": (SCHEDULES["step"], SCHEDULES["cosine"], r"scheduler.class: StepLR -> CosineAnnealingLR"),
    "a new one": (None, SCHEDULES["cosine"], "scheduler.class: absent -> CosineAnnealingLR"),
    "none": (SCHEDULES["step"], None, "scheduler.class: StepLR -> absent"),
}


@pytest.mark.parametrize("name", SWAPPED)
def test_another_schedule_begins_when_it_begins(name: str, tmp_path: Path) -> None:
    before, now, message = SWAPPED[name]
    trainer(tmp_path, before).run(until="6 steps")
    with pytest.raises(UsageError, match=message):
        trainer(tmp_path, now).run()
    resumed = trainer(tmp_path, now)
    resumed.advance(0, from_setup="scheduler")
    if now is not None:
        assert rates(resumed, 5) == by_hand(now, 5)[0]


def test_a_plateau_keeps_what_it_has_seen(tmp_path: Path) -> None:
    """Its steps need a metric, so it cannot be replayed: settings change, state and rate stay."""
    first = trainer(tmp_path, lambda it: lr_scheduler.ReduceLROnPlateau(it, patience=2), every="never")
    first.run(until="5 steps")
    for value in (1.0, 2.0, 2.0):
        first.resources["scheduler"].step(value)
    first.save()
    new = trainer(tmp_path, lambda it: lr_scheduler.ReduceLROnPlateau(it, patience=5), every="never", lr=0.4)
    new.advance(0, from_setup="scheduler.patience,optimizer.lr")
    scheduler = new.resources["scheduler"]
    assert (scheduler.patience, scheduler.best, scheduler.num_bad_epochs, rate(new)) == (5, 1.0, 2, 0.4)


@pytest.mark.second(6)
@pytest.mark.first(2)
@pytest.mark.parametrize(
    "name", ["chained", "one cycle", *sorted(SCHEDULES.keys() - {"chained"}), "cyclic with momentum"]
)
def test_used_objects_in_a_new_trainer_are_no_difference(name: str, tmp_path: Path) -> None:
    make = {**SCHEDULES, **MOVING_MOMENTUM}[name]
    first = trainer(tmp_path, make, momentum=0.9)
    first.run(until="7 steps")
    again = trainer(tmp_path, more=dict(first.resources))
    again.advance(0)
    assert rates(again, 5) == by_hand(make, 12, momentum=0.9)[0][7:]


def linear(steps: int) -> Callable[[int], float]:
    return lambda step: max(0.0, 1 - step / steps)


class Linear:
    def __init__(self, total: int) -> None:
        self.total = total

    def __call__(self, step: int) -> float:
        return linear(self.total)(step)


def after_two(make: Make) -> Make:
    return lambda it: lr_scheduler.SequentialLR(it, [lr_scheduler.ConstantLR(it), make(it)], [2])


# How each is set up for a run of so many steps, and how many ways out are offered.
EXTENDED: dict[str, tuple[Callable[[int], Make | None], dict[str, Any], int]] = {
    "a function": (lambda steps: lambda it: lr_scheduler.LambdaLR(it, linear(steps)), {}, 1),
    "a number": (lambda steps: lambda it: lr_scheduler.CosineAnnealingLR(it, steps), {}, 2),
    "a function within": (lambda steps: after_two(lambda it: lr_scheduler.LambdaLR(it, linear(steps))), {}, 1),
    "a function, and a rate": (lambda steps: lambda it: lr_scheduler.LambdaLR(it, linear(steps)), {"lr": 0.3}, 1),
    "a callable object": (lambda steps: lambda it: lr_scheduler.LambdaLR(it, Linear(steps)), {}, 1),
    "another class within": (lambda steps: after_two(SCHEDULES["exponential" if steps < 18 else "cosine"]), {}, 1),
    "another class": (lambda steps: SCHEDULES["step" if steps < 18 else "exponential"], {}, 1),
    "a new one": (lambda steps: None if steps < 18 else SCHEDULES["step"], {}, 1),
    "none": (lambda steps: SCHEDULES["step"] if steps < 18 else None, {}, 1),
    "another optimizer": (lambda steps: SCHEDULES["step"], {"optimizer": torch.optim.AdamW}, 1),
}


@pytest.mark.second(4)
@pytest.mark.first(3)
@pytest.mark.parametrize("name", EXTENDED)
def test_only_what_works_is_offered_for_a_run_that_is_extended(name: str, tmp_path: Path) -> None:
    make, settings, count = EXTENDED[name]
    trainer(tmp_path / "saved", make(12)).run(until="5 steps")
    with pytest.raises(UsageError, match="set up now differ from the saved ones") as caught:
        trainer(tmp_path / "saved", make(18), steps=18, **settings).run()
    ways = re.findall(r"run\((.+?)\)", caught.value.hint)
    assert len(ways) == count == caught.value.hint.count("--from-")
    for number, way in enumerate(ways):
        shutil.copytree(tmp_path / "saved", tmp_path / f"{number}")
        chosen = {"from_saved": True} if way == "from_saved=True" else {"from_setup": way.split('"')[1]}
        for arguments in (chosen, dict[str, Any]()) if "from_setup" in chosen else [chosen]:  # that is remembered
            said: list[str] = []
            extended = trainer(tmp_path / f"{number}", make(18), steps=18, said=said, **settings)
            extended.run(until="6 steps", **arguments)
            (line,) = [line for line in said if line.startswith("resumed ")]
            assert "exact except for what changed" in line if arguments else line.endswith("unchanged: exact")


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda it, steps: lr_scheduler.LambdaLR(it, linear(steps)), "lr_lambdas: the functions return other values"),
        (lambda it, steps: after_two(lambda it: lr_scheduler.LambdaLR(it, linear(steps)))(it),
         "_schedulers[1].lr_lambdas: the functions return other values"),
        (lambda it, steps: lr_scheduler.OneCycleLR(it, 0.3, total_steps=steps), "total_steps: 12 -> 18"),
    ],
)  # fmt: skip
def test_a_schedule_for_a_longer_run_is_named_in_a_line_with_its_likely_cause(
    make: Any, line: str, tmp_path: Path
) -> None:
    trainer(tmp_path, lambda it: make(it, 12)).run(until="5 steps")
    said: list[str] = []
    longer = trainer(tmp_path, lambda it: make(it, 18), steps=18, said=said)
    with pytest.raises(UsageError) as caught:
        longer.run()
    lines = caught.value.message.splitlines()
    assert lines[1] == f"    scheduler.{line}"
    assert lines[-1] == "    which may follow from: finish.after 12 steps -> 18 steps"
    assert max(map(len, lines)) < 90 and "--from-setup scheduler takes the new values" in caught.value.hint
    longer.run(from_setup="scheduler")
    (resumed,) = [line for line in said if line.startswith("resumed ")]
    changes = resumed.partition("exact except for what changed: ")[2].split(", ")
    assert changes[:2] == ["finish.after 12 steps -> 18 steps", f"scheduler.{line} (taken)"]
    assert changes[-1] == "settings of optimizer as set up" and len(changes) <= 4


# ---- optimizers and modules


def test_another_optimizer_is_reinitialised_and_cannot_be_kept(tmp_path: Path) -> None:
    trainer(tmp_path, momentum=0.9).run(until="6 steps")
    with pytest.raises(UsageError, match="the saved state of `optimizer` cannot be used"):
        trainer(tmp_path, optimizer=torch.optim.AdamW).run(from_saved=True)
    new = trainer(tmp_path, optimizer=torch.optim.AdamW)
    new.run(from_setup="optimizer", until="7 steps")
    assert [int(state["step"]) for state in new.resources["optimizer"].state.values()] == [1, 1]


def test_groups_are_compared_one_by_one(tmp_path: Path) -> None:
    def grouped(parameters: Any, lr: float, second: float = 0.5) -> torch.optim.Optimizer:
        first, last = parameters
        return torch.optim.SGD([{"params": [first], "lr": lr}, {"params": [last], "lr": second}])

    trainer(tmp_path, optimizer=grouped).run(until="6 steps")
    with pytest.raises(UsageError, match=r"optimizer.lr: \[0.1, 0.5\] -> \[0.1, 0.7\]"):
        trainer(tmp_path, optimizer=grouped, second=0.7).run()
    new = trainer(tmp_path, optimizer=grouped, second=0.7)
    new.run(from_setup="optimizer")
    assert [group["lr"] for group in new.resources["optimizer"].param_groups] == [0.1, 0.7]


def test_a_number_beyond_64_bits_is_saved_and_compared(tmp_path: Path) -> None:
    def tagged(parameters: Any, lr: float, tag: int) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": [*parameters], "lr": lr, "tag": tag}])

    trainer(tmp_path, optimizer=tagged, tag=2**70).run(until="6 steps")
    with pytest.raises(UsageError, match=r"optimizer.tag: "):
        trainer(tmp_path, optimizer=tagged, tag=2**71).run()
    assert trainer(tmp_path, optimizer=tagged, tag=2**70).run() is not None


def test_a_rate_that_is_a_tensor_keeps_its_identity(tmp_path: Path) -> None:
    trainer(tmp_path, optimizer=torch.optim.Adam, lr=torch.tensor(0.1)).run(until="6 steps")
    new = trainer(tmp_path, optimizer=torch.optim.Adam, lr=torch.tensor(0.3))
    new.run(from_setup="optimizer.lr", until="7 steps")
    assert isinstance(rate(new), torch.Tensor) and float(rate(new)) == float(torch.tensor(0.3))


@pytest.mark.full
def test_a_module_that_is_new_begins_without_a_past(tmp_path: Path) -> None:
    """As the mean of weights does, which the new graph reads and the old one had not."""
    trainer(tmp_path).run(until="6 steps")
    with pytest.raises(UsageError, match=r"mean.class: absent -> module"):
        trainer(tmp_path, more={"mean": torch.nn.Linear(3, 1)}).run()
    second = trainer(tmp_path, more={"mean": torch.nn.Linear(3, 1)})
    second.run(from_setup="mean", until="8 steps")
    third = trainer(tmp_path, more={"mean": torch.nn.Linear(3, 1)})
    third.run()
    assert torch.equal(third.resources["mean"].weight, second.resources["mean"].weight), "it has a past now"


@pytest.mark.parametrize("names", ["optimizer", "optimizer.lr"])
def test_the_name_of_several_optimizers_takes_the_settings_of_all(names: str, tmp_path: Path) -> None:
    def several(rates: tuple[float, float], container: Callable[..., Any] = tuple) -> Trainer:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        made = [torch.optim.SGD(part.parameters(), lr=rate) for part, rate in zip(model, rates, strict=True)]
        return trainer(tmp_path, steps=4, more={"model": model, "optimizer": container(made)})

    several((0.1, 0.2)).run(until="2 batches")
    with pytest.raises(UsageError, match=r"optimizer\[1\]\.lr: 0\.2 -> 0\.4"):
        several((0.3, 0.4), list).run()
    second = several((0.3, 0.4))
    second.run(from_setup=names)
    assert [each.param_groups[0]["lr"] for each in second.resources["optimizer"]] == [0.3, 0.4]
