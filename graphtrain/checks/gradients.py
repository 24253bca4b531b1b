"""G4xx: what happens to the gradients of each optimizer, along every path.

An automaton over a line of states: *clean* (none since they were cleared), *fresh* (added up), *exchanged* (among
processes), *scaled* (divided by the scale of the loss), *clipped*, *used* (a step was taken with them). A guard that
cannot hold, or cannot fail, while the count of backward passes is 0 tells clean from the rest; whatever else a guard
asks may be so or not.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from graphtrain.graph import layers
from graphtrain.graph.elements import END
from graphtrain.graph.problem import Problem
from graphtrain.guards.syntax import (
    Both,
    Comparison,
    Conditional,
    Constant,
    Either,
    Expression,
    FieldOf,
    Not,
    walk,
)
from graphtrain.kind import Field
from graphtrain.kind.parameter import Above
from graphtrain.names import quoted
from graphtrain.plan.facts import changers, conjuncts
from graphtrain.plan.flow import Flow, FlowEdge, FlowPoint, names_on
from graphtrain.plan.plan import PlanAction
from graphtrain.plan.scope import Scope, named_by

State = Literal["clean", "fresh", "exchanged", "scaled", "clipped", "used", "scaled apart", "clipped apart"]
# Gradients that are there, and that no step has used.
UNUSED: tuple[State, ...] = ("fresh", "exchanged", "scaled", "clipped", "scaled apart", "clipped apart")
# The field of a kind that divides by it the gradients of a loss which was multiplied by it.
_SCALE = "scale"


@dataclass(frozen=True)
class Fault:
    """What is wrong with an effect in a state; `{node}` and `{optimizer}` are filled in."""

    code: str
    message: str
    hint: str


def _nothing_to(verb: str) -> Fault:
    return Fault(
        "G411",
        f"`{{node}}` {verb} gradients of {{optimizer}} where there are none",
        "route every path to it through a backward pass, or guard it by a count of backward passes",
    )


def _too_late_to(verb: str) -> Fault:
    return Fault(
        "G406",
        f"`{{node}}` {verb} gradients of {{optimizer}} after the step was taken with them",
        "put it between the last backward pass and the step",
    )


_UNUSED = Fault(
    "G404",
    "`{node}` clears gradients of {optimizer} that no step has used",
    "clear them after the step; where no step is meant to be taken with them, as where another optimizer shares the "
    "parameters, put a node of the kind `use` for {optimizer} before it; the kind `discard` throws them away",
)
_NEVER_CLEARED = Fault(
    "G405",
    "the gradients of {optimizer} are never cleared: those of `{node}` add up over all steps",
    'add a node of the kind `zero_grad` after the step: insert("zero_grad", after="{step}")',
)


def _added_to(what: str, sum_is: str, advice: str) -> Fault:
    return Fault(
        "G413",
        f"`{{node}}` adds gradients of {{optimizer}} to some that were {what} already: {sum_is}",
        f"{advice} once, after the last backward pass of a window and before the step",
    )


def _out_of_order(verb: str, done: str, therefore: str, advice: str) -> Fault:
    return Fault("G412", f"`{{node}}` {verb} gradients of {{optimizer}} that were {done} already: {therefore}", advice)


_ADDED_TO_USED = Fault(
    "G405",
    "`{node}` adds gradients of {optimizer} to those of the step before, which were not cleared",
    "route every path from the step to here through a node that clears them, such as `zero_grad`",
)
_ADDED_TO_CLIPPED = Fault(
    "G402",
    "`{node}` adds gradients of {optimizer} to some that were clipped already: the sum is not clipped",
    "clip once, after the last backward pass of a window and before the step",
)
_STEP_WITHOUT = Fault(
    "G401",
    "`{node}` steps {optimizer}, which has no gradients since they were cleared",
    "route every path to it through a backward pass, or guard it by a count of backward passes, as "
    "`accumulation_reached` does",
)
_STEP_AGAIN = Fault(
    "G403",
    "`{node}` steps {optimizer} a second time with the same gradients",
    "put a backward pass between the two steps, or remove one of them",
)
_EXCHANGED_TWICE = _out_of_order(
    "exchanges", "exchanged", "they would be summed a second time", "exchange once a window"
)
_EXCHANGED_SCALED = _out_of_order(
    "exchanges",
    "unscaled",
    "what overflowed in one process was looked for in its own part alone",
    "exchange before that",
)
_EXCHANGED_CLIPPED = _out_of_order(
    "exchanges", "clipped", "each process has clipped its own part", "exchange before clipping"
)
_SCALED_TWICE = _out_of_order(
    "unscales", "unscaled", "they would be divided by the scale twice", "unscale once a window"
)
_SCALED_CLIPPED = _out_of_order("unscales", "clipped", "they were clipped while scaled", "unscale before clipping")

_DIVIDED_CLIPPED = _out_of_order(
    "divides", "clipped", "what was clipped is not what is stepped with", "divide before clipping"
)

# (effect, state) -> the state after it, and what is wrong, if anything is.
_RULES: dict[tuple[str, State], tuple[State, Fault | None]] = {
    ("backward", "clean"): ("fresh", None),
    ("backward", "fresh"): ("fresh", None),
    ("backward", "exchanged"): ("fresh", _added_to("exchanged", "part of the sum is of one process alone", "exchange")),
    ("backward", "scaled"): ("fresh", _added_to("unscaled", "the sum is of two scales", "unscale")),
    ("backward", "clipped"): ("fresh", _ADDED_TO_CLIPPED),
    ("backward", "used"): ("fresh", _ADDED_TO_USED),
    ("exchange", "clean"): ("clean", _nothing_to("exchanges")),
    ("exchange", "fresh"): ("exchanged", None),
    ("exchange", "exchanged"): ("exchanged", _EXCHANGED_TWICE),
    ("exchange", "scaled"): ("scaled", _EXCHANGED_SCALED),
    ("exchange", "clipped"): ("clipped", _EXCHANGED_CLIPPED),
    ("exchange", "used"): ("used", _too_late_to("exchanges")),
    ("scale", "clean"): ("clean", _nothing_to("unscales")),
    ("scale", "fresh"): ("scaled", None),
    ("scale", "exchanged"): ("scaled", None),
    ("scale", "scaled"): ("scaled", _SCALED_TWICE),
    ("scale", "clipped"): ("clipped", _SCALED_CLIPPED),
    ("scale", "used"): ("used", _too_late_to("unscales")),
    ("clip", "clean"): ("clean", _nothing_to("clips")),
    ("clip", "fresh"): ("clipped", None),
    ("clip", "exchanged"): ("clipped", None),
    ("clip", "scaled"): ("clipped", None),
    ("clip", "clipped"): ("clipped", None),
    ("clip", "used"): ("used", _too_late_to("clips")),
    ("divide", "clean"): ("clean", _nothing_to("divides")),
    ("divide", "fresh"): ("fresh", None),
    ("divide", "exchanged"): ("exchanged", None),
    ("divide", "scaled"): ("scaled", None),
    ("divide", "clipped"): ("clipped", _DIVIDED_CLIPPED),
    ("divide", "used"): ("used", _too_late_to("divides")),
    ("use", "clean"): ("clean", _nothing_to("uses")),
    ("use", "fresh"): ("used", None),
    ("use", "exchanged"): ("used", None),
    ("use", "scaled"): ("used", None),
    ("use", "clipped"): ("used", None),
    ("use", "used"): ("used", None),
    ("step", "clean"): ("clean", _STEP_WITHOUT),
    ("step", "fresh"): ("used", None),
    ("step", "exchanged"): ("used", None),
    ("step", "scaled"): ("used", None),
    ("step", "clipped"): ("used", None),
    ("step", "used"): ("used", _STEP_AGAIN),
    ("zero_grad", "clean"): ("clean", None),
    ("zero_grad", "fresh"): ("clean", _UNUSED),
    ("zero_grad", "exchanged"): ("clean", _UNUSED),
    ("zero_grad", "scaled"): ("clean", _UNUSED),
    ("zero_grad", "clipped"): ("clean", _UNUSED),
    ("zero_grad", "used"): ("clean", None),
}

_STEP_APART = Fault(
    "G702",
    "`{node}` steps {optimizer} with gradients that were not exchanged: the weights of the ranks would part",
    'sum them over ranks before: insert("exchange", before="clip")',
)
_STEP_WITHIN = Fault(
    "G702",
    _STEP_APART.message,
    "they are computed within the same visit: train in one process, or let the kind of `{node}` sum them over ranks "
    "before its step, as `closure_step` does",
)
_CLIPPED_APART = Fault(
    "G703",
    "`{node}` exchanges gradients of {optimizer} that were clipped already: each rank has clipped its own part",
    "exchange after the last backward pass of a window, and clip after that",
)
_EXCHANGED_AGAIN = Fault(
    "G704",
    "`{node}` exchanges gradients of {optimizer} that were exchanged already: they would be multiplied by the number "
    "of ranks",
    "exchange once a window: after its last backward pass, and before anything else",
)

# What is otherwise among several ranks: gradients that were not exchanged are unscaled, clipped and used *apart*.
_RULES_OF_RANKS: dict[tuple[str, State], tuple[State, Fault | None]] = {
    **_RULES,
    ("exchange", "exchanged"): ("exchanged", _EXCHANGED_AGAIN),
    ("exchange", "scaled"): ("scaled", _EXCHANGED_AGAIN),
    ("exchange", "clipped"): ("clipped", _EXCHANGED_AGAIN),
    ("exchange", "scaled apart"): ("scaled", _EXCHANGED_SCALED),
    ("exchange", "clipped apart"): ("clipped", _CLIPPED_APART),
    ("scale", "fresh"): ("scaled apart", None),
    ("scale", "scaled apart"): ("scaled apart", _SCALED_TWICE),
    ("scale", "clipped apart"): ("clipped apart", _SCALED_CLIPPED),
    ("clip", "fresh"): ("clipped apart", None),
    ("clip", "scaled apart"): ("clipped apart", None),
    ("clip", "clipped apart"): ("clipped apart", None),
    ("backward", "scaled apart"): _RULES["backward", "scaled"],
    ("backward", "clipped apart"): _RULES["backward", "clipped"],
    ("divide", "scaled apart"): ("scaled apart", None),
    ("divide", "clipped apart"): ("clipped apart", _DIVIDED_CLIPPED),
    ("use", "scaled apart"): ("used", None),
    ("use", "clipped apart"): ("used", None),
    ("step", "fresh"): ("used", _STEP_APART),
    ("step", "scaled apart"): ("used", _STEP_APART),
    ("step", "clipped apart"): ("used", _STEP_APART),
    ("zero_grad", "scaled apart"): ("clean", _UNUSED),
    ("zero_grad", "clipped apart"): ("clean", _UNUSED),
}

_OPEN = Fault(
    "G407",
    "the run can end after `{node}` with gradients of {optimizer} that no step has used",
    'let the edge to the end ask that the window is closed, as in `finished = "finish.due and accumulate.count == 0"`, '
    "or route it through a step or a `discard`",
)


def actions_of(point: FlowPoint) -> tuple[PlanAction, ...]:
    """What a visit does to gradients, in order."""
    return point.planned.actions if point.acts and point.planned is not None else ()


def effects_of(point: FlowPoint) -> tuple[str, ...]:
    """What a visit does to gradients, in order, whatever the optimizers."""
    return tuple(action.effect for action in actions_of(point))


class Gradients:
    """What the nodes of a flow do to the gradients of each optimizer.

    Arguments:
        ranks: True among several ranks. Default: False.

    Attributes:
        rules: (effect, state) -> the state after it, and what is wrong, if anything is.
        actions: what a visit of each point does, of those that do something.
        counting: the points with a count of backward passes, and the optimizers whose passes it counts.
        optimizers: by the names of their resources.
    """

    def __init__(self, flow: Flow, *, ranks: bool = False) -> None:
        self.flow = flow
        self.rules = _RULES_OF_RANKS if ranks else _RULES
        self.actions = {point: actions for point in flow.points if (actions := actions_of(point))}
        self.counting = {
            point: point.planned.optimizers for point in flow.points if point.planned is not None and counters_of(point)
        }
        self.optimizers = list(
            dict.fromkeys(name for actions in self.actions.values() for action in actions for name in action.optimizers)
        )
        self._automata = {name: _Automaton(self, name) for name in self.optimizers}

    def acting(self, optimizer: str) -> list[tuple[FlowPoint, list[PlanAction]]]:
        """The points that act on the gradients of an optimizer, and what they do."""
        acting = [
            (point, [action for action in actions if optimizer in action.optimizers])
            for point, actions in self.actions.items()
        ]
        return [(point, actions) for point, actions in acting if actions]

    def acted_on(self, effect: str, point: FlowPoint) -> frozenset[str]:
        """The optimizers to whose gradients a visit does something, or one inside the body that is left there."""
        if not point.acts or point.node is None:
            return frozenset()
        doing = self.actions.get(point, ())
        if point.node.body is not None:
            inside = f"{point.path}/"
            doing = tuple(
                a for other, actions in self.actions.items() if other.path.startswith(inside) for a in actions
            )
        return frozenset(name for action in doing if action.effect == effect for name in action.optimizers)

    def way_to_end(self, optimizer: str, last: FlowPoint) -> list[FlowPoint]:
        """A shortest path to a point from which the run can end with gradients of an optimizer; empty if there is none.

        Unlike the automata, it follows all optimizers at once, and remembers what the parts of the guards that lead to
        the end have answered: where the end asks for the guard of a step, the step was taken.
        """
        scope, end = self.flow.scope, self.flow.end
        ending = [arrow.guard for point in self.flow.points for arrow in point.arrows if arrow.target is end]
        parts = {part for guard in ending if guard is not None for part in (guard, *conjuncts(guard))}
        changed = {part: changers(self.flow.plan, scope, part) for part in parts}
        place = self.optimizers.index(optimizer)
        clean: State = "clean"
        start: _Moment = (self.flow.start, (clean,) * len(self.optimizers), frozenset())
        came_from: dict[_Moment, _Moment | None] = {start: None}
        waiting = deque([start])
        while waiting:
            at = point, states, known = waiting.popleft()
            if point.is_unknown or point.planned is None:
                continue
            if len(came_from) > _MOST_MOMENTS:
                return [last]  # it is not told apart any more whether the run can come there
            name = point.planned.node.name if point.acts and point.scope is scope else ""
            kept = frozenset((part, answer) for part, answer in known if name not in changed[part])
            automata = list(self._automata.values())
            visits = (automaton.acted(point, state)[0] for automaton, state in zip(automata, states, strict=True))
            for after in itertools.product(*visits):
                ways = [{*each.open(point, state)} for each, state in zip(automata, after, strict=True)]
                for arrow in filter(set.intersection(*ways).__contains__, point.arrows):
                    told = {(guard, False) for guard in arrow.failed}
                    told |= {(part, True) for part in conjuncts(arrow.guard)} if arrow.guard is not None else set()
                    if point.scope is scope and any((part, not answer) in kept for part, answer in told):
                        continue
                    if arrow.target is end and point is last and after[place] in UNUSED:
                        return [*reversed(_back(came_from, at))]
                    told = {(part, answer) for part, answer in told if part in parts and point.scope is scope}
                    following = arrow.target, after, kept | told
                    if following not in came_from:
                        came_from[following] = at
                        waiting.append(following)
        return []

    def problems(self) -> Iterator[Problem]:
        """Every problem of gradients, of all optimizers."""
        problems = list(self._problems())
        yield from problems or _unscaled(self)

    def _problems(self) -> Iterator[Problem]:
        unbound = {point.path: point for point in {**self.actions, **self.counting} if _is_unbound(point)}
        if len(self.optimizers) > 1 and unbound:
            several = quoted(self.optimizers)
            inside: dict[str, list[FlowPoint]] = {}  # by the node of the outermost graph, where one line mends them all
            for point in unbound.values():
                inside.setdefault(point.path.partition("/")[0], []).append(point)
            for name, (point, *more) in inside.items():
                assert point.node is not None
                default = named_by(point.scope.graph, point.node, "optimizer")
                bound = next(other for other in self.optimizers if other != default)
                does = "acts on the gradients" if point in self.actions else "counts the backward passes"
                also = f" as {len(more)} more in `{name}` do," if more else ""
                at = f" at `{name}`" if name != point.path else ""
                node = self.flow.scope.graph.nodes[name]
                yield self.flow.scope.problem(
                    "G410",
                    node.place,
                    f"nodes.{name}",
                    f"`{point.path}` {does} of `{default}` by default,{also} and there are several optimizers: "
                    f"{several}",
                    f'name the one it is for{at}: reads = {{ optimizer = "{bound}" }}, or "{default}" for that one',
                )
            return
        for name in self.optimizers:
            effects = [(point, action.effect) for point, actions in self.acting(name) for action in actions]
            used = {effect for _, effect in effects}
            if "backward" in used and not used & {"step", "use"} and not self.flow.scope.has_unknown:
                point = next(point for point, effect in effects if effect == "backward")
                yield _problem(
                    point,
                    "G408",
                    f"`{name}` is never stepped: `{point.path}` computes gradients for it, and no node uses them",
                    'add a node of the kind `step`, as in insert("step", after=...)',
                )
            else:
                yield from self._automata[name].problems()
        yield from _divided(self)


# Beyond so many moments, of several optimizers and answers, they are not told apart.
_MOST_MOMENTS = 50_000
_Moment = tuple[FlowPoint, tuple[State, ...], frozenset[tuple[Expression, bool]]]


def _back(came_from: Mapping[_Moment, _Moment | None], at: _Moment | None) -> list[FlowPoint]:
    path = []
    while at is not None:
        path.append(at[0])
        at = came_from[at]
    return path


def _is_unbound(point: FlowPoint) -> bool:
    """True where nobody said which optimizer a node is for, neither at the node nor at one around it."""
    if not counters_of(point) and all(action.slot != "optimizer" for action in actions_of(point)):
        return False  # its kind names the optimizers by slots of their own
    scope: Scope | None = point.scope
    node = point.node
    is_of_overlay = _is_of_overlay(point)
    while scope is not None and node is not None:
        if "optimizer" in node.reads or (scope.graph.optimizer and not is_of_overlay):
            return False
        node, scope = scope.outer_node, scope.outer
    return True


def _is_of_overlay(point: FlowPoint) -> bool:
    """True for a node that an overlay added, or one in a body that it added: it did not know the graph's optimizer."""
    scope = point.scope
    while scope.outer is not None:
        scope = scope.outer
    names = point.path.split("/")
    paths = ("/".join(names[: count + 1]) for count in range(len(names)))
    return any(scope.graph.layers.overlay_of(layers.node(path)) for path in paths)


