"""How a run ends.

G504: the end of a run can be reached, and no minimum is above a maximum; if `after` is "never" and nothing else ends
the run, it is a warning: the user may want to stop it. G505: every amount has an effect, and can be reached.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from graphtrain.checks.answers import ANY, Table, Values
from graphtrain.errors import UsageError
from graphtrain.graph.elements import END, Problem
from graphtrain.kind.declaration import FROM
from graphtrain.kind.parameter import show_value
from graphtrain.kind.trigger import RUN, Trigger
from graphtrain.language.syntax import Constant, Expression, FieldOf, Operation, walk
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import Scope

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "=="}


def check_endings(plan: Plan) -> Iterator[Problem]:
    """Every graph whose guards on the way to the end cannot hold, or need more than the run will have."""
    for scope in plan.scopes.values():
        yield from _Endings(plan, scope).problems()


class _Endings:
    """The guards of the edges that end one graph."""

    def __init__(self, plan: Plan, scope: Scope) -> None:
        self._plan, self._scope = plan, scope
        edges = [edge for leaving in scope.graph.edges.values() for edge in leaving if edge.target == END]
        self._names = list(dict.fromkeys(edge.when for edge in edges))
        self._guards = [scope.guards[name] for name in self._names if name is not None]
        # The path for data without any batch is not an intended ending.
        self._empty = {
            FieldOf(plan_node.node.name, "empty")
            for plan_node in plan.nodes_in(scope)
            if plan_node.kind is not None and plan_node.kind.fetches
        }
        self._counters = {scope.counter(unit) for unit in scope.graph.units}

    def problems(self) -> Iterator[Problem]:
        is_guarded = bool(self._guards) and None not in self._names
        ways = [Table().ways_to_answer(guard, self._known)[True] for guard in self._guards]
        if is_guarded and all(way == () for way in ways):
            yield self._endless()
        else:
            yield from self._unread()
        yield from self._shares()
        if not is_guarded:
            return
        yield from self._after_the_end()
        for plan_node in self._ending_nodes():
            yield from self._above_the_maximum(plan_node)

    # ---- guards that can hold

    def _known(self, read: FieldOf) -> Constant | Values:
        """Triggers that are never due, and counts, which are never below 0."""
        plan_node = self._plan.by_path[f"{self._scope.path}{read.node}"]
        if read in self._empty or (read.field == "due" and plan_node.is_never_due):
            return Constant(False)
        return Values(least=0) if read.field == "runs" or (read.node, read.field) in self._counters else ANY

    def _endless(self) -> Problem:
        scope = self._scope
        names = [name for name in self._names if name is not None]
        never = [
            plan_node
            for plan_node in self._ending_nodes()
            if plan_node.trigger is not None and plan_node.trigger.is_never
        ]
        if never:
            node = never[0].node
            return scope.problem(
                "G504",
                f"nodes.{node.name}.after",
                f'`{node.name}.after` is "never", and nothing else ends the graph: `{names[0]}` cannot hold',
                f'give it an amount, as in {node.name}.after = "10 epochs"; where a step function returns STOP, or a '
                'person stops the run, allow = ["G504"]',
                severity="warning",  # mostly intended: such a run is stopped by a signal, or by `until`
            )
        return scope.problem(
            "G504",
            f"guards.{names[0]}",
            f"`{names[0]}`, which ends the graph, can never hold",
            "let it read something that becomes true, such as `finish.due`",
        )

    # ---- amounts without effect

    def _unread(self) -> Iterator[Problem]:
        """The nodes with an `after` whose `due` nothing reads."""
        for plan_node in self._plan.nodes_in(self._scope):
            after, name = plan_node.node.parameters.get("after"), plan_node.node.name
            trigger = plan_node.trigger if plan_node.kind is not None and plan_node.kind.trigger == "after" else None
            if after is None or trigger is None or trigger.is_never:
                continue
            if (plan_node.path, "due") not in self._plan.fields_read:
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
        for plan_node in self._plan.nodes_in(self._scope) if most else ():
            start = plan_node.start
            amounts = self._amounts(start) if start is not None else {}
            if amounts and all(field in most and amount > most[field][1] for field, (_, amount) in amounts.items()):
                name, field = plan_node.node.name, next(iter(amounts))
                yield self._scope.problem(
                    "G505",
                    f"nodes.{name}.{FROM}",
                    f'{name}.{FROM} = "{amounts[field][0]}" is after the end of the run, {ending[0].node.name}.after = '
                    f'"{most[field][0]}": `{name}` never does anything',
                    "lower the first, or raise the second",
                )

    def _shares(self) -> Iterator[Problem]:
        """The shares of the run that are more than all of it, or by which its length would depend on itself."""
        for plan_node in self._plan.nodes_in(self._scope):
            for name in ("every", "after", FROM):
                trigger = plan_node.parameters.get(name)
                terms = self._plan.terms(self._scope, trigger) if isinstance(trigger, Trigger) else ()
                for owner, counted, term in terms:
                    text = f'{plan_node.node.name}.{name} = "{term}"'
                    if term.unit == RUN and term.amount > 1:
                        code, reason = "G505", f"{text} is more than the whole run: it is never reached"
                        hint = 'a share of the run is at most 1, as in "0.5 run"'
                    elif term.unit == RUN and (unknown := self._not_ahead(owner, counted, plan_node)):
                        code, reason = "G504", f"{text} is a share of the run, and {unknown}"
                        hint = f'count epochs or steps, as in {plan_node.node.name}.{name} = "10 epochs"'
                    else:
                        continue
                    yield self._scope.problem(code, f"nodes.{plan_node.node.name}.{name}", reason, hint)

    def _not_ahead(self, owner: PlanNode, field: str, due: PlanNode) -> str:
        """Why what a field comes to at the end of its graph is not known ahead; empty if it is.

        Arguments:
            due: the node that is due by a share of it.
        """
        from graphtrain.plan.counted import Counted  # which few graphs need

        plan = self._plan if owner.scope is self._plan.main else Plan(owner.scope.graph, owner.scope)
        inner, counted = _Endings(plan, owner.scope), Counted(plan, owner.path, field, lambda node: True)
        if due.path in counted.needed:
            return f"its length would depend on itself: when `{due.path}` is due decides it"
        for node in inner._ending_nodes():
            for by, name, term in plan.terms(node.scope, node.trigger) if node.trigger is not None else ():
                if by.kind is not None and not by.kind.fields[name].in_digest:
                    return f'`{node.path}.after` = "{term}" ends it by time'
        try:
            guards = [counted.certain(owner.scope, guard) for guard in inner._guards]
        except UsageError as error:
            return error.message
        is_endless = all(Table().ways_to_answer(guard, inner._known)[True] == () for guard in guards)
        return "nothing that is counted ends it" if guards and is_endless else ""

    # ---- a minimum above the maximum

    def _ending_nodes(self) -> list[PlanNode]:
        """The nodes with `after` that the guards read."""
        asked = {part.node for guard in self._guards for part in walk(guard) if isinstance(part, FieldOf)}
        return [
            plan_node
            for plan_node in self._plan.nodes_in(self._scope)
            if plan_node.node.name in asked and plan_node.kind is not None and plan_node.kind.trigger == "after"
        ]

    def _above_the_maximum(self, plan_node: PlanNode) -> Iterator[Problem]:
        trigger = plan_node.trigger
        most = self._amounts(trigger) if isinstance(trigger, Trigger) else {}
        for guard in self._guards:
            for part in walk(guard):
                for field, operator, bound in self._bounds(part):
                    text, amount = most.get(field, ("", bound))
                    if operator not in (">", ">=") or bound <= amount:
                        continue
                    node = plan_node.node
                    yield self._scope.problem(
                        "G504",
                        f"nodes.{node.name}.after",
                        f"the ending needs at least {float(bound):g} `{field.node}.{field.field}`, and "
                        f'{node.name}.after = "{text}" is less: the minimum is above the maximum',
                        "raise the maximum, or lower the minimum",
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
        """The comparison of a field with a number or a parameter, seen from the field; else nothing."""
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
        plan_node = self._plan.by_path.get(f"{self._scope.path}{operand.node}")
        if plan_node is None or operand.field not in plan_node.parameters or operand.field in plan_node.expressions:
            return operand
        value = plan_node.parameters[operand.field]
        return Constant(value) if isinstance(value, int | float) else operand


def _number(expression: Expression) -> Fraction | None:
    if not isinstance(expression, Constant) or type(expression.value) not in (int, float):
        return None
    return Fraction(expression.value) if math.isfinite(expression.value) else None  # type: ignore[arg-type]
