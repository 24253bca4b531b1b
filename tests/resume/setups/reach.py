"""State in globals, closures, defaults and properties."""

from __future__ import annotations

import functools
import importlib
import sys
import weakref
from typing import Any

import torch

from tests.resume.setups import helpers, passed_on
from tests.rows import Node, perceptron, row, rows, seeded, squared, stepped

TABLE: dict[str, Any] = {"calls": 0}
CURRENT: Any = None


@row()
def global_of_another_module() -> dict[str, Any]:
    """Read by its name, as what a function returns, and as an item."""

    held = {"module": passed_on}

    def returned() -> Any:
        return held["module"]

    def update(step: int) -> float:
        helpers.COUNT += 1
        returned().calls += 1
        held["module"].rate *= 0.9
        return helpers.COUNT + returned().calls * held["module"].rate

    return stepped(update)


@row("imported_late was imported during the run, so its variables (FACTORS, steps, _calls) are")
def module_first_imported_by_the_step() -> dict[str, Any]:
    name = "tests.resume.setups.imported_late"
    sys.modules.pop(name, None)  # of whoever collects tests

    def update(step: int) -> float:
        module = importlib.import_module(name)
        module.steps += 1
        return module.factor() / module.steps

    return stepped(update)


@row()
def global_that_is_made_during_training() -> dict[str, Any]:
    def update(step: int) -> float:
        global CURRENT
        CURRENT = [*(CURRENT or []), step]
        TABLE["calls"] += 1
        return len(CURRENT) + TABLE["calls"]

    return stepped(update)


@row()
def attribute_of_a_function_without_a_first_value() -> dict[str, Any]:
    def step(model: Any, batch: Any) -> torch.Tensor:
        step.calls = getattr(step, "calls", 0) + 1
        return squared(model, batch) / step.calls

    return seeded(perceptron, training_step=step)


@row()
def default_that_is_changed() -> dict[str, Any]:
    def update(step: int, seen: list[int] = [], *, table: dict[str, int] = {}) -> float:  # noqa: B006
        seen.append(step)
        table["last"] = table.get("last", 0) + 2
        return len(seen) + table["last"]

    return stepped(update)


@row()
def closures_within_closures() -> dict[str, Any]:
    first, second = 0, [0]

    def inner() -> None:
        nonlocal first
        first += 1
        second[0] += first

    return stepped(lambda step: [inner(), second[0]][1])


@row()
def decorators_of_a_library() -> dict[str, Any]:
    calls = 0

    @torch.no_grad()
    def counted() -> float:
        nonlocal calls
        calls += 1
        return calls

    @functools.lru_cache
    def doubled(value: int) -> int:
        return 2 * value

    return stepped(lambda step: counted() + doubled(step % 3))


class Base:
    counts: dict[str, int] = {}  # noqa: RUF012
    instances = 0

    def __init__(self) -> None:
        Base.instances += 1


class Derived(Base):
    total = 0.0

    def update(self, step: int) -> float:
        type(self).total += 0.5
        self.counts["all"] = self.counts.get("all", 0) + 1
        Base.instances += 1
        return self.total + self.counts["all"] + self.instances


@row()
def state_behind_a_property() -> dict[str, Any]:
    class Guarded:
        def __init__(self) -> None:
            self._value = 1.0

        @property
        def value(self) -> float:
            self._value *= 1.01  # it must not be read by anybody else
            return self._value

        @property
        def broken(self) -> float:
            raise RuntimeError("nobody reads this")

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("nobody compares this")

        __hash__ = object.__hash__

    guarded = Guarded()
    return stepped(lambda step: guarded.value)


@row("is a new ReferenceType")
def new_weak_reference() -> dict[str, Any]:
    objects = [Node(1, None), Node(2, None)]
    state = {"chosen": weakref.ref(objects[0])}

    def update(step: int) -> float:
        value = state["chosen"]().value
        state["chosen"] = weakref.ref(objects[step % 2])
        return value

    return seeded(perceptron, training_step=stepped(update)["training_step"])


rows(
    attributes_of_base_classes=lambda: stepped(Derived().update),
)
