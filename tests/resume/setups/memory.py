"""State that attributes do not show: memory of C, contexts, weak references."""

from __future__ import annotations

import array
import copy
import dataclasses
import datetime
import enum
import logging
import random
import weakref
from typing import Any

import numpy
import torch
from torch import nn

from tests.rows import perceptron, row, rows, seeded, squared, stepped


@row("is a array.array that has changed")
def array_of_python_that_grows() -> dict[str, Any]:
    losses = array.array("d")

    def update(step: int) -> float:
        losses.append(step / 2)
        return 1 + sum(losses)

    return stepped(update)


@row("is a new ReferenceType")
def keys_of_a_weak_dictionary() -> dict[str, Any]:
    calls: Any = weakref.WeakKeyDictionary()

    def step(model: Any, batch: Any) -> torch.Tensor:
        calls[model] = calls.get(model, 0) + 1
        return squared(model, batch) / calls[model]

    return seeded(perceptron, training_step=step)


@row("is a new ReferenceType")
def weak_set_that_grows() -> dict[str, Any]:
    modules = [nn.Linear(1, 1) for _ in range(40)]
    used: Any = weakref.WeakSet()

    def update(step: int) -> float:
        used.add(modules[step])
        return len(used)

    return stepped(update)


@row("SeedSequence that has changed")
def seeds_that_spawn() -> dict[str, Any]:
    seeds = numpy.random.SeedSequence(3)
    parent = numpy.random.default_rng(4)
    chain = [numpy.random.SeedSequence([5, 6])]

    def update(step: int) -> float:
        chain[0] = chain[0].spawn(2)[1]
        generators = numpy.random.default_rng(seeds.spawn(1)[0]), *parent.spawn(1), numpy.random.default_rng(chain[0])
        return sum(generator.random() for generator in generators)

    return stepped(update)


@row()
def bit_generators() -> dict[str, Any]:
    kinds = (numpy.random.MT19937, numpy.random.Philox, numpy.random.SFC64, numpy.random.PCG64)
    generators = [kind(3) for kind in kinds]
    return stepped(lambda step: 1 + sum(int(generator.random_raw()) % 100 for generator in generators))


class Counting(random.Random):
    """Draws, and counts."""

    draws = 0

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.used = 0

    def draw(self) -> float:
        self.used += 1
        return self.random() / self.used


class Handler(logging.Handler):
    """Counts what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


class Growing(nn.Module):
    """Adds a parameter to what it keeps, with the graph of all additions; as an attribute, or as a buffer."""

    def __init__(self, *, buffer: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.bias = nn.Parameter(torch.zeros(1))
        if buffer:
            self.register_buffer("total", torch.zeros(1))
        else:
            self.total = torch.zeros(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total = self.total + self.bias
        out: torch.Tensor = self.linear(x) + self.total
        return out


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * context.saved_tensors[0].new_tensor(2)


class Observed(nn.Module):
    """Keeps what it has computed, and the norm of a weight that it never trains by."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.seen: list[torch.Tensor] = []
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = Doubled.apply(self.linear(x))
        out: torch.Tensor = self.frozen(hidden)
        self.calls += 1
        self.seen = [hidden, out, self.frozen.weight.norm(), self.linear.weight.detach().norm()]
        return out / self.calls


class Parts(enum.Flag):
    A = 1
    B = 2
    C = 4


@row("cannot be saved: it is a tests.resume.setups.memory.Parts")
def flags() -> dict[str, Any]:
    state = {"on": Parts.A}

    def update(step: int) -> float:
        state["on"] = state["on"] ^ Parts.B ^ (Parts.C if step % 3 else Parts(0))
        return 1 + state["on"].value

    return stepped(update)


@dataclasses.dataclass(frozen=True, slots=True)
class Rate:
    value: float


@row()
def frozen_dataclass_with_slots() -> dict[str, Any]:
    state = {"rate": Rate(1.0), "day": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)}

    def update(step: int) -> float:
        state["rate"] = dataclasses.replace(state["rate"], value=state["rate"].value * 0.9)
        state["day"] += datetime.timedelta(days=1)
        return state["rate"].value + state["day"].day

    return stepped(update)


