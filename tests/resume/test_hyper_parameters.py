"""What setup sets differently on a resume: reported, decided by a person, and then as if it had always been so."""

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
from graphtrain.resume.hyper_parameters import HyperParameters, encoded
from tests.command.running import written

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
    if "every" not in graph.nodes["schedule"].parameters:
        graph = graph.set("schedule", every="1 steps")
    return Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=said.append if said is not None else lambda line: None,
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
    before = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file() and one.name != ".lock"}
    with pytest.raises(UsageError, match="differs from what the run was set up with") as caught:
        trainer(tmp_path, lr=0.01, momentum=0.9).run()
    assert "optimizer.lr: 0.1 -> 0.01" in str(caught.value) and "optimizer.momentum: 0 -> 0.9" in str(caught.value)
    assert "--from-setup optimizer.lr,optimizer.momentum" in caught.value.hint
    assert {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file() and one.name != ".lock"} == before


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.first(4)
@pytest.mark.parametrize("names", ["optimiser.lr", "optimizer.rate", "model.width", "nothing", True])
def test_a_name_that_means_nothing_is_refused(names: Any, tmp_path: Path) -> None:
    trainer(tmp_path).run(until="6 steps")
    message = "expected names, got True" if names is True else f"there is no `{names}`"
    with pytest.raises(UsageError, match=f"from_setup: {message}"):
        trainer(tmp_path, lr=0.2).run(from_setup=names)


@pytest.mark.second(4)
@pytest.mark.full
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_continues_as_if_the_rate_had_always_been_the_new_one(name: str, tmp_path: Path) -> None:
    make = SCHEDULES[name]
    trainer(tmp_path, make).run(until="7 steps")
    new = trainer(tmp_path, make, lr=0.3)
    new.advance(0, from_setup="optimizer.lr") if name != "cyclic" else new.advance(0)
    assert rates(new, 5) == rates_by_hand(make, 12, lr=0.3)[7:]


