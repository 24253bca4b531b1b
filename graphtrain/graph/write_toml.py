"""Writing TOML that loads back equal."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

from graphtrain.errors import GraphtrainError, UsageError
from graphtrain.graph.graph import PICTURE_SUFFIXES, Graph
from graphtrain.graph.read_toml import FORMAT, read_graph
from graphtrain.graph.registry import find_graph
from graphtrain.kind.parameter import NOT_PLAIN, plain_value


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

    >>> print(graph_text(Graph.load("evaluate")).splitlines()[0])
    format = 1
    """
    return f"format = {FORMAT}\n" + _graph_text(graph, prefix="")


def _graph_text(graph: Graph, prefix: str) -> str:
    head = [f"name = {_text(graph.name)}", f"start = {_text(graph.start)}"]
    lists = {key: getattr(graph, key) for key in ("outputs", "optional", "allow")}
    head += [f"{key} = {_text(values)}" for key, values in lists.items() if values]
    head += [f"optimizer = {_text(graph.optimizer)}"] if graph.optimizer else []
    nodes, bodies = [], []
    for name, node in graph.nodes.items():
        items: list[str] = []
        if node.body is None and node.use != name:
            items.append(f"use = {_text(node.use)}")
        table = f"{prefix}nodes.{_key(name)}"
        by_name = node.body is not None and node.reference is not None and _is_shipped(node.reference, node.body)
        if by_name:
            items.append(f"graph = {_text(node.reference)}")
        items += [f"{key} = {_text(dict(names))}" for key in ("reads", "writes") if (names := getattr(node, key))]
        items += [f"{_key(key)} = {_parameter(name, key, value)}" for key, value in node.parameters.items()]
        if node.body is not None and not by_name:
            # A body in full is a separate table, since TOML cannot extend an inline table.
            bodies.append("\n".join([f"[{table}]", *items, "", _graph_text(node.body, prefix=f"{table}.graph.")]))
        else:
            nodes.append(f"{_key(name)} = {{ {', '.join(items)} }}" if items else f"{_key(name)} = {{}}")
    sections = [_section(prefix.rstrip("."), head) if prefix else "\n".join(head)]
    sections.append(_section(f"{prefix}nodes", nodes))
    sections += bodies
    if graph.guards:
        lines = [f"{_key(key)} = {_text(text)}" for key, text in graph.guards.items()]
        sections.append(_section(f"{prefix}guards", lines))
    sections.append(_section(f"{prefix}edges", [_edges(source, edges) for source, edges in graph.edges.items()]))
    if graph.units:
        lines = [f"{_key(key)} = {_text(text)}" for key, text in graph.units.items()]
        sections.append(_section(f"{prefix}clock", lines))
    return "\n\n".join(section.rstrip("\n") for section in sections) + "\n"


def _section(name: str, lines: list[str]) -> str:
    return "\n".join([f"[{name}]", *lines])


def _edges(source: str, edges: tuple[Any, ...]) -> str:
    texts = [_text(str(edge)) for edge in edges]
    if len(texts) <= 2:
        return f"{_key(source)} = [{', '.join(texts)}]"
    return f"{_key(source)} = [\n" + "".join(f"  {text},\n" for text in texts) + "]"


def _is_shipped(reference: str, body: Graph) -> bool:
    if find_graph(reference) is None:
        return False  # a path is relative to the file it is saved in, which may be in another folder
    try:
        return read_graph(reference).graph == body
    except GraphtrainError:
        return False


def _key(key: str) -> str:
    plain = key and all(character.isascii() and (character.isalnum() or character in "_-") for character in key)
    return key if plain else _text(key)


def _parameter(node: str, name: str, value: Any) -> str:
    try:
        return _text(plain_value(value))
    except ValueError as error:
        raise UsageError(f"{node}.{name}: {error}", NOT_PLAIN[value is None]) from None


def _text(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
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
