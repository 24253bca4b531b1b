"""Which slots are alive at each position: written before, read later. A checkpoint holds these and no others.

Source: the backward data-flow analysis of Kildall, "A unified approach to global program optimization", 1973.
"""

from __future__ import annotations

from graphtrain.program.bind import BoundGraph, BoundNode, Place, Program, SlotPlace, TuplePlace


def live_slots(
    program: Program, extra_reads: dict[str, list[Place]], *, optional: bool = True
) -> tuple[list[set[int]], list[set[int]]]:
    """For each position, the slots alive before its node runs, and after it.

    Arguments:
        extra_reads: path -> what the user's functions that this node calls ask for beside its own slots.
        optional: False leaves out what is read with a default. Default: it counts too.
    """
    nodes = program.nodes
    reads = [_slots([*_reads(bound, optional), *extra_reads.get(bound.path, ())]) for bound in nodes]
    guard_reads = [program.guard_reads(bound) for bound in nodes]
    setup_reads = [_slots(bound.setup_reads) for bound in nodes]
    before: list[set[int]] = [set() for _ in nodes]
    after: list[set[int]] = [set() for _ in nodes]
    changed = True
    while changed:
        changed = False
        for bound in reversed(nodes):
            position = bound.index
            out = guard_reads[position].union(
                *(_entry(program, bound, target, before, after) for target in program.targets(bound))
            )
            into = _before(bound, reads[position], out, before)
            if bound.scope.outer is not None:  # a resume inside a body sets its nodes up again
                into |= set().union(*(setup_reads[one.index] for one in bound.scope.nodes.values()))
            if into != before[position] or out != after[position]:
                before[position], after[position] = into, out
                changed = True
    return before, after


def reader_after(
    program: Program, extra_reads: dict[str, list[Place]], slot: int, position: int, ended: bool = False
) -> str:
    """The path of a node that reads a slot on a way on from a position on which nothing writes it before.

    Arguments:
        ended: True if the node at the position has run, and took an edge to the end.
    """
    seen: set[tuple[int, bool]] = set()
    waiting = [(program.nodes[position], ended)]  # a node, and whether it has run
    while waiting:
        bound, has_run = waiting.pop(0)
        if (bound.index, has_run) in seen:
            continue
        seen.add((bound.index, has_run))
        if has_run:
            if slot in program.guard_reads(bound):
                return bound.path
            for target in program.targets(bound):
                if target is not None:
                    waiting.append((target, False))
                elif (outer := bound.scope.outer) is not None:
                    if slot in _outputs(program, bound.scope):
                        return outer.path
                    waiting += [(outer, True)] if slot not in outer.writes else []
            continue
        if bound.scope.outer is not None:
            for one in bound.scope.nodes.values():
                if slot in _slots(one.setup_reads):
                    return one.path
        if bound.body is not None and not bound.bypassed:
            waiting.append((bound.body.nodes[bound.body.graph.start], False))
        elif not bound.bypassed and slot in _slots([*_reads(bound, False), *extra_reads.get(bound.path, ())]):
            return bound.path
        if bound.bypassed or bound.skippable or (bound.body is None and slot not in bound.writes):
            waiting.append((bound, True))
    return program.nodes[position].path


def _reads(bound: BoundNode, optional: bool) -> list[Place]:
    # A node with a body reads nothing itself.
    return [place for read, place in zip(bound.kind.reads, bound.reads, strict=False) if optional or read.required]


def _before(bound: BoundNode, reads: set[int], out: set[int], before: list[set[int]]) -> set[int]:
    if bound.bypassed:
        return set(out)
    if bound.body is not None:
        start = bound.body.nodes[bound.body.graph.start]
        return before[start.index] | (out if bound.skippable else set())
    written = set() if bound.skippable else set(bound.writes)
    return reads | (out - written)


def _entry(
    program: Program, bound: BoundNode, target: BoundNode | None, before: list[set[int]], after: list[set[int]]
) -> set[int]:
    if target is not None:
        return before[target.index]
    outer = bound.scope.outer
    if outer is None:
        return set()
    # The end of a body copies its outputs outward, then the outer node's edges are chosen.
    return (after[outer.index] - set(outer.writes)) | _outputs(program, bound.scope)


def _outputs(program: Program, scope: BoundGraph) -> set[int]:
    paths = [scope.prefix + slot for slot in scope.graph.outputs]
    return {program.slot_index(path) for path in paths if path in program.slot_names}


def _slots(places: list[Place]) -> set[int]:
    found: set[int] = set()
    for place in places:
        if isinstance(place, SlotPlace):
            found.add(place.index)
        elif isinstance(place, TuplePlace):
            found |= _slots(list(place.places))
    return found
