"""G4xx: what happens to the gradients of each optimizer, along every path.

An automaton over a line of states: *clean* (none since they were cleared), *fresh* (added up), *exchanged* (among
processes), *scaled* (divided by the scale of the loss), *clipped*, *used* (a step was taken with them). A guard that
cannot hold, or cannot fail, while the count of backward passes is 0 distinguishes clean from the rest; any other
condition may be true or false.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from graphtrain.checks.answers import ANY, Known, Table, Values, values_of
from graphtrain.checks.divisions import check_divisions
from graphtrain.checks.gradient_rules import (
    NEVER_CLEARED,
    OPEN,
    RULES,
    RULES_OF_DIVISORS,
    RULES_OF_RANKS,
    STEP_WITHIN,
    UNUSED,
    Fault,
    State,
)
from graphtrain.graph.elements import END, Problem
from graphtrain.kind import Field
from graphtrain.language.syntax import Constant, Expression, FieldOf, walk
from graphtrain.names import quoted
from graphtrain.plan.flow import Flow, FlowEdge, FlowPoint, changers, conjuncts
from graphtrain.plan.plan import PlanAction
from graphtrain.plan.scope import FieldTarget, Scope, leaves, named_by
from graphtrain.plan.solve import Ways

# The field with the scale of the loss, by which its kind divides gradients; the parameter that says what a loss sums.
_SCALE, _PER = "scale", "per"
_Actions = Mapping[FlowPoint, Sequence[PlanAction]]


class Gradients:
    """The actions of the nodes of a flow on the gradients of each optimizer.

    Arguments:
        ranks: True among several ranks. Default: False.

    Attributes:
        rules: (effect, state) -> the state after it, and the problem, if there is one.
        actions: the actions of each point that has any.
        counting: the points with a count of backward passes, and the optimizers whose passes it counts.
        optimizers: the names of their resources.
    """

    def __init__(self, flow: Flow, *, ranks: bool = False) -> None:
        self.flow = flow
        self.rules = RULES_OF_RANKS if ranks else RULES
        self.actions = {point: actions for point in flow.points if (actions := point.actions)}
        self.counting = {
            point: point.plan_node.optimizers
            for point in flow.points
            if point.plan_node is not None and counters_of(point)
        }
        self.optimizers = list(
            dict.fromkeys(name for actions in self.actions.values() for action in actions for name in action.optimizers)
        )
        self._counters_read: dict[tuple[int, str], frozenset[tuple[str, str, str]]] = {}
        self._in_any_state: dict[tuple[int, str], frozenset[bool]] = {}
        self._tables: dict[str, Table] = {}
        self._automata = {name: _Automaton(self, name) for name in self.optimizers}

    def counters_read(self, scope: Scope, guard: Expression) -> frozenset[tuple[str, str, str]]:
        """The counters of windows that a guard reads, also through other fields: (path, node, field)."""
        key = id(guard), scope.path  # the plan keeps the guards; hashing one would take as long as this
        if key not in self._counters_read:
            reads = [part for part in walk(guard) if isinstance(part, FieldOf)]
            counters = ((read.node, _counter_of(scope, read)) for read in reads)
            read = frozenset((scope.path, node, counter.name) for node, counter in counters if counter is not None)
            self._counters_read[key] = read
        return self._counters_read[key]

    def answers_in_any_state(self, scope: Scope, guard: Expression) -> frozenset[bool]:
        """The possible values of a guard that reads no counter."""
        key = id(guard), scope.path
        if key not in self._in_any_state:
            table = self._tables.setdefault(scope.path, Table())
            answers = _answers(table, guard, lambda read: values_of(scope, read.node, read.field))
            self._in_any_state[key] = answers
        return self._in_any_state[key]

    def acting(self, optimizer: str, actions: _Actions | None = None) -> list[tuple[FlowPoint, list[PlanAction]]]:
        """The points that act on the gradients of an optimizer, with their actions; or with those given."""
        acting = [
            (point, [action for action in acts if optimizer in action.optimizers])
            for point, acts in (self.actions if actions is None else actions).items()
        ]
        return [(point, actions) for point, actions in acting if actions]

    def acted_on(self, effect: str, point: FlowPoint) -> frozenset[str]:
        """The optimizers on whose gradients a visit acts, or a visit inside the body that is left there."""
        if not point.acts or point.node is None:
            return frozenset()
        doing = self.actions.get(point, ())
        if point.node.body is not None:
            inside = f"{point.path}/"
            doing = tuple(
                a for other, actions in self.actions.items() if other.path.startswith(inside) for a in actions
            )
        return frozenset(name for action in doing if action.effect == effect for name in action.optimizers)

    def dividing_exchanged(self) -> set[str]:
        """The nodes that divide gradients which were exchanged."""
        return {
            point.path
            for name, automaton in self._automata.items()
            for point, state in automaton.met
            for action in point.actions
            if action.effect == "divide" and name in action.optimizers and state in ("exchanged", "scaled")
        }

    def way_to_end(self, optimizer: str, last: FlowPoint) -> list[FlowPoint]:
        """A shortest path to a point from which the run can end with gradients of an optimizer; empty if there is none.

        Unlike the automata, it follows all optimizers at once, and remembers the values of the guards that lead to the
        end: if the end needs the guard of a step, the step was taken.
        """
        scope, end = self.flow.scope, self.flow.end
        ending = [arrow.guard for point in self.flow.points for arrow in point.arrows if arrow.target is end]
        parts = {part for guard in ending if guard is not None for part in (guard, *conjuncts(guard))}
        changed = {part: changers(self.flow.plan, scope, part) for part in parts}
        automata = list(self._automata.values())

        def following(at: _Moment) -> Iterator[_Moment]:
            point, states, known = at
            if point.plan_node is None:
                return
            name = point.plan_node.node.name if point.acts and point.scope is scope else ""
            kept = frozenset((part, answer) for part, answer in known if name not in changed[part])
            visits = (automaton.acted(point, state)[0] for automaton, state in zip(automata, states, strict=True))
            for after in itertools.product(*visits):
                ways = [{*each.open(point, state)} for each, state in zip(automata, after, strict=True)]
                for arrow in filter(set.intersection(*ways).__contains__, point.arrows):
                    answers = {(guard, False) for guard in arrow.failed}
                    answers |= {(part, True) for part in conjuncts(arrow.guard)} if arrow.guard is not None else set()
                    if point.scope is not scope:
                        yield arrow.target, after, kept
                    elif not any((part, not answer) in kept for part, answer in answers):
                        yield arrow.target, after, kept | {(part, answer) for part, answer in answers if part in parts}

        place = self.optimizers.index(optimizer)
        start: _Moment = (self.flow.start, ("clean",) * len(automata), frozenset())
        ways = Ways([start], following)
        for at in ways:
            if len(ways) > _MOST_MOMENTS:
                return [last]  # beyond this, it is not decided whether the run can get there
            if at[0] is last and any(target is end and after[place] in UNUSED for target, after, _ in following(at)):
                return [point for point, _, _ in ways.to(at)]
        return []

    def problems(self) -> Iterator[Problem]:
        """Every problem of gradients, of all optimizers."""
        problems = list(self._problems())
        yield from problems
        for divisor, actions in _divisors(self) if not problems else ():
            for name in self.optimizers:
                yield from _Automaton(self, name, divisor, actions).problems()

    def _problems(self) -> Iterator[Problem]:
        unbound = {point.path: point for point in {**self.actions, **self.counting} if _is_unbound(point)}
        if len(self.optimizers) > 1 and unbound:
            several = quoted(self.optimizers)
            inside: dict[str, list[FlowPoint]] = {}  # by the node of the outermost graph, where one line fixes them all
            for point in unbound.values():
                inside.setdefault(point.path.partition("/")[0], []).append(point)
            for name, (point, *more) in inside.items():
                assert point.node is not None
                default = named_by(point.scope.graph, point.node, "optimizer")
                bound = next(other for other in self.optimizers if other != default)
                does = "acts on the gradients" if point in self.actions else "counts the backward passes"
                also = f" as {len(more)} more in `{name}` do," if more else ""
                at = f" at `{name}`" if name != point.path else ""
                yield self.flow.scope.problem(
                    "G410",
                    f"nodes.{name}",
                    f"`{point.path}` {does} of `{default}` by default,{also} and there are several optimizers: "
                    f"{several}",
                    f'name the one it is for{at}: reads = {{ optimizer = "{bound}" }}, or "{default}" for that one',
                )
            return
        for name in self.optimizers:
            effects = [(point, action.effect) for point, actions in self.acting(name) for action in actions]
            used = {effect for _, effect in effects}
            if "step" in used and "backward" not in used:
                point = next(point for point, effect in effects if effect == "step")
                yield point.problem(
                    "G401",
                    f"`{point.path}` steps `{name}`, for which no node computes gradients",
                    'add a node that runs backward, as in insert("train_batch", after=...)',
                )
            elif "backward" in used and not used & {"step", "use"}:
                point = next(point for point, effect in effects if effect == "backward")
                yield point.problem(
                    "G408",
                    f"`{name}` is never stepped: `{point.path}` computes gradients for it, and no node uses them",
                    'add a node of the kind `step`, as in insert("step", after=...)',
                )
            else:
                yield from self._automata[name].problems()
        yield from check_divisions(self)
        for point in self.flow.points:
            if point.acts and point.kind is not None and "scheduler" in point.kind.optional:
                yield from self._early_schedule(point)

    def _early_schedule(self, point: FlowPoint) -> Iterator[Problem]:
        """A node that steps schedulers and is only visited where there are gradients that no step has used."""
        met = [(each, state) for each in self._automata.values() for at, state in each.met if at is point]
        if met and all(state in UNUSED for _, state in met):
            automaton, state = met[0]
            yield point.problem(
                "G416",
                f"`{point.path}` steps the scheduler before the optimizer is stepped",
                "torch expects it after, and skips the first rate: put it behind the node that steps the optimizer",
                severity="warning",
                path=automaton._way(point, state),
            )


# States of all optimizers and guards together are not distinguished beyond this number.
_MOST_MOMENTS = 50_000
_Moment = tuple[FlowPoint, tuple[State, ...], frozenset[tuple[Expression, bool]]]


def _is_unbound(point: FlowPoint) -> bool:
    """True if neither a node nor one around it names its optimizer."""
    if not counters_of(point) and all(action.slot != "optimizer" for action in point.actions):
        return False  # its kind names the optimizers by separate slots
    scope: Scope | None = point.scope
    node = point.node
    is_of_overlay = _is_of_overlay(point)
    while scope is not None and node is not None:
        if "optimizer" in node.reads or (scope.graph.optimizer and not is_of_overlay):
            return False
        node, scope = scope.outer_node, scope.outer
    return True


def _is_of_overlay(point: FlowPoint) -> bool:
    """True for a node added by an overlay, directly or in a body: it did not know the graph's optimizer."""
    scope = point.scope
    while scope.outer is not None:
        scope = scope.outer
    names = point.path.split("/")
    paths = ("/".join(names[: count + 1]) for count in range(len(names)))
    return any(scope.graph.layers.of("node", path) for path in paths)


