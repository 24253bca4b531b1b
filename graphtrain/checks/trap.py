"""Points that a run may never leave, and what is said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphtrain.checks.changes import Points
from graphtrain.graph.problem import Problem
from graphtrain.names import quoted
from graphtrain.plan.flow import FlowPoint, names_on
from graphtrain.plan.scope import Scope
from graphtrain.plan.solve import Ways

Targets = Mapping[FlowPoint, Sequence[FlowPoint | None]]
"""Where the ways that can be taken lead."""


@dataclass(eq=False)
class Trap:
    """Points that a run may never leave.

    Attributes:
        targets: where the ways lead that can be taken.
        closed: the points with a way out, and the guards that keep it closed.
        is_still: nothing that a guard in it reads changes.
    """

    points: list[FlowPoint]
    targets: Targets
    closed: list[tuple[FlowPoint, tuple[str, ...]]]
    is_still: bool

    def problem(self, scope: Scope, without: Sequence[str] = ()) -> Problem:
        """What is wrong, without some resources."""
        nodes = list(dict.fromkeys(point.path for point in self.points))
        names = quoted(nodes, most=16)
        path = names_on(circle(self.points, self.targets))
        absent = f"without {quoted(without)} " if without else ""
        hint = ""
        if without:
            hint = "; or, if it is always supplied, take it out of the `optional` of the body or the kind"
        if self.is_still:
            node = self.points[0].node
            assert node is not None
            around = f"stay at {names}" if len(nodes) == 1 else f"go round {names}"
            return scope.problem(
                "G501",
                f"nodes.{node.name}",
                f"{absent}the run can {around} forever: no guard there reads anything that changes on the way",
                "route the loop through a node whose progress a guard in it reads, such as `next_batch`, or guard an "
                f"edge that leads back by something that changes{hint}",
                path=path if len(path) > 1 else path * 2,
            )
        asks = list(dict.fromkeys(name for _, names in self.closed for name in names))
        point = next((point for point, names in self.closed if names), self.points[0])
        node = point.node
        assert node is not None
        decide = "decides" if len(asks) == 1 else "decide"
        return scope.problem(
            "G502",
            f"edges.{node.name}",
            f"{absent}the loop of {names} can be left only as {quoted(asks)} {decide}, and nothing in the loop brings "
            "about the answer that leads out",
            f"let the guard read progress of a node of the loop, such as `runs`{hint}",
            path=path if len(path) > 1 else path * 2,
            place=node.place,
        )


def within(points: Points, targets: Targets) -> Targets:
    """Where the ways lead that stay among some points."""
    return {point: [target for target in targets[point] if target in points] for point in points}


def circle(points: Sequence[FlowPoint], targets: Targets) -> list[FlowPoint]:
    """A shortest way from the first point back to itself, in points that are strongly connected."""
    first = points[0]
    ways = Ways([first], lambda point: (after for after in targets[point] if after is not None))
    return [*next(ways.to(point) for point in ways if first in targets[point]), first]
