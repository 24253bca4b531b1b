"""Where a graph can be saved, told without any resource: the analysis of a run, on stand-ins for what is not there."""

from __future__ import annotations

from dataclasses import dataclass

from graphtrain.checks import checked_graph
from graphtrain.graph import Graph
from graphtrain.program.bind import Program
from graphtrain.program.liveness import live_slots


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
    """Every node of a graph and of those nested in it, in order.

    What a user's own step function asks for beside its batch is not known here, and keeps further slots alive.

    Raises:
        GraphError: the graph has problems.

    >>> points = {one.path: one for one in save_points_of(Graph.load("fit"))}
    >>> points["train_batch"].alive, points["decide"].alive
    (('batch', 'samples'), ())
    """
    checked = checked_graph(graph)
    program = Program(checked, {})
    # Every optional resource is taken to be there, so that nothing is bypassed for the want of one.
    program = Program(checked, dict.fromkeys([*program.asked, *_optional(program)], object()))
    before, _ = live_slots(program, {})
    transient = program.transient_slots()

    def names(slots: set[int]) -> tuple[str, ...]:
        return tuple(program.slot_names[index] for index in sorted(slots))

    return [
        SavePoint(bound.path, names(before[bound.index]), names(before[bound.index] & transient))
        for bound in program.nodes
    ]


def _optional(program: Program) -> set[str]:
    """The resources whose absence makes nodes be bypassed."""
    found: set[str] = set()
    for bound in program.nodes:
        slots = bound.node.body.optional if bound.node.body is not None else bound.kind.optional
        for slot in slots:
            renamed = bound.node.reads.get(slot, slot)
            found.update((renamed,) if isinstance(renamed, str) else renamed)
    return found
