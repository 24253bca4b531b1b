"""G4xx: what happens to the gradients of each optimizer, along every path.

An automaton over a line of states: *clean* (none since they were cleared), *fresh* (added up), *exchanged* (among
processes), *scaled* (divided by the scale of the loss), *clipped*, *used* (a step was taken with them). Beside it goes
which counts of backward passes are 0: a guard that cannot hold then, or cannot fail, decides; any other may be either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from graphtrain.checks.answers import ANY, Table, Values, values_of
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
from graphtrain.language.syntax import Constant, Expression, FieldOf
from graphtrain.names import quoted
from graphtrain.plan.flow import Flow, FlowEdge, FlowPoint, changers, conjuncts
from graphtrain.plan.plan import PlanAction
from graphtrain.plan.scope import Ref, Scope
from graphtrain.plan.solve import Ways

# The field with the scale of the loss, by which its kind divides gradients; the parameter that says what a loss sums.
_SCALE, _PER = "scale", "per"
_Actions = Mapping[FlowPoint, Sequence[PlanAction]]
Counted = frozenset[str]
"""The paths of the nodes whose counts of backward passes are not 0."""
_At = tuple[FlowPoint, State, Counted]


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
        self._answered: dict[tuple[int, str, Counted], frozenset[bool]] = {}
        self._tables: dict[tuple[str, Counted], Table] = {}
        self._automata = {name: _Automaton(self, name) for name in self.optimizers}

    # ---- the counts of backward passes

    def counted(self, point: FlowPoint, before: Counted) -> Counted:
        """The counters that are not 0 after a visit. Counting starts at 0 where a body is entered."""
        if point.opens is not None:
            return frozenset(path for path in before if not path.startswith(point.opens.path))
        for action in self.actions.get(point, ()):
            if action.effect in ("backward", "zero_grad"):
                paths = {each.path for each, names in self.counting.items() if {*names} & {*action.optimizers}}
                before = before | paths if action.effect == "backward" else before - paths
        return before

    def open(self, point: FlowPoint, counted: Counted) -> Iterator[FlowEdge]:
        """The arrows that can be taken while some counters are not 0."""
        count = 0  # the failures before an arrow begin those before the next
        for arrow in point.arrows:
            if not all(False in self._answers(point.scope, guard, counted) for guard in arrow.failed[count:]):
                return
            count = len(arrow.failed)
            if arrow.guard is None or True in self._answers(point.scope, arrow.guard, counted):
                yield arrow

    def _answers(self, scope: Scope, guard: Expression, counted: Counted) -> frozenset[bool]:
        """The possible values of a guard."""
        key = id(guard), scope.path, counted  # the plan keeps the guards; hashing one would take as long as this
        if key not in self._answered:
            ways = self._tables.setdefault(key[1:], Table()).ways_to_answer(guard, partial(self._known, scope, counted))
            self._answered[key] = frozenset(answer for answer, found in ways.items() if found != ())
        return self._answered[key]

    def _known(self, scope: Scope, counted: Counted, read: FieldOf) -> Constant | Values:
        """What is known of a field that a guard reads."""
        kind, path = scope.kinds.get(read.node), f"{scope.path}{read.node}"
        counter = kind.counter(read.field) if kind is not None else None
        if counter is None or all(point.path != path for point in self.counting):
            return values_of(scope, read.node, read.field)
        if read.field == counter.name:
            return Values(least=1, whole=True) if path in counted else Constant(0)
        return Constant(False) if read.field == counter.full and path not in counted else ANY

    # ---- actions

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
            for point, state, _ in automaton.met
            for action in point.actions
            if action.effect == "divide" and name in action.optimizers and state in ("exchanged", "scaled")
        }

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
            named = [
                name
                for point in self.actions
                if point.path not in unbound
                for action in self.actions[point]
                for name in action.optimizers
            ]
            inside: dict[str, list[FlowPoint]] = {}  # by the node of the outermost graph, where one line fixes them all
            for point in unbound.values():
                inside.setdefault(point.path.partition("/")[0], []).append(point)
            for name, (point, *more) in inside.items():
                assert point.node is not None
                default = point.scope.named_by(point.node, "optimizer")
                several = list(dict.fromkeys(named if len({*named}) > 1 else self.optimizers))
                does = "acts on the gradients" if point in self.actions else "counts the backward passes"
                also = f" as {len(more)} more in `{name}` do," if more else ""
                at = f" at `{name}`" if name != point.path else ""
                listed = ", ".join(f'"{each}"' for each in several)
                yield self.flow.scope.problem(
                    "G410",
                    f"nodes.{name}",
                    f"`{point.path}` {does} of `{default}` by default,{also} and there are several optimizers: "
                    f"{quoted(several)}",
                    f'name the one it is for{at}: reads = {{ optimizer = "{several[-1]}" }}; or all: '
                    f"reads = {{ optimizer = [{listed}] }}",
                )
            return
        for name in self.optimizers:
            effects = [(point, action.effect) for point, actions in self.acting(name) for action in actions]
            used = {effect for _, effect in effects}
            if used == {"read"}:
                continue  # a run refuses it at its start, if it is not supplied
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
        met = [(each, at) for each in self._automata.values() for at in each.met if at[0] is point]
        if met and all(state in UNUSED for _, (_, state, _) in met):
            automaton, at = met[0]
            yield point.problem(
                "G416",
                f"`{point.path}` steps the scheduler before the optimizer is stepped",
                "torch expects it after, and skips the first rate: put it behind the node that steps the optimizer",
                severity="warning",
                path=automaton.way(at),
            )


# States with the values of guards are not distinguished beyond this number.
_MOST_MOMENTS = 50_000
_Moment = tuple[_At, frozenset[tuple[Expression, bool]]]


def _is_unbound(point: FlowPoint) -> bool:
    """True if neither a node nor one around it names its optimizer."""
    if not counters_of(point) and all(each.slot != "optimizer" or each.effect == "read" for each in point.actions):
        return False  # its kind names the optimizers by separate slots; one that only reads changes nothing
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
    return any(path in scope.graph.layers.added for path in paths)


class _Automaton:
    """The states that the gradients of one optimizer can be in at every point.

    Attributes:
        met: each point with a state before it, and the counters that are not 0 then.
    """

    def __init__(
        self, gradients: Gradients, optimizer: str, divisor: str = "", actions: _Actions | None = None
    ) -> None:
        self._gradients, self._flow = gradients, gradients.flow
        self._optimizer = optimizer
        self._actions = dict(gradients.acting(optimizer, actions))
        self._rules, self._divisor = RULES_OF_DIVISORS if divisor else gradients.rules, divisor
        start: _At = (self._flow.start, "clean", frozenset())
        self._ways = Ways([start], self._following)
        self.met = list(self._ways)

    def _following(self, at: _At) -> Iterator[_At]:
        point, state, counted = at
        after, now = self.acted(point, state)[0], self._gradients.counted(point, counted)
        return ((arrow.target, after, now) for arrow in self._gradients.open(point, now))

    def problems(self) -> Iterator[Problem]:
        faults_at: dict[tuple[str, str], tuple[Fault, _At]] = {}
        for at in self.met:
            faults = self.acted(*at[:2])[1]
            if any(target is self._flow.end and after in UNUSED for target, after, _ in self._following(at)):
                faults.append(OPEN)
            for fault in faults:
                faults_at.setdefault((fault.code, at[0].path), (fault, at))
        # Everything after meets gradients that are never cleared: reported once.
        kept = {self._after_step(at) for fault, at in faults_at.values() if fault.code == "G405"}
        for fault, at in faults_at.values():
            way = self._way_to_end(at[0]) if fault is OPEN else self.way(at)
            if way and (fault.code not in ("G403", "G406") or self._after_step(at) not in kept):
                yield self._reported(fault, at[0], way)

    def way(self, at: _At) -> list[FlowPoint]:
        """A shortest path to a point in a state."""
        return [point for point, *_ in self._ways.to(at)]

    def _way_to_end(self, last: FlowPoint) -> list[FlowPoint]:
        """A shortest path to a point from which the run can end with unused gradients; empty if there is none.

        It remembers the values of the guards that lead to the end: if that needs the guard of a step, it was taken.
        """
        plan, scope, end = self._flow.plan, self._flow.scope, self._flow.end
        ending = [arrow.guard for point in self._flow.points for arrow in point.arrows if arrow.target is end]
        parts = {part for guard in ending if guard is not None for part in (guard, *conjuncts(guard))}
        changed = {part: changers(plan, scope, part) for part in parts}

        def following(moment: _Moment) -> Iterator[_Moment]:
            (point, before, counted), known = moment
            name = point.node.name if point.acts and point.scope is scope and point.node is not None else ""
            kept = frozenset((part, answer) for part, answer in known if name not in changed[part])
            state, counted = self.acted(point, before)[0], self._gradients.counted(point, counted)
            for arrow in self._gradients.open(point, counted):
                answers = {(guard, False) for guard in arrow.failed if point.scope is scope}
                if arrow.guard is not None and point.scope is scope:
                    answers |= {(part, True) for part in conjuncts(arrow.guard)}
                if not any((part, not answer) in kept for part, answer in answers):
                    now = kept | {(part, answer) for part, answer in answers if part in parts}
                    yield (arrow.target, state, counted), now

        start: _Moment = (self._flow.start, "clean", frozenset()), frozenset()
        ways = Ways([start], following)
        for moment in ways:
            if len(ways) > _MOST_MOMENTS:
                return [last]  # beyond this, it is not decided whether the run can get there
            if moment[0][0] is last and any(at[0] is end and at[1] in UNUSED for at, _ in following(moment)):
                return [at[0] for at, _ in ways.to(moment)]
        return []

    def _after_step(self, at: _At) -> FlowPoint | None:
        """The position on the path to a point after its last step."""
        path = self.way(at)
        for before, after in zip(reversed(path[:-1]), reversed(path[1:]), strict=True):
            if {"step", "use"} & {action.effect for action in self._actions.get(before, ())}:
                return after
        return None

    def acted(self, point: FlowPoint, state: State) -> tuple[State, list[Fault]]:
        """The state in which a visit leaves gradients, and the problems."""
        faults = []
        for action in self._actions.get(point, ()):
            state, fault = self._rules[action.effect, state]
            faults += [fault] if fault is not None else []
        return state, faults

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


def counters_of(point: FlowPoint) -> tuple[str, ...]:
    """The fields of a node in which the engine counts backward passes."""
    if point.kind is None or not point.acts:
        return ()
    return tuple(name for name, declared in point.kind.fields.items() if declared.counts == "backward")


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
            reading = [other for other in gradients.actions if _reads(other, Ref("field", point.path, name))]
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


def _reads(point: FlowPoint, field: Ref) -> bool:
    """True if a node reads a field."""
    assert point.plan_node is not None
    reads = (*point.plan_node.setup_reads, *point.plan_node.visit_reads)
    return any(field in target.leaves() for _, target in reads)
