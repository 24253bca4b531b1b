"""G6xx: a run can be saved: on every cycle while it trains, and where the graph requests a checkpoint."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from graphtrain.checks.data_flow import Before
from graphtrain.graph.elements import Problem
from graphtrain.names import quoted
from graphtrain.plan.flow import FlowPoint
from graphtrain.plan.slots import Slots
from graphtrain.plan.solve import circle, components


def check_saving(slots: Slots, before: Before) -> Iterator[Problem]:
    """Every training loop without a save point, and every checkpoint that is delayed."""
    if slots.transient:
        reached = [point for point in slots.flow.points if point in before]
        yield from _without_save_points(slots, reached)
        for point in reached:
            reads = point.plan_node.setup_reads if point.acts and point.plan_node is not None else ()
            if any(read.name == "checkpoints" for read, _ in reads):
                yield from _late(point, slots)


def _without_save_points(slots: Slots, reached: list[FlowPoint]) -> Iterator[Problem]:
    ways = {  # within a visit a run has no position
        point: [
            arrow.target for arrow in point.arrows if not slots.is_position(arrow, point) or slots.late(arrow, point)
        ]
        for point in reached
    }
    for part in components(ways, ways):
        point = next((point for point in slots.flow.points if point in part and "backward" in point.effects), None)
        if point is not None:
            path = circle(point, ways)
            arrows = [
                (before, arrow)
                for before, after in itertools.pairwise(path)
                for arrow in before.arrows
                if arrow.target is after
            ]
            names = next(late for before, arrow in arrows if (late := slots.late(arrow, before)))
            yield point.problem(
                "G601",
                f"the run can keep training without ever reaching a save point: {quoted(names)} cannot "
                "be saved and is always still needed",
                "read it before the loop closes, or keep it as progress of its node",
                path=path,
            )


def _late(point: FlowPoint, slots: Slots) -> Iterator[Problem]:
    """A node that requests a checkpoint where none can be made."""
    for arrow in point.arrows:
        if names := slots.late(arrow, point):
            yield point.problem(
                "G602",
                f"after `{point.path}` {quoted(names)} is still needed and cannot be saved: the checkpoint is made "
                "later, where it can be",
                "request checkpoints after it was read",
                severity="warning",
                path=[point, arrow.target],
            )
            return
