"""The meaning of every name in a graph, resolved here and nowhere else, for checks, plan and engine.

A graph under check may have any error, so a scope accepts all: a kind may be unknown, a name undefined.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, get_args, get_origin

from graphtrain.errors import UsageError
from graphtrain.graph.elements import GraphData, Node, Problem, Severity
from graphtrain.graph.registry import kind_of_node, trains
from graphtrain.kind import Kind
from graphtrain.kind.parameter import Parameter, is_trigger
from graphtrain.language.syntax import (
    Expression,
    FieldOf,
    GuardSyntaxError,
    Name,
    expand,
    field_of,
    is_expression,
    parse,
    walk,
)

# An integer is the only number that such a parameter takes.
ValueType = Literal["number", "integer", "boolean", "string", "unknown", "trigger", "other"]


@dataclass(frozen=True)
class Ref:
    """The meaning of a name where it is read.

    Arguments:
        kind: a slot that some node writes; a field or parameter of a node; a resource, which no node of the graph
            writes; several of these that are read as one tuple; an expression, evaluated where it is read.
        path: that of the slot, ``"validate/batch"``; of the node with the field; or of the graph of an expression.
        name: that of the field or of the resource; of an expression, what reads it: ``"clip.max_norm"``.
        parts: those of a list.
        text, scope: of an expression: as in the graph, and the scope of its names.
        parameter: the parameter of the kind that has an expression, with type and bound; None for a slot.
    """

    kind: Literal["slot", "field", "resource", "list", "expression"]
    path: str = ""
    name: str = ""
    parts: tuple[Ref, ...] = ()
    text: str = ""
    scope: Scope | None = field(default=None, compare=False, repr=False)
    parameter: Parameter | None = field(default=None, compare=False)

    @functools.cached_property
    def expression(self) -> Expression:
        """The expression, with the guards that it names expanded."""
        assert self.scope is not None, "it is an expression"
        return expand(self.scope.parse(self.text), self.scope.guards)

    def simple(self) -> Iterator[Ref]:
        """The reference itself; or the slots, fields and resources in a list or an expression, at any depth."""
        if self.kind not in ("list", "expression"):
            yield self
        for inner in self.parts if self.scope is None else self.scope.read_in(self.expression):
            yield from inner.simple()

    def __str__(self) -> str:
        return ".".join(filter(None, (self.path, self.name)))


def slots_of(refs: Iterable[Ref]) -> list[str]:
    """The paths of the slots among some references."""
    return [part.path for ref in refs for part in ref.simple() if part.kind == "slot"]


def resources_of(refs: Iterable[Ref]) -> list[str]:
    """The names of the resources among some references."""
    return [part.name for ref in refs for part in ref.simple() if part.kind == "resource"]


@dataclass(frozen=True, eq=False)
class Scope:
    """A graph and its place in the whole.

    Arguments:
        path: of the node it is the body of, with a slash; empty for the outermost.
        outer, outer_node: the enclosing graph, and that node.
    """

    graph: GraphData
    path: str = ""
    outer: Scope | None = None
    outer_node: Node | None = None

    def with_inner(self) -> Iterator[Scope]:
        """This scope, and those of all graphs inside."""
        yield self
        for inner in self.bodies.values():
            yield from inner.with_inner()

    @functools.cached_property
    def around(self) -> tuple[Scope, ...]:
        """The enclosing graphs, the outermost first, and itself."""
        return (*(self.outer.around if self.outer is not None else ()), self)

    @functools.cached_property
    def activity(self) -> str | None:
        """The name of the body under which all time in here is counted; None for the time of training.

        A body without a backward pass, such as an evaluation, counts as one activity; the outermost such body names it.
        """
        for scope in self.around:
            if scope.outer_node is not None and not trains(scope.graph):
                return scope.outer_node.name
        return None

    @functools.cached_property
    def bodies(self) -> dict[str, Scope]:
        """The scopes of the graphs inside nodes, by the names of those, with which paths begin."""
        bodies = [(node, node.body) for node in self.graph.nodes.values() if node.body is not None]
        return {node.name: Scope(body, f"{self.path}{node.name}/", self, node) for node, body in bodies}

    @functools.cached_property
    def kinds(self) -> dict[str, Kind | None]:
        """The kind of each node; None if it is not declared."""
        return {name: kind_of_node(node) for name, node in self.graph.nodes.items()}

    @functools.cached_property
    def written(self) -> set[str]:
        """The slots that some node writes."""
        return {slot for node in self.graph.nodes.values() for slot in self.written_by(node)}

    @functools.cached_property
    def read(self) -> set[str]:
        """The slots that nodes read, those of graphs inside included unless they are written there."""
        names: set[str] = set()
        for node in self.graph.nodes.values():
            kind, body = self.kinds[node.name], self.bodies.get(node.name)
            slots = body.read - body.written if body is not None else kind.slots if kind is not None else ()
            for target in (*node.reads.values(), *[self.named_by(node, slot) for slot in slots]):
                for text in (target,) if isinstance(target, str) else target:
                    names |= _slots_in(self, text)
        return names

    def parse(self, text: str) -> Expression:
        """The expression of a text in this graph, as read by `language.syntax.parse`."""
        return parse(text, frozenset(self.bodies))

    def field(self, path: str, name: str) -> Ref:
        """What a field of the node at a path from here means: an expression, if a parameter has one."""
        owner = node_at(self, path)
        if owner is not None:
            scope, node = owner
            if name in node.reads and (expression := scope.expressions(node).get(name)) is not None:
                return expression
        return Ref("field", f"{self.path}{path}", name)

    @functools.cached_property
    def steps(self) -> bool:
        """True if one of its nodes steps an optimizer, or a body does whose own clock does not count that."""
        return any(
            (body := self.bodies[name]).steps and not body.counts_training
            if name in self.bodies
            else kind is not None and "step" in kind.does
            for name, kind in self.kinds.items()
        )

    @property
    def counts_training(self) -> bool:
        """True for a graph that trains and counts it: steps and epochs in it are those of its own clock."""
        return self.steps and not {"steps", "epochs"}.isdisjoint(self.graph.units)

    def expressions(self, node: Node) -> dict[str, Ref]:
        """The parameters of a node that are read, instead of having a value."""
        kind, path = self.kinds[node.name], f"{self.path}{node.name}"
        if kind is None or node.body is not None:
            return {}
        return {
            name: Ref("expression", self.path, f"{path}.{name}", (), str(text), self, kind.parameters[name])
            for name, text in node.reads.items()
            if name in kind.parameters and name not in kind.slots
        }

    def read_in(self, expression: Expression) -> Iterator[Ref]:
        """What the names in an expression mean, with its guards expanded."""
        for part in walk(expression):
            if isinstance(part, Name):
                yield self.resolve(part.name)
            elif isinstance(part, FieldOf):
                yield self.field(part.node, part.field)

    def resolve(self, name: str | tuple[str, ...], reader: str = "") -> Ref:
        """What a text that is read means: ``"node.field"``, a slot from here or outside, a resource or expression.

        Arguments:
            reader: the node and the slot that read it, for messages. Default: not known.
        """
        if not isinstance(name, str):
            return Ref("list", parts=tuple(self.resolve(part, reader) for part in name))
        if (field := field_of(name)) is not None:
            return self.field(*field)
        if is_expression(name):
            return Ref("expression", self.path, reader, text=name, scope=self)
        if name in self.written:
            return Ref("slot", f"{self.path}{name}")
        if self.outer is None or self.outer_node is None:
            return Ref("resource", name=name)
        return self.outer.read_by(self.outer_node, name)

    def read_by(self, node: Node, slot: str) -> Ref:
        """What a slot of the kind of a node means, which may rename it."""
        return self.resolve(self.named_by(node, slot), f"{self.path}{node.name}.{slot}")

    def named_by(self, node: Node, slot: str) -> str | tuple[str, ...]:
        """The name here of a slot read by the kind or the body of a node; the graph may set that of `optimizer`.

        Unless it is renamed, `window` is the size of the window of its optimizer, if the graph has one.

        >>> from graphtrain import Graph
        >>> scope = Scope(Graph.load("fit"))
        >>> [scope.named_by(scope.graph.nodes["step"], slot) for slot in ("optimizer", "model", "window")]
        ['optimizer', 'model', 'accumulate.window']
        """
        if slot in node.reads:
            return node.reads[slot]
        if slot == "optimizer" and self.graph.optimizer:
            return self.graph.optimizer
        if slot != "window" or slot in self.written:
            return slot
        optimizer = self.named_by(node, "optimizer")
        windows = [
            f"{name}.{field.window}"
            for name, kind in self.kinds.items()
            if kind is not None and self.named_by(self.graph.nodes[name], "optimizer") == optimizer
            for field in kind.fields.values()
            if field.counts == "backward" and field.window is not None
        ]
        return windows[0] if len(windows) == 1 else slot

    def written_by(self, node: Node) -> tuple[str, ...]:
        """The slots that a node writes, by their names in this graph, in the order in which its kind declares them."""
        kind = self.kinds[node.name]
        declared = outputs_of(node.body) if node.body is not None else kind.writes if kind is not None else ()
        return (*[node.writes.get(slot, slot) for slot in declared], *self.returned_by(node).values())

    def returned_by(self, node: Node) -> dict[str, str]:
        """The slots that the step function of a node returns: its name for each -> the name of the slot here."""
        kind = self.kinds[node.name]
        if kind is None or node.body is not None or not kind.may_return_slots:
            return {}
        return {name: slot for name, slot in node.writes.items() if name not in kind.writes}

    @functools.cached_property
    def guards(self) -> dict[str, Expression]:
        """The guards, with those that they name expanded; they must be sound."""
        written = {name: self.parse(text) for name, text in self.graph.guards.items()}
        return {name: expand(expression, written) for name, expression in written.items()}

    def problem(
        self,
        code: str,
        thing: str,
        message: str,
        hint: str = "",
        *,
        severity: Severity = "error",
        path: tuple[str, ...] = (),
    ) -> Problem:
        """A problem at `thing` (``"nodes.clip.max_norm"``), with the file and line where they are known."""
        section, _, name = ".".join(thing.split(".")[:2]).partition(".")
        place = self.graph.places.get(f"{section}.{name}".strip("."), "")
        if not place and section == "edges":
            place = self.graph.places.get(f"nodes.{name}", "")
        where = f"{place} {self.path}{thing}".strip()
        return Problem(code, severity, where, message, hint, path)


def node_at(scope: Scope, path: str) -> tuple[Scope, Node] | None:
    """The node at a path from a graph, and the graph that it is in; None if there is none."""
    *outer, name = path.split("/")
    for each in outer:
        if each not in scope.bodies:
            return None
        scope = scope.bodies[each]
    return (scope, scope.graph.nodes[name]) if name in scope.graph.nodes else None


def kind_at(scope: Scope, path: str) -> Kind | None:
    """The kind of the node at a path from a graph; None if it is not declared, or there is no such node."""
    owner = node_at(scope, path)
    return owner[0].kinds[owner[1].name] if owner is not None else None


def field_type(scope: Scope, node: str, field: str) -> ValueType | None:
    """The type of ``node.field``; None if there is no such field, "unknown" if the kind is not known."""
    kind = kind_at(scope, node)
    if kind is None:
        return "unknown"
    if field in kind.parameters:
        return value_type(kind.parameters[field].annotation)
    return value_type(kind.fields[field].type) if field in kind.fields else None


def readable_fields(scope: Scope, node: str) -> list[str]:
    """The fields of a node that an expression can read."""
    kind = kind_at(scope, node)
    names = [*kind.fields, *kind.parameters] if kind is not None else []
    return [name for name in names if field_type(scope, node, name) not in ("trigger", "other")]


def outputs_of(graph: GraphData, *, optional: bool = True) -> tuple[str, ...]:
    """The slots that leave a graph when it is the body of a node, as ``outputs = ["loss", "metrics?"]`` names them.

    Arguments:
        optional: False leaves out those that may be absent, which a `?` follows.
    """
    return tuple(name.removesuffix("?") for name in graph.outputs if optional or not name.endswith("?"))


def resource_copies(graph: GraphData, resources: Mapping[str, Any] | None) -> dict[str, str]:
    """The resources that the nodes of a graph make before the run: name -> the name of the one that is copied.

    Supplied resources are not among them, nor those whose source is missing.

    Arguments:
        resources: those supplied. None: not known; all copies are made.

    Raises:
        UsageError: two nodes make the same resource from different ones.
    """
    copies: dict[str, tuple[str, str]] = {}
    nodes = [(scope, node) for scope in Scope(graph).with_inner() for node in scope.graph.nodes.values()]
    for scope, node in nodes:
        kind, path = scope.kinds[node.name], f"{scope.path}{node.name}"
        for slot, copied in kind.copies.items() if kind is not None else ():
            copy, source = scope.read_by(node, slot), scope.read_by(node, copied)
            if resources is not None and (resources.get(copy.name) is not None or resources.get(source.name) is None):
                continue
            if copy.kind == source.kind == "resource":
                of, maker = copies.setdefault(copy.name, (source.name, path))
                if of != source.name:
                    raise UsageError(
                        f"`{maker}` makes `{copy.name}` as a copy of `{of}`, and `{path}` as one of `{source.name}`",
                        "give one of them another name, in `reads` of its node",
                    )
    return {name: of for name, (of, _) in copies.items()}


def value_type(annotation: Any) -> ValueType:
    """The sort of a type in expressions."""
    origin, members = get_origin(annotation), get_args(annotation)
    if is_trigger(annotation):
        return "trigger"
    if origin is typing.Annotated:
        return value_type(members[0])
    if origin not in (typing.Literal, typing.Union, types.UnionType):
        return _PLAIN.get(annotation, "other")
    members = tuple(map(type, members)) if origin is typing.Literal else members
    sorts = {value_type(member) for member in members if member is not type(None)}
    if sorts == {"integer", "number"}:
        return "number"
    return sorts.pop() if len(sorts) == 1 else "other"


_PLAIN: dict[Any, ValueType] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    Fraction: "number",
    str: "string",
    Any: "unknown",
}


def _slots_in(scope: Scope, text: str) -> set[str]:
    """The slots that a text names; none where it is a field, or cannot be parsed."""
    if text.isidentifier() or field_of(text) is not None:
        return {text} if text.isidentifier() else set()
    try:
        parsed = scope.parse(text)
    except GuardSyntaxError:
        return set()
    return {part.name for part in walk(parsed) if isinstance(part, Name)} - scope.graph.guards.keys()


def counter_of(scope: Scope, unit: str) -> tuple[str, str]:
    """The node of a graph, and the field, that count a unit of its clock."""
    owner, _, name = scope.graph.units[unit].rpartition(".")
    return owner, name
