"""A JSON Schema of graph files, from the installed kinds: editors complete and underline by it.

It knows what the text alone tells: keys, kinds, names, types and defaults of parameters, the verbs of edits. Whether a
node, a slot or a guard exists is for `graphtrain check`. The form is that of draft 7 (Wright et al., "JSON Schema
Validation", 2018); an editor that ignores `if` underlines less, and completes the same.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from graphtrain.graph.edit import VERBS
from graphtrain.graph.graph import Graph
from graphtrain.graph.read_edits import IF_THERE
from graphtrain.graph.registry import find_kind, known_graphs, known_kinds, known_overlays
from graphtrain.kind import Kind
from graphtrain.kind.docstring import descriptions_of
from graphtrain.kind.parameter import REQUIRED, Above, Parameter, plain_value
from graphtrain.kind.trigger import AT_END, MULTIPLES, ONCE, Trigger

Schema = dict[str, Any]

TITLE = "graphtrain graph"

_DRAFT = "http://json-schema.org/draft-07/schema#"
# A number is decimal or a ratio; units are those of the graph's clock, so any name is taken.
_TRIGGER = r"^(never|once|end|\s*([0-9]+(\.[0-9]+|/[0-9]+)?|[0-9]+\s+per)\s+[A-Za-z_][A-Za-z0-9_]*\s*)$"
_AMOUNTS = (*(f"1 {unit}" for unit in ("steps", "epochs", "batches", "samples", *MULTIPLES)), "4 per epoch", "0.1 run")
_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
_TYPES: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
}


def json_schema() -> Schema:
    """The schema of a graph file, with all kinds and graphs that can be used now, as `json.dumps` takes it.

    Values are new at each call; to describe kinds imports them.

    >>> schema = json_schema()
    >>> schema["definitions"]["kind clip"]["properties"]["max_norm"]["exclusiveMinimum"]
    0
    >>> schema["definitions"]["kind checkpoint"]["properties"]["mode"]["enum"]
    ['async', 'sync']
    """
    kinds = {name: kind for name in known_kinds() if (kind := find_kind(name)) is not None}
    graph = _graph(kinds)
    overlay = _table(
        "Edits of a graph, in their order; without `extends`, of any graph beside which it is named.",
        {**{key: graph["properties"][key] for key in _TOP}, **_overlay_properties()},
        required=[],
    )
    return {
        "$schema": _DRAFT,
        "title": TITLE,
        "description": "A training procedure: nodes, guards and edges; or edits of one.",
        "type": "object",
        "required": ["format"],
        # For completion; what is valid is in the two forms.
        "properties": {**overlay["properties"], **graph["properties"]},
        "if": {"anyOf": [{"required": ["extends"]}, {"required": ["edit"], "not": {"required": ["nodes"]}}]},
        "then": {"$ref": "#/definitions/overlay"},
        "else": {"$ref": "#/definitions/graph"},
        "definitions": {
            "graph": graph,
            "overlay": overlay,
            "node": _node(kinds),
            "body": {
                "anyOf": [
                    _reference("A shipped graph, or the path of a file."),
                    {"$ref": "#/definitions/graph"},
                    {"allOf": [{"$ref": "#/definitions/overlay"}, {"required": ["extends"]}]},
                ]
            },
            "edges": {
                "description": "What comes next: the first edge whose guard is true. The last one has no guard.",
                "anyOf": [{"type": "string"}, _strings("Edges, in the order of their priority.")],
                "examples": [["step if accumulation_reached", "decide"]],
            },
            "edit": _edit(),
            **{f"kind {name}": _kind(kind) for name, kind in kinds.items()},
        },
    }


_TOP = ("format", "name", "start", "outputs", "optional", "allow", "optimizer")


def _graph(kinds: Mapping[str, Kind]) -> Schema:
    properties = {
        "format": {"description": "The version of the format of this file.", "enum": [1]},
        "name": {"description": "What the graph is called. Default: the name of the file.", "type": "string"},
        "start": {"description": "The node that runs first.", "type": "string", "pattern": _NAME},
        "nodes": {
            "description": "The acts of training: a key is a node, its value the kind and its parameters.",
            "type": "object",
            "properties": {name: _node_named_like(kind) for name, kind in kinds.items()},
            "additionalProperties": {"$ref": "#/definitions/node"},
            "propertyNames": {"pattern": _NAME},
        },
        "guards": {
            "description": "Conditions of edges, by name.",
            "type": "object",
            "additionalProperties": {"type": "string"},
            "examples": [{"accumulation_reached": "accumulate.count >= accumulate.every"}],
        },
        "edges": {
            "description": "What comes after each node.",
            "type": "object",
            "additionalProperties": {"$ref": "#/definitions/edges"},
        },
        "clock": {
            "description": "What one unit of a trigger counts.",
            "type": "object",
            "additionalProperties": {"type": "string"},
            "examples": [{"steps": "step.steps"}],
        },
        "outputs": _strings("Slots that a node with this graph as its body writes; one with a ? may be absent."),
        "optional": _strings("Resources without which what reads them is bypassed."),
        "allow": _strings("Codes of problems that are intended, such as G401."),
        "optimizer": {
            "description": "What the slot `optimizer` means to nodes that do not bind it. Default: `optimizer`.",
            "type": "string",
            "pattern": _NAME,
        },
    }
    return _table("Nodes, guards and edges.", properties, required=["start", "nodes", "edges"])


def _overlay_properties() -> Schema:
    return {
        "extends": {
            "description": "The graph that is edited, a shipped one or the path of a file; in a list, overlays follow.",
            "anyOf": [{"type": "string"}, {**_strings("A graph, then overlays."), "minItems": 1}],
            "examples": [*known_graphs(), ["fit", *known_overlays()]],
        },
        "edit": {"type": "array", "items": {"$ref": "#/definitions/edit"}},
    }


# ---- nodes


def _kind(kind: Kind) -> Schema:
    """A node of one kind."""
    descriptions = kind.descriptions
    parameters = {
        name: _parameter(parameter, descriptions.get(name, "")) for name, parameter in kind.parameters.items()
    }
    reads, writes = _reads(), _writes()
    reads["properties"] = {
        slot: {**reads["additionalProperties"], "description": f"Where `{slot}` is read from."} for slot in kind.slots
    } | {
        name: {"type": "string", "description": f"The expression that gives `{name}` its value."}
        for name in kind.varying
        if name in kind.parameters and name not in kind.slots
    }
    writes["properties"] = {
        slot: {**writes["additionalProperties"], "description": f"Where `{slot}` is written to."}
        for slot in kind.writes
    }
    return _table(
        _first_paragraph(kind.description),
        {
            "use": {"description": "The kind of the node.", "enum": [kind.name]},
            **parameters,
            "reads": reads,
            "writes": writes,
        },
        required=[
            name
            for name, parameter in kind.parameters.items()
            if parameter.default is REQUIRED and name not in kind.varying  # an expression may give it
        ],
    )


def _node_named_like(kind: Kind) -> Schema:
    """A node that has the name of a kind, which it uses unless it says otherwise."""
    described = _kind(kind)
    return {
        "description": described["description"],
        "type": "object",
        # For completion, which does not look behind `if`. No types: a parameter of another kind may have another one.
        "properties": {
            name: {key: value for key, value in of.items() if key in ("description", "default", "examples")}
            for name, of in described["properties"].items()
        },
        "if": {"anyOf": [{"required": ["use"]}, {"required": ["graph"]}]},
        "then": {"$ref": "#/definitions/node"},
        "else": {"$ref": f"#/definitions/kind {kind.name}"},
    }


def _node(kinds: Mapping[str, Kind]) -> Schema:
    """A node of any name: its kind decides which parameters it has."""
    return {
        "type": "object",
        "properties": {
            "use": {"description": "The kind of the node. Default: its name.", "enum": sorted(kinds)},
            "graph": {"$ref": "#/definitions/body"},
            "reads": _reads(),
            "writes": _writes(),
        },
        "anyOf": [{"required": ["use"]}, {"required": ["graph"]}],
        "allOf": [
            {
                "if": {"required": ["use"], "properties": {"use": {"enum": [name]}}},
                "then": {"$ref": f"#/definitions/kind {name}"},
            }
            for name in kinds
        ],
    }


def _reads() -> Schema:
    return {
        "description": "Slot of the kind -> slot of the graph, a list of slots, a field such as accumulate.window, or "
        "an expression; parameter of the kind -> expression.",
        "type": "object",
        "additionalProperties": {"anyOf": [{"type": "string"}, _strings("Slots.")]},
    }


def _writes() -> Schema:
    return {
        "description": "Slot of the kind, output of the body, or what its step function returns -> slot of the graph.",
        "type": "object",
        "additionalProperties": {"type": "string"},
    }


# ---- parameters


def _parameter(parameter: Parameter, description: str) -> Schema:
    described = _typed(parameter.annotation)
    described["description"] = f"{description} ({parameter.type_name})".strip()
    if parameter.default is REQUIRED:
        return described
    try:
        default = plain_value(parameter.default)
    except ValueError:  # None, say: left out
        return described
    if isinstance(default, float) and not math.isfinite(default):  # which TOML has, and JSON has not
        described["description"] += f" Default: {default}."
        return described
    return {**described, "default": default}


def _typed(annotation: Any) -> Schema:
    """The form of the values of a type; that of any value for a type that no text can hold."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [bound.bound for bound in arguments[1:] if isinstance(bound, Above)]
        return {**_typed(arguments[0]), **({"exclusiveMinimum": max(bounds)} if bounds else {})}
    if annotation is Trigger:
        return _trigger()
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        members = [_typed(member) for member in arguments if member is not type(None)]
        return members[0] if len(members) == 1 else {"anyOf": members}
    if origin is list or (origin is tuple and arguments[1:] == (...,)):
        return {"type": "array", "items": _typed(arguments[0])}
    if origin is tuple and arguments:
        items = [_typed(item) for item in arguments]
        return {"type": "array", "items": items, "minItems": len(items), "maxItems": len(items)}
    return dict(_TYPES.get(origin or annotation, {}))


