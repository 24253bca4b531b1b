"""Modules with state besides their parameters."""

from __future__ import annotations

import collections
import warnings
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.rows import batches, perceptron, row, rows, seeded, squared


class Counting(nn.Module):
    """Counts its calls, and uses the count."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x) / (1 + self.calls)


class Recurrent(nn.Module):
    """Carries its hidden state from batch to batch."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(3, 3, batch_first=True)
        self.hidden: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, hidden = self.cell(x[:, None], self.hidden)
        self.hidden = hidden.detach()
        return out


class Replay(nn.Module):
    """Mixes in what it has seen before."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.memory: collections.deque[torch.Tensor] = collections.deque(maxlen=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.memory.append(x.mean(0))
        return self.linear(x + torch.stack(list(self.memory)).mean(0))


class Slotted:
    """State in `__slots__`."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0.0


class Scaled(nn.Module):
    """Divides by a running total of a helper object."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.helper = Slotted()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.helper.total += float(x.abs().mean())
        return self.linear(x) / self.helper.total


class NoisyView(nn.Module):
    """A buffer that is not persistent, a view of it, and a tensor that is no buffer at all."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("noise", torch.zeros(2, 3), persistent=False)
        self.row = self.noise[0]
        self.plain = torch.zeros(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.row += 0.1
            self.plain.data += x.mean(0)
        return self.linear(x + self.noise.sum(0) + self.plain)


class Forgetful(nn.Module):
    """`__getattr__` that raises for everything it does not know, and a property that computes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.seen = 0

    @property
    def expensive(self) -> float:
        raise AssertionError("nobody asked for it")

    def __getattr__(self, name: str) -> Any:
        if name in ("_modules", "_parameters", "_buffers") or name in self.__dict__.get("_modules", {}):
            return super().__getattr__(name)
        raise AttributeError(f"no {name} here")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.linear(x) / self.seen


@row(needs="random", accumulate={"every": 2})
def dropout() -> dict[str, Any]:
    return seeded(lambda: perceptron(nn.Dropout(0.4)))


@row()
def momentum_of_batch_norm_that_is_annealed() -> dict[str, Any]:
    def step(model: Any, batch: Any) -> torch.Tensor:
        model[2].momentum *= 0.9
        return squared(model, batch)

    return seeded(lambda: perceptron(nn.BatchNorm1d(4)), training_step=step)


@row(needs="model")
def old_weight_norm() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it is deprecated, and used
        return seeded(lambda: nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2)))


@row()
def one_module_under_two_names() -> dict[str, Any]:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = self.first
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.second(self.first(x)) / self.calls

    return seeded(Tied)


@row(needs="modules")
def frozen_and_released_in_mid_run() -> dict[str, Any]:
    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        if step in (2, 9):
            model[0].weight.requires_grad_(step == 9)
        return squared(model, batch)

    return seeded(perceptron, training_step=step)


@row()
def hooks_with_state() -> dict[str, Any]:
    class Smoothing:
        def __init__(self) -> None:
            self.mean = 0.0

        def __call__(self, module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            self.mean = 0.9 * self.mean + 0.1 * float(output.detach().mean())
            return output - self.mean

    def make() -> nn.Module:
        model = perceptron()
        model[0].register_forward_hook(Smoothing())
        return model

    return seeded(make)


@row(needs=("gradients", "reachable"), accumulate={"every": 2}, zero_grad={"set_to_none": False})
def flat_gradient_buffer() -> dict[str, Any]:
    def make() -> nn.Module:
        model = perceptron()
        flat = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
        start = 0
        for parameter in model.parameters():
            parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        model.flat = flat
        return model

    def step(model: Any, batch: Any) -> torch.Tensor:
        return squared(model, batch) * (1 + model.flat.abs().mean())

    return seeded(make, training_step=step, train_data=batches(10))


@row(needs="optimizer")
def channels_last() -> dict[str, Any]:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)).to(memory_format=torch.channels_last)

    images = [torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(number)) for number in range(6)]
    return seeded(make, train_data=images)


@row(needs="state_dicts")
def teacher_in_a_closure() -> dict[str, Any]:
    resources = seeded(perceptron)
    teacher = perceptron()

    def step(model: Any, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        return (model(batch) - teacher(batch).detach()).square().mean()

    return resources | {"training_step": step}


class Remembering(nn.Module):
    """A hidden state of two tensors, a buffer that is bound again and again, and one that is empty at first."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(3, 3, batch_first=True)
        self.hidden: tuple[torch.Tensor, torch.Tensor] | None = None
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("first", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, (hidden, cell) = self.cell(x[:, None], self.hidden)
        self.hidden = hidden.detach(), cell.detach()
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        if self.first is None:
            self.first = x.mean(0)
        return out[:, 0] + self.mean + self.first


@row()
def running_mean_written_through_data() -> dict[str, Any]:
    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.statistics = [torch.zeros(3), torch.ones(3)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.statistics[0].data.mul_(0.9).add_(x.mean(0))
            self.statistics[1].data = self.statistics[1] + 1
            return self.linear(x - self.statistics[0] / self.statistics[1])

    return seeded(Running)


@row()
def hook_of_a_parameter() -> dict[str, Any]:
    def make() -> nn.Module:
        model, calls = perceptron(), [0]

        def scale(gradient: torch.Tensor) -> torch.Tensor:
            calls[0] += 1
            return gradient / calls[0]

        model[0].weight.register_hook(scale)
        return model

    return seeded(make)


@row()
def compiled_model() -> dict[str, Any]:
    resources = seeded(Counting)
    return resources | {"model": torch.compile(resources["model"], backend="eager")}


rows(
    needs="optimizer",
    plain=lambda: seeded(perceptron),
)
rows(
    needs="model",
    batch_norm=lambda: seeded(lambda: perceptron(nn.BatchNorm1d(4))),
    spectral_norm=lambda: seeded(
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 4)), nn.Linear(4, 2))
    ),
    lazy_modules_that_the_first_batch_initialises=lambda: seeded(
        lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2))
    ),
)
rows(
    counter_in_forward=lambda: seeded(Counting),
    hidden_state=lambda: seeded(Recurrent),
    replay_buffer_in_a_model=lambda: seeded(Replay),
    view_of_a_buffer_that_is_not_persistent=lambda: seeded(NoisyView),
    getattr_that_raises=lambda: seeded(Forgetful),
    hidden_state_of_two_tensors=lambda: seeded(Remembering),
)
