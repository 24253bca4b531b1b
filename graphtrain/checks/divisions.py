"""G409: a loss is divided by a window only if a guard checks whether the window is complete, and passes fill it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphtrain.graph.elements import Problem
from graphtrain.kind import Field
from graphtrain.language.syntax import FieldOf, walk
from graphtrain.plan.flow import FlowPoint
from graphtrain.plan.solve import Ways

if TYPE_CHECKING:
    from graphtrain.checks.gradients import Gradients


# A point, the passes since a guard checked the window or it was cleared, and whether one has checked some of them.
_Added = tuple[FlowPoint, tuple[FlowPoint, ...], bool]


@dataclass(frozen=True)
class _Division:
    """A backward pass whose loss is divided by a window.

    Attributes:
        optimizers: those whose gradients it adds to.
        window: the divisor: ``"accumulate.window"``.
        owner: the node that counts the backward passes of the window.
        counters: the fields that count them.
        size, parameter: its field with the size of the window, and the parameter that sets it.
        value: that of the parameter; None for an expression.
    """

    point: FlowPoint
    optimizers: frozenset[str]
    window: str
    owner: str
    counters: tuple[Field, ...]
    size: str
    parameter: str
    value: Any

    def problem(self, message: str, hint: str, path: Sequence[FlowPoint] = ()) -> Problem:
        """A problem of it; for a window of one, which leaves the sum, a warning."""
        text = f"`{self.point.path}` divides the loss by `{self.window}`, and {message}"
        return self.point.problem("G409", text, hint, path=path, severity="warning" if self.value == 1 else "error")

    @property
    def varies(self) -> bool:
        """True if the size is an expression."""
        return self.parameter in self.point.scope.graph.nodes[self.owner].reads

    def effects(self, point: FlowPoint) -> set[str]:
        """What a visit does to its gradients."""
        return {action.effect for action in point.actions if self.optimizers & set(action.optimizers)}

    @property
    def kept_size(self) -> str | None:
        """The field that keeps the size with which a window opened, if the division reads a size that may change."""
        if not self.varies or self.size != self.parameter:
            return None
        return next((counter.window for counter in self.counters if counter.target == self.size), None)


def check_divisions(gradients: Gradients) -> Iterator[Problem]:
    """Every loss divided by a window that no guard checks in time for being full, or that other passes exceed."""
    windows: dict[tuple[str, str], dict[FlowPoint, _Division]] = {}
    for point in gradients.actions:
        division = _division(gradients, point)
        if division is None:
            continue
        if kept := division.kept_size:
            yield division.problem(
                "that is an expression, whose value may change while a window is open",
                f'read the size with which the window opened: window = "{division.owner}.{kept}"',
            )
            continue
        path = _unchecked(division) if division.counters else []
        # A default window of one divides nothing.
        if path and (division.value != 1 or (point.node is not None and "window" in point.node.reads)):
            yield division.problem(*_reason(division, path[-1]), path)
        elif isinstance(division.value, int):
            windows.setdefault((point.scope.path, division.window), {})[point] = division
    for divisions in windows.values():
        if len(divisions) > 1:
            yield from _miscounted(gradients.flow.start, divisions)


def _division(gradients: Gradients, point: FlowPoint) -> _Division | None:
    optimizers, window = gradients.acted_on("backward", point), _window_of(point)
    if not optimizers or not isinstance(window, str) or "." not in window:
        return None
    owner, _, size = window.partition(".")
    kind, node = point.scope.kinds.get(owner), point.scope.graph.nodes.get(owner)
    if kind is None or node is None:
        return None
    counters = tuple(declared for declared in kind.fields.values() if declared.counts == "backward")
    # The size at opening is the value of the parameter, unless that is an expression.
    parameter = next((counter.target for counter in counters if counter.window == size), size) or size
    declared = kind.parameters.get(parameter)
    known = declared is not None and parameter not in node.reads
    value = node.parameters.get(parameter, declared.default) if known and declared is not None else None
    return _Division(point, optimizers, window, owner, counters, size, parameter, value)


def _window_of(point: FlowPoint) -> str | tuple[str, ...] | None:
    """The divisor of a node's loss; None if it reads no window."""
    if point.node is None or point.kind is None or "window" not in point.kind.slots:
        return None
    return point.scope.named_by(point.node, "window")


