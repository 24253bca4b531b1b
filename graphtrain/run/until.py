"""Running until an amount is reached, as a gate before one node; the loop itself does not know of it."""

from __future__ import annotations

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.kind.trigger import Trigger, known_units
from graphtrain.names import suggestion
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Visit, with_visit
from graphtrain.program.requests import Requests
from graphtrain.program.triggers import after


def until_trigger(until: str, graph: Graph) -> Trigger:
    """The amount that a run goes on to.

    Raises:
        UsageError: the text is no amount, or its unit is not on the clock of the graph.
    """
    try:
        trigger = Trigger(until)
    except ValueError as error:
        raise UsageError(f"until: {error}", "as in '500 steps'") from None
    known = known_units(graph.units)
    for term in trigger.terms:
        if term.unit not in known:
            raise UsageError(f'until: unknown unit `{term.unit}` in "{term}"', suggestion(term.unit, known))
    return trigger


def gated_visits(compiled: CompiledGraph, trigger: Trigger, requests: Requests, visits: list[Visit]) -> list[Visit]:
    """The visits given, with one that asks to stop instead of fetching a further batch once the amount is reached.

    So everything that the amount made due, such as a validation, is done before the run stops. A graph that counts no
    batches stops before the node that counts the unit.
    """
    program, compiler = compiled.program, compiled.compiler
    units = program.graph.units
    if not trigger.terms:
        return visits
    main = program.main
    counted = program.terms(next(iter(main.nodes.values())), trigger)
    due = after([(compiler.clock(owner, field), term) for owner, field, term in counted])
    unit = "batches" if "batches" in units else trigger.terms[0].base.unit
    gate = main.nodes[units[unit].partition(".")[0]].index
    visit = visits[gate]

    def gated() -> int:
        if due():
            requests.reached()
            return gate
        return visit()

    return with_visit(visits, gate, gated)
