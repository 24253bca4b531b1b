"""Gradients are exchanged between ranks during the last backward pass of a window.

The sums are complete before the visit ends, so no exchange is open between two transitions, where a run may be saved.
The node that exchanges then has nothing left to do.

Whether a pass is the last of its window is known beforehand only if three nodes follow each other: one that runs
backward, one that counts, one that exchanges. The guards of the second are evaluated with the count that there will be,
which requires that the first two change nothing else that the guards read. In other graphs gradients are exchanged at
the node `exchange`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

from graphtrain.graph.syntax import FieldOf, Name, walk
from graphtrain.kind import Field
from graphtrain.plan.changers import changers
from graphtrain.program.bind import Program, ProgramNode
from graphtrain.program.cells import Cells
from graphtrain.program.rank_visits import Act, RankVisits


def exchanging_within(
    program: Program,
    cells: Cells,
    rank_visits: RankVisits,
    visit_of: Callable[[ProgramNode], Act],
    node: ProgramNode,
    act: Act,
) -> Act:
    """The call of a node that runs backward, which also exchanges gradients if its pass completes a window.

    Arguments:
        visit_of: returns the visit of a node, without its trigger.
        act: the call of the node; returned as it is if the end of a window is not known beforehand.
    """
    window_end = _window_end(program, node)
    if window_end is None:
        return act
    counter, field, exchange_node = window_end
    fields, count, agreement, amount = counter.fields, field.name, rank_visits.agreement, rank_visits.amount(node)
    begin, exchange = exchange_node.instance.begin, visit_of(exchange_node)
    choices = [
        (cells.compiled(node.scope, edge.guard) if edge.guard is not None else None, target)
        for edge, target in zip(counter.plan_node.edges, program.targets(counter), strict=True)
    ]

    def is_last() -> bool:
        """True if the run continues to the exchange, on all ranks."""
        before = fields[count]
        fields[count] = before + amount()
        try:
            return next(target for guard, target in choices if guard is None or guard()) is exchange_node
        except Exception:  # of a guard, which raises again at its edge
            return False
        finally:
            fields[count] = before

    def act_and_exchange() -> None:
        if agreement.sharded or not is_last():
            act()
            return
        begin()
        act()
        exchange()

    return act_and_exchange


def _window_end(program: Program, node: ProgramNode) -> tuple[ProgramNode, Field, ProgramNode] | None:
    """The node that counts a backward pass, its field, and the node that exchanges; None in other graphs."""
    # With several such nodes, ranks at different edges could begin sums of different gradients.
    is_alone = [each for each in program.nodes if not each.bypassed and "backward" in _effects(each)] == [node]
    # A subclass that inherits `setup` may use the gradients before they are summed.
    is_whole = {"setup", "__call__"} <= vars(type(node.instance)).keys() and "backward" in node.asks_for
    counter, *other_targets = program.targets(node)
    if not is_alone or not is_whole or _effects(node) != ["backward"] or other_targets or not _is_plain(counter):
        return None
    field = next((field for field in counter.kind.fields.values() if field.counts is not None), None)
    exchange = next((target for target in program.targets(counter) if _exchanges(target)), None)
    if field is None or exchange is None:
        return None
    of_nodes = [node.plan_node.actions[0].optimizers, exchange.plan_node.actions[0].optimizers]
    if any(set(optimizers) != set(counter.plan_node.optimizers) for optimizers in of_nodes):
        return None
    # No guard may read what the visits of the two nodes change, other than these.
    known = {(counter.node.name, name) for name in (field.name, field.window, field.full)}
    names, scope = {node.node.name, counter.node.name}, node.scope
    for guard in (edge.guard for edge in counter.plan_node.edges if edge.guard is not None):
        for part in walk(guard):
            is_read = isinstance(part, Name) or (isinstance(part, FieldOf) and (part.node, part.field) not in known)
            if is_read and not names.isdisjoint(changers(program.plan, scope, part)):
                return None
    return counter, field, exchange


def _effects(node: ProgramNode) -> list[str]:
    return [action.effect for action in node.plan_node.actions]


def _is_plain(node: ProgramNode | None) -> TypeGuard[ProgramNode]:
    """True for a node that runs at every visit and reads nothing."""
    if node is None or node.bypassed or node.body:
        return False
    return not (node.plan_node.can_be_skipped or node.plan_node.reads or node.plan_node.expressions)


def _exchanges(node: ProgramNode | None) -> TypeGuard[ProgramNode]:
    return _is_plain(node) and _effects(node) == ["exchange"] and getattr(node.instance, "overlap", False)
