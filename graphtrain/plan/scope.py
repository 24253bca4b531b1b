"""What names mean inside one graph: all names are resolved here, for checks, plan and engine.

A scope accepts graphs with errors, as checks need it: a kind may be unknown, a name undefined.
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
from graphtrain.graph.syntax import (
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
from graphtrain.kind import Kind
from graphtrain.kind.parameter import Parameter, is_trigger

# A parameter of the type "integer" takes no other numbers.
ValueType = Literal["number", "integer", "boolean", "string", "unknown", "trigger", "other"]


@dataclass(frozen=True)
class Ref:
    """A reference: a name, resolved where it is read.

    Arguments:
        category: "slot": some node writes it; "field": a field or parameter of a node; "resource": no node writes it;
            "list": several of these, read as one tuple; "expression": evaluated at every read.
        path: of the slot, ``"validate/batch"``; of the node with the field; of the graph with the expression.
        name: of the field or the resource; of an expression, the parameter that reads it: ``"clip.max_norm"``.
        parts: the references in a list.
        text, scope: of an expression: its text, and the scope of its names.
        parameter: the parameter that an expression sets, with type and bounds. Default: None, it sets none.
    """

    category: Literal["slot", "field", "resource", "list", "expression"]
    path: str = ""
    name: str = ""
    parts: tuple[Ref, ...] = ()
    text: str = ""
    scope: Scope | None = field(default=None, compare=False, repr=False)
    parameter: Parameter | None = field(default=None, compare=False)

    @functools.cached_property
    def expression(self) -> Expression:
        """The parsed expression, with the guards in it expanded."""
        assert self.scope is not None, "it is an expression"
        return expand(self.scope.parse(self.text), self.scope.guards)

    def simple(self) -> Iterator[Ref]:
        """The slots, fields and resources in a list or an expression, at any depth; or the reference itself."""
        if self.category not in ("list", "expression"):
            yield self
        for inner in self.parts if self.scope is None else self.scope.read_in(self.expression):
            yield from inner.simple()

    def __str__(self) -> str:
        return ".".join(filter(None, (self.path, self.name)))


def slots_of(refs: Iterable[Ref]) -> list[str]:
    """The paths of the slots in some references."""
    return [part.path for ref in refs for part in ref.simple() if part.category == "slot"]


def resources_of(refs: Iterable[Ref]) -> list[str]:
    """The names of the resources in some references."""
    return [part.name for ref in refs for part in ref.simple() if part.category == "resource"]


@dataclass(frozen=True, eq=False)
class Scope:
    """A graph, and the node whose body it is.

    Arguments:
        path: of that node, with a slash: ``"validate/"``. Default: empty, it is the outermost graph.
        outer, outer_node: the scope around it, and that node. Default: there is none.
    """

    graph: GraphData
    path: str = ""
    outer: Scope | None = None
    outer_node: Node | None = None

    def with_inner(self) -> Iterator[Scope]:
        """This scope, and the scopes of all graphs inside it."""
        yield self
        for inner in self.bodies.values():
            yield from inner.with_inner()

    @functools.cached_property
    def around(self) -> tuple[Scope, ...]:
        """The scopes around it, outermost first, and itself."""
        return (*(self.outer.around if self.outer is not None else ()), self)

    @functools.cached_property
    def activity(self) -> str | None:
        """The activity for which time in this graph counts, such as "validate"; None for training.

        It is the name of the outermost node around it whose body does not train.
        """
        for scope in self.around:
            if scope.outer_node is not None and not trains(scope.graph):
                return scope.outer_node.name
        return None

    @functools.cached_property
    def bodies(self) -> dict[str, Scope]:
        """The scopes of the graphs inside nodes, by the names of the nodes."""
        bodies = [(node, node.body) for node in self.graph.nodes.values() if node.body is not None]
        return {node.name: Scope(body, f"{self.path}{node.name}/", self, node) for node, body in bodies}

    @functools.cached_property
    def kinds(self) -> dict[str, Kind | None]:
        """The kind of each node; None if it is unknown."""
        return {name: kind_of_node(node) for name, node in self.graph.nodes.items()}

    @functools.cached_property
    def written(self) -> set[str]:
        """The slots that some node writes."""
        return {slot for node in self.graph.nodes.values() for slot in self.written_by(node)}

    @functools.cached_property
    def read(self) -> set[str]:
        """The slots that nodes read, including those that nested graphs read and do not write."""
        names: set[str] = set()
        for node in self.graph.nodes.values():
            kind, body = self.kinds[node.name], self.bodies.get(node.name)
            slots = body.read - body.written if body is not None else kind.slots if kind is not None else ()
            for target in (*node.reads.values(), *[self.named_by(node, slot) for slot in slots]):
                for text in (target,) if isinstance(target, str) else target:
                    names |= _slots_in(self, text)
        return names

    def parse(self, text: str) -> Expression:
        """The expression in a text. Raises a `GuardSyntaxError` as `graph.syntax.parse`."""
        return parse(text, frozenset(self.bodies))

    def field(self, path: str, name: str) -> Ref:
        """The reference of a field of the node at a path; for a parameter with an expression, the expression."""
        owner = node_at(self, path)
        if owner is not None:
            scope, node = owner
            if name in node.reads and (expression := scope.expressions(node).get(name)) is not None:
                return expression
        return Ref("field", f"{self.path}{path}", name)

    @functools.cached_property
    def steps(self) -> bool:
        """True if a node steps an optimizer, or a body does that does not count its own training."""
        return any(
            (body := self.bodies[name]).steps and not body.counts_training
            if name in self.bodies
            else kind is not None and "step" in kind.does
            for name, kind in self.kinds.items()
        )

    @property
    def counts_training(self) -> bool:
        """True if it trains, and its clock counts steps or epochs."""
        return self.steps and not {"steps", "epochs"}.isdisjoint(self.graph.units)

    def expressions(self, node: Node) -> dict[str, Ref]:
        """The parameters of a node that are expressions, with their references."""
        kind, path = self.kinds[node.name], f"{self.path}{node.name}"
        if kind is None or node.body is not None:
            return {}
        return {
            name: Ref("expression", self.path, f"{path}.{name}", (), str(text), self, kind.parameters[name])
            for name, text in node.reads.items()
            if name in kind.parameters and name not in kind.slots
        }

    def read_in(self, expression: Expression) -> Iterator[Ref]:
        """The references of the names in an expression whose guards are expanded."""
        for part in walk(expression):
            if isinstance(part, Name):
                yield self.resolve(part.name)
            elif isinstance(part, FieldOf):
                yield self.field(part.node, part.field)

    def resolve(self, name: str | tuple[str, ...], reader: str = "") -> Ref:
        """The reference of a text that is read: ``"node.field"``, a slot of this graph or one around it, a resource, or
        an expression; of a tuple, a list.

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
        """The reference of a slot that a node reads, by the name in its kind."""
        return self.resolve(self.named_by(node, slot), f"{self.path}{node.name}.{slot}")

    def named_by(self, node: Node, slot: str) -> str | tuple[str, ...]:
        """The name in this graph of a slot that the kind or the body of a node reads.

        Unless the node renames it, `optimizer` is that of the graph, and `window` the window size of the optimizer.

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
        """The slots that a node writes, by their names in this graph, in the order of its kind or body."""
        kind = self.kinds[node.name]
        declared = outputs_of(node.body) if node.body is not None else kind.writes if kind is not None else ()
        return (*[node.writes.get(slot, slot) for slot in declared], *self.returned_by(node).values())

    def returned_by(self, node: Node) -> dict[str, str]:
        """The slots that the step function of a node returns: its name for each -> the name in this graph."""
        kind = self.kinds[node.name]
        if kind is None or node.body is not None or not kind.may_return_slots:
            return {}
        return {name: slot for name, slot in node.writes.items() if name not in kind.writes}

    @functools.cached_property
    def guards(self) -> dict[str, Expression]:
        """The guards, with other guards in them expanded. They must have no errors."""
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
        """A problem at `thing`, such as ``"nodes.clip.max_norm"``, with file and line if they are known."""
        section, _, name = ".".join(thing.split(".")[:2]).partition(".")
        place = self.graph.places.get(f"{section}.{name}".strip("."), "")
        if not place and section == "edges":
            place = self.graph.places.get(f"nodes.{name}", "")
        return Problem(code, severity, f"{place} {self.path}{thing}".strip(), message, hint, path)


def node_at(scope: Scope, path: str) -> tuple[Scope, Node] | None:
    """The node at a path inside a graph, with its scope; None if there is none."""
    *outer, name = path.split("/")
    for each in outer:
        if each not in scope.bodies:
            return None
        scope = scope.bodies[each]
    return (scope, scope.graph.nodes[name]) if name in scope.graph.nodes else None


def kind_at(scope: Scope, path: str) -> Kind | None:
    """The kind of the node at a path inside a graph; None if it is unknown, or there is no such node."""
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
        optional: False leaves out those that may be absent, with a `?`.
    """
    return tuple([name.removesuffix("?") for name in graph.outputs if optional or not name.endswith("?")])


