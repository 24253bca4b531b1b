"""How a run ends.

G504: the end of a run can be reached; if `after` is "never" and nothing else ends the run, it is a warning: the user
may want to stop it. G505: every amount that would end a run does.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphtrain.checks.answers import ANY, Table, Values
from graphtrain.graph.elements import END, Problem
from graphtrain.kind.parameter import show_value
from graphtrain.language.syntax import Constant, FieldOf, walk
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import Scope


def check_endings(plan: Plan) -> Iterator[Problem]:
    """Every graph whose guards on the way to the end cannot hold, or need more than the run will have."""
    for scope in plan.scopes.values():
        yield from _Endings(plan, scope).problems()


class _Endings:
    """The guards of the edges that end one graph."""

    def __init__(self, plan: Plan, scope: Scope) -> None:
        self._plan, self._scope = plan, scope
        edges = [edge for leaving in scope.graph.edges.values() for edge in leaving if edge.target == END]
        self._names = list(dict.fromkeys(edge.when for edge in edges))
        self._guards = [scope.guards[name] for name in self._names if name is not None]
        # The path for data without any batch is not an intended ending.
        self._empty = {
            FieldOf(plan_node.node.name, "empty")
            for plan_node in plan.nodes_in(scope)
            if plan_node.kind is not None and plan_node.kind.fetches
        }
        self._counters = {scope.counter(unit) for unit in scope.graph.units}

    def problems(self) -> Iterator[Problem]:
        is_guarded = bool(self._guards) and None not in self._names
        ways = [Table().ways_to_answer(guard, self._known)[True] for guard in self._guards]
        if is_guarded and all(way == () for way in ways):
            yield self._endless()
        else:
            yield from self._unread()

    # ---- guards that can hold

    def _known(self, read: FieldOf) -> Constant | Values:
        """Triggers that are never due, and counts, which are never below 0."""
        plan_node = self._plan.by_path[f"{self._scope.path}{read.node}"]
        if read in self._empty or (read.field == "due" and plan_node.is_never_due):
            return Constant(False)
        return Values(least=0) if read.field == "runs" or (read.node, read.field) in self._counters else ANY

    def _endless(self) -> Problem:
        scope = self._scope
        names = [name for name in self._names if name is not None]
        never = [
            plan_node
            for plan_node in self._ending_nodes()
            if plan_node.trigger is not None and plan_node.trigger.is_never
        ]
        if never:
            node = never[0].node
            return scope.problem(
                "G504",
                f"nodes.{node.name}.after",
                f'`{node.name}.after` is "never", and nothing else ends the graph: `{names[0]}` cannot hold',
                f'give it an amount, as in {node.name}.after = "10 epochs"; where a step function returns STOP, or a '
                'person stops the run, allow = ["G504"]',
                severity="warning",  # mostly intended: such a run is stopped by a signal, or by `until`
            )
        return scope.problem(
            "G504",
            f"guards.{names[0]}",
            f"`{names[0]}`, which ends the graph, can never hold",
            "let it read something that becomes true, such as `finish.due`",
        )

    # ---- amounts without effect

    def _unread(self) -> Iterator[Problem]:
        """The nodes with an `after` whose `due` nothing reads."""
        for plan_node in self._plan.nodes_in(self._scope):
            after, name = plan_node.node.parameters.get("after"), plan_node.node.name
            trigger = plan_node.trigger if plan_node.kind is not None and plan_node.kind.trigger == "after" else None
            if after is None or trigger is None or trigger.is_never:
                continue
            if (plan_node.path, "due") not in self._plan.fields_read:
                yield self._scope.problem(
                    "G505",
                    f"nodes.{name}.after",
                    f"no guard reads `{name}.due`, so {name}.after = {show_value(after)} ends nothing",
                    f'let the guard of an edge to "end" read it, or set {name}.after = "never"',
                )

    def _ending_nodes(self) -> list[PlanNode]:
        """The nodes with `after` that the guards read."""
        asked = {part.node for guard in self._guards for part in walk(guard) if isinstance(part, FieldOf)}
        return [
            plan_node
            for plan_node in self._plan.nodes_in(self._scope)
            if plan_node.node.name in asked and plan_node.kind is not None and plan_node.kind.trigger == "after"
        ]
