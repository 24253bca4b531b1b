"""Views and aliases, and objects that change their class or code."""

from __future__ import annotations

import copy
import functools
import itertools
import queue
import random
from typing import Any

import numpy
import torch

from tests.rows import batches, row, rows, seeded, squared, stepped


@row()
def bound_method_of_a_generator() -> dict[str, Any]:
    draw = random.Random(3).random
    return stepped(lambda step: 1 + draw())


@row()
def cached_function_that_draws() -> dict[str, Any]:
    generator = random.Random(4)

    @functools.cache
    def drawn(step: int) -> float:
        return 1 + generator.random()

    return stepped(drawn)


class Counted(itertools.count):  # type: ignore[type-arg]
    """A count with a name."""


@row("Counted that may have changed")
def count_of_the_users_own() -> dict[str, Any]:
    counted = Counted(1)
    return stepped(lambda step: next(counted))


@row()
def keywords_of_a_partial() -> dict[str, Any]:
    scaled = functools.partial(lambda factor: factor, factor=1)

    def update(step: int) -> float:
        scaled.keywords["factor"] += 1
        return scaled()

    return stepped(update)


@row("bytearray that has changed")
def view_of_bytes() -> dict[str, Any]:
    view = memoryview(bytearray(1))

    def update(step: int) -> float:
        view[0] += 1
        return view[0]

    return stepped(update)


@row()
def array_behind_a_read_only_view() -> dict[str, Any]:
    view = numpy.broadcast_to(numpy.ones(1), (3,))

    def update(step: int) -> float:
        base: Any = view.base
        base += 1
        return float(view.sum())

    return stepped(update)


@row("SimpleQueue, where changes are not looked for")
def queue_in_c() -> dict[str, Any]:
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()

    def update(step: int) -> float:
        waiting.put(step)
        return waiting.qsize()

    return stepped(update)


class Cold:
    factor = 1.0


class Hot(Cold):
    factor = 2.0


@row("has another class or other code now")
def class_of_an_object_that_is_exchanged() -> dict[str, Any]:
    state = Cold()

    def update(step: int) -> float:
        if step == 2:
            state.__class__ = Hot
        return state.factor

    return stepped(update)


@row("is a set in an order that is not saved")
def numbers_in_the_order_of_a_set() -> dict[str, Any]:
    numbers: set[int] = set()

    def update(step: int) -> float:
        if step == 1:
            numbers.update(range(40))  # from now on in a larger table
            numbers.difference_update({*range(40)} - {33, 8, 17})
        return 1 + next(iter(numbers), 0)

    return stepped(update)


class Running:
    """Its loading binds other objects."""

    def __init__(self) -> None:
        self.mean, self.seen = torch.zeros(()), {"batches": [0]}

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.seen = state["mean"], state["seen"]


@row(needs=("reachable", "state_dicts"))
def tensor_and_list_that_loading_binds_again() -> dict[str, Any]:
    running = Running()
    mean, seen = running.mean, running.seen["batches"]

    def update(step: int) -> float:
        running.mean.add_(0.5)
        running.seen["batches"].append(step)
        return float(mean) + len(seen)

    return stepped(update)


class Rounding(torch.nn.Sequential):
    def state_dict(self, *args: Any, **options: Any) -> Any:
        return {name: tensor.half() for name, tensor in super().state_dict(*args, **options).items()}


class Descent(torch.optim.Optimizer):
    """Descent whose state `prepare` makes, at once or at its first step."""

    def __init__(self, parameters: Any, prepare: Any, *, at_once: bool = False) -> None:
        super().__init__(parameters, {"lr": 0.05})
        self.prepare, self.total = prepare, torch.zeros(())
        if at_once:
            self.make()

    def make(self) -> None:
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            self.state[parameter].update(self.prepare(self, parameter, number))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        if not self.state:
            self.make()
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["first"].mul_(0.9).add_(parameter.grad.sum())
            parameter.sub_(0.01 * parameter.grad * (1 + state["second"].sum()))


def descent(prepare: Any, **options: Any) -> dict[str, Any]:
    def perceptron() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    return seeded(perceptron, optimizer=lambda parameters: Descent(parameters, prepare, **options))


@row(needs=("reachable", "optimizer"))
def state_of_an_optimizer_in_one_buffer_from_the_beginning() -> dict[str, Any]:
    flat = torch.zeros(4, 2)
    return descent(lambda own, parameter, number: {"first": flat[number, :1], "second": flat[number]}, at_once=True)


@row("shares memory with optimizer.state[0]")
def views_in_the_state_of_an_optimizer() -> dict[str, Any]:
    def prepare(own: Any, parameter: torch.Tensor, number: int) -> dict[str, Any]:
        both = torch.zeros(2)
        return {"first": both[:1], "second": both}

    return descent(prepare)


class Plain(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 1)


@row()
def kept_copies_of_the_state_of_an_optimizer() -> dict[str, Any]:
    resources = seeded(Plain, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.05))
    optimizer, kept = resources["optimizer"], []

    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        kept.append(copy.deepcopy(optimizer.state_dict()))
        if step % 5 == 4:
            optimizer.load_state_dict(kept[step // 2])
        return squared(model, batch)

    return {**resources, "training_step": step}


@row(stateless="training does not change it: a resume that loads it must not take its views for changed")
def data_that_views_a_buffer_of_the_model() -> dict[str, Any]:
    data = torch.cat(batches())
    resources = seeded(Plain)
    resources["model"].register_buffer("seen", data)
    return {**resources, "train_data": [*data.split(4)]}


rows(
    needs="modules",
    weights_that_a_state_dict_rounds=lambda: seeded(
        lambda: Rounding(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    ),
)
