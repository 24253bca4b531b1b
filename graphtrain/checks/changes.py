"""What the visits of the points of one graph may change of the answers of its guards, and in which direction.

Counts that grow (`runs`, and what a clock counts) bring ``>=`` about and never take it back. A trigger is due once its
clock has moved, and not due once its node has run; that its `from` is reached is a field of its own, which only the
clock of that changes. Bypassed nodes change nothing.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from graphtrain.checks.answers import ANY, Literal, Values, values_of
from graphtrain.checks.gradients import Gradients, counters_of
from graphtrain.kind import Kind
from graphtrain.kind.declaration import FROM
from graphtrain.kind.trigger import Trigger
from graphtrain.language.syntax import Constant, Expression, FieldOf, Name, Operation, parts, walk
from graphtrain.plan.facts import changers, changers_of_field
from graphtrain.plan.flow import FlowPoint
from graphtrain.plan.solve import Ways

Points = frozenset[FlowPoint]
NOWHERE: Points = frozenset()


class Moves(NamedTuple):
    """The points that may make a value greater, or an answer true; and those that may do the opposite."""

    up: Points = NOWHERE
    down: Points = NOWHERE

    @property
    def swapped(self) -> Moves:
        """Those of the negated value."""
        return Moves(self.down, self.up)

    @property
    def either_way(self) -> Moves:
        """Those of a value that changes, in whichever direction."""
        return Moves(self.up | self.down, self.up | self.down)


def _all(moves: Iterable[Moves]) -> Moves:
    moves = tuple(moves)
    return Moves(NOWHERE.union(*(move.up for move in moves)), NOWHERE.union(*(move.down for move in moves)))


class Changes:
    """What the points of one graph change.

    Arguments:
        points: of the graph, without those in bodies.

    Attributes:
        adding, clearing: the optimizers of which a visit adds to the gradients, or clears them.
        acting: name of a node that is not bypassed -> where it does its work.
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
            FieldOf(name, counter): frozenset(point.planned.optimizers)
            for name, point in self._nodes.items()
            if point.planned is not None
            for counter in counters_of(point)
        }
        self._whole = self  # with all nodes acting, as in `_moves`
        self._moves: dict[Expression, Moves] = {}
        self._always: dict[FieldOf, Constant | Values] = {}
        self._doing = frozenset(self._nodes.values())

    def without(self, bypassed: Collection[str]) -> Changes:
        """What they change if some nodes do nothing.

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

    # ---- what is known of a field

    @property
    def growing(self) -> frozenset[str]:
        """The optimizers to whose gradients some visit adds."""
        return frozenset().union(*self.adding.values())

    @functools.cached_property
    def _never_due(self) -> frozenset[str]:
        """The nodes with the trigger "never"."""
        never: set[str] = set()
        for name, point in self._nodes.items():
            planned = point.planned
            if planned is not None and planned.trigger is not None and planned.trigger.is_never:
                never |= set() if planned.also_due else {name}
        return frozenset(never)

    def known(self, counts: Mapping[FieldOf, int]) -> Callable[[FieldOf], Constant | Values]:
        """What is known of the fields that a guard reads.

        Arguments:
            counts: the counts of backward passes that are known where it is asked.
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
        if field.node not in self._nodes:  # in a body, where counting starts again at every visit
            return ANY
        kind = self._nodes[field.node].kind
        if kind is None:
            return ANY
        if field.field == FROM:
            return ANY
        if field.field == "due":
            return Constant(False) if field.node in self._never_due else ANY
        if field.field in kind.parameters:
            return values_of(self._scope, field.node, field.field)
        if kind.fields[field.field].counts == "backward":
            return Values(least=0, whole=True) if self.counted(field) & self.growing else Constant(0)
        if field.field == "runs":
            return Values(least=0, whole=True)
        return Values(whole=kind.fields[field.field].type is int)

    def counted(self, field: FieldOf) -> frozenset[str]:
        """The optimizers whose backward passes a field counts; none if it counts something else."""
        return self._counted.get(field, frozenset())

    # ---- what changes it

    def breaking(self, literal: Literal) -> Points:
        """The points of which a visit may give an atom another answer than the one it has."""
        atom, answer = literal
        moves = self._moves_of(atom)
        return (moves.down if answer else moves.up) & self._doing

    def moving(self, guard: Expression) -> Points:
        """The points of which a visit may change what a guard reads, except by counting backward passes."""
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
        return _all(map(self._moves_of, parts(expression))).either_way

    def _by(self, names: Iterable[str]) -> Moves:
        return Moves(frozenset(self._nodes[name] for name in names if name in self._nodes))

    def _of_field(self, read: FieldOf) -> Moves:
        plan, scope = self.gradients.flow.plan, self._scope
        if read.node not in self._nodes:  # in a body
            return self._by(changers_of_field(plan, scope, read)).either_way
        kind = self._nodes[read.node].kind
        if kind is not None and read.field not in kind.parameters and (counted := self.counted(read)):
            return Moves(
                frozenset(point for point, optimizers in self._whole.adding.items() if optimizers & counted),
                frozenset(point for point, optimizers in self._whole.clearing.items() if optimizers & counted),
            )
        if kind is None or read.field not in ("due", FROM):
            moves = self._by({read.node} if read.field == "runs" else changers_of_field(plan, scope, read))
            only_up = read.field == "runs" or f"{read.node}.{read.field}" in self._grows
            return moves if only_up else moves.either_way
        planned = self._nodes[read.node].planned
        assert planned is not None
        if read.field == FROM:
            return self._of_clock(planned.start)
        moves = self._of_clock(planned.trigger)
        if planned.trigger is not None and planned.trigger.once and not self._may_run_again(read.node):
            moves = _all((moves, self._of_clock(planned.start)))  # where it is waited for, it has not run so far
        if planned.trigger is not None and planned.trigger.at_end:
            moves = _all((moves, self._moves_of(self._scope.ending)))
        for field in planned.also_due:
            names = changers_of_field(plan, scope, FieldOf(read.node, field)) - {read.node}
            moves = _all((moves, self._by(names).either_way))
        return _all((moves, self._by({read.node}).swapped)) if kind.trigger == "every" else moves

    def _may_run_again(self, name: str) -> bool:
        """True if a way leads from a node back to it."""
        point = self._nodes[name]
        return point in Ways((arrow.target for arrow in point.arrows), lambda at: (arrow.target for arrow in at.arrows))

    def _of_clock(self, trigger: Trigger | None) -> Moves:
        """The points that count the units of a trigger: up, or either way if one of them starts again at 0."""
        terms = self.gradients.flow.plan.terms(self._scope, trigger) if trigger is not None else []
        # Of a unit that is counted in a body, the node with that body.
        moves = self._by(owner.path.removeprefix(self._scope.path).partition("/")[0] for owner, _, _ in terms)
        restarts = any(owner.scope is not self._scope or _restarts(owner.kind, field) for owner, field, _ in terms)
        return moves.either_way if restarts else moves


def _restarts(kind: Kind | None, field: str) -> bool:
    """True if a field of a kind starts again at 0, or nobody knows."""
    return kind is None or field not in kind.fields or kind.fields[field].restarts is not None