class _Automaton:
    """The states that the gradients of one optimizer can be in at every point.

    Attributes:
        came_from: each state that is met at a point, and the one before it on a shortest path.
    """

    def __init__(self, gradients: Gradients, optimizer: str) -> None:
        self._gradients, self._flow = gradients, gradients.flow
        self._optimizer = optimizer
        self._actions = dict(gradients.acting(optimizer))
        self._rules = gradients.rules
        self._counters = {
            counter
            for point, names in gradients.counting.items()
            for counter in _sure_counters(point, names, optimizer, gradients)
        }
        # Bodies that are entered while there are gradients: counting starts again in there, so their 0 says nothing.
        self._entered_late: set[str] = set()
        self.came_from: dict[tuple[FlowPoint, State], tuple[FlowPoint, State] | None] = {}
        while not self._explore():
            pass

    def _explore(self) -> bool:
        """Follow all arrows from the start; False if what was held of a body turned out to be wrong."""
        start: tuple[FlowPoint, State] = (self._flow.start, "clean")
        self.came_from = {start: None}
        self._answers: dict[tuple[int, str, State], frozenset[bool]] = {}
        waiting = deque([start])
        late = len(self._entered_late)
        while waiting:
            point, state = waiting.popleft()
            if point.is_unknown:
                continue  # whatever comes after it is not judged
            if point.opens is not None and state != "clean":
                self._entered_late.add(point.opens.path)
            for after in self.acted(point, state)[0]:
                for arrow in self.open(point, after):
                    following = (arrow.target, after)
                    if following not in self.came_from:
                        self.came_from[following] = (point, state)
                        waiting.append(following)
        return len(self._entered_late) == late

    def problems(self) -> Iterator[Problem]:
        faults_at: dict[tuple[str, str], tuple[Fault, FlowPoint, State]] = {}
        for point, state in self.came_from:
            if point.is_unknown:
                continue
            states, faults = self.acted(point, state)
            unused = [after for after in states if after in UNUSED]
            if any(arrow.target is self._flow.end for after in unused for arrow in self.open(point, after)):
                faults.append(_OPEN)
            for fault in faults:
                faults_at.setdefault((fault.code, point.path), (fault, point, state))
        # Gradients that are never cleared are met again by everything that comes: reported once.
        kept = {self._after_step(point, state) for fault, point, state in faults_at.values() if fault.code == "G405"}
        for fault, point, state in faults_at.values():
            way = self._way(point, state)
            if fault is _OPEN and not (way := self._gradients.way_to_end(self._optimizer, point)):
                continue
            if fault.code not in ("G403", "G406") or self._after_step(point, state) not in kept:
                yield self._reported(fault, point, way)

    def _way(self, point: FlowPoint, state: State) -> list[FlowPoint]:
        """A shortest path to a point in a state."""
        path: list[FlowPoint] = []
        at: tuple[FlowPoint, State] | None = (point, state)
        while at is not None:
            path.append(at[0])
            at = self.came_from[at]
        return path[::-1]

    def _after_step(self, point: FlowPoint, state: State) -> FlowPoint | None:
        """Where the path to a point goes on after the last step on it."""
        path = self._way(point, state)
        for before, after in zip(reversed(path[:-1]), reversed(path[1:]), strict=True):
            if {"step", "use"} & {action.effect for action in self._actions.get(before, ())}:
                return after
        return None

    def acted(self, point: FlowPoint, state: State) -> tuple[list[State], list[Fault]]:
        """The states in which a visit may leave gradients, and what is wrong."""
        states, faults = [state], []
        for action in self._actions.get(point, ()):
            followed = [self._rules[action.effect, before] for before in states]
            faults += [fault for _, fault in followed if fault is not None]
            left = states if action.is_reported else []
            states = list(dict.fromkeys([*left, *(after for after, _ in followed)]))
        return states, faults

    def open(self, point: FlowPoint, state: State) -> Iterator[FlowEdge]:
        """The arrows that can be taken in a state."""
        count = 0  # what failed before an arrow is the beginning of what failed before the next
        for arrow in point.arrows:
            if not all(False in self._outcomes(point.scope, guard, state) for guard in arrow.failed[count:]):
                return
            count = len(arrow.failed)
            if arrow.guard is None or True in self._outcomes(point.scope, arrow.guard, state):
                yield arrow

    def _outcomes(self, scope: Scope, guard: Expression, state: State) -> frozenset[bool]:
        """What a guard may answer in a state."""
        key = (id(guard), scope.path, state)  # the plan keeps the guards; to hash one takes as long as this answer
        if key not in self._answers:
            self._answers[key] = self._answered(scope, guard, state)
        return self._answers[key]

    def _answered(self, scope: Scope, guard: Expression, state: State) -> frozenset[bool]:
        def interval(part: Expression) -> Interval:
            match part:
                case FieldOf(node, field) if (scope.path, node, field) in self._counters:
                    if state != "clean":
                        return (0, math.inf) if scope.path in self._entered_late else (1, math.inf)
                    return 0, 0
                case FieldOf(node, field):
                    counter = _counter_of(scope, node, field)
                    if (
                        counter is not None
                        and field == counter.full
                        and (scope.path, node, counter.name) in self._counters
                    ):
                        is_open = state != "clean" or scope.path in self._entered_late
                        return (0, 1) if is_open else (0, 0)
                    return bounds_of(scope, node, field)
                case Conditional(_, then, otherwise):
                    ends = (interval(then), interval(otherwise))
                    return min(low for low, _ in ends), max(high for _, high in ends)
                case Constant(int() | float() as value):
                    return value, value
            return -math.inf, math.inf

        return outcomes(guard, interval)

    def _reported(self, fault: Fault, point: FlowPoint, way: list[FlowPoint]) -> Problem:
        clears = any(action.effect == "zero_grad" for actions in self._actions.values() for action in actions)
        if fault.code == "G405" and not clears and not self._flow.scope.has_unknown:
            fault = _NEVER_CLEARED
        if fault is _STEP_APART and any(action.effect == "backward" for action in self._actions[point]):
            fault = _STEP_WITHIN
        steps = (each.path for each, actions in self._actions.items() if any(act.effect == "step" for act in actions))
        names = {"node": point.path, "optimizer": f"`{self._optimizer}`", "step": next(steps, "step")}
        witness = names_on(way) + ((END,) if fault is _OPEN else ())
        return _problem(point, fault.code, fault.message.format(**names), fault.hint.format(**names), path=witness)


