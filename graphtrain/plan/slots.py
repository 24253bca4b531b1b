"""Which slots are alive where, and where a run can be saved.

A slot is *alive* at a position if it is read later, before it is written again. A checkpoint has the slots that are
alive, and no others. Where one of them cannot be saved, no checkpoint is made.

Source: Kildall, "A unified approach to global program optimization", 1973.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, final

import networkx

from graphtrain.graph.syntax import FieldOf, Operation
from graphtrain.kind import Read
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import Ref, Scope, outputs_of, slots_of


class Point(NamedTuple):
    """A moment of the visit of a node.

    Arguments:
        path: of the node; empty for the end of the run.
        moment: "begins": its visit begins; "begins when due": the same, after an edge that is taken only if the node is
            due; "acts": it is called, or its body is entered; "closes": its body has ended; "leaves": it takes an edge.
    """

    path: str
    moment: Literal["begins", "begins when due", "acts", "closes", "leaves"]

    @property
    def is_position(self) -> bool:
        """True if a run can be saved here: between two visits."""
        return self.moment in ("begins", "begins when due")


@final
class Slots:
    """The slots of a plan, and where each is alive.

    Arguments:
        bypassed: the paths of bypassed nodes. Default: none.
        extra_reads: path of a node -> the reads of its step function. Default: none.

    Attributes:
        points: the graph of points, with an edge to each that may follow.
        transient: the paths of the slots whose values cannot be saved, as kinds declare.
    """

    def __init__(
        self,
        plan: Plan,
        bypassed: Collection[str] = (),
        extra_reads: Mapping[str, Sequence[tuple[Read, Ref]]] | None = None,
    ) -> None:
        self._plan, self._bypassed, self._extra_reads = plan, bypassed, extra_reads or {}
        self.points = networkx.DiGraph()
        for node in plan.nodes:
            self.points.add_edges_from(self._edges(node))
        self.transient = frozenset(
            path
            for node in plan.nodes
            if node.body is None
            for slot, path in zip(node.kind.writes, node.own_writes, strict=True)
            if slot in node.kind.transient
        )

    def _edges(self, node: PlanNode) -> Iterator[tuple[Point, Point]]:
        begins, acts, leaves = Point(node.path, "begins"), Point(node.path, "acts"), Point(node.path, "leaves")
        if node.path not in self._bypassed:
            yield begins, acts
            yield Point(node.path, "begins when due"), acts
        if node.path in self._bypassed or node.can_be_skipped:
            yield begins, leaves
        if node.body is not None:
            closes = Point(node.path, "closes")
            yield acts, Point(f"{node.body.path}{node.body.graph.start}", "begins")
            yield closes, leaves
        else:
            yield acts, leaves
        for edge in node.edges:
            if (target := edge.target) is None:
                yield leaves, Point(node.scope.path.removesuffix("/"), "closes")
                continue
            parts = (
                edge.guard.operands if isinstance(edge.guard, Operation) and edge.guard.name == "and" else (edge.guard,)
            )
            is_due = FieldOf(target.node.name, "due") in parts and target.path not in self._bypassed
            yield leaves, Point(target.path, "begins when due" if is_due else "begins")

    def _set_up_with(self, scope: Scope) -> list[tuple[Read, Ref]]:
        """The reads of `setup` of the nodes in a graph."""
        return [pair for node in self._plan.nodes_in(scope) for pair in node.set_up_with]

    def _read_at_end(self, scope: Scope, method: str) -> list[tuple[Read, Ref]]:
        """The reads of the nodes with a method that is called where their graph ends."""
        acting = [node for node in self._plan.nodes_in(scope) if node.kind.has(method) and node.kind.reads_at_end]
        return [pair for node in acting for pair in node.visit_reads]

    def _used(self, point: Point) -> tuple[Sequence[tuple[Read, Ref]], Iterable[str]]:
        """The reads at a point, and the paths of the slots that are written or cleared there."""
        node = self._plan.by_path.get(point.path)
        if node is None:
            return self._read_at_end(self._plan.main, "at_end"), ()
        if point.moment == "leaves":
            guards = [edge.guard for edge in node.edges if edge.guard is not None]
            return [(Read(""), ref) for guard in guards for ref in node.scope.read_in(guard)], ()
        if point.is_position:
            return (), ()
        if (body := node.body) is None:
            return (*node.visit_reads, *self._extra_reads.get(node.path, ())), {*node.writes, *node.kills}
        if point.moment == "acts":
            return self._set_up_with(body), [f"{body.path}{name}" for name in body.written]
        needed = outputs_of(body.graph, optional=False)
        reads = [Read(name) if name in needed else Read(name, None) for name in outputs_of(body.graph)]
        outputs = [(read, Ref("slot", f"{body.path}{read.name}")) for read in reads]
        return [*self._read_at_end(body, "at_body_end"), *outputs], node.writes

    def alive(self, path: str, *, ended: bool = False, optional: bool = True) -> frozenset[str]:
        """The slots that are alive before the node at a path runs.

        The node counts as one that may be skipped, as its trigger may be another after a resume.

        Arguments:
            ended: True if the run took an edge to the end there. A resume evaluates its guards again. Default: False.
            optional: False leaves out slots that are only read with a default. Default: they are included.
        """
        alive = self._alive if optional else self._solved(optional=False)
        return alive[Point(path, "leaves" if ended else "begins")]

    @functools.cached_property
    def _alive(self) -> Mapping[Point, frozenset[str]]:
        return self._solved(optional=True)

    def _solved(self, *, optional: bool) -> Mapping[Point, frozenset[str]]:
        """The slots that are alive at each point. A resume sets up the nodes of the bodies around it again."""

        def slots_in(reads: Sequence[tuple[Read, Ref]]) -> list[str]:
            return slots_of([ref for read, ref in reads if read.required or optional])

        bodies = {path: slots_in(self._set_up_with(scope)) for path, scope in self._plan.scopes.items() if path}
        read, overwritten = {}, {}
        for point in self.points:
            reads, written = self._used(point)
            set_up = [slots for path, slots in bodies.items() if point.path.startswith(path)]
            read[point], overwritten[point] = {*slots_in(reads)}.union(*set_up), {*written}
        alive = dict.fromkeys(self.points, frozenset[str]())
        waiting = dict.fromkeys(self.points)
        while waiting:
            point, _ = waiting.popitem()
            after = frozenset[str]().union(*[alive[each] for each in self.points.successors(point)])
            before = after - overwritten[point] | read[point]
            if before != alive[point]:
                alive[point] = before
                waiting.update(dict.fromkeys(self.points.predecessors(point)))
        return alive

    def late(self, point: Point) -> frozenset[str]:
        """The transient slots that are alive at a point, so that a checkpoint is made later."""
        return self._alive[Point(point.path, "begins") if point.is_position else point] & self.transient
