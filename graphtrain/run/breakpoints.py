"""Breakpoints: where a run stops or pauses beside the ends of its graph.

The loop does not know of them. A breakpoint takes the place of one callable in the list of transitions, so that a run
without one pays nothing, and a run with one pays a call and a comparison at that node alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.kind.trigger import Term, Trigger, known_units
from graphtrain.names import suggestion
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Transition
from graphtrain.program.requests import Request, Requests
from graphtrain.program.triggers import after


@dataclass(frozen=True)
class Breakpoint:
    """A node, a condition, and what is requested of the loop where the condition holds.

    Attributes:
        index: the node.
        holds: the condition, evaluated each time the run reaches the node.
        when: `before` the node, which is then not run; or `after` it has run.
        request: `pause` returns control at once, wherever that is; `reached` makes a checkpoint first.
    """

    index: int
    holds: Callable[[], bool]
    when: Literal["before", "after"] = "before"
    request: Request = "pause"

    def around(self, transition: Transition, requests: Requests) -> Transition:
        """The transition of the node, with the breakpoint in it."""
        index, holds, request = self.index, self.holds, self.request

        def stop_before() -> int:
            if holds():
                requests.post(request)
                return index
            return transition()

        def stop_after() -> int:
            position = transition()
            if holds():
                requests.post(request)
            return position

        return stop_before if self.when == "before" else stop_after


def with_breakpoints(
    transitions: Sequence[Transition], breakpoints: Iterable[Breakpoint], requests: Requests
) -> list[Transition]:
    """The transitions with breakpoints in them. Of two before one node, the last is evaluated first."""
    changed = list(transitions)
    for breakpoint in breakpoints:
        changed[breakpoint.index] = breakpoint.around(changed[breakpoint.index], requests)
    return changed


# ---- run(until=...)


def parse_amount(text: str, graph: Graph, option: str = "until", example: str = "'500 steps'") -> Trigger:
    """The amount at which a run is to stop.

    Raises:
        UsageError: the text is no amount, or its unit is not on the clock of the graph.

    >>> str(parse_amount("500 steps", Graph.load("fit")))
    '500 steps'
    """
    try:
        trigger = Trigger(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", f"as in {example}") from None
    known = known_units(graph.units)
    for term in trigger.terms:
        if term.unit not in known:
            raise UsageError(f'{option}: unknown unit `{term.unit}` in "{term}"', suggestion(term.unit, known, {}))
    return trigger


def at_limit(compiled: CompiledGraph, limit: Trigger) -> list[Breakpoint]:
    """Stop instead of fetching another batch once an amount is reached; none for "never".

    So everything that the amount makes due, such as a validation, is done before the run stops. A graph that counts no
    batches stops before the node that counts the unit.
    """
    if not limit.terms:
        return []
    nodes, units = compiled.program.main.nodes, compiled.graph.units
    is_reached = after(compiled.compiler.clocks(next(iter(nodes.values())), limit))
    counter = units["batches" if "batches" in units else limit.terms[0].base.unit]
    return [Breakpoint(nodes[counter.partition(".")[0]].index, is_reached, request="reached")]


# ---- replay --to, --node


def parse_moment(text: str, graph: Graph) -> Term:
    """The amount at which a replay pauses.

    Raises:
        UsageError: the text is no single amount, or its unit is not on the clock of the graph.

    >>> str(parse_moment("48211 steps", Graph.load("fit")))
    '48211 steps'
    """
    example = "--to '48211 steps'"
    terms = parse_amount(text, graph, "--to", example).terms
    if len(terms) != 1:
        raise UsageError(f'--to: "{text}" is not an amount', f"as in {example}")
    return terms[0]


def after_amount(compiled: CompiledGraph, term: Term) -> Breakpoint:
    """Pause right after the node that counts a unit has reached an amount: gradients and batch are still there.

    Raises:
        UsageError: a replay cannot meet the amount again, or meets it many times.
    """
    unit, amount = term.base.unit, term.base.amount
    owner, _, field = compiled.graph.units[unit].partition(".")
    counter = compiled.program.main.nodes[owner]
    declaration = counter.kind.fields[field]
    if not declaration.in_digest:
        raise UsageError(f"--to: `{term.unit}` are wall-clock time, which no replay repeats", "use batches or steps")
    if declaration.restarts is not None:
        raise UsageError(
            f"--to: `{term.unit}` start again from 0, so that no amount is one moment", "use batches, steps or epochs"
        )
    clock = compiled.compiler.clock(counter, field)
    return Breakpoint(counter.index, lambda: clock.now() >= amount, "after")


def before_node(compiled: CompiledGraph, path: str) -> Breakpoint:
    """Pause before the node at a path runs.

    Raises:
        UsageError: there is no such node.
    """
    nodes = compiled.program.by_path
    if path not in nodes:
        raise UsageError(f"--node: there is no node `{path}`", suggestion(path, nodes))
    return Breakpoint(nodes[path].index, lambda: True)
