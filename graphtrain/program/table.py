"""The transition table: a closure for each position, which runs the node, counts it, and returns the next position.

Everything a transition needs is bound here, once: guards as closures, edges as numbers. The transition of a node that
does nothing costs 0.15 us.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, final

from graphtrain.errors import GuardError
from graphtrain.graph.closures import never
from graphtrain.plan.scope import Scope, outputs_of
from graphtrain.program.bind import ProgramNode
from graphtrain.program.loop import Transition
from graphtrain.program.rank_visits import Act
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.program.triggers import Every
from graphtrain.program.visits import Visits


@final
class Compiler:
    """Compiles the transition table of a program.

    Arguments:
        ended: called when the outermost graph ends.
        watch: times the transitions.

    Attributes:
        transitions: position -> a call that runs the node and returns the next position.
        exits: position -> a call that chooses the edge once the node has run, and returns the next position.
        counts: the values of counters: of edges taken, and of runs of nodes with `every`.
        counters: position -> the indices in `counts` for the edges of the node, in order.
        due_counters: position -> the index for a node with `every`. Other nodes run as often as their edges are taken.
        at_end: the calls of `at_end` of nodes, for the end of the run.
    """

    def __init__(self, visits: Visits, ended: Act, watch: Stopwatch) -> None:
        self.visits, self.cells = visits, visits.cells
        self._program = program = visits.program
        self._slots = program.slots
        self._ended, self._watch = ended, watch
        numbers = itertools.count()
        self.counters = [[next(numbers) for _ in node.plan_node.edges] for node in program.nodes]
        due = [node.index for node in program.nodes if isinstance(node.trigger, Every)]
        self.due_counters = {index: next(numbers) for index in due}
        self.counts = [0] * next(numbers)
        targets = [program.targets(node) for node in program.nodes]
        self._only_targets = [each[0] if len(each) == 1 else None for each in targets]  # None also for the end
        self.exits = [self._exit(node) for node in program.nodes]
        if (rank_visits := visits.rank_visits) is not None:
            watch_choices = rank_visits.agreement.watch_choices
            self.exits = [
                watch_choices(position, leave) if len(self.counters[position]) > 1 else leave
                for position, leave in enumerate(self.exits)
            ]
        self.at_end = visits.at_end(program.main)
        self.transitions = [watch.wrap(node, self._transition(node)) for node in program.nodes]

    # ---- transitions

    def _transition(self, node: ProgramNode) -> Transition:
        leave = self.exits[node.index]
        if node.bypassed:
            return leave
        if node.body is not None:
            return self._entering(node, node.body, leave)
        act, fields, trigger, counts = self.visits.of(node), node.fields, node.trigger, self.counts
        if isinstance(trigger, Every):
            is_due, counter = self.cells.due(node), self.due_counters[node.index]

            def visit_if_due() -> int:
                if is_due():
                    act()
                    trigger.fire()
                    fields["runs"] += 1
                    counts[counter] += 1
                return leave()

            return visit_if_due
        if (target := self._only_targets[node.index]) is not None:
            position, (counter,) = self.position(target), self.counters[node.index]

            def visit_and_go_on() -> int:
                act()
                fields["runs"] += 1
                counts[counter] += 1  # 0.02 us
                return position

            return visit_and_go_on

        def visit_and_leave() -> int:
            act()
            fields["runs"] += 1
            return leave()

        return visit_and_leave

    def _entering(self, node: ProgramNode, body: Scope, leave: Transition) -> Transition:
        start = self.position(self._program.start_of(body))
        trigger, watch, is_due = node.trigger, self._watch, self.cells.due(node)
        deeper = [each for each in self._program.nodes if each.path.startswith(body.path) and each.scope is not body]
        program, is_training = self._program, body in self._program.training
        begins_activity = body.activity is not None and node.scope.activity is None
        # Values of an earlier visit would not be saved either.
        slots, forgotten = self._slots, dict.fromkeys([body.path + slot for slot in body.written])

        def enter() -> int:
            if isinstance(trigger, Every) and not is_due():
                return leave()
            slots.update(forgotten)
            if begins_activity:
                watch.enter(node.node.name)
            for each in deeper:
                each.kind.reset(each.instance)
            if is_training:
                program.clocked = body
            self.visits.enter(body, reset=True)
            return start

        return enter

    def _finish_body(self, scope: Scope) -> Transition:
        """The end of a body: writes its outputs outside, counts a run of the outer node, and chooses its edge."""
        outer = self._program.nodes_around(scope)[-1]
        outputs = [scope.path + slot for slot in outputs_of(scope.graph)]
        copies = [*zip(outputs, outer.plan_node.own_writes, strict=True)]
        acts = self.visits.at_end(scope)
        if scope.activity is not None and outer.scope.activity is None:
            acts.append(self._watch.enter)
        if isinstance(outer.trigger, Every):
            acts.append(outer.trigger.fire)
        slots, fields, program = self._slots, outer.fields, self._program
        counts, counter = self.counts, self.due_counters.get(outer.index)
        # If no enclosing graph trains, the run keeps the clock of this one until another begins.
        around = [graph for graph in outer.scope.around if graph in program.training]
        resumed = around[-1] if around and scope in program.training else None

        def finish() -> int:
            for act in acts:
                act()
            if resumed is not None:
                program.clocked = resumed
            for source, target in copies:
                slots[target] = slots[source]
            fields["runs"] += 1
            if counter is not None:
                counts[counter] += 1
            return self.exits[outer.index]()

        return finish

    # ---- edges

    def sums(self) -> dict[str, dict[str, list[int]]]:
        """The counters whose sum is how often each ran: of `nodes` by path, and of `edges`, ``"accumulate -> decide"``.

        An edge of a bypassed node counts whenever the run passes over the node.
        """
        nodes = self._program.nodes
        keys = [[f"{node.path} -> {edge}" for edge in node.scope.graph.edges[node.node.name]] for node in nodes]
        edges: dict[str, list[int]] = {key: [] for node_keys in keys for key in node_keys}
        runs: dict[str, list[int]] = {}
        for node in nodes:
            counters, arrivals = self.counters[node.index], list[tuple[ProgramNode | None, list[int]]]()
            if len(self._passed_over(node)) == 1:  # else edges that lead to the node are counted
                edges |= {key: [counter] for key, counter in zip(keys[node.index], counters, strict=True)}
                arrivals += zip(self._program.targets(node), [[counter] for counter in counters], strict=True)
            if not node.bypassed:
                runs[node.path] = [self.due_counters[node.index]] if node.index in self.due_counters else counters
                if node.body is not None:
                    arrivals.append((self._program.start_of(node.body), runs[node.path]))
            for target, summands in arrivals:
                for passed in self._passed_over(target)[:-1] if target is not None else ():
                    edges[keys[passed.index][0]] += summands
        return {"nodes": runs, "edges": edges}

    def position(self, node: ProgramNode) -> int:
        """The position of a node, or if it is bypassed and has a single edge, of the next node."""
        return self._passed_over(node)[-1].index

    def _passed_over(self, node: ProgramNode) -> list[ProgramNode]:
        """A node, and the nodes that follow while they are bypassed and have a single edge; the last one is run."""
        passed = [node]
        while passed[-1].bypassed and (target := self._only_targets[passed[-1].index]) and target not in passed:
            passed.append(target)
        return passed

    def _exit(self, node: ProgramNode) -> Transition:
        """A call that chooses the first edge whose guard is true."""
        own_position, ended, counts = node.index, self._ended, self.counts

        def end() -> int:
            ended()
            return own_position

        choices: list[tuple[Callable[[], Any], int, int, Transition | None]] = []
        edges = zip(node.plan_node.edges, self.counters[node.index], self._program.targets(node), strict=True)
        for edge, number, target in edges:
            holds = never if edge.guard is None else self.cells.compiled(node.scope, edge.guard)
            if target is not None:
                choices.append((holds, number, self.position(target), None))
            else:
                choices.append((holds, number, -1, self._finish_body(node.scope) if node.scope.outer else end))
        _, last_counter, last_position, last_call = choices.pop()
        choices = [choice for choice in choices if choice[0] is not never]
        if len(choices) == 1 and choices[0][3] is None and last_call is None:
            only_guard, only_counter, only_position, _ = choices[0]

            def leave_one_of_two() -> int:
                try:
                    if only_guard():
                        counts[only_counter] += 1
                        return only_position
                except Exception:
                    self.exit_target(node)  # raises again, with the name of the guard
                    raise
                counts[last_counter] += 1
                return last_position

            return leave_one_of_two

        def leave() -> int:
            try:
                for guard, counter, position, call in choices:
                    if guard():
                        counts[counter] += 1
                        return position if call is None else call()
            except Exception:
                self.exit_target(node)  # raises if it was a guard, not the end of a body
                raise
            counts[last_counter] += 1
            return last_position if last_call is None else last_call()

        return leave

    def exit_target(self, node: ProgramNode) -> ProgramNode | None:
        """The node to which the edges of a node lead now; None for the end of its graph. It has no side effects.

        Raises:
            GuardError: a guard raises.
        """
        for edge, target in zip(node.plan_node.edges, self._program.targets(node), strict=True):
            try:
                if edge.guard is None or self.cells.compiled(node.scope, edge.guard)():
                    return target
            except Exception as error:
                name = edge.when or ""
                raise GuardError(node.path, name, node.scope.graph.guards[name], error) from error
        raise AssertionError("the last edge is always taken")
