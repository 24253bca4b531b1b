"""Places at which a run that is gone through again stops: visits with a gate before or behind one node."""

from __future__ import annotations

from collections.abc import Callable

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.kind.trigger import Term, Trigger, known_units
from graphtrain.names import suggestion
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Loop, Visit, with_visit
from graphtrain.program.triggers import Clock

Gate = Callable[[CompiledGraph, Loop], list[Visit]]


def before(visits: list[Visit], index: int, loop: Loop, stops: Callable[[], bool]) -> list[Visit]:
    """The visits, with one that pauses instead of running the node at `index` while `stops` says so."""
    visit = visits[index]

    def gated() -> int:
        if stops():
            loop.requests.pause()
            return index
        return visit()

    return with_visit(visits, index, gated)


def behind(visits: list[Visit], index: int, loop: Loop, stops: Callable[[], bool]) -> list[Visit]:
    """The visits, with one that pauses once the node at `index` has run, if `stops` says so then."""
    visit = visits[index]

    def gated() -> int:
        position = visit()
        if stops():
            loop.requests.pause()
        return position

    return with_visit(visits, index, gated)


def forgetting(compiled: CompiledGraph, visits: list[Visit]) -> list[Visit]:
    """The visits, with one that fetches a batch and forgets what is left of the one before and read no more."""
    counter = compiled.graph.units.get("batches")
    if counter is None:
        return visits
    bound = compiled.program.main.nodes[counter.partition(".")[0]]
    visit, slots = visits[bound.index], compiled.program.slots
    written = set(range(len(compiled.program.slot_names)))  # constants come after them

    def fetched() -> int:
        position = visit()
        for number in written - set(bound.writes) - compiled.alive(position):
            slots[number] = None
        return position

    return with_visit(visits, bound.index, fetched)


def moment(text: str, graph: Graph) -> Term:
    """The amount at which a replay stops.

    Raises:
        UsageError: the text is no single amount, its unit is not on the clock of the graph, or is no moment.

    >>> str(moment("48211 steps", Graph.load("fit")))
    '48211 steps'
    """
    units = graph.units
    example = "as in --to '48211 steps'"
    try:
        terms = Trigger(text).terms
    except ValueError as error:
        raise UsageError(f"--to: {error}", example) from None
    if len(terms) != 1:
        raise UsageError(f'--to: "{text}" is no moment', example)
    unit = terms[0].unit
    known = known_units(units)
    if unit not in known:
        raise UsageError(f'--to: unknown unit `{unit}` in "{text}"', suggestion(unit, known))
    return terms[0]


def clock_of(compiled: CompiledGraph, term: Term) -> tuple[int, Clock]:
    """The position of the node that counts the unit of an amount, and the clock itself.

    Raises:
        UsageError: the unit begins again now and then, or is counted by the clock on the wall.
    """
    owner, _, field = compiled.graph.units[term.base.unit].partition(".")
    bound = compiled.program.main.nodes[owner]
    declared = bound.kind.fields[field]
    if not declared.in_digest:
        raise UsageError(f"--to: `{term.unit}` are of the clock on the wall, which does not replay", "name batches")
    if declared.restarts is not None:
        raise UsageError(f"--to: `{term.unit}` begin again, so they name no moment", "name batches, steps or epochs")
    return bound.index, compiled.compiler.clock(bound, field)


def at_amount(term: Term) -> Gate:
    """Stop right after the node that counts a unit has reached an amount: gradients and batch are still there."""

    def gate(compiled: CompiledGraph, loop: Loop) -> list[Visit]:
        index, clock = clock_of(compiled, term)
        return behind(compiled.table.visits, index, loop, lambda: clock.now() >= term.base.amount)

    return gate


def at_node(path: str) -> Gate:
    """Stop before the node at a path runs.

    Raises:
        UsageError: there is no such node.
    """

    def gate(compiled: CompiledGraph, loop: Loop) -> list[Visit]:
        nodes = compiled.program.by_path
        if path not in nodes:
            raise UsageError(f"--node: there is no node `{path}`", suggestion(path, nodes))
        return before(compiled.table.visits, nodes[path].index, loop, lambda: True)

    return gate
