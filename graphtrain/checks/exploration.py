"""Explores a graph: runs it by its own engine in every way that is possible with few batches and small amounts.

The nodes are stubs. A state is a position, with the fields that guards read, the slots that are written, the answers to
questions about what is not known, and marks of what was done to gradients. A visit restores a state, runs the compiled
transition and takes a snapshot, for each combination of answers.

Source: small scopes, Jackson, "Software Abstractions", 2006; explicit states, Holzmann, "The SPIN Model Checker", 2003.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, final

import networkx

from graphtrain.checks.gradient_rules import Fault
from graphtrain.checks.stubs import Fetching, Sizes, StubCells, stub
from graphtrain.checks.watching import Watch
from graphtrain.plan.plan import Plan
from graphtrain.plan.scope import Scope, resources_of, slots_of
from graphtrain.program.bind import Program, ProgramNode
from graphtrain.program.rank_visits import Act
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.program.table import Compiler
from graphtrain.program.triggers import set_triggers
from graphtrain.program.visits import Visits, nothing

# The exploration stops at this number of states.
MOST_STATES = 20_000  # about a second; three shipped overlays together have 10,000
SIZES = (Sizes(3, 2), Sizes(3, 2, window=2), Sizes(2, 1, is_cut=True), Sizes(0, 0))

State = tuple[Any, ...]
OVER: State = ()
"""The state of a run that is over."""
Trail = tuple[int, ...]
"""The positions of successive visits."""


class Visit(NamedTuple):
    """A visit in the exploration.

    Attributes:
        state: the last state before it.
        trail: the visits since that state, of which this is the last.
        is_sure: True if every run begins with these visits.
    """

    state: State
    trail: Trail
    is_sure: bool


class Violation(NamedTuple):
    """A fault of a node at a visit, with the words of its message."""

    fault: Fault
    node: ProgramNode
    words: dict[str, str]
    visit: Visit


class _NoBatchError(Exception):
    """Data ended, and no guard reads that: the run would raise."""


@final
class Machine(Visits):
    """A plan with stubs: its state can be read and set, and visits count, write slots, and report faults.

    Arguments:
        absent: the names of the resources that are not supplied.
        optimizers: the optimizers whose gradients are followed.
        ranks: True for a run of several ranks.

    Attributes:
        cells: the cells that guards read.
        bypassed: the paths of the bypassed nodes.
        violations: code, path and optimizer -> the first fault.
        unwritten: path, slot, and True for a guard -> the first visit that reads the slot unwritten.
        written: path and slot, where the slot was read after it was written.
    """

    cells: StubCells

    def __init__(self, plan: Plan, absent: Collection[str], optimizers: Collection[str], *, ranks: bool) -> None:
        optional = {*resources_of([ref for plan_node in plan.nodes for ref in plan_node.optional])} - {*absent}
        program = Program(plan, dict.fromkeys(optional, object()), new_instance=stub)
        program.resources.pop("ranks", None)  # ranks are not simulated
        nodes = program.nodes
        self.bypassed = {node.path for node in nodes if node.bypassed}
        for node in nodes:  # bypassed nodes have a position too
            node.bypassed = False
        self.cells = StubCells(program, SIZES[0], self.bypassed, self._unwritten)
        super().__init__(program, self.cells)
        self.aspects.remove(self.cells.wrap)
        self.watch = Watch(program, self.cells, optimizers, ranks=ranks, report=self._report)
        self.violations: dict[tuple[str, str, str], Violation] = {}
        self.unwritten: dict[tuple[str, str, bool], Visit] = {}
        self.written: set[tuple[str, str]] = set()
        self._state: State = ()
        self._is_state_sure = self._is_over = False
        self._trail: list[int] = []
        reads = [pair for node in nodes for pair in (*node.plan_node.visit_reads, *node.plan_node.set_up_with)]
        needed = {*slots_of([ref for read, ref in reads if read.required])}
        for node in nodes:
            if isinstance(node.instance, Fetching):
                node.instance.batches_in_epoch = functools.partial(self._batches_in_epoch, node)
                for name in ("epoch_batches", "opened", "last"):
                    self.cells.registers.add(node, name)
        set_triggers(program, counts=False)
        self._transitions = Compiler(self, self._end, Stopwatch()).transitions
        self._read_slots = sorted(needed | self.cells.read_slots)
        self._without_choice = {node.index for node in nodes if len(node.plan_node.edges) == 1}
        self._may_end = {node for node, name in self.cells.registers.read if name in ("exhausted", "empty")}
        self._resets: dict[Scope, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
        for node in nodes:  # its fields, and their values where its graph is entered
            fields = [field for field in node.kind.fields.values() if field.stored and not field.stays]
            defaults = {field.name: field.default for field in fields}
            self._resets.setdefault(node.scope, []).append((node.fields, defaults))

    # ---- states

    def first(self, sizes: Sizes) -> State:
        """The state in which a run begins."""
        self.cells.sizes = sizes
        for scope in self.program.scopes.values():
            self._reset(scope)
        return self._snapshot(self.program.start_of(self.program.main).index)

    def follow(self, state: State, *, is_sure: bool) -> Iterator[tuple[State, Trail, bool]]:
        """The states that follow a state, each with the visits on the way, and True if every run takes them."""
        questions, self._state, self._is_state_sure = self.cells.questions, state, is_sure
        questions.choices.clear()
        while True:
            position, self.cells.sizes, values, written, outcomes, marks = state
            self.cells.registers.put(values)
            self.program.slots.update(zip(self._read_slots, written, strict=True))
            questions.outcomes[:], questions.asked = outcomes, 0
            self.watch.marks[:] = marks
            self._trail, self._is_over = [], False
            try:
                self._trail.append(position)
                position = self._transitions[position]()
                for act in self.watch.leaving[self._trail[0]]:
                    act()
                while position in self._without_choice and not self._is_over:
                    self._trail.append(position)
                    position = self._transitions[position]()
            except _NoBatchError:
                self._is_over = True
            after = OVER if self._is_over else self._snapshot(position)
            yield after, tuple(self._trail), is_sure and not questions.choices
            if not questions.choose_others():
                return

    def _snapshot(self, position: int) -> State:
        slots, questions = self.program.slots, self.cells.questions
        return (
            position,
            self.cells.sizes,
            self.cells.registers.values(),
            tuple([slots[path] for path in self._read_slots]),
            tuple(questions.outcomes),
            tuple(self.watch.marks),
        )

    # ---- visits

    def setup(self, node: ProgramNode) -> Act:
        return nothing

    def call(self, node: ProgramNode) -> Act:
        plan_node, fields, slots = node.plan_node, node.fields, self.program.slots
        watched = self.watch.acts[node.path]
        if node.path in self.bypassed:
            is_idle = node.kind.is_idle(node.parameters, plan_node.expressions)  # with other parameters it would act
            return lambda: [act() for act in watched] if is_idle else None
        needs = [*slots_of([ref for read, ref in plan_node.visit_reads if read.required])]
        writes, kills = plan_node.writes, plan_node.kills
        added = [(each.name, each.adds) for each in node.kind.fields.values() if each.adds is not None]
        copied = [(each.last, each.name) for each in node.kind.fields.values() if each.last is not None]
        fetch = functools.partial(self._fetch, node) if node.kind.fetches else nothing

        def visit() -> None:
            for path in needs:
                self._read(node, path)
            fetch()
            for act in watched:
                act()
            for name, amount in added:
                fields[name] += amount
            for last, name in copied:
                fields[last] = fields[name]
            for path in writes:
                slots[path] = True
            for path in kills:
                slots[path] = None
            for act in self.cells.after_visit[node.path]:
                act()

        return visit

    def _batches_in_epoch(self, node: ProgramNode) -> int:
        sizes, limit = self.cells.sizes, node.parameters.get("limit")
        batches = sizes.inner
        if node.scope.outer is None or node.scope.steps:  # a window fits into an epoch of some batches
            batches = max(sizes.batches, self.cells.widest + 1) if sizes.batches > 2 else sizes.batches
        return min(batches, limit) if isinstance(limit, int) else batches

    def _fetch(self, node: ProgramNode) -> None:
        fields, batches = node.fields, self._batches_in_epoch(node)
        if fields["last"] or not fields["opened"]:
            fields["epoch"] += fields["opened"]
            fields["opened"], fields["epoch_batches"] = True, 0
            fields["last"] = fields["exhausted"] = fields["empty"] = False
        if fields["epoch_batches"] >= batches:
            fields["last"] = fields["exhausted"] = True
            fields["empty"] = not batches
            if node not in self._may_end:
                raise _NoBatchError
            return
        for name in ("epoch_batches", "batches", "samples"):
            fields[name] += 1
        fields["last"] = fields["epoch_batches"] >= batches and not self.cells.sizes.is_cut

    # ---- bodies

    def _reset(self, scope: Scope, kept: Collection[object] = ()) -> None:
        """Reset the progress of a graph, and the answers to its questions, except those kept."""
        for fields, defaults in self._resets[scope]:
            fields.update(defaults)
        self.cells.questions.forget(scope, kept)

    def enter(self, scope: Scope, *, reset: bool, ready: Collection[ProgramNode] = ()) -> None:
        self._reset(scope)
        self.watch.enter()
        for node in self.program.nodes_in(scope):
            for path in slots_of([ref for read, ref in node.plan_node.set_up_with if read.required]):
                self._read(node, path)

    def at_end(self, scope: Scope) -> list[Act]:
        return [functools.partial(self._leave, scope)] if scope.outer is not None else []

    def _leave(self, body: Scope) -> None:
        """Leave a body: what nothing outside reads is reset, so that there are fewer states."""
        outer = self.program.nodes_around(body)[-1]
        self.watch.leave(body, self.program.nodes[self._trail[-1]])
        self._trail.append(outer.index)
        for act in self.cells.after_visit[outer.path]:
            act()
        kept = [(node.fields, name, node.fields[name]) for node, name in self.cells.read_outside if node.scope is body]
        self._reset(body, self.cells.due_outside)
        for fields, name, value in kept:
            fields[name] = value

    def _end(self) -> None:
        self._is_over = True
        self.watch.end(self.program.nodes[self._trail[-1]])

    # ---- faults

    def _visit(self) -> Visit:
        return Visit(self._state, tuple(self._trail), self._is_state_sure and not self.cells.questions.choices)

    def _report(self, fault: Fault, node: ProgramNode, **words: str) -> None:
        key = fault.code, node.path, words.get("optimizer", "")
        if key not in self.violations:
            self.violations[key] = Violation(fault, node, words, self._visit())

    def _read(self, node: ProgramNode, slot: str) -> None:
        if self.program.slots[slot] is None:
            self._unwritten(slot, node)
        else:
            self.written.add((node.path, slot))

    def _unwritten(self, slot: str, reader: ProgramNode | None = None) -> None:
        """Note that a node, or a guard after the last visit, reads a slot before it is written."""
        node = reader if reader is not None else self.program.nodes[self._trail[-1]]
        key, visit = (node.path, slot, reader is None), self._visit()
        if key not in self.unwritten or (visit.is_sure and not self.unwritten[key].is_sure):
            self.unwritten[key] = visit
        self.program.slots[slot] = True  # reported once, not at every reader


@final
class Exploration:
    """The states that a machine can reach, nearest first.

    Attributes:
        is_whole: False if there were more than `MOST_STATES`.
        graph: the numbers of states, with the visits from one to the next. 0 is the state of a run that is over.
        states: by number.
    """

    def __init__(self, machine: Machine, sizes: Collection[Sizes] = SIZES) -> None:
        self.machine, self.is_whole = machine, True
        self.graph = networkx.DiGraph()
        self.graph.add_node(0)
        self.states = [OVER, *map(machine.first, sizes)]
        self._first = range(1, len(self.states))
        self._numbers = {state: number for number, state in enumerate(self.states)}
        sure = {1}  # the states with which every run of the first size begins
        for before, state in enumerate(self.states):  # which grows meanwhile
            if len(self.states) > MOST_STATES:
                self.is_whole = False
                self.graph.add_edge(before, 0, trail=())  # a run may end in what is not explored
                continue
            for after, trail, is_sure in machine.follow(state, is_sure=before in sure) if before else ():
                number = self._numbers.setdefault(after, len(self.states))
                if number == len(self.states):
                    self.states.append(after)
                    sure |= {number} if is_sure else set()
                if not self.graph.has_edge(before, number):
                    self.graph.add_edge(before, number, trail=trail)

    def path_to(self, visit: Visit) -> list[ProgramNode]:
        """The nodes on a shortest path to a visit."""
        first = next(number for number in self._first if self.states[number][1] == visit.state[1])  # of the same sizes
        return self.visited(networkx.shortest_path(self.graph, first, self._numbers[visit.state]), visit.trail)

    def visited(self, numbers: list[int], trail: Trail = ()) -> list[ProgramNode]:
        """The nodes visited on a path through states, and on a trail after it."""
        trails = [self.graph.edges[pair]["trail"] for pair in itertools.pairwise(numbers)]
        return [self.machine.program.nodes[position] for each in (*trails, trail) for position in each]
