"""G501, G504: loops from which nothing leads to the end."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import final

import networkx

from graphtrain.checks.exploration import Exploration
from graphtrain.graph.elements import Problem, Severity
from graphtrain.language.syntax import FieldOf, walk
from graphtrain.names import quoted
from graphtrain.program.bind import ProgramNode


@final
class Trap:
    """States that a run never leaves.

    Arguments:
        states: their numbers.
        absent: the resources without which that is so. Default: none.

    Attributes:
        nodes: those visited, without the nodes of bodies, which are passed in one step.
        deciding: the guards that keep their answers there, and by which the run does not leave.
    """

    def __init__(self, exploration: Exploration, states: Collection[int], absent: Collection[str] = ()) -> None:
        self._absent = absent
        self._program, pairs = exploration.machine.program, dict[tuple[ProgramNode, ProgramNode], None]()  # in order
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
        """The guards of a node by which the run does not leave."""
        edges, inside = node.plan_node.edges, {each.plan_node for each in self.nodes}
        targets = [edge.target for edge in edges]
        chosen = max((targets.index(after.plan_node) for after in self._steps[node] if after is not node), default=0)
        outside = [target not in inside for target in targets]
        before = [edge.when for edge, is_out in zip(edges[:chosen], outside, strict=False) if is_out]
        hiding = [edges[chosen].when] if any(outside[chosen + 1 :]) else []  # an answer that hides what follows
        return [name for name in (*before, *hiding) if name is not None]

    @property
    def reads_windows(self) -> bool:
        """True if a count of backward passes decides."""
        read = [(f"{self._scope.path}{part.node}", part.field) for part in self._read()]
        by_path = {node.path: node for node in self._program.nodes_in(self._scope)}
        return any(path in by_path and by_path[path].kind.counter(field) is not None for path, field in read)

    def _read(self) -> list[FieldOf]:
        return [part for guard in self._guards for part in walk(guard) if isinstance(part, FieldOf)]

    def problem(self, severity: Severity) -> Problem:
        """The problem, with a shortest loop."""
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
                f'`{never.path}.after` is "never", and nothing else ends the graph: {deciding} cannot hold',
                f'give it an amount, as in {never.path}.after = "10 epochs"; where a step function returns STOP, or a '
                'person stops the run, allow = ["G504"]',
                severity="warning",  # mostly intended: such a run is stopped by a signal, or by `until`
                path=path,
            )
        condition = f"without {quoted(sorted(self._absent))} " if self._absent else ""
        decide = f"only as {deciding} decide{'s' if len(self.deciding) == 1 else ''}" if deciding else "by no edge"
        hint = (
            "let the guard read progress of a node of the loop, such as `runs`, or the `due` of a node with a trigger, "
            'as in every = "100 steps"; or route the loop through a node whose progress it reads, such as `next_batch`'
        )
        if condition:
            hint += "; or, if it is always supplied, take it out of the `optional` of the body or the kind"
        return scope.problem(
            "G501",
            f"edges.{node.node.name}",
            f"{condition}the run can go round {names} forever: it could leave {decide}, and nothing there changes the "
            "answer",
            hint,
            severity=severity,
            path=path,
        )


def traps_in(exploration: Exploration, absent: Collection[str] = ()) -> list[Trap]:
    """The traps of an explored graph: parts from which no continuation leads to the end, with some data.

    Of those with common nodes, one.

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
