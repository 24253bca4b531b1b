"""What cannot be saved, and is reported: positions, new code, other structure, and what is beyond a bound."""

from __future__ import annotations

import itertools
import math
import tempfile
from typing import Any

import numpy
import torch
from torch import nn

from tests.state.setups.containers import Node, stepped
from tests.state.setups.models import perceptron
from tests.state.setups.rows import row, seeded, squared


@row("training_step<update><numbers> is an iterator (count)")
def count_of_itertools() -> dict[str, Any]:
    numbers = itertools.count(1)

    def update(step: int) -> float:
        return next(numbers)

    return stepped(update)


@row("is an iterator (list_iterator)")
def iterator_over_a_list() -> dict[str, Any]:
    values = iter([1.0 / number for number in range(1, 60)])

    def update(step: int) -> float:
        return next(values)

    return stepped(update)


@row("is an iterator (_SingleProcessDataLoaderIter)")
def iterator_over_a_loader() -> dict[str, Any]:
    class Task:
        def __init__(self) -> None:
            self.further = iter(torch.utils.data.DataLoader(list(range(100)), shuffle=True))

        def update(self, step: int) -> float:
            return 1 + float(next(self.further))

    return stepped(Task().update)


@row("is an open file, whose position is not saved")
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


@row("is a new builtin_function_or_method")
def function_of_a_library_that_is_exchanged() -> dict[str, Any]:
    state: dict[str, Any] = {"function": math.cos}

    def update(step: int) -> float:
        if step == 0:
            state["function"] = math.exp
        return state["function"](0.5)

    return stepped(update)


class Reduced:
    def __init__(self, value: float) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return Reduced, (self.value,)


class Deleted:
    def __init__(self, value: float) -> None:
        self.value = value

    def __del__(self) -> None:
        pass


@row("is a new Reduced, which cannot be saved")
def new_object_with_reduce() -> dict[str, Any]:
    state = [Reduced(1.0)]

    def update(step: int) -> float:
        state[0] = Reduced(state[0].value + 1)
        return state[0].value

    return stepped(update)


@row("is a new Deleted, which cannot be saved")
def new_object_with_del() -> dict[str, Any]:
    state = [Deleted(1.0)]

    def update(step: int) -> float:
        state[0] = Deleted(state[0].value + 1)
        return state[0].value

    return stepped(update)


@row("<locals>.Local, which cannot be saved")
def new_object_of_a_local_class() -> dict[str, Any]:
    class Local:
        def __init__(self, value: float) -> None:
            self.value = value

    state = [Local(1.0)]

    def update(step: int) -> float:
        state[0] = Local(state[0].value + 1)
        return state[0].value

    return stepped(update)


@row("is a new Linear, which cannot be saved")
def module_made_during_training() -> dict[str, Any]:
    state: dict[str, Any] = {"head": None}

    def step(model: Any, batch: Any) -> torch.Tensor:
        if state["head"] is None:
            state["head"] = nn.Linear(2, 2)
        return state["head"](model(batch)).square().mean()

    return seeded(perceptron, training_step=step)


@row("model has other submodules than it was set up with")
def submodule_added_in_mid_run() -> dict[str, Any]:
    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        if step == 0 and len(model) == 3:
            model.append(nn.Tanh())
        return squared(model, batch)

    return seeded(perceptron, training_step=step)


@row("model.0 has other hooks than it was set up with")
def hook_registered_in_mid_run() -> dict[str, Any]:
    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        if step == 0 and not model[0]._forward_hooks:
            model[0].register_forward_hook(lambda module, inputs, output: output * 2)
        return squared(model, batch)

    return seeded(perceptron, training_step=step)


@row("model: parameters changed since `setup`: `0.weight`")
def parameter_exchanged_in_mid_run() -> dict[str, Any]:
    def step(model: Any, batch: Any, step: int) -> torch.Tensor:
        if step == 0 and not hasattr(model, "is_exchanged"):
            model[0].weight = nn.Parameter(model[0].weight.detach().clone())  # which no optimizer updates
            model.is_exchanged = True
        return squared(model, batch)

    return seeded(perceptron, training_step=step)


