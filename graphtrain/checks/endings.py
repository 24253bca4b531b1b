"""How a run ends.

G504: the end of a run can be reached; if `after` is "never" and nothing else ends the run, it is a warning: the user
may want to stop it. G505: every amount that would end a run does, and no share of a run is more than all of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphtrain.errors import UsageError
from graphtrain.graph.elements import END, Problem
from graphtrain.kind.declaration import FROM
from graphtrain.kind.parameter import show_value
from graphtrain.kind.trigger import RUN, Trigger
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
        yield from self._unread()
        yield from self._shares()

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

    def _shares(self) -> Iterator[Problem]:
        """The shares of the run that are more than all of it, or by which its length would depend on itself."""
        for plan_node in self._plan.nodes_in(self._scope):
            for name in ("every", "after", FROM):
                trigger = plan_node.parameters.get(name)
                terms = self._plan.terms(self._scope, trigger) if isinstance(trigger, Trigger) else ()
                for owner, counted, term in terms:
                    text = f'{plan_node.node.name}.{name} = "{term}"'
                    if term.unit == RUN and term.amount > 1:
                        code, reason = "G505", f"{text} is more than the whole run: it is never reached"
                        hint = 'a share of the run is at most 1, as in "0.5 run"'
                    elif term.unit == RUN and (unknown := self._not_ahead(owner, counted, plan_node)):
                        code, reason = "G504", f"{text} is a share of the run, and {unknown}"
                        hint = f'count epochs or steps, as in {plan_node.node.name}.{name} = "10 epochs"'
                    else:
                        continue
                    yield self._scope.problem(code, f"nodes.{plan_node.node.name}.{name}", reason, hint)

    def _not_ahead(self, owner: PlanNode, field: str, due: PlanNode) -> str:
        """Why what a field comes to at the end of its graph is not known ahead; empty if it is.

        Arguments:
            due: the node that is due by a share of it.
        """
        from graphtrain.plan.counted import Counted  # which few graphs need

        plan = self._plan if owner.scope is self._plan.main else Plan(owner.scope.graph, owner.scope)
        inner, counted = _Endings(plan, owner.scope), Counted(plan, owner.path, field, lambda node: True)
        if due.path in counted.needed:
            return f"its length would depend on itself: when `{due.path}` is due decides it"
        for node in inner._ending_nodes():
            for by, name, term in plan.terms(node.scope, node.trigger) if node.trigger is not None else ():
                if by.kind is not None and not by.kind.fields[name].in_digest:
                    return f'`{node.path}.after` = "{term}" ends it by time'
        try:
            guards = [counted.certain(owner.scope, guard) for guard in inner._guards]
        except UsageError as error:
            return error.message
        return "nothing that is counted ends it" if guards and all(g == Constant(False) for g in guards) else ""

    def _ending_nodes(self) -> list[PlanNode]:
        """The nodes with `after` that the guards read."""
        asked = {part.node for guard in self._guards for part in walk(guard) if isinstance(part, FieldOf)}
        return [
            plan_node
            for plan_node in self._plan.nodes_in(self._scope)
            if plan_node.node.name in asked and plan_node.kind is not None and plan_node.kind.trigger == "after"
        ]
