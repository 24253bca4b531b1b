"""A plan bound to resources: instances of kinds, one table of slot values, absent options bypassed.

The result is data. `program.table` makes calls of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.graph.elements import Node
from graphtrain.graph.problem import Problem
from graphtrain.graph.registry import kind_of_node
from graphtrain.guards.syntax import Expression
from graphtrain.kind import DECLARED, Kind, Read
from graphtrain.kind.trigger import Term, Trigger
from graphtrain.names import FOREIGN, quoted, suggestion
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import FieldTarget, ResourceTarget, Scope, Target, leaves, reads_of
from graphtrain.program.resources import PROVIDED

# What people supply to every graph, whether it is read or not.
USUAL = ("model", "optimizer", "scheduler", "training_step", "validation_step", "val_data")


@dataclass(eq=False)
class BoundNode:
    """A node with its progress: one row of the table that the engine runs.

    Attributes:
        index: its position.
        bypassed: True where it has nothing to do: an option of it, or a resource that it cannot do without, is absent.
        fields: the dictionary of the instance. Those who read or count a field at every visit go to it directly.
    """

    planned: PlanNode
    kind: Kind
    scope: BoundGraph
    index: int
    instance: Any
    bypassed: bool = False
    body: BoundGraph | None = None
    trigger: Any = None
    fields: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.hold(self.instance)

    @property
    def path(self) -> str:
        """``"validate/next_batch"``."""
        return self.planned.path

    @property
    def node(self) -> Node:
        """The node as it stands in its graph."""
        return self.planned.node

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Every parameter of the kind, of its type."""
        return self.planned.parameters

    @property
    def optimizers(self) -> tuple[str, ...]:
        """The optimizers on whose gradients its effects act."""
        return self.planned.optimizers

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


@dataclass(eq=False)
class BoundGraph:
    """A graph inside the program: the outermost, or the body of a node."""

    names: Scope
    outer: BoundNode | None
    nodes: dict[str, BoundNode] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """The graph itself."""
        return self.names.graph

    @property
    def prefix(self) -> str:
        """What the paths in it begin with: empty, or ``"validate/"``."""
        return self.names.path

    @property
    def guards(self) -> Mapping[str, Expression]:
        """Its guards, with those that they name written out."""
        return self.names.guards

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
        return None if trains(self.graph) else self.outer.node.name

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


def trains(graph: Graph) -> bool:
    """True if some node of a graph, or of a body in it, runs a backward pass."""
    return any(
        trains(node.body) if node.body is not None else "backward" in getattr(kind_of_node(node), "effects", ())
        for node in graph.nodes.values()
    )