def _reason(division: _Division, last: FlowPoint) -> tuple[str, str]:
    """Why a division is wrong at the end of a path without such a guard, and a hint."""
    if last is not division.point and "step" not in last.effects:
        return (
            f"`{last.path}` clears the gradients before any guard checks their number",
            "let one node with the effect `backward` do both passes, and keep the gradients of the window aside "
            "meanwhile; to throw a window away, use the kind `discard`",
        )
    return (
        f"on the way to `{last.path}` no guard checks the number of gradients",
        f"route the path through `{division.owner}`, where `accumulation_reached` checks it; or do not divide: "
        f'reads = {{ window = "1" }} of `{division.point.path}`',
    )


def _unchecked(division: _Division) -> list[FlowPoint]:
    """A shortest path from a backward pass back to it, or to a step, without a guard that checks for a full window.

    A node that clears the gradients ends the path too, unless one pass is the whole window or the node is a `discard`,
    after which a new window begins. Effects do not tell: a node between two passes on one batch may use and clear too.
    """
    start, effects = division.point, division.effects

    def following(point: FlowPoint) -> list[FlowPoint]:
        is_cleared = point is not start and "zero_grad" in effects(point)
        is_over = is_cleared or _checks_window(point, division)
        return [] if is_over else [arrow.target for arrow in point.arrows]

    def ends(point: FlowPoint) -> bool:
        is_thrown_away = division.value == 1 or (point.kind is not None and point.kind.name == "discard")
        done = effects(point)
        is_cleared = "zero_grad" in done and not is_thrown_away
        return point is start or "step" in done or is_cleared

    ways = Ways([start], following)
    for point in ways:
        for after in filter(ends, following(point)):
            return [*ways.to(point), after]
    return []


def _miscounted(start: FlowPoint, divisions: dict[FlowPoint, _Division]) -> Iterator[Problem]:
    """A window that the passes between two guards that check it do not fill, or that one exceeds after the last."""
    division = next(iter(divisions.values()))

    def following(at: _Added) -> Iterator[_Added]:
        point, added, is_checked = at
        is_cleared = "zero_grad" in division.effects(point)
        if is_cleared or _checks_window(point, division):
            added, is_checked = (), not is_cleared and (is_checked or added != ())
        for arrow in point.arrows:
            is_pass = arrow.target in divisions and len(added) <= division.value
            yield arrow.target, (*added, arrow.target) if is_pass else added, is_checked

    ways = Ways[_Added]([(start, (start,) if start in divisions else (), False)], following)
    for at in ways:
        point, added, is_checked = at
        is_late = is_checked and "step" in division.effects(point)
        if added and (is_late or (division.value % len(added) and _checks_window(point, division))):
            way = [each for each, *_ in ways.to(at)]
            when = "after a guard has checked" if is_late else "before any guard checks"
            total = division.value + (len(added) if is_late else -division.value % len(added))
            yield divisions[added[0]].problem(
                f"`{added[-1].path}` adds to the window {when} whether it is full: {total} backward passes would be "
                f"divided by {division.value}",
                f"{division.owner}.{division.parameter} counts backward passes: set a multiple of those between two "
                'guards for a mean; for a sum return one loss from one step function; or allow = ["G409"] if that is '
                "meant",
                way[-1 - way[::-1].index(added[0]) :],
            )
            return


def _checks_window(point: FlowPoint, division: _Division) -> bool:
    """True if a guard at a point checks whether the window is full: by that field, or by its count and size."""
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
