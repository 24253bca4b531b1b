"""G5xx: a run cannot loop forever without a change of anything that decides where it goes.

One graph is explored, bodies in one step. A state is a point, what is known of the values that guards read, and the
counts of backward passes. A guard that is not decided by them may be either, and is known from then on, until a visit
may change what it reads. So a run can never leave a state from which no path leads out of the graph.

There may be many states, so the search stops after `MOST_STATES`, with a warning; `fit` takes about 30.
Source: explicit states, Holzmann, "The SPIN Model Checker", 2003; predicate abstraction, Graf and Saidi, 1997.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from graphtrain.checks.answers import (
    ANY,
    NO_FACTS,
    Facts,
    Table,
    Values,
    atoms,
    intersection,
    left_by,
    reads_in,
    together,
)
from graphtrain.checks.changes import NOWHERE, Changes, by_count
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
        for name in resources_of(plan_node.optional):
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
        plan = flow.plan
        around = [plan.by_path[inner.path.removesuffix("/")] for inner in plan.around(self._scope)]
        self._entered_when = [Ref("field", each.path, "due") for each in around if each.can_be_skipped]
        nodes = [(point.node.name, point.plan_node) for point in points if point.node is not None and point.plan_node]
        self._delayed = {name for name, plan_node in nodes if plan_node.start is not None}
        start = flow.entries[self._scope.path + self._scope.graph.start][0]
        every_way = {point: self._ways_of(point) for point in points}
        reached = Ways([start], lambda at: (way.target for way in every_way[at] if way.target in self._order))
        self._ways = {point: every_way[point] for point in reached}
        reads = Counter(self._reads_of(itertools.chain.from_iterable(self._ways.values())))
        for point, ways in self._ways.items():
            self._ways[point] = [way for way in ways if not self._is_detour(point, way, reads)]
        self._atoms_at = {
            point: {frozenset(reads_in(atom)) for way in ways if way.guard is not None for atom in atoms(way.guard)}
            for point, ways in self._ways.items()
        }
        self._sources: dict[FlowPoint, list[FlowPoint]] = {}
        for point, ways in self._ways.items():
            for way in ways:
                self._sources.setdefault(way.target, []).append(point)
        self._guards = [way.guard for ways in self._ways.values() for way in ways if way.guard is not None]
        self._reads = dict.fromkeys(read for guard in self._guards for read in reads_in(guard))
        self.counters = [read for read in self._reads if isinstance(read, FieldOf) and self._unchanged.counted(read)]
        # Beyond the numbers in guards, a count is only known to be at least this.
        parts = [part.value for guard in self._guards for part in walk(guard) if isinstance(part, Constant)]
        numbers = [int(part) for part in parts if isinstance(part, int | float) and 0 <= part < MOST_COUNTED]
        self._many = 1 + max(numbers, default=0)

    def _ways_of(self, point: FlowPoint) -> list[FlowEdge]:
        assert point.plan_node is not None and point.node is not None
        if point.opens is not None:
            return [FlowEdge(self._unchanged.nodes[point.node.name])]
        entries = self._flow.entries[point.path]
        if len(entries) == 2 and point is entries[0]:  # where the trigger is evaluated
            due, skipped = point.arrows
            guard = self._meaning(FieldOf(point.node.name, "due"))
            return [FlowEdge(due.target, guard, (f"{point.node.name}.due",)), FlowEdge(skipped.target)]
        return [
            replace(each, guard=self._meaning(each.guard)) if each.guard is not None else each for each in point.arrows
        ]

    def _meaning(self, guard: Expression) -> Expression:
        """A guard by the counts of windows; what is due has reached its `from`, and a node with this body is due."""

        def meant(part: Expression) -> Expression:
            if isinstance(part, FieldOf) and part.field == "due":
                return Operation("and", (part, FieldOf(part.node, FROM))) if part.node in self._delayed else part
            if isinstance(part, Name) and self._scope.resolve(part.name) in self._entered_when:
                return part if self._unchanged.moving(part) else Constant(True)
            return rebuilt(part, meant)

        meaning = by_count(self._scope.graph, guard)
        return meant(meaning) if self._delayed or self._entered_when else meaning

    def _reads_of(self, ways: Iterable[FlowEdge]) -> Iterator[FieldOf | Name]:
        """What the guards of some ways read."""
        return (read for way in ways if way.guard is not None for read in reads_in(way.guard))

    def _is_detour(self, point: FlowPoint, way: FlowEdge, reads: Counter[FieldOf | Name]) -> bool:
        """True for a way to a node that is due, which leads back and changes nothing else: it decides nothing.

        Arguments:
            reads: how often each is read.
        """
        own = Counter(self._reads_of([way]))
        if way.target not in self._ways or way.target.node is None or way.target.kind is None or not own:
            return False
        name = way.target.node.name
        if way.target.kind.trigger != "every" or own.keys() - {FieldOf(name, "due"), FieldOf(name, FROM)}:
            return False
        path = [way.target]
        while path[-1] is not point:
            following = [each.target for each in self._ways[path[-1]]]
            if len(following) != 1 or following[0] not in self._ways or following[0] in path:
                return False
            path.append(following[0])
        if any(reads[read] > own[read] for read in own):
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
        self._following: dict[_State, list[tuple[_State | None, FlowEdge]]] = {}
        # Gradients that are never cleared are G405: here their number may be any.
        counts = tuple(0 if self._changes.cleared(read) else None for read in self.counters)
        first = self._arrived(start, frozenset((term, Values(0, 0, whole=True)) for term in self._differences), counts)
        states = []
        for state in Ways([first] if first is not None else [], self._after):
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
        self._straight.clear()  # a report names every node
        targets = {state: self._after(state) for state in Ways(stuck[:1], self._after)}
        parts = components(targets, targets)
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
        self._after_visit: dict[tuple[FlowPoint, int, Values], Values | None] = {}
        self._decides: dict[tuple[int, bool, bool], set[FlowPoint]] = {}
        self._answered: dict[tuple[FlowEdge, _Counts], dict[bool, tuple[Facts, ...] | None]] = {}
        # Of how often two nodes have run; they are 0 at the start.
        operands = dict.fromkeys(left_by(atom, answer=True)[0] for guard in self._guards for atom in atoms(guard))
        self._differences = [self._table.number(operand) for operand in operands if self._is_difference(operand)]
        self._straight = {point: way.target for point, (way, *more) in self._ways.items() if not more}
        for point, target in [*self._straight.items()]:  # one point of a loop of such points is a state nevertheless
            if target in self._straight and self._order[target] <= self._order[point]:
                del self._straight[point]

    def _arrived(self, point: FlowPoint, facts: Facts, counts: _Counts) -> _State | None:
        """The state at the first point with several ways, from a point that is entered; None for the end."""
        while point in self._order:
            facts = self._entered(point, facts)
            if point not in self._straight:
                return point, facts, counts
            counts = self._counted(point, counts)
            point = self._straight[point]
        return None

    def _after(self, state: _State) -> list[_State]:
        """The states after a visit, without the end."""
        return [after for after, _ in self._follow(state) if after is not None]

    def _follow(self, state: _State) -> list[tuple[_State | None, FlowEdge]]:
        """The states after a visit, None for the end, each with the way there."""
        point, facts, before = state
        counts = self._counted(point, before)
        waiting = [facts]
        following: list[tuple[_State | None, FlowEdge]] = []
        for way in self._ways[point]:
            holding, failing = (self._answers(way, answer, counts) for answer in (True, False))
            entering = waiting if holding is None else together(waiting, holding)
            arrived = dict.fromkeys(self._arrived(way.target, facts, counts) for facts in entering)
            following += [(after, way) for after in arrived]
            if failing is not None:
                left = together(waiting, failing)
                waiting = left if len(left) <= MOST_TOGETHER else waiting
            if not waiting:
                break
        self._following[state] = following
        return following

    def _answers(self, way: FlowEdge, answer: bool, counts: _Counts) -> tuple[Facts, ...] | None:
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
        kept = {term: values for term, known in before if (values := self._kept(point, term, known)) is not None}
        name = point.node.name if point in self._changes.adding and point.node is not None else ""
        for term, read in enumerate(self._table.terms):
            if isinstance(read, FieldOf) and read.node == name and self._is_counting(point, read):
                values = intersection(kept.get(term, ANY), Values(least=1, whole=True)) or ANY
                if self._is_needed(point, term, values):
                    kept[term] = values
        return frozenset(kept.items())

    def _kept(self, point: FlowPoint, term: int, known: Values) -> Values | None:
        """The values that an operand may have after a visit, if that may still decide something."""
        key = point, term, known
        if key not in self._after_visit:
            moves = self._changes.moves(self._table.terms[term])
            least, most, without = known.least, known.most, known.without
            if term in self._differences and (step := (point in moves.up) - (point in moves.down)):
                # Changed by one; followed from -1 to 1.
                least = None if least is None or least + step < -1 else min(least + step, 1)
                most = None if most is None or most + step > 1 else max(most + step, -1)
                without = frozenset()
            elif point in moves.up | moves.down:
                least, most = None if point in moves.down else least, None if point in moves.up else most
                without = frozenset()
            values = Values(least, most, without, known.whole)
            is_known = least is not None or most is not None or bool(without)
            self._after_visit[key] = values if is_known and self._is_needed(point, term, values) else None
        return self._after_visit[key]

    def _is_needed(self, point: FlowPoint, term: int, values: Values) -> bool:
        """True if something may read, before a visit changes it, what is known of an operand at a point."""
        return point in self._deciding(term, values.least is not None, values.most is not None)

    def _is_difference(self, operand: Expression) -> bool:
        """True for one of how often two nodes have run."""
        match operand:
            case Operation("-", (FieldOf(first, "runs"), FieldOf(other, "runs"))):
                return {first, other} <= self._changes.nodes.keys()
        return False

    def _is_counting(self, point: FlowPoint, read: FieldOf) -> bool:
        """True if each visit adds to a field, which is not 0 after it."""
        declared = point.kind.fields.get(read.field) if point.kind is not None else None
        return declared is not None and (read.field == "runs" or bool(declared.adds))

    def _deciding(self, term: int, has_least: bool, has_most: bool) -> set[FlowPoint]:
        """The points from which an operand is read before a visit changes what is known of it."""
        key = term, has_least, has_most
        if key not in self._decides:
            operand = self._table.terms[term]
            moves, reads = self._changes.moves(operand), {*reads_in(operand)}
            breaking = moves.up & moves.down if has_least == has_most else moves.down if has_least else moves.up
            reading = [point for point, atoms in self._atoms_at.items() if any(reads <= atom for atom in atoms)]
            self._decides[key] = {*Ways(reading, lambda at: () if at in breaking else self._sources.get(at, ()))}
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
        taken: dict[FlowPoint, list[FlowEdge]] = {}
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
            if not hint and any(number > last for number in out):
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
