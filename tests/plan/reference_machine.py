"""The executable meaning of a graph: a `transitions` machine.

It shares nothing with the compiled engine but the graph and the values it reads: guards are evaluated on their trees.
Tests compare every visit of the engine with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from transitions import Machine

from graphtrain.graph import Graph
from graphtrain.graph.elements import END
from graphtrain.language.syntax import Expression
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import ExpressionTarget, FieldTarget, ListTarget, ResourceTarget, Scope, SlotTarget, Target
from tests.language.reference import evaluate


def to_machine(graph: Graph, read: Callable[[str], Any]) -> Machine:
    """A machine with one state per node, and one guarded transition per edge under the trigger `advance`.

    A node with a body has two transitions without a guard of the graph: into its body where that has work to do, and
    else along its own edges. An edge that ends a body goes on to where the edges of the outer node lead.

    Arguments:
        read: the value of ``"node.field"`` or of a slot by path (``"validate/next_batch.last"``), now, as
            `Trainer.read` answers it. A node with a body is entered if its ``due`` holds.
    """
    model = _Model()
    logging.getLogger("transitions").setLevel(logging.CRITICAL)
    machine = Machine(model, states=[END], initial=END, auto_transitions=False)
    plan = Plan(graph)
    _add(machine, plan, plan.main, read, leave=lambda when: [(when, END)])
    machine.set_state(graph.start, model)
    return machine


class _Model:
    """What the machine moves; it has a state, and the trigger `advance`."""

    state: str


# An edge out of a graph, under a condition, becomes edges to where the graph around it goes on.
Condition = Callable[[], bool]
Leave = Callable[[Condition | None], list[tuple[Condition | None, str]]]


def _add(machine: Machine, plan: Plan, scope: Scope, read: Callable[[str], Any], leave: Leave) -> None:
    nodes = plan.nodes_in(scope)

    def exits(planned: PlanNode) -> list[tuple[Condition | None, str]]:
        """The edges of a node, in order, as conditions and states."""
        ways: list[tuple[Condition | None, str]] = []
        for way in planned.exits:
            when = None if way.guard is None else _condition(way.guard, scope, read)
            ways += leave(when) if way.target is None else [(when, way.target.path)]
        return ways

    for planned in nodes:
        machine.add_state(planned.path)
    for planned in nodes:
        path = planned.path
        if planned.body is not None:
            machine.add_transition(
                "advance", path, f"{planned.body.path}{planned.body.graph.start}", conditions=[_due(path, read)]
            )
        for when, target in exits(planned):
            machine.add_transition("advance", path, target, conditions=[] if when is None else [when])
        if planned.body is not None:

            def outward(when: Condition | None, source: PlanNode = planned) -> list[tuple[Condition | None, str]]:
                return [(_both(when, further), target) for further, target in exits(source)]

            _add(machine, plan, planned.body, read, outward)


def _condition(guard: Expression, scope: Scope, read: Callable[[str], Any]) -> Condition:
    return lambda: bool(_evaluated(guard, scope, read))


def _evaluated(expression: Expression, scope: Scope, read: Callable[[str], Any]) -> Any:
    return evaluate(expression, lambda name: _value(scope.resolve(name), read))


def _value(target: Target, read: Callable[[str], Any]) -> Any:
    match target:
        case SlotTarget(path):
            return read(path)
        case FieldTarget(node, field):
            return read(f"{node}.{field}")
        case ResourceTarget(name):
            return read(name)
        case ListTarget(targets):
            return tuple(_value(inner, read) for inner in targets)
        case ExpressionTarget(_, _, scope, parameter):
            value = _evaluated(target.expression, scope, read)
            return value if parameter is None else parameter.evaluated(value)


def _due(path: str, read: Callable[[str], Any]) -> Condition:
    return lambda: bool(read(f"{path}.due"))


def _both(first: Condition | None, second: Condition | None) -> Condition | None:
    if first is None or second is None:
        return first or second
    return lambda: first() and second()
