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
from graphtrain.plan.solve import solve

_Pairs = Iterable[tuple[Read, Ref]]


@dataclass(frozen=True)
class Uses:
    """What a point does with slots; each is one bit of a number.

    Attributes:
        requires: read there, without a default.
        reads: read there, also with a default.
        defines: written there.
        kills: cleared there: where a body is entered, its own; where an epoch begins, those of step functions.
        maybe: those of `defines` that may be absent nevertheless.
    """

    requires: int = 0
    reads: int = 0
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
        paths = dict.fromkeys(path for plan_node in flow.plan.nodes for path in plan_node.writes)
        self._bits = {path: 1 << number for number, path in enumerate(paths)}
        self.body_outputs = {point: self._outputs(point) for point in flow.points}
        self.uses = {point: self._uses(point) for point in flow.points}
        self.guards = {
            point: self.bits(slots_of(ref for guard in point.guards for ref in point.scope.read_in(guard)))
            for point in flow.points
        }
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
        return self._read_bits(pair for plan_node in self.flow.plan.nodes_in(scope) for pair in plan_node.set_up_with)

    def _read_bits(self, pairs: _Pairs) -> tuple[int, int]:
        """The bits of what is read without a default, and of all that is read."""
        bits = [(self.bits(slots_of([ref])), read.required) for read, ref in pairs]
        return _either(each for each, is_required in bits if is_required), _either(each for each, _ in bits)

    def _read_at_end(self, scope: Scope, method: str) -> tuple[int, int]:
        """The reads of the nodes of a graph that act where it ends, by a method."""
        nodes = self.flow.plan.nodes_in(scope)
        acting = [node for node in nodes if node.kind.has(method) and node.kind.reads_at_end]
        return self._read_bits(pair for node in acting for pair in node.visit_reads)

    def _uses(self, point: FlowPoint) -> Uses:
        plan_node = point.plan_node
        if point is self.flow.end:
            return Uses(*self._read_at_end(point.scope, "at_end"))
        if point.opens is not None:
            own = self.bits(f"{point.opens.path}{name}" for name in point.opens.written)
            return Uses(*self.set_up_with(point.opens), kills=own)
        if plan_node is None or not point.acts:
            return Uses()
        writes = self.bits(plan_node.writes)
        if plan_node.body is None:
            pairs = (*plan_node.visit_reads, *self._extra_reads.get(plan_node.path, ()))
            return Uses(*self._read_bits(pairs), writes, self.bits(plan_node.kills))
        body = plan_node.body
        required, read = self._read_at_end(body, "at_body_end")
        needed = self.bits(f"{body.path}{name}" for name in outputs_of(body.graph, optional=False))
        outputs = _either(inner for inner, _ in self.body_outputs[point])
        maybe = _either(outer for inner, outer in self.body_outputs[point] if not inner & needed)
        return Uses(required | needed, read | outputs, writes, maybe=maybe)

    def _outputs(self, point: FlowPoint) -> tuple[tuple[int, int], ...]:
        node = point.plan_node
        if node is None or node.body is None or not point.acts:
            return ()
        pairs = zip(outputs_of(node.body.graph), node.writes, strict=True)
        return tuple((self.bits([f"{node.body.path}{inner}"]), self.bits([outer])) for inner, outer in pairs)

    # ---- the slots that are alive

    def alive(self, path: str, *, ended: bool = False, optional: bool = True) -> int:
        """The slots that are alive before the node at a path runs; if it took an edge to the end, after it.

        A resume may give the last node another trigger, so it counts as one that may be skipped. It evaluates the
        guards of the last node again, which may have changed, as when the ending was postponed.

        Arguments:
            optional: False leaves out those that are only read with a default. Default: they count too.
        """
        before = self._before if optional else self._alive_before(optional=False)
        if not ended:
            return before[self.flow.entries[path][0]]
        exits = self.flow.exits[path]
        return _either(self.guards[point] for point in exits) | _either(
            before[arrow.target] for point in exits for arrow in point.arrows
        )

    @functools.cached_property
    def _before(self) -> Mapping[FlowPoint, int]:
        return self._alive_before(optional=True)

    def _alive_before(self, *, optional: bool) -> Mapping[FlowPoint, int]:
        """The slots that a resume at each point reads later; it sets up the nodes of the bodies around again."""
        plan, points = self.flow.plan, self.flow.points
        set_up = {path: self.set_up_with(scope)[optional] for path, scope in plan.scopes.items()}
        inside = {point: _either(set_up[scope.path] for scope in plan.around(point.scope)) for point in points}
        sources: dict[FlowPoint, list[FlowPoint]] = {point: [] for point in points}
        for point in points:
            for arrow in point.arrows:
                sources[arrow.target].append(point)

        def alive_before(point: FlowPoint, after: int) -> int:
            use = self.uses[point]
            reads = use.reads if optional else use.requires
            return reads | inside[point] | (after & ~use.defines & ~use.kills)

        def transfer(point: FlowPoint, before: int) -> Iterator[tuple[FlowPoint, int]]:
            return ((source, alive_before(source, before)) for source in sources[point])

        return solve({point: alive_before(point, self.guards[point]) for point in points}, transfer, operator.or_)

    def late(self, arrow: FlowEdge) -> list[str]:
        """The slots for which no checkpoint can be made where an arrow leads: it would be made at a later position."""
        target = arrow.target
        point = self.flow.entries[target.path][0] if arrow.leads_to_visit else target
        return self.named(self._before[point] & self.transient)


def _either(bits: Iterable[int]) -> int:
    return functools.reduce(operator.or_, bits, 0)