def counters_of(point: FlowPoint) -> tuple[str, ...]:
    """The fields of a node in which the engine counts backward passes."""
    if point.kind is None or not point.acts:
        return ()
    return tuple(name for name, declared in point.kind.fields.items() if declared.counts == "backward")


def _sure_counters(
    point: FlowPoint, names: tuple[str, ...], optimizer: str, gradients: Gradients
) -> Iterator[tuple[str, str, str]]:
    """The counters of a point that are 0 if and only if an optimizer has no gradients: (path, node, field)."""
    assert point.node is not None
    together = all(
        set(names) <= set(action.optimizers)
        for actions in gradients.actions.values()
        for action in actions
        if action.effect in ("backward", "zero_grad") and set(names) & set(action.optimizers)
    )
    if optimizer in names and together:
        for field in counters_of(point):
            yield point.scope.path, point.node.name, field


Interval = tuple[float, float]


def _counter_of(scope: Scope, node: str, field: str) -> Field | None:
    """The counter of a window that a field is, or belongs to."""
    kind = scope.kinds.get(node)
    return kind.counter(field) if kind is not None else None


def bounds_of(scope: Scope, node: str, field: str) -> Interval:
    """What the type of a parameter says of its value: between which numbers it lies."""
    kind = scope.kinds.get(node)
    return _bounds(kind.parameters[field].annotation) if kind is not None and field in kind.parameters else _UNBOUNDED