class _Automaton:
    """The states that the gradients of one optimizer can be in at every point."""

    def __init__(
        self, gradients: Gradients, optimizer: str, divisor: str = "", actions: _Actions | None = None
    ) -> None:
        self._gradients, self._flow = gradients, gradients.flow
        self._optimizer = optimizer
        self._actions = dict(gradients.acting(optimizer, actions))
        self._rules, self._divisor = RULES_OF_DIVISORS if divisor else gradients.rules, divisor
        self._counters = {
            counter
            for point, names in gradients.counting.items()
            for counter in _sure_counters(point, names, optimizer, gradients)
        }
        # Bodies entered while there are gradients: counting restarts inside, so a 0 there proves nothing.
        self._entered_late: set[str] = set()
        self._tables: dict[tuple[str, State, bool], Table] = {}
        late = -1
        while late != len(self._entered_late):  # the assumption about a body was wrong
            late = len(self._entered_late)
            self._answers: dict[tuple[int, str, State], frozenset[bool]] = {}
            self._ways = Ways([(self._flow.start, "clean")], self._following)
            self.met = list(self._ways)

    def _following(self, at: tuple[FlowPoint, State]) -> Iterator[tuple[FlowPoint, State]]:
        point, state = at
        if point.opens is not None and state != "clean":
            self._entered_late.add(point.opens.path)
        for after in self.acted(point, state)[0]:
            for arrow in self.open(point, after):
                yield arrow.target, after

    def problems(self) -> Iterator[Problem]:
        faults_at: dict[tuple[str, str], tuple[Fault, FlowPoint, State]] = {}
        for point, state in self.met:
            states, faults = self.acted(point, state)
            unused = [after for after in states if after in UNUSED]
            if any(arrow.target is self._flow.end for after in unused for arrow in self.open(point, after)):
                faults.append(OPEN)
            for fault in faults:
                faults_at.setdefault((fault.code, point.path), (fault, point, state))
        # Everything after meets gradients that are never cleared: reported once.
        kept = {self._after_step(point, state) for fault, point, state in faults_at.values() if fault.code == "G405"}
        for fault, point, state in faults_at.values():
            way = self._way(point, state)
            if fault is OPEN and not (way := self._gradients.way_to_end(self._optimizer, point)):
                continue
            if fault.code not in ("G403", "G406") or self._after_step(point, state) not in kept:
                yield self._reported(fault, point, way)

    def _way(self, point: FlowPoint, state: State) -> list[FlowPoint]:
        """A shortest path to a point in a state."""
        return [point for point, _ in self._ways.to((point, state))]

    def _after_step(self, point: FlowPoint, state: State) -> FlowPoint | None:
        """The position on the path to a point after its last step."""
        path = self._way(point, state)
        for before, after in zip(reversed(path[:-1]), reversed(path[1:]), strict=True):
            if {"step", "use"} & {action.effect for action in self._actions.get(before, ())}:
                return after
        return None

    def acted(self, point: FlowPoint, state: State) -> tuple[list[State], list[Fault]]:
        """The states in which a visit may leave gradients, and the problems."""
        states, faults = [state], []
        for action in self._actions.get(point, ()):
            followed = [self._rules[action.effect, before] for before in states]
            faults += [fault for _, fault in followed if fault is not None]
            states = list(dict.fromkeys(after for after, _ in followed))
        return states, faults

    def open(self, point: FlowPoint, state: State) -> Iterator[FlowEdge]:
        """The arrows that can be taken in a state."""
        count = 0  # the failures before an arrow begin those before the next
        for arrow in point.arrows:
            if not all(False in self._outcomes(point.scope, guard, state) for guard in arrow.failed[count:]):
                return
            count = len(arrow.failed)
            if arrow.guard is None or True in self._outcomes(point.scope, arrow.guard, state):
                yield arrow

    def _outcomes(self, scope: Scope, guard: Expression, state: State) -> frozenset[bool]:
        """The possible values of a guard in a state."""
        key = id(guard), scope.path, state  # the plan keeps the guards; hashing one would take as long as this
        if key not in self._answers:
            self._answers[key] = self._answered(scope, guard, state)
        return self._answers[key]

    def _answered(self, scope: Scope, guard: Expression, state: State) -> frozenset[bool]:
        if self._counters.isdisjoint(self._gradients.counters_read(scope, guard)):
            return self._gradients.answers_in_any_state(scope, guard)
        is_late = scope.path in self._entered_late

        def known(read: FieldOf) -> Constant | Values:
            counter = _counter_of(scope, read)
            if counter is None or (scope.path, read.node, counter.name) not in self._counters:
                return values_of(scope, read.node, read.field)
            if read.field == counter.name:
                return Constant(0) if state == "clean" else Values(least=0 if is_late else 1, whole=True)
            return Constant(False) if read.field == counter.full and state == "clean" and not is_late else ANY

        return _answers(self._tables.setdefault((scope.path, state, is_late), Table()), guard, known)

    def _reported(self, fault: Fault, point: FlowPoint, way: list[FlowPoint]) -> Problem:
        clears = any(action.effect == "zero_grad" for actions in self._actions.values() for action in actions)
        if fault.code == "G405" and not clears:
            fault = NEVER_CLEARED
        if fault.code == "G702" and any(action.effect == "backward" for action in self._actions[point]):
            fault = STEP_WITHIN
        steps = (each.path for each, actions in self._actions.items() if any(act.effect == "step" for act in actions))
        names = {"node": point.path, "optimizer": f"`{self._optimizer}`", "divisor": self._divisor}
        names["step"] = next(steps, "step")
        return point.problem(
            fault.code,
            fault.message.format(**names),
            fault.hint.format(**names),
            severity=fault.severity,
            path=[*way, END] if fault is OPEN else way,
        )