@pytest.mark.full
@pytest.mark.parametrize("names", ["scheduler", "optimizer.lr", "scheduler.gamma"])
def test_a_changed_schedule_restarts_with_its_rate(names: str, tmp_path: Path) -> None:
    trainer(tmp_path, SCHEDULES["step"]).run(until="7 steps")
    new = lambda one: lr_scheduler.StepLR(one, 2, gamma=0.7)  # noqa: E731
    resumed = trainer(tmp_path, new, lr=0.3)
    resumed.advance(0, from_setup=names)
    assert rates(resumed, 5) == pytest.approx(rates_by_hand(new, 12, lr=0.3)[7:], rel=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_a_changed_schedule_sets_the_momentum_from_its_beginning(optimizer: Any, tmp_path: Path) -> None:
    old, new = (
        lambda one: lr_scheduler.CyclicLR(one, 0.01, 0.2, step_size_up=3),
        lambda one: lr_scheduler.CyclicLR(one, 0.01, 0.2, step_size_up=2, base_momentum=0.5, max_momentum=0.7),
    )
    settings = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    trainer(tmp_path, old, optimizer=optimizer, **settings).run(until="7 steps")
    resumed = trainer(tmp_path, new, optimizer=optimizer, **settings)
    resumed.advance(0, from_setup="scheduler,optimizer")
    by_hand = optimizer([torch.nn.Parameter(torch.zeros(1))], lr=0.1, **settings)
    scheduler = new(by_hand)
    for _ in range(7):
        by_hand.step()
        scheduler.step()
    group, expected = resumed.resources["optimizer"].param_groups[0], by_hand.param_groups[0]
    assert {name: group[name] for name in expected if name != "params"} == {
        name: value for name, value in expected.items() if name != "params"
    }


@pytest.mark.sweep
def test_another_scheduler_a_new_one_and_none(tmp_path: Path) -> None:
    for folder, before, now, expected in (
        ("other", SCHEDULES["step"], SCHEDULES["cosine"], rates_by_hand(SCHEDULES["cosine"], 5)),
        ("new", None, SCHEDULES["cosine"], rates_by_hand(SCHEDULES["cosine"], 5)),
    ):
        trainer(tmp_path / folder, before).run(until="6 steps")
        with pytest.raises(UsageError, match=r"scheduler.class: StepLR -> CosineAnnealingLR|scheduler: new, begins"):
            trainer(tmp_path / folder, now).run()
        resumed = trainer(tmp_path / folder, now)
        resumed.advance(0, from_setup="scheduler")
        assert rates(resumed, 5) == expected, "its schedule begins when it begins"
    trainer(tmp_path / "none", SCHEDULES["step"]).run(until="6 steps")
    with pytest.raises(UsageError, match="scheduler: removed"):
        trainer(tmp_path / "none").run()
    resumed = trainer(tmp_path / "none")
    resumed.run(from_setup="scheduler")
    assert resumed.progress["step"]["steps"] == 12


def test_another_optimizer_is_reinitialised_and_cannot_be_kept(tmp_path: Path) -> None:
    trainer(tmp_path, momentum=0.9).run(until="6 steps")
    with pytest.raises(UsageError, match="the saved state of `optimizer` cannot be used"):
        trainer(tmp_path, optimizer=torch.optim.AdamW).run(from_saved=True)
    new = trainer(tmp_path, optimizer=torch.optim.AdamW)
    new.run(from_setup="optimizer", until="7 steps")
    assert [int(one["step"]) for one in new.resources["optimizer"].state.values()] == [1, 1]


def test_a_plateau_keeps_what_it_has_seen(tmp_path: Path) -> None:
    """Its steps need a metric, so it cannot be replayed: settings change, state and rate stay."""

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


def over_the_same_objects(first: Trainer, run_dir: Path, **changes: Any) -> Trainer:
    names = ("model", "optimizer", "scheduler", "train_data", "training_step")
    objects = {name: first.resources[name] for name in names if name in first.resources}
    return Trainer(first.graph, seed=0, run_dir=run_dir, display=None, notify=lambda line: None, **(objects | changes))


MOVED: dict[str, Make] = {
    **SCHEDULES,
    "one cycle": lambda one: lr_scheduler.OneCycleLR(one, 0.3, total_steps=30),
    "cyclic with momentum": lambda one: lr_scheduler.CyclicLR(one, 0.01, 0.2, step_size_up=3),
}


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("name", MOVED)
def test_used_objects_in_a_new_trainer_are_no_difference(name: str, tmp_path: Path) -> None:
    first = trainer(tmp_path, MOVED[name], momentum=0.9)
    first.run(until="7 steps")
    again = over_the_same_objects(first, tmp_path)
    again.advance(0)
    assert rates(again, 5) == rates_by_hand(MOVED[name], 12, momentum=0.9)[7:]


def test_what_was_moved_by_hand_or_by_a_plateau_is_no_difference_for_a_new_trainer(tmp_path: Path) -> None:
    first = trainer(tmp_path, lambda one: lr_scheduler.ReduceLROnPlateau(one, patience=0))
    first.advance(1)
    first.resources["optimizer"].param_groups[0]["lr"] = 0.05
    first.save()
    again = over_the_same_objects(first, tmp_path)
    again.advance(0)
    assert again.resources["optimizer"].param_groups[0]["lr"] == 0.05


def test_a_scheduler_stepped_before_it_was_seen_cannot_be_replayed(tmp_path: Path) -> None:
    def stepped(one: torch.optim.Optimizer) -> Any:
        made = lr_scheduler.StepLR(one, 3)
        one.step()
        made.step()
        return made

    trainer(tmp_path, SCHEDULES["step"]).run(until="7 steps")
    with pytest.raises(UsageError, match="`scheduler` was stepped before its Trainer was made"):
        trainer(tmp_path, stepped).run(from_setup="scheduler")


def test_two_schedules_of_an_optimizer_are_replayed_together(tmp_path: Path) -> None:
    def both(one: torch.optim.Optimizer, gamma: float) -> list[Any]:
        return [lr_scheduler.ExponentialLR(one, gamma), lr_scheduler.CosineAnnealingLR(one, 20)]

    def made(gamma: float) -> HyperParameters:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        first, second = both(optimizer, gamma)
        return HyperParameters({"optimizer": optimizer, "first": first, "second": second})

    def step(run: HyperParameters) -> float:
        optimizer, *schedules = run._resources.values()
        optimizer.step()
        for one in schedules:
            one.step()
        return float(optimizer.param_groups[0]["lr"])

    old, new, always = made(0.9), made(0.5), made(0.5)
    for _ in range(7):
        step(old), step(always)
    for name, one in old._resources.items():
        new._resources[name].load_state_dict(one.state_dict())
    new.apply(new.chosen(["first.gamma"], new.differences(old.values)), old.values)
    assert step(new) == step(always)


@pytest.mark.parametrize("rate", [float, torch.tensor], ids=["number", "tensor"])
@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "cyclic"])
def test_a_replayed_schedule_is_in_the_state_of_one_that_was_always_so(name: str, rate: Callable[[float], Any]) -> None:
    def made(lr: float) -> dict[str, Any]:
        optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=rate(lr))
        return {"optimizer": optimizer, "scheduler": SCHEDULES[name](optimizer)}

    def step(resources: dict[str, Any]) -> dict[str, Any]:
        for _ in range(7):
            resources["optimizer"].step()
            resources["scheduler"].step()
        return {key: resource.state_dict() for key, resource in resources.items()}

    old, new, always = made(0.1), made(0.3), made(0.3)
    saved, hyper_parameters = HyperParameters(old).values, HyperParameters(new)
    for key, state in step(old).items():
        new[key].load_state_dict(state)
    hyper_parameters.apply(hyper_parameters.chosen(["optimizer.lr"], []), saved)
    expected = step(always)
    assert repr({key: resource.state_dict() for key, resource in new.items()}) == repr(expected)