_UNBOUNDED: Interval = (-math.inf, math.inf)


@functools.lru_cache(maxsize=1024)
def _bounds(annotation: Any) -> Interval:
    if get_origin(annotation) is Annotated:
        plain, *bounds = get_args(annotation)
        least = max((bound.bound for bound in bounds if isinstance(bound, Above)), default=-math.inf)
        return (math.floor(least) + 1 if plain is int and math.isfinite(least) else least), math.inf
    return _UNBOUNDED


def outcomes(expression: Expression, interval: Callable[[Expression], Interval]) -> frozenset[bool]:
    """What a guard may answer if all that is known of its parts is between which numbers they lie.

    >>> from graphtrain.guards.syntax import parse
    >>> outcomes(parse("a.b > 0 and c.d > 0"), lambda part: (0, 0) if part == parse("a.b") else (0, 9))
    frozenset({False})
    """
    match expression:
        case Constant(bool() as value):
            return frozenset({value})
        case FieldOf():
            return frozenset({True, False} if interval(expression) != (0, 0) else {False})
        case Conditional(condition, then, otherwise):
            answers = outcomes(condition, interval)
            return frozenset().union(
                *(outcomes(part, interval) for part, on in ((then, True), (otherwise, False)) if on in answers)
            )
        case Not(operand):
            return frozenset(not answer for answer in outcomes(operand, interval))
        case Both(operands) | Either(operands):
            ends = isinstance(expression, Either)  # the answer that one part alone decides
            parts = [outcomes(operand, interval) for operand in operands]
            return frozenset(
                [ends] * any(ends in part for part in parts) + [not ends] * all((not ends) in part for part in parts)
            )
        case Comparison(operands, symbols):
            pairs = [
                _compared(symbol, interval(left), interval(right))
                for symbol, left, right in zip(symbols, operands, operands[1:], strict=False)
            ]
            return frozenset(
                [False] * any(False in pair for pair in pairs) + [True] * all(True in pair for pair in pairs)
            )
    return frozenset({True, False})


