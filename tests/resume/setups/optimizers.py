"""Optimizers and schedulers with state outside their `state_dict`."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.rows import perceptron, row, rows, seeded, squared


def scheduled(make: Any, optimizer: Any = None) -> dict[str, Any]:
    resources = seeded(perceptron, optimizer=optimizer)
    return resources | {"scheduler": make(resources["optimizer"])}


@row(needs="optimizer")
def adam_whose_groups_share_a_rate() -> dict[str, Any]:
    resources = seeded(perceptron)
    rate = torch.tensor(0.01)
    model = resources["model"]
    groups = [{"params": model[0].parameters(), "lr": rate}, {"params": model[2].parameters(), "lr": rate}]
    optimizer = torch.optim.Adam(groups)
    schedule = lr_scheduler.LambdaLR(optimizer, [lambda step: 1 / (1 + step), lambda step: 1 / (2 + step)])
    return resources | {"optimizer": optimizer, "scheduler": schedule}


@row(needs="optimizer")
def tensor_rate_that_the_step_function_changes() -> dict[str, Any]:
    rate = torch.tensor(0.01)

    def step(model: Any, batch: Any) -> torch.Tensor:
        rate.mul_(0.95)
        return squared(model, batch)

    return seeded(perceptron, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=rate), training_step=step)


@row()
def lambda_with_a_counter() -> dict[str, Any]:
    calls = 0

    def factor(step: int) -> float:
        nonlocal calls
        calls += 1
        return 1 / (1 + calls + step)

    return scheduled(lambda optimizer: lr_scheduler.LambdaLR(optimizer, factor))


@row(needs="scheduler")
def schedules_in_a_sequence() -> dict[str, Any]:
    def make(optimizer: Any) -> Any:
        parts = [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 4), lr_scheduler.ExponentialLR(optimizer, 0.9)]
        return lr_scheduler.SequentialLR(optimizer, parts, [4])

    return scheduled(make)


class Lookahead(torch.optim.Optimizer):
    """An optimizer around another one, with weights of its own."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.slow = [parameter.detach().clone() for group in inner.param_groups for parameter in group["params"]]
        self.count = 0
        super().__init__([parameter for group in inner.param_groups for parameter in group["params"]], {})

    def step(self, closure: Any = None) -> None:
        self.inner.step()
        self.count += 1
        if self.count % 3 == 0:
            parameters = [parameter for group in self.param_groups for parameter in group["params"]]
            for slow, parameter in zip(self.slow, parameters, strict=True):
                slow.lerp_(parameter.detach(), 0.5)
                parameter.data.copy_(slow)


class LookaheadWithItsOwnState(Lookahead):
    """Its `state_dict` is of a form of its own, and loading it gives the inner optimizer other groups."""

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict(), "slow": list(self.slow)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        self.param_groups = self.inner.param_groups
        self.slow = [saved.clone() for saved in state["slow"]]


# Logged after the batch of a resume, its rate is that of the groups of before until the step function sets it again.
@row(needs=("reachable", "optimizer"), log={"every": "1 epochs"})
def lookahead_with_a_state_of_its_own() -> dict[str, Any]:
    resources = seeded(
        perceptron, optimizer=lambda parameters: LookaheadWithItsOwnState(torch.optim.Adam(parameters, lr=0.02))
    )
    (group,) = resources["optimizer"].param_groups

    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        group["lr"] = 0.02 * math.cos(step / 20)
        return squared(model, batch)

    return resources | {"training_step": step}


@row(needs="state_dicts")
def second_optimizer_in_a_closure() -> dict[str, Any]:
    resources = seeded(perceptron)
    scale = nn.Parameter(torch.ones(()))
    further = torch.optim.Adam([scale], lr=0.05)

    def step(model: Any, batch: Any) -> torch.Tensor:
        loss = squared(model, batch)
        further.zero_grad()
        (scale * loss.detach() - 1).square().backward()
        further.step()
        return loss * scale.detach()

    return resources | {"training_step": step}


@row()
def parameters_that_belong_to_no_module() -> dict[str, Any]:
    resources = seeded(perceptron)
    prompt = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.Adam([*resources["model"].parameters(), prompt], lr=0.02)

    def step(model: Any, batch: Any) -> torch.Tensor:
        return squared(model, batch + prompt)

    return resources | {"optimizer": optimizer, "training_step": step}


@row(needs="optimizer")
def group_added_in_mid_run() -> dict[str, Any]:
    resources = seeded(perceptron)
    model = resources["model"]
    optimizer = torch.optim.Adam(model[0].parameters(), lr=0.02)

    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        if step == 2 and len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.01})
        return squared(model, batch)

    return resources | {"optimizer": optimizer, "training_step": step}


