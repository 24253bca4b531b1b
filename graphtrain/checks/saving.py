"""G6xx: a run can be saved on every training loop, and where the graph requests a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from graphtrain.checks.cycles import cycles, distinct
from graphtrain.graph.elements import Problem
from graphtrain.names import quoted
from graphtrain.plan.plan import Plan
from graphtrain.plan.slots import Point, Slots


def check_saving(plan: Plan, slots: Slots) -> Iterator[Problem]:
    """Every training loop without a save point, and every checkpoint that is delayed."""
    if not slots.transient:
        return
    unsaved = slots.points.subgraph(each for each in slots.points if not each.is_position or slots.late(each))
    training = [node for node in plan.nodes if any(action.effect == "backward" for action in node.actions)]
    for cycle in cycles(unsaved, [Point(node.path, "acts") for node in training]):
        late = next(slots.late(point) for point in cycle if point.is_position)
        yield plan.by_path[cycle[0].path].problem(
            "G601",
            f"the run can train forever without a save point: {quoted(sorted(late))} cannot be saved and is always "
            "still needed",
            "read it for the last time before the loop closes, or store it as progress of its node",
            path=distinct(point.path for point in cycle),
        )
    for node in plan.nodes:
        following = [point for point in slots.points[Point(node.path, "leaves")] if slots.late(point)]
        if following and any(read.name == "checkpoints" for read, _ in node.setup_reads):
            yield node.problem(
                "G602",
                f"after `{node.path}` {quoted(sorted(slots.late(following[0])))} is still needed and cannot be saved: "
                "the checkpoint is made at a later node",
                "request checkpoints after it was read for the last time",
                severity="warning",
                path=distinct((node.path, following[0].path)),
            )
