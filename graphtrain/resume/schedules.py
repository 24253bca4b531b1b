"""Going through schedules of learning rates again, so that the rate is what it would be had they always been so."""

from __future__ import annotations

import bisect
import copy
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import ChainedScheduler, SequentialLR

from graphtrain.errors import UsageError
from graphtrain.resume.resource_hyper_parameters import CLASS, LAMBDAS, MOVING, OF_SCHEDULES


@dataclass(frozen=True)
class Schedule:
    """One schedule of an optimizer that is gone through again.

    Attributes:
        name: of the resource.
        scheduler: with its state loaded.
        made: its state before any step.
        chosen: the fields that are taken as they were made; all others are kept as loaded.
        anew: True if it begins now.
    """

    name: str
    scheduler: Any
    made: Mapping[str, Any]
    chosen: Collection[str]
    anew: bool

    @property
    def steps(self) -> int:
        """How often it has been stepped."""
        return 0 if self.anew else steps_of(self.scheduler.state_dict())

    def reset(self, rates: list[float]) -> None:
        state: dict[str, Any] = copy.deepcopy(dict(self.made))
        if not self.anew:
            state = _kept(state, self.scheduler.state_dict(), self.chosen)
        _base_rates(state, rates)
        for field in set(self.chosen) - set(self.made):
            self.scheduler.__dict__.pop(field, None)
        self.scheduler.load_state_dict(state)


def replay_schedules(
    optimizer: torch.optim.Optimizer,
    made: list[dict[str, Any]],
    schedules: list[Schedule],
    chosen: Collection[str],
    rate_in_force: Any = None,
) -> None:
    """Put an optimizer back to before its first step, and step all of its schedules as often as they were.

    Arguments:
        made: its groups before any step.
        chosen: the fields of its groups that are taken as they were made; all others are kept as loaded.
        rate_in_force: where the loaded groups do not tell the rate that their schedules began with.

    Raises:
        UsageError: a schedule was stepped before its settings were seen.
    """
    for one in schedules:
        if steps_of(one.made) > 0:
            raise UsageError(
                f"`{one.name}` was stepped before any Trainer was made with it: what it began with is not known",
                "make a new scheduler, and a new Trainer with it",
            )
    steps = [one.steps for one in schedules]
    for number, (group, fresh) in enumerate(zip(optimizer.param_groups, made, strict=True)):
        _reset_group(group, fresh, chosen, number_at(rate_in_force, number))
    for one in schedules:
        one.reset([float(group["initial_lr"]) for group in optimizer.param_groups])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it takes a step of the scheduler before any of the optimizer for a mistake
        for one in schedules:
            _begin(one.scheduler)
        for step in range(most := max(steps)):
            for one, own in zip(schedules, steps, strict=True):
                if (step + 1) * own // most > step * own // most:  # one by epochs goes beside one by steps
                    one.scheduler.step()


def set_rate(group: dict[str, Any], field: str, value: Any) -> None:
    """A rate that is a tensor keeps its identity: a captured graph or a compiled step may hold it."""
    if isinstance(group.get(field), torch.Tensor) and isinstance(value, torch.Tensor | int | float):
        group[field].fill_(float(value))
    else:
        group[field] = copy.deepcopy(value)


def steps_of(state: Mapping[str, Any]) -> int:
    """How often a scheduler with this state has been stepped."""
    if "last_epoch" in state:
        return int(state["last_epoch"])
    inner = state.get("_schedulers") or [{}]
    return int(inner[0].get("last_epoch", 0))


def number_at(values: Any, group: int) -> float | None:
    """The number of a group, where the manifest has one."""
    value = values[group] if isinstance(values, list) and group < len(values) else values
    return float(value) if isinstance(value, int | float) else None


def _reset_group(
    group: dict[str, Any], made: Mapping[str, Any], chosen: Collection[str], in_force: float | None
) -> None:
    taken = {*chosen, "initial_lr"} if "lr" in chosen else {*chosen}
    if "initial_lr" not in group and "initial_lr" not in taken:
        group["initial_lr"] = copy.deepcopy(group["lr"] if in_force is None else in_force)
    for field in OF_SCHEDULES:
        if field in made and (field in taken or CLASS in taken or field not in group):
            set_rate(group, field, made[field])
    if "base_momentum" in made:
        group.update({field: copy.deepcopy(made[field]) for field in ("momentum", "betas") if field in made})
    set_rate(group, "lr", group["initial_lr"])


def _begin(scheduler: Any) -> None:
    """What the constructor does to the rate of the optimizer, which is the initial one."""
    if isinstance(scheduler, SequentialLR):
        _begin(scheduler._schedulers[bisect.bisect_right(scheduler._milestones, 0)])
    elif isinstance(scheduler, ChainedScheduler):
        for inner in scheduler._schedulers:
            _begin(inner)
    else:
        scheduler.last_epoch = -1
        scheduler._initial_step()
    scheduler._last_lr = [_copied(group["lr"]) for group in scheduler.optimizer.param_groups]


def _copied(rate: Any) -> Any:
    return rate.clone() if isinstance(rate, torch.Tensor) else rate


def _kept(made: dict[str, Any], loaded: Mapping[str, Any], chosen: Collection[str]) -> dict[str, Any]:
    """The state before any step, with the fields as loaded that are not chosen."""
    state = {**made, **{key: one for key, one in loaded.items() if key not in MOVING and key not in chosen}}
    if "_schedulers" not in chosen and len(made.get("_schedulers", ())) == len(loaded.get("_schedulers", ())) > 0:
        pairs = zip(made["_schedulers"], loaded["_schedulers"], strict=True)
        state["_schedulers"] = [_kept(*pair, ()) for pair in pairs]
    if LAMBDAS in state:
        state[LAMBDAS] = copy.copy(state[LAMBDAS])
    return state


def _base_rates(state: dict[str, Any], rates: list[float]) -> None:
    if "base_lrs" in state:
        state["base_lrs"] = list(rates)
    for inner in state.get("_schedulers", ()):
        _base_rates(inner, rates)