def test_without_a_scheduler_a_named_rate_is_taken_even_where_it_is_as_it_was(tmp_path: Path) -> None:
    trainer(tmp_path, SCHEDULES["exponential"]).run(until="5 steps")
    new = trainer(tmp_path)
    new.advance(0, from_setup="optimizer.lr,scheduler")
    assert new.resources["optimizer"].param_groups[0]["lr"] == 0.1


def one_cycle(max_rate: float, steps: int = 50) -> Make:
    return lambda one: lr_scheduler.OneCycleLR(one, max_rate, total_steps=steps, div_factor=max_rate / 0.01)


@pytest.mark.full
def test_from_saved_is_remembered_by_schedules_and_by_the_command_before(tmp_path: Path) -> None:
    def exponential(gamma: float) -> Make:
        return lambda one: lr_scheduler.ExponentialLR(one, gamma)

    trainer(tmp_path, exponential(0.9)).run(until="3 steps")
    trainer(tmp_path, exponential(0.9), lr=0.2).run(from_saved=True, until="4 steps")
    trainer(tmp_path, exponential(0.9), lr=0.2).run(until="5 steps")
    trainer(tmp_path, exponential(0.9)).run(until="6 steps")
    trainer(tmp_path, exponential(0.9), lr=0.2).run(from_saved=True, until="7 steps")
    said: list[str] = []
    new = trainer(tmp_path, exponential(0.8), lr=0.2, said=said)
    new.advance(0, from_setup="scheduler")
    assert any("optimizer.lr (taken)" in line for line in said), "a schedule takes the rate along"
    assert rates(new, 2) == pytest.approx(rates_by_hand(exponential(0.8), 9, lr=0.2)[7:], rel=1e-12)


@pytest.mark.full
def test_a_scheduler_that_left_fields_in_the_group_is_replaced(tmp_path: Path) -> None:
    trainer(tmp_path, one_cycle(1.0), momentum=0.9).run(until="5 steps")
    new = trainer(tmp_path, SCHEDULES["step"], momentum=0.9)
    new.advance(0, from_setup="optimizer,scheduler")
    assert "max_lr" not in new.resources["optimizer"].param_groups[0]
    assert rates(new, 5) == rates_by_hand(SCHEDULES["step"], 5)


def linear(total: int) -> Callable[[int], float]:
    return lambda step: max(0.0, 1 - step / total)