def _compared(symbol: str, left: Interval, right: Interval) -> set[bool]:
    match symbol:
        case ">" | ">=":
            return _compared({">": "<", ">=": "<="}[symbol], right, left)
        case "!=":
            return {not answer for answer in _compared("==", left, right)}
        case "==":
            apart = left[1] < right[0] or right[1] < left[0]
            same = left == right and left[0] == left[1]
            return {False} if apart else {True} if same else {True, False}
        case "<":
            return {True} if left[1] < right[0] else {False} if left[0] >= right[1] else {True, False}
        case _:
            return {True} if left[1] <= right[0] else {False} if left[0] > right[1] else {True, False}


def _unscaled(gradients: Gradients) -> Iterator[Problem]:
    """A node that divides gradients by a scale of its own, which no node has multiplied the loss by."""
    for point, actions in gradients.actions.items():
        assert point.node is not None
        kind = point.scope.kinds.get(point.node.name)
        has_scale = kind is not None and _SCALE in kind.fields and any(action.effect == "scale" for action in actions)
        if has_scale and (point.path, _SCALE) not in gradients.flow.plan.fields_read:
            yield _problem(
                point,
                "G414",
                f"`{point.path}` divides the gradients by `{point.path}.{_SCALE}`, and no loss is multiplied by that",
                f'let the node that runs backward do so: reads = {{ loss_scale = "{point.node.name}.{_SCALE}" }}, as '
                "the overlay fp16 has it",
            )


