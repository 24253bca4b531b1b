"""The control flow of the whole procedure: what can run after what, with bodies of nodes expanded in place.

A node is one point, or several: one that runs only when its trigger is due has a way around it; one with a body is
entered, left, and has the points of its body in between.

A node that an edge enters only if it is due is certainly due.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from graphtrain.graph.elements import END, Node, Problem
from graphtrain.kind import Kind
from graphtrain.language.syntax import Expression, FieldOf, Name, Operation, walk
from graphtrain.plan.plan import Plan, PlanAction, PlanNode
from graphtrain.plan.scope import Ref, Scope


@dataclass(eq=False)
class FlowEdge:
    """A way from one point to another.

    Attributes:
        guard: the condition, with the guards it names expanded; None if there is none.
        deciding: the names of the guards that decide: its own or, if it has none, those before it.
        leads_to_visit: True if the visit of a node begins there; a run can only be saved where one does.
    """

    target: FlowPoint
    guard: Expression | None = None
    deciding: tuple[str, ...] = ()
    leads_to_visit: bool = False


@dataclass(eq=False)
class FlowPoint:
    """A place in the flow.

    Attributes:
        plan_node: the node; None at the end of the outermost graph.
        acts: True where the node itself does its work; where a body is left, that is writing its outputs.
        opens: the scope of the body that is entered here.
        arrows: the ways that can be taken.
    """

    scope: Scope
    plan_node: PlanNode | None
    acts: bool = False
    opens: Scope | None = None
    arrows: list[FlowEdge] = field(default_factory=list)

    @property
    def node(self) -> Node | None:
        """The node in its graph."""
        return self.plan_node.node if self.plan_node is not None else None

    @property
    def kind(self) -> Kind | None:
        """The kind of the node."""
        return self.plan_node.kind if self.plan_node is not None else None

    @property
    def guards(self) -> list[Expression]:
        """The guards of its arrows, in order."""
        return [arrow.guard for arrow in self.arrows if arrow.guard is not None]

    @property
    def actions(self) -> tuple[PlanAction, ...]:
        """What a visit does to gradients, in order."""
        return self.plan_node.actions if self.acts and self.plan_node is not None else ()

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
        path: Iterable[FlowPoint | str] = (),
        **more: Any,
    ) -> Problem:
        """A problem of the node, or of its ``"edges"``, with the path that leads there."""
        assert self.plan_node is not None, "the end has no problems"
        return self.plan_node.problem(code, message, hint, path=names_on(path), **more)

    @property
    def path(self) -> str:
        """The node's path; ``"end"`` for the end of the outermost graph."""
        return END if self.plan_node is None else self.plan_node.path


