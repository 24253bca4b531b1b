"""Writing TOML that loads back equal."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphtrain.errors import GraphtrainError, UsageError
from graphtrain.graph.canonical import FORMAT, plain
from graphtrain.graph.elements import Node
from graphtrain.graph.read_toml import read_graph
from graphtrain.graph.registry import find_graph

if TYPE_CHECKING:
    from graphtrain.graph.graph import Graph

PICTURE_SUFFIXES = (".svg", ".png", ".pdf", ".dot", ".mmd")  # the formats of `Graph.render`


def save_graph(graph: Graph, path: str | Path) -> None:
    """Write the graph to a new file.

    Raises:
        UsageError: the file exists or cannot be written, or its name is that of a picture.
    """
    if Path(path).suffix.lower() in PICTURE_SUFFIXES:
        raise UsageError(
            f"`{path}` is the name of a picture, and `save` writes a graph as TOML",
            f'use graph.render("{path}"), or a name that ends in .toml',
        )
    text = graph_text(graph)
    try:
        with Path(path).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"`{path}` exists; a file is never overwritten", "choose another name") from None
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {error.strerror}") from None


def graph_text(graph: Graph) -> str:
    """The TOML text of a graph.

    >>> from graphtrain.graph import Graph
    >>> print(graph_text(Graph.load("evaluate")).splitlines()[0])
    format = 1
    """
    return f"format = {FORMAT}\n" + _graph_text(graph, plain(graph), prefix="")


def _graph_text(graph: Graph, whole: dict[str, Any], prefix: str) -> str:
    head = [f"{key} = {_text(value)}" for key, value in whole.items() if isinstance(value, str | list)]
    sections = ["\n".join([f"[{prefix.rstrip('.')}]", *head] if prefix else head)]
    nodes, bodies = [f"[{prefix}nodes]"], []
    for name, table in whole["nodes"].items():
        node, key = graph.nodes[name], _key(name)
        if node.body is None or _is_shipped(node, type(graph)):
            table = {**table, "graph": node.reference} if node.body is not None else table
            nodes.append(f"{key} = {_text(table)}")
        else:  # a body in full is a separate table, since TOML cannot extend an inline table
            items = [f"{_key(item)} = {_text(value)}" for item, value in table.items() if item != "graph"]
            inner = _graph_text(node.body, table["graph"], prefix=f"{prefix}nodes.{key}.graph.")
            bodies.append("\n".join([f"[{prefix}nodes.{key}]", *items, "", inner]))
    sections += ["\n".join(nodes), *bodies]
    for section in ("guards", "edges", "clock"):
        lines = [f"{_key(key)} = {_edges(value)}" for key, value in whole.get(section, {}).items()]
        if section in whole:
            sections.append("\n".join([f"[{prefix}{section}]", *lines]))
    return "\n\n".join(section.rstrip("\n") for section in sections) + "\n"


def _edges(texts: str | list[str]) -> str:
    if isinstance(texts, str) or len(texts) <= 2:
        return _text(texts)
    return "[\n" + "".join(f"  {_text(text)},\n" for text in texts) + "]"


def _is_shipped(node: Node, make: type[Graph]) -> bool:
    if node.reference is None or find_graph(node.reference) is None:
        return False  # a path is relative to the file it is saved in, which may be in another folder
    try:
        return read_graph(make, node.reference).graph == node.body
    except GraphtrainError:
        return False


def _key(key: str) -> str:
    plain = key and all(character.isascii() and (character.isalnum() or character in "_-") for character in key)
    return key if plain else _text(key)


def _text(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
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
