"""Containers, and the identity of their items."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
from typing import Any

import numpy
import torch

from tests.rows import Node, perceptron, row, seeded, squared, stepped


@dataclasses.dataclass(slots=True)
class WithSlots:
    total: float = 0.0
    seen: list[int] = dataclasses.field(default_factory=list)


class Private:
    __slots__ = ("__count", "__dict__")

    def __init__(self) -> None:
        self.__count = 0
        self.further = 1

    def next(self) -> int:
        self.__count += 1
        self.further += self.__count
        return self.further


@row()
def private_slots() -> dict[str, Any]:
    private = Private()
    return stepped(lambda step: private.next())


@row()
def dictionaries_of_many_kinds() -> dict[str, Any]:
    groups: dict[str, list[int]] = collections.defaultdict(list)
    counts: collections.Counter[str] = collections.Counter()
    ordered = collections.OrderedDict(a=1, b=2, c=3)

    def update(step: int) -> float:
        groups["even" if step % 2 else "odd"].append(step)
        counts.update("ab" if step % 3 else "b")
        ordered.move_to_end(next(iter(ordered)))
        ordered["d"] = ordered.pop("d", 0) + 1
        first = next(iter(ordered.values()))
        return len(groups["odd"]) + len(groups["even"]) * 2 + counts["a"] + counts["missing"] + first

    return stepped(update)


class History(list[float]):
    """A list with attributes, and with methods of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.best = 0.0

    def __iter__(self) -> Any:
        raise AssertionError("nobody iterates over it")

    def append(self, value: float) -> None:
        super().append(value)
        self.best = max(self.best, value)


@row()
def list_with_attributes() -> dict[str, Any]:
    history = History()

    def update(step: int) -> float:
        history.append(float(step % 5))
        return history.best + len(history)

    return stepped(update)


class Cache(dict[str, float]):
    """A dictionary that changes what is put in."""

    def __setitem__(self, key: str, value: float) -> None:
        super().__setitem__(key, value + 1)

    def update(self, *arguments: Any, **keywords: Any) -> None:
        raise AssertionError("nobody calls it")


@row()
def dictionary_that_changes_what_is_put_in() -> dict[str, Any]:
    cache = Cache()

    def update(step: int) -> float:
        cache[f"a{step % 4}"] = step
        return sum(cache.values())

    return stepped(update)


@row()
def numbers_that_are_taken_from_a_set() -> dict[str, Any]:
    remaining = set(range(0, 400, 7))

    def update(step: int) -> float:
        remaining.discard(step * 7)
        return 1 + remaining.pop() / 100 + list(remaining)[3] / 100

    return stepped(update)


class Mode(enum.Enum):
    WARM = 1
    HOT = 2


class Flags(enum.Flag):
    A = 1
    B = 2


@row()
def members_of_enumerations() -> dict[str, Any]:
    state: dict[Any, Any] = {"mode": Mode.WARM, "flags": Flags.A, Mode.WARM: 1}

    def update(step: int) -> float:
        if step > 4:
            state["mode"], state["flags"] = Mode.HOT, Flags.B
        state[state["mode"]] = step
        return 1 + state["mode"].value + state["flags"].value + state[Mode.WARM]

    return stepped(update)


def scaled(factor: torch.Tensor, offset: float, value: float) -> float:
    return float(factor) * value + offset


@row("is a new partial")
def partial_with_a_tensor() -> dict[str, Any]:
    state = {"function": functools.partial(scaled, torch.ones(()), 0.0)}

    def update(step: int) -> float:
        factor, offset = state["function"].args
        factor.mul_(0.95)
        if step % 3 == 0:
            state["function"] = functools.partial(scaled, factor + 0.1, offset + 1)
        return state["function"](2.0)

    return stepped(update)


@row()
def zero_with_a_sign_and_nan() -> dict[str, Any]:
    state: dict[str, Any] = {"a": 0.0, "b": complex(0.0, 0.0), "c": numpy.float32(0), "d": float("nan"), "e": 1}

    def update(step: int) -> float:
        if step == 2:
            state.update(a=-0.0, b=complex(0.0, -0.0), c=numpy.float32(-0.0), d=1.0, e=True)
        signs = [numpy.copysign(1, state["a"]), numpy.copysign(1, state["b"].imag), numpy.copysign(1, state["c"])]
        return 5 + sum(signs) + (0 if state["d"] == 1 else 1) + (0.5 if state["e"] is True else 0)

    return stepped(update)


@row()
def objects_that_refer_to_each_other() -> dict[str, Any]:
    state: dict[str, Any] = {"last": Node(0, None)}

    def update(step: int) -> float:
        state["last"] = Node(step, state["last"])
        node, total = state["last"], 0
        while node.before is not None:
            assert node.before.after is node
            total, node = total + node.value, node.before
        return 1 + total

    return stepped(update)


