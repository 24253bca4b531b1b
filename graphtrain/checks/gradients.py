"""G4xx: what happens to the gradients of each optimizer, along every path.

An automaton over four states: *clean* (none since they were cleared), *fresh* (added up, not used), *clipped*, *used* (a
step was taken with them). A guard that asks whether the count of backward passes is 0 or more tells clean from the rest;
all other guards may hold or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from graphtrain.checks.flow import Arrow, Flow, Point, told
from graphtrain.checks.scope import Scope
from graphtrain.elements import Node
from graphtrain.guards.syntax import Both, Comparison, Constant, Either, Expression, FieldOf, Not, walk
from graphtrain.problem import Problem

State = Literal["clean", "fresh", "clipped", "used"]
ON_GRADIENTS = frozenset({"backward", "clip", "unscale", "use", "step", "zero_grad"})


@dataclass(frozen=True)
class Fault:
    """What is wrong with an effect in a state."""

    code: str
    message: str
    hint: str


# (effect, state) -> the state after it, and what is wrong, if anything is.
_RULES: dict[tuple[str, State], tuple[State, Fault | None]] = {
    ("backward", "clean"): ("fresh", None),
    ("backward", "fresh"): ("fresh", None),
    ("backward", "clipped"): (
        "fresh",
        Fault(
            "G402",
            "`{node}` adds gradients of {optimizer} to some that were clipped already: the sum is not clipped",
            "clip once, after the last backward pass of a window and before the step",
        ),
    ),
    ("backward", "used"): (
        "fresh",
        Fault(
            "G405",
            "`{node}` adds gradients of {optimizer} to those of the step before, which were not cleared",
            "lead every path from the step to here through a node that clears them, such as `zero_grad`",
        ),
    ),
    ("clip", "clean"): (
        "clean",
        Fault("G411", "`{node}` clips gradients of {optimizer} where there are none", "clip after a backward pass"),
    ),
    ("clip", "fresh"): ("clipped", None),
    ("clip", "clipped"): ("clipped", None),
    ("clip", "used"): (
        "used",
        Fault(
            "G406", "`{node}` clips gradients of {optimizer} after the step was taken with them", "clip before the step"
        ),
    ),
    ("step", "clean"): (
        "clean",
        Fault(
            "G401",
            "`{node}` steps {optimizer} without any gradients since they were cleared",
            "lead every path to it through a backward pass, or guard it, as `accumulation_reached` does",
        ),
    ),
    ("step", "fresh"): ("used", None),
    ("step", "clipped"): ("used", None),
    ("step", "used"): (
        "used",
        Fault(
            "G403",
            "`{node}` steps {optimizer} a second time with the same gradients",
            "put a backward pass between the two steps, or take one of them out",
        ),
    ),
    ("zero_grad", "clean"): ("clean", None),
    ("zero_grad", "fresh"): (
        "clean",
        Fault(
            "G404",
            "`{node}` clears gradients of {optimizer} that no step has used",
            'clear them after the step; if they are meant to be discarded, a kind with effects=("use", "zero_grad") '
            "says so",
        ),
    ),
    ("zero_grad", "clipped"): (
        "clean",
        Fault(
            "G404",
            "`{node}` clears gradients of {optimizer} that were clipped, and that no step has used",
            "clear them after the step",
        ),
    ),
    ("zero_grad", "used"): ("clean", None),
}
for _state in ("clean", "fresh", "clipped", "used"):
    _RULES["unscale", _state] = (  # type: ignore[index]
        "fresh" if _state == "fresh" else _state,
        _RULES["clip", _state][1] if _state in ("clean", "used") else None,  # type: ignore[index]
    )
    _RULES["use", _state] = _RULES["step", _state]  # type: ignore[index]

_OPEN = Fault(
    "G407",
    "the run can end with gradients of {optimizer} that no step has used",
    'let the edge to the end ask that the window is closed, as in `finished = "finish.due and accumulate.count == 0"`',
)


def optimizers_of(scope: Scope, node: Node) -> tuple[str, ...]:
    """The optimizers that the effects of a node act on, by the names of the resources."""
    target = node.reads.get("optimizer", "optimizer")
    names = (target,) if isinstance(target, str) else target
    return tuple(dict.fromkeys(one for name in names for one in _outward(scope, name)))


def _outward(scope: Scope, name: str) -> tuple[str, ...]:
    if name in scope.written or scope.outer is None or scope.outer_node is None:
        return (scope.path + name if name in scope.written else name,)
    target = scope.outer_node.reads.get(name, name)
    names = (target,) if isinstance(target, str) else target
    return tuple(one for name in names for one in _outward(scope.outer, name))


def effects_of(point: Point) -> tuple[str, ...]:
    """What a visit does to gradients, in order."""
    if point.kind is None or not point.acts or (point.node is not None and point.node.body is not None):
        return ()
    return tuple(effect for effect in point.kind.effects if effect in ON_GRADIENTS)


def check_gradients(flow: Flow) -> Iterator[Problem]:
    """Every problem of gradients, of all optimizers."""
    acting = [
        (point, optimizers_of(point.scope, point.node)) for point in flow.points if point.node and effects_of(point)
    ]
    names = list(dict.fromkeys(name for _, found in acting for name in found))
    unbound = [point for point, _ in acting if _is_unbound(point)]
    if len(names) > 1 and unbound:
        others = ", ".join(f"`{name}`" for name in names if name != "optimizer")
        for point in unbound:
            yield _problem(
                point,
                "G410",
                f"`{point.path}` acts on the gradients of `optimizer`, and there are several optimizers: {others}",
                f'name the one it is for: reads = {{ optimizer = "{next(n for n in names if n != "optimizer")}" }}',
            )
        return
    for name in names:
        used = {effect for point, found in acting if name in found for effect in effects_of(point)}
        if "backward" in used and not used & {"step", "use"}:
            point = next(one for one, found in acting if name in found and "backward" in effects_of(one))
            yield _problem(
                point,
                "G408",
                f"`{name}` is never stepped: `{point.path}` computes gradients, and no node uses them",
                'add a node of the kind `step`, as in insert("step", after=...)',
            )
            continue
        if "backward" in used and "zero_grad" not in used:
            point = next(one for one, found in acting if name in found and "backward" in effects_of(one))
            yield _problem(
                point,
                "G405",
                f"the gradients of `{name}` are never cleared: those of `{point.path}` add up over all steps",
                'add a node of the kind `zero_grad` after the step, as in insert("zero_grad", after="step")',
            )
            continue
        yield from _Automaton(flow, name).problems()
    yield from _divided(flow, acting)


def _is_unbound(point: Point) -> bool:
    """True where nobody said which optimizer a node is for, neither at the node nor at one around it."""
    scope: Scope | None = point.scope
    node = point.node
    while scope is not None and node is not None:
        if "optimizer" in node.reads:
            return False
        node, scope = scope.outer_node, scope.outer
    return True


class _Automaton:
    """The states that the gradients of one optimizer can be in at every point."""

    def __init__(self, flow: Flow, optimizer: str) -> None:
        self._flow = flow
        self._optimizer = optimizer
        self._came_from: dict[tuple[Point, State], tuple[Point, State] | None] = {}
        self._told: set[tuple[str, str]] = set()

    def problems(self) -> Iterator[Problem]:
        start: tuple[Point, State] = (self._flow.start, "clean")
        self._came_from[start] = None
        waiting = deque([start])
        while waiting:
            point, state = waiting.popleft()
            after, faults = self._acted(point, state)
            for fault in faults:
                yield from self._tell(fault, point, state)
            for arrow in point.arrows:
                if after not in self._possible(point.scope, arrow):
                    continue
                if arrow.target is self._flow.end and after in ("fresh", "clipped"):
                    yield from self._tell(_OPEN, point, state)
                following = (arrow.target, after)
                if following not in self._came_from:
                    self._came_from[following] = (point, state)
                    waiting.append(following)

    def _acted(self, point: Point, state: State) -> tuple[State, list[Fault]]:
        faults = []
        if point.node is not None and self._optimizer in optimizers_of(point.scope, point.node):
            for effect in effects_of(point):
                state, fault = _RULES[effect, state]
                if fault is not None:
                    faults.append(fault)
        return state, faults

    def _possible(self, scope: Scope, arrow: Arrow) -> set[State]:
        """The states in which an arrow can be taken."""
        states: set[State] = {"clean", "fresh", "clipped", "used"}
        asked = [(arrow.guard, True)] if arrow.guard is not None else []
        for expression, holds in [*asked, *((one, False) for one in arrow.failed)]:
            for counter, some in _counts(expression, holds):
                if self._counts_here(scope, counter):
                    states &= {"fresh", "clipped", "used"} if some else {"clean"}
        return states

    def _counts_here(self, scope: Scope, counter: FieldOf) -> bool:
        kind = scope.kinds[counter.node]
        declared = kind.fields.get(counter.field) if kind is not None else None
        owners = optimizers_of(scope, scope.graph.nodes[counter.node])
        return declared is not None and declared.counts == "backward" and self._optimizer in owners

    def _tell(self, fault: Fault, point: Point, state: State) -> Iterator[Problem]:
        if (fault.code, point.path) in self._told:
            return
        self._told.add((fault.code, point.path))
        path: list[Point] = []
        at: tuple[Point, State] | None = (point, state)
        while at is not None:
            path.append(at[0])
            at = self._came_from[at]
        message = fault.message.format(node=point.path, optimizer=f"`{self._optimizer}`")
        witness = told(reversed(path)) + (("end",) if fault is _OPEN else ())
        yield _problem(point, fault.code, message, fault.hint, path=witness)


def _counts(expression: Expression, holds: bool) -> Iterator[tuple[FieldOf, bool]]:
    """What follows of counters from an expression that holds, or does not: (counter, it is more than 0)."""
    match expression:
        case Not(operand):
            yield from _counts(operand, not holds)
        case Both(operands) if holds:
            for one in operands:
                yield from _counts(one, True)
        case Either(operands) if not holds:
            for one in operands:
                yield from _counts(one, False)
        case Comparison((FieldOf() as counter, Constant(value)), (symbol,)) if not isinstance(value, str):
            if (some := _MORE_THAN_NONE.get((symbol, int(value)))) is not None and value in (0, 1):
                yield counter, some == holds
        case Comparison((Constant(value), FieldOf() as counter), (symbol,)) if not isinstance(value, str):
            turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(symbol, symbol)
            if (some := _MORE_THAN_NONE.get((turned, int(value)))) is not None and value in (0, 1):
                yield counter, some == holds


# A count compared with a number -> whether it is then more than 0.
_MORE_THAN_NONE = {
    (">", 0): True,
    ("!=", 0): True,
    (">=", 1): True,
    ("==", 0): False,
    ("<=", 0): False,
    ("<", 1): False,
}


def _divided(flow: Flow, acting: list[tuple[Point, tuple[str, ...]]]) -> Iterator[Problem]:
    """A loss divided by a window, where nobody asks before the next backward pass or step whether that is complete."""
    for point, optimizers in acting:
        assert point.node is not None
        window = point.node.reads.get("window")
        if "backward" not in effects_of(point) or not isinstance(window, str) or "." not in window:
            continue
        owner, _, size = window.partition(".")
        kind = point.scope.kinds.get(owner)
        counters = (
            {name for name, one in kind.fields.items() if one.counts == "backward"} if kind is not None else set()
        )
        path = _unasked(point, set(optimizers), {FieldOf(owner, size), *(FieldOf(owner, one) for one in counters)})
        if counters and path:
            yield _problem(
                point,
                "G409",
                f"`{point.path}` divides the loss by `{window}`, and on the way to `{path[-1].path}` nobody asks whether "
                "so many gradients are there",
                f"lead the path through `{owner}`, an edge of which asks that by `accumulation_reached`; or do not divide: "
                "take `window` out of its reads",
                path=told(path),
            )


def _unasked(start: Point, optimizers: set[str], fields: set[FieldOf]) -> list[Point]:
    """A shortest path from a backward pass to the next, or to a step, past no guard that reads all of the fields."""
    came_from: dict[Point, Point | None] = {}
    waiting: deque[tuple[Point, Point | None]] = deque([(start, None)])
    while waiting:
        point, before = waiting.popleft()
        if before is not None:
            acts = point.node is not None and optimizers & set(optimizers_of(point.scope, point.node))
            if acts and {"step", "use", "backward"} & set(effects_of(point)):
                path = [point, before]
                while (earlier := came_from[path[-1]]) is not None:
                    path.append(earlier)
                return path[::-1]
        if point in came_from or _asks(point, start.scope, fields):
            continue
        came_from[point] = before
        waiting.extend((arrow.target, point) for arrow in point.arrows)
    return []


def _asks(point: Point, home: Scope, fields: set[FieldOf]) -> bool:
    return point.scope.path == home.path and any(
        arrow.guard is not None and fields <= {one for one in walk(arrow.guard) if isinstance(one, FieldOf)}
        for arrow in point.arrows
    )


def _problem(point: Point, code: str, message: str, hint: str, path: tuple[str, ...] = ()) -> Problem:
    assert point.node is not None
    severity: Literal["error", "warning"] = "warning" if code in ("G409", "G411") else "error"
    return point.scope.problem(
        code, point.node.place, f"nodes.{point.node.name}", message, hint, severity=severity, path=path
    )
