"""G5xx: a run cannot go round for ever without anything changing that decides where it goes.

In each strongly connected part of a graph, the points are deleted whose visits change what a guard of that part reads;
a circle that remains is an error. A node that may be skipped changes something only where it is not; a trigger that
fires is not due afterwards, so it ends no more rounds than its clock begins. A count of backward passes changes on a
way round that adds to it or clears it; on one that does both it comes back to what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from graphtrain.checks.gradients import Gradients, counters_of, effects_of, optimizers_of
from graphtrain.graph.problem import Problem
from graphtrain.guards.syntax import Expression, FieldOf, Name, walk
from graphtrain.names import quoted
from graphtrain.plan.facts import clock_owners, written_by
from graphtrain.plan.flow import Arrow, Flow, Point, told

if TYPE_CHECKING:
    import networkx


def check_loops(flow: Flow, gradients: Gradients) -> Iterator[Problem]:
    """Every loop that nothing in it could end, in the graph and in those inside."""
    scopes: dict[str, list[Point]] = {}
    for point in flow.points:
        if point.node is not None:
            scopes.setdefault(point.scope.path, []).append(point)
    for points in scopes.values():
        yield from _Loops(points, gradients).problems()


class _Loops:
    """The loops of one graph; a node with a body is passed in one go."""

    def __init__(self, points: list[Point], gradients: Gradients) -> None:
        self._points = points
        self._scope = points[0].scope
        self._gradients = gradients
        self._acting: dict[str, Point] = {}
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
            endless = [circle for one in rest for circle in self._without_counting(one, counted)]
            for circle in endless:
                yield self._endless(circle)
            if not endless:
                yield from self._stuck(part)

    def _network(self, points: Iterable[Point]) -> networkx.DiGraph:
        import networkx

        network = networkx.DiGraph()
        network.add_nodes_from(points)
        for point in list(network):
            for following in self._following(point):
                if following in network:
                    network.add_edge(point, following)
        return network

    def _following(self, point: Point) -> Iterator[Point]:
        if point.opens is not None:
            assert point.node is not None
            yield self._acting[point.node.name]
        else:
            yield from (arrow.target for arrow in point.arrows if arrow.target in self._inside)

    def _endless(self, part: list[Point]) -> Problem:
        circle = _circle(self._network(part))
        names = told(circle)
        node = circle[0].node
        assert node is not None
        around = f"stay at {quoted(names[:1])}" if len(names) == 1 else f"go round {quoted(names[:-1])}"
        return self._scope.problem(
            "G501",
            node.place,
            f"nodes.{node.name}",
            f"the run can {around} for ever: no guard there reads anything that changes on the way",
            "lead the way round through a node whose progress a guard on it reads, such as `next_batch`, or guard an "
            "edge that leads back by something that changes",
            path=names if len(names) > 1 else names * 2,
        )

    def _stuck(self, part: list[Point]) -> Iterator[Problem]:
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
            f"the loop of {quoted(told(part))} can be left only at `{point.path}`, as {quoted(arrow.asks)} decides, "
            "and nothing in the loop changes what that reads",
            "let the guard read progress of a node of the loop, such as `runs`",
            path=told(_circle(self._network(part))),
        )

    def _may_open(self, arrow: Arrow, part: set[Point]) -> bool:
        """True if a way out that is closed may be open another time round."""
        if arrow.guard is not None:
            return self._changes(arrow.guard, part)
        return not arrow.failed or any(self._changes(one, part) for one in arrow.failed)

    # ---- what changes what

    def _changers(self, guard: Expression) -> set[Point]:
        """The points whose visits may change what a guard reads."""
        found: set[Point] = set()
        for one in walk(guard):
            if isinstance(one, FieldOf):
                found |= self._of_field(one.node, one.field)
            elif isinstance(one, Name):
                found |= {point for name, point in self._acting.items() if one.name in written_by(self._scope, name)}
        return found

    def _of_field(self, name: str, field: str) -> set[Point]:
        point = self._acting[name]
        kind = point.kind
        if kind is None:
            return {point}
        if field in kind.parameters:
            return set()
        if kind.fields[field].counts == "backward":  # the engine counts it, where the effect is
            return set()
        if field != "due":
            return {point}
        owners = {self._acting[owner] for owner in clock_owners(self._scope, name) if owner in self._acting}
        return owners | ({point} if kind.trigger == "every" else set())

    # ---- counts of backward passes

    def _counted(self, guard: Expression) -> set[str]:
        """The optimizers whose backward passes a guard counts."""
        found: set[str] = set()
        for one in walk(guard):
            if isinstance(one, FieldOf):
                point = self._acting[one.node]
                if one.field in counters_of(point):
                    assert point.node is not None
                    found.update(optimizers_of(point.scope, point.node))
        return found

    def _without_counting(self, part: list[Point], counted: set[str]) -> list[list[Point]]:
        """The parts that remain of one when the points are deleted that let a count grow, or end it."""
        adding = {point: self._doing("backward", point) & counted for point in part}
        clearing = {point: self._doing("zero_grad", point) & counted for point in part}
        added, cleared = set().union(*adding.values()), set().union(*clearing.values())
        kept = [point for point in part if not adding[point] - cleared and not clearing[point] - added]
        if len(kept) == len(part):
            return [part]
        return [one for less in _parts(self._network(kept)) for one in self._without_counting(less, counted)]

    def _doing(self, effect: str, point: Point) -> set[str]:
        """The optimizers to which a visit, or one inside its body, does something that counts."""
        assert point.node is not None
        prefix = f"{point.path}/"
        found: set[str] = set()
        for acting, names in self._gradients.targets.items() if point.acts else ():
            inside = point.node.body is not None and acting.path.startswith(prefix)
            if (acting is point or inside) and effect in effects_of(acting):
                found |= {one for one in names if effect == "backward" or not self._gradients.is_without(acting, one)}
        return found

    def _changes(self, guard: Expression, part: set[Point]) -> bool:
        """True if a visit in a part may change what a guard reads."""
        if self._changers(guard) & part:
            return True
        counted = self._counted(guard)
        return bool(counted) and any(
            counted & (self._doing("backward", point) | self._doing("zero_grad", point)) for point in part
        )


def _parts(network: networkx.DiGraph) -> list[list[Point]]:
    """The strongly connected parts in which one can go round; each, and they, in the order of the graph."""
    import networkx

    order = {point: number for number, point in enumerate(network)}
    found = [
        sorted(part, key=order.__getitem__)
        for part in networkx.strongly_connected_components(network)
        if len(part) > 1 or any(network.has_edge(point, point) for point in part)
    ]
    return sorted(found, key=lambda part: order[part[0]])


def _circle(network: networkx.DiGraph) -> list[Point]:
    """A shortest way from the first point back to itself, in a part in which there is one."""
    import networkx

    first = next(iter(network))
    ways = networkx.single_target_shortest_path(network, first)
    back = min((ways[one] for one in network.successors(first)), key=len)
    return [first, *back]
