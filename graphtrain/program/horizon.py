"""When learning-rate schedulers are stepped, and the number of steps they are made for and the run will take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, MultiStepLR, OneCycleLR, SequentialLR, StepLR

from graphtrain.errors import UsageError
from graphtrain.plan.scope import resources_of
from graphtrain.program.bind import Program, ProgramNode


def horizon_of(scheduler: Any) -> tuple[int, str] | None:
    """The number of steps after which a scheduler ends, and its source; None if it has no known end.

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
    for node in program.nodes:
        for name, scheduler in _schedulers(program, node):
            horizon = horizon_of(scheduler)
            if horizon is None:
                continue
            try:
                steps = program.whole_run.visits(node.path)
            except UsageError:
                continue  # it is not known
            if steps not in (1, horizon[0]):  # 1 in a dry run
                yield (
                    f"`{name}` is made for {horizon[0]} steps ({horizon[1]}), and the run takes {steps} with it; "
                    f'setup(run) can compute the number: run.steps(train_data, node="{node.path}")'
                )


# Schedulers that reduce the rate at an epoch, or at each. Others, which torch counts by epochs too, are as common by
# steps: warm-up, a half cosine, custom functions.
_BY_EPOCHS = (StepLR, MultiStepLR, ExponentialLR)


def refuse_schedules(program: Program) -> None:
    """Raise for schedulers that are stepped at the wrong time.

    Raises:
        UsageError: one that counts epochs is stepped after each step and the graph does not say so; or two nodes step
            schedulers of one optimizer at the same time.
    """
    stepping: dict[tuple[int, str, str], tuple[ProgramNode, str]] = {}  # of one resource is left to the checks
    for node in program.nodes:
        for name, scheduler in _schedulers(program, node):
            trigger = node.plan_node.trigger
            if trigger is None or trigger.is_never:
                continue
            if isinstance(scheduler, _BY_EPOCHS) and "every" not in node.node.parameters:
                raise UsageError(
                    f"`{name}`: {type(scheduler).__name__} counts epochs by its documentation, and `{node.path}` would "
                    f'step it every "{trigger}", the default',
                    f'{node.path}.every="1 epochs" steps it after every epoch; {node.path}.every="1 steps", written '
                    "out, says that steps are meant",
                )
            owner = getattr(scheduler, "optimizer", None)
            key = (id(scheduler if owner is None else owner), node.scope.prefix, str(trigger))
            other, other_name = stepping.setdefault(key, (node, name))
            if other is not node:
                raise UsageError(
                    f"`{other.path}` and `{node.path}` step `{other_name}` and `{name}`, of one optimizer, at one time "
                    f"({trigger}): each would overwrite or multiply what the other has set",
                    "remove one of the nodes; or make one scheduler of both: torch's SequentialLR, ChainedScheduler",
                )


def _schedulers(program: Program, node: ProgramNode) -> Iterator[tuple[str, Any]]:
    """The schedulers that a node steps, by the names of the resources, which may be lists."""
    if node.bypassed or "scheduler" not in node.kind.optional:
        return
    for name in resources_of([node.scope.names.read_by(node.node, "scheduler")]):
        value = program.resources.get(name)
        schedulers = value if isinstance(value, list | tuple) else [value]
        yield from ((name, scheduler) for scheduler in schedulers if scheduler is not None)
