"""How the visits of the points of one graph may change the values that its guards read, and in which direction.

Counts that grow (`runs`, and what a clock counts) never fall; those of backward passes fall where gradients are
cleared. A trigger becomes due when its clock advances, and stops being due when its node runs; whether its `from` is
reached is a separate field, which only that clock changes. Bypassed nodes change nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from graphtrain.checks.answers import ANY, Values, values_of
from graphtrain.checks.gradients import Gradients, counters_of
from graphtrain.graph import Graph
from graphtrain.graph.registry import kind_of_node
from graphtrain.kind import Kind
from graphtrain.kind.declaration import FROM
from graphtrain.kind.trigger import Trigger
from graphtrain.language.syntax import Constant, Expression, FieldOf, Name, Operation, rebuilt, walk
from graphtrain.plan.flow import FlowPoint, changers
from graphtrain.plan.solve import Ways

Points = frozenset[FlowPoint]
NOWHERE: Points = frozenset()


class Moves(NamedTuple):
    """The points that may increase a value, or make it true; and those that may do the opposite."""

    up: Points = NOWHERE
    down: Points = NOWHERE

    @property
    def swapped(self) -> Moves:
        """Those of the negated value."""
        return Moves(self.down, self.up)

    @property
    def either_way(self) -> Moves:
        """Those of a value that changes in either direction."""
        return Moves(self.up | self.down, self.up | self.down)


def _all(moves: Iterable[Moves]) -> Moves:
    moves = tuple(moves)
    return Moves(NOWHERE.union(*(move.up for move in moves)), NOWHERE.union(*(move.down for move in moves)))


class Changes:
    """The changes made by the points of one graph.

    Arguments:
        points: of the graph, without those in bodies.
        bypassed: the names of nodes that do nothing. Default: none.

    Attributes:
        adding, clearing: the optimizers whose gradients a visit adds to, or clears.
        nodes: name of a node -> the point where it does its work.
    """

    def __init__(self, points: Collection[FlowPoint], gradients: Gradients, bypassed: Collection[str] = ()) -> None:
        self.gradients = gradients
        self.nodes = {point.node.name: point for point in points if point.acts and point.node is not None}
        self._scope = next(iter(points)).scope
        self._grows = {
            text
            for text in self._scope.graph.units.values()
            if (owner := text.partition(".")[0]) in self.nodes
            and not _restarts(self.nodes[owner].kind, text.partition(".")[2])
        }
        self._doing = {name: point for name, point in self.nodes.items() if name not in bypassed}
        self.adding = {point: gradients.acted_on("backward", point) for point in self._doing.values()}
        self.clearing = {point: gradients.acted_on("zero_grad", point) for point in self._doing.values()}
        self._counted = {
            FieldOf(name, counter): frozenset(point.plan_node.optimizers)
            for name, point in self.nodes.items()
            if point.plan_node is not None
            for counter in counters_of(point)
        }
        self._moves: dict[Expression, Moves] = {}
        self._known: dict[FieldOf, Constant | Values] = {}

    # ---- known values of a field

    def known(self, field: FieldOf) -> Constant | Values:
        """What is known of a field that a guard reads, wherever it is read."""
        if field not in self._known:
            self._known[field] = self._known_of(field)
        return self._known[field]

    def _known_of(self, field: FieldOf) -> Constant | Values:
        plan_node = self.nodes[field.node].plan_node if field.node in self.nodes else None
        kind = plan_node.kind if plan_node is not None else None
        if plan_node is None or kind is None or field.field == FROM:  # in a body, counting restarts at every visit
            return ANY
        is_bypassed, declared = field.node not in self._doing, kind.fields.get(field.field)
        if is_bypassed and kind.has("on_metrics") and declared is not None and declared.default is False:
            return Constant(False)  # what `on_metrics` would set, which is not called
        if field.field == "due":
            return Constant(False) if plan_node.is_never_due or is_bypassed else ANY
        if field.field in kind.parameters:
            return values_of(self._scope, field.node, field.field)
        if kind.fields[field.field].counts == "backward":
            is_growing = any(names & self.counted(field) for names in self.adding.values())
            return Values(least=0, whole=True) if is_growing else Constant(0)
        if field.field == "runs":
            return Values(least=0, whole=True)
        return Values(whole=kind.fields[field.field].type is int)

    def counted(self, field: FieldOf) -> frozenset[str]:
        """The optimizers whose backward passes a field counts; none if it counts something else."""
        return self._counted.get(field, frozenset())

    def cleared(self, field: FieldOf) -> bool:
        """True if some visit clears the gradients whose backward passes a field counts."""
        return any(names & self.counted(field) for names in self.clearing.values())

    # ---- changes of a field

    def moving(self, guard: Expression) -> Points:
        """The points whose visits may change what a guard reads, except by counting backward passes."""
        moving = NOWHERE.union(
            *(
                self.moves(read).either_way.up
                for read in walk(guard)
                if isinstance(read, Name) or (isinstance(read, FieldOf) and not self.counted(read))
            )
        )
        return moving

    def moves(self, expression: Expression) -> Moves:
        """The points that change the value of an expression."""
        if expression not in self._moves:
            self._moves[expression] = self._moved(expression)
        return self._moves[expression]

    def _moved(self, expression: Expression) -> Moves:
        match expression:
            case FieldOf():
                return self._of_field(expression)
            case Name():
                return self._by(changers(self.gradients.flow.plan, self._scope, expression)).either_way
            case Operation("-", (operand,)):
                return self.moves(operand).swapped
            case Operation("+", operands):
                return _all(map(self.moves, operands))
            case Operation("*" | "/" | "//", (operand, Constant(int() | float() as factor))) if factor > 0:
                return self.moves(operand)
            case Operation("*", (Constant(int() | float() as factor), operand)) if factor > 0:
                return self.moves(operand)
            case Operation("-", (greater, less)):
                return _all((self.moves(greater), self.moves(less).swapped))
        operands = expression.operands if isinstance(expression, Operation) else ()
        return _all(map(self.moves, operands)).either_way

    def _by(self, names: Iterable[str]) -> Moves:
        return Moves(frozenset(self._doing[name] for name in names if name in self._doing))

    def _of_field(self, read: FieldOf) -> Moves:
        plan, scope = self.gradients.flow.plan, self._scope
        if read.node not in self.nodes:  # in a body
            return self._by(changers(plan, scope, read)).either_way
        kind = self.nodes[read.node].kind
        if kind is not None and read.field not in kind.parameters and (counted := self.counted(read)):
            moves = Moves(
                frozenset(point for point, optimizers in self.adding.items() if optimizers & counted),
                frozenset(point for point, optimizers in self.clearing.items() if optimizers & counted),
            )
            return moves if moves.down else moves.either_way  # gradients that are never cleared are G405
        if kind is None or read.field not in ("due", FROM):
            moves = self._by({read.node} if read.field == "runs" else changers(plan, scope, read))
            only_up = read.field == "runs" or f"{read.node}.{read.field}" in self._grows
            return moves if only_up else moves.either_way
        plan_node = self.nodes[read.node].plan_node
        assert plan_node is not None
        if read.field == FROM:
            return self._of_clock(plan_node.start)
        moves = self._of_clock(plan_node.trigger)
        if plan_node.trigger is not None and plan_node.trigger.once and not self._may_run_again(read.node):
            moves = _all((moves, self._of_clock(plan_node.start)))  # while it is waited for, it has not run yet
        for field in plan_node.extra_due_fields:
            names = changers(plan, scope, FieldOf(read.node, field)) - {read.node}
            moves = _all((moves, self._by(names).either_way))
        return _all((moves, self._by({read.node}).swapped)) if kind.trigger == "every" else moves

    def _may_run_again(self, name: str) -> bool:
        """True if a path leads from a node back to it."""
        point = self.nodes[name]
        return point in Ways((arrow.target for arrow in point.arrows), lambda at: (arrow.target for arrow in at.arrows))

    def _of_clock(self, trigger: Trigger | None) -> Moves:
        """The points that count the units of a trigger: up, or either way if one of them starts again at 0."""
        terms = self.gradients.flow.plan.terms(self._scope, trigger) if trigger is not None else []
        prefix = self._scope.path
        moves = _all(self.moves(FieldOf(owner.path.removeprefix(prefix), field)) for owner, field, _ in terms)
        return moves.either_way if moves.down else moves


def _restarts(kind: Kind | None, field: str) -> bool:
    """True if a field of a kind starts again at 0, or if that is not known."""
    return kind is None or field not in kind.fields or kind.fields[field].restarts is not None


def by_count(graph: Graph, guard: Expression) -> Expression:
    """A guard that compares count and size instead of reading whether a window is full.

    >>> from graphtrain.language.syntax import parse
    >>> by_count(Graph.load("fit"), parse("accumulate.full")) == parse("accumulate.count >= accumulate.every")
    True
    """
    if isinstance(guard, FieldOf) and (node := graph.nodes.get(guard.node)) is not None:
        kind = kind_of_node(node)
        counter = kind.counter(guard.field) if kind is not None else None
        if kind is not None and counter is not None and counter.window is not None and guard.field == counter.full:
            count = FieldOf(guard.node, counter.name)
            if counter.target is not None and counter.target in kind.parameters and counter.target not in node.reads:
                size = node.parameters.get(counter.target, kind.parameters[counter.target].default)
                if isinstance(size, int | float) and size > 0:
                    return Operation(">=", (count, FieldOf(guard.node, counter.target)))
            is_full = Operation(">=", (count, FieldOf(guard.node, counter.window)))
            return Operation("and", (Operation(">", (count, Constant(0))), is_full))
    return rebuilt(guard, lambda part: by_count(graph, part))
