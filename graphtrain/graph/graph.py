"""A training procedure as a value: nodes, guarded edges, named guards, a clock, a start."""

from __future__ import annotations

import datetime
import math
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from graphtrain.errors import UsageError
from graphtrain.graph import canonical, edit, hooks, read_toml
from graphtrain.graph.calls import checked_call
from graphtrain.graph.difference import Difference, changes
from graphtrain.graph.elements import GraphData, Node, kind_text, settings_of
from graphtrain.graph.registry import find_graph, kind_of_node
from graphtrain.kind.declaration import FROM
from graphtrain.names import quoted
from graphtrain.printable import one_line

PICTURE_SUFFIXES = (".svg", ".png", ".pdf", ".dot", ".mmd")  # the formats of `Graph.render`


@dataclass(frozen=True, repr=False, eq=False)
class EditableGraph(GraphData):
    """A graph that is read, edited, compared and written; `Graph` has pictures, checks and saved graphs as well."""

    def __deepcopy__(self, memory: object) -> Self:
        return self  # immutable

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_json, (self.to_json(),)

    # The verbs of edits, in Python and as [[edit]] in TOML alike.
    insert = edit.insert
    replace = edit.replace
    remove = edit.remove
    nest = edit.nest
    connect = edit.connect
    disconnect = edit.disconnect
    redirect = edit.redirect
    set = edit.set
    guard = edit.guard
    hook = hooks.hook
    rename = edit.rename
    clock = edit.clock

    @classmethod
    def load(cls, source: str | Path) -> Self:
        """Read a graph: the name of a shipped or installed one, or the path of a TOML file.

        Raises:
            GraphError: the text is not a graph; `problems` lists every reason. `check` examines kinds and parameters.
            UsageError: there is no such graph or file.
        """
        return read_toml.sound(*read_toml.read_graph(cls, source), f"graph `{source}`")

    @classmethod
    def loads(cls, text: str, *, name: str = "text") -> Self:
        """Read a graph from TOML text; `name` stands for the file in messages.

        >>> from graphtrain import Graph
        >>> text = Graph.load("fit").to_toml()
        >>> Graph.loads(text) == Graph.load("fit")
        True
        """
        return read_toml.sound(*read_toml.read_text(cls, text, name), f"graph `{name}`")

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` returned, or the JSON in a checkpoint; raises a ValueError if it is not a graph."""
        return read_toml.from_json(cls, text)

    @checked_call()
    def overlay(self, *overlays: str | Path) -> Self:
        """Add overlays, lists of edits for any graph: the names of shipped or installed ones, or paths of TOML files.

        They are applied in the order given. An overlay applies to the outermost graph that has the nodes it names: for
        `kfold`, to the nested `fit`. Parameters of the nodes that it adds are set with `set`.

        Raises:
            UsageError: there is no such overlay.
            GraphError: it is not an overlay, it does not fit this graph, or it conflicts with another one.

        >>> from graphtrain import Graph
        >>> graph = Graph.load("fit").overlay("ema", "carry").set("ema", decay=0.99)
        >>> [str(edge) for edge in graph.edges["step"]], graph.guards["window_cut"], graph.layers.names
        (['ema'], 'ending', ('ema', 'carry'))
        """
        subject = f"graph `{self.name}` with {quoted(map(str, overlays))}"
        return read_toml.sound(*read_toml.read_overlays(self, overlays), subject)

    def save(self, path: str | Path) -> None:
        """Write TOML that loads back equal; `render` draws a picture.

        Raises:
            UsageError: the file exists or cannot be written, or its name is that of a picture.
            EditError: a parameter of a `Node` that was created by hand cannot be written.
        """
        if Path(path).suffix.lower() in PICTURE_SUFFIXES:
            raise UsageError(
                f"`{path}` is the name of a picture, and `save` writes a graph as TOML",
                f'use graph.render("{path}"), or a name that ends in .toml',
            )
        write_new(Path(path), self.to_toml().encode())

    def to_toml(self) -> str:
        """The text that `save` writes.

        >>> from graphtrain import Graph
        >>> print(Graph.load("evaluate").to_toml().splitlines()[0])
        format = 1
        """
        return f"format = {canonical.FORMAT}\n" + _toml(self, canonical.plain(self), prefix="")

    to_json = canonical.to_json
    structural_hash = property(canonical.structural_hash)

    @checked_call()
    def diff(self, other: GraphData) -> Difference:
        """The difference between this graph and another. It prints as text, draws itself in a notebook, and is false
        if there is none.

        Compares nodes, edges with their order, guards, parameters and the clock, at any depth. A renamed node counts as
        one removed and one added.

        >>> from graphtrain import Graph
        >>> fit = Graph.load("fit")
        >>> print(fit.diff(fit.set("finish", after="20 epochs")))
        ~ finish.after 10 epochs -> 20 epochs
        """
        return Difference(self, other, tuple(changes(self, other)))

    def dry_run(self) -> Self:
        """The graph of a dry run, which visits every reachable node so that mistakes show early.

        Every node that fetches batches fetches one. Triggers are due after the first batch, except ``"once"`` and
        ``"never"``, which stay. The run ends after one epoch, or one of another unit if the clock has no epochs.

        >>> from graphtrain import Graph
        >>> fit = Graph.load("fit").dry_run()
        >>> fit.nodes["next_batch"], fit.nodes["validate"].body.nodes["next_batch"].parameters["limit"]
        (<Node next_batch: limit = 1>, 1)
        """
        every = next((f"1 {unit}" for unit in ("batches", "steps", "epochs") if unit in self.units), "once")
        after = next((f"1 {unit}" for unit in ("epochs", "batches", "steps", *self.units) if unit in self.units), "")
        nodes: dict[str, Node] = {}
        for name, node in self.nodes.items():
            kind, body = kind_of_node(node), node.body and self.of(node.body).dry_run()
            parameters = {key: value for key, value in node.parameters.items() if key != FROM or kind is None}
            if kind is not None:
                if any(read.name == "history" for read in kind.setup_reads or ()):  # no checkpoint to return to
                    parameters |= dict.fromkeys(kind.enabling_parameters, math.inf)
                if kind.family == "data" and "limit" in kind.parameters:
                    parameters["limit"] = 1
                is_periodic = kind.trigger == "every" and (body is None or "every" in parameters)
                is_left = "scheduler" in kind.optional and "every" not in parameters  # a run may refuse that
                if is_periodic and not is_left and parameters.get("every") not in ("never", "once"):
                    parameters["every"] = every
                elif kind.trigger == "after" and after:
                    parameters["after"] = after
            nodes[name] = replace(node, body=body, parameters=parameters)
        return replace(self, nodes=nodes)

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self.nodes)} nodes, start {self.start}>"

    def __str__(self) -> str:
        return "\n".join(_readable(self, ""))


def write_new(path: Path, content: bytes) -> None:
    """Write a new file; raises a UsageError if it exists or cannot be written, and then leaves no partial file."""
    is_new = False
    try:
        with path.open("xb") as file:
            is_new = True
            file.write(content)
    except FileExistsError:
        raise UsageError(f"`{path}` exists; a file is never overwritten", "choose another name") from None
    except OSError as error:
        if is_new:
            path.unlink(missing_ok=True)
        raise UsageError(f"cannot write `{path}`: {error.strerror}") from None


_WIDEST = 32  # characters of a column; a wider text has a line to itself
_CLOCK_WIDTH = 68  # characters


def _readable(graph: GraphData, indent: str) -> Iterator[str]:
    """What `print` shows: nodes with their settings, edges in order, the guards and the clock; bodies are indented."""
    lists = {key: getattr(graph, key) for key in ("outputs", "optional", "allow")}
    lists["overlays"] = graph.layers.names
    lists["optimizer"] = (graph.optimizer,) if graph.optimizer else ()
    head = [f"start {graph.start}", *(f"{key} {', '.join(values)}" for key, values in lists.items() if values)]
    yield indent + one_line(f"graph {graph.name}: {'; '.join(head)}")
    indent += "  "
    settings = {name: _settings(graph, name) for name in dict.fromkeys([*graph.nodes, *graph.edges])}
    names, words = _width(settings), _width(settings.values())
    for name, setting in settings.items():
        beginning = f"{one_line(name):<{names}}  {setting:<{words}}"
        if len(beginning) > names + 2 + words:
            yield indent + beginning.rstrip()
            beginning = " " * (names + 2 + words)
        edges = [one_line(str(edge)) for edge in graph.edges.get(name, ())]
        numbered = [f"{number}. {edge}" for number, edge in enumerate(edges, start=1)]
        first, *rest = numbered if len(edges) > 2 else [", ".join(edges) or "no edge"]
        yield f"{indent}{beginning}  -> {first}"
        yield from (f"{indent}{' ' * (names + 2 + words)}     {edge}" for edge in rest)
        if name in graph.nodes and (body := graph.nodes[name].body) is not None:
            yield from _readable(body, indent + "  ")
    width = _width(graph.guards)
    guards = [f"{one_line(name):<{width}}  {one_line(expression)}" for name, expression in graph.guards.items()]
    units = one_line(", ".join(f"{unit} = {field}" for unit, field in graph.units.items()))
    clock = textwrap.wrap(units.replace(" = ", "\0=\0"), _CLOCK_WIDTH)  # breaks between units, not inside one
    for heading, lines in (("guards", guards), ("clock", [line.replace("\0", " ") for line in clock])):
        yield from (f"{indent}{'' if number else heading:<6}  {line}" for number, line in enumerate(lines))


def _settings(graph: GraphData, name: str) -> str:
    if name not in graph.nodes:
        return "not declared"
    node = graph.nodes[name]
    kind = kind_text(node) if node.body is None else ""  # the name of a body is above its nodes
    return one_line(", ".join(filter(None, (kind, *settings_of(node)))))


def _width(texts: Iterable[str]) -> int:
    """The width of a column that holds the texts; wider ones do not count."""
    return max((len(text) for text in map(one_line, texts) if len(text) <= _WIDEST), default=0)


def _toml(graph: GraphData, whole: dict[str, Any], prefix: str) -> str:
    head = [f"{key} = {_text(value)}" for key, value in whole.items() if isinstance(value, str | list)]
    sections = ["\n".join([f"[{prefix.rstrip('.')}]", *head] if prefix else head)]
    nodes, bodies = [f"[{prefix}nodes]"], []
    for name, table in whole["nodes"].items():
        body, key = graph.nodes[name].body, _key(name)
        is_shipped = body is not None and find_graph(body.name) is not None
        if body is None or (is_shipped and read_toml.read_graph(type(graph), body.name)[0] == body):
            nodes.append(f"{key} = {_text(table if body is None else {**table, 'graph': body.name})}")
        else:  # a body in full is a separate table, since TOML cannot extend an inline table
            items = [f"{_key(item)} = {_text(value)}" for item, value in table.items() if item != "graph"]
            inner = _toml(body, table["graph"], prefix=f"{prefix}nodes.{key}.graph.")
            bodies.append("\n".join([f"[{prefix}nodes.{key}]", *items, "", inner]))
    sections += ["\n".join(nodes), *bodies]
    for section in ("guards", "edges", "clock"):
        lines = [f"[{prefix}{section}]"]
        for key, value in whole.get(section, {}).items():
            is_long = isinstance(value, list) and len(value) > 2
            text = "[\n" + "".join(f"  {_text(each)},\n" for each in value) + "]" if is_long else _text(value)
            lines.append(f"{_key(key)} = {text}")
        if section in whole:
            sections.append("\n".join(lines))
    return "\n\n".join(section.rstrip("\n") for section in sections) + "\n"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _text(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_text(item)}" for key, item in value.items()) + " }" if value else "{}"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    text = str(value)
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise UsageError(f"{text!r} cannot be written: it contains a lone surrogate")
    return '"' + "".join(_ESCAPES.get(c) or (c if c.isprintable() else f"\\U{ord(c):08X}") for c in text) + '"'


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
