"""`step.fused`: what torch's fused optimizers do, and nothing else about the optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from graphtrain import Graph, Trainer, UsageError
from graphtrain.nodes.step import Step
from graphtrain.state.random import seed_everything
from tests.program.small_run import Augmented, make_loader, make_model, training_step
from tests.program.test_by_hand import assert_same

EPOCHS, EVERY = 2, 2

Make = Callable[..., torch.optim.Optimizer]

# With such rates and decays a fused step has other bits on every processor.
MAKES: dict[str, Make] = {
    "SGD": lambda groups, **options: torch.optim.SGD(groups, lr=0.3, momentum=0.9, **options),
    "Adam": lambda groups, **options: torch.optim.Adam(groups, lr=0.3, amsgrad=True, **options),
    "AdamW": lambda groups, **options: torch.optim.AdamW(groups, lr=0.3, **options),
    "Adagrad": lambda groups, **options: torch.optim.Adagrad(groups, lr=0.05, **options),
}


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    parameters = list(model.parameters())
    return [{"params": parameters[:3], "weight_decay": 0.3}, {"params": parameters[3:], "weight_decay": 0.1}]


def schedule_of(optimizer: torch.optim.Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: 1 / (1 + step))


def train_by_hand(make: Make, **options: Any) -> tuple[Any, Any]:
    """The reference: the loop with an optimizer that is made fused."""
    torch.set_num_threads(1)
    seed_everything(7)
    model = make_model()
    optimizer = make(groups_of(model), **options)
    schedule = schedule_of(optimizer)
    train_data = make_loader("Loader", Augmented())
    train_data.seed = 11
    seed_everything(11)
    for _ in range(EPOCHS):
        for number, batch in enumerate(train_data, start=1):
            (training_step(model, batch) / EVERY).backward()
            if number % EVERY == 0 or number == len(train_data):
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
    return model.state_dict(), optimizer.state_dict()


def make_trainer(
    make: Make = MAKES["AdamW"],
    run_dir: Path | None = None,
    *,
    fused: bool = True,
    said: list[str] | None = None,
    **options: Any,
) -> Trainer:
    torch.set_num_threads(1)
    seed_everything(7)
    model = make_model()
    optimizer = make(groups_of(model), **options)
    graph = Graph.load("fit").set("accumulate", every=EVERY).set("checkpoint", every="1 batches", keep=10_000)
    graph = graph.set("finish", after=f"{EPOCHS} epochs")
    return Trainer(
        graph.set("step", fused=fused),
        run_dir=run_dir,
        seed=11,
        device="cpu",
        display=None,
        notify=(lambda line: None) if said is None else said.append,
        model=model,
        optimizer=optimizer,
        scheduler=schedule_of(optimizer),
        train_data=make_loader("Loader", Augmented()),
        training_step=training_step,
    )


def without_fused(state: dict[str, Any]) -> dict[str, Any]:
    groups = [{key: value for key, value in one.items() if key != "fused"} for one in state["param_groups"]]
    return {**state, "param_groups": groups}


@pytest.mark.first(5)
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_it_equals_the_loop_with_a_fused_optimizer(make: Make, fused: bool) -> None:
    weights, state = train_by_hand(make, **({"fused": True} if fused else {}))
    trainer = make_trainer(make, fused=fused)
    trainer.run()
    assert_same(trainer.resources["model"].state_dict(), weights)
    assert_same(without_fused(trainer.resources["optimizer"].state_dict()), without_fused(state))
    assert [group["fused"] for group in trainer.resources["optimizer"].param_groups] == [None, None]


def test_the_comparison_notices_a_step_that_is_not_fused() -> None:
    fused = [train_by_hand(make, fused=True)[0] for make in MAKES.values()]
    other = [train_by_hand(make, fused=False)[0] for make in MAKES.values()]
    assert any(not torch.equal(one[key], two[key]) for one, two in zip(fused, other, strict=True) for key in one)


def seen_by_a_step(trainer: Trainer) -> list[list[Any]]:
    """What the groups of the optimizer say while it steps."""
    optimizer, seen = trainer.resources["optimizer"], []
    optimizer.register_step_pre_hook(lambda one, *rest: seen.append([group["fused"] for group in one.param_groups]))
    trainer.run()
    return seen


def test_every_group_is_fused_while_it_steps() -> None:
    steps = EPOCHS * 3
    assert seen_by_a_step(make_trainer()) == [[True, True]] * steps
    assert seen_by_a_step(make_trainer(fused=False)) == [[None, None]] * steps


def test_the_groups_are_as_they_were_made_after_a_step_that_fails() -> None:
    trainer = make_trainer()
    optimizer = trainer.resources["optimizer"]

    def fail(*arguments: Any) -> None:
        raise RuntimeError("not now")

    optimizer.register_step_pre_hook(fail)
    with pytest.raises(RuntimeError, match="not now"):
        trainer.run()
    assert [group["fused"] for group in optimizer.param_groups] == [None, None]


def test_several_optimizers_are_fused() -> None:
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    optimizers = [MAKES["SGD"](one.parameters()) for one in models]
    seen: list[Any] = []
    for optimizer, model in zip(optimizers, models, strict=True):
        optimizer.register_step_pre_hook(lambda one, *rest: seen.append(one.param_groups[0]["fused"]))
        model(torch.ones(2)).sum().backward()
    step = Step()
    step.fused, step.steps = True, 0
    step.setup(tuple(optimizers))
    step()
    assert seen == [True, True]


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_every_cut_equals_the_run_never_cut(make: Make, tmp_path: Path) -> None:
    whole = make_trainer(make, tmp_path / "whole")
    whole.run()
    paths = sorted((tmp_path / "whole" / "checkpoints").iterdir())
    assert len(paths) > 5
    for path in paths[1::2]:
        said: list[str] = []
        cut = make_trainer(make, said=said)
        cut.run(resume=path)
        assert cut.digest() == whole.digest(), path.name
        assert not [line for line in said if "fused" in line]


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize(("before", "after"), [(False, True), (True, False)])
def test_it_may_be_changed_at_a_resume_which_reports_it(make: Make, before: bool, after: bool, tmp_path: Path) -> None:
    make_trainer(make, tmp_path, fused=before).run(until="4 batches")
    said: list[str] = []
    changed = make_trainer(make, tmp_path, fused=after, said=said)
    seen = seen_by_a_step(changed)
    assert seen == [[True if after else None] * 2] * len(seen)
    assert len(seen) == EPOCHS * 3 - 2
    (line,) = (one for one in said if "fused" in one)
    assert f"step.fused {str(before).lower()} -> {str(after).lower()}" in line
    assert "optimizer" not in line


def test_a_rewired_run_uses_the_new_value(tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.run(until="4 batches")
    trainer.rewire(trainer.graph.set("step", fused=False))
    seen = seen_by_a_step(trainer)
    assert seen and seen == [[None, None]] * len(seen)


@pytest.mark.full
def test_an_optimizer_that_was_made_fused_stays_so(tmp_path: Path) -> None:
    """By default the step is as the optimizer was made, and a resume reports nothing."""
    made = functools.partial(MAKES["AdamW"], fused=True)
    said: list[str] = []
    make_trainer(made, tmp_path, fused=False).run(until="4 batches")
    resumed = make_trainer(made, tmp_path, fused=False, said=said)
    assert seen_by_a_step(resumed) == [[True, True]] * (EPOCHS * 3 - 2)
    assert not [line for line in said if "fused" in line]
    weights, _ = train_by_hand(MAKES["AdamW"], fused=True)
    assert_same(resumed.resources["model"].state_dict(), weights)


# Counts of steps


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("capturable", [True, False])
def test_counts_of_steps_are_where_the_implementation_expects_them(fused: bool, capturable: bool) -> None:
    """As torch's own loading puts them for an optimizer that is made so; on a device that computes nothing."""
    found, expected = (
        torch.optim.Adam([nn.Parameter(torch.ones(2, device="meta"))], capturable=capturable, fused=one)
        for one in (None, fused or None)
    )
    elsewhere = "cpu" if fused else "meta"
    for optimizer in (found, expected):
        (parameter,) = optimizer.param_groups[0]["params"]
        average = torch.zeros(2, device="meta", dtype=torch.float64)
        optimizer.state[parameter] = {"step": torch.zeros((), device=elsewhere), "exp_avg": average}
    step = Step()
    step.fused = fused
    if not fused and not capturable:
        (parameter,) = found.param_groups[0]["params"]
        with pytest.raises(NotImplementedError):  # a tensor on `meta` has no value to bring to the host
            step.setup(found)
        return
    step.setup(found)
    expected.load_state_dict(expected.state_dict())
    for optimizer in (found, expected):
        (state,) = optimizer.state.values()
        assert state["step"].device.type == "meta"
        assert state["step"].dtype == torch.float32
    (state,) = found.state.values()
    assert state["exp_avg"].dtype == torch.float64, "nothing else is touched"


# What is refused


class Own(torch.optim.Optimizer):
    def __init__(self, groups: Any) -> None:
        super().__init__(groups, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        return None


@pytest.mark.parametrize("make", [torch.optim.RMSprop, Own])
def test_an_optimizer_without_a_fused_implementation_is_named(make: Any) -> None:
    with pytest.raises(
        UsageError, match=f"step.fused: `{make.__name__}` has no fused implementation\n  hint: leave it"
    ):
        make_trainer(make).run()
    make_trainer(make, fused=False).run()


@pytest.mark.parametrize("option", ["foreach", "differentiable"])
def test_what_excludes_a_fused_step_is_named(option: str) -> None:
    with pytest.raises(UsageError, match=rf"step.fused: `AdamW` was made with {option}=True, which excludes"):
        make_trainer(**{option: True}).run()
