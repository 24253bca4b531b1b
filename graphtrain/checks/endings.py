"""G504: a run has an end that can come, and no minimum of it is above its maximum. G505: no amount decides nothing.

Where `after` is "never" and nothing else ends the run it is a warning: a person may want to stop it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from graphtrain.checks.answers import ANY, Table, Values
from graphtrain.graph.elements import END
from graphtrain.graph.problem import Problem
from graphtrain.kind.declaration import FROM
from graphtrain.kind.parameter import show_value
from graphtrain.kind.trigger import RUN, Trigger
from graphtrain.language.syntax import Constant, Expression, FieldOf, Operation, walk
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import Scope

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "=="}


def check_endings(plan: Plan) -> Iterator[Problem]:
    """Every graph whose guards on the way to the end cannot hold, or ask for more than the run will have."""
    for scope in plan.scopes.values():
        if not scope.has_unknown:
            yield from _Endings(plan, scope).problems()


class _Endings:
    """The guards of the edges that end one graph."""

    def __init__(self, plan: Plan, scope: Scope) -> None:
        self._plan, self._scope = plan, scope
        edges = [edge for leaving in scope.graph.edges.values() for edge in leaving if edge.target == END]
        self._names = list(dict.fromkeys(edge.when for edge in edges))
        self._guards = [scope.guards[name] for name in self._names if name is not None]
        # The way on which data gives no batch at all is no ending that anybody waits for.
        self._empty = {
            FieldOf(planned.node.name, epoch.empty)
            for planned in plan.nodes_in(scope)
            if planned.kind is not None and (epoch := planned.kind.epoch_fields) is not None
        }
        self._counters = {scope.counter(unit) for unit in scope.graph.units}

    def problems(self) -> Iterator[Problem]:
        is_guarded = bool(self._guards) and None not in self._names
        ways = [Table().ways_to_answer(guard, self._known)[True] for guard in self._guards]
        if is_guarded and all(way == () for way in ways):
            yield self._endless()
        else:
            yield from self._unread()
        if not is_guarded:
            return
        yield from self._after_the_end()
        for planned in self._ending_nodes():
            yield from self._above_the_maximum(planned)

    # ---- what can hold

    def _known(self, read: FieldOf) -> Constant | Values:
        """What is never due, and counts, which are never below 0."""
        planned = self._plan.by_path.get(f"{self._scope.path}{read.node}")
        trigger = planned.trigger if planned is not None and read.field == "due" else None
        if trigger is not None and planned is not None:
            return Constant(False) if trigger.is_never and not planned.also_due else ANY
        if read in self._empty:
            return Constant(False)
        return Values(least=0) if read.field == "runs" or (read.node, read.field) in self._counters else ANY

    def _endless(self) -> Problem:
        scope = self._scope
        names = [name for name in self._names if name is not None]
        never = [
            planned for planned in self._ending_nodes() if planned.trigger is not None and planned.trigger.is_never
        ]
        if never:
            node = never[0].node
            return scope.problem(
                "G504",
                f"nodes.{node.name}.after",
                f'`{node.name}.after` is "never", and nothing else ends the graph: `{names[0]}` cannot hold',
                f'give it an amount, as in {node.name}.after = "10 epochs"; where a step function returns STOP, or a '
                'person stops the run, allow = ["G504"]',
                severity="warning",  # it is meant, mostly: such a run is stopped by hand, or by `until`
            )
        return scope.problem(
            "G504",
            f"guards.{names[0]}",
            f"`{names[0]}`, which ends the graph, can never hold",
            "let it ask for something that comes, as `finish.due` does",
        )

    # ---- amounts that decide nothing

    def _unread(self) -> Iterator[Problem]:
        """The nodes that are given an `after`, and whose `due` nothing reads."""
        for planned in self._plan.nodes_in(self._scope):
            after, name = planned.node.parameters.get("after"), planned.node.name
            trigger = planned.trigger if planned.kind is not None and planned.kind.trigger == "after" else None
            if after is None or trigger is None or trigger.is_never:
                continue
            if (planned.path, "due") not in self._plan.fields_read:
                yield self._scope.problem(
                    "G505",
                    f"nodes.{name}.after",
                    f"no guard reads `{name}.due`, so {name}.after = {show_value(after)} ends nothing",
                    f'let the guard of an edge to "end" read it, or set {name}.after = "never"',
                )

    def _after_the_end(self) -> Iterator[Problem]:
        """The nodes with a `from` above the amount at which the run ends, where that is counted by the same clock."""
        ending = self._ending_nodes()
        end = ending[0].trigger if len(ending) == 1 else None
        most = self._amounts(end) if end is not None and not end.is_never else {}
        for planned in self._plan.nodes_in(self._scope) if most else ():
            start = planned.start
            amounts = self._amounts(start) if start is not None else {}
            if amounts and all(field in most and amount > most[field][1] for field, (_, amount) in amounts.items()):
                name, field = planned.node.name, next(iter(amounts))
                yield self._scope.problem(
                    "G505",
                    f"nodes.{name}.{FROM}",
                    f'{name}.{FROM} = "{amounts[field][0]}" is after the end of the run, {ending[0].node.name}.after = '
                    f'"{most[field][0]}": `{name}` never does anything',
                    "lower the one, or raise the other",
                )

    # ---- a minimum above the maximum

    def _ending_nodes(self) -> list[PlanNode]:
        """The nodes with `after` that the guards ask for."""
        asked = {part.node for guard in self._guards for part in walk(guard) if isinstance(part, FieldOf)}
        return [
            planned
            for planned in self._plan.nodes_in(self._scope)
            if planned.node.name in asked and planned.kind is not None and planned.kind.trigger == "after"
        ]

    def _above_the_maximum(self, planned: PlanNode) -> Iterator[Problem]:
        trigger = planned.trigger
        most = self._amounts(trigger) if isinstance(trigger, Trigger) else {}
        for guard in self._guards:
            for part in walk(guard):
                for field, operator, bound in self._bounds(part):
                    text, amount = most.get(field, ("", bound))
                    if operator not in (">", ">=") or bound <= amount:
                        continue
                    node = planned.node
                    yield self._scope.problem(
                        "G504",
                        f"nodes.{node.name}.after",
                        f"the ending asks for at least {float(bound):g} `{field.node}.{field.field}`, and "
                        f'{node.name}.after = "{text}" is less: the minimum is above the maximum',
                        "raise the one, or lower the other",
                    )
                    return

    def _amounts(self, trigger: Trigger) -> dict[FieldOf, tuple[str, Fraction]]:
        """The amounts of a trigger, by the field that counts them."""
        amounts = {}
        for owner, name, term in self._plan.terms(self._scope, trigger):
            if term.unit != RUN:
                amounts[FieldOf(owner.path.removeprefix(self._scope.path), name)] = str(term), term.base.amount
        return amounts

    def _bounds(self, part: Expression) -> Iterator[tuple[FieldOf, str, Fraction]]:
        """The comparison of a field with a number, which a parameter may be, as the field has it; else nothing."""
        if not isinstance(part, Operation) or part.name not in _MIRRORED:
            return
        left, right = map(self._with_value, part.operands)
        if isinstance(left, FieldOf) and (bound := _number(right)) is not None:
            yield left, part.name, bound
        elif isinstance(right, FieldOf) and (bound := _number(left)) is not None:
            yield right, _MIRRORED[part.name], bound

    def _with_value(self, operand: Expression) -> Expression:
        if not isinstance(operand, FieldOf):
            return operand
        planned = self._plan.by_path.get(f"{self._scope.path}{operand.node}")
        if planned is None or operand.field not in planned.parameters or operand.field in planned.expressions:
            return operand
        value = planned.parameters[operand.field]
        return Constant(value) if isinstance(value, int | float) else operand


def _number(expression: Expression) -> Fraction | None:
    if not isinstance(expression, Constant) or type(expression.value) not in (int, float):
        return None
    return Fraction(expression.value) if math.isfinite(expression.value) else None  # type: ignore[arg-type]
