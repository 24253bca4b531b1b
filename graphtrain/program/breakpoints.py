"""Breakpoints: positions, other than the end of the graph, at which a run stops or pauses.

The loop does not know about them. A breakpoint replaces one callable in the list of transitions: a run without
breakpoints pays nothing, and a run with one pays a call and a comparison at that node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from graphtrain.errors import UsageError
from graphtrain.graph.elements import GraphData
from graphtrain.kind.trigger import Trigger, known_units
from graphtrain.names import suggestion
from graphtrain.plan.scope import Scope
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Transition
from graphtrain.program.requests import Request, Requests
from graphtrain.program.triggers import Every, reached


@dataclass(frozen=True)
class Breakpoint:
    """A request that is made instead of running a node, each time that a condition holds.

    The request "pause" returns at once, at any position; "reached" and "breakpoint" save first, if possible.
    """

    index: int
    holds: Callable[[], bool]
    request: Request = "pause"


def with_breakpoints(
    transitions: Sequence[Transition], breakpoints: Iterable[Breakpoint], requests: Requests
) -> list[Transition]:
    """The transitions with breakpoints. Of two at one node, the last is evaluated first."""

    def stopping(transition: Transition, index: int, holds: Callable[[], bool], request: Request) -> Transition:
        def stop_before() -> int:
            if request not in requests and holds():  # one that waits for a save point is pending already
                requests.add(request)
                return index
            return transition()

        return stop_before

    changed = list(transitions)
    for each in breakpoints:
        changed[each.index] = stopping(changed[each.index], each.index, each.holds, each.request)
    return changed


def parse_amount(text: str, graph: GraphData, option: str = "until", example: str = "'500 steps'") -> Trigger:
    """Parse the amount at which a run stops, in units of the graph or of a nested graph that trains.

    Raises:
        UsageError: the text is not an amount, or nothing counts its unit.
    """
    try:
        trigger = Trigger(text)
    except ValueError:
        trigger = Trigger("never")
    if trigger.once or trigger.is_never:
        raise UsageError(f'{option}: expected a number greater than 0 and a unit, got "{text}"', f"as in {example}")
    scopes = [scope for scope in Scope(graph).with_inner() if scope.outer is None or scope.counts_training]
    known = known_units(dict.fromkeys(unit for scope in scopes for unit in scope.graph.units))
    if unknown := next((term for term in trigger.terms if term.unit not in known), None):
        raise UsageError(f'{option}: unknown unit `{unknown.unit}` in "{unknown}"', suggestion(unknown.unit, known))
    return trigger


def at_limit(compiled: CompiledGraph, limit: Trigger) -> list[Breakpoint]:
    """Breakpoints that stop a run once an amount is reached and due nodes have run, before it fetches another batch.

    A graph that does not count batches stops before the node that counts the unit.
    """
    clocks, limits = compiled.program.clocks, compiled.program.limits(limit)
    before = [clocks[clock.node.scope].get("batches", clock).node.index for clock, _ in limits]
    return [Breakpoint(index, reached([each]), request="reached") for index, each in zip(before, limits, strict=True)]


def before_node(
    compiled: CompiledGraph,
    path: str,
    option: str,
    request: Request = "pause",
    *,
    passing: Callable[[], bool] = lambda: False,
    runs: int | None = None,
) -> Breakpoint:
    """A breakpoint before the node at a path runs; visits at which its trigger is not due do not count.

    Arguments:
        option: the option or argument with the path, for messages.
        passing: the run does not stop where this returns True. Default: it always stops.
        runs: it stops once the node has run this often, in a nested graph since that began. Default: each time.

    Raises:
        UsageError: there is no such node, or it is bypassed.
    """
    running = {path: node for path, node in compiled.program.by_path.items() if not node.bypassed}
    if path not in running:
        raise UsageError(f"{option}: there is no node `{path}`, or it is bypassed", suggestion(path, running))
    node = running[path]
    is_due = compiled.compiler.cells.due(node) if isinstance(node.trigger, Every) else lambda: True

    def holds() -> bool:
        return not passing() and (runs is None or node.fields["runs"] == runs) and bool(is_due())

    return Breakpoint(node.index, holds, request=request)
