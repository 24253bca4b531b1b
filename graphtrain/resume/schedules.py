"""Schedules of learning rates are begun again and stepped as often as before, as if they had always been so."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, SequentialLR

INNER = "_schedulers"


def replay_schedules(optimizer: torch.optim.Optimizer, schedulers: Sequence[LRScheduler], steps: Sequence[int]) -> None:
    """Begin with the `initial_lr` of each group, and step each of the schedules of an optimizer that often.

    They are stepped rather than asked for the rate of a step, which only some can tell: 2 us a step.
    """
    most = max(steps)
    for group in optimizer.param_groups:
        set_rate(group, "lr", group["initial_lr"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch takes a step of a schedule before any of the optimizer for a mistake
        for scheduler in schedulers:
            _construct_again(scheduler)
        for step in range(most):
            for scheduler, count in zip(schedulers, steps, strict=True):
                if (step + 1) * count // most > step * count // most:  # one that counts epochs beside one by steps
                    scheduler.step()


def _construct_again(scheduler: Any) -> None:
    """What the constructors of schedules do last: base rates from `initial_lr`, counters to zero, the first rate.

    Only the constructors of PyTorch's base classes are called: they know of no settings, so those loaded stay. That of
    a sequence undoes what the constructors of the schedules in it have done to the rate.
    """
    if isinstance(scheduler, SequentialLR | ChainedScheduler):
        for inner in scheduler._schedulers:
            _construct_again(inner)
    if isinstance(scheduler, SequentialLR):
        SequentialLR.__init__(scheduler, scheduler.optimizer, scheduler._schedulers, scheduler._milestones)
    elif isinstance(scheduler, ChainedScheduler):
        ChainedScheduler.__init__(scheduler, scheduler._schedulers, scheduler.optimizer)
    else:
        LRScheduler.__init__(scheduler, scheduler.optimizer)


def load_exactly(scheduler: LRScheduler, state: dict[str, Any]) -> None:
    """Load a state and remove everything else: `load_state_dict` leaves the fields of another class where they are."""
    for field in scheduler.state_dict().keys() - state.keys():
        vars(scheduler).pop(field, None)
    for inner, inner_state in zip(getattr(scheduler, INNER, ()), state.get(INNER, ()), strict=False):
        load_exactly(inner, inner_state)
    scheduler.load_state_dict(state)


def steps_of(state: Mapping[str, Any]) -> int:
    """How often a scheduler with this state was stepped; those that are chained count, the chain does not."""
    inner = state.get(INNER) or [{}]
    return int(state["last_epoch"] if "last_epoch" in state else inner[0].get("last_epoch", 0))


def set_rate(group: dict[str, Any], field: str, value: Any) -> None:
    """A rate that is a tensor keeps its identity: a captured graph or a compiled step may hold it."""
    if isinstance(group.get(field), torch.Tensor) and isinstance(value, torch.Tensor | int | float):
        group[field].fill_(float(value))
    else:
        group[field] = copy.deepcopy(value)
