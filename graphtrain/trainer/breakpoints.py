"""Breakpoints: where a run stops or pauses other than at the end of its graph.

The loop does not know about them. A breakpoint replaces one callable in the list of transitions: a run without
breakpoints pays nothing, and a run with one pays a call and a comparison at that node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.graph.elements import nodes_of
from graphtrain.kind.trigger import Trigger, known_units
from graphtrain.names import suggestion
from graphtrain.plan.scope import Scope
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Transition
from graphtrain.program.requests import Request, Requests
from graphtrain.program.triggers import Every, reached


@dataclass(frozen=True)
class Breakpoint:
    """A node, a condition, and the request that is made to the loop when the condition holds.

    Attributes:
        index: the node.
        holds: the condition, evaluated each time the run reaches the node.
        when: `before` the node, which is then not run; or `after` it has run.
        request: `pause` returns control at once, at any position; `reached` and `breakpoint` save a checkpoint first,
            if that is possible.
    """

    index: int
    holds: Callable[[], bool]
    when: Literal["before", "after"] = "before"
    request: Request = "pause"

    def around(self, transition: Transition, requests: Requests) -> Transition:
        """The transition of the node, wrapped in the breakpoint."""
        index, holds, request = self.index, self.holds, self.request

        def stop_before() -> int:
            if request not in requests and holds():  # one that waits for a save point is pending already
                requests.add(request)
                return index
            return transition()

        def stop_after() -> int:
            position = transition()
            if holds():
                requests.add(request)
            return position

        return stop_before if self.when == "before" else stop_after


def with_breakpoints(
    transitions: Sequence[Transition], breakpoints: Iterable[Breakpoint], requests: Requests
) -> list[Transition]:
    """The transitions wrapped in breakpoints. Of two at one node, the last is evaluated first."""
    changed = list(transitions)
    for breakpoint in breakpoints:
        changed[breakpoint.index] = breakpoint.around(changed[breakpoint.index], requests)
    return changed


# ---- run(until=...)


def parse_amount(text: str, graph: Graph, option: str = "until", example: str = "'500 steps'") -> Trigger:
    """Parse the amount at which a run is to stop, in a unit of the clock of the graph or of a nested one that trains.

    Raises:
        UsageError: the text is not an amount, or nothing counts its unit.

    >>> str(parse_amount("500 steps", Graph.load("fit")))
    '500 steps'
    """
    try:
        trigger = Trigger(text)
    except ValueError:
        trigger = Trigger("never")
    if trigger.once or trigger.is_never:
        raise UsageError(f'{option}: expected an amount greater than 0, got "{text}"', f"as in {example}")
    scopes = [scope for scope in Scope(graph).with_inner() if scope.outer is None or scope.counts_training]
    units = dict.fromkeys(unit for scope in scopes for unit in scope.graph.units)
    known = known_units(units)
    for term in trigger.terms:
        if term.unit not in known:
            raise UsageError(f'{option}: unknown unit `{term.unit}` in "{term}"', suggestion(term.unit, known))
    return trigger


def at_limit(compiled: CompiledGraph, limit: Trigger) -> list[Breakpoint]:
    """Breakpoints that stop a run before it fetches another batch once an amount is reached; none for "never".

    So everything that the amount makes due, such as a validation, is done before the run stops. In a graph that does
    not count batches the run stops before the node that counts the unit.
    """
    breakpoints = []
    for clock, term in compiled.program.limits(limit):
        before = compiled.program.clocks[clock.node.scope].get("batches", clock)
        breakpoints.append(Breakpoint(before.node.index, reached([(clock, term)]), request="reached"))
    return breakpoints


# ---- run(before=...), replay --node


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
        option: the option that the path was given by, for messages.
        passing: called at each visit; if it returns True, the run does not stop. Default: it always stops.
        runs: stop only once the node has run this often, in a nested graph since that began. Default: each time.

    Raises:
        UsageError: there is no such node, or it never runs because a resource is missing.
    """
    running = {path: node for path, node in compiled.program.by_path.items() if not node.bypassed}
    if path not in running:
        is_there = path in nodes_of(compiled.graph)
        what = f"the node `{path}` never runs: it is bypassed, or inside a node that is"
        raise UsageError(f"{option}: {what if is_there else f'there is no node `{path}`'}", suggestion(path, running))
    node = running[path]
    is_due = compiled.compiler.cells.due(node) if isinstance(node.trigger, Every) else lambda: True
    fields = node.fields

    def holds() -> bool:
        return not passing() and (runs is None or fields["runs"] == runs) and bool(is_due())

    return Breakpoint(node.index, holds, request=request)
