"""The whole procedure as one flow: what can run after what, with the bodies of nodes laid out in their place.

A node is one point, or several: one that runs only when its trigger is due has a way around it; one with a body is
entered, left, and has the points of its body in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphtrain.graph.elements import END, Node
from graphtrain.guards.syntax import Expression, expand, parse
from graphtrain.kind import Kind
from graphtrain.kind.parameter import is_trigger
from graphtrain.plan.facts import Facts
from graphtrain.plan.names import Scope


@dataclass(eq=False)
class Arrow:
    """A way from one point to another.

    Attributes:
        guard: what must hold, with the guards it names written out; None if nothing must.
        failed: what was asked before it and did not hold.
        asks: the names of the guards that decide: its own, or, if it has none, those before it.
    """

    target: Point
    guard: Expression | None = None
    failed: tuple[Expression, ...] = ()
    asks: tuple[str, ...] = ()


@dataclass(eq=False)
class Point:
    """A place in the flow.

    Attributes:
        acts: True where the node itself does its work; where a body is left, that is handing out its outputs.
        opens: the scope of the body that is entered here.
    """

    scope: Scope
    node: Node | None
    kind: Kind | None = None
    acts: bool = False
    opens: Scope | None = None
    arrows: list[Arrow] = field(default_factory=list)

    @property
    def is_unknown(self) -> bool:
        """True for a node whose kind nobody has declared so far: it may do anything."""
        return self.node is not None and self.kind is None

    @property
    def path(self) -> str:
        """The node's path; ``"end"`` for the end of the outermost graph."""
        return END if self.node is None else f"{self.scope.path}{self.node.name}"


class Flow:
    """The flow of a graph whose names all resolve.

    Attributes:
        points: all of them; `start` and `end` are among them.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.points: list[Point] = []
        self._guards: dict[str, dict[str, Expression]] = {}
        self.end = self._point(scope, None)
        self.start = self._laid_out(scope, self.end)

    def _point(self, scope: Scope, node: Node | None, kind: Kind | None = None, **more: Any) -> Point:
        self.points.append(Point(scope, node, kind, **more))
        return self.points[-1]

    def _laid_out(self, scope: Scope, end: Point) -> Point:
        """Lay the points of a graph out; the one it starts with."""
        # Where a node is entered: where its trigger is asked, and behind that.
        asked: dict[str, Point] = {}
        certain: dict[str, Point] = {}
        left: list[Point] = []
        for name, node in scope.graph.nodes.items():
            kind = scope.kinds[name]
            if node.body is not None:
                inner = scope.body_of(node)
                left.append(self._point(scope, node, kind, acts=True))
                certain[name] = self._point(scope, node, kind, opens=inner)
                certain[name].arrows.append(Arrow(self._laid_out(inner, left[-1])))
            else:
                certain[name] = self._point(scope, node, kind, acts=True)
                left.append(certain[name])
            asked[name] = certain[name]
            if can_be_skipped(node, kind):
                left.append(self._point(scope, node, kind))
                asked[name] = self._point(scope, node, kind)
                asked[name].arrows += [Arrow(certain[name]), Arrow(left[-1])]
        for point in left:
            self._leave(point, asked, end)
        # Some of these arrows are never taken, and some lead to a node that is then surely due.
        facts = Facts(scope, list({*asked.values(), *certain.values(), *left}), asked[scope.graph.start])
        for point in left:
            point.arrows = [arrow for arrow in point.arrows if facts.is_open(arrow)]
            for arrow in point.arrows:
                if arrow.target is not end and arrow.target.node is not None:
                    name = arrow.target.node.name
                    if facts.is_due(arrow, name):
                        arrow.target = certain[name]
        return asked[scope.graph.start]

    def _leave(self, point: Point, asked: Mapping[str, Point], end: Point) -> None:
        """Lay out where the edges of a node lead from one of the points at which it is left."""
        assert point.node is not None
        failed: tuple[Expression, ...] = ()
        names: list[str] = []
        for edge in point.scope.graph.edges[point.node.name]:
            guard = self.guards(point.scope)[edge.when] if edge.when is not None else None
            target = end if edge.target == END else asked[edge.target]
            point.arrows.append(Arrow(target, guard, failed, (edge.when,) if edge.when is not None else tuple(names)))
            if guard is not None and edge.when is not None:
                failed = (*failed, guard)
                names.append(edge.when)

    def guards(self, scope: Scope) -> dict[str, Expression]:
        """The guards of a graph, with those that they name written out."""
        if scope.path not in self._guards:
            parsed = {name: parse(text) for name, text in scope.graph.guards.items()}
            self._guards[scope.path] = {name: expand(one, parsed, (name,)) for name, one in parsed.items()}
        return self._guards[scope.path]


def can_be_skipped(node: Node, kind: Kind | None) -> bool:
    """True if a visit may do nothing because the node's trigger is not due."""
    if kind is None or kind.trigger != "every":
        return False
    parameter = kind.parameters["every"]
    value = node.parameters.get("every", parameter.default)
    return is_trigger(parameter.annotation) and value is not None


def told(path: Iterable[Point]) -> tuple[str, ...]:
    """A path for a person: every node once where it is visited once."""
    names: list[str] = []
    for point in path:
        if not names or names[-1] != point.path:
            names.append(point.path)
    return tuple(names)
