"""The whole procedure as one flow: what can run after what, with the bodies of nodes laid out in their place.

A node is one point, or several: one that runs only when its trigger is due has a way around it; one with a body is
entered, left, and has the points of its body in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

from graphtrain.graph.elements import END, Node
from graphtrain.graph.problem import Problem
from graphtrain.kind import Kind
from graphtrain.language.syntax import Expression
from graphtrain.plan.facts import KnownAnswers
from graphtrain.plan.plan import Plan, PlanAction, PlanNode
from graphtrain.plan.scope import Scope


@dataclass(eq=False)
class FlowEdge:
    """A way from one point to another.

    Attributes:
        guard: what must hold, with the guards it names written out; None if nothing must.
        failed: what was asked before it and did not hold.
        asks: the names of the guards that decide: its own, or, if it has none, those before it.
    """

    target: FlowPoint
    guard: Expression | None = None
    failed: tuple[Expression, ...] = ()
    asks: tuple[str, ...] = ()


@dataclass(eq=False)
class FlowPoint:
    """A place in the flow.

    Attributes:
        planned: the node; None at the end of the outermost graph.
        acts: True where the node itself does its work; where a body is left, that is handing out its outputs.
        opens: the scope of the body that is entered here.
        arrows: the ways that can be taken.
        closed: the ways that no run takes, because their guards were answered otherwise just before.
    """

    scope: Scope
    planned: PlanNode | None
    acts: bool = False
    opens: Scope | None = None
    arrows: list[FlowEdge] = field(default_factory=list)
    closed: list[FlowEdge] = field(default_factory=list)

    @property
    def node(self) -> Node | None:
        """The node as it stands in its graph."""
        return self.planned.node if self.planned is not None else None

    @property
    def kind(self) -> Kind | None:
        """The kind of the node."""
        return self.planned.kind if self.planned is not None else None

    @property
    def actions(self) -> tuple[PlanAction, ...]:
        """What a visit does to gradients, in order."""
        return self.planned.actions if self.acts and self.planned is not None else ()

    @property
    def effects(self) -> tuple[str, ...]:
        """What a visit does to gradients, in order, whatever the optimizers."""
        return tuple(action.effect for action in self.actions)

    def problem(
        self,
        code: str,
        message: str,
        hint: str = "",
        *,
        thing: str = "nodes",
        severity: Literal["error", "warning"] = "error",
        path: Iterable[FlowPoint | str] = (),
    ) -> Problem:
        """A problem of the node, or of its ``"edges"``, with the path that leads there."""
        assert self.node is not None, "nothing is wrong with the end"
        return self.scope.problem(
            code,
            f"{thing}.{self.node.name}",
            message,
            hint,
            severity=severity,
            path=names_on(path),
            place=self.node.place,
        )

    @property
    def is_unknown(self) -> bool:
        """True for a node whose kind nobody has declared so far: it may do anything."""
        return self.planned is not None and self.planned.kind is None

    @property
    def path(self) -> str:
        """The node's path; ``"end"`` for the end of the outermost graph."""
        return END if self.planned is None else self.planned.path


@final
class Flow:
    """The flow of a plan.

    Arguments:
        bypassed: the paths of nodes that do nothing, and have no body. Default: none.

    Attributes:
        points: all of them; `start` and `end` are among them.
        bypassed: the paths of nodes that do nothing.
        entries: path -> the points at which a node is entered: where its trigger is asked, and behind that.
        exits: path -> the points at which it is left.
    """

    def __init__(self, plan: Plan, bypassed: Collection[str] = ()) -> None:
        self.plan = plan
        self.scope = plan.main
        self.points: list[FlowPoint] = []
        self.entries: dict[str, tuple[FlowPoint, ...]] = {}
        self.exits: dict[str, tuple[FlowPoint, ...]] = {}
        self.bypassed = bypassed
        self.end = self._point(plan.main, None)
        self.start = self._lay_out(plan.main, self.end)

    def _point(self, scope: Scope, planned: PlanNode | None, **more: Any) -> FlowPoint:
        self.points.append(FlowPoint(scope, planned, **more))
        return self.points[-1]

    def _lay_out(self, scope: Scope, end: FlowPoint) -> FlowPoint:
        """Lay the points of a graph out; the one it starts with."""
        # Where a node is entered: where its trigger is asked, and behind that.
        asked: dict[str, FlowPoint] = {}
        certain: dict[str, FlowPoint] = {}
        left: list[FlowPoint] = []
        for planned in self.plan.nodes_in(scope):
            name = planned.node.name
            bypassed = planned.path in self.bypassed
            exits = []
            if planned.body is not None and not bypassed:
                exits.append(self._point(scope, planned, acts=True))
                certain[name] = self._point(scope, planned, opens=planned.body)
                certain[name].arrows.append(FlowEdge(self._lay_out(planned.body, exits[0])))
            else:
                certain[name] = self._point(scope, planned, acts=not bypassed)
                exits.append(certain[name])
            asked[name] = certain[name]
            if planned.can_be_skipped and not bypassed:
                exits.append(self._point(scope, planned))
                asked[name] = self._point(scope, planned)
                asked[name].arrows += [FlowEdge(certain[name]), FlowEdge(exits[-1])]
            self.entries[planned.path] = tuple(dict.fromkeys((asked[name], certain[name])))
            self.exits[planned.path] = tuple(exits)
            left += exits
        for point in left:
            self._leave(point, asked, end)
        # Some of these arrows are never taken, and some lead to a node that is then surely due.
        points = list({*asked.values(), *certain.values(), *left})
        known = KnownAnswers(self.plan, scope, points, asked[scope.graph.start])
        for point in left:
            point.closed = [arrow for arrow in point.arrows if not known.is_open(arrow)]
            point.arrows = [arrow for arrow in point.arrows if known.is_open(arrow)]
            for arrow in point.arrows:
                if arrow.target is not end and arrow.target.node is not None:
                    name = arrow.target.node.name
                    if known.is_due(arrow, name):
                        arrow.target = certain[name]
        return asked[scope.graph.start]

    def _leave(self, point: FlowPoint, asked: Mapping[str, FlowPoint], end: FlowPoint) -> None:
        """Lay out where the edges of a node lead from one of the points at which it is left."""
        assert point.planned is not None
        failed: tuple[Expression, ...] = ()
        names: list[str] = []
        for way in point.planned.exits:
            target = end if way.target is None else asked[way.target.node.name]
            asks = (way.when,) if way.when is not None else tuple(names)
            point.arrows.append(FlowEdge(target, way.guard, failed, asks))
            if way.guard is not None and way.when is not None:
                failed = (*failed, way.guard)
                names.append(way.when)


def names_on(path: Iterable[FlowPoint | str]) -> tuple[str, ...]:
    """A path for a person: every node once where it is visited once."""
    names: list[str] = []
    for point in path:
        name = point if isinstance(point, str) else point.path
        if not names or names[-1] != name:
            names.append(name)
    return tuple(names)
