"""G303: what the graph is set up with comes from outside. G307: each evaluation records under a name of its own."""

from __future__ import annotations

from collections.abc import Iterator

from graphtrain.graph.elements import Problem
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import resources_of, slots_of


def check_data_flow(plan: Plan) -> Iterator[Problem]:
    """Every slot that is read in `setup`, and every name under which two evaluations record metrics."""
    for plan_node in plan.nodes_in(plan.main):
        for slot in slots_of([ref for read, ref in plan_node.set_up_with if read.required]):
            yield plan_node.problem(
                "G303",
                f"`{plan_node.path}` is set up with `{slot}` before the graph runs, and only the graph writes it",
                "let it read the slot when it is called, not in `setup`",
            )
    yield from _recorded_twice(plan)


def _recorded_twice(plan: Plan) -> Iterator[Problem]:
    """Nodes that record metrics under the same name as an evaluation of other resources."""
    recorded: dict[object, tuple[PlanNode, set[str]]] = {}
    for plan_node in plan.nodes:
        if parameter := plan_node.kind.records:
            around = [pair for each in plan.nodes_in(plan_node.scope) for pair in (*each.reads, *each.setup_reads)]
            evaluated = set(resources_of([ref for _, ref in around]))
            name = plan_node.parameters[parameter]
            other, resources = recorded.setdefault(name, (plan_node, evaluated))
            if resources != evaluated:
                yield plan_node.problem(
                    "G307",
                    f"`{other.path}` and `{plan_node.path}` both record their metrics as `{name}/...`",
                    f'give one of them another name, as in {plan_node.path}.{parameter} = "{name}_2"',
                )
