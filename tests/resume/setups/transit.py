"""Values in slots and batches that share memory with other state."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch import nn

from tests.rows import batches, perceptron, row, rows, seeded, squared

_WRITES: dict[str, Any] = {"writes": {"hidden": "hidden"}, "keep": ["hidden"]}


def writing(value: Any, model: Any = perceptron, **resources: Any) -> dict[str, Any]:
    """A step function that adds to its loss what it is given as `hidden`, as a number.

    Arguments:
        value: called with the former one, the loss, and the resources; returns the number and the next one.
    """

    def step(model: Any, batch: Any, hidden: Any = None) -> Any:
        loss = squared(model, batch)
        number, hidden = value(hidden, float(loss.detach()), made)
        return {"loss": loss * (1 + number / 10), "hidden": hidden}

    made = seeded(model, training_step=step, **resources)
    return made


def _first(made: dict[str, Any]) -> Any:
    return next(iter(made["model"].parameters()))


@row(stateless="its parts are read before a step changes what they share", train_batch=_WRITES)
def slot_that_is_the_state_of_an_optimizer() -> dict[str, Any]:
    def value(hidden: Any, loss: float, made: dict[str, Any]) -> Any:
        state = made["optimizer"].state.get(_first(made))
        number = float(hidden[0].abs().sum()) if hidden is not None else 0.0
        return number, [state["exp_avg"][:1], state["exp_avg"].numpy()] if state else None

    return writing(value)


@row(needs="gradients", train_batch=_WRITES, accumulate={"every": 7})
def slot_that_is_a_gradient() -> dict[str, Any]:
    def value(hidden: Any, loss: float, made: dict[str, Any]) -> Any:
        gradient = _first(made).grad
        kept = hidden if gradient is not None and hidden is not None else gradient  # until the window ends
        return (float(kept.abs().sum()) if kept is not None else 0.0), kept

    return writing(value, train_data=batches(14))


class Remembering(nn.Module):
    """Binds its buffer again in every call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("total", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += 1.0
        self.total = self.total + x.detach().sum()
        out: torch.Tensor = self.linear(x)
        return out


@row(needs="sharing", train_batch=_WRITES)
def slot_that_is_a_buffer_bound_again() -> dict[str, Any]:
    return writing(lambda hidden, loss, made: (float(hidden or 0), made["model"].total), Remembering)


class Sum:
    """Saves itself, and binds its sum again."""

    def __init__(self) -> None:
        self.total = torch.zeros(2)

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"].clone()


@row(needs="sharing", train_batch=_WRITES)
def slot_that_an_object_with_a_state_dict_holds() -> dict[str, Any]:
    meter = Sum()

    def value(hidden: Any, loss: float, made: dict[str, Any]) -> Any:
        meter.total.add_(1)
        number = float(hidden.sum()) if hidden is not None else 0.0
        meter.total = torch.full((2,), loss)
        return number, meter.total[1:]

    return writing(value)


@functools.lru_cache
def _hidden_sum() -> dict[str, torch.Tensor]:
    return {"total": torch.zeros(2)}


class OutOfReach:
    """Saves what nothing leads to."""

    def state_dict(self) -> dict[str, Any]:
        return dict(_hidden_sum())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _hidden_sum()["total"].copy_(state["total"])


@row("slots['hidden'] shares memory with", train_batch=_WRITES)
def slot_that_a_state_dict_alone_leads_to() -> dict[str, Any]:
    meter = OutOfReach()

    def value(hidden: Any, loss: float, made: dict[str, Any]) -> Any:
        total = _hidden_sum()["total"].add_(1 + loss)
        assert meter is not None
        return (float(hidden.sum()) if hidden is not None else 0.0), total[1:]

    return writing(value)


@row("shares memory with slots['hidden']", train_batch=_WRITES)
def slot_of_views_that_overlap() -> dict[str, Any]:
    def value(hidden: Any, loss: float, made: dict[str, Any]) -> Any:
        if hidden is None:
            memory, array = torch.full((4,), loss), numpy.full(4, loss)
            hidden = {"views": [memory[:3], memory[1:]], "arrays": (array[:3], array[3:0:-1], torch.from_numpy(array))}
        hidden["views"][0].add_(0.25)
        hidden["arrays"][1][:] += 0.5
        return float(hidden["views"][1].sum() + hidden["arrays"][0].sum() + hidden["arrays"][2].sum()) / 10, hidden

    return writing(value)


@row(needs="sharing", train_batch=_WRITES)
def slot_with_containers_of_a_closure() -> dict[str, Any]:
    members: set[int] = set()
    recent: collections.deque[int] = collections.deque(maxlen=9)

    def value(hidden: Any, loss: float, made: dict[str, Any]) -> Any:
        members.add(len(members))
        recent.append(len(members))
        number = len(hidden["all", 0]) + sum(hidden["all", 1]) if hidden is not None else 0
        return number / 10, {("all", 0): members, ("all", 1): recent}

    return writing(value)


@row("slots['hidden'] shares memory with", train_batch=_WRITES)
def slot_that_is_conjugated_when_it_is_read() -> dict[str, Any]:
    kept = torch.zeros(3, dtype=torch.complex64)

    def value(hidden: Any, loss: float, made: dict[str, Any]) -> Any:
        kept.add_(0.5 + 0.1j)
        return (float(hidden.imag.sum()) if hidden is not None else 0.0), kept.conj()

    return writing(value)


@row(train_batch=_WRITES)
def closure_with_an_array_over_the_state_of_an_optimizer() -> dict[str, Any]:
    kept: dict[str, Any] = {}

    def value(hidden: Any, loss: float, made: dict[str, Any]) -> Any:
        number = float(abs(kept["array"]).sum()) if kept else 0.0
        if state := made["optimizer"].state.get(_first(made)):
            kept.setdefault("array", state["exp_avg"].numpy()[:1])
        return number, None

    return writing(value)


def _changing(model: Any, batch: Any) -> torch.Tensor:
    batch *= 0.9
    return squared(model, torch.as_tensor(batch))


class WithoutLength:
    """Batches of a list, of which one is fetched ahead."""

    def __init__(self) -> None:
        self.batches = batches()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


class Rows:
    """Batches that are arrays over a tensor, and over an array in the order of Fortran."""

    def __init__(self) -> None:
        values = torch.cat(batches(8))
        self.values, self.columns = values[:16].clone(), numpy.asfortranarray(values[16:].numpy())

    def __iter__(self) -> Iterator[Any]:
        for number in range(4):
            yield self.values.numpy()[4 * number : 4 * number + 4]
            yield self.columns[4 * number : 4 * number + 4]


rows(
    needs=("sharing", "reachable"),
    batch_ahead_that_is_an_item=lambda: seeded(perceptron, training_step=_changing, train_data=WithoutLength()),
    batches_that_are_arrays_over_a_tensor=lambda: seeded(perceptron, training_step=_changing, train_data=Rows()),
)
