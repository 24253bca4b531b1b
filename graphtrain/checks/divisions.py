"""G409: a loss is divided by a window only where something asks whether that is complete."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphtrain.graph.elements import Problem
from graphtrain.kind import Field
from graphtrain.language.syntax import FieldOf, walk
from graphtrain.plan.flow import FlowPoint
from graphtrain.plan.scope import named_by
from graphtrain.plan.solve import Ways

if TYPE_CHECKING:
    from graphtrain.checks.gradients import Gradients


@dataclass(frozen=True)
class _Division:
    """A backward pass whose loss is divided by a window.

    Attributes:
        optimizers: to whose gradients it adds.
        window: what it is divided by: ``"accumulate.window"``.
        owner: the node that counts the backward passes of the window.
        counters: the fields in which it does.
        size, parameter: its field that holds the size of the window, and the parameter that says it.
        value: of that parameter; None where an expression gives it.
        others: further points with a backward pass in the same window.
    """

    point: FlowPoint
    optimizers: frozenset[str]
    window: str
    owner: str
    counters: tuple[Field, ...]
    size: str
    parameter: str
    value: Any
    others: frozenset[FlowPoint]

    @property
    def varies(self) -> bool:
        """True if an expression gives the size."""
        return self.parameter in self.point.scope.graph.nodes[self.owner].reads

    @property
    def kept_size(self) -> str | None:
        """The field that keeps the size with which a window opened, where the division reads one that may change."""
        if not self.varies or self.size != self.parameter:
            return None
        return next((counter.window for counter in self.counters if counter.target == self.size), None)


def check_divisions(gradients: Gradients) -> Iterator[Problem]:
    """Every loss divided by a window of which nobody asks before the next backward pass or step whether it is full."""
    for point in gradients.actions:
        division = _division(gradients, point)
        if division is None:
            continue
        if kept := division.kept_size:
            yield point.problem(
                "G409",
                f"`{point.path}` divides the loss by `{division.window}`, an expression, whose value may change while "
                "a window is open",
                f'read the size with which the window opened: window = "{division.owner}.{kept}"',
            )
            continue
        path = _unasked(division) if division.counters else []
        # A window of one that nobody has asked for divides nothing.
        is_asked_for = division.value != 1 or (path and path[-1] in division.others)
        if path and (is_asked_for or (point.node is not None and "window" in point.node.reads)):
            message, hint = _reason(division, path[-1])
            yield point.problem(
                "G409",
                f"`{point.path}` divides the loss by `{division.window}`, and {message}",
                hint,
                path=path,
                severity="warning" if division.value == 1 else "error",
            )


def _division(gradients: Gradients, point: FlowPoint) -> _Division | None:
    optimizers, window = gradients.acted_on("backward", point), _window_of(point)
    if not optimizers or not isinstance(window, str) or "." not in window:
        return None
    owner, _, size = window.partition(".")
    kind, node = point.scope.kinds.get(owner), point.scope.graph.nodes.get(owner)
    if kind is None or node is None:
        return None
    counters = tuple(declared for declared in kind.fields.values() if declared.counts == "backward")
    # As large as a window is when it opens is what the parameter says, unless that is given by an expression.
    parameter = next((counter.target for counter in counters if counter.window == size), size) or size
    declared = kind.parameters.get(parameter)
    known = declared is not None and parameter not in node.reads
    value = node.parameters.get(parameter, declared.default) if known and declared is not None else None
    others = {other for other in gradients.actions if other.scope is point.scope and _window_of(other) == window}
    if not isinstance(value, int) or value % 2 == 0:  # of which two passes at a time are a part
        others.clear()
    return _Division(point, optimizers, window, owner, counters, size, parameter, value, frozenset(others - {point}))


def _window_of(point: FlowPoint) -> str | tuple[str, ...] | None:
    """What a node divides its loss by; None if it reads no window."""
    if point.node is None or point.kind is None or "window" not in point.kind.slots:
        return None
    return named_by(point.scope.graph, point.node, "window")


def _reason(division: _Division, last: FlowPoint) -> tuple[str, str]:
    """Why a division is wrong where a path on which nobody asks ends, and what to do."""
    owner, parameter, value = division.owner, division.parameter, division.value
    if last in division.others:
        return (
            f"`{last.path}` adds to the window before anything asks whether it is full: {value + 1} backward passes "
            f"would be divided by {value}",
            f"{owner}.{parameter} counts backward passes: set an even number of them for a mean; for a sum return "
            'one loss from one step function; or allow = ["G409"] if that is meant',
        )
    if last is not division.point and "step" not in last.effects:
        return (
            f"`{last.path}` clears the gradients before anything asks whether so many are there",
            "let one node with the effect `backward` do both passes, and keep the gradients of the window aside "
            "meanwhile; to throw a window away, use the kind `discard`",
        )
    return (
        f"on the way to `{last.path}` nothing asks whether so many gradients are there",
        f"route the path through `{owner}`, where `accumulation_reached` asks that; or do not divide: "
        f'reads = {{ window = "1" }} of `{division.point.path}`',
    )


def _unasked(division: _Division) -> list[FlowPoint]:
    """A shortest path from a backward pass back to it, or to a step, past no guard that asks whether a window is full.

    Where one pass is the whole window, any node may clear it; else only `discard` may, as what comes after it begins a
    new one. Another node that clears, as between two passes on one batch, ends the path too.
    """
    start = division.point

    def effects(point: FlowPoint) -> set[str]:
        return {action.effect for action in point.actions if division.optimizers & set(action.optimizers)}

    def following(point: FlowPoint) -> list[FlowPoint]:
        is_over = point is not start and "zero_grad" in effects(point)
        return [] if is_over or point.is_unknown or _asks(point, division) else [arrow.target for arrow in point.arrows]

    def ends(point: FlowPoint) -> bool:
        is_thrown_away = division.value == 1 or (point.kind is not None and point.kind.name == "discard")
        done = effects(point)
        is_cleared = "zero_grad" in done and not is_thrown_away
        return point is start or point in division.others or "step" in done or is_cleared

    ways = Ways([start], following)
    for point in ways:
        for after in filter(ends, following(point)):
            return [*ways.to(point), after]
    return []


def _asks(point: FlowPoint, division: _Division) -> bool:
    """True if a guard at a point asks whether the window is full: by that field, or by the count and its size."""
    if point.scope.path != division.point.scope.path:
        return False
    counters = division.counters
    sizes = {division.size} if division.varies else {division.size, division.parameter}
    for arrow in point.arrows:
        parts = walk(arrow.guard) if arrow.guard is not None else ()
        fields = {part.field for part in parts if isinstance(part, FieldOf) and part.node == division.owner}
        if {counter.full for counter in counters} & fields:
            return True
        if fields & sizes and {counter.name for counter in counters} <= fields:
            return True
    return False
