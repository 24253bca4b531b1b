"""Where state is: functions, closures, modules of the user's own; and what is left alone."""

from __future__ import annotations

import functools
import importlib
import logging
import sys
import threading
import weakref
from typing import Any

import torch

from tests.state.setups import helpers
from tests.state.setups.containers import Node, stepped
from tests.state.setups.models import perceptron
from tests.state.setups.rows import row, seeded, squared

TABLE: dict[str, Any] = {"calls": 0}
CURRENT: Any = None


@row()
def global_of_another_module() -> dict[str, Any]:
    def update(step: int) -> float:
        helpers.COUNT += 1
        return helpers.COUNT

    return stepped(update)


@row()
def function_of_another_module() -> dict[str, Any]:
    return stepped(lambda step: helpers.counted())


@row()
def import_within_a_function() -> dict[str, Any]:
    def update(step: int) -> float:
        from tests.state.setups.helpers import remembered

        return remembered(step)

    return stepped(update)


@row()
def module_imported_within_a_function() -> dict[str, Any]:
    """This module has imported it before the run begins."""
    assert helpers.__name__ in sys.modules

    def update(step: int) -> float:
        import tests.state.setups.helpers as further

        further.STATE["total"] = further.STATE.get("total", 0) + step
        return 1 + further.STATE["total"]

    return stepped(update)


@row("the module tests.state.setups.imported_late was imported during the run, so its variables (FACTORS, _calls) are")
def module_first_imported_by_the_step() -> dict[str, Any]:
    name = "tests.state.setups.imported_late"
    sys.modules.pop(name, None)  # of whoever collects tests
    return stepped(lambda step: importlib.import_module(name).factor())


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
    def outer() -> Any:
        first = 0

        def middle() -> Any:
            second = [0]

            def inner(step: int) -> float:
                nonlocal first
                first += 1
                second[0] += first
                return second[0]

            return inner

        return middle()

    return stepped(outer())


@row()
def lambda_over_a_list() -> dict[str, Any]:
    seen: list[int] = []
    return stepped(lambda step: seen.append(step) or len(seen))


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


@row()
def callable_object() -> dict[str, Any]:
    class Step:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, model: Any, batch: Any) -> torch.Tensor:
            self.calls += 1
            return squared(model, batch) / self.calls

    return seeded(perceptron, training_step=Step())


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
def attributes_of_base_classes() -> dict[str, Any]:
    return stepped(Derived().update)


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


@row()
def getattr_of_a_plain_object_that_raises() -> dict[str, Any]:
    class Strict:
        def __init__(self) -> None:
            self.calls = 0

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(f"there is no {name}")

        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, value + 1)

    strict = Strict()

    def update(step: int) -> float:
        strict.calls = strict.calls
        return strict.calls

    return stepped(update)


@row()
def wrapper_that_delegates() -> dict[str, Any]:
    class Wrapper:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.__dict__["inner"], name)

    class Inner:
        def __init__(self) -> None:
            self.calls = 0

        def update(self, step: int) -> float:
            self.calls += 1
            return self.calls

    wrapper = Wrapper(Wrapper(Inner()))
    return stepped(lambda step: wrapper.update(step))


@row("is a _thread._local that has changed, and is not saved", bound="nothing reads what it holds")
def loggers_locks_and_threads() -> dict[str, Any]:
    class Task:
        def __init__(self) -> None:
            self.log = logging.getLogger("task")
            self.lock = threading.Lock()
            self.local = threading.local()
            self.later: Any = None
            self.count = 0

        def update(self, step: int) -> float:
            with self.lock:
                self.count += 1
            if self.later is None:
                self.later = threading.RLock()
                self.log = logging.getLogger("task.further")
            self.local.value = step
            return self.count

    return stepped(Task().update)


@row()
def weak_references_of_setup() -> dict[str, Any]:
    class Owner:
        def __init__(self) -> None:
            self.count = 0
            self.itself = weakref.ref(self)

        def update(self, step: int) -> float:
            self.itself().count += 1
            return self.count

    return stepped(Owner().update)


@row()
def class_with_a_metaclass() -> dict[str, Any]:
    class Meta(type):
        made = 0

        def __call__(cls, *arguments: Any) -> Any:
            cls.made += 1
            return super().__call__(*arguments)

    class Thing(metaclass=Meta):
        pass

    def update(step: int) -> float:
        Thing()
        return Thing.made

    return stepped(update)


@row(stateless="its generators end within the step")
def generator_behind_an_exhausted_loop() -> dict[str, Any]:
    class Task:
        def factors(self, step: int) -> Any:
            yield from (1.0 / (1 + number) for number in range(step % 4 + 1))

        def update(self, step: int) -> float:
            return sum(self.factors(step))

    return stepped(Task().update)


@row("is a new ReferenceType, which cannot be saved")
def new_weak_reference() -> dict[str, Any]:
    objects = [Node(1, None), Node(2, None)]
    state = {"chosen": weakref.ref(objects[0])}

    def update(step: int) -> float:
        value = state["chosen"]().value
        state["chosen"] = weakref.ref(objects[step % 2])
        return value

    return seeded(perceptron, training_step=stepped(update)["training_step"])
