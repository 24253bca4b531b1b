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
from graphtrain.guards.evaluate import evaluate
from graphtrain.guards.syntax import Expression, expand, parse
from graphtrain.plan.names import Scope


def to_machine(graph: Graph, read: Callable[[str], Any]) -> Machine:
    """A machine with one state per node, and one guarded transition per edge under the trigger `advance`.

    A node with a body has two transitions without a guard of the graph: into its body where that has work to do, and
    else along its own edges. An edge that ends a body goes on to where the edges of the outer node lead.

    Arguments:
        read: the value of ``"node.field"`` or of a slot by path (``"validate/next_batch.last"``), now, as
            `Trainer.read` answers it. A node with a body is entered if its ``due`` holds.

    >>> machine = to_machine(Graph.load("fit"), lambda name: name == "next_batch.exhausted")
    >>> machine.set_state("next_batch"); _ = machine.model.advance(); machine.model.state
    'accumulate'
    """
    model = _Model()
    logging.getLogger("transitions").setLevel(logging.CRITICAL)
    machine = Machine(model, states=[END], initial=END, auto_transitions=False)
    _add(machine, Scope(graph), read, leave=lambda when: [(when, END)])
    machine.set_state(graph.start, model)
    return machine


class _Model:
    """What the machine moves; it has a state, and the trigger `advance`."""

    state: str


# An edge out of a graph, under a condition, becomes edges to where the graph around it goes on.
Condition = Callable[[], bool]
Leave = Callable[[Condition | None], list[tuple[Condition | None, str]]]


def _add(machine: Machine, scope: Scope, read: Callable[[str], Any], leave: Leave) -> None:
    graph, prefix = scope.graph, scope.path
    parsed = {name: parse(text) for name, text in graph.guards.items()}
    guards = {name: expand(expression, parsed, (name,)) for name, expression in parsed.items()}

    def exits(source: str) -> list[tuple[Condition | None, str]]:
        """The edges of a node, in order, as conditions and states."""
        found: list[tuple[Condition | None, str]] = []
        for edge in graph.edges[source]:
            when = None if edge.when is None else _condition(guards[edge.when], scope, read)
            found += leave(when) if edge.target == END else [(when, prefix + edge.target)]
        return found

    for name in graph.nodes:
        machine.add_state(prefix + name)
    for name, node in graph.nodes.items():
        path = prefix + name
        if node.body is not None:
            machine.add_transition("advance", path, f"{path}/{node.body.start}", conditions=[_due(path, read)])
        for when, target in exits(name):
            machine.add_transition("advance", path, target, conditions=[] if when is None else [when])
        if node.body is not None:

            def outward(when: Condition | None, source: str = name) -> list[tuple[Condition | None, str]]:
                return [(_both(when, further), target) for further, target in exits(source)]

            _add(machine, scope.body_of(node), read, outward)


def _condition(expression: Expression, scope: Scope, read: Callable[[str], Any]) -> Condition:
    def inside(name: str) -> Any:
        return read(scope.path + name if "." in name else scope.slot_path(name))

    return lambda: bool(evaluate(expression, inside))


def _due(path: str, read: Callable[[str], Any]) -> Condition:
    return lambda: bool(read(f"{path}.due"))


def _both(first: Condition | None, second: Condition | None) -> Condition | None:
    if first is None or second is None:
        return first or second
    return lambda: first() and second()
