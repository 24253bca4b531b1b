"""The exchange of gradients within the last backward pass of a window, among several ranks.

Gradients are summed while that pass still runs, and the sums are waited for before its visit ends: no exchange is open
between two transitions, where a run may be cut. So the node that exchanges has nothing left to do when the run reaches
it; `exchanged` of the counter, which is saved, says so.

That a pass is the last of its window is known before it runs only in graphs of one form: the node that runs backward,
the node that counts, the node that exchanges, one after the other. The guards of the second are evaluated ahead, with
the count that there will be. Neither of the two may change anything else that they read. In other graphs gradients are
exchanged where the node `exchange` is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from graphtrain.kind import Field
from graphtrain.language.syntax import Expression, FieldOf, Name, walk
from graphtrain.plan.flow import changers
from graphtrain.program.bind import Program, ProgramNode
from graphtrain.program.cells import Cells
from graphtrain.program.rounds import Act, Rounds

BACKWARD = "backward"  # what a node is set up with that runs its backward pass by the agreement of ranks
# The parameter of a node that exchanges by which it allows that, and its method that prepares for the pass.
OVERLAP, BEGIN = "overlap", "begin"


class _Way(NamedTuple):
    """The way of a window from its last backward pass to the exchange."""

    counter: ProgramNode
    field: Field
    exchange: ProgramNode


def exchanging_within(
    program: Program, cells: Cells, rounds: Rounds, node: ProgramNode, visit_of: Callable[[ProgramNode], Act], act: Act
) -> Act:
    """The call of a node that runs backward, which exchanges the gradients of a window that this completes.

    Arguments:
        visit_of: makes the visit of a node, without its trigger.
        act: the call of the node. It is returned if its windows are not known to end with it.
    """
    way = _way(program, node)
    if way is None:
        return act
    counter, count, agreement = way.counter.fields, way.field.name, rounds.agreement
    amount, begin, exchange = rounds.amount(node), getattr(way.exchange.instance, BEGIN), visit_of(way.exchange)
    choices = [
        (cells.compiled(node.scope, edge.guard) if edge.guard is not None else None, target)
        for edge, target in zip(way.counter.plan_node.exits, program.targets(way.counter), strict=True)
    ]

    def is_last() -> bool:
        """Whether the run goes on to the exchange: the same on all ranks."""
        before = counter[count]
        counter[count] = before + amount()
        try:
            return next(target for guard, target in choices if guard is None or guard()) is way.exchange
        except Exception:  # of a guard, which raises it again where it is evaluated
            return False
        finally:
            counter[count] = before

    def act_and_exchange() -> None:
        if agreement.sharded or not is_last():
            act()
            return
        begin()
        act()
        exchange()

    return act_and_exchange


def _way(program: Program, node: ProgramNode) -> _Way | None:
    """The way from a backward pass to the exchange of its gradients; None if the graph has another form."""
    running = [
        each
        for each in program.nodes
        if not each.bypassed and any(action.effect == "backward" for action in each.plan_node.actions)
    ]
    # With several, ranks that have taken different edges could begin sums of different gradients.
    if running != [node] or not _uses_backward(node) or len(node.plan_node.actions) != 1:
        return None
    (action,) = node.plan_node.actions
    targets = program.targets(node)
    counter = targets[0] if len(targets) == 1 else None
    if counter is None or not _is_plain(counter):
        return None
    field = next((field for field in counter.kind.fields.values() if field.counts is not None), None)
    if field is None or field.exchanged is None or set(counter.plan_node.optimizers) != set(action.optimizers):
        return None
    exchange = next((target for target in program.targets(counter) if target is not None and _exchanges(target)), None)
    if exchange is None or set(exchange.plan_node.actions[0].optimizers) != set(action.optimizers):
        return None
    known = {(counter.node.name, name) for name in (field.name, field.window, field.full)}
    guards = [edge.guard for edge in counter.plan_node.exits if edge.guard is not None]
    if any(_may_change(program, guard, (node, counter), known) for guard in guards):
        return None
    return _Way(counter, field, exchange)


def _uses_backward(node: ProgramNode) -> bool:
    """True for a node that runs its backward pass by the call that it is set up with.

    One that inherits the set-up and has a visit of its own may use the gradients in it, before their sums are there.
    """
    if not node.is_set_up_with(BACKWARD):
        return False
    visit, setup = (
        next(each for each in type(node.instance).__mro__ if name in vars(each)) for name in ("__call__", "setup")
    )
    return visit is setup


def _is_plain(node: ProgramNode) -> bool:
    """True for a node that every visit calls, with nothing that it reads."""
    plan_node = node.plan_node
    return not (node.bypassed or node.body or plan_node.can_be_skipped or plan_node.reads or plan_node.expressions)


def _exchanges(node: ProgramNode) -> bool:
    effects = [action.effect for action in node.plan_node.actions]
    return effects == ["exchange"] and _is_plain(node) and getattr(node.instance, OVERLAP, False)


def _may_change(
    program: Program, guard: Expression, nodes: tuple[ProgramNode, ...], known: set[tuple[str, str | None]]
) -> bool:
    """True if the visits of some nodes may change something that a guard reads, apart from what is known."""
    names, scope = {node.node.name for node in nodes}, nodes[0].scope.names
    return any(
        not names.isdisjoint(changers(program.plan, scope, part))
        for part in walk(guard)
        if isinstance(part, Name) or (isinstance(part, FieldOf) and (part.node, part.field) not in known)
    )