@row()
def step_that_is_wrapped() -> dict[str, Any]:
    resources = seeded(perceptron)
    optimizer, calls = resources["optimizer"], 0
    step = optimizer.step

    def scaled(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        for group in optimizer.param_groups:
            group["lr"] = 0.02 / calls
        return step(*arguments, **keywords)

    optimizer.step = scaled
    return resources


@row()
def hook_of_all_modules() -> dict[str, Any]:
    calls = 0

    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        nonlocal calls
        calls += 1
        return output / calls if isinstance(module, nn.Linear) else None

    nn.modules.module.register_module_forward_hook(hook)
    return seeded(perceptron)


class Inspected(nn.Module):
    """Keeps the largest of what a hook saw, and the handle of the hook."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.handle: Any = None
        self.largest: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = 0.0 if self.largest is None else self.largest.sum()
        self.handle = self.linear.register_forward_hook(self.keep)
        out: torch.Tensor = self.linear(x) + before
        self.handle.remove()
        return out

    def keep(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        self.largest = output.detach().max(1).values


class Conjugated(nn.Module):
    """Keeps a lazy conjugate, and its negative imaginary part."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.state = torch.tensor([1 + 2j, 3 - 1j]).conj()
        self.part: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.linear(x)
        self.state = (self.state / self.state.abs().max() * (1 + 1j) + out.detach().mean()).conj()
        self.part = self.state.imag
        return out * self.part.sum() + self.state.real.sum()


@row()
def average_by_the_identity_of_parameters() -> dict[str, Any]:
    resources = seeded(perceptron)
    average = {id(parameter): parameter.detach().clone() for parameter in resources["model"].parameters()}

    def step(model: Any, batch: Any) -> torch.Tensor:
        for parameter in model.parameters():
            average[id(parameter)].lerp_(parameter.detach(), 0.1)
        return squared(model, batch) + sum((part - average[id(part)]).square().sum() for part in model.parameters())

    return {**resources, "training_step": step}


@row()
def ensemble_over_a_module_without_values() -> dict[str, Any]:
    torch.manual_seed(0)
    models = [perceptron() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def called(parameters: Any, buffers: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(base, (parameters, buffers), (x,))

    def step(model: Any, batch: Any) -> torch.Tensor:
        outputs = torch.vmap(called, in_dims=(0, 0, None), randomness="different")(parameters, buffers, batch)
        return outputs.square().mean()

    optimizer = torch.optim.Adam(parameters.values(), lr=0.02)
    return {**seeded(perceptron), "optimizer": optimizer, "training_step": step}


@row()
def gradients_that_leave_their_buffer() -> dict[str, Any]:
    resources = seeded(lambda: nn.Linear(3, 1))
    model, buffer = resources["model"], torch.zeros(4)
    model.weight.grad, model.bias.grad = buffer[:3].view(1, 3), buffer[3:]

    def step(model: Any, batch: Any) -> torch.Tensor:
        return squared(model, batch) * (1 + buffer.norm())

    return {**resources, "training_step": step}


class Sample:
    """Knows how hard it was."""

    def __init__(self, number: int) -> None:
        self.number, self.hard = number, 0.0


class Samples(torch.utils.data.Dataset[Any]):
    """Many objects, which training changes."""

    def __init__(self) -> None:
        self.samples = [Sample(number) for number in range(100)]

    def __len__(self) -> int:
        return 28

    def __getitem__(self, index: int) -> torch.Tensor:
        sample = self.samples[3 * index]
        return torch.full((3,), sample.number / 50 + sample.hard)


@row("train_data has changed since the checkpoint")
def many_samples_that_change() -> dict[str, Any]:
    data = Samples()

    def step(model: Any, batch: Any) -> torch.Tensor:
        loss = squared(model, batch)
        for sample in data.samples[::3]:
            sample.hard += float(loss) / 100
        return loss

    return seeded(perceptron, training_step=step, train_data=torch.utils.data.DataLoader(data, 4))


class Weighted(torch.utils.data.Dataset[Any]):
    """An array of some size, of which training changes a few numbers."""

    def __init__(self) -> None:
        self.weights = numpy.ones(50_000)

    def __len__(self) -> int:
        return 28

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([0.5, -1.0, index % 5 - 2.0]) * float(self.weights[7 * index + 1])


@row(needs=("reachable", "data"))
def some_numbers_of_a_large_array() -> dict[str, Any]:
    data = Weighted()

    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        loss = squared(model, batch)
        data.weights[7 * (step % 28) + 1] += float(loss)
        return loss

    return seeded(perceptron, training_step=step, train_data=torch.utils.data.DataLoader(data, 4))


rows(
    "model.total keeps a graph of operations, which is not saved: detach it",
    graph_kept_from_batch_to_batch=lambda: seeded(lambda: Growing(buffer=False)),
)
rows(
    outputs_kept_after_the_backward_pass=lambda: seeded(Observed),
    hook_for_one_step=lambda: seeded(Inspected),
)
rows(
    "model.state shares memory with model.part",
    bound="both are bound again before they are used",
    lazy_conjugates=lambda: seeded(Conjugated),
)
