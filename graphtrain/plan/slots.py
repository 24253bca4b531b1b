"""What each point of a flow does with slots, which of them are alive there, and where a run can be saved.

A slot is alive if it was written before and is read later. A checkpoint holds the slots that are alive and no others;
where one of them cannot be saved, no checkpoint is made. Checks and the engine use this.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from graphtrain.kind import Read
from graphtrain.plan.flow import Flow, FlowEdge, FlowPoint
from graphtrain.plan.scope import Ref, Scope, outputs_of, slots_of
from graphtrain.plan.solve import Ways, solve


@dataclass(frozen=True)
class Uses:
    """What a point does with slots; each is one bit of a number.

    Attributes:
        requires: read there, without a default; `uses` has the others too.
        defines: written there.
        kills: slots that are cleared: those of a body that is entered there, which does not keep the values of an
            earlier visit; and those of step functions where an epoch begins.
        maybe: those of `defines` that may be absent nevertheless.
    """

    requires: int = 0
    uses: int = 0
    defines: int = 0
    kills: int = 0
    maybe: int = 0


@final
class Slots:
    """The slots that some node writes, numbered, and what each point of a flow does with them.

    Arguments:
        extra_reads: path of a node -> its reads in addition to the slots of its kind, as a user's step function has.
            Default: nothing.

    Attributes:
        uses: what each point does.
        guards: the slots that the guards on the edges leaving each point read.
        body_outputs: where a body is left, the bits of each slot that leaves it, inside and outside.
        transient: the slots whose values cannot be saved, as their kinds declare.
    """

    def __init__(self, flow: Flow, extra_reads: Mapping[str, Sequence[tuple[Read, Ref]]] | None = None) -> None:
        self.flow, self._extra_reads = flow, extra_reads or {}
        self._bits: dict[str, int] = {}
        for plan_node in flow.plan.nodes:
            for path in plan_node.writes:
                self._bits.setdefault(path, 1 << len(self._bits))
        self.body_outputs = {point: self._outputs(point) for point in flow.points}
        self.uses = {point: self._uses(point) for point in flow.points}
        self.guards = {point: self._guards(point) for point in flow.points}
        self.transient = self.bits(
            path
            for node in flow.plan.nodes
            if node.body is None
            for slot, path in zip(node.kind.writes, node.own_writes, strict=True)
            if slot in node.kind.transient
        )

    def bits(self, paths: Iterable[str]) -> int:
        """The bits of some slots; a resource has none."""
        return _either(self._bits.get(path, 0) for path in paths)

    def named(self, bits: int) -> list[str]:
        """The paths of slots."""
        return [path for path, bit in self._bits.items() if bits & bit]

    def set_up_with(self, scope: Scope) -> tuple[int, int]:
        """The setup reads of the nodes of a graph: those without a default, and all."""
        reads = [pair for plan_node in self.flow.plan.nodes_in(scope) for pair in plan_node.set_up_with]
        return self._bits_of(reads)

    def _bits_of(self, reads: Iterable[tuple[Read, Ref]]) -> tuple[int, int]:
        needs = everything = 0
        for read, target in reads:
            bits = self.bits(slots_of([target]))
            everything |= bits
            needs |= bits if read.required else 0
        return needs, everything

    def _bits_at_end(self, scope: Scope, method: str) -> tuple[int, int]:
        """The reads of the nodes of a graph that act where it ends, by a method."""
        nodes = self.flow.plan.nodes_in(scope)
        acting = [node for node in nodes if node.kind.has(method) and node.kind.reads_at_end]
        return self._bits_of(pair for node in acting for pair in node.visit_reads)

    def _uses(self, point: FlowPoint) -> Uses:
        plan_node = point.plan_node
        if point is self.flow.end:
            return Uses(*self._bits_at_end(point.scope, "at_end"))
        if point.opens is not None:
            inside = point.opens
            forgets = self.bits(f"{inside.path}{name}" for name in inside.written)
            needs, reads = self.set_up_with(inside)
            return Uses(needs, reads, 0, forgets)
        if plan_node is None or not point.acts:
            return Uses()
        writes = self.bits(plan_node.writes)
        if plan_node.body is not None:
            body, pairs = plan_node.body, self.body_outputs[point]
            needs = self.bits(f"{body.path}{name}" for name in outputs_of(body.graph, optional=False))
            maybe = _either(outer for inner, outer in pairs if not inner & needs)
            acting_needs, acting_reads = self._bits_at_end(body, "at_body_end")
            outputs = _either(inner for inner, _ in pairs)
            return Uses(needs | acting_needs, outputs | acting_reads, writes, maybe=maybe)
        needs, reads = self._bits_of([*plan_node.visit_reads, *self._extra_reads.get(plan_node.path, ())])
        return Uses(needs, reads, writes, self.bits(plan_node.kills))

    def _outputs(self, point: FlowPoint) -> tuple[tuple[int, int], ...]:
        node = point.plan_node
        if node is None or node.body is None or not point.acts:
            return ()
        pairs = zip(outputs_of(node.body.graph), node.writes, strict=True)
        return tuple((self.bits([f"{node.body.path}{inner}"]), self.bits([outer])) for inner, outer in pairs)

    def _guards(self, point: FlowPoint) -> int:
        guards = [arrow.guard for arrow in point.arrows if arrow.guard is not None]
        return self.bits(path for guard in guards for path in slots_of(point.scope.read_in(guard)))

    # ---- the slots that are alive: before each point, and after it

    @functools.cached_property
    def _alive(self) -> tuple[Mapping[FlowPoint, int], Mapping[FlowPoint, int]]:
        return self._solved(optional=True)

    def _solved(self, *, optional: bool) -> tuple[Mapping[FlowPoint, int], Mapping[FlowPoint, int]]:
        """The slots that a resume reads later, from wherever it begins; `optional` counts reads with a default too.

        A resume sets up the nodes of its body and of enclosing bodies again. At the end of a run it evaluates the
        guards of the last node again, which may have changed, as when the ending was postponed.
        """
        plan, points = self.flow.plan, self.flow.points
        set_up = {path: self.set_up_with(scope)[optional] for path, scope in plan.scopes.items()}
        inside = {point: _either(set_up[scope.path] for scope in plan.around(point.scope)) for point in points}
        sources: dict[FlowPoint, list[FlowPoint]] = {point: [] for point in points}
        for point in points:
            for arrow in point.arrows:
                sources[arrow.target].append(point)

        def alive_before(point: FlowPoint, after: int) -> int:
            use = self.uses[point]
            reads = use.uses if optional else use.requires
            return reads | inside[point] | (after & ~use.defines & ~use.kills)

        def transfer(point: FlowPoint, before: int) -> Iterator[tuple[FlowPoint, int]]:
            return ((source, alive_before(source, before)) for source in sources[point])

        before = solve({point: alive_before(point, self.guards[point]) for point in points}, transfer, operator.or_)
        after = {
            point: self.guards[point] | _either(before[arrow.target] for arrow in point.arrows) for point in points
        }
        return before, after

    # ---- the positions of a run: before a node or, once it is over, after the last one

    def alive(self, path: str, *, ended: bool = False, optional: bool = True) -> int:
        """The slots that are alive before the node at a path runs; if it took an edge to the end, after it.

        A resume may give the last node another trigger, so it counts as one that may be skipped.

        Arguments:
            optional: False leaves out those that are only read with a default. Default: they count too.
        """
        before, after = self._alive if optional else self._solved(optional=False)
        if ended:
            return _either(after[point] for point in self.flow.exits[path])
        return before[self.flow.entries[path][0]]

    def late(self, arrow: FlowEdge, source: FlowPoint) -> list[str]:
        """The slots for which no checkpoint can be made where an arrow leads: it would be made at a later position."""
        alive = (self.alive(path, ended=ended) for path, ended in self._positions(arrow, source))
        return self.named(_either(alive) & self.transient)

    def is_position(self, arrow: FlowEdge, source: FlowPoint) -> bool:
        """True if a run is at a position after an arrow; within one visit it is not."""
        target, entries, exits = arrow.target, self.flow.entries, self.flow.exits
        if target is self.flow.end:
            return True
        return target in entries[target.path] and (source.opens is not None or source in exits[source.path])

    def _positions(self, arrow: FlowEdge, source: FlowPoint) -> Iterator[tuple[str, bool]]:
        """The position of the run after an arrow: the end of a body is passed in the same visit."""
        for point, taken in Ways([(source, arrow)], lambda at: ((at[1].target, after) for after in self._within(at))):
            if taken.target is self.flow.end:
                yield point.path, True
            elif self.is_position(taken, point):
                yield taken.target.path, False

    def _within(self, at: tuple[FlowPoint, FlowEdge]) -> list[FlowEdge]:
        """The arrows after one that are taken in the same visit."""
        source, arrow = at
        return [] if self.is_position(arrow, source) else arrow.target.arrows


def _either(bits: Iterable[int]) -> int:
    return functools.reduce(operator.or_, bits, 0)
