"""Models with state beside their parameters."""

from __future__ import annotations

import collections
import warnings
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from tests.state.setups.rows import batches, row, seeded, squared


def perceptron(*further: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), *further, nn.Linear(4, 2))


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


class WithGraph(nn.Module):
    """Keeps its last output, with its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = 1.0 if self.last is None else 1 + self.last.detach().abs().mean()
        self.last = self.linear(x) * scale
        return self.last


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


@row()
def plain() -> dict[str, Any]:
    return seeded(perceptron)


@row(accumulate={"every": 2})
def dropout() -> dict[str, Any]:
    return seeded(lambda: perceptron(nn.Dropout(0.4)))


@row()
def batch_norm() -> dict[str, Any]:
    return seeded(lambda: perceptron(nn.BatchNorm1d(4)))


@row()
def dropout_that_is_annealed() -> dict[str, Any]:
    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        model[2].p = 0.5 / (1 + step)
        return squared(model, batch)

    return seeded(lambda: perceptron(nn.Dropout(0.5)), training_step=step)


@row()
def momentum_of_batch_norm_that_is_annealed() -> dict[str, Any]:
    def step(model: Any, batch: Any) -> torch.Tensor:
        model[2].momentum *= 0.9
        return squared(model, batch)

    return seeded(lambda: perceptron(nn.BatchNorm1d(4)), training_step=step)


@row()
def counter_in_forward() -> dict[str, Any]:
    return seeded(Counting)


@row()
def hidden_state() -> dict[str, Any]:
    return seeded(Recurrent)


@row()
def replay_buffer_in_a_model() -> dict[str, Any]:
    return seeded(Replay)


@row()
def output_kept_with_its_graph() -> dict[str, Any]:
    return seeded(WithGraph)


@row()
def slots_of_a_helper() -> dict[str, Any]:
    return seeded(Scaled)


@row()
def view_of_a_buffer_that_is_not_persistent() -> dict[str, Any]:
    return seeded(NoisyView)


@row()
def getattr_that_raises() -> dict[str, Any]:
    return seeded(Forgetful)


@row()
def old_weight_norm() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it is deprecated, and used
        return seeded(lambda: nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2)))


@row()
def parametrized_weight_norm() -> dict[str, Any]:
    return seeded(lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2)))


@row()
def spectral_norm() -> dict[str, Any]:
    return seeded(lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 4)), nn.Linear(4, 2)))


@row()
def old_spectral_norm() -> dict[str, Any]:
    return seeded(lambda: nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(3, 4)), nn.Linear(4, 2)))


@row()
def orthogonal_parametrization() -> dict[str, Any]:
    return seeded(lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(3, 4)), nn.Linear(4, 2)))


@row()
def own_parametrization_with_a_counter() -> dict[str, Any]:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return weight * (1 + self.calls / 100)

    def make() -> nn.Module:
        model = nn.Linear(3, 2)
        parametrize.register_parametrization(model, "weight", Growing())
        return model

    return seeded(make)


@row()
def pruned() -> dict[str, Any]:
    def make() -> nn.Module:
        model = perceptron()
        prune.l1_unstructured(model[0], "weight", 0.3)
        return model

    return seeded(make)


@row()
def pruned_further_in_mid_run() -> dict[str, Any]:
    def make() -> nn.Module:
        model = perceptron()
        prune.l1_unstructured(model[0], "weight", 1)
        return model

    def step(model: Any, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            model[0].weight_mask[0, 0] = 0
        return squared(model, batch)

    return seeded(make, training_step=step)


@row()
def lazy_modules() -> dict[str, Any]:
    def make() -> nn.Module:
        model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2))
        model(torch.zeros(1, 3))
        return model

    return seeded(make)


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


@row()
def tied_weights() -> dict[str, Any]:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        return model

    return seeded(make)


@row()
def frozen_and_released_in_mid_run() -> dict[str, Any]:
    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        model[0].weight.requires_grad_(step > 3)
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


@row(zero_grad={"set_to_none": False})
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

    return seeded(make, training_step=step)


@row()
def half_precision_state() -> dict[str, Any]:
    return seeded(lambda: perceptron().bfloat16(), train_data=[batch.bfloat16() for batch in batches()])


@row()
def channels_last() -> dict[str, Any]:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)).to(memory_format=torch.channels_last)

    images = [torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(number)) for number in range(6)]
    return seeded(make, train_data=images)


@row()
def swa_average_in_the_step_function() -> dict[str, Any]:
    resources = seeded(perceptron)
    average = torch.optim.swa_utils.AveragedModel(resources["model"])

    def step(model: Any, batch: Any) -> torch.Tensor:
        average.update_parameters(model)
        return squared(model, batch) + 0.1 * (model(batch) - average(batch).detach()).square().mean()

    return resources | {"training_step": step}


@row()
def teacher_in_a_closure() -> dict[str, Any]:
    resources = seeded(perceptron)
    teacher = perceptron()

    def step(model: Any, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
        return (model(batch) - teacher(batch).detach()).square().mean()

    return resources | {"training_step": step}