@row()
def attributes_added_and_deleted() -> dict[str, Any]:
    class Changing:
        def __init__(self) -> None:
            self.first: Any = [1]

        def update(self, step: int) -> float:
            if step == 2:
                del self.first
            if step == 5:
                self.second = {"a": (1, 2)}
            return 1 + hasattr(self, "first") + 2 * hasattr(self, "second")

    return stepped(Changing().update)


@row()
def views_of_arrays() -> dict[str, Any]:
    class Window:
        def __init__(self) -> None:
            self.buffer = numpy.zeros((4, 6))
            self.window = self.buffer[0]
            self.turned = self.buffer.T

        def update(self, step: int) -> float:
            self.window += 1
            self.window = self.buffer[step % 4, 1:5:2]
            self.buffer[:, 1] += 0.5
            return 1 + float(self.window.sum()) + float(self.turned[1].sum())

    return stepped(Window().update)


@row()
def views_of_tensors() -> dict[str, Any]:
    class Window:
        def __init__(self) -> None:
            self.buffer = torch.zeros(40, 12)
            self.column = self.buffer[:, 3]
            self.wide = torch.ones(1).expand(4, 4)
            self.windows = torch.zeros(6).unfold(0, 3, 1)
            self.window = self.buffer[0]

        def update(self, step: int) -> float:
            self.column += 1
            self.window = self.buffer[step % 4, 1:5]
            self.window.mul_(1.1)
            self.windows[0, 0] += 1
            self.buffer[:, 3] += 0.5
            return 1 + float(self.window.sum()) + float(self.column[0]) + float(self.windows.sum() + self.wide.sum())

    return stepped(Window().update)


@row()
def tensors_of_many_types() -> dict[str, Any]:
    class Types:
        def __init__(self) -> None:
            self.complex = torch.ones(2, dtype=torch.complex64)
            self.half = torch.ones(2, dtype=torch.bfloat16)
            self.sparse = torch.eye(3).to_sparse()
            self.constant = torch.eye(3).to_sparse_csr()
            self.flags = torch.zeros(3, dtype=torch.bool)
            self.empty = torch.zeros(0, 3)

        def update(self, step: int) -> float:
            self.complex *= 1 + 0.1j
            self.half += 0.25
            self.sparse.mul_(1.1)
            self.sparse = self.sparse + torch.eye(3).to_sparse() if step == 6 else self.sparse
            self.flags[step % 3] ^= True
            self.empty = torch.zeros(0, step)
            parts = [self.complex.abs().sum(), self.half.sum(), self.sparse.to_dense().sum(), self.flags.sum()]
            return 1 + float(sum(map(float, parts))) + self.empty.shape[1] + float(self.constant.to_dense().sum())

    return stepped(Types().update)


@row()
def arrays_of_many_types() -> dict[str, Any]:
    class Arrays:
        def __init__(self) -> None:
            self.record = numpy.zeros(2, dtype=[("a", "i4"), ("b", "f8")])
            self.text = numpy.array(["a", "b"])
            self.turned = numpy.asfortranarray(numpy.ones((2, 3)))
            self.objects = numpy.array([1, "a"], dtype=object)
            self.masked = numpy.ma.masked_less(numpy.arange(4), 2)

        def update(self, step: int) -> float:
            self.record["b"] += 0.5
            self.text[0] = "abc"[step % 3]
            self.turned[0] += 1
            total = self.record["b"].sum() + self.turned.sum() + self.masked.sum()
            return float(1 + total + (self.text[0] == "a") + len(self.objects))

    return stepped(Arrays().update)


@row()
def leaf_with_a_gradient() -> dict[str, Any]:
    weight = torch.ones(3, requires_grad=True)

    def step(model: Any, batch: Any) -> torch.Tensor:
        loss = squared(model, batch * weight)
        scale = 1.0 if weight.grad is None else float(weight.grad.abs().sum())
        return loss * (1 + scale)

    return seeded(perceptron, training_step=step)


@row()
def user_objects_that_are_new() -> dict[str, Any]:
    state: dict[str, Any] = {"holders": []}

    def update(step: int) -> float:
        state["holders"].append(WithSlots(float(step), [step]))
        state["shared"] = (state["holders"][0], state["holders"][-1])
        state["shared"][0].total += 2
        return 1 + state["holders"][0].total

    return stepped(update)


@row("which a resume cannot restore: clone it")
def detached_rows_and_windows_of_one_memory() -> dict[str, Any]:
    class Windows:
        def __init__(self) -> None:
            self.rows: list[torch.Tensor] = []
            self.windows: list[torch.Tensor] = []
            self.numbers: Any = None

        def update(self, step: int) -> float:
            if step % 5 == 0:
                memory = torch.arange(24.0).reshape(6, 4) / 24
                self.rows = [row.detach() for row in memory]
                self.windows = [memory[first : first + 3].detach() for first in range(4)]
                self.numbers = memory.view(torch.int32)[1, :2].detach()
            self.rows[step % 6] += 1
            return 1 + sum(float(window.sum()) for window in self.windows) + int(self.numbers.sum() % 97)

    return stepped(Windows().update)