def _trigger() -> Schema:
    term = {"type": "string", "pattern": _TRIGGER, "examples": ["never", ONCE, AT_END, *_AMOUNTS]}
    return {"anyOf": [term, {"type": "array", "items": term, "minItems": 1}], "examples": term["examples"]}


# ---- edits


def _edit() -> Schema:
    """One edit: what it may hold is known by its verb."""
    verbs = {verb: _verb(verb) for verb in VERBS}
    names = {name: described for verb in verbs.values() for name, described in verb["properties"].items()}
    return {
        "description": "One edit of the graph.",
        "type": "object",
        # For completion.
        "properties": names,
        "anyOf": [{"required": [verb]} for verb in verbs],
        "allOf": [{"if": {"required": [verb]}, "then": described} for verb, described in verbs.items()],
    }


def _verb(verb: str) -> Schema:
    method = getattr(Graph, verb)
    (first, *others) = list(inspect.signature(method).parameters.values())[1:]
    named = [parameter for parameter in others if parameter.kind is not parameter.VAR_KEYWORD]
    summary, descriptions = _first_paragraph(inspect.getdoc(method) or ""), descriptions_of(method)
    properties = {verb: {**_argument(first.name), "description": summary}}
    for parameter in named:
        key = parameter.name.rstrip("_")
        properties[key] = _argument(key)
        if description := descriptions.get(parameter.name):
            properties[key] |= {"description": description}
    properties[IF_THERE] = {**_argument(IF_THERE), "description": "Left out where a node that it names is not there."}
    described = _table(
        summary,
        properties,
        required=[verb, *(parameter.name for parameter in named if parameter.default is parameter.empty)],
    )
    if len(named) < len(others):  # parameters of the node besides
        del described["additionalProperties"]
    if verb == "guard":
        described["anyOf"] = [{"required": [key]} for key in ("expression", "or", "and")]
    return described


def _argument(name: str) -> Schema:
    match name:
        case "between":
            return {**_strings("SOURCE and TARGET of an edge."), "minItems": 2, "maxItems": 2}
        case "graph":
            return {"$ref": "#/definitions/body"}
        case "first" | "if_there":
            return {"type": "boolean"}
    return {"type": "string"}


# ---- forms


def _first_paragraph(documentation: str) -> str:
    return " ".join(documentation.split("\n\n")[0].split())


def _table(description: str, properties: Schema, required: list[str]) -> Schema:
    table = {"description": description, "type": "object", "properties": properties, "additionalProperties": False}
    return {**table, **({"required": required} if required else {})}


def _strings(description: str) -> Schema:
    return {"description": description, "type": "array", "items": {"type": "string"}}


def _reference(description: str) -> Schema:
    return {"description": description, "type": "string", "examples": known_graphs()}
