"""The closures that transitions are made of.

They serve nodes of every kind, so they go to the dictionary of a node's object: where the class differs from call to
call, `record.runs += 1` costs three times as much.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphtrain.errors import UsageError
from graphtrain.program.loop import Transition
from graphtrain.program.triggers import Due, Every

Act = Callable[[], Any]


def then(first: Act, second: Act) -> Act:
    def both() -> None:
        first()
        second()

    return both


def both(first: Due, second: Due) -> Due:
    return lambda: first() and second()


def nothing() -> None:
    """Do nothing."""


def yes() -> bool:
    return True


def storing(call: Act, slots: list[Any], writes: list[int]) -> Act:
    if not writes:
        return call
    if len(writes) == 1:
        index = writes[0]

        def store() -> None:
            slots[index] = call()

        return store
    if len(writes) == 2:
        first, second = writes

        def store_two() -> None:
            slots[first], slots[second] = call()

        return store_two

    def store_all() -> None:
        for index, value in zip(writes, call(), strict=True):
            slots[index] = value

    return store_all


class Report:
    """What the last visit of a node has returned of its backward pass."""

    def __init__(self, path: str, *, ran_backward: bool = False) -> None:
        self.path, self.ran_backward = path, ran_backward

    def has_run(self) -> bool:
        """Whether it ran backward."""
        return self.ran_backward


def storing_reported(call: Act, slots: list[Any], writes: list[int], report: Report) -> Act:
    """The call of a node that returns, behind what it writes, whether it ran backward."""

    def store() -> None:
        returned = call()
        values = returned if isinstance(returned, tuple) and writes else (returned,)
        if len(values) != len(writes) + 1 or not isinstance(values[-1], bool):
            received = f"{len(values)} values, the last of type {type(values[-1]).__name__}"
            raise UsageError(
                f"{report.path}: a kind with the effect `backward?` returns, last, whether it did; got {received}",
                f"return {len(writes)} values that it writes, and True or False" if writes else "return True or False",
            )
        report.ran_backward = values[-1]
        for index, value in zip(writes, values, strict=False):
            slots[index] = value

    return store


def adding(act: Act, fields: dict[str, Any], name: str, amount: Callable[[], int] | None = None) -> Act:
    """The call of a node, after which something is added to a field: 1, or what a call returns."""

    def count() -> None:
        act()
        fields[name] += 1

    def add() -> None:
        act()
        fields[name] += amount()  # type: ignore[misc]

    return count if amount is None else add


def setting(act: Act, fields: dict[str, Any], name: str, value: Any) -> Act:
    def act_and_set() -> None:
        act()
        fields[name] = value

    return act_and_set


def straight(act: Act, fields: dict[str, Any], target: int) -> Transition:
    def transition() -> int:
        act()
        fields["runs"] += 1
        return target

    return transition


def choosing(act: Act, fields: dict[str, Any], leave: Transition) -> Transition:
    def transition() -> int:
        act()
        fields["runs"] += 1
        return leave()

    return transition


def triggered(act: Act, fields: dict[str, Any], trigger: Every, is_due: Due, leave: Transition) -> Transition:
    def transition() -> int:
        if is_due():
            act()
            trigger.fire()
            fields["runs"] += 1
        return leave()

    return transition


def two_ways(guard: Due, position: int, otherwise: int, diagnosed: Callable[[Exception], Exception]) -> Transition:
    def leave() -> int:
        try:
            return position if guard() else otherwise
        except Exception as error:
            raise diagnosed(error) from None

    return leave