def _divided(gradients: Gradients) -> Iterator[Problem]:
    """A loss divided by a window, where nobody asks before the next backward pass or step whether that is complete."""
    for point in gradients.actions:
        assert point.node is not None
        optimizers = gradients.acted_on("backward", point)
        window = _window_of(point)
        if not optimizers or not isinstance(window, str) or "." not in window:
            continue
        owner, _, size = window.partition(".")
        kind = point.scope.kinds.get(owner)
        if kind is None:
            continue
        node = point.scope.graph.nodes[owner]
        counters = [declared for declared in kind.fields.values() if declared.counts == "backward"]
        # As large as a window is when it opens is what the parameter says, unless that is given by an expression.
        parameter = next((counter.target for counter in counters if counter.window == size), size) or size
        varies = parameter in node.reads
        if varies and size == parameter and any(counter.target == size and counter.window for counter in counters):
            keeps = next(counter.window for counter in counters if counter.target == size)
            yield _problem(
                point,
                "G409",
                f"`{point.path}` divides the loss by `{window}`, an expression, whose value may change while a window "
                "is open",
                f'read the size with which the window opened: window = "{owner}.{keeps}"',
            )
            continue
        sizes = {size} if varies else {size, parameter}
        declared = kind.parameters.get(parameter)
        value = None if varies or declared is None else node.parameters.get(parameter, declared.default)
        alike = {other for other in gradients.actions if other.scope is point.scope and _window_of(other) == window}
        others = alike - {point}
        size_of_window = value if isinstance(value, int) else 0
        if size_of_window % 2 == 0:  # of which two passes at a time are a part
            others.clear()
        path = _unasked(point, optimizers, owner, sizes, others, whole=value == 1) if counters else []
        is_second = bool(path) and path[-1] in others
        # A window of one that nobody has asked for divides nothing.
        if not path or (value == 1 and not is_second and "window" not in point.node.reads):
            continue
        if is_second:
            message = (
                f"`{path[-1].path}` adds to the window before anything asks whether it is full: "
                f"{size_of_window + 1} backward passes would be divided by {value}"
            )
            hint = (
                f"{owner}.{parameter} counts backward passes: set an even number of them for a mean; for a sum return "
                'one loss from one step function; or allow = ["G409"] if that is meant'
            )
        elif path[-1] is not point and "step" not in effects_of(path[-1]):
            message = f"`{path[-1].path}` clears the gradients before anything asks whether so many are there"
            hint = (
                "let one node with the effect `backward` do both passes, and keep the gradients of the window aside "
                "meanwhile; to throw a window away, use the kind `discard`"
            )
        else:
            message = f"on the way to `{path[-1].path}` nothing asks whether so many gradients are there"
            hint = (
                f"route the path through `{owner}`, where `accumulation_reached` asks that; or do not divide: "
                f'reads = {{ window = "1" }} of `{point.path}`'
            )
        yield _problem(
            point,
            "G409",
            f"`{point.path}` divides the loss by `{window}`, and {message}",
            hint,
            path=names_on(path),
            severity="warning" if value == 1 else "error",
        )


