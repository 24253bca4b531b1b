"""G6xx: a run can be saved: on every way round while it trains, and where the graph asks for a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from graphtrain.checks.data_flow import Slots
from graphtrain.checks.gradients import effects_of
from graphtrain.graph.problem import Problem
from graphtrain.names import quoted
from graphtrain.plan.flow import Flow, Point, told


def check_saving(flow: Flow, slots: Slots) -> Iterator[Problem]:
    """Every loop of training without a save point, and every checkpoint that comes late."""
    transient = slots.transient()
    if not transient:
        return
    import networkx

    alive = slots.alive()
    network = networkx.DiGraph()
    reached = set(slots.before.always)
    network.add_nodes_from(flow.points)
    # An arrow that leads where nothing transient is alive is a save point.
    network.add_edges_from(
        (point, arrow.target)
        for point in flow.points
        if point in reached
        for arrow in point.arrows
        if alive[arrow.target] & transient
    )
    for part in networkx.strongly_connected_components(network):
        inside = network.subgraph(part)
        trained = [point for point in flow.points if point in part and "backward" in effects_of(point)]
        if trained and inside.number_of_edges():
            point = trained[0]
            # In a part that has edges every point is on a circle.
            assert point.node is not None
            back = min((networkx.shortest_path(inside, one, point) for one in inside.successors(point)), key=len)
            names = quoted(slots.named(alive[back[0]] & transient))
            yield point.scope.problem(
                "G601",
                point.node.place,
                f"nodes.{point.node.name}",
                f"the run can train round and round without a moment at which it can be saved: {names} cannot be saved "
                "and is always still needed",
                "let it be read before the way round ends, or save it as progress of its node",
                path=told([point, *back]),
            )
    for point in flow.points:
        if point in reached and _asks(point):
            late = [arrow for arrow in point.arrows if alive[arrow.target] & transient]
            if late:
                assert point.node is not None
                names = quoted(slots.named(alive[late[0].target] & transient))
                yield point.scope.problem(
                    "G602",
                    point.node.place,
                    f"nodes.{point.node.name}",
                    f"after `{point.path}` {names} is still needed and "
                    "cannot be saved: the checkpoint is made later, where it can be",
                    "ask for checkpoints where it was read already",
                    severity="warning",
                    path=told([point, late[0].target]),
                )


def _asks(point: Point) -> bool:
    """True for a node that asks for checkpoints."""
    if not point.acts or point.kind is None:
        return False
    return any(read.name == "checkpoints" for read in point.kind.setup_reads or ())
