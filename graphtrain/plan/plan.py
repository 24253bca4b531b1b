"""A graph with its kinds, flat, with every name resolved, and without resources.

Checks analyse a plan, `program.bind` adds resources to it, and save points follow from it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

from graphtrain.graph.elements import END, GraphData, Node, Problem
from graphtrain.graph.syntax import Expression
from graphtrain.kind import FunctionRecord, Read
from graphtrain.kind.declaration import FROM, LEFT_OUT
from graphtrain.kind.fields import ON_GRADIENTS
from graphtrain.kind.trigger import Term, Trigger
from graphtrain.plan.scope import Ref, Scope, counter_of, resources_of


@final
class PlanNode:
    """A node of the graph, or of a graph nested in it.

    Attributes:
        path: ``"validate/next_batch"``.
        parameters: every parameter of the kind, of its type.
        reads, setup_reads: the reads of a visit and of `setup`, in the order of the kind, with their references.
        expressions: parameters that are evaluated at every visit -> their expressions.
        set_up_with: `setup_reads` without data that nodes write, which visits read.
        data: the names of the resources with its batches.
        optional: the references without which it is bypassed.
        own_writes: the paths of the slots for the results of a visit, in the order of the kind or the body.
        returned: values that its step function returns for slots: name -> path of the slot.
        writes: the paths of all of these.
        kills: the paths of the slots that a visit clears.
        optimizers: the names of the resources (or paths of slots) that its slot `optimizer` refers to.
        actions: its effects on gradients, in order.
        edges: its edges in order of priority.
        body: the scope of the graph inside it, or None.
        visit_reads: `reads`, the expressions of parameters, and those for the size of a window that its backward pass
            may open.
        trigger: its trigger; None if it is always due.
        start: the amount `from`, before which it is not due; None if there is none.
        triggers: `trigger` and `start`, without None.
        extra_due_fields: the fields that make it due in addition to its trigger.
        is_never_due: True for a node with the trigger "never" that nothing else makes due.
        can_be_skipped: True if a visit may do nothing because the trigger is not due.
    """

    def __init__(self, scope: Scope, node: Node) -> None:
        kind, body = scope.kinds[node.name], scope.bodies.get(node.name)
        assert kind is not None, "checked before"
        self.scope, self.node, self.kind, self.body = scope, node, kind, body
        self.path, self.edges = f"{scope.path}{node.name}", list[PlanEdge]()
        self.parameters: Mapping[str, Any] = MappingProxyType(
            {
                name: parameter.coerce(node.parameters[name]) if name in node.parameters else parameter.default
                for name, parameter in kind.parameters.items()
            }
        )
        self.reads = [(read, scope.read_by(node, read.name)) for read in kind.reads]
        self.setup_reads = [(read, scope.read_by(node, read.name)) for read in kind.setup_reads or ()]
        self.expressions = scope.expressions(node)
        written_data = [
            (read, ref) for read, ref in self.setup_reads if "written batches" in read.holds and ref.category == "slot"
        ]
        self.set_up_with = [pair for pair in self.setup_reads if pair not in written_data]
        self.data = tuple(resources_of([ref for read, ref in self.setup_reads if "batches" in read.holds]))
        optional = body.graph.optional if body is not None else kind.optional
        self.optional = [scope.read_by(node, slot) for slot in optional]
        self.visit_reads = (*self.reads, *written_data, *[(Read(name), ref) for name, ref in self.expressions.items()])
        self.writes = tuple([f"{scope.path}{slot}" for slot in scope.written_by(node)])
        self.returned = {name: f"{scope.path}{slot}" for name, slot in scope.returned_by(node).items()}
        self.own_writes = self.writes[: len(self.writes) - len(self.returned)]
        self.kills: frozenset[str] = _forgotten(scope) if "forget" in kind.does else frozenset()
        self.optimizers = optimizers_of(scope, node, "optimizer")
        self.actions = [
            PlanAction(action.effect, optimizers_of(scope, node, action.slot), action.slot)
            for action in kind.actions
            if action.effect in ON_GRADIENTS
        ]
        self.trigger: Trigger | None = self.parameters.get(kind.trigger or "")
        self.start: Trigger | None = self.parameters.get(FROM)
        self.triggers = [trigger for trigger in (self.trigger, self.start) if trigger is not None]
        also = kind.extra_due_fields.items()
        self.extra_due_fields = [field for field, name in also if self.parameters[name] not in LEFT_OUT]
        self.is_never_due = self.trigger is not None and self.trigger.is_never and not self.extra_due_fields
        self.can_be_skipped = kind.trigger == "every" and self.trigger is not None

    def new_instance(self) -> Any:
        """A new instance of its kind, with its parameters."""
        kind = self.kind
        instance = kind.implementation() if inspect.isclass(kind.implementation) else FunctionRecord()
        kind.reset(instance, whole=True)
        for name, value in self.parameters.items():
            setattr(instance, name, value)
        return instance

    def problem(self, code: str, message: str, hint: str = "", *, thing: str = "nodes", **more: Any) -> Problem:
        """A problem at the node; `thing`: "edges" for a problem at its edges."""
        return self.scope.problem(code, f"{thing}.{self.node.name}", message, hint, **more)


@dataclass(frozen=True)
class PlanAction:
    """An effect of a visit, such as "backward", on the gradients of the optimizers to which a slot refers."""

    effect: str
    optimizers: tuple[str, ...]
    slot: str


@dataclass(frozen=True, eq=False)
class PlanEdge:
    """An edge of a node.

    Attributes:
        target: the node; None for the end of the graph.
        when: the name of its guard; None if it has none.
        guard: the guard, with other guards in it expanded.
    """

    target: PlanNode | None
    when: str | None
    guard: Expression | None


@final
class Plan:
    """All nodes of a graph and of the graphs inside it.

    Arguments:
        graph: a graph whose names and guards have no errors.
        scope: its scope. Default: a new one.

    Attributes:
        nodes: those of a body come after those of the graph around it.

    >>> from graphtrain import Graph
    >>> plan = Plan(Graph.load("fit"))
    >>> [ref.path for _, ref in plan.by_path["validate/eval_batch"].reads if ref.category == "slot"]
    ['validate/batch', 'validate/split', 'validate/samples']
    """

    def __init__(self, graph: GraphData, scope: Scope | None = None) -> None:
        self.graph = graph
        self.main = scope if scope is not None else Scope(graph)
        self.scopes = {scope.path: scope for scope in self.main.with_inner()}
        self.nodes = [PlanNode(scope, node) for scope in self.scopes.values() for node in scope.graph.nodes.values()]
        self.by_path: Mapping[str, PlanNode] = MappingProxyType({plan_node.path: plan_node for plan_node in self.nodes})
        for plan_node in self.nodes:
            scope = plan_node.scope
            for edge in scope.graph.edges[plan_node.node.name]:
                target = None if edge.target == END else self.by_path[f"{scope.path}{edge.target}"]
                guard = None if edge.when is None else scope.guards[edge.when]
                plan_node.edges.append(PlanEdge(target, edge.when, guard))
        # Nodes that open windows also read the expressions for their sizes.
        for counter in self.nodes:
            for declared in counter.kind.fields.values() if counter.expressions else ():
                if (size := counter.expressions.get(declared.target or "")) is None:
                    continue
                for plan_node in self.nodes:
                    opening = [each for each in plan_node.actions if each.effect == declared.counts]
                    if any(name in each.optimizers for each in opening for name in counter.optimizers):
                        plan_node.visit_reads += ((Read(size.name), size),)

    def nodes_in(self, scope: Scope) -> list[PlanNode]:
        """The nodes of one graph, without those of the bodies in it."""
        return [self.by_path[f"{scope.path}{name}"] for name in scope.graph.nodes]

    def terms(self, scope: Scope, trigger: Trigger) -> list[tuple[PlanNode, str, Term]]:
        """For each amount of a trigger: the node and the field that count its unit in a graph, and the amount."""
        counters = [(*counter_of(scope, term.base.unit), term) for term in trigger.terms]
        return [(self.by_path[f"{scope.path}{owner}"], field_name, term) for owner, field_name, term in counters]

    def due_by(self, plan_node: PlanNode) -> list[Ref]:
        """The fields that decide whether a node is due: the counters of units, and fields that its kind declares."""
        terms = [term for trigger in plan_node.triggers for term in self.terms(plan_node.scope, trigger)]
        counters = [Ref("field", owner.path, name) for owner, name, _ in terms]
        return [*counters, *[Ref("field", plan_node.path, name) for name in plan_node.extra_due_fields]]

    @functools.cached_property
    def fields_read(self) -> frozenset[tuple[str, str]]:
        """Every (path, field) that guards, clocks, triggers and reads name; any other `runs` has no effect."""
        refs: list[Ref] = []
        for scope in self.scopes.values():
            nodes = self.nodes_in(scope)
            in_triggers = {term.base.unit for each in nodes for trigger in each.triggers for term in trigger.terms}
            units = [unit for unit in scope.graph.units if unit in in_triggers or counter_of(scope, unit)[1] != "runs"]
            refs += [ref for guard in scope.guards.values() for ref in scope.read_in(guard)]
            refs += [scope.resolve(scope.graph.units[unit]) for unit in units]
            for each in nodes:
                refs += each.expressions.values()
                refs += [scope.resolve(text) for name, text in each.node.reads.items() if name not in each.expressions]
        return frozenset({(part.path, part.name) for ref in refs for part in ref.simple() if part.category == "field"})


def optimizers_of(scope: Scope, node: Node, slot: str) -> tuple[str, ...]:
    """The optimizers to which a slot of a node refers: names of resources, or paths of slots."""
    return tuple(dict.fromkeys(map(str, scope.read_by(node, slot).simple())))


def _forgotten(scope: Scope) -> frozenset[str]:
    """The paths of the slots that step functions of a graph write and that are cleared when an epoch begins."""
    slots: set[str] = set()
    for node in scope.graph.nodes.values():
        kind, returned = scope.kinds[node.name], scope.returned_by(node)
        kept = node.parameters.get(kind.keeps, ()) if kind is not None and kind.keeps else ()
        slots |= {f"{scope.path}{slot}" for name, slot in returned.items() if name not in kept}
    return frozenset(slots)
