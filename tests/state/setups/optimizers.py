"""Optimizers and schedules with state outside their `state_dict`, or shared with others."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy
import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.state.setups.models import perceptron
from tests.state.setups.rows import row, seeded, squared


def scheduled(make: Any, optimizer: Any = None) -> dict[str, Any]:
    resources = seeded(perceptron, optimizer=optimizer)
    return resources | {"scheduler": make(resources["optimizer"])}


@row(needs="optimizer")
def sgd_with_momentum() -> dict[str, Any]:
    return seeded(perceptron, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))


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
def callable_object_as_a_lambda() -> dict[str, Any]:
    class Factor:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, step: int) -> float:
            self.calls += 1
            return 1 / (1 + self.calls)

    return scheduled(lambda optimizer: lr_scheduler.LambdaLR(optimizer, Factor()))


@row(needs="scheduler")
def cosine() -> dict[str, Any]:
    return scheduled(lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 10))


@row(needs="scheduler")
def one_cycle() -> dict[str, Any]:
    return scheduled(lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30))


@row(needs="scheduler")
def cyclic() -> dict[str, Any]:
    return scheduled(
        lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=3),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    )


@row(needs="scheduler")
def warm_restarts() -> dict[str, Any]:
    return scheduled(lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3, 2))


@row(needs="scheduler")
def schedules_in_a_sequence() -> dict[str, Any]:
    def make(optimizer: Any) -> Any:
        parts = [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 4), lr_scheduler.ExponentialLR(optimizer, 0.9)]
        return lr_scheduler.SequentialLR(optimizer, parts, [4])

    return scheduled(make)


@row(needs="scheduler")
def chained_schedules() -> dict[str, Any]:
    def make(optimizer: Any) -> Any:
        parts = [lr_scheduler.ConstantLR(optimizer, 0.1, 4), lr_scheduler.ExponentialLR(optimizer, 0.9)]
        return lr_scheduler.ChainedScheduler(parts)

    return scheduled(make)


@row(needs="optimizer")
def rate_set_by_hand() -> dict[str, Any]:
    resources = seeded(perceptron)

    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        for group in resources["optimizer"].param_groups:
            group["lr"] *= math.cos(step / 20)
        return squared(model, batch)

    return resources | {"training_step": step}


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


@row()
def lookahead_around_adam() -> dict[str, Any]:
    return seeded(perceptron, optimizer=lambda parameters: Lookahead(torch.optim.Adam(parameters, lr=0.02)))


class LookaheadWithItsOwnState(Lookahead):
    """Its `state_dict` is of a form of its own, and loading it gives the inner optimizer other groups."""

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict(), "slow": list(self.slow)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        self.param_groups = self.inner.param_groups
        self.slow = [saved.clone() for saved in state["slow"]]


@row(needs=("reachable", "optimizer"))
def lookahead_with_a_state_of_its_own() -> dict[str, Any]:
    resources = seeded(
        perceptron, optimizer=lambda parameters: LookaheadWithItsOwnState(torch.optim.Adam(parameters, lr=0.02))
    )
    (group,) = resources["optimizer"].param_groups

    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        group["lr"] = 0.02 * math.cos(step / 20)
        return squared(model, batch)

    return resources | {"training_step": step}


@row()
def optimizer_with_an_attribute() -> dict[str, Any]:
    class Decaying(torch.optim.SGD):
        factor = 1.0

        def step(self, closure: Any = None) -> None:
            self.factor *= 0.9
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(self.factor)
            super().step(closure)

    return seeded(perceptron, optimizer=lambda parameters: Decaying(parameters, lr=0.1))


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
def scheduler_in_a_task_object() -> dict[str, Any]:
    resources = seeded(perceptron)

    class Task:
        def __init__(self) -> None:
            self.schedule = lr_scheduler.ExponentialLR(resources["optimizer"], 0.95)
            self.steps = 0

        def training_step(self, model: Any, batch: Any) -> torch.Tensor:
            if self.steps:
                self.schedule.step()
            self.steps += 1
            return squared(model, batch)

    return resources | {"training_step": Task().training_step}


@row(needs=("state_dicts", "reachable"))
def grad_scaler() -> dict[str, Any]:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

    def step(model: Any, batch: Any) -> torch.Tensor:
        loss = squared(model, batch)
        factor = float(scaler.scale(torch.ones(())))
        scaler.update(factor * 1.5)
        return loss * factor

    return seeded(perceptron, training_step=step)


@row(needs="optimizers")
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
def reduced_on_a_plateau_by_hand() -> dict[str, Any]:
    resources = seeded(perceptron)
    schedule = lr_scheduler.ReduceLROnPlateau(resources["optimizer"], patience=1, factor=0.7)

    def step(model: Any, batch: Any) -> torch.Tensor:
        loss = squared(model, batch)
        schedule.step(loss.item())
        return loss

    return resources | {"training_step": step}


@row(needs="state_dicts")
def schedules_in_a_list() -> dict[str, Any]:
    resources = seeded(perceptron)
    schedules = [lr_scheduler.StepLR(resources["optimizer"], 3), lr_scheduler.PolynomialLR(resources["optimizer"], 20)]

    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        if step:
            schedules[step % 2].step()
        return squared(model, batch)

    return resources | {"training_step": step}


@row(needs="optimizer")
def multiplicative_schedule() -> dict[str, Any]:
    return scheduled(lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.95))


@row(needs="scheduler")
def schedule_of_the_users_own() -> dict[str, Any]:
    class Own(lr_scheduler.LRScheduler):
        def __init__(self, optimizer: Any) -> None:
            self.drawn = [1]
            super().__init__(optimizer)

        def get_lr(self) -> list[float]:
            self.drawn.append(self.drawn[-1] * 75 % 65537)
            noise = self.drawn[-1] / 65537
            return [0.01 * (1 + noise) for _ in self.optimizer.param_groups]

    return scheduled(Own)


@row(needs="optimizer")
def amsgrad_with_groups() -> dict[str, Any]:
    resources = seeded(perceptron)
    model = resources["model"]
    groups = [
        {"params": model[0].parameters(), "lr": 0.01, "name": "first"},
        {"params": model[2].parameters(), "lr": 0.02, "weight_decay": 0.1},
    ]
    return resources | {"optimizer": torch.optim.AdamW(groups, amsgrad=True)}


@row(needs="optimizer")
def momentum_of_an_optimizer_that_is_changed() -> dict[str, Any]:
    resources = seeded(perceptron, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5))

    def step(model: Any, batch: Any) -> torch.Tensor:
        for group in resources["optimizer"].param_groups:
            group["momentum"] = min(0.9, group["momentum"] + 0.02)
        return squared(model, batch)

    return resources | {"training_step": step}


@row()
def hook_of_an_optimizer() -> dict[str, Any]:
    resources = seeded(perceptron)
    calls = [0]

    def after(optimizer: Any, *arguments: Any) -> None:
        calls[0] += 1
        for group in optimizer.param_groups:
            group["lr"] = 0.02 / calls[0]

    resources["optimizer"].register_step_post_hook(after)
    return resources


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


@row(needs="state_dicts")
def two_models_two_optimizers_in_an_object() -> dict[str, Any]:
    class Adversarial:
        def __init__(self) -> None:
            self.critic = nn.Linear(2, 1)
            self.optimizer = torch.optim.RMSprop(self.critic.parameters(), lr=0.01)
            self.turn = 0

        def training_step(self, model: Any, batch: Any) -> torch.Tensor:
            self.turn += 1
            out = model(batch)
            if self.turn % 2:
                self.optimizer.zero_grad()
                self.critic(out.detach()).square().mean().backward()
                self.optimizer.step()
            return self.critic(out).square().mean() + out.square().mean()

    resources = seeded(perceptron)
    return resources | {"training_step": Adversarial().training_step}


@row(needs="state_dicts")
def optimizers_in_a_dictionary() -> dict[str, Any]:
    resources = seeded(perceptron)
    scales = {"a": nn.Parameter(torch.ones(())), "b": nn.Parameter(torch.ones(()))}
    optimizers = {name: torch.optim.Adagrad([scale], lr=0.1) for name, scale in scales.items()}

    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        name = "ab"[step % 2]
        optimizers[name].zero_grad()
        (scales[name] * float(batch.mean()) - 1).square().backward()
        optimizers[name].step()
        return squared(model, batch) * scales["a"].detach() * scales["b"].detach()

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


def many_scales(count: int) -> nn.Module:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.scales = nn.ParameterList(nn.Parameter(torch.ones(())) for _ in range(count))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) * self.scales[0] * self.scales[-1]

    return Scaled()


@row(needs="optimizer")
def group_of_many_parameters() -> dict[str, Any]:
    return seeded(lambda: many_scales(1_500))


@row(needs="optimizer")
def list_of_many_parameters() -> dict[str, Any]:
    resources = seeded(lambda: many_scales(1_200))
    parameters = list(resources["model"].parameters())

    def step(model: Any, batch: Any) -> torch.Tensor:
        return squared(model, batch) + 1e-3 * sum(parameter.square() for parameter in parameters[-5:])

    return resources | {"training_step": step}


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