@final
class Flow:
    """The flow of a plan.

    Arguments:
        bypassed: the paths of nodes that do nothing, and have no body. Default: none.

    Attributes:
        points: all of them; `start` and `end` are among them.
        bypassed: the paths of nodes that do nothing.
        entries: path -> the points at which a node is entered: before and after its trigger is evaluated.
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

    def _point(self, scope: Scope, plan_node: PlanNode | None, **more: Any) -> FlowPoint:
        self.points.append(FlowPoint(scope, plan_node, **more))
        return self.points[-1]

    def _lay_out(self, scope: Scope, end: FlowPoint) -> FlowPoint:
        """Make the points of a graph; returns the first."""
        # The points at which a node is entered: before and after its trigger is evaluated.
        entry: dict[str, FlowPoint] = {}
        certain: dict[str, FlowPoint] = {}
        left: list[FlowPoint] = []
        for plan_node in self.plan.nodes_in(scope):
            name = plan_node.node.name
            bypassed = plan_node.path in self.bypassed
            exits = []
            if plan_node.body is not None and not bypassed:
                exits.append(self._point(scope, plan_node, acts=True))
                certain[name] = self._point(scope, plan_node, opens=plan_node.body)
                certain[name].arrows.append(FlowEdge(self._lay_out(plan_node.body, exits[0]), leads_to_visit=True))
            else:
                certain[name] = self._point(scope, plan_node, acts=not bypassed)
                exits.append(certain[name])
            entry[name] = certain[name]
            if plan_node.can_be_skipped and not bypassed:
                exits.append(self._point(scope, plan_node))
                entry[name] = self._point(scope, plan_node)
                entry[name].arrows += [FlowEdge(certain[name]), FlowEdge(exits[-1])]
            self.entries[plan_node.path] = tuple(dict.fromkeys((entry[name], certain[name])))
            self.exits[plan_node.path] = tuple(exits)
            left += exits
        for point in left:
            self._leave(point, entry, certain, end)
        return entry[scope.graph.start]

    def _leave(
        self, point: FlowPoint, entry: Mapping[str, FlowPoint], certain: Mapping[str, FlowPoint], end: FlowPoint
    ) -> None:
        """Make the arrows for the edges of a node, from one of the points at which it is left."""
        assert point.plan_node is not None
        names: list[str] = []
        for way in point.plan_node.exits:
            target = end
            if way.target is not None:
                name = way.target.node.name
                is_due = way.guard is not None and FieldOf(name, "due") in conjuncts(way.guard)
                target = (certain if is_due else entry)[name]
            names += [way.when] if way.when is not None else []
            deciding = tuple(names if way.when is None else names[-1:])
            point.arrows.append(FlowEdge(target, way.guard, deciding, leads_to_visit=way.target is not None))


def names_on(path: Iterable[FlowPoint | str]) -> tuple[str, ...]:
    """A path for messages: every node once per visit."""
    names: list[str] = []
    for point in path:
        name = point if isinstance(point, str) else point.path
        if not names or names[-1] != name:
            names.append(name)
    return tuple(names)


def conjuncts(expression: Expression) -> Iterator[Expression]:
    """The parts of which all must hold."""
    if isinstance(expression, Operation) and expression.name == "and":
        for operand in expression.operands:
            yield from conjuncts(operand)
    else:
        yield expression


def changers(plan: Plan, scope: Scope, guard: Expression) -> set[str]:
    """The nodes of a graph whose visits may change what a guard reads; for a field in a body, the node with it."""
    names: set[str] = set()
    for part in walk(guard):
        if isinstance(part, FieldOf):
            names |= _changers_of(plan, scope, Ref("field", f"{scope.path}{part.node}", part.field))
        elif isinstance(part, Name):
            names |= {name for name, node in scope.graph.nodes.items() if part.name in scope.written_by(node)}
            for leaf in scope.resolve(part.name).leaves():
                if leaf.kind == "field":  # passed in by the enclosing graph
                    names |= _changers_of(plan, scope, leaf)
    return names


def _changers_of(plan: Plan, scope: Scope, field: Ref) -> set[str]:
    """The nodes of a graph whose visits may change a field of any node: here, in a body or in an enclosing graph."""
    name, in_body, _ = field.path.removeprefix(scope.path).partition("/")
    is_here = field.path.startswith(scope.path)
    if is_here and in_body:
        return {name}
    plan_node, own = plan.by_path[field.path], {name} if is_here else set()
    kind = plan_node.kind
    if is_here and field.name in plan_node.expressions:
        return changers(plan, scope, plan_node.expressions[field.name].expression)
    if field.name in kind.parameters:
        return set()
    if (counter := kind.counter(field.name)) is not None:  # the engine counts it, where the effects are
        effects = {"backward"} if field.name == counter.window else {"backward", "zero_grad"}
        return _nodes_that(scope, lambda kind: any(map(kind.has_effect, effects)))
    if field.name != "due":  # nodes with `on_metrics` depend on the rows of metrics
        return own | (_nodes_that(scope, lambda kind: kind.may_record_rows) if kind.has("on_metrics") else set())
    reads = plan.due_by(plan_node)
    names = own if kind.trigger == "every" else set()
    return names.union(*(_changers_of(plan, scope, read) for read in reads))


def _nodes_that(scope: Scope, is_one: Callable[[Kind], bool]) -> set[str]:
    """The nodes of some kinds, and those that may contain one."""
    nodes = scope.graph.nodes.items()
    return {name for name, node in nodes if node.body is not None or ((kind := scope.kinds[name]) and is_one(kind))}
