"""Models with state besides their parameters."""

from __future__ import annotations

import collections
import copy
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


@row(needs="optimizer")
def plain() -> dict[str, Any]:
    return seeded(perceptron)


@row(needs="random", accumulate={"every": 2})
def dropout() -> dict[str, Any]:
    return seeded(lambda: perceptron(nn.Dropout(0.4)))


@row(needs="model")
def batch_norm() -> dict[str, Any]:
    return seeded(lambda: perceptron(nn.BatchNorm1d(4)))


@row()
def dropout_that_is_annealed() -> dict[str, Any]:
    def step(model: Any, batch: Any) -> torch.Tensor:
        model[2].p *= 0.9
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


@row(needs="model")
def old_weight_norm() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it is deprecated, and used
        return seeded(lambda: nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2)))


@row(needs="model")
def parametrized_weight_norm() -> dict[str, Any]:
    return seeded(lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Linear(4, 2)))


@row(needs="model")
def spectral_norm() -> dict[str, Any]:
    return seeded(lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 4)), nn.Linear(4, 2)))


@row(needs="model")
def old_spectral_norm() -> dict[str, Any]:
    return seeded(lambda: nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(3, 4)), nn.Linear(4, 2)))


@row(needs="model")
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


@row(needs="model")
def pruned() -> dict[str, Any]:
    def make() -> nn.Module:
        model = perceptron()
        prune.l1_unstructured(model[0], "weight", 0.3)
        return model

    return seeded(make)


@row(needs="model")
def pruned_further_in_mid_run() -> dict[str, Any]:
    def make() -> nn.Module:
        model = perceptron()
        prune.l1_unstructured(model[0], "weight", 1)
        return model

    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        with torch.no_grad():
            model[0].weight_mask.view(-1)[step % 12] = 0
        return squared(model, batch)

    return seeded(make, training_step=step)


@row(needs="model")
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


@row(needs="model")
def tied_weights() -> dict[str, Any]:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        return model

    return seeded(make)


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
def half_precision_state() -> dict[str, Any]:
    return seeded(lambda: perceptron().bfloat16(), train_data=[batch.bfloat16() for batch in batches()])


@row(needs="optimizer")
def channels_last() -> dict[str, Any]:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)).to(memory_format=torch.channels_last)

    images = [torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(number)) for number in range(6)]
    return seeded(make, train_data=images)


@row(needs="state_dicts")
def swa_average_in_the_step_function() -> dict[str, Any]:
    resources = seeded(perceptron)
    average = torch.optim.swa_utils.AveragedModel(resources["model"])

    def step(model: Any, batch: Any) -> torch.Tensor:
        average.update_parameters(model)
        return squared(model, batch) + 0.1 * (model(batch) - average(batch).detach()).square().mean()

    return resources | {"training_step": step}


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
def hidden_state_of_two_tensors() -> dict[str, Any]:
    return seeded(Remembering)


@row()
def average_as_an_attribute() -> dict[str, Any]:
    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.average = {name: weight.detach().clone() for name, weight in self.linear.named_parameters()}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for name, weight in self.linear.named_parameters():
                self.average[name].lerp_(weight.detach(), 0.2)
            return self.linear(x) - nn.functional.linear(x, self.average["weight"], self.average["bias"]) / 2

    return seeded(Averaged)


@row()
def average_as_a_copy_that_is_exchanged() -> dict[str, Any]:
    resources = seeded(perceptron)
    copies = [copy.deepcopy(resources["model"]), copy.deepcopy(resources["model"])]

    def step(model: Any, batch: Any) -> torch.Tensor:
        copies.reverse()
        copies[0].load_state_dict(model.state_dict())
        return squared(model, batch) + squared(copies[1], batch).detach()

    return resources | {"training_step": step}


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
def attributes_of_parameters() -> dict[str, Any]:
    def make() -> nn.Module:
        model = perceptron()
        for weight in model.parameters():
            weight.age = 0
        return model

    def step(model: Any, batch: Any) -> torch.Tensor:
        for weight in model.parameters():
            weight.age += 1
        return squared(model, batch) / model[0].weight.age

    return seeded(make, training_step=step)


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


@row(needs="model")
def lazy_modules_that_the_first_batch_initialises() -> dict[str, Any]:
    return seeded(lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.Linear(4, 2)))


@row()
def compiled_model() -> dict[str, Any]:
    resources = seeded(Counting)
    return resources | {"model": torch.compile(resources["model"], backend="eager")}


@row(needs="random")
def compiled_in_place() -> dict[str, Any]:
    def make() -> nn.Module:
        model = perceptron(nn.Dropout(0.3))
        model.compile(backend="eager")
        return model

    return seeded(make)


@row()
def compiled_step_function() -> dict[str, Any]:
    seen = [0.0]
    loss = torch.compile(lambda output: output.square().mean(), backend="aot_eager")

    def step(model: Any, batch: Any) -> torch.Tensor:
        seen[0] += 1
        return loss(model(batch)) / seen[0]

    return seeded(perceptron, training_step=step)


@row()
def compiled_forward() -> dict[str, Any]:
    def make() -> nn.Module:
        model = Recurrent()
        model.forward = torch.compile(model.forward, backend="eager")
        return model

    return seeded(make)


@row()
def layers_dropped_at_random() -> dict[str, Any]:
    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
            self.used: list[int] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # A layer that was used is less likely to be used again.
            self.used = [index for index in range(3) if torch.rand(()) < (0.4 if index in self.used else 0.9)] or [0]
            for index in self.used:
                x = self.layers[index](x)
            return x

    return seeded(Dropped)


@row(requires="torchmetrics")
def metric_of_torchmetrics_in_mid_validation() -> dict[str, Any]:
    import torchmetrics

    metric, total = torchmetrics.MeanMetric(), torchmetrics.MeanSquaredError()

    def validation_step(model: Any, batch: Any) -> Any:
        loss = squared(model, batch)
        metric.update(loss)
        total.update(model(batch), torch.ones(4, 2))
        return {"loss": loss, "mean": metric.compute(), "total": total.compute()}

    return seeded(perceptron, val_data=batches(5), validation_step=validation_step)


@row(requires="torchmetrics")
def metrics_of_torchmetrics_in_a_model() -> dict[str, Any]:
    import torchmetrics

    class Measured(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.metrics = torchmetrics.MetricCollection([torchmetrics.MeanMetric(), torchmetrics.MaxMetric()])
            self.kept = torchmetrics.CatMetric()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.linear(x)
            values = self.metrics(out.detach().abs().mean())
            self.kept.update(out.detach().mean())
            return out / (1 + values["MeanMetric"] + values["MaxMetric"] + self.kept.compute().sum())

    return seeded(Measured)


@row()
def metric_with_states_as_attributes() -> dict[str, Any]:
    class Metric(nn.Module):
        """As torchmetrics keeps them: plain tensors and lists, none of them in `state_dict`."""

        def __init__(self) -> None:
            super().__init__()
            self.total = torch.zeros(())
            self.values: list[torch.Tensor] = []

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            self.total = self.total + value
            self.values.append(value)
            return self.total / len(self.values)

    metric = Metric()

    def validation_step(model: Any, batch: Any) -> Any:
        loss = squared(model, batch)
        return {"loss": loss, "mean": metric(loss.detach())}

    return seeded(perceptron, val_data=batches(5), validation_step=validation_step)
