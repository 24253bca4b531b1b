"""G501, G504: loops that never reach the end."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import final

import networkx

from graphtrain.checks.exploration import Exploration
from graphtrain.graph.elements import Problem, Severity
from graphtrain.graph.syntax import FieldOf, walk
from graphtrain.names import quoted
from graphtrain.program.bind import ProgramNode


@final
class Trap:
    """States that a run never leaves.

    Arguments:
        states: their numbers.
        absent: the resources without which it never leaves them. Default: none.

    Attributes:
        nodes: the nodes visited, without those of bodies.
        deciding: the names of the guards that never change there, and by which the run does not leave.
    """

    def __init__(self, exploration: Exploration, states: Collection[int], absent: Collection[str] = ()) -> None:
        self._absent = absent
        self._program, pairs = exploration.machine.program, dict[tuple[ProgramNode, ProgramNode], None]()  # ordered
        for before, after in exploration.graph.subgraph(states).edges:
            arrived = self._program.nodes[exploration.states[after][0]]
            pairs.update(dict.fromkeys(itertools.pairwise([*exploration.visited([before, after]), arrived])))
        visited = sorted({node for node, _ in pairs}, key=lambda node: node.index)
        self._scope = visited[0].scope
        self.nodes = [node for node in visited if node.scope is self._scope]
        self._steps = networkx.DiGraph(pair for pair in pairs if {*pair} <= {*self.nodes})
        closed = [(node, name) for node in self.nodes for name in self._closed(node)]
        self.deciding = list(dict.fromkeys(name for _, name in closed))
        self._guards = [self._scope.guards[name] for name in self.deciding]
        self._first = closed[0][0] if closed else self.nodes[0]

    def _closed(self, node: ProgramNode) -> list[str]:
        """The names of the guards at a node by which the run does not leave."""
        edges, inside = node.plan_node.edges, {each.plan_node for each in self.nodes}
        targets = [edge.target for edge in edges]
        chosen = max((targets.index(after.plan_node) for after in self._steps[node] if after is not node), default=0)
        outside = [target not in inside for target in targets]
        before = [edge.when for edge, leaves in zip(edges[:chosen], outside, strict=False) if leaves]
        hiding = [edges[chosen].when] if any(outside[chosen + 1 :]) else []  # it holds, and so hides later edges
        return [name for name in (*before, *hiding) if name is not None]

    @property
    def reads_windows(self) -> bool:
        """True if one of these guards reads a count of backward passes."""
        read = [(f"{self._scope.path}{part.node}", part.field) for part in self._read()]
        by_path = {node.path: node for node in self._program.nodes_in(self._scope)}
        return any(path in by_path and by_path[path].kind.counter(field) is not None for path, field in read)

    def _read(self) -> list[FieldOf]:
        return [part for guard in self._guards for part in walk(guard) if isinstance(part, FieldOf)]

    def problem(self, severity: Severity) -> Problem:
        """The problem, with a shortest loop as its path."""
        scope, node = self._scope, self._first
        loops = [networkx.shortest_path(self._steps, after, node) for after in self._steps[node]]
        path = (node.path, *(each.path for each in min(loops, key=len)))
        deciding, names = quoted(self.deciding), quoted([each.path for each in self.nodes], most=16)
        asked = {part.node for part in self._read()}
        ending = [each for each in self._program.nodes_in(scope) if each.kind.trigger == "after"]
        never = next((each for each in ending if each.node.name in asked and each.plan_node.is_never_due), None)
        if never is not None:
            return scope.problem(
                "G504",
                f"nodes.{never.node.name}.after",
                f'`{never.path}.after` is "never", and nothing else ends the graph: {deciding} cannot be true',
                f'give it an amount, as in {never.path}.after = "10 epochs"; if a step function returns STOP, or you '
                'stop the run yourself, allow = ["G504"]',
                severity="warning",  # mostly intended: such a run is stopped by a signal, or by `until`
                path=path,
            )
        condition = f"without {quoted(sorted(self._absent))} " if self._absent else ""
        reason = "no edge leaves the loop"
        if deciding:
            reason = f"only {deciding} could end the loop, and nothing in it changes the result"
        hint = (
            "let the guard read progress of a node of the loop, such as `runs`, or the `due` of a node with a trigger, "
            'as in every = "100 steps"; or route the loop through a node whose progress it reads, such as `next_batch`'
        )
        guarded = {edge.target for each in self.nodes for edge in each.plan_node.edges if edge.guard is not None}
        for each in [other.plan_node for other in self.nodes if other.kind.trigger == "every"]:
            if each in guarded and (each.trigger is None) == ((each.path, "due") in self._program.plan.fields_read):
                hint = f'let its guard read `{each.path}.due`, and give it an amount: {each.path}.every = "100 steps"'
        if condition:
            hint += "; or, if it is always supplied, remove it from `optional` of the body or the kind"
        return scope.problem(
            "G501",
            f"edges.{node.node.name}",
            f"{condition}the run can loop through {names} forever: {reason}",
            hint,
            severity=severity,
            path=path,
        )


def traps_in(exploration: Exploration, absent: Collection[str] = ()) -> list[Trap]:
    """The traps of an explored graph that has some data; of traps with common nodes, the first.

    Arguments:
        absent: as for `Trap`.
    """
    traps: list[Trap] = []
    with_data = {number for number, state in enumerate(exploration.states) if number and state[1].batches}
    lost = with_data - networkx.ancestors(exploration.graph, 0)
    for states in networkx.attracting_components(exploration.graph.subgraph(lost)) if lost else ():
        trap = Trap(exploration, states, absent)
        if all({*trap.nodes}.isdisjoint(other.nodes) for other in traps):
            traps.append(trap)
    return traps
