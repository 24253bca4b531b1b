"""What a graph consists of, as plain values: nodes, edges, edits, the graph without its methods; and its problems."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

from graphtrain.errors import Problem as Problem
from graphtrain.errors import Severity as Severity
from graphtrain.graph.syntax import is_expression
from graphtrain.kind import Kind
from graphtrain.kind.parameter import show_value
from graphtrain.printable import one_line

END = "end"  # the reserved target that ends the graph
NESTED = "nested"  # the kind of every node that has a graph as its body

# The types of `reads` and `writes` of a node, as of `Node`.
Reads = dict[str, str | tuple[str, ...]]
Writes = dict[str, str]


@dataclass(frozen=True)
class Node:
    """A named use of a kind with parameters, or a node with a whole graph as its body.

    Printing it shows the settings that the graph makes; all others have the kind's defaults.

    Arguments:
        use: the name of the kind; ``"nested"`` for a node with a `body`.
        parameters: values as in the text; the kind's defaults are not filled in.
        reads: slot of the kind -> slot of the graph, a list of slots, ``"node.field"`` or an expression; and parameter
            of the kind -> its expression.
        writes: slot of the kind, or output of the body -> slot of the graph.
        body: the nested graph, if any.
        kind: the kind itself if it was given in Python; None if it is looked up by name.

    >>> Node("decide", "choice"), Node("train_batch", "train_batch", {"compile": True}, {"window": "accumulate.every"})
    (<Node decide: choice>, <Node train_batch: compile = true, reads window from accumulate.every>)
    """

    name: str
    use: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    reads: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    writes: Mapping[str, str] = field(default_factory=dict)
    body: GraphData | None = None
    kind: Kind | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("parameters", "reads", "writes"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __repr__(self) -> str:
        words = ", ".join(filter(None, (kind_text(self), *settings_of(self))))
        return one_line(f"<Node {self.name}: {words}>" if words else f"<Node {self.name}>")


def nodes_of(graph: GraphData, prefix: str = "") -> dict[str, Node]:
    """All nodes of a graph by their paths, at any depth; those of a body follow the node that has it."""
    nodes: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        nodes[f"{prefix}{name}"] = node
        if node.body is not None:
            nodes |= nodes_of(node.body, f"{prefix}{name}/")
    return nodes


def redirected(leaving: tuple[Edge, ...], old: str, new: str) -> tuple[Edge, ...]:
    """The edges, with the target `old` replaced by `new`."""
    return tuple(replace(edge, target=new) if edge.target == old else edge for edge in leaving)


def kind_text(node: Node) -> str:
    """The kind of a node, or the name of its body; empty where the kind has the name of the node."""
    if node.body is not None:
        return f"graph {node.body.name}"
    return "" if node.use == node.name else node.use


def settings_of(node: Node) -> list[str]:
    """The parameters that the graph sets on a node, and the slots that it renames, each as text.

    >>> settings_of(Node("clip", "clip", reads={"max_norm": "1.0 / (1 + step.steps)"}))
    ['max_norm = 1.0 / (1 + step.steps)']
    >>> settings_of(Node("log", "log", {"every": "50 steps"}, writes={"loss": "d_loss"}))
    ['every = "50 steps"', 'writes loss to d_loss']
    """
    return [
        *(f"{name} = {show_value(value)}" for name, value in node.parameters.items()),
        *(
            f"{name} = {target}"
            if is_computed(target)
            else f"reads {name} from {target if isinstance(target, str) else ', '.join(target)}"
            for name, target in node.reads.items()
        ),
        *(f"writes {slot} to {target}" for slot, target in node.writes.items()),
    ]


def is_computed(target: str | tuple[str, ...]) -> bool:
    """True if a node reads an expression, not a name."""
    return isinstance(target, str) and is_expression(target)


@dataclass(frozen=True)
class Edge:
    """A target that comes next if the guard named `when` is true, or always if there is none."""

    target: str
    when: str | None = None

    def __str__(self) -> str:
        return self.target if self.when is None else f"{self.target} if {self.when}"


@dataclass(frozen=True)
class Edit:
    """One table ``[[edit]]``: a verb of `Graph` with its arguments.

    Arguments:
        subject: the first argument of the verb, which is the value of its key.
        arguments: the others, by their names in Python.
        place: its place in the file.
        if_there: True if it is skipped where a node that it names does not exist.
        overlay: the name of its overlay; empty for an edit of a graph file.

    Two edits are equal if they do the same, wherever they are written.
    """

    verb: str
    subject: str
    arguments: Mapping[str, Any]
    place: str = field(compare=False)
    if_there: bool = field(default=False, compare=False)
    overlay: str = field(default="", compare=False)

    @property
    def adds(self) -> bool:
        """True if it adds the node that it is about."""
        return self.verb in ("insert", "nest")

    @property
    def defines_guard(self) -> bool:
        """True if it defines a guard, rather than widening one."""
        return self.verb == "guard" and self.arguments.get("expression") is not None


@dataclass(frozen=True)
class Layers:
    """The overlays of a graph, for messages and pictures; not part of the value of a graph.

    Arguments:
        names: in the order in which they were named.
        waiting: edits with `if_there` that were skipped because their nodes do not exist yet.
        done: the edits that were applied.
    """

    names: tuple[str, ...] = ()
    waiting: tuple[Edit, ...] = ()
    done: tuple[Edit, ...] = ()


@dataclass(frozen=True, repr=False, eq=False)
class GraphData(ABC):
    """The data of a `Graph`, which adds its methods; the declared type of the bodies of nodes."""

    name: str
    start: str
    nodes: Mapping[str, Node]
    edges: Mapping[str, tuple[Edge, ...]]
    guards: Mapping[str, str] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    optimizer: str = ""
    places: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    source: str = field(default="", compare=False, repr=False)
    layers: Layers = field(default_factory=Layers, compare=False, repr=False)

    def __post_init__(self) -> None:
        # Spaces are significant in a string.
        guards = {name: text if {*text} & {"'", '"'} else " ".join(text.split()) for name, text in self.guards.items()}
        object.__setattr__(self, "guards", guards)
        for name in ("nodes", "edges", "guards", "units", "places"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __eq__(self, other: object) -> bool:
        """By value, whatever the classes of the two graphs."""
        if not isinstance(other, GraphData):
            return NotImplemented
        return all(getattr(self, part.name) == getattr(other, part.name) for part in fields(self) if part.compare)

    def __hash__(self) -> int:
        return hash((self.name, self.start, frozenset(self.nodes)))

    @classmethod
    def of(cls, graph: GraphData) -> Self:
        """The graph, and the bodies in it, as instances of this class."""
        if type(graph) is cls:
            return graph
        bodies = {name: node.body for name, node in graph.nodes.items() if node.body is not None}
        nodes = {name: replace(graph.nodes[name], body=cls.of(body)) for name, body in bodies.items()}
        return cls(**{**vars(graph), "nodes": {**graph.nodes, **nodes}})

    @classmethod
    @abstractmethod
    def load(cls, source: str | Path) -> Self:
        """Read a graph, as `Graph.load` does."""

    @property
    def title(self) -> str:
        """Its name for people: the file it was read from, or else its name."""
        return self.source or self.name


G = TypeVar("G", bound=GraphData)
"""`Graph`, in functions that are its methods."""


class Problems(list[Problem]):
    """A list of problems that prints each on its own lines.

    >>> Problems([Problem("G101", "error", "my.toml:12", "unknown node `stp`", "did you mean `step`?")])
    my.toml:12: error G101: unknown node `stp`
        did you mean `step`?
    """

    def __repr__(self) -> str:
        return "\n".join(map(str, self)) or "[]"
