"""A graph as plain data, in the shape of its TOML: the source of its TOML, its JSON and its hash."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from graphtrain.errors import EditError
from graphtrain.graph.elements import GraphData, Node
from graphtrain.kind.parameter import plain_value

FORMAT = 1


def plain(graph: GraphData, *, overlays: bool = False) -> dict[str, Any]:
    """The tables of a graph, in the order of its TOML and without empty ones; bodies are written out in full.

    Arguments:
        overlays: True adds the names of overlays, in each graph that has any. Default: False.

    Raises:
        EditError: a parameter is not a plain value.

    >>> from graphtrain import Graph
    >>> list(plain(Graph.load("fit"))), plain(Graph.load("evaluate"))["edges"]["eval_batch"]
    (['name', 'start', 'nodes', 'guards', 'edges', 'clock'], ['end_evaluation if last_batch', 'next_batch'])
    """
    whole = {
        "name": graph.name,
        "start": graph.start,
        "outputs": list(graph.outputs),
        "optional": list(graph.optional),
        "allow": list(graph.allow),
        "optimizer": graph.optimizer,
        "nodes": {name: _plain_node(node, overlays) for name, node in graph.nodes.items()},
        "guards": dict(graph.guards),
        "edges": {source: list(map(str, leaving)) for source, leaving in graph.edges.items()},
        "clock": dict(graph.units),
        "overlays": list(graph.layers.names) if overlays else [],
    }
    return {key: value for key, value in whole.items() if value or key in ("name", "start", "nodes", "edges")}


def _plain_node(node: Node, overlays: bool) -> dict[str, Any]:
    return {
        **({"graph": plain(node.body, overlays=overlays)} if node.body is not None else {}),
        **({"use": node.use} if node.body is None and node.use != node.name else {}),
        **({"reads": plain_value(node.reads)} if node.reads else {}),
        **({"writes": dict(node.writes)} if node.writes else {}),
        **{name: plain_parameter(node.name, name, value) for name, value in node.parameters.items()},
    }


def plain_parameter(node: str, name: str, value: Any) -> Any:
    """A parameter of a node as the text of a graph holds it; raises an EditError if it cannot be written as text."""
    try:
        return plain_value(value)
    except ValueError as error:
        hint = "a value other than a number, text, list or table goes into a resource of the Trainer, or into the kind"
        if value is None:
            hint = 'leave the parameter out for its default; a trigger that never fires is "never"'
        raise EditError(f"{node}.{name}: {error}", hint) from None


def to_json(graph: GraphData) -> str:
    """The canonical JSON: the same text for equal graphs, with nested graphs in full."""
    return _json({"format": FORMAT, **plain(graph)}, is_sorted=True)


def saved_json(graph: GraphData) -> str:
    """The graph as a checkpoint stores it: in the order of its text, with the names of overlays."""
    return _json({"format": FORMAT, **plain(graph, overlays=True)})


def structural_hash(graph: GraphData) -> str:
    """A hash (SHA-256, hexadecimal) of what the graph does: without names of graphs and files, and `allow`."""
    text = _json(_drop_names(plain(graph)), is_sorted=True)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _drop_names(whole: dict[str, Any]) -> dict[str, Any]:
    nodes = {
        name: {**node, "graph": _drop_names(node["graph"])} if "graph" in node else node
        for name, node in whole["nodes"].items()
    }
    edges = {source: leaving for source, leaving in whole["edges"].items() if leaving}
    rest = {key: value for key, value in whole.items() if key not in ("name", "allow")}
    return {**rest, "nodes": nodes, "edges": edges}


def value_text(value: Any) -> str:
    """A parameter as canonical JSON: the same text for equal values, but not for 1 and 1.0.

    >>> value_text(1.0), value_text((1, True))
    ('1.0', '[1,true]')
    """
    return _json(plain_value(value), is_sorted=True)


def _json(value: Any, *, is_sorted: bool = False) -> str:
    """The value as JSON with ``Infinity`` and ``NaN``; a date or time is its text."""
    return json.dumps(value, sort_keys=is_sorted, separators=(",", ":"), ensure_ascii=False, default=str)