class Linear:
    def __init__(self, total: int) -> None:
        self.total = total

    def __call__(self, step: int) -> float:
        return linear(self.total)(step)


# How each is set up for a run of so many steps, and how many ways out are offered.
EXTENDED: dict[str, tuple[Callable[[int], Make | None], dict[str, Any], int]] = {
    "a function": (lambda steps: lambda one: lr_scheduler.LambdaLR(one, linear(steps)), {}, 1),
    "a function, and a rate": (lambda steps: lambda one: lr_scheduler.LambdaLR(one, linear(steps)), {"lr": 0.3}, 1),
    "a callable object": (lambda steps: lambda one: lr_scheduler.LambdaLR(one, Linear(steps)), {}, 1),
    "a number": (lambda steps: lambda one: lr_scheduler.CosineAnnealingLR(one, steps), {}, 2),
    "a function within": (
        lambda steps: (
            lambda one: lr_scheduler.SequentialLR(
                one, [lr_scheduler.ConstantLR(one), lr_scheduler.LambdaLR(one, linear(steps))], [2]
            )
        ),
        {},
        1,
    ),
    "another class within": (
        lambda steps: (
            lambda one: lr_scheduler.SequentialLR(
                one,
                [
                    lr_scheduler.ConstantLR(one),
                    lr_scheduler.ExponentialLR(one, 0.9) if steps < 18 else lr_scheduler.CosineAnnealingLR(one, 9),
                ],
                [2],
            )
        ),
        {},
        1,
    ),
    "another class": (lambda steps: SCHEDULES["step" if steps < 18 else "exponential"], {}, 1),
    "a new one": (lambda steps: None if steps < 18 else SCHEDULES["step"], {}, 1),
    "none": (lambda steps: SCHEDULES["step"] if steps < 18 else None, {}, 1),
    "another optimizer": (lambda steps: SCHEDULES["step"], {"optimizer": torch.optim.AdamW}, 1),
}


@pytest.mark.first(3)
@pytest.mark.parametrize("name", EXTENDED)
def test_only_what_works_is_offered_for_a_run_that_is_extended(name: str, tmp_path: Path) -> None:
    make, settings, count = EXTENDED[name]
    trainer(tmp_path / "saved", make(12)).run(until="5 steps")
    with pytest.raises(UsageError, match="differs from what the run was set up with") as caught:
        trainer(tmp_path / "saved", make(18), steps=18, **settings).run()
    ways = re.findall(r"run\((.+?)\)", caught.value.hint)
    assert len(ways) == count == caught.value.hint.count("--from-")
    for number, way in enumerate(ways):
        shutil.copytree(tmp_path / "saved", tmp_path / f"{number}")
        chosen = {"from_saved": True} if way == "from_saved=True" else {"from_setup": way.split('"')[1]}
        for arguments in (chosen, dict[str, Any]()):  # the decision is remembered
            said: list[str] = []
            extended = trainer(tmp_path / f"{number}", make(18), steps=18, said=said, **settings)
            extended.run(until="6 steps" if arguments else None, **arguments)
            (line,) = [line for line in said if line.startswith("resumed ")]
            assert "exact except for what changed" in line if arguments else line.endswith("unchanged: exact")


def test_a_function_that_fails_is_compared_where_it_does_not() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    made = HyperParameters({"scheduler": lr_scheduler.LambdaLR(optimizer, lambda step: [1.0, 0.5][step])})
    assert made.values["scheduler"]["lr_lambdas"] == [[1.0, 0.5, None, None, None, None]]


@pytest.mark.full
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


@pytest.mark.full
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
            made.graph,
            run_dir=tmp_path,
            display=None,
            notify=lambda line: None,
            curriculum=Curriculum(hardest),
            **objects,
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


def test_a_field_that_another_version_of_torch_adds_is_no_difference() -> None:
    def adam(**settings: Any) -> HyperParameters:
        return HyperParameters({"optimizer": torch.optim.Adam([torch.nn.Parameter(torch.ones(1))], **settings)})

    older = {"optimizer": {key: one for key, one in adam().values["optimizer"].items() if key != "amsgrad"}}
    assert adam().differences(older) == []


