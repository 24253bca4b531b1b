"""Canonical JSON: the same text for equal graphs, nested graphs included; and a hash of what a graph does."""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from typing import Any

from graphtrain.graph.elements import Edge, Node
from graphtrain.graph.graph import Graph
from graphtrain.kind.parameter import plain_value
from graphtrain.printable import one_line, shorten

_MAX_NESTING = 100


def to_json(graph: Graph) -> str:
    """The graph as canonical JSON: keys sorted, no spaces; infinities and NaN as ``{"float": "inf"}``."""
    return json.dumps(_plain(graph), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def order_json(graph: Graph) -> str:
    """The order of everything in a graph, which `to_json` leaves out: nodes, edges, guards, parameters, as nested keys.

    >>> order_json(Graph("pair", "b", {"b": Node("b", "choice"), "a": Node("a", "choice")}, {}))[:57]
    '{"format":0,"name":0,"start":0,"nodes":{"b":{"use":0,"par'
    """
    return json.dumps(_keys(_plain(graph)), separators=(",", ":"), ensure_ascii=False)


def from_json(text: str, order: str = "") -> Graph:
    """Read the text that `to_json` returned.

    Arguments:
        order: what `order_json` returned. Default: by name; so is whatever it does not name.

    Raises:
        ValueError: the text is not a graph.
    """
    try:
        return _graph(_ordered(json.loads(text), _keys_of(order)))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a canonical graph: {shorten(one_line(repr(error)), 200)}") from error


def _keys(value: Any) -> Any:
    return {key: _keys(inner) for key, inner in value.items()} if isinstance(value, dict) else 0


def _keys_of(order: str) -> Any:
    """The keys in a text of others; none where it is no such text, for a graph is the same in any order."""
    try:
        return json.loads(order)
    except (ValueError, TypeError, RecursionError):
        return {}


def _ordered(value: Any, keys: Any) -> Any:
    if not isinstance(value, dict) or not isinstance(keys, dict):
        return value
    first = {key: _ordered(value[key], inner) for key, inner in keys.items() if key in value}
    return {**first, **{key: inner for key, inner in value.items() if key not in first}}


def structural_hash(graph: Graph) -> str:
    """SHA-256 of the canonical JSON without the names of graphs, their `allow`, and the spacing of guards."""
    plain = _without_names(_plain(graph))
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _without_names(plain: dict[str, Any]) -> dict[str, Any]:
    del plain["name"], plain["allow"]
    plain["edges"] = {source: leaving for source, leaving in plain["edges"].items() if leaving}
    plain["guards"] = {name: spaced(text) for name, text in plain["guards"].items()}
    for node in plain["nodes"].values():
        if node["body"] is not None:
            _without_names(node["body"])
    return plain


def spaced(guard: str) -> str:
    """A guard with insignificant spaces removed; in a string every space is significant."""
    return guard.strip() if set(guard) & {"'", '"'} else " ".join(guard.split())


def value_text(value: Any) -> str:
    """A parameter as canonical JSON: the same text for equal values, but not for 1 and 1.0.

    >>> value_text(1.0), value_text((1, True))
    ('1.0', '[1,true]')
    """
    return json.dumps(_value(plain_value(value)), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _plain(graph: Graph) -> dict[str, Any]:
    return {
        "format": 1,
        "name": graph.name,
        "start": graph.start,
        "nodes": {name: _plain_node(node) for name, node in graph.nodes.items()},
        "edges": {source: [[edge.target, edge.when] for edge in leaving] for source, leaving in graph.edges.items()},
        "guards": dict(graph.guards),
        "clock": dict(graph.units),
        "outputs": list(graph.outputs),
        "optional": list(graph.optional),
        "allow": list(graph.allow),
        **({"optimizer": graph.optimizer} if graph.optimizer else {}),
    }


def _plain_node(node: Node) -> dict[str, Any]:
    return {
        "use": node.use,
        "parameters": _value(plain_value(node.parameters)),
        "reads": {slot: list(target) if isinstance(target, tuple) else target for slot, target in node.reads.items()},
        "writes": dict(node.writes),
        "body": _plain(node.body) if node.body is not None else None,
    }


def _value(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, dict):
        return {"table": {key: _value(item) for key, item in value.items()}}
    if isinstance(value, list):
        return [_value(item) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value


def _unvalue(value: Any) -> Any:
    if isinstance(value, dict):
        if "float" in value:
            return float(value["float"])
        return {key: _unvalue(item) for key, item in value["table"].items()}
    if isinstance(value, list):
        return [_unvalue(item) for item in value]
    return value


def _graph(plain: dict[str, Any], depth: int = 0) -> Graph:
    if plain["format"] != 1:
        raise ValueError(f"format {_text(str(plain['format']))[:20]} is not known to this version")
    if depth > _MAX_NESTING:
        raise ValueError(f"graphs nested more than {_MAX_NESTING} levels deep")
    return Graph(
        name=_text(plain["name"]),
        start=_text(plain["start"]),
        nodes={name: _node(name, node, depth) for name, node in plain["nodes"].items()},
        edges={source: tuple(_edge(*edge) for edge in leaving) for source, leaving in plain["edges"].items()},
        guards=_texts(plain["guards"]),
        units=_texts(plain["clock"]),
        outputs=tuple(map(_text, plain["outputs"])),
        optional=tuple(map(_text, plain["optional"])),
        allow=tuple(map(_text, plain["allow"])),
        optimizer=_text(plain.get("optimizer", "")),
    )


def _edge(target: Any, when: Any) -> Edge:
    return Edge(_text(target), None if when is None else _text(when))


def _node(name: str, plain: dict[str, Any], depth: int) -> Node:
    return Node(
        name=name,
        use=_text(plain["use"]),
        parameters=_unvalue(plain["parameters"]),
        reads={
            slot: tuple(map(_text, target)) if isinstance(target, list) else _text(target)
            for slot, target in plain["reads"].items()
        },
        writes=_texts(plain["writes"]),
        body=_graph(plain["body"], depth + 1) if plain["body"] is not None else None,
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__}, where a text belongs")
    return value


def _texts(value: Any) -> dict[str, str]:
    return {name: _text(text) for name, text in value.items()}
