"""G5xx: a run cannot loop forever without a change of anything that decides where it goes.

A graph is refused if it has a *trap*: points among which a run can loop, where every way out needs a guard value that
no visit among them can cause. Every strongly connected set of points may be one. So the search takes a way out of a
set, and looks for a trap without the point it leaves; or in which a value closes it, without the points that could
change that value. A guard that stays true closes the edges after it.

In general the time is unbounded, so the search stops after `MOST_SETS` sets, with a warning; `fit` takes 6.
Source: the traps (siphons) of Petri nets, Commoner, "Deadlocks in Petri nets", 1972; strongly connected components by
Tarjan, "Depth-first search and linear graph algorithms", 1972.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from graphtrain.checks.answers import NO_ANSWERS, Answers, Table, together
from graphtrain.checks.changes import COUNTED, NOWHERE, Changes, Counting, Points, Targets, by_count
from graphtrain.checks.gradients import Gradients
from graphtrain.graph.elements import Problem, Severity
from graphtrain.kind.declaration import FROM, RANKS
from graphtrain.language.syntax import Constant, Expression, FieldOf, Name, Operation, rebuilt, walk
from graphtrain.names import quoted
from graphtrain.plan.flow import Flow, FlowEdge, FlowPoint, names_on
from graphtrain.plan.scope import FieldTarget, ResourceTarget, Scope, leaves
from graphtrain.plan.solve import Ways, circle, components, within


@dataclass(eq=False)
class Trap:
    """Points that a run may never leave.

    Attributes:
        targets: the targets of the ways that can be taken.
        closed: the points with a way out, and the guards that close it.
        staying: the ways in it whose guard stays true, which closes those after it.
        is_still: True if nothing changes that a guard in it reads.
    """

    points: list[FlowPoint]
    targets: Mapping[FlowPoint, list[FlowPoint]]
    closed: list[tuple[FlowPoint, tuple[str, ...]]]
    staying: list[_Way]
    is_still: bool

    def problem(self, scope: Scope, without: Sequence[str] = ()) -> Problem:
        """The problem, without some resources."""
        nodes = list(dict.fromkeys(point.path for point in self.points))
        names = quoted(nodes, most=16)
        way = circle(self.points[0], self.targets)
        path = names_on(way)
        absent = f"without {quoted(without)} " if without else ""
        hint = ""
        if without:
            hint = "; or, if it is always supplied, take it out of the `optional` of the body or the kind"
        if self.is_still:
            node = self.points[0].node
            assert node is not None
            around = f"stay at {names}" if len(nodes) == 1 else f"go round {names}"
            return scope.problem(
                "G501",
                f"nodes.{node.name}",
                f"{absent}the run can {around} forever: no guard there reads anything that changes on the way",
                "route the loop through a node whose progress a guard in it reads, such as `next_batch`, or guard an "
                f"edge that leads back by something that changes{hint}",
                path=path if len(path) > 1 else path * 2,
            )
        deciding = list(dict.fromkeys(name for _, names in self.closed for name in names))
        point = next((point for point, names in self.closed if names), self.points[0])
        for taken in self.staying[:1]:
            assert taken.target is not None
            way = circle(taken.target, self.targets)
            path, hint = names_on(way), _counted_instead(scope, taken.guard, taken.target.path) + hint
        node = point.node
        assert node is not None
        decide = "decides" if len(deciding) == 1 else "decide"
        return scope.problem(
            "G502",
            f"edges.{node.name}",
            f"{absent}the loop of {names} can be left only as {quoted(deciding)} {decide}, and no node in the loop "
            "can cause the value that leads out",
            f"let the guard read progress of a node of the loop, such as `runs`{hint}",
            path=path if len(path) > 1 else path * 2,
            place=node.place,
        )


def _counted_instead(scope: Scope, guard: Expression | None, path: str) -> str:
    """A remedy for a guard that divides what a unit counts, which does not change before the guard is read again."""
    units = {text: unit for unit, text in scope.graph.units.items()}
    for part in walk(guard) if guard is not None else ():
        match part:
            case Operation("%", (FieldOf(owner, field), Constant(amount))) if f"{owner}.{field}" in units:
                name, unit = path.removeprefix(scope.path), units[f"{owner}.{field}"]
                return f', or let the node be due: every = "{amount} {unit}" of `{name}`, and the guard "{name}.due"'
    return ""


MOST_SETS = 20_000
# Points in all of those sets: a set of a thousand takes as long as fifty of twenty.
MOST_POINTS = 1_000_000

# Beyond this number of ways in which the guards before an edge can have failed, further ones are not examined.
MOST_TOGETHER = 64

Counts = Mapping[FieldOf, int]


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
    """The traps of one graph with all resources present; if it has none, those with resources absent."""
    scope = points[0].scope
    idle, optional = _bypassed(flow, scope, supplied or ())
    severity: Severity = "error" if supplied is not None else "warning"
    search = _Search(flow, points, gradients)
    try:
        traps = list(search.traps(idle))
        yield from (trap.problem(scope) for trap in traps)
        if traps or not optional:
            return
        absent = list(search.traps(idle.union(*optional.values())))  # with all absent: most graphs have no trap
        for name, nodes in optional.items() if absent else ():
            if traps := list(search.traps(idle | nodes)):
                yield from (replace(trap.problem(scope, without=[name]), severity=severity) for trap in traps)
                return
        yield from (replace(trap.problem(scope, without=list(optional)), severity=severity) for trap in absent)
    except _TooManySetsError:
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
            for leaf in leaves(scope.read_by(plan_node.node, slot)):
                if isinstance(leaf, ResourceTarget) and leaf.name not in (RANKS, *supplied):
                    optional[leaf.name] = optional.get(leaf.name, frozenset()) | {plan_node.node.name}
    return frozenset(idle), optional


@dataclass(eq=False)
class _Way:
    """A way to leave a point.

    Attributes:
        guard: the condition, including that those before it failed; None if there is none.
        target: None if it leads out of the graph.
        deciding: the names of the guards that decide.
        counters: the counts of backward passes that the guard reads.
    """

    guard: Expression | None
    target: FlowPoint | None
    deciding: tuple[str, ...] = ()
    counters: tuple[FieldOf, ...] = ()


Exit = tuple[FlowPoint, int]
"""A point, and the number of a way to leave it."""


@dataclass(eq=False)
class _Candidate:
    """Points that may contain a trap, given values that hold as long as a run is there."""

    points: Points
    answers: Answers


class _TooManySetsError(Exception):
    pass


@dataclass(eq=False)
class _Open:
    """The possible moves of a run among some points.

    Attributes:
        ways: of each point, the numbers of the ways that can be taken.
        targets: their targets.
        is_reduced: True if some way cannot be taken.
        counts: the known counts of backward passes where the guards of a point are evaluated.
    """

    ways: Mapping[FlowPoint, Sequence[int]]
    targets: Targets
    is_reduced: bool
    counts: Mapping[FlowPoint, Counts]


class _Search:
    """The search for the traps of one graph.

    Arguments:
        points: of the graph, without those in bodies.
    """

    def __init__(self, flow: Flow, points: list[FlowPoint], gradients: Gradients) -> None:
        self._flow = flow
        self._gradients = gradients
        self._in_order = points
        self._table = Table()
        self._graph = points[0].scope.graph
        self._unchanged = Changes(points, gradients)
        self._changes = self._unchanged
        self._guards: dict[int, tuple[Expression, tuple[FieldOf, ...]]] = {}  # by `id`: the plan keeps them
        # The ways in which a guard can have each value, by its `id` and the counts of backward passes that it reads.
        self._answered: dict[tuple[int | None, ...], dict[bool, tuple[Answers, ...] | None]] = {}
        self._reads: set[FieldOf | Name] = set()
        nodes = [(point.node.name, point.plan_node) for point in points if point.node is not None and point.plan_node]
        self._delayed = {name for name, plan_node in nodes if plan_node.start is not None}
        self._order = {point: number for number, point in enumerate(points)}
        self._acting = {point.node.name: point for point in points if point.acts and point.node is not None}
        self._ways = {point: self._ways_of(point) for point in points}
        self._every_way: Targets = {point: [way.target for way in ways] for point, ways in self._ways.items()}
        self._points = self._reached(flow.entries[points[0].scope.path + points[0].scope.graph.start][0])
        self._counters_at = {
            point: tuple(dict.fromkeys(read for way in ways for read in way.counters))
            for point, ways in self._ways.items()
        }
        self._counters: dict[frozenset[str], dict[FieldOf, None]] = {}
        for read in (read for point in points for read in self._counters_at[point]):
            self._counters.setdefault(self._unchanged.counted(read), {})[read] = None
        self._choosing = frozenset(point for point, ways in self._ways.items() if len(ways) > 1)
        self._parts_of: dict[Points, list[Points]] = {}
        self._taken: dict[tuple[FlowPoint, int, tuple[int | None, ...]], list[int]] = {}

    def _begin(self, bypassed: frozenset[str]) -> None:
        """Prepare a search in which some nodes do nothing."""
        changes = self._unchanged.without(bypassed)
        if changes.growing != self._changes.growing:  # so that a count is 0, or is not
            self._taken.clear()
            self._answered.clear()
        self._changes = changes
        self._always = NO_ANSWERS
        for read in self._where_entered():
            self._hold(read, True)
        for name in sorted(bypassed):
            kind = self._in_order[0].scope.kinds[name]
            # Bypassed, `on_metrics` is not called, so what it would set stays False.
            fields = kind.fields.items() if kind is not None and kind.has("on_metrics") else ()
            for field_name in ("due", *(key for key, declared in fields if declared.default is False)):
                self._hold(FieldOf(name, field_name), False)
        self._breaking: dict[int, Points] = {}
        self._countings: dict[frozenset[str], Counting] = {}

    def _hold(self, read: FieldOf | Name, answer: bool) -> None:
        """Note a constant value of something that guards read."""
        if read in self._reads:
            for answers in self._table.ways_to_answer(read, self._changes.known({}))[answer] or ():
                self._always = self._always.both(answers) or self._always

    def _where_entered(self) -> Iterator[Name]:
        """Values that hold as long as a run is in a body: the enclosing nodes, entered when due, are due."""
        scope, plan = self._in_order[0].scope, self._flow.plan
        around = [plan.by_path[inner.path.removesuffix("/")] for inner in plan.around(scope)]
        due = [FieldTarget(plan_node.path, "due") for plan_node in around if plan_node.can_be_skipped]
        guards = scope.guards.values() if due else ()
        for read in {part for guard in guards for part in walk(guard) if isinstance(part, Name)}:
            if scope.resolve(read.name) in due and not self._changes.moving(read):
                yield read

    def _ways_of(self, point: FlowPoint) -> list[_Way]:
        assert point.plan_node is not None and point.node is not None
        if point.opens is not None:
            return [_Way(None, self._acting[point.node.name])]
        entries = self._flow.entries[point.path]
        if len(entries) == 2 and point is entries[0]:  # where the trigger is evaluated
            due, skipped = point.arrows
            guard, counters = self._read_guard(FieldOf(point.node.name, "due"))
            return [_Way(guard, due.target, (f"{point.node.name}.due",), counters), _Way(None, skipped.target)]
        return [self._way(arrow) for arrow in point.arrows]

    def _way(self, arrow: FlowEdge) -> _Way:
        target = arrow.target if arrow.target in self._order else None
        if arrow.guard is None:
            return _Way(None, target, arrow.deciding)
        if id(arrow.guard) not in self._guards:
            self._guards[id(arrow.guard)] = self._read_guard(arrow.guard)
        guard, counters = self._guards[id(arrow.guard)]
        return _Way(guard, target, arrow.deciding, counters)

    def _read_guard(self, asked: Expression) -> tuple[Expression, tuple[FieldOf, ...]]:
        """A guard, expanded, and the counts of backward passes in it."""
        guard = self._meaning(asked)
        reads = dict.fromkeys(part for part in walk(guard) if isinstance(part, FieldOf | Name))
        self._reads |= reads.keys()
        counters = tuple(read for read in reads if isinstance(read, FieldOf) and self._unchanged.counted(read))
        return guard, counters

    def _meaning(self, guard: Expression) -> Expression:
        """A guard that reads the counts of windows; what is due must also have reached its `from`."""

        def delayed(part: Expression) -> Expression:
            if isinstance(part, FieldOf) and part.field == "due":
                return Operation("and", (part, FieldOf(part.node, FROM))) if part.node in self._delayed else part
            return rebuilt(part, delayed)

        meaning = by_count(self._graph, guard)
        return delayed(meaning) if self._delayed else meaning

    def _reached(self, start: FlowPoint) -> Points:
        every_way = self._every_way
        return frozenset(Ways([start], lambda point: (after for after in every_way[point] if after is not None)))

    # ---- the search

    def traps(self, bypassed: frozenset[str]) -> Iterator[Trap]:
        """A trap in each component of the graph, if there is one.

        Arguments:
            bypassed: the names of nodes that do nothing.
        """
        self._begin(bypassed)
        for part in self._parts(self._points, self._every_way):
            trap = self._first_trap(part)
            if trap is not None:
                yield trap

    def _first_trap(self, part: Points) -> Trap | None:
        waiting = [_Candidate(part, self._always)]
        seen: set[tuple[Points, int]] = set()
        sets = sizes = 0
        while waiting:
            candidate = waiting.pop()
            points = candidate.points
            key = (points, candidate.answers.literals)
            if key in seen:
                continue
            seen.add(key)
            sets, sizes = sets + 1, sizes + len(points)
            if sets > MOST_SETS or sizes > MOST_POINTS:
                raise _TooManySetsError
            is_open = self._opened(points, candidate.answers)
            waiting += self._uncleared(points, is_open.counts)
            # With all ways open they are strongly connected, as they came from `_parts`.
            parts = self._parts(points, is_open.targets) if is_open.is_reduced else [points]
            if parts != [points]:
                waiting += [_Candidate(inner, self._always) for inner in reversed(parts)]
                continue
            leaving = self._leaving(points, is_open)
            if leaving is None:
                return self._found(points, is_open)
            # Depth first: what remains without that point; then, for each closing, the components with the way out.
            waiting += reversed(
                [
                    *self._without(points, frozenset({leaving[0]})),
                    *self._closing(leaving, candidate, is_open.counts),
                ]
            )
        return None

    def _without(self, points: Points, removed: Points, around: Points = NOWHERE) -> Iterator[_Candidate]:
        """The components that remain without some points.

        Arguments:
            around: points that a component must contain. Default: none.
        """
        rest = points - removed
        if rest not in self._parts_of:
            self._parts_of[rest] = self._parts(rest, self._every_way)
        yield from (_Candidate(part, self._always) for part in self._parts_of[rest] if around <= part)

    def _uncleared(self, points: Points, counts: Mapping[FlowPoint, Counts]) -> Iterator[_Candidate]:
        """The rest without the points that clear gradients: a run may enter it with any count of passes."""
        known = {self._changes.counted(read) for counted in counts.values() for read in counted}
        for optimizers in sorted(known, key=sorted):
            yield from self._without(points, self._acting_on(optimizers, "zero_grad"))

    def _leaving(self, points: Points, is_open: _Open) -> Exit | None:
        """A way out that can be taken, the last of its point, closed by the fewest values; None if there is none."""
        ways_out = [point for point in points if any(target not in points for target in is_open.targets[point])]
        if not ways_out:
            return None
        point = min(ways_out, key=self._order.__getitem__)
        return point, max(number for number in is_open.ways[point] if self._ways[point][number].target not in points)

    def _closing(
        self, leaving: Exit, candidate: _Candidate, counts: Mapping[FlowPoint, Counts]
    ) -> Iterator[_Candidate]:
        """For each value that closes a way out: the rest without the points that could change it."""
        point, number = leaving
        known = counts.get(point, {})
        for earlier, way in enumerate(self._ways[point][: number + 1]):
            closes = earlier == number
            if way.guard is None or (not closes and way.target not in candidate.points):
                continue
            is_taken_back = False
            for answers in self._answers(way, not closes, known) or ():
                common = candidate.answers.both(answers)
                if common is None:
                    continue
                breaking = self._taken_back_by(answers) & candidate.points
                if not breaking:
                    yield _Candidate(candidate.points, common)
                    continue
                around = frozenset({point} if closes or way.target is None else {point, way.target})
                if not around & breaking:
                    yield from self._without(candidate.points, breaking, around)
                is_taken_back = True
            if is_taken_back and way.counters:
                yield from self._with_steady_counts(point, way, candidate)

    def _taken_back_by(self, answers: Answers) -> Points:
        """The points that may change one of some values."""
        if answers.literals not in self._breaking:
            literals = (each for bit, each in enumerate(self._table.literals) if answers.literals >> bit & 1)
            self._breaking[answers.literals] = NOWHERE.union(*map(self._changes.breaking, literals))
        return self._breaking[answers.literals]

    def _with_steady_counts(self, point: FlowPoint, way: _Way, candidate: _Candidate) -> Iterator[_Candidate]:
        """The rest without a cycle that adds backward passes and never clears them: a count may then recur."""
        for optimizers in {self._changes.counted(read) for read in way.counters}:
            adding, clearing = (self._acting_on(optimizers, effect) & candidate.points for effect in COUNTED)
            if not adding or not clearing:
                continue
            for part in self._parts(candidate.points - clearing, self._every_way):
                if adding & part:
                    first = min(adding & part, key=self._order.__getitem__)
                    around = circle(first, within(part, self._every_way))
                    for on_circle in around[1:]:
                        if on_circle is not point:
                            yield from self._without(candidate.points, frozenset({on_circle}), frozenset({point}))
                    break

    # ---- ways that can be taken

    def _opened(self, points: Points, answers: Answers) -> _Open:
        """The possible moves among some points while some values hold.

        A way that cannot be taken may make another count known, which may close further ways.
        """
        ways: dict[FlowPoint, Sequence[int]] = {point: range(len(self._ways[point])) for point in points}
        targets = {point: self._every_way[point] for point in points}
        counts: dict[FlowPoint, Counts] = {}
        changed, is_reduced = True, False
        while changed:
            self._add_known_counts(counts, answers, targets)
            changed = False
            for point in points & self._choosing:
                taken = self._taken_at(point, answers, counts.get(point, {}))
                if len(taken) < len(ways[point]):
                    ways[point], changed, is_reduced = taken, True, True
                    targets[point] = [self._ways[point][number].target for number in taken]
            changed = changed and len(self._counters) > 1
        return _Open(ways, targets, is_reduced, counts)

    def _taken_at(self, point: FlowPoint, answers: Answers, counts: Counts) -> Sequence[int]:
        """The numbers of the ways of a point that can be taken."""
        key = (point, answers.literals, tuple(counts.get(read) for read in self._counters_at[point]))
        if key not in self._taken:
            self._taken[key] = self._consistent_ways(point, answers, counts)
        return self._taken[key]

    def _consistent_ways(self, point: FlowPoint, answers: Answers, counts: Counts) -> list[int]:
        """The ways whose guard is consistent with the known values and the failure of those before it."""
        taken: list[int] = []
        before = [answers]
        for number, way in enumerate(self._ways[point]):
            if way.guard is None:
                taken.append(number)
                break
            holding = self._answers(way, True, counts)
            if holding is None or any(first.both(second) is not None for first in before for second in holding):
                taken.append(number)
            failing = self._answers(way, False, counts)
            if failing is not None:
                after = together(before, failing)
                if not after:
                    break
                before = after if len(after) <= MOST_TOGETHER else before
        return taken

    def _answers(self, way: _Way, answer: bool, counts: Counts) -> tuple[Answers, ...] | None:
        assert way.guard is not None
        key = (id(way.guard), *(counts.get(read) for read in way.counters))  # the ways keep the guards
        if key not in self._answered:
            self._answered[key] = self._table.ways_to_answer(way.guard, self._changes.known(counts))
        return self._answered[key][answer]

    def _acting_on(self, optimizers: frozenset[str], effect: str) -> Points:
        """The points whose visits add to the gradients of some optimizers, or clear them."""
        doing = self._changes.adding if effect == "backward" else self._changes.clearing
        return frozenset(point for point, names in doing.items() if names & optimizers)

    def _add_known_counts(self, known: dict[FlowPoint, Counts], answers: Answers, targets: Targets) -> None:
        """Add the counts that are the same at every visit of a point, as long as the run stays where it is.

        Only the ways that these counts allow are followed. `_uncleared` are the moves that clear nothing.

        Arguments:
            known: of each point, the known values of other counts.
            targets: of each point, the targets of the ways that are not known to be closed.
        """
        for optimizers, reads in self._counters.items():
            if optimizers not in self._countings:
                self._countings[optimizers] = Counting(self._flow, self._in_order, self._changes, optimizers)

            def taken(
                point: FlowPoint, count: int | None, reads: Mapping[FieldOf, None] = reads
            ) -> Sequence[FlowPoint | None]:
                if len(targets[point]) < 2 or not self._counters_at[point] or count is None:
                    return targets[point]
                counted = {**known.get(point, {}), **dict.fromkeys(reads, count)}
                return [self._ways[point][number].target for number in self._taken_at(point, answers, counted)]

            for point, count in self._countings[optimizers].counts(targets, taken).items():
                if count is not None and self._counters_at.get(point):
                    known[point] = {**known.get(point, {}), **dict.fromkeys(reads, count)}

    # ---- reports

    def _found(self, points: Points, is_open: _Open) -> Trap:
        ordered = sorted(points, key=self._order.__getitem__)
        asked = {arrow.guard for point in ordered for arrow in point.arrows if arrow.guard is not None}
        guards = map(self._meaning, asked)
        changing = NOWHERE.union(*map(self._changes.moving, guards))
        closed: list[tuple[FlowPoint, tuple[str, ...]]] = []
        staying: list[_Way] = []
        for point in ordered:
            ways, last = self._ways[point], self._ways[point][max(is_open.ways[point])]
            for number, way in enumerate(ways):
                if way.target not in points:
                    # After a guard that stays true, that guard decides.
                    closed.append((point, last.deciding if number > ways.index(last) else way.deciding))
                    staying += [last] if number > ways.index(last) else []
        return Trap(ordered, within(points, is_open.targets), closed, staying, is_still=not changing & points)

    def _parts(self, points: Points, targets: Targets) -> list[Points]:
        """The strongly connected components that contain a cycle, in the order of the graph."""
        return sorted(components(points, targets), key=lambda part: min(map(self._order.__getitem__, part)))
