"""G6xx: a run can be saved: on every cycle while it trains, and where the graph requests a checkpoint."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from graphtrain.checks.data_flow import Before
from graphtrain.graph.elements import Problem
from graphtrain.names import quoted
from graphtrain.plan.slots import Slots
from graphtrain.plan.solve import circle, components


def check_saving(slots: Slots, before: Before) -> Iterator[Problem]:
    """Every training loop without a save point, and every checkpoint that is delayed."""
    reached = [point for point in slots.flow.points if point in before] if slots.transient else []
    unsaved = {  # within a visit a run cannot be saved anyway
        point: [arrow.target for arrow in point.arrows if not arrow.leads_to_visit or slots.late(arrow)]
        for point in reached
    }
    for part in components(reached, unsaved):
        training = [point for point in reached if point in part and "backward" in point.effects]
        if training:
            path = circle(training[0], unsaved)
            arrows = [arrow for at, after in itertools.pairwise(path) for arrow in at.arrows if arrow.target is after]
            names = next(late for arrow in arrows if (late := slots.late(arrow)))
            yield training[0].problem(
                "G601",
                f"the run can keep training without ever reaching a save point: {quoted(names)} cannot be saved and is "
                "always still needed",
                "read it before the loop closes, or keep it as progress of its node",
                path=path,
            )
    for point in reached:
        reads = point.plan_node.setup_reads if point.acts and point.plan_node is not None else ()
        late_arrows = [arrow for arrow in point.arrows if slots.late(arrow)]
        if late_arrows and any(read.name == "checkpoints" for read, _ in reads):
            yield point.problem(
                "G602",
                f"after `{point.path}` {quoted(slots.late(late_arrows[0]))} is still needed and cannot be saved: the "
                "checkpoint is made later, where it can be",
                "request checkpoints after it was read",
                severity="warning",
                path=[point, late_arrows[0].target],
            )
