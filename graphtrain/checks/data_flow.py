"""G303: what the graph is set up with does not come from its own nodes. G307: evaluations record under their names."""

from __future__ import annotations

from collections.abc import Iterator

from graphtrain.graph.elements import Problem
from graphtrain.plan.flow import Flow
from graphtrain.plan.plan import PlanNode
from graphtrain.plan.scope import resources_of, slots_of
from graphtrain.plan.slots import Slots


def check_data_flow(slots: Slots) -> Iterator[Problem]:
    """Every problem of slots."""
    flow = slots.flow
    needs, _ = slots.set_up_with(flow.scope)
    for slot in slots.named(needs):
        name = next(
            plan_node.node.name
            for plan_node in flow.plan.nodes_in(flow.scope)
            if slot in slots_of(target for _, target in plan_node.setup_reads)
        )
        yield flow.scope.problem(
            "G303",
            f"nodes.{name}",
            f"`{name}` is set up with `{slot}` before the graph runs, and only the graph writes it",
            "let it read the slot when it is called, not in `setup`",
        )
    yield from _recorded_twice(flow)


def _recorded_twice(flow: Flow) -> Iterator[Problem]:
    """Nodes that record metrics under the same name as an evaluation of other resources."""
    recorded: dict[object, list[PlanNode]] = {}
    for plan_node in flow.plan.nodes:
        parameter = plan_node.kind.records if plan_node.kind is not None else ""
        if not parameter:
            continue
        name = plan_node.parameters[parameter]
        before = recorded.setdefault(name, [])
        other = next((other for other in before if _evaluated(flow, other) != _evaluated(flow, plan_node)), None)
        before.append(plan_node)
        if other is not None:
            yield plan_node.scope.problem(
                "G307",
                f"nodes.{plan_node.node.name}",
                f"`{other.path}` and `{plan_node.path}` both record their metrics as `{name}/...`",
                f'give one of them another name, as in {plan_node.path}.{parameter} = "{name}_2"',
            )


def _evaluated(flow: Flow, plan_node: PlanNode) -> set[str]:
    """The resources that the nodes around one read."""
    nodes = flow.plan.nodes_in(plan_node.scope)
    return {name for each in nodes for _, target in (*each.reads, *each.setup_reads) for name in resources_of([target])}