def resource_copies(graph: GraphData, resources: Mapping[str, Any] | None) -> dict[str, str]:
    """The resources that nodes ask for as copies of others: name -> the name of the source.

    Supplied resources are not among them, nor copies whose source is missing.

    Arguments:
        resources: the supplied resources. None: not known; all copies are listed.

    Raises:
        UsageError: two nodes copy different resources under one name.
    """
    copies: dict[str, tuple[str, str]] = {}
    nodes = [(scope, node) for scope in Scope(graph).with_inner() for node in scope.graph.nodes.values()]
    for scope, node in nodes:
        kind, path = scope.kinds[node.name], f"{scope.path}{node.name}"
        for slot, copied in kind.copies.items() if kind is not None else ():
            copy, source = scope.read_by(node, slot), scope.read_by(node, copied)
            if resources is not None and (resources.get(copy.name) is not None or resources.get(source.name) is None):
                continue
            if copy.category == source.category == "resource":
                of, maker = copies.setdefault(copy.name, (source.name, path))
                if of != source.name:
                    raise UsageError(
                        f"`{maker}` makes `{copy.name}` as a copy of `{of}`, and `{path}` as one of `{source.name}`",
                        "give one of them another name, in `reads` of its node",
                    )
    return {name: of for name, (of, _) in copies.items()}


def value_type(annotation: Any) -> ValueType:
    """The type, in expressions, of a Python type."""
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
    """The slots in a text; none if it is a field, or cannot be parsed."""
    if text.isidentifier() or field_of(text) is not None:
        return {text} if text.isidentifier() else set()
    try:
        parsed = scope.parse(text)
    except GuardSyntaxError:
        return set()
    return {part.name for part in walk(parsed) if isinstance(part, Name)} - scope.graph.guards.keys()


def counter_of(scope: Scope, unit: str) -> tuple[str, str]:
    """The node and the field that count a unit of the clock of a graph."""
    owner, _, name = scope.graph.units[unit].rpartition(".")
    return owner, name
