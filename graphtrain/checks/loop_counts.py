"""Counts of backward passes that are the same at every visit of a point of a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from graphtrain.checks.changes import NOWHERE, Changes, Points
from graphtrain.checks.trap import Targets
from graphtrain.plan.flow import Flow, FlowPoint
from graphtrain.plan.solve import solve

COUNTED = ("backward", "zero_grad")


class Counting:
    """Where backward passes are counted for some optimizers, in a graph and in its bodies."""

    def __init__(self, flow: Flow, points: Sequence[FlowPoint], changes: Changes, optimizers: frozenset[str]) -> None:
        acting = set(changes.acting.values())
        bodies = {point: f"{point.path}/" for point in acting if point.node is not None and point.node.body is not None}
        self._actions = {
            point: doing
            for point, actions in changes.gradients.actions.items()
            if (point in acting or point.path.startswith(tuple(bodies.values())))
            and (doing := [a for a in actions if a.effect in COUNTED and optimizers & set(a.optimizers)])
        }
        self._bodies = {
            point: frozenset(inner for inner in flow.points if inner.path.startswith(prefix))
            for point, prefix in bodies.items()
            if any(inner.path.startswith(prefix) for inner in self._actions)
        }
        # The points after which the count begins at 0; and where a body is entered in which something counts.
        self._clearing = [
            point for point, doing in self._actions.items() if any(a.effect == "zero_grad" for a in doing)
        ]
        self._entries = {point for point in points for body in self._bodies if point.opens and point.path == body.path}

    def _inside(self, points: Points) -> Points:
        """The points of the bodies among some points."""
        return NOWHERE.union(*(inner for body, inner in self._bodies.items() if body in points))

    def _after(self, point: FlowPoint, count: int | None) -> int | None:
        """The count after a visit, if it was `count` before; None where it varies."""
        for action in self._actions.get(point, ()):
            if action.effect == "zero_grad":
                count = 0
            elif count is not None:
                count = None if action.is_reported else count + 1
        return count

    def counts(
        self, targets: Targets, taken: Callable[[FlowPoint, int | None], Sequence[FlowPoint | None]]
    ) -> Mapping[FlowPoint, int | None]:
        """The backward passes since the gradients were cleared, after each point; None where it varies.

        Arguments:
            targets: the points that are followed, with where their ways lead.
            taken: where the ways lead that can be taken from a point, with such a count.
        """
        inside = self._inside(frozenset(targets))

        def transfer(point: FlowPoint, count: int | None) -> Iterator[tuple[FlowPoint, int | None]]:
            is_within = point in inside or (inside and point.opens is not None and point in self._entries)
            following = [arrow.target for arrow in point.arrows] if is_within else taken(point, count)
            for after in following:
                if after is not None and after not in start and (after in targets or after in inside):
                    yield after, self._after(after, count)

        start = {point: self._after(point, None) for point in self._clearing if point in targets or point in inside}
        return solve(start, transfer, lambda one, other: one if one == other else None)
