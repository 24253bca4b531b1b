"""When learning-rate schedulers are stepped, and the number of steps they are made for and the run will take."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, MultiStepLR, OneCycleLR, SequentialLR, StepLR

from graphtrain.errors import UsageError
from graphtrain.kind.trigger import COUNTS_RUN, Term, decimal
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


def first_change_of(scheduler: Any) -> tuple[int, str] | None:
    """The step at which a scheduler first changes the rate, and its description, if its documentation counts epochs.

    These reduce the rate by a factor at an epoch, or at each. Others, which torch counts by epochs too, are as common
    by steps: warm-up, a half cosine, custom functions.

    >>> import torch
    >>> first_change_of(StepLR(torch.optim.SGD([torch.zeros(1)], lr=0.1), 30))
    (30, 'StepLR(30)')
    """
    match scheduler:
        case StepLR():
            return int(scheduler.step_size), f"StepLR({scheduler.step_size})"
        case MultiStepLR() if milestones := sorted(scheduler.milestones):
            return int(milestones[0]), f"MultiStepLR({milestones})"
        case ExponentialLR():
            return 1, f"ExponentialLR({scheduler.gamma:g})"
    return None


def lines_about_steps(program: Program) -> Iterator[str]:
    """A line for each scheduler: when it is stepped, and what follows.

    Raises:
        UsageError: one that counts epochs is stepped so often that it changes the rate within the first, and the graph
            does not state that this is intended.
    """
    for node in program.nodes:
        trigger = node.plan_node.trigger
        if trigger is None or trigger.is_never:
            continue
        terms = program.terms(node, trigger)
        amount = terms[0][2].base if len(terms) == 1 and not trigger.once else None
        by_steps = amount == Term(Fraction(1), COUNTS_RUN)
        for name, scheduler in _schedulers(program, node):
            first, text = first_change_of(scheduler) or (0, type(scheduler).__name__)
            when = "every optimizer step" if by_steps else f'by {node.path}.every = "{trigger}"'
            line = f"`{name}`: {text} is stepped {when}"
            if not first or amount is None or scheduler.last_epoch:
                yield line
                continue
            at = first * amount.amount
            change = f"first change at {amount.unit.removesuffix('s')} {decimal(at)}"
            epoch = _epoch_of_step(program, node, at) if amount.unit == COUNTS_RUN else None
            if epoch is not None and epoch < 1 and "every" not in node.node.parameters:
                raise UsageError(
                    f"{line}: {change}, epoch {float(epoch):.2g}; and {type(scheduler).__name__} counts epochs by its "
                    "documentation",
                    f'{node.path}.every="1 epochs" steps it after every epoch; {node.path}.every="1 steps", written '
                    "out, says that steps are meant",
                )
            yield f"{line}: {change}" + (f", epoch {float(epoch):.3g}" if epoch is not None else "")


def _epoch_of_step(program: Program, node: ProgramNode, step: Fraction) -> Fraction | None:
    """The epoch in which a step is taken; None if not known ahead."""
    steps, batches = (node.scope.counter(unit)[0] for unit in (COUNTS_RUN, "batches"))
    if steps is None or batches is None:
        return None
    try:
        run = program.whole_run
        per_step = Fraction(run.visits(batches.path), run.visits(steps.path))
        return step * per_step / run.batches_per_epoch(batches.plan_node)
    except (UsageError, ZeroDivisionError):
        return None


def refuse_two_at_once(program: Program) -> None:
    """Raise if two nodes step schedulers of one optimizer at the same time.

    Raises:
        UsageError: they do.
    """
    stepping: dict[tuple[int, str, str], tuple[ProgramNode, str]] = {}
    for node in program.nodes:
        for name, scheduler in _schedulers(program, node):
            trigger = node.plan_node.trigger
            if trigger is None or trigger.is_never:
                continue
            owner = getattr(scheduler, "optimizer", None)
            key = (id(scheduler if owner is None else owner), node.scope.prefix, str(trigger))
            other, other_name = stepping.setdefault(key, (node, name))
            if other is not node:
                of_both = f"`{name}` twice" if name == other_name else f"`{other_name}` and `{name}`, of one optimizer,"
                raise UsageError(
                    f"`{other.path}` and `{node.path}` step {of_both} at one time ({trigger}): each would overwrite "
                    "or multiply what the other has set",
                    "remove one of the nodes; or make one scheduler of both: torch's SequentialLR, ChainedScheduler",
                )


def _schedulers(program: Program, node: ProgramNode) -> Iterator[tuple[str, Any]]:
    """The schedulers that a node steps, by name."""
    if node.bypassed or "scheduler" not in node.kind.optional:
        return
    for name in resources_of([node.scope.names.read_by(node.node, "scheduler")]):
        if name in program.resources:
            yield name, program.resources[name]
