"""G5xx: a run cannot loop forever without a change of anything that decides where it goes.

One graph is explored, bodies in one step. A state is a point, what is known of the values that guards read, and the
counts of backward passes. A guard that is not decided by them may be either, and is known from then on, until a visit
may change what it reads. So a run can never leave a state from which no path leads out of the graph.

There may be many states, so the search stops after `MOST_STATES`, with a warning; `fit` takes about 200.
Source: explicit states, Holzmann, "The SPIN Model Checker", 2003; predicate abstraction, Graf and Saidi, 1997.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from graphtrain.checks.answers import ANY, NO_FACTS, Facts, Table, Values, both, together
from graphtrain.checks.changes import NOWHERE, Changes, Moves, by_count
from graphtrain.checks.gradients import Gradients
from graphtrain.graph.elements import Problem, Severity
from graphtrain.kind.declaration import FROM, RANKS
from graphtrain.language.syntax import Constant, Expression, FieldOf, Name, Operation, rebuilt, walk
from graphtrain.names import quoted
from graphtrain.plan.flow import Flow, FlowEdge, FlowPoint, names_on
from graphtrain.plan.scope import Ref, Scope, resources_of
from graphtrain.plan.solve import Ways, circle, components

MOST_STATES = 20_000
# Beyond this number of ways in which the guards before an edge can have failed, further ones are not examined.
MOST_TOGETHER = 64
# A count of backward passes is not followed beyond this number.
MOST_COUNTED = 4


@dataclass(eq=False)
class _Way:
    """A way to leave a point.

    Attributes:
        guard: the condition; None if there is none.
        target: None if it leads out of the graph.
        deciding: the names of the guards that decide.
    """

    guard: Expression | None
    target: FlowPoint | None
    deciding: tuple[str, ...] = ()


# The counts of backward passes, in the order of `_Search.counters`; None for one that is not known.
_Counts = tuple[int | None, ...]
_State = tuple[FlowPoint, Facts, _Counts]


def _counted_instead(scope: Scope, guard: Expression | None, path: str) -> str:
    """A remedy for a guard that divides what a unit counts, which does not change before the guard is read again."""
    units = {text: unit for unit, text in scope.graph.units.items()}
    for part in walk(guard) if guard is not None else ():
        match part:
            case Operation("%", (FieldOf(owner, field), Constant(amount))) if f"{owner}.{field}" in units:
                name, unit = path.removeprefix(scope.path), units[f"{owner}.{field}"]
                return f', or let the node be due: every = "{amount} {unit}" of `{name}`, and the guard "{name}.due"'
    return ""


def check_loops(flow: Flow, gradients: Gradients, supplied: Collection[str] | None = None) -> Iterator[Problem]:
    """Every loop that nothing in it could end, in the graph and in nested ones; a body is passed in one step.

    Arguments:
        supplied: as for `check_graph`.
    """
    scopes: dict[str, list[FlowPoint]] = {}
    for point in flow.points:
        if point.node is not None:
            scopes.setdefault(point.scope.path, []).append(point)
    for points in scopes.values():
        yield from _of_scope(flow, points, gradients, supplied)


def _of_scope(
    flow: Flow, points: list[FlowPoint], gradients: Gradients, supplied: Collection[str] | None
) -> Iterator[Problem]:
    """The trap of one graph with all resources present; if it has none, that with resources absent."""
    scope = points[0].scope
    idle, optional = _bypassed(flow, scope, supplied or ())
    severity: Severity = "error" if supplied is not None else "warning"
    search = _Search(flow, points, gradients)
    try:
        if problem := search.problem(idle):
            yield problem
            return
        missing = idle.union(*optional.values())
        if not search.depends_on(missing - idle) or not (absent := search.problem(missing, [*optional])):
            return  # with all absent: most graphs have no trap
        alone = (search.problem(idle | nodes, [name]) for name, nodes in optional.items())
        yield replace(next(filter(None, alone), absent), severity=severity)
    except _TooManyStatesError:
        node = scope.graph.nodes[scope.graph.start]
        yield scope.problem(
            "G503",
            f"nodes.{node.name}",
            f"not checked whether the loops around `{node.name}` end: they are too entangled",
            "use fewer guards with several conditions in them, or put a part into a nested graph",
            severity="warning",
        )


def _bypassed(flow: Flow, scope: Scope, supplied: Collection[str]) -> tuple[frozenset[str], dict[str, frozenset[str]]]:
    """The nodes of a graph that always do nothing; and resource -> those that do nothing without it."""
    idle: set[str] = set()
    optional: dict[str, frozenset[str]] = {}
    for plan_node in flow.plan.nodes_in(scope):
        if plan_node.kind is None:
            continue
        if plan_node.path in flow.bypassed or plan_node.kind.is_idle(plan_node.parameters, plan_node.expressions):
            idle.add(plan_node.node.name)
            continue
        body = plan_node.body
        for slot in body.graph.optional if body is not None else plan_node.kind.optional:
            for name in resources_of([scope.read_by(plan_node.node, slot)]):
                if name not in (RANKS, *supplied):
                    optional[name] = optional.get(name, frozenset()) | {plan_node.node.name}
    return frozenset(idle), optional


class _TooManyStatesError(Exception):
    pass


class _Search:
    """The search for a trap of one graph.

    Arguments:
        points: of the graph, without those in bodies.
    """

    def __init__(self, flow: Flow, points: list[FlowPoint], gradients: Gradients) -> None:
        self._flow, self._points, self._scope, self._gradients = flow, points, points[0].scope, gradients
        self._order = {point: number for number, point in enumerate(points)}
        self._unchanged = Changes(points, gradients)
        nodes = [(point.node.name, point.plan_node) for point in points if point.node is not None and point.plan_node]
        self._delayed = {name for name, plan_node in nodes if plan_node.start is not None}
        start = flow.entries[self._scope.path + self._scope.graph.start][0]
        every_way = {point: self._ways_of(point) for point in points}
        reached = Ways([start], lambda at: (way.target for way in every_way[at] if way.target is not None))
        self._ways = {point: every_way[point] for point in reached}
        self._read_at = {point: [*self._reads_of(ways)] for point, ways in self._ways.items()}
        for point, ways in self._ways.items():
            self._ways[point] = [way for way in ways if not self._is_detour(point, way)]
            self._read_at[point] = [*self._reads_of(self._ways[point])]
        self._reads = dict.fromkeys(itertools.chain.from_iterable(self._read_at.values()))
        self.counters = [read for read in self._reads if isinstance(read, FieldOf) and self._unchanged.counted(read)]
        # Beyond the numbers in guards, a count is only known to be at least this.
        self._many = 1 + max((number for ways in self._ways.values() for number in self._numbers(ways)), default=0)

    def _ways_of(self, point: FlowPoint) -> list[_Way]:
        assert point.plan_node is not None and point.node is not None
        if point.opens is not None:
            return [_Way(None, self._unchanged.nodes[point.node.name])]
        entries = self._flow.entries[point.path]
        if len(entries) == 2 and point is entries[0]:  # where the trigger is evaluated
            due, skipped = point.arrows
            guard = self._meaning(FieldOf(point.node.name, "due"))
            return [_Way(guard, due.target, (f"{point.node.name}.due",)), _Way(None, skipped.target)]
        return [self._way(arrow) for arrow in point.arrows]

    def _way(self, arrow: FlowEdge) -> _Way:
        target = arrow.target if arrow.target in self._order else None
        return _Way(None if arrow.guard is None else self._meaning(arrow.guard), target, arrow.deciding)

    def _meaning(self, guard: Expression) -> Expression:
        """A guard that reads the counts of windows; what is due must also have reached its `from`."""

        def delayed(part: Expression) -> Expression:
            if isinstance(part, FieldOf) and part.field == "due":
                return Operation("and", (part, FieldOf(part.node, FROM))) if part.node in self._delayed else part
            return rebuilt(part, delayed)

        meaning = by_count(self._scope.graph, guard)
        return delayed(meaning) if self._delayed else meaning

    def _reads_of(self, ways: Iterable[_Way]) -> Iterator[FieldOf | Name]:
        """What the guards of some ways read."""
        guards = (way.guard for way in ways if way.guard is not None)
        return (part for guard in guards for part in walk(guard) if isinstance(part, FieldOf | Name))

    def _numbers(self, ways: Iterable[_Way]) -> Iterator[int]:
        """The numbers in the guards of some ways, as far as a count is followed."""
        parts = (part for way in ways if way.guard is not None for part in walk(way.guard))
        values = (part.value for part in parts if isinstance(part, Constant))
        return (int(value) for value in values if isinstance(value, int | float) and 0 <= value < MOST_COUNTED)

    def _is_detour(self, point: FlowPoint, way: _Way) -> bool:
        """True for a way to a node that is due, which leads back and changes nothing else: it decides nothing."""
        own = list(self._reads_of([way]))
        if way.target is None or way.target.node is None or way.target.kind is None or not own:
            return False
        name = way.target.node.name
        if way.target.kind.trigger != "every" or {*own} - {FieldOf(name, "due"), FieldOf(name, FROM)}:
            return False
        path = [way.target]
        while path[-1] is not point:
            following = [each.target for each in self._ways[path[-1]]]
            if len(following) != 1 or following[0] is None or following[0] in path:
                return False
            path.append(following[0])
        reads = list(itertools.chain.from_iterable(self._read_at.values()))
        if any(reads.count(read) > own.count(read) for read in own):
            return False
        ups = (self._unchanged.moves(read).up for read in own)
        others = (self._unchanged.moves(read).either_way.up for read in reads if read not in own)
        return NOWHERE.union(*ups, *others).isdisjoint(path[:-1])

    # ---- the search

    def problem(self, bypassed: frozenset[str], without: Sequence[str] = ()) -> Problem | None:
        """The first trap of the graph, if there is one.

        Arguments:
            bypassed: the names of nodes that do nothing.
            without: the resources whose absence is the reason. Default: none.
        """
        self._begin(bypassed)
        start = self._flow.entries[self._scope.path + self._scope.graph.start][0]
        self._following: dict[_State, list[tuple[_State | None, _Way]]] = {}
        # Gradients that are never cleared are G405: here their number may be any.
        counts = tuple(0 if self._changes.cleared(read) else None for read in self.counters)
        first: _State = start, self._entered(start, self._always), counts
        states = []
        for state in Ways([first], lambda at: (after for after, _ in self._follow(at) if after is not None)):
            states.append(state)
            if len(states) > MOST_STATES:
                raise _TooManyStatesError
        sources: dict[_State, list[_State]] = {}
        for state in states:
            for after, _ in self._following[state]:
                if after is not None:
                    sources.setdefault(after, []).append(state)
        ending = [state for state in states if any(after is None for after, _ in self._following[state])]
        leaving = {*Ways(ending, lambda at: sources.get(at, ()))}
        stuck = [state for state in states if state not in leaving]
        if not stuck:
            return None
        targets = {state: [after for after, _ in self._following[state]] for state in stuck}
        reached = [*Ways(stuck[:1], lambda at: (after for after in targets[at] if after is not None))]
        parts = components(reached, targets)
        still = next((part for part in parts if self._is_still(part)), None)
        return self._reported(still or set().union(*parts), without, is_still=still is not None)

    def depends_on(self, names: Collection[str]) -> bool:
        """True if some nodes may change what guards read."""
        moving = NOWHERE.union(*(self._unchanged.moves(read).either_way.up for read in self._reads))
        return any(point.node is not None and point.node.name in names for point in moving)

    def _begin(self, bypassed: frozenset[str]) -> None:
        """Prepare a search in which some nodes do nothing."""
        self._changes = Changes(self._points, self._gradients, bypassed)
        self._table = Table()
        self._moves: dict[int, Moves] = {}
        self._after_visit: dict[tuple[FlowPoint, Facts], Facts] = {}
        self._decides: dict[tuple[int, bool, bool], set[FlowPoint]] = {}
        self._answered: dict[tuple[_Way, _Counts], dict[bool, tuple[Facts, ...] | None]] = {}
        self._always = NO_FACTS
        for read in self._where_entered():
            self._hold(read, True)
        for name in sorted(bypassed):
            kind = self._scope.kinds[name]
            # Bypassed, `on_metrics` is not called, so what it would set stays False.
            fields = kind.fields.items() if kind is not None and kind.has("on_metrics") else ()
            for field_name in ("due", *(key for key, declared in fields if declared.default is False)):
                self._hold(FieldOf(name, field_name), False)

    def _hold(self, read: FieldOf | Name, answer: bool) -> None:
        """Note a constant value of something that guards read."""
        if read in self._reads:
            for facts in self._table.ways_to_answer(read, self._changes.known)[answer] or ():
                self._always = both(self._always, facts) or self._always

    def _where_entered(self) -> Iterator[Name]:
        """Values that hold as long as a run is in a body: the enclosing nodes, entered when due, are due."""
        plan = self._flow.plan
        around = [plan.by_path[inner.path.removesuffix("/")] for inner in plan.around(self._scope)]
        due = [Ref("field", plan_node.path, "due") for plan_node in around if plan_node.can_be_skipped]
        for read in self._reads if due else ():
            if isinstance(read, Name) and self._scope.resolve(read.name) in due and not self._changes.moving(read):
                yield read

    def _follow(self, state: _State) -> list[tuple[_State | None, _Way]]:
        """The states after a visit, None for the end, each with the way there."""
        point, facts, before = state
        counts = self._counted(point, before)
        waiting = [facts]
        following: list[tuple[_State | None, _Way]] = []
        for way in self._ways[point]:
            holding, failing = (self._answers(way, answer, counts) for answer in (True, False))
            entering = waiting if holding is None else together(waiting, holding)
            if way.target is None:
                following += [(None, way)] if entering else []
            else:
                entered = dict.fromkeys(self._entered(way.target, facts) for facts in entering)
                following += [((way.target, facts, counts), way) for facts in entered]
            if failing is not None:
                left = together(waiting, failing)
                waiting = left if len(left) <= MOST_TOGETHER else waiting
            if not waiting:
                break
        self._following[state] = following
        return following

    def _answers(self, way: _Way, answer: bool, counts: _Counts) -> tuple[Facts, ...] | None:
        """The ways in which the guard of a way can have a value; None for too many."""
        if way.guard is None:
            return (NO_FACTS,) if answer else ()
        key = way, counts
        if key not in self._answered:
            known = {
                read: Values(least=count, whole=True) if count == self._many else Constant(count)
                for read, count in zip(self.counters, counts, strict=True)
                if count is not None
            }
            self._answered[key] = self._table.ways_to_answer(
                way.guard, lambda read: known[read] if read in known else self._changes.known(read)
            )
        return self._answered[key][answer]

    def _entered(self, point: FlowPoint, before: Facts) -> Facts:
        """What is known after a visit, of what was known before it, and may still decide something."""
        key = point, before
        if key not in self._after_visit:
            kept = {}
            for term, values in before:
                moves = self._moves_of(term)
                least = None if point in moves.down else values.least
                most = None if point in moves.up else values.most
                without = frozenset() if point in moves.down | moves.up else values.without
                if least is not None or most is not None or without:
                    kept[term] = Values(least, most, without, values.whole)
            for term, read in enumerate(self._table.terms) if point in self._changes.adding else ():
                if isinstance(read, FieldOf) and self._is_counting(point, read):
                    kept[term] = kept.get(term, ANY).both(Values(least=1, whole=True)) or ANY
            known = frozenset(
                (term, values)
                for term, values in kept.items()
                if point in self._deciding(term, values.least is not None, values.most is not None)
            )
            self._after_visit[key] = both(known, self._always) or self._always
        return self._after_visit[key]

    def _moves_of(self, term: int) -> Moves:
        if term not in self._moves:
            self._moves[term] = self._changes.moves(self._table.terms[term])
        return self._moves[term]

    def _is_counting(self, point: FlowPoint, read: FieldOf) -> bool:
        """True if each visit adds to a field, which is not 0 after it."""
        if point.node is None or point.node.name != read.node or point.kind is None:
            return False
        declared = point.kind.fields.get(read.field)
        return read.field == "runs" or (declared is not None and bool(declared.adds))

    def _deciding(self, term: int, has_least: bool, has_most: bool) -> set[FlowPoint]:
        """The points from which an operand is read before a visit changes what is known of it."""
        key = term, has_least, has_most
        if key not in self._decides:
            moves, reads = self._moves_of(term), {*walk(self._table.terms[term])}
            breaking = moves.up & moves.down if has_least == has_most else moves.down if has_least else moves.up
            sources: dict[FlowPoint, list[FlowPoint]] = {}
            for point, ways in self._ways.items():
                for way in ways:
                    if way.target is not None and way.target not in breaking:
                        sources.setdefault(way.target, []).append(point)
            reading = [point for point, read in self._read_at.items() if not reads.isdisjoint(read)]
            self._decides[key] = {*Ways(reading, lambda at: sources.get(at, ()))}
        return self._decides[key]

    def _counted(self, point: FlowPoint, counts: _Counts) -> _Counts:
        """The counts of backward passes after a visit; within a body any number may be added."""
        changes = self._changes
        after: list[int | None] = []
        for read, count in zip(self.counters, counts, strict=True):
            optimizers = changes.counted(read)
            if point in changes.adding and point.node is not None and point.node.body is not None:
                count = None if (changes.adding[point] | changes.clearing[point]) & optimizers else count
            for action in point.actions if point in changes.adding else ():
                if optimizers & {*action.optimizers}:
                    if action.effect == "zero_grad":
                        count = 0
                    elif action.effect == "backward" and count is not None:
                        count = min(count + 1, self._many)
            after.append(count)
        return tuple(after)

    # ---- reports

    def _is_still(self, part: Collection[_State]) -> bool:
        """True if nothing changes that a guard there reads."""
        points = {point for point, *_ in part}
        guards = {self._meaning(arrow.guard) for point in points for arrow in point.arrows if arrow.guard is not None}
        return points.isdisjoint(NOWHERE.union(*map(self._changes.moving, guards)))

    def _reported(self, part: Collection[_State], without: Sequence[str], *, is_still: bool) -> Problem:
        """The problem of states that a run may never leave."""
        taken: dict[FlowPoint, list[_Way]] = {}
        for state in sorted(part, key=lambda state: self._order[state[0]]):
            taken.setdefault(state[0], []).extend(way for _, way in self._following[state])
        targets = {
            point: [way.target for way in self._ways[point] if way in ways and way.target in taken]
            for point, ways in taken.items()
        }
        first, hint = next(iter(taken)), ""
        way = circle(first, targets)
        closed: list[tuple[FlowPoint, tuple[str, ...]]] = []
        for point in taken:
            ways = self._ways[point]
            last = max(map(ways.index, taken[point]))
            out = [number for number, each in enumerate(ways) if each.target not in taken]
            staying = ways[last].target
            if staying is not None and not hint and any(number > last for number in out):
                hint = _counted_instead(self._scope, ways[last].guard, staying.path)
                way = circle(staying, targets)
            # After a guard that stays true, that guard decides.
            closed += [(point, ways[min(number, last)].deciding) for number in out]
        deciding = list(dict.fromkeys(name for _, names in closed for name in names))
        if without:
            hint += "; or, if it is always supplied, take it out of the `optional` of the body or the kind"
        path = names_on(way)
        nodes = list(dict.fromkeys(point.path for point in taken))
        names = quoted(nodes, most=16)
        absent = f"without {quoted(without)} " if without else ""
        around = f"go round {names}" if len(nodes) > 1 else f"stay at {names}"
        if is_still:
            return first.problem(
                "G501",
                f"{absent}the run can {around} forever: no guard there reads anything that changes on the way",
                "route the loop through a node whose progress a guard in it reads, such as `next_batch`, or guard an "
                f"edge that leads back by something that changes{hint}",
                path=path if len(path) > 1 else path * 2,
            )
        decide = "decides" if len(deciding) == 1 else "decide"
        return next((point for point, names in closed if names), first).problem(
            "G502",
            f"{absent}the loop of {names} can be left only as {quoted(deciding)} {decide}, and no node in the loop can "
            "cause the value that leads out",
            f"let the guard read progress of a node of the loop, such as `runs`{hint}",
            thing="edges",
            path=path if len(path) > 1 else path * 2,
        )