def _window_of(point: FlowPoint) -> str | tuple[str, ...] | None:
    """What a node divides its loss by; None if it reads no window."""
    if point.node is None or point.kind is None or "window" not in point.kind.slots:
        return None
    return named_by(point.scope.graph, point.node, "window")


def _unasked(
    start: FlowPoint,
    optimizers: frozenset[str],
    owner: str,
    sizes: set[str],
    others: set[FlowPoint],
    *,
    whole: bool,
) -> list[FlowPoint]:
    """A shortest path from a backward pass back to it, or to a step, past no guard that asks whether a window is full.

    Arguments:
        owner: the node that counts the backward passes of the window.
        sizes: its fields and parameters that hold the size of the window.
        others: further points with a backward pass in the same window, which end the path.
        whole: True if one pass is the whole window, which any node may clear; else only `discard` may, as what comes
            after it begins a new one. Another node that clears, as between two passes on one batch, ends the path too.
    """
    came_from: dict[FlowPoint, FlowPoint | None] = {}
    waiting: deque[tuple[FlowPoint, FlowPoint | None]] = deque([(start, None)])
    while waiting:
        point, before = waiting.popleft()
        if before is not None:
            effects = {action.effect for action in actions_of(point) if optimizers & set(action.optimizers)}
            is_thrown_away = whole or (point.kind is not None and point.kind.name == "discard")
            if (
                point is start
                or point in others
                or "step" in effects
                or ("zero_grad" in effects and not is_thrown_away)
            ):
                path = [point, before]
                while (earlier := came_from[path[-1]]) is not None:
                    path.append(earlier)
                return path[::-1]
            if "zero_grad" in effects:
                continue
        if point in came_from or point.is_unknown or _asks(point, start.scope, owner, sizes):
            continue
        came_from[point] = before
        waiting.extend((arrow.target, point) for arrow in point.arrows)
    return []


def _asks(point: FlowPoint, home: Scope, owner: str, sizes: set[str]) -> bool:
    """True if a guard at a point asks whether the window is full: by that field, or by the count and its size."""
    if point.scope.path != home.path:
        return False
    kind = home.kinds[owner]
    assert kind is not None, "asked before"
    counters = [declared for declared in kind.fields.values() if declared.counts == "backward"]
    for arrow in point.arrows:
        parts = walk(arrow.guard) if arrow.guard is not None else ()
        fields = {part.field for part in parts if isinstance(part, FieldOf) and part.node == owner}
        if {counter.full for counter in counters} & fields:
            return True
        if fields & sizes and {counter.name for counter in counters} <= fields:
            return True
    return False


def _problem(
    point: FlowPoint,
    code: str,
    message: str,
    hint: str,
    path: tuple[str, ...] = (),
    severity: Literal["error", "warning"] = "error",
) -> Problem:
    assert point.node is not None
    return point.scope.problem(
        code,
        point.node.place,
        f"nodes.{point.node.name}",
        message,
        hint,
        severity="warning" if code == "G411" else severity,
        path=path,
    )