@pytest.mark.full
def test_a_module_that_is_new_begins_without_a_past(tmp_path: Path) -> None:
    """As the mean of weights does, which the new graph reads and the old one had not."""
    first = trainer(tmp_path)
    first.run(until="6 steps")
    objects = {name: first.resources[name] for name in ("optimizer", "train_data", "training_step", "model")}

    def with_mean() -> Trainer:
        mean = torch.nn.Linear(3, 1)
        return Trainer(first.graph, run_dir=tmp_path, display=None, notify=lambda line: None, mean=mean, **objects)

    with pytest.raises(UsageError, match=r"mean: new, begins as it is set up now"):
        with_mean().run()
    second = with_mean()
    second.run(from_setup="mean", until="8 steps")
    assert second.progress["step"]["steps"] == 8
    third = with_mean()
    third.run()
    assert torch.equal(third.read("mean").weight, second.read("mean").weight), "it has a past now"


def test_what_was_decided_is_reported(tmp_path: Path) -> None:
    trainer(tmp_path).run(until="6 steps")
    said: list[str] = []
    trainer(tmp_path, said=said, lr=0.01, momentum=0.9).run(from_setup="optimizer.lr", from_saved=True)
    line = next(one for one in said if one.startswith("resumed"))
    changes = "optimizer.lr: 0.1 -> 0.01 (taken), optimizer.momentum: 0 -> 0.9 (kept as saved)"
    assert line.endswith(f"; exact except for what changed: {changes}")


@pytest.mark.full
@pytest.mark.parametrize("make", [None, SCHEDULES["step"]], ids=["constant", "step"])
def test_a_decision_that_is_repeated_is_no_change(make: Make | None, tmp_path: Path) -> None:
    trainer(tmp_path, make).run(until="6 steps")
    trainer(tmp_path, make, lr=0.01).run(from_setup="optimizer.lr")
    before = written(tmp_path)
    again = trainer(tmp_path, make, lr=0.01)
    assert again.run(from_setup="optimizer.lr") is Outcome.ALREADY_FINISHED and not again.changes
    changed = {name for name, content in written(tmp_path).items() if before.get(name) != content}
    assert changed == {"starts.jsonl", "status.json"}, "and no checkpoint"


# ---- several optimizers in a tuple


def several(run_dir: Path, rates: tuple[float, float], container: Callable[..., Any] = tuple) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    made = [torch.optim.SGD(part.parameters(), lr=rate) for part, rate in zip(model, rates, strict=True)]
    return Trainer(
        Graph.load("fit")
        .set("schedule", every="1 steps")
        .set("finish", after="4 steps")
        .set("checkpoint", every="never"),
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=container(made),
        train_data=[torch.full((2, 3), float(n)) for n in range(6)],
        training_step=lambda model, batch: model(batch).square().mean(),
    )


@pytest.mark.parametrize("names", ["optimizer", "optimizer.lr"])
def test_the_name_of_several_optimizers_takes_the_settings_of_all(names: str, tmp_path: Path) -> None:
    several(tmp_path, (0.1, 0.2)).run(until="2 batches")
    with pytest.raises(UsageError, match=r"optimizer\[1\]\.lr: 0\.2 -> 0\.4"):
        several(tmp_path, (0.3, 0.4), list).run()
    second = several(tmp_path, (0.3, 0.4))
    second.run(from_setup=names)
    assert [each.param_groups[0]["lr"] for each in second.resources["optimizer"]] == [0.3, 0.4]


def test_settings_are_compared_as_plain_values() -> None:
    assert encoded(torch.tensor([0.5, 2.0])) == [0.5, 2.0]
    assert encoded(torch.ones(100)) == "a tensor of (100,)"
    assert encoded({1: True, "n": 2**70}) == {"1": True, "n": str(2**70)}
    assert encoded({"b", "a", 1}) == ["a", "b", 1] and encoded(torch.float32) == "a dtype"
    assert encoded([0] * 65).startswith("65 values: ") and encoded([0] * 65) != encoded([1] + [0] * 64)
