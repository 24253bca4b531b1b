"""A graph bound to resources: nested graphs flattened to paths, names resolved, absent options bypassed.

The result is data. `program.table` makes calls of it, `program.liveness` asks what is alive at each position.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.graph.elements import END, Node
from graphtrain.graph.problem import Problem
from graphtrain.graph.registry import kind_of_node
from graphtrain.guards.syntax import Expression, FieldOf, Name, expand, parse, walk
from graphtrain.kind import DECLARED, Kind, Read
from graphtrain.kind.trigger import Term, Trigger
from graphtrain.names import FOREIGN, suggestion
from graphtrain.plan.names import reads_of
from graphtrain.program.resources import PROVIDED

# What people supply to every graph, whether it is read or not.
USUAL = ("model", "optimizer", "scheduler", "training_step", "validation_step", "val_data")


@dataclass(frozen=True)
class SlotPlace:
    """A slot: its place in the table of values."""

    index: int


@dataclass(frozen=True)
class FieldPlace:
    """A field of a bound node: the object and the attribute."""

    bound: BoundNode
    field: str


@dataclass(frozen=True)
class ConstantPlace:
    """A value that does not change while the graph runs."""

    value: Any


@dataclass(frozen=True)
class TuplePlace:
    """Several slots read as one."""

    places: tuple[Place, ...]


Place = SlotPlace | FieldPlace | ConstantPlace | TuplePlace


@dataclass(eq=False)
class BoundNode:
    """A node bound to its progress: one row of the table that the engine runs.

    Attributes:
        fields: the dictionary of the instance. Those who read or count a field at every visit go to it directly.
    """

    path: str
    node: Node
    kind: Kind
    scope: BoundGraph
    instance: Any
    parameters: dict[str, Any]
    bypassed: bool = False
    body: BoundGraph | None = None
    reads: list[Place] = field(default_factory=list)
    setup_reads: list[Place] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    optimizers: tuple[str, ...] = ()
    trigger: Any = None
    index: int = -1
    fields: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.hold(self.instance)

    def hold(self, instance: Any) -> None:
        """From now on this is the instance."""
        self.instance = instance
        self.fields = vars(instance)

    def check_fields(self) -> None:
        """Raise if the instance was given another dictionary, of which those who read its fields know nothing.

        Raises:
            UsageError: the kind does so.
        """
        if vars(self.instance) is not self.fields:
            raise UsageError(
                f"{self.path}: the kind `{self.kind.name}` replaced its `__dict__`, in which its fields are read",
                "change the one it has: `self.__dict__.update(state)`",
            )

    @property
    def skippable(self) -> bool:
        """True if a visit may do nothing because its trigger is not due."""
        return self.kind.trigger == "every" and isinstance(self.parameters.get("every"), Trigger)


@dataclass(eq=False)
class BoundGraph:
    """A graph inside the program: the outermost, or the body of a node."""

    graph: Graph
    prefix: str
    outer: BoundNode | None
    nodes: dict[str, BoundNode] = field(default_factory=dict)
    written: frozenset[str] = frozenset()
    guards: dict[str, Expression] = field(default_factory=dict)

    @property
    def activity(self) -> str | None:
        """The name of the body that all time in here is counted under; None where the time of training goes.

        A body without a backward pass, such as an evaluation, counts as one activity; the outermost such body names it.
        """
        if self.outer is None:
            return None
        around = self.outer.scope.activity
        if around is not None:
            return around
        return None if _trains(self.graph) else self.outer.node.name

    def inner(self) -> Iterator[BoundGraph]:
        """The graphs inside this one, at any depth."""
        for bound in self.nodes.values():
            if bound.body is not None:
                yield bound.body
                yield from bound.body.inner()

    def around(self) -> Iterator[BoundGraph]:
        """The graphs around this one, the outermost first, and itself."""
        if self.outer is not None:
            yield from self.outer.scope.around()
        yield self


def _trains(graph: Graph) -> bool:
    """True if some node of a graph, or of a body in it, runs a backward pass."""
    return any(
        _trains(node.body) if node.body is not None else "backward" in getattr(kind_of_node(node), "effects", ())
        for node in graph.nodes.values()
    )


@dataclass
class Missing:
    """A slot that somebody reads and nobody supplies or writes."""

    slot: str
    reader: str


class Program:
    """The whole graph, flat, over one table of slot values.

    Arguments:
        resources: what the user supplies, with what the engine provides; by slot name.

    Attributes:
        nodes: every bound node, by position. bypassed ones stay in the table, and do nothing.
        missing: slots that nobody supplies, with a node that reads each.
    """

    def __init__(self, graph: Graph, resources: Mapping[str, Any]) -> None:
        self.graph = graph
        self.resources = dict(resources)
        self.slots: list[Any] = []
        self.slot_names: list[str] = []
        self._slot_index: dict[str, int] = {}
        self.nodes: list[BoundNode] = []
        self.missing: list[Missing] = []
        self.absent: list[str] = []
        self.asked: set[str] = set()
        self._batch_counters: dict[str, BoundNode] = {}  # what a step function asks for -> who could have declared it
        self.main = self._bind_graph(graph, "", None)
        for bound in self.nodes:
            if not bound.bypassed:
                self._resolve(bound)
        self.by_path = {bound.path: bound for bound in self.nodes}

    # ---- nodes

    def _bind_graph(self, graph: Graph, prefix: str, outer: BoundNode | None) -> BoundGraph:
        scope = BoundGraph(graph, prefix, outer)
        written: set[str] = set()
        for name, node in graph.nodes.items():
            kind = kind_of_node(node)
            assert kind is not None, "checked before"
            outputs = node.body.outputs if node.body is not None else kind.writes
            written.update(node.writes.get(slot, slot) for slot in outputs)
            parameters = {
                key: parameter.coerce(node.parameters[key]) if key in node.parameters else parameter.default
                for key, parameter in kind.parameters.items()
            }
            bound = BoundNode(f"{prefix}{name}", node, kind, scope, kind.new_instance(), parameters)
            for key, value in parameters.items():
                setattr(bound.instance, key, value)
            scope.nodes[name] = bound
        scope.written = frozenset(written)
        parsed = {name: parse(text) for name, text in graph.guards.items()}
        scope.guards = {name: expand(expression, parsed, (name,)) for name, expression in parsed.items()}
        for bound in scope.nodes.values():
            bound.index = len(self.nodes)
            self.nodes.append(bound)
            bound.bypassed = self._has_no_work(bound)
            if bound.node.body is not None and not bound.bypassed:
                bound.body = self._bind_graph(bound.node.body, f"{bound.path}/", bound)
        return scope

    def _has_no_work(self, bound: BoundNode) -> bool:
        if bound.kind.is_idle(bound.parameters):
            return True
        optional = bound.node.body.optional if bound.node.body is not None else bound.kind.optional
        for slot in optional:
            renamed = bound.node.reads.get(slot, slot)
            for one in (renamed,) if isinstance(renamed, str) else renamed:
                place_name = self._outward(bound.scope, one)
                if place_name is not None and self.resources.get(place_name) is None:
                    self.absent.append(f"`{bound.path}` is bypassed: there is no `{place_name}`")
                    return True
        return False

    def _outward(self, scope: BoundGraph, slot: str) -> str | None:
        """The resource that a slot name means in a graph; None if some node around writes it."""
        if slot in scope.written or "." in slot:
            return None
        if scope.outer is None:
            return slot
        renamed = scope.outer.node.reads.get(slot, slot)
        return self._outward(scope.outer.scope, renamed) if isinstance(renamed, str) else None

    # ---- slots

    def _resolve(self, bound: BoundNode) -> None:
        bound.optimizers = self._optimizer_names(bound)
        if bound.body is not None:
            bound.writes = [
                self._slot(bound.scope.prefix + bound.node.writes.get(slot, slot)) for slot in bound.body.graph.outputs
            ]
            return
        bound.reads = [self._place(bound, read) for read in bound.kind.reads]
        bound.setup_reads = [self._place(bound, read) for read in bound.kind.setup_reads or ()]
        bound.writes = [
            self._slot(bound.scope.prefix + bound.node.writes.get(slot, slot)) for slot in bound.kind.writes
        ]

    def _optimizer_names(self, bound: BoundNode) -> tuple[str, ...]:
        target = bound.node.reads.get("optimizer", "optimizer")
        names = (target,) if isinstance(target, str) else target
        return tuple(self._outward(bound.scope, name) or name for name in names)

    def _place(self, bound: BoundNode, read: Read) -> Place:
        target = bound.node.reads.get(read.name, read.name)
        if isinstance(target, tuple):
            return TuplePlace(tuple(self._find(bound, bound.scope, one, read) for one in target))
        return self._find(bound, bound.scope, target, read)

    def _find(self, reader: BoundNode, scope: BoundGraph, name: str, read: Read) -> Place:
        """What a slot name means in a graph: written there, around it, a field, a resource, or missing."""
        owner, dot, field_name = name.partition(".")
        if dot:
            return self.field_place(scope.nodes[owner], field_name)
        if name in scope.written:
            return SlotPlace(self._slot(scope.prefix + name))
        if scope.outer is not None:
            renamed = scope.outer.node.reads.get(name, name)
            if isinstance(renamed, tuple):
                return TuplePlace(tuple(self._find(reader, scope.outer.scope, one, read) for one in renamed))
            return self._find(reader, scope.outer.scope, renamed, read)
        self.asked.add(name)
        if name in self.resources and (self.resources[name] is not None or name in PROVIDED):
            return ConstantPlace(self.resources[name])
        if not read.required:
            return ConstantPlace(read.default)
        self.missing.append(Missing(name, reader.path))
        return ConstantPlace(None)

    def place_asked_for(self, bound: BoundNode, read: Read) -> Place:
        """What a further parameter of a user's step function means, seen from the node that calls it."""
        name = read.name
        scope: BoundGraph | None = bound.scope if name not in self.resources else None
        unit = "steps" if name == "step" else "batches"
        while scope is not None and name not in scope.written:
            if unit in scope.graph.units:
                owner, _, counted = scope.graph.units[unit].partition(".")
                field_name = counted if name == "step" else scope.nodes[owner].kind.step_inputs.get(name)
                if field_name is not None:
                    return self.field_place(scope.nodes[owner], field_name)
                self._batch_counters[name] = scope.nodes[owner]
                break
            scope = scope.outer.scope if scope.outer is not None else None
        return self._find(bound, bound.scope, name, read)

    def field_place(self, bound: BoundNode, field_name: str) -> Place:
        """What ``node.field`` means: a parameter is constant, progress is read when it is needed."""
        if field_name in bound.kind.parameters:
            return ConstantPlace(bound.parameters[field_name])
        return FieldPlace(bound, field_name)

    def _slot(self, path: str) -> int:
        if path not in self._slot_index:
            self._slot_index[path] = len(self.slots)
            self.slots.append(None)
            self.slot_names.append(path)
        return self._slot_index[path]

    def slot_index(self, path: str) -> int:
        """The place of a slot that some node writes, by path (``"validate/batch"``); KeyError if there is none."""
        return self._slot_index[path]

    # ---- what guards and clocks name

    def guard_place(self, scope: BoundGraph, expression: Name | FieldOf) -> Place:
        """What a name in a guard means."""
        if isinstance(expression, FieldOf):
            return self.field_place(scope.nodes[expression.node], expression.field)
        return self._find(next(iter(scope.nodes.values())), scope, expression.name, Read(expression.name))

    def guard_reads(self, bound: BoundNode) -> set[int]:
        """The slots that the guards on the edges of a node read."""
        places = [
            self.guard_place(bound.scope, one)
            for edge in bound.scope.graph.edges[bound.node.name]
            if edge.when is not None
            for one in walk(bound.scope.guards[edge.when])
            if isinstance(one, Name)
        ]
        return {place.index for place in places if isinstance(place, SlotPlace)}

    def terms(self, bound: BoundNode, trigger: Trigger) -> list[tuple[BoundNode, str, Term]]:
        """For each amount of a trigger: the node and field that count its unit."""
        found = []
        for term in trigger.terms:
            owner, _, field_name = bound.scope.graph.units[term.base.unit].partition(".")
            found.append((bound.scope.nodes[owner], field_name, term))
        return found

    def fields_read(self) -> set[tuple[str, str]]:
        """Every (path, field) that a guard, a clock or a read names: a `runs` outside it matters to nothing."""
        found: set[tuple[str, str]] = set()
        for scope in (self.main, *self.main.inner()):
            for expression in scope.guards.values():
                found |= {(scope.prefix + one.node, one.field) for one in walk(expression) if isinstance(one, FieldOf)}
            texts = [*scope.graph.units.values()]
            for node in scope.graph.nodes.values():
                for target in node.reads.values():
                    texts += [target] if isinstance(target, str) else target
            for text in texts:
                owner, dot, field_name = text.partition(".")
                if dot:
                    found.add((scope.prefix + owner, field_name))
        return found

    def transient_slots(self) -> set[int]:
        """The slots that a kind declares it cannot have saved."""
        return {
            index
            for bound in self.nodes
            if bound.body is None
            for slot, index in zip(bound.kind.writes, bound.writes, strict=False)
            if slot in bound.kind.transient
        }

    def foreign_problems(self) -> list[Problem]:
        """A problem for every resource that nobody reads and that has the name of a setting elsewhere."""
        unread = [name for name in self.resources if name in FOREIGN and name not in self.asked | reads_of(self.graph)]
        return [
            Problem(
                "G302",
                "error",
                self.graph.name,
                f"nothing reads a resource `{name}`",
                f"that is {FOREIGN[name]} here",
            )
            for name in unread
        ]

    def unread_resources(self) -> list[str]:
        """What to say of each resource that no node of the graph reads."""
        known = self.asked | reads_of(self.graph)
        lines = []
        for name in self.resources:
            if name not in known and name not in PROVIDED and name not in USUAL:
                hint = suggestion(name, known - set(PROVIDED) - {name})
                lines.append(f"nothing in the graph reads `{name}`" + (f"; {hint}" if "did you mean" in hint else ""))
        return lines

    def outdated_kinds(self) -> list[str]:
        """What to say of kinds that were declared anew since the graph took them, as in a cell that is run again."""
        return [
            f"`{bound.path}` is of the kind `{bound.node.use}` as it was before it was declared anew; "
            f'to take the new one: graph.replace("{bound.node.name}", {bound.node.use})'
            for bound in self.nodes
            if bound.node.kind is not None and DECLARED.get(bound.node.use, bound.node.kind) is not bound.node.kind
        ]

    def timed(self) -> list[str]:
        """What to say of triggers that the training depends on and that count time."""
        lines = []
        for bound in self.nodes:
            trigger = bound.parameters.get(bound.kind.trigger or "")
            if bound.bypassed or bound.kind.observer or not isinstance(trigger, Trigger):
                continue
            if any(not owner.kind.fields[counted].in_digest for owner, counted, _ in self.terms(bound, trigger)):
                lines.append(
                    f"`{bound.path}` fires by the clock ({trigger}): what is trained depends on it, "
                    "so a resume is exact only between its firings"
                )
        return lines

    def missing_problems(self, supplied: Mapping[str, Any]) -> list[Problem]:
        """A problem for every slot that is read, and neither written nor supplied."""
        problems = []
        for slot in sorted({one.slot for one in self.missing}):
            readers = sorted({one.reader for one in self.missing if one.slot == slot})
            hint = suggestion(slot, [name for name in supplied if name not in self.asked])
            if "did you mean" not in hint:
                hint = f"supply it: Trainer(..., {slot}=...), or let `setup` return it"
                counter = self._batch_counters.get(slot)
                if counter is not None:
                    hint += f"; or let `{counter.kind.name}`, which counts batches, declare it in its `step_inputs`"
            message = f"`{slot}` is read by {', '.join(f'`{one}`' for one in readers)}, and nothing supplies it"
            problems.append(Problem("G301", "error", f"{self.graph.name}: nodes.{readers[0]}", message, hint))
        return problems

    def targets(self, bound: BoundNode) -> list[BoundNode | None]:
        """Where the edges of a node lead, in order; None is the end of its graph."""
        return [
            None if edge.target == END else bound.scope.nodes[edge.target]
            for edge in bound.scope.graph.edges[bound.node.name]
        ]