@row()
def grad_scaler_between_unscale_and_update() -> dict[str, Any]:
    """It unscales after one batch, and steps and updates after the next one."""
    weight = nn.Parameter(torch.ones(2))
    inner = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    def step(model: Any, batch: Any) -> torch.Tensor:
        loss = (model(batch) * weight.detach().clone()).square().mean()
        if weight.grad is None:
            scaler.scale((model(batch).detach() * weight).square().mean()).backward()
            scaler.unscale_(inner)
        else:
            scaler.step(inner)
            scaler.update()
            weight.grad = None
        return loss * scaler.get_scale() / 8

    return seeded(perceptron, training_step=step)


@row(needs="state_dicts")
def swa_with_its_schedule() -> dict[str, Any]:
    resources = seeded(lambda: perceptron(nn.BatchNorm1d(4)))
    average = torch.optim.swa_utils.AveragedModel(
        resources["model"], multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    schedule = torch.optim.swa_utils.SWALR(resources["optimizer"], swa_lr=0.005, anneal_epochs=4)

    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        if step > 4:
            average.update_parameters(model)
            schedule.step()
        return squared(model, batch) + 0.1 * squared(average.module, batch).detach()

    return resources | {"training_step": step}


@row()
def state_of_an_optimizer_that_is_read() -> dict[str, Any]:
    """A moment of Adam is kept elsewhere too: it is one tensor again."""
    resources = seeded(perceptron)
    kept: dict[str, torch.Tensor] = {}

    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        if step == 1:
            kept["moment"] = resources["optimizer"].state[model[0].weight]["exp_avg"]
        scale = float(kept["moment"].abs().sum()) if kept else 0.0
        return squared(model, batch) * (1 + scale)

    return resources | {"training_step": step}


class Counting(torch.optim.SGD):
    """Keeps state under keys that are no parameters, which is not in dictionaries."""

    def step(self, closure: Any = None) -> None:
        if "calls" not in self.state:
            self.state.update({"calls": 0, "scale": torch.ones(()), "sizes": []})
        self.state["calls"] += 1
        self.state["scale"].mul_(0.9)
        self.state["sizes"].append(float(self.state["scale"]) / self.state["calls"])
        self.param_groups[0]["lr"] = 0.1 * sum(self.state["sizes"])
        super().step()


@row(needs="optimizer")
def state_of_an_optimizer_under_keys_of_its_own() -> dict[str, Any]:
    """One of them is held elsewhere too: it is one tensor again."""
    resources = seeded(perceptron, optimizer=lambda parameters: Counting(parameters, lr=0.1))
    kept: dict[str, torch.Tensor] = {}

    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        if step == 1:
            kept["scale"] = resources["optimizer"].state["scale"]
        return squared(model, batch) * float(kept["scale"] if kept else 1)

    return resources | {"training_step": step}


def many_scales(count: int) -> nn.Module:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.scales = nn.ParameterList(nn.Parameter(torch.ones(())) for _ in range(count))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.scales[0] * self.scales[-1]

    return Scaled()


@row(needs=("reachable", "scheduler"))
def schedule_that_draws() -> dict[str, Any]:
    """Its `state_dict` holds its generators, one of them made late; another is drawn from outside."""
    shared = torch.Generator().manual_seed(3)

    class Drawing(lr_scheduler.LRScheduler):
        def __init__(self, optimizer: Any) -> None:
            self.generators = {"torch": shared, "numpy": [numpy.random.default_rng(4), numpy.random.RandomState(5)]}
            self.later: random.Random | None = None
            super().__init__(optimizer)

        def get_lr(self) -> list[float]:
            if self.last_epoch == 2:
                self.later = random.Random(6)
            noise = float(torch.rand((), generator=self.generators["torch"]))
            noise += sum(float(generator.normal()) for generator in self.generators["numpy"])
            return [0.01 * (1 + abs(noise) + (self.later.random() if self.later else 0))]

    def step(model: Any, batch: Any) -> torch.Tensor:
        return squared(model, batch) * (1 + torch.rand((), generator=shared))

    return scheduled(Drawing) | {"training_step": step}


rows(
    needs="optimizer",
    sgd_with_momentum=lambda: seeded(
        perceptron, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    ),
    group_of_many_parameters=lambda: seeded(lambda: many_scales(1_500)),
)
rows(
    needs="scheduler",
    one_cycle=lambda: scheduled(lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30)),
)
rows(
    lookahead_around_adam=lambda: seeded(
        perceptron, optimizer=lambda parameters: Lookahead(torch.optim.Adam(parameters, lr=0.02))
    ),
)
