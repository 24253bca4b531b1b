"""How many steps a learning-rate scheduler is made for, compared with those that the run will take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, SequentialLR

from graphtrain.errors import UsageError
from graphtrain.plan.scope import ResourceTarget, leaves
from graphtrain.program.bind import BoundNode, Program


def horizon_of(scheduler: Any) -> tuple[int, str] | None:
    """After how many steps a scheduler is at its end, and what it has that from; None where it has no known end.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    >>> cosine = CosineAnnealingLR(optimizer, T_max=90)
    >>> horizon_of(cosine)
    (90, 'CosineAnnealingLR.T_max')
    >>> warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
    >>> horizon_of(SequentialLR(optimizer, [warm_up, cosine], milestones=[10]))
    (100, 'SequentialLR: 10 and CosineAnnealingLR.T_max of 90')
    """
    match scheduler:
        case OneCycleLR():
            return int(scheduler.total_steps), "OneCycleLR.total_steps"
        case CosineAnnealingLR():
            return int(scheduler.T_max), "CosineAnnealingLR.T_max"
        case SequentialLR():
            schedulers: list[Any] = getattr(scheduler, "_schedulers", [])
            milestones: list[int] = getattr(scheduler, "_milestones", [])
            last = horizon_of(schedulers[-1]) if schedulers and milestones else None
            if last is not None:
                number, name = last
                return milestones[-1] + number, f"SequentialLR: {milestones[-1]} and {name} of {number}"
    return None


def other_horizons(program: Program) -> Iterator[str]:
    """A line for each scheduler that is made for another number of steps than the run takes with it."""
    for bound in program.nodes:
        for name, scheduler in _schedulers(program, bound):
            horizon = horizon_of(scheduler)
            if horizon is None:
                continue
            try:
                steps = program.whole_run.visits(bound.path)
            except UsageError:
                continue  # nobody can tell
            if steps != horizon[0]:
                yield (
                    f"`{name}` is made for {horizon[0]} steps ({horizon[1]}), and the run takes {steps} with it; "
                    f'setup(run) is told the number: run.steps(train_data, node="{bound.path}")'
                )


def refuse_two_at_once(program: Program) -> None:
    """Raise where two nodes step schedulers of one optimizer at one time.

    Raises:
        UsageError: they do.
    """
    stepping: dict[tuple[int, str, str], tuple[BoundNode, str]] = {}
    for bound in program.nodes:
        for name, scheduler in _schedulers(program, bound):
            trigger = bound.planned.trigger
            if trigger is None or trigger.is_never:
                continue
            owner = getattr(scheduler, "optimizer", None)
            key = (id(scheduler if owner is None else owner), bound.scope.prefix, str(trigger))
            other, other_name = stepping.setdefault(key, (bound, name))
            if other is not bound:
                of_both = f"`{name}` twice" if name == other_name else f"`{other_name}` and `{name}`, of one optimizer,"
                raise UsageError(
                    f"`{other.path}` and `{bound.path}` step {of_both} at one time ({trigger}): each would overwrite "
                    "or multiply what the other has set",
                    "remove one of the nodes; or make one scheduler of both: torch's SequentialLR, ChainedScheduler",
                )


def _schedulers(program: Program, bound: BoundNode) -> Iterator[tuple[str, Any]]:
    """The schedulers that a node steps, by name."""
    if bound.bypassed or "scheduler" not in bound.kind.optional:
        return
    for leaf in leaves(bound.scope.names.read_by(bound.node, "scheduler")):
        if isinstance(leaf, ResourceTarget) and leaf.name in program.resources:
            yield leaf.name, program.resources[leaf.name]
