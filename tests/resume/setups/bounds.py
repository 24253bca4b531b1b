"""State that cannot be saved, and is reported."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch import nn

from tests.rows import perceptron, row, seeded, squared, stepped


@row("that may have changed: open it when it is read")
def open_file() -> dict[str, Any]:
    file = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open it stays
    file.writelines(f"{number}\n" for number in range(1, 60))
    file.seek(0)

    def update(step: int) -> float:
        return float(file.readline())

    return stepped(update)


@row("cannot be found by its name")
def closure_made_during_training() -> dict[str, Any]:
    state: dict[str, Any] = {"function": lambda: 1.0}

    def update(step: int) -> float:
        if step == 0:
            state["function"] = lambda: 3.0
        return state["function"]()

    return stepped(update)


class Deleted:
    def __init__(self, value: float) -> None:
        self.value = value

    def __del__(self) -> None:
        pass


@row("is a new Deleted")
def new_object_with_del() -> dict[str, Any]:
    state = [Deleted(1.0)]

    def update(step: int) -> float:
        state[0] = Deleted(state[0].value + 1)
        return state[0].value

    return stepped(update)


@row("is a new Linear")
def module_made_during_training() -> dict[str, Any]:
    state: dict[str, Any] = {"head": None}

    def step(model: Any, batch: Any) -> torch.Tensor:
        if state["head"] is None:
            state["head"] = nn.Linear(2, 2)
        return state["head"](model(batch)).square().mean()

    return seeded(perceptron, training_step=step)


@row("model.0 has other hooks than it was set up with")
def hook_registered_in_mid_run() -> dict[str, Any]:
    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        if step == 0 and not model[0]._forward_hooks:
            model[0].register_forward_hook(lambda module, inputs, output: output * 2)
        return squared(model, batch)

    return seeded(perceptron, training_step=step)


@row("model: parameters or buffers changed since `setup`: `0.weight`")
def parameter_exchanged_in_mid_run() -> dict[str, Any]:
    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        if step == 0 and not hasattr(model, "is_exchanged"):
            model[0].weight = nn.Parameter(model[0].weight.detach().clone())  # which no optimizer updates
            model.is_exchanged = True
        return squared(model, batch)

    return seeded(perceptron, training_step=step)


@row("training added attributes to it: age")
def attribute_of_a_parameter_added_in_mid_run() -> dict[str, Any]:
    def step(model: Any, batch: Any) -> torch.Tensor:
        weight = model[0].weight
        weight.age = getattr(weight, "age", 0) + 1
        return squared(model, batch) / weight.age

    return seeded(perceptron, training_step=step)


class Tagged(torch.Tensor):
    """A class of tensors of the user's own."""


@row("is a Tagged that has changed")
def tensor_of_a_class_of_its_own() -> dict[str, Any]:
    tensor = torch.ones(2).as_subclass(Tagged)

    def update(step: int) -> float:
        tensor.add_(1)
        return float(tensor.sum())

    return stepped(update)


@row("is nested more than 100 deep")
def chain_that_grows_too_deep() -> dict[str, Any]:
    state: dict[str, Any] = {"chain": None}

    def update(step: int) -> float:
        for _ in range(150):
            state["chain"] = [state["chain"]]
        length, link = 0, state["chain"]
        while link is not None:
            length, link = length + 1, link[0]
        return length / 150

    return stepped(update)