@final
class Program:
    """The whole graph, flat, over one table of slot values.

    Arguments:
        resources: what the user supplies, with what the engine provides; by slot name.

    Attributes:
        nodes: every bound node, by position. Bypassed ones stay in the table, and do nothing; what is in their bodies
            does not.
        missing: resources that nobody supplies, with the paths of the nodes that read each.
        absent: a line for each node that is bypassed for want of a resource.
    """

    def __init__(self, plan: Plan, resources: Mapping[str, Any]) -> None:
        self.plan = plan
        self.graph = plan.graph
        self.resources = dict(resources)
        self.nodes: list[BoundNode] = []
        self.by_path: dict[str, BoundNode] = {}
        self.missing: dict[str, set[str]] = {}
        self.absent: list[str] = []
        self._read_resources: set[str] = set()
        self._batch_counters: dict[str, BoundNode] = {}  # what a step function asks for -> who could have declared it
        self.main = self._bind_graph(plan.main, None)
        self.slot_names = list(dict.fromkeys(path for bound in self.nodes for path in bound.planned.writes))
        self.slots: list[Any] = [None] * len(self.slot_names)
        self._slot_index = {path: index for index, path in enumerate(self.slot_names)}

    # ---- nodes

    def _bind_graph(self, names: Scope, outer: BoundNode | None) -> BoundGraph:
        scope = BoundGraph(names, outer)
        for planned in self.plan.nodes_in(names):
            kind = planned.kind
            assert kind is not None, "checked before"
            bound = BoundNode(planned, kind, scope, len(self.nodes), kind.new_instance())
            for name, value in planned.parameters.items():
                setattr(bound.instance, name, value)
            self.nodes.append(bound)
            self.by_path[planned.path] = scope.nodes[planned.node.name] = bound
            bound.bypassed = self._has_no_work(bound)
            if planned.body is not None and not bound.bypassed:
                bound.body = self._bind_graph(planned.body, bound)
        return scope

    def _has_no_work(self, bound: BoundNode) -> bool:
        if bound.kind.is_idle(bound.parameters):
            return True
        body = bound.planned.body
        for slot in body.graph.optional if body is not None else bound.kind.optional:
            for target in leaves(bound.scope.names.read_by(bound.node, slot)):
                if isinstance(target, ResourceTarget) and self.resources.get(target.name) is None:
                    self.absent.append(f"`{bound.path}` is bypassed: there is no `{target.name}`")
                    return True
        return False

    # ---- names

    def resource(self, name: str, read: Read, reader: str) -> Any:
        """The value of a resource, or the default with which a node reads it; where there is neither, it is missing."""
        self._read_resources.add(name)
        if name in self.resources and (self.resources[name] is not None or name in PROVIDED):
            return self.resources[name]
        if not read.required:
            return read.default
        self.missing.setdefault(name, set()).add(reader)
        return None

    def step_input(self, bound: BoundNode, read: Read) -> Target:
        """What a further parameter of a user's step function means, seen from the node that calls it."""
        name = read.name
        scope: BoundGraph | None = bound.scope if name not in self.resources else None
        unit = "steps" if name == "step" else "batches"
        while scope is not None and name not in scope.names.written:
            if unit in scope.graph.units:
                owner, _, counted = scope.graph.units[unit].partition(".")
                field_name = counted if name == "step" else scope.nodes[owner].kind.step_inputs.get(name)
                if field_name is not None:
                    return FieldTarget(scope.nodes[owner].path, field_name)
                self._batch_counters[name] = scope.nodes[owner]
                break
            scope = scope.outer.scope if scope.outer is not None else None
        return bound.scope.names.resolve(name)

    def slot_index(self, path: str) -> int:
        """The place of a slot that some node writes, by path (``"validate/batch"``); KeyError if there is none."""
        return self._slot_index[path]

    # ---- what comes next

    def terms(self, bound: BoundNode, trigger: Trigger) -> list[tuple[BoundNode, str, Term]]:
        """For each amount of a trigger: the node and field that count its unit, by the clock of the graph of a node."""
        terms = self.plan.terms(bound.scope.names, trigger)
        return [(self.by_path[owner.path], field_name, term) for owner, field_name, term in terms]

    def targets(self, bound: BoundNode) -> list[BoundNode | None]:
        """Where the edges of a node lead, in order; None is the end of its graph."""
        return [None if way.target is None else self.by_path[way.target.path] for way in bound.planned.exits]

    # ---- reports

    def problems(self, supplied: Mapping[str, Any]) -> list[Problem]:
        """A problem for each resource that nothing reads and that names a setting of another library, or is missing.

        What is read is known once the graph is compiled.
        """
        read = self._read_resources | reads_of(self.graph)
        problems = []
        for name in self.resources:
            if name in FOREIGN and name not in read:
                message, hint = f"nothing reads a resource `{name}`", f"that is {FOREIGN[name]} here"
                problems.append(Problem("G302", "error", self.graph.name, message, hint))
        for name, paths in sorted(self.missing.items()):
            hint = suggestion(name, [other for other in supplied if other not in self._read_resources])
            if "did you mean" not in hint:
                hint = f"supply it: Trainer(..., {name}=...), or let `setup` return it"
                if counter := self._batch_counters.get(name):
                    hint += f"; or let `{counter.kind.name}`, which counts batches, declare it in its `step_inputs`"
            readers = sorted(paths)
            where = f"{self.graph.name}: nodes.{readers[0]}"
            message = f"`{name}` is read by {quoted(readers)}, and nothing supplies it"
            problems.append(Problem("G301", "error", where, message, hint))
        return problems

    def unread_resources(self) -> list[str]:
        """What to say of each resource that no node of the graph reads."""
        known = self._read_resources | reads_of(self.graph)
        lines = []
        for name in self.resources:
            if name not in known and name not in PROVIDED and name not in USUAL:
                hint = suggestion(name, known - set(PROVIDED) - {name})
                lines.append(f"nothing in the graph reads `{name}`" + (f"; {hint}" if "did you mean" in hint else ""))
        return lines

    def outdated_kinds(self) -> list[str]:
        """A line for each node whose kind was declared again since, as in a notebook cell that is run again."""
        return [
            f"`{bound.path}` is of the kind `{bound.node.use}` as it was before it was declared again; "
            f'to take the new one: graph.replace("{bound.node.name}", {bound.node.use})'
            for bound in self.nodes
            if bound.node.kind is not None and DECLARED.get(bound.node.use, bound.node.kind) is not bound.node.kind
        ]

    def timed(self) -> list[str]:
        """What to say of triggers that the training depends on and that count time."""
        lines = []
        for bound in self.nodes:
            trigger = bound.planned.trigger
            if trigger is None or bound.bypassed or bound.kind.observer:
                continue
            if any(not owner.kind.fields[counted].in_digest for owner, counted, _ in self.terms(bound, trigger)):
                lines.append(
                    f"`{bound.path}` fires by the clock ({trigger}): what is trained depends on it, "
                    "so a resume is exact only between its firings"
                )
        return lines
