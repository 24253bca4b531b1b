"""Where a run can be saved, and what a checkpoint holds there: one answer for checks, for `show` and for the engine."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import final

from graphtrain.graph import Graph
from graphtrain.plan.flow import Flow, FlowEdge, FlowPoint
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import slots_of
from graphtrain.plan.slots import Alive, Slots, alive_for_a_resume
from graphtrain.plan.solve import Ways


@final
class SavePoints:
    """The positions of a run, each with the slots that are alive there.

    A run stands before a node, or, once it is over, behind the last one. What its trigger would answer is open before a
    node, since a resume may bring another trigger: it counts as if it could be skipped.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.flow = self._flow = slots.flow
        self._alive = alive_for_a_resume(slots)

    def alive(self, path: str, *, ended: bool = False) -> list[str]:
        """The slots that are alive before the node at a path runs; if it took an edge to the end, after it."""
        return self._slots.named(self._bits(path, ended))

    def transient(self, path: str, *, ended: bool = False) -> list[str]:
        """Those of them that cannot be saved; where there are any, it is no save point."""
        return self._slots.named(self._bits(path, ended) & self._slots.transient)

    def needed(self, path: str, *, ended: bool = False) -> list[str]:
        """Those that a resume cannot do without: read without a default."""
        needed = alive_for_a_resume(self._slots, optional=False)
        return self._slots.named(self._bits(path, ended, needed))

    def late(self, arrow: FlowEdge, source: FlowPoint) -> list[str]:
        """The slots for which no checkpoint can be made where an arrow leads: it would be made at a later position."""
        bits = 0
        for path, ended in self._positions(arrow, source):
            bits |= self._bits(path, ended) & self._slots.transient
        return self._slots.named(bits)

    def _bits(self, path: str, ended: bool, alive: Alive | None = None) -> int:
        alive = alive if alive is not None else self._alive
        if ended:
            return functools.reduce(operator.or_, (alive.after[point] for point in self._flow.exits[path]))
        return alive.before[self._flow.entries[path][0]]

    def is_position(self, arrow: FlowEdge, source: FlowPoint) -> bool:
        """True if a run stands somewhere when it has taken an arrow; within one visit it does not."""
        target, entries, exits = arrow.target, self._flow.entries, self._flow.exits
        if target is self._flow.end:
            return True
        return target in entries[target.path] and (source.opens is not None or source in exits[source.path])

    def _positions(self, arrow: FlowEdge, source: FlowPoint) -> Iterator[tuple[str, bool]]:
        """Where the run stands once an arrow was taken: the end of a body is passed in the same visit."""
        for point, taken in Ways([(source, arrow)], lambda at: ((at[1].target, after) for after in self._within(at))):
            if taken.target is self._flow.end:
                yield point.path, True
            elif self.is_position(taken, point):
                yield taken.target.path, False

    def _within(self, at: tuple[FlowPoint, FlowEdge]) -> list[FlowEdge]:
        """The arrows that follow on one within a visit."""
        source, arrow = at
        is_over = arrow.target is self._flow.end or self.is_position(arrow, source)
        return [] if is_over else arrow.target.arrows

    def reader_after(self, slot: str, path: str, *, ended: bool = False) -> str:
        """The path of a node that reads a slot, without a default, on a way on which nothing writes it before."""
        slots, flow = self._slots, self._flow
        bit = slots.bits([slot])
        behind = flow.exits[path] if ended else ()

        def following(point: FlowPoint) -> Iterable[FlowPoint]:
            use = slots.uses[point]
            is_written = point not in behind and bit & (use.defines | use.kills)
            return () if is_written else (arrow.target for arrow in (*point.arrows, *point.closed))

        for point in Ways(behind or flow.entries[path][:1], following):
            if point not in behind:
                for reader in self._set_up_again(point):
                    if any(read.required and slot in slots_of([target]) for read, target in reader.setup_reads):
                        return reader.path
                use = slots.uses[point]
                if bit & use.requires:
                    return point.path
                if bit & (use.defines | use.kills):
                    continue
            if bit & slots.guards_asked(point):
                return point.path
        return path

    def _set_up_again(self, point: FlowPoint) -> Iterator[PlanNode]:
        """The nodes that a resume sets up at a point: those of the body that it is in, and of the bodies around."""
        for scope in self._flow.plan.around(point.scope):
            yield from self._flow.plan.nodes_in(scope)


@dataclass(frozen=True)
class SavePoint:
    """What a checkpoint would hold that is made when a node is the next to run.

    Attributes:
        path: of the node: ``"validate/eval_batch"``.
        alive: the slots that are read later, by path.
        transient: those of them that cannot be saved; where there are any, it is no save point.
    """

    path: str
    alive: tuple[str, ...]
    transient: tuple[str, ...]


def save_points_of(graph: Graph) -> list[SavePoint]:
    """Every node of a sound graph and of those nested in it, in order; every optional resource counts as supplied.

    What a user's own step function reads beside its batch is not known here, and keeps further slots alive.

    >>> points = {point.path: point for point in save_points_of(Graph.load("fit"))}
    >>> points["train_batch"].alive, points["decide"].alive
    (('batch', 'samples'), ())
    """
    plan = Plan(graph)
    points = SavePoints(Slots(Flow(plan)))
    return [
        SavePoint(planned.path, tuple(points.alive(planned.path)), tuple(points.transient(planned.path)))
        for planned in plan.nodes
    ]
