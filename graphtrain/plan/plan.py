"""A graph with its kinds, flat, every name resolved once, and no resources yet.

Checks analyse a plan, binding adds resources to it, and save points follow from it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, final

from graphtrain.graph import Graph
from graphtrain.graph.elements import END, Node
from graphtrain.kind import Kind, Read
from graphtrain.kind.declaration import FROM, RANKS
from graphtrain.kind.fields import ON_GRADIENTS
from graphtrain.kind.trigger import Term, Trigger
from graphtrain.language.syntax import Expression
from graphtrain.plan.scope import (
    ExpressionTarget,
    FieldTarget,
    Scope,
    SlotTarget,
    Target,
    leaves,
    outputs_of,
    resources_of,
)


@dataclass(eq=False)
class PlanNode:
    """A node of the graph, or of a graph nested in it.

    Attributes:
        path: ``"validate/next_batch"``.
        kind: None if it is not declared, which only checks accept.
        parameters: every parameter of the kind, of its type.
        reads, setup_reads: what the kind reads, in its order, with the target of each name.
        expressions: the parameters that are evaluated at every visit, with their expressions.
        writes: the slots, by path, in the order declared by the kind or the body; then those `returned`.
        returned: values that its step function returns for slots: name -> path of the slot.
        optimizers: the targets of its slot `optimizer`: names of resources (or paths of slots).
        actions: its effects on gradients, in order.
        exits: its edges in order of priority.
        body: the names in the graph inside it.
        opens: the sizes, as expressions, of windows that its backward pass may open.
    """

    path: str
    node: Node
    kind: Kind | None
    scope: Scope
    parameters: Mapping[str, Any]
    reads: tuple[tuple[Read, Target], ...]
    setup_reads: tuple[tuple[Read, Target], ...]
    expressions: Mapping[str, ExpressionTarget]
    writes: tuple[str, ...]
    returned: Mapping[str, str]
    optimizers: tuple[str, ...]
    actions: tuple[PlanAction, ...]
    body: Scope | None
    exits: tuple[Exit, ...] = field(default=(), repr=False)
    opens: tuple[tuple[Read, Target], ...] = field(default=(), repr=False)

    @property
    def maybe(self) -> tuple[str, ...]:
        """The slots, by path, that the body of a node may leave without a value."""
        if self.body is None:
            return ()
        needed = outputs_of(self.body.graph, optional=False)
        names = zip(outputs_of(self.body.graph), self.writes, strict=True)
        return tuple(path for name, path in names if name not in needed)

    @property
    def needs_ranks(self) -> bool:
        """True for a node that is bypassed in one process, since it serves several ranks."""
        return RANKS in resources_of(self.optional)

    @property
    def optional(self) -> tuple[Target, ...]:
        """The reads without which it is bypassed."""
        slots = self.body.graph.optional if self.body is not None else self.kind.optional if self.kind else ()
        return tuple(self.scope.read_by(self.node, slot) for slot in slots)

    @property
    def own_writes(self) -> tuple[str, ...]:
        """The slots to which the results of a visit are written."""
        return self.writes[: len(self.writes) - len(self.returned)]

    @property
    def kills(self) -> frozenset[str]:
        """The slots, by path, that are cleared by a visit."""
        return self.scope.forgotten if self.kind is not None and self.kind.has_effect("forget") else frozenset()

    @property
    def visit_reads(self) -> tuple[tuple[Read, Target], ...]:
        """The reads of a visit: the slots of the kind, and the expressions of parameters."""
        return (
            *self.reads,
            *filter(_is_written_data, self.setup_reads),
            *((Read(name), target) for name, target in self.expressions.items()),
            *self.opens,
        )

    @property
    def set_up_with(self) -> tuple[tuple[Read, Target], ...]:
        """The reads that setup needs: all of `setup_reads` but data written by nodes, which visits read."""
        return tuple(pair for pair in self.setup_reads if not _is_written_data(pair))

    @functools.cached_property
    def trigger(self) -> Trigger | None:
        """Its trigger; None if it is always due."""
        value = self.parameters.get(self.kind.trigger or "") if self.kind is not None else None
        return value if isinstance(value, Trigger) else None

    @property
    def start(self) -> Trigger | None:
        """The amount before which it is not due; None if it may be due from the start."""
        value = self.parameters.get(FROM)
        return value if isinstance(value, Trigger) else None

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        """The triggers that decide when it is due: its trigger and its start, if it has them."""
        return tuple(trigger for trigger in (self.trigger, self.start) if trigger is not None)

    @property
    def extra_due_fields(self) -> tuple[str, ...]:
        """The fields that make it due in addition to its trigger."""
        return self.kind.due_fields(self.parameters) if self.kind is not None else ()

    @property
    def is_never_due(self) -> bool:
        """True for a node with the trigger "never" that nothing else makes due."""
        return self.trigger is not None and self.trigger.is_never and not self.extra_due_fields

    @property
    def can_be_skipped(self) -> bool:
        """True if a visit may do nothing because the trigger is not due."""
        return self.kind is not None and self.kind.trigger == "every" and self.trigger is not None


@dataclass(frozen=True)
class PlanAction:
    """An action of a visit on gradients.

    Attributes:
        effect: the effect.
        optimizers: the optimizers of these gradients: names of resources (or paths of slots).
        slot: the slot of the node that holds them.
    """

    effect: str
    optimizers: tuple[str, ...]
    slot: str


@dataclass(frozen=True, eq=False)
class Exit:
    """An edge of a node.

    Attributes:
        target: None for the end of the graph that the node is in.
        when: the name of its guard; None for the edge that is always taken.
        guard: that guard, with those that it names expanded.
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
        nodes: all of them, those of a body after its node.

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
        self.by_path: Mapping[str, PlanNode] = MappingProxyType({plan_node.path: plan_node for plan_node in self.nodes})
        for plan_node in self.nodes:
            plan_node.exits = tuple(self._exits(plan_node))
        self._add_opened()

    def _lay_out(self, scope: Scope) -> None:
        self.scopes[scope.path] = scope
        for node in scope.graph.nodes.values():
            body = scope.body_of(node) if node.body is not None else None
            self.nodes.append(_planned(scope, node, body))
            if body is not None:
                self._lay_out(body)

    def _exits(self, plan_node: PlanNode) -> Iterator[Exit]:
        scope = plan_node.scope
        for edge in scope.graph.edges[plan_node.node.name]:
            target = None if edge.target == END else self.by_path[f"{scope.path}{edge.target}"]
            yield Exit(target, edge.when, None if edge.when is None else scope.guards[edge.when])

    def _add_opened(self) -> None:
        """Note for each node the windows that it opens, by its actions on the optimizers of a counter."""
        for counter in self.nodes:
            for declared in counter.kind.fields.values() if counter.expressions and counter.kind is not None else ():
                target = counter.expressions.get(declared.target or "")
                if target is None:
                    continue
                for plan_node in self.nodes:
                    opened = (each.optimizers for each in plan_node.actions if each.effect == declared.counts)
                    if not {*counter.optimizers}.isdisjoint(itertools.chain.from_iterable(opened)):
                        plan_node.opens += ((Read(target.name), target),)

    def nodes_in(self, scope: Scope) -> list[PlanNode]:
        """The nodes of one graph, without those of the bodies in it."""
        return [self.by_path[f"{scope.path}{name}"] for name in scope.graph.nodes]

    def around(self, scope: Scope) -> Iterator[Scope]:
        """A graph and those around it, the innermost first; without the outermost."""
        while scope.outer is not None:
            yield scope
            scope = scope.outer

    def terms(self, scope: Scope, trigger: Trigger) -> list[tuple[PlanNode, str, Term]]:
        """For each amount of a trigger: the node and the field that count its unit, by the clock of a graph."""
        counters = []
        for term in trigger.terms:
            owner, field_name = scope.counter(term.counted)
            counters.append((self.by_path[f"{scope.path}{owner}"], field_name, term))
        return counters

    def due_by(self, plan_node: PlanNode) -> list[FieldTarget]:
        """The fields that make a node due, apart from the end of its graph: the counts of units, and its own fields."""
        terms = [term for trigger in plan_node.triggers for term in self.terms(plan_node.scope, trigger)]
        counts = [FieldTarget(owner.path, field_name) for owner, field_name, _ in terms]
        return [*counts, *(FieldTarget(plan_node.path, field_name) for field_name in plan_node.extra_due_fields)]

    def _is_counted(self, scope: Scope, unit: str) -> bool:
        """False for a unit that counts the `runs` of a node and that no trigger uses."""
        if scope.counter(unit)[1] != "runs":
            return True
        return any(
            term.counted == unit
            for plan_node in self.nodes_in(scope)
            for trigger in plan_node.triggers
            for term in trigger.terms
        )

    @functools.cached_property
    def transient(self) -> frozenset[str]:
        """The slots, by path, whose values cannot be saved, as their kinds declare."""
        return frozenset(
            path
            for plan_node in self.nodes
            if plan_node.kind is not None and plan_node.body is None
            for slot, path in zip(plan_node.kind.writes, plan_node.own_writes, strict=True)
            if slot in plan_node.kind.transient
        )

    @functools.cached_property
    def fields_read(self) -> frozenset[tuple[str, str]]:
        """Every (path, field) that a guard, a clock or a read names; nothing depends on a `runs` that is not named."""
        read: set[tuple[str, str]] = set()
        for scope in self.scopes.values():
            targets = [target for guard in scope.guards.values() for target in scope.read_in(guard)]
            targets += [
                scope.resolve(text) for unit, text in scope.graph.units.items() if self._is_counted(scope, unit)
            ]
            for node in scope.graph.nodes.values():
                parameters = scope.expressions(node)
                targets += [scope.parameter(node, name) for name in parameters]
                targets += [scope.resolve(text) for name, text in node.reads.items() if name not in parameters]
            named = [leaf for target in targets for leaf in leaves(target)]
            read |= {(leaf.node, leaf.field) for leaf in named if isinstance(leaf, FieldTarget)}
        return frozenset(read)


def _is_written_data(pair: tuple[Read, Target]) -> bool:
    read, target = pair
    return "written batches" in read.holds and isinstance(target, SlotTarget)


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
        expressions={name: scope.parameter(node, name) for name in scope.expressions(node)},
        writes=tuple(f"{scope.path}{slot}" for slot in scope.written_by(node)),
        returned={name: f"{scope.path}{slot}" for name, slot in scope.returned_by(node).items()},
        optimizers=optimizers_of(scope, node, "optimizer"),
        actions=tuple(
            PlanAction(action.effect, optimizers_of(scope, node, action.slot), action.slot)
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
