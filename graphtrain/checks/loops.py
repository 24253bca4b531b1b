"""G5xx: a run cannot go round forever without anything changing that decides where it goes.

In each strongly connected part of a graph, the points are deleted whose visits change what a guard of that part reads;
a circle that remains is an error. A node that may be skipped changes something only where it is not; a trigger that
fires is not due afterwards, so it ends no more rounds than its clock begins. A count of backward passes changes on a
way round that adds to it or clears it; on one that does both it comes back to what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from graphtrain.checks.gradients import Gradients, effects_of
from graphtrain.graph.problem import Problem
from graphtrain.guards.syntax import Expression, FieldOf, Name, walk
from graphtrain.names import quoted
from graphtrain.plan.facts import changers_of_field
from graphtrain.plan.flow import Flow, FlowEdge, FlowPoint, names_on

if TYPE_CHECKING:
    import networkx


def check_loops(flow: Flow, gradients: Gradients) -> Iterator[Problem]:
    """Every loop that nothing in it could end, in the graph and in those inside."""
    scopes: dict[str, list[FlowPoint]] = {}
    for point in flow.points:
        if point.node is not None:
            scopes.setdefault(point.scope.path, []).append(point)
    for points in scopes.values():
        yield from _Loops(points, gradients).problems()


class _Loops:
    """The loops of one graph; a node with a body is passed in one go."""

    def __init__(self, points: list[FlowPoint], gradients: Gradients) -> None:
        self._points = points
        self._scope = points[0].scope
        self._gradients = gradients
        self._acting: dict[str, FlowPoint] = {}
        for point in points:
            if point.acts:
                assert point.node is not None
                self._acting[point.node.name] = point
        self._inside = set(points)

    def problems(self) -> Iterator[Problem]:
        for part in _parts(self._network(self._points)):
            guards = list(dict.fromkeys(arrow.guard for point in part for arrow in point.arrows if arrow.guard))
            changing = {point for guard in guards for point in self._changers(guard)}
            changing |= {point for point in part if point.is_unknown}
            rest = _parts(self._network(point for point in part if point not in changing))
            counted = {name for guard in guards for name in self._counted(guard)}
            endless = [circle for inner in rest for circle in self._without_counting(inner, counted)]
            for circle in endless:
                yield self._endless(circle)
            if not endless:
                yield from self._stuck(part)

    def _network(self, points: Iterable[FlowPoint]) -> networkx.DiGraph:
        import networkx

        network = networkx.DiGraph()
        network.add_nodes_from(points)
        for point in list(network):
            for following in self._following(point):
                if following in network:
                    network.add_edge(point, following)
        return network

    def _following(self, point: FlowPoint) -> Iterator[FlowPoint]:
        if point.opens is not None:
            assert point.node is not None
            yield self._acting[point.node.name]
        else:
            yield from (arrow.target for arrow in point.arrows if arrow.target in self._inside)

    def _endless(self, part: list[FlowPoint]) -> Problem:
        circle = _circle(self._network(part))
        names = names_on(circle)
        node = circle[0].node
        assert node is not None
        around = f"stay at {quoted(names[:1])}" if len(names) == 1 else f"go round {quoted(names[:-1])}"
        return self._scope.problem(
            "G501",
            node.place,
            f"nodes.{node.name}",
            f"the run can {around} forever: no guard there reads anything that changes on the way",
            "route the loop through a node whose progress a guard in it reads, such as `next_batch`, or guard an "
            "edge that leads back by something that changes",
            path=names if len(names) > 1 else names * 2,
        )

    def _stuck(self, part: list[FlowPoint]) -> Iterator[Problem]:
        """A loop that is left by guards alone, all of which read what does not change while it goes round."""
        inside = set(part)
        ways_out = [
            (point, arrow)
            for point in part
            if point.opens is None
            for arrow in point.arrows
            if arrow.target not in inside
        ]
        if not ways_out or any(point.is_unknown for point in part):
            return
        if any(self._may_open(arrow, inside) for _, arrow in ways_out):
            return
        point, arrow = ways_out[0]
        node = point.node
        assert node is not None
        yield self._scope.problem(
            "G502",
            node.place,
            f"edges.{node.name}",
            f"the loop of {quoted(names_on(part))} can be left only at `{point.path}`, as {quoted(arrow.asks)} "
            "decides, and nothing in the loop changes what that reads",
            "let the guard read progress of a node of the loop, such as `runs`",
            path=names_on(_circle(self._network(part))),
        )

    def _may_open(self, arrow: FlowEdge, part: set[FlowPoint]) -> bool:
        """True if a way out that is closed may be open another time round."""
        if arrow.guard is not None:
            return self._changes(arrow.guard, part)
        return not arrow.failed or any(self._changes(guard, part) for guard in arrow.failed)

    # ---- what changes what

    def _changers(self, guard: Expression) -> set[FlowPoint]:
        """The points whose visits may change what a guard reads."""
        points: set[FlowPoint] = set()
        for read in walk(guard):
            if isinstance(read, FieldOf):
                points |= self._of_field(read.node, read.field)
            elif isinstance(read, Name):
                points |= {
                    self._acting[name]
                    for name, node in self._scope.graph.nodes.items()
                    if read.name in self._scope.written_by(node) and name in self._acting
                }
        return points

    def _of_field(self, name: str, field: str) -> set[FlowPoint]:
        kind = self._scope.kind_at(name)
        if kind is not None and kind.counter(field) is not None and "/" not in name:
            return set()  # the engine counts it, where the effect is
        names = changers_of_field(self._gradients.flow.plan, self._scope, FieldOf(name, field))
        return {self._acting[changer] for changer in names if changer in self._acting}

    # ---- counts of backward passes

    def _counted(self, guard: Expression) -> set[str]:
        """The optimizers whose backward passes a guard counts."""
        optimizers: set[str] = set()
        for read in walk(guard):
            if isinstance(read, FieldOf) and read.node in self._acting:
                point = self._acting[read.node]
                if point.kind is not None and point.kind.counter(read.field) is not None:
                    assert point.planned is not None
                    optimizers.update(point.planned.optimizers)
        return optimizers

    def _without_counting(self, part: list[FlowPoint], counted: set[str]) -> list[list[FlowPoint]]:
        """The parts that remain of one when the points are deleted that let a count grow, or end it."""
        adding = {point: self._doing("backward", point) & counted for point in part}
        clearing = {point: self._doing("zero_grad", point) & counted for point in part}
        added, cleared = set().union(*adding.values()), set().union(*clearing.values())
        kept = [point for point in part if not adding[point] - cleared and not clearing[point] - added]
        if len(kept) == len(part):
            return [part]
        return [inner for less in _parts(self._network(kept)) for inner in self._without_counting(less, counted)]

    def _doing(self, effect: str, point: FlowPoint) -> set[str]:
        """The optimizers to which a visit, or one inside its body, does something that counts."""
        assert point.node is not None
        prefix = f"{point.path}/"
        optimizers: set[str] = set()
        for acting, names in self._gradients.targets.items() if point.acts else ():
            inside = point.node.body is not None and acting.path.startswith(prefix)
            if (acting is point or inside) and effect in effects_of(acting):
                optimizers |= {
                    name for name in names if effect == "backward" or not self._gradients.is_without(acting, name)
                }
        return optimizers

    def _changes(self, guard: Expression, part: set[FlowPoint]) -> bool:
        """True if a visit in a part may change what a guard reads."""
        if self._changers(guard) & part:
            return True
        counted = self._counted(guard)
        return bool(counted) and any(
            counted & (self._doing("backward", point) | self._doing("zero_grad", point)) for point in part
        )


def _parts(network: networkx.DiGraph) -> list[list[FlowPoint]]:
    """The strongly connected parts in which one can go round; each, and they, in the order of the graph."""
    import networkx

    order = {point: number for number, point in enumerate(network)}
    parts = [
        sorted(part, key=order.__getitem__)
        for part in networkx.strongly_connected_components(network)
        if len(part) > 1 or any(network.has_edge(point, point) for point in part)
    ]
    return sorted(parts, key=lambda part: order[part[0]])


def _circle(network: networkx.DiGraph) -> list[FlowPoint]:
    """A shortest way from the first point back to itself, in a part in which there is one."""
    import networkx

    first = next(iter(network))
    ways = networkx.single_target_shortest_path(network, first)
    back = min((ways[after] for after in network.successors(first)), key=len)
    return [first, *back]
