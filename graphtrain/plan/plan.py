"""A graph with its kinds, flat, every name resolved once, and no resources yet.

Checks analyse a plan, binding adds resources to it, `to_machine` walks it, and save points are a question to it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, final

from graphtrain.graph import Graph
from graphtrain.graph.elements import END, Node
from graphtrain.guards.syntax import Expression, FieldOf, walk
from graphtrain.kind import Kind, Read
from graphtrain.kind.fields import ON_GRADIENTS
from graphtrain.kind.trigger import Term, Trigger
from graphtrain.plan.scope import FieldTarget, Scope, Target, leaves


@dataclass(eq=False)
class PlanNode:
    """A node of the graph, or of a graph nested in it.

    Attributes:
        path: ``"validate/next_batch"``.
        kind: None where nobody has declared it, which only checks put up with.
        parameters: every parameter of the kind, of its type.
        reads, setup_reads: what the kind reads, in its order, with what each name means.
        writes: the slots, by path, in the order in which the kind, or the body, declares them.
        optimizers: what its slot `optimizer` means, by the names of the resources (or paths of slots).
        actions: its effects on gradients, in order.
        exits: its edges in order of priority.
        body: the names in the graph inside it.
    """

    path: str
    node: Node
    kind: Kind | None
    scope: Scope
    parameters: Mapping[str, Any]
    reads: tuple[tuple[Read, Target], ...]
    setup_reads: tuple[tuple[Read, Target], ...]
    writes: tuple[str, ...]
    optimizers: tuple[str, ...]
    actions: tuple[PlanAction, ...]
    body: Scope | None
    exits: tuple[Exit, ...] = field(default=(), repr=False)

    @property
    def trigger(self) -> Trigger | None:
        """What makes it due; None where it always is."""
        value = self.parameters.get(self.kind.trigger or "") if self.kind is not None else None
        return value if isinstance(value, Trigger) else None

    @property
    def also_due(self) -> tuple[str, ...]:
        """The fields that make it due beside its trigger."""
        return self.kind.due_fields(self.parameters) if self.kind is not None else ()

    @property
    def can_be_skipped(self) -> bool:
        """True if a visit may do nothing because the trigger is not due."""
        return self.kind is not None and self.kind.trigger == "every" and self.trigger is not None


@dataclass(frozen=True)
class PlanAction:
    """What a visit of a node does to gradients.

    Attributes:
        effect: what it does.
        optimizers: whose gradients, by the names of the resources (or paths of slots).
        slot: which slot of the node holds them.
        is_reported: True if it happens only where the visit returns that it has.
    """

    effect: str
    optimizers: tuple[str, ...]
    slot: str
    is_reported: bool


@dataclass(frozen=True, eq=False)
class Exit:
    """An edge of a node.

    Attributes:
        target: None for the end of the graph that the node is in.
        when: the name of its guard; None for the edge that is always taken.
        guard: that guard, with those that it names written out.
    """

    target: PlanNode | None
    when: str | None
    guard: Expression | None


@final
class Plan:
    """The whole procedure, flat.

    Arguments:
        graph: one whose names and guards are sound.

    Attributes:
        nodes: all of them, those of a body behind the node that it is the body of.

    >>> plan = Plan(Graph.load("fit"))
    >>> [target.path for _, target in plan.by_path["validate/eval_batch"].reads if hasattr(target, "path")]
    ['validate/batch', 'validate/split', 'validate/samples']
    """

    def __init__(self, graph: Graph, scope: Scope | None = None) -> None:
        self.graph = graph
        self.main = scope if scope is not None else Scope(graph)
        self.nodes: list[PlanNode] = []
        self.scopes: dict[str, Scope] = {}
        self._lay_out(self.main)
        self.by_path: Mapping[str, PlanNode] = MappingProxyType({planned.path: planned for planned in self.nodes})
        for planned in self.nodes:
            planned.exits = tuple(self._exits(planned))

    def _lay_out(self, scope: Scope) -> None:
        self.scopes[scope.path] = scope
        for node in scope.graph.nodes.values():
            body = scope.body_of(node) if node.body is not None else None
            self.nodes.append(_planned(scope, node, body))
            if body is not None:
                self._lay_out(body)

    def _exits(self, planned: PlanNode) -> Iterator[Exit]:
        scope = planned.scope
        for edge in scope.graph.edges[planned.node.name]:
            target = None if edge.target == END else self.by_path[f"{scope.path}{edge.target}"]
            yield Exit(target, edge.when, None if edge.when is None else scope.guards[edge.when])

    def nodes_in(self, scope: Scope) -> list[PlanNode]:
        """The nodes of one graph, without those of the bodies in it."""
        return [self.by_path[f"{scope.path}{name}"] for name in scope.graph.nodes]

    def start_of(self, scope: Scope) -> PlanNode:
        """The node that a graph starts with."""
        return self.by_path[f"{scope.path}{scope.graph.start}"]

    def around(self, scope: Scope) -> Iterator[Scope]:
        """A graph and those around it, the innermost first; without the outermost."""
        while scope.outer is not None:
            yield scope
            scope = scope.outer

    def terms(self, scope: Scope, trigger: Trigger) -> list[tuple[PlanNode, str, Term]]:
        """For each amount of a trigger: the node and the field that count its unit, by the clock of a graph."""
        counters = []
        for term in trigger.terms:
            owner, _, field_name = scope.graph.units[term.base.unit].partition(".")
            counters.append((self.by_path[f"{scope.path}{owner}"], field_name, term))
        return counters

    @functools.cached_property
    def transient(self) -> frozenset[str]:
        """The slots, by path, whose values cannot be saved, as their kinds declare."""
        return frozenset(
            path
            for planned in self.nodes
            if planned.kind is not None and planned.body is None
            for slot, path in zip(planned.kind.writes, planned.writes, strict=True)
            if slot in planned.kind.transient
        )

    @functools.cached_property
    def fields_read(self) -> frozenset[tuple[str, str]]:
        """Every (path, field) that a guard, a clock or a read names: a `runs` outside it matters to nothing."""
        fields: set[tuple[str, str]] = set()
        for scope in self.scopes.values():
            for guard in scope.guards.values():
                fields |= {(scope.path + part.node, part.field) for part in walk(guard) if isinstance(part, FieldOf)}
            names = [*scope.graph.units.values()]
            for node in scope.graph.nodes.values():
                for renamed in node.reads.values():
                    names += [renamed] if isinstance(renamed, str) else renamed
            targets = [scope.resolve(name) for name in names if "." in name]
            fields |= {(target.node, target.field) for target in targets if isinstance(target, FieldTarget)}
        return frozenset(fields)


def _planned(scope: Scope, node: Node, body: Scope | None) -> PlanNode:
    kind = scope.kinds[node.name]

    def resolved(reads: tuple[Read, ...]) -> tuple[tuple[Read, Target], ...]:
        return tuple((read, scope.read_by(node, read.name)) for read in reads)

    return PlanNode(
        path=f"{scope.path}{node.name}",
        node=node,
        kind=kind,
        scope=scope,
        parameters=_parameters(node, kind),
        reads=resolved(kind.reads) if kind is not None and body is None else (),
        setup_reads=resolved(kind.setup_reads or ()) if kind is not None else (),
        writes=tuple(f"{scope.path}{slot}" for slot in scope.written_by(node)),
        optimizers=optimizers_of(scope, node, "optimizer"),
        actions=tuple(
            PlanAction(action.effect, optimizers_of(scope, node, action.slot), action.slot, action.is_reported)
            for action in (kind.actions if kind is not None and body is None else ())
            if action.effect in ON_GRADIENTS
        ),
        body=body,
    )


def _parameters(node: Node, kind: Kind | None) -> Mapping[str, Any]:
    if kind is None:
        return {}
    return MappingProxyType(
        {
            name: parameter.coerce(node.parameters[name]) if name in node.parameters else parameter.default
            for name, parameter in kind.parameters.items()
        }
    )


def optimizers_of(scope: Scope, node: Node, slot: str) -> tuple[str, ...]:
    """The optimizers that a slot of a node holds: names of resources, or paths where a node writes one."""
    names = []
    for target in leaves(scope.read_by(node, slot)):
        match target:
            case FieldTarget(path, field_name):
                names.append(f"{path}.{field_name}")
            case _:
                names.append(target.path if hasattr(target, "path") else target.name)
    return tuple(dict.fromkeys(names))
