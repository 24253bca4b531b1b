"""A scheduler that is made for another number of steps than the run takes is reported, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from graphtrain import Graph, Trainer, UsageError

FIT = Graph.load("fit").set("checkpoint", every="never").set("accumulate", every=3).set("finish", after="2 epochs")


def lines_of(make: Callable[[Any], Any], graph: Graph = FIT, data: Any = None, about: str = "is made for") -> list[str]:
    lines: list[str] = []
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(
        graph,
        seed=0,
        device="cpu",
        display=None,
        notify=lines.append,
        model=model,
        optimizer=optimizer,
        scheduler=make(optimizer),
        train_data=data if data is not None else [torch.ones(2, 1)] * 10,
        training_step=lambda model, batch: model(batch).mean(),
    )
    trainer.run(until="2 batches")
    trainer.run(until="3 batches")
    return [line for line in lines if about in line]


def one_cycle(optimizer: Any) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)


def cosine(optimizer: Any) -> Any:
    return lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)


def sequence(optimizer: Any) -> Any:
    warm_up = lr_scheduler.LinearLR(optimizer, total_iters=2)
    rest = lr_scheduler.CosineAnnealingLR(optimizer, T_max=7)
    return lr_scheduler.SequentialLR(optimizer, [warm_up, rest], milestones=[2])


@pytest.mark.parametrize(
    ("make", "graph", "start"),
    [
        (one_cycle, FIT, "`scheduler` is made for 9 steps (OneCycleLR.total_steps), and the run takes 8 with it;"),
        (cosine, FIT, None),
        (cosine, FIT.set("schedule", every="1 epochs"),
         "`scheduler` is made for 8 steps (CosineAnnealingLR.T_max), and the run takes 2 with it;"),
        (sequence, FIT, "`scheduler` is made for 9 steps (SequentialLR: 2 and CosineAnnealingLR.T_max of 7), and the"),
        (one_cycle, FIT.set("finish", after="9 steps"), None),
        (one_cycle, FIT.dry_run(), None),
        (one_cycle, FIT.set("finish", after="2 hours"), None),  # nobody can tell
        (lambda optimizer: lr_scheduler.StepLR(optimizer, 3), FIT.set("schedule", every="1 epochs"), None),
    ],
)  # fmt: skip
def test_another_number_of_steps_is_reported_once(make: Any, graph: Graph, start: str | None) -> None:
    lines = lines_of(make, graph)
    assert len(lines) == (start is not None)
    if start is not None:
        assert lines[0].startswith(start)
        assert lines[0].endswith('run.steps(train_data, node="schedule")')


STEP = Graph.load("fit").set("finish", after="2 epochs")


def stepped_before(optimizer: Any) -> int:
    optimizer.param_groups[0]["initial_lr"] = 0.1
    return 3


@pytest.mark.parametrize(
    "graph", [STEP, STEP.dry_run(), STEP.set("finish", after="2 hours"), STEP.set("schedule", from_="1 epochs")]
)
@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: lr_scheduler.StepLR(optimizer, 5),
        lambda optimizer: lr_scheduler.StepLR(optimizer, 5000),  # wherever it changes the rate first
        lambda optimizer: lr_scheduler.StepLR(optimizer, 5, last_epoch=stepped_before(optimizer)),
        lambda optimizer: lr_scheduler.MultiStepLR(optimizer, []),
        lambda optimizer: [lr_scheduler.ExponentialLR(optimizer, 0.9)],
    ],
)
def test_a_scheduler_of_epochs_is_not_stepped_by_steps_unless_that_is_written(make: Any, graph: Graph) -> None:
    with pytest.raises(UsageError, match="counts epochs by its documentation") as caught:
        lines_of(make, graph)
    assert 'schedule.every="1 epochs"' in caught.value.hint and 'schedule.every="1 steps"' in caught.value.hint
    for every in ("1 steps", "1 epochs"):
        lines_of(make, graph.set("schedule", every=every))


def test_nobody_can_tell_of_data_without_a_length() -> None:
    class Unsized:
        def __iter__(self) -> Any:
            return iter([torch.ones(2, 1)] * 5)

    assert lines_of(one_cycle, data=Unsized()) == []