def _answers(table: Table, guard: Expression, known: Known) -> frozenset[bool]:
    """The possible values of a guard."""
    ways = table.ways_to_answer(guard, known)
    return frozenset(answer for answer, found in ways.items() if found != ())


def _counter_of(scope: Scope, read: FieldOf) -> Field | None:
    """The counter of a window that a field is, or belongs to."""
    kind = scope.kinds.get(read.node)
    return kind.counter(read.field) if kind is not None else None


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


def _divisors(gradients: Gradients) -> Iterator[tuple[str, _Actions]]:
    """The scales of losses and the counts of sums by which gradients have to be divided, with what nodes do to them."""
    done = {point: {action.effect for action in actions} for point, actions in gradients.actions.items()}
    divides = "divide" in set[str]().union(*done.values())
    for point, effects in done.items():
        assert point.plan_node is not None and point.kind is not None
        per = point.plan_node.parameters.get(_PER, "")
        for name, declared in point.kind.fields.items():
            is_scale = name == _SCALE and "scale" in effects
            if not is_scale and (per is None or not declared.with_gradients or "backward" not in effects):
                continue
            reading = [other for other in gradients.actions if _reads(other, FieldTarget(point.path, name))]
            if not any(("backward" if is_scale else "divide") in done[other] for other in reading):
                is_read = (point.path, name) in gradients.flow.plan.fields_read
                if is_read or not (is_scale or (per and not divides)):
                    continue  # not known to be meant for the gradients, or passed on by way of another node
            owing, other = (reading, "mix") if is_scale else ([point], "add")
            acting = {}
            for each, actions in gradients.actions.items():
                names = {"backward": "owe" if each in owing else other, "step": "step", "zero_grad": "zero_grad"}
                if each is point or each in reading:
                    names |= {"scale": "divide", "divide": "divide"}
                acting[each] = [replace(act, effect=names[act.effect]) for act in actions if act.effect in names]
            yield f"{point.path}.{name}", acting


def _reads(point: FlowPoint, field: FieldTarget) -> bool:
    """True if a node reads a field."""
    assert point.plan_node is not None
    reads = (*point.plan_node.setup_reads, *point.plan_node.visit_reads)
    return any(field in leaves(target) for _, target in reads)