@row("was given attributes: age")
def attribute_of_a_parameter_added_in_mid_run() -> dict[str, Any]:
    def step(model: Any, batch: Any) -> torch.Tensor:
        weight = model[0].weight
        weight.age = getattr(weight, "age", 0) + 1
        return squared(model, batch) / weight.age

    return seeded(perceptron, training_step=step)


@row("is a set of objects, in which changes are not looked for")
def set_of_objects() -> dict[str, Any]:
    nodes = {Node(1, None), Node(2, None)}

    def update(step: int) -> float:
        for node in nodes:
            node.value += 1
        return sum(node.value for node in nodes)

    return stepped(update)


@row("is an array of objects that has changed")
def array_of_objects() -> dict[str, Any]:
    array = numpy.array([1, "a"], dtype=object)

    def update(step: int) -> float:
        array[0] += 1
        return array[0]

    return stepped(update)


@row("is a MaskedArray that has changed")
def masked_array() -> dict[str, Any]:
    array = numpy.ma.masked_less(numpy.arange(4.0), 2)

    def update(step: int) -> float:
        array[3] += 1
        return float(array.sum())

    return stepped(update)


class Tagged(torch.Tensor):
    """A class of tensors of the user's own."""


@row("is a Tagged that has changed")
def tensor_of_a_class_of_its_own() -> dict[str, Any]:
    tensor = torch.ones(2).as_subclass(Tagged)

    def update(step: int) -> float:
        tensor.add_(1)
        return float(tensor.sum())

    return stepped(update)


@row("more than 200,000 objects are reachable")
def too_many_objects() -> dict[str, Any]:
    table = [[[number] for number in range(900)] for _ in range(240)]

    def update(step: int) -> float:
        table[239][899][0] += 1
        return 1 + table[239][899][0] / 1000

    return stepped(update)


@row("is nested more than 500 deep")
def too_deep() -> dict[str, Any]:
    innermost: list[Any] = [1]
    nested = innermost
    for _ in range(600):
        nested = [nested]

    def update(step: int) -> float:
        inner = nested
        while isinstance(inner[0], list):
            inner = inner[0]
        inner[0] += 1
        return inner[0]

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


@row("has 150,", bound="only some of the items are compared")
def very_long_list() -> dict[str, Any]:
    values = [0.5] * 150_000

    def update(step: int) -> float:
        return 1 + values[step]

    return stepped(update)


@row("items and has changed: too many to be saved")
def very_long_list_that_grows() -> dict[str, Any]:
    values = [0.5] * 150_000

    def update(step: int) -> float:
        values.append(1.0)
        return len(values) - 150_000

    return stepped(update)


@row("has 1,500 items, in which changes are not looked for")
def many_tensors_in_a_list() -> dict[str, Any]:
    bank = [torch.ones(1) for _ in range(1_500)]

    def update(step: int) -> float:
        bank[3].add_(1)
        return float(bank[3])

    return stepped(update)


@row("beyond the 256 MiB")
def too_many_bytes() -> dict[str, Any]:
    state = {"wide": torch.ones(1).expand(10)}

    def update(step: int) -> float:
        state["wide"] = (state["wide"][:1].clone() + 1).expand(70_000_000)
        return float(state["wide"][0])

    return stepped(update)


@row(needs="state_dicts")
def many_tensors_with_a_state_dict() -> dict[str, Any]:
    class Bank:
        def __init__(self) -> None:
            self.tensors = [torch.ones(1) for _ in range(1_500)]

        def state_dict(self) -> dict[str, Any]:
            return {"tensors": torch.cat(self.tensors)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.tensors[:] = list(state["tensors"].split(1))

    bank = Bank()

    def update(step: int) -> float:
        bank.tensors[3] = bank.tensors[3] + 1
        return float(bank.tensors[3])

    return stepped(update)
