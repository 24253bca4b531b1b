"""How the visits of the points of one graph may change the values of its guards, and in which direction.

Counts that grow (`runs`, and what a clock counts) can make ``>=`` true and never false; no count is below 0, so only
clearing can make one of backward passes ``== 0`` again. A trigger becomes due when its clock advances, and stops being
due when its node runs; whether its `from` is reached is a separate field, which only that clock changes. Bypassed nodes
change nothing. Backward passes are counted: a guard on a full window is expanded to its comparison, and `Counting`
knows the counts that are the same at every visit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from graphtrain.checks.answers import ANY, Literal, Values, values_of
from graphtrain.checks.gradients import Gradients, counters_of
from graphtrain.graph import Graph
from graphtrain.graph.elements import Node
from graphtrain.graph.registry import kind_of_node
from graphtrain.kind import Field, Kind
from graphtrain.kind.declaration import FROM
from graphtrain.kind.trigger import Trigger
from graphtrain.language.syntax import Constant, Expression, FieldOf, Name, Operation, rebuilt, walk
from graphtrain.plan.flow import Flow, FlowPoint, changers
from graphtrain.plan.solve import Ways, solve

Points = frozenset[FlowPoint]
Targets = Mapping[FlowPoint, Sequence[FlowPoint | None]]
"""The targets of the ways that can be taken; None for leaving the graph."""
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

    Attributes:
        adding, clearing: the optimizers whose gradients a visit adds to, or clears.
        acting: name of a node that is not bypassed -> the point where it does its work.
    """

    def __init__(self, points: Collection[FlowPoint], gradients: Gradients) -> None:
        self.gradients = gradients
        self._nodes = {point.node.name: point for point in points if point.acts and point.node is not None}
        self.acting = self._nodes
        self._scope = next(iter(points)).scope
        self._grows = {
            text
            for text in self._scope.graph.units.values()
            if (owner := text.partition(".")[0]) in self._nodes
            and not _restarts(self._nodes[owner].kind, text.partition(".")[2])
        }
        self.adding = {point: gradients.acted_on("backward", point) for point in self.acting.values()}
        self.clearing = {point: gradients.acted_on("zero_grad", point) for point in self.acting.values()}
        self._counted = {
            FieldOf(name, counter): frozenset(point.plan_node.optimizers)
            for name, point in self._nodes.items()
            if point.plan_node is not None
            for counter in counters_of(point)
        }
        self._whole = self  # with no node bypassed: `_moves` has all changes
        self._moves: dict[Expression, Moves] = {}
        self._always: dict[FieldOf, Constant | Values] = {}
        self._doing = frozenset(self._nodes.values())

    def without(self, bypassed: Collection[str]) -> Changes:
        """The changes if some nodes do nothing.

        Arguments:
            bypassed: the names of the nodes.
        """
        changes = copy.copy(self)
        changes.acting = {name: point for name, point in self._nodes.items() if name not in bypassed}
        changes._doing = frozenset(changes.acting.values())
        changes.adding = {point: names for point, names in self.adding.items() if point in changes._doing}
        changes.clearing = {point: names for point, names in self.clearing.items() if point in changes._doing}
        if changes.growing != self.growing:
            changes._always = {}
        return changes

    # ---- known values of a field

    @property
    def growing(self) -> frozenset[str]:
        """The optimizers whose gradients some visit adds to."""
        return frozenset().union(*self.adding.values())

    def known(self, counts: Mapping[FieldOf, int]) -> Callable[[FieldOf], Constant | Values]:
        """The known values of the fields that a guard reads.

        Arguments:
            counts: the known counts of backward passes where it is evaluated.
        """

        def of(field: FieldOf) -> Constant | Values:
            if field in counts:
                return Constant(counts[field])
            if field not in always:
                always[field] = self._known(field)
            return always[field]

        always = self._always
        return of

    def _known(self, field: FieldOf) -> Constant | Values:
        plan_node = self._nodes[field.node].plan_node if field.node in self._nodes else None
        kind = plan_node.kind if plan_node is not None else None
        if plan_node is None or kind is None or field.field == FROM:  # in a body, counting restarts at every visit
            return ANY
        if field.field == "due":
            return Constant(False) if plan_node.is_never_due else ANY
        if field.field in kind.parameters:
            return values_of(self._scope, field.node, field.field)
        if kind.fields[field.field].counts == "backward":
            return Values(least=0, whole=True) if self.counted(field) & self.growing else Constant(0)
        if field.field in [counter.exchanged for counter in kind.fields.values()]:
            exchanging = [  # none in one process, where the nodes for several ranks are bypassed
                point
                for point in self._nodes.values()
                if self.gradients.acted_on("exchange", point) & {*plan_node.optimizers}
            ]
            return ANY if exchanging else Constant(False)
        if field.field == "runs":
            return Values(least=0, whole=True)
        return Values(whole=kind.fields[field.field].type is int)

    def counted(self, field: FieldOf) -> frozenset[str]:
        """The optimizers whose backward passes a field counts; none if it counts something else."""
        return self._counted.get(field, frozenset())

    # ---- changes of a field

    def breaking(self, literal: Literal) -> Points:
        """The points whose visits may give an atom another value than this one."""
        atom, answer = literal
        moves = self._moves_of(atom)
        return (moves.down if answer else moves.up) & self._doing

    def moving(self, guard: Expression) -> Points:
        """The points whose visits may change what a guard reads, except by counting backward passes."""
        moving = NOWHERE.union(
            *(
                self._moves_of(read).either_way.up
                for read in walk(guard)
                if isinstance(read, Name) or (isinstance(read, FieldOf) and not self.counted(read))
            )
        )
        return moving & self._doing

    def _moves_of(self, expression: Expression) -> Moves:
        """The points that change the value of an expression, or would if they were not bypassed."""
        if expression not in self._moves:
            self._moves[expression] = self._moved(expression)
        return self._moves[expression]

    def _moved(self, expression: Expression) -> Moves:
        match expression:
            case FieldOf():
                return self._of_field(expression)
            case Name():
                return self._by(changers(self.gradients.flow.plan, self._scope, expression)).either_way
            case Operation("not" | "-", (operand,)):
                return self._moves_of(operand).swapped
            case Operation("and" | "or" | "+", operands):
                return _all(map(self._moves_of, operands))
            case Operation("*" | "/" | "//", (operand, Constant(int() | float() as factor))) if factor > 0:
                return self._moves_of(operand)
            case Operation("*", (Constant(int() | float() as factor), operand)) if factor > 0:
                return self._moves_of(operand)
            case Operation("-" | ">" | ">=", (greater, less)) | Operation("<" | "<=", (less, greater)):
                return _all((self._moves_of(greater), self._moves_of(less).swapped))
            case Operation("==" | "!=" as name, (FieldOf() as count, Constant(0)) | (Constant(0), FieldOf() as count)):
                moves = self._moves_of(count)
                if bool(self.counted(count)) is bool(moves.down):  # never below 0; gradients never cleared are G405
                    return moves.swapped if name == "==" else moves
        operands = expression.operands if isinstance(expression, Operation) else ()
        return _all(map(self._moves_of, operands)).either_way

    def _by(self, names: Iterable[str]) -> Moves:
        return Moves(frozenset(self._nodes[name] for name in names if name in self._nodes))

    def _of_field(self, read: FieldOf) -> Moves:
        plan, scope = self.gradients.flow.plan, self._scope
        if read.node not in self._nodes:  # in a body
            return self._by(changers(plan, scope, read)).either_way
        kind = self._nodes[read.node].kind
        if kind is not None and read.field not in kind.parameters and (counted := self.counted(read)):
            return Moves(
                frozenset(point for point, optimizers in self._whole.adding.items() if optimizers & counted),
                frozenset(point for point, optimizers in self._whole.clearing.items() if optimizers & counted),
            )
        if kind is None or read.field not in ("due", FROM):
            moves = self._by({read.node} if read.field == "runs" else changers(plan, scope, read))
            only_up = read.field == "runs" or f"{read.node}.{read.field}" in self._grows
            return moves if only_up else moves.either_way
        plan_node = self._nodes[read.node].plan_node
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
        point = self._nodes[name]
        return point in Ways((arrow.target for arrow in point.arrows), lambda at: (arrow.target for arrow in at.arrows))

    def _of_clock(self, trigger: Trigger | None) -> Moves:
        """The points that count the units of a trigger: up, or either way if one of them starts again at 0."""
        terms = self.gradients.flow.plan.terms(self._scope, trigger) if trigger is not None else []
        prefix = self._scope.path
        moves = _all(self._moves_of(FieldOf(owner.path.removeprefix(prefix), field)) for owner, field, _ in terms)
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
        if counter is not None and counter.window is not None and guard.field == counter.full:
            count = FieldOf(guard.node, counter.name)
            if _has_size(node, counter) and counter.target is not None:
                return Operation(">=", (count, FieldOf(guard.node, counter.target)))
            is_full = Operation(">=", (count, FieldOf(guard.node, counter.window)))
            return Operation("and", (Operation(">", (count, Constant(0))), is_full))
    return rebuilt(guard, lambda part: by_count(graph, part))


def _has_size(node: Node, counter: Field) -> bool:
    """True if the parameter with the size of the windows of a counter has a value other than 0."""
    kind, target = kind_of_node(node), counter.target
    if kind is None or target is None or target not in kind.parameters or target in node.reads:
        return False
    size = node.parameters.get(target, kind.parameters[target].default)
    return isinstance(size, int | float) and size > 0


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
        # The points after which the count starts at 0; and those that enter a body with a counter.
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
                count += 1
        return count

    def counts(
        self, targets: Targets, taken: Callable[[FlowPoint, int | None], Sequence[FlowPoint | None]]
    ) -> Mapping[FlowPoint, int | None]:
        """The backward passes since the gradients were cleared, after each point; None where it varies.

        Arguments:
            targets: the points to follow, each with its successors.
            taken: returns the successors that can be reached from a point, with such a count.
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
