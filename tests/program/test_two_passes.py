"""Two passes on one batch inside a window, as sharpness-aware minimization takes them, against the loop by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from graphtrain import Graph, Trainer
from graphtrain.kind import StepFunction
from graphtrain.state.random import seed_everything
from tests.checks.corpus import undeclared
from tests.program.cuts import assert_cuts_are_exact, assert_same, weights

BATCHES, EPOCHS, WINDOW, RADIUS = 5, 3, 3, 0.05  # an epoch ends inside a window


class SamBatch:
    """Add the gradients at the worst weights nearby; those of the window are kept aside meanwhile."""

    def setup(self, optimizer: torch.optim.Optimizer) -> None:
        self._weights = [weight for group in optimizer.param_groups for weight in group["params"]]

    def __call__(self, model: Any, batch: Any, training_step: StepFunction, window: int = 1) -> Any:
        window_so_far = [weight.grad for weight in self._weights]
        loss = training_step(model, batch)
        gradients = torch.autograd.grad(loss, self._weights)
        factor = RADIUS / nn.utils.get_total_norm(gradients)
        before = [weight.detach().clone() for weight in self._weights]
        with torch.no_grad():
            for weight, gradient in zip(self._weights, gradients, strict=True):
                weight.grad = None
                weight += factor * gradient
        (training_step(model, batch) / window).backward()
        with torch.no_grad():
            for weight, value, earlier in zip(self._weights, before, window_so_far, strict=True):
                weight.copy_(value)
                if earlier is not None:
                    weight.grad += earlier
        return loss.detach()


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def resources() -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.25), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = [torch.randn(6, 4) for _ in range(BATCHES)]
    return {"model": model, "optimizer": optimizer, "train_data": data, "training_step": loss_of}


def trainer_of(run_dir: str | Path | None = None) -> Trainer:
    kind = undeclared("sam_batch", SamBatch, writes="loss", effects="backward")
    graph = (
        Graph.load("fit")
        .replace("train_batch", kind.implementation)
        .set("train_batch", reads={"window": "accumulate.window"})
        .set("accumulate", every=WINDOW)
        .set("finish", after=f"{EPOCHS} epochs")
    )
    assert graph.check() == []
    return Trainer(graph, seed=0, run_dir=run_dir, display=None, notify=lambda line: None, **resources())


def by_hand() -> dict[str, torch.Tensor]:
    supplied = resources()
    model, optimizer = supplied["model"], supplied["optimizer"]
    seed_everything(0)
    sums: list[torch.Tensor] = []
    passes = 0
    for number in range(EPOCHS * BATCHES):
        batch = supplied["train_data"][number % BATCHES]
        start = [weight.detach().clone() for weight in model.parameters()]
        model.zero_grad()
        loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.get_total_norm([weight.grad for weight in model.parameters()])
        with torch.no_grad():
            for weight in model.parameters():
                weight += RADIUS / norm * weight.grad
        model.zero_grad()
        (loss_of(model, batch) / WINDOW).backward()  # type: ignore[no-untyped-call]
        gradients = [weight.grad for weight in model.parameters()]
        sums = [a + b for a, b in zip(sums, gradients, strict=True)] if sums else gradients
        with torch.no_grad():
            for weight, value in zip(model.parameters(), start, strict=True):
                weight.copy_(value)
        passes += 1
        if passes == WINDOW or (number + 1) % BATCHES == 0:
            for weight, total in zip(model.parameters(), sums, strict=True):
                weight.grad = total
            optimizer.step()
            sums, passes = [], 0
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def test_two_passes_on_one_batch_in_a_window_train_what_the_loop_by_hand_trains() -> None:
    trainer = trainer_of()
    trainer.run()
    assert trainer.read("step.steps") == 2 * EPOCHS
    assert_same(weights(trainer), by_hand())


def test_a_window_that_is_kept_aside_survives_a_cut_in_its_middle() -> None:
    trainer = trainer_of()
    cut = 0
    while trainer.read("accumulate.count") < 2:
        trainer.advance()
        cut += 1
    assert_cuts_are_exact(trainer_of, [cut])
