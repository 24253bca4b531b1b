"""Reading the tables ``[[edit]]`` of a graph file or an overlay: each is a verb of `Graph` with its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from graphtrain.errors import EditError, GraphError, UsageError
from graphtrain.graph.edit import VERBS
from graphtrain.graph.graph import Graph
from graphtrain.graph.overlay import Edit
from graphtrain.graph.registry import find_graph
from graphtrain.kind.parameter import coerce, show_value
from graphtrain.names import suggestion

if TYPE_CHECKING:
    from graphtrain.graph.read_toml import Reader

IF_THERE = "if_there"


def read_edits(data: Mapping[str, Any], reader: Reader, overlay: str = "") -> Iterator[tuple[tuple[str, ...], Edit]]:
    """The edits of a file in order, each with its key; what cannot be read is reported to the reader.

    Arguments:
        overlay: the name of the overlay that they are of. Default: they are those of a graph file.
    """
    tables = data.get("edit", [])
    if not isinstance(tables, list):
        reader.problem("G003", ("edit",), "edit: expected tables written as [[edit]]")
        return
    for number, table in enumerate(tables):
        key = ("edit", str(number))
        if (edit := _read_edit(table, key, reader, overlay)) is not None:
            yield key, edit


def _read_edit(table: Any, key: tuple[str, ...], reader: Reader, overlay: str) -> Edit | None:
    if not isinstance(table, dict):
        reader.problem("G003", key, f"edit: expected a table, got {show_value(table)}")
        return None
    verbs = [name for name in table if name in VERBS]
    if not verbs:
        hint = suggestion(next(iter(table), ""), VERBS) or f"verbs: {', '.join(VERBS)}"
        reader.problem("G005", key, f"edit: no verb in {show_value(table)}", hint)
        return None
    if len(verbs) > 1:
        message = f"edit: two verbs in one table, `{verbs[0]}` and `{verbs[1]}`"
        reader.problem("G005", key, message, "begin a separate table with [[edit]]")
        return None
    verb, arguments = verbs[0], {_in_python(name): value for name, value in table.items() if name != verbs[0]}
    if_there = arguments.pop(IF_THERE, False)
    wrong = "" if isinstance(if_there, bool) else f"{IF_THERE}: expected true or false, got {show_value(if_there)}"
    if wrong := wrong or _wrong_argument(verb, table[verb], arguments):
        reader.problem("G005", key, f"edit: {verb}: {wrong}", _usage(verb))
        return None
    try:
        inner = arguments.get("graph")
        if isinstance(inner, dict) or (isinstance(inner, str) and find_graph(inner) is None):
            arguments["graph"] = reader.read_body(inner, key, str(table[verb]))
    except (EditError, UsageError, GraphError) as error:
        if reader.is_too_large(error):
            raise
        reader.problem("G005", key, error.message, error.hint)
        return None
    text = f"{verb} {show_value({name: value for name, value in sorted(table.items()) if name != IF_THERE})}"
    return Edit(verb, table[verb], arguments, reader.place(*key), if_there, text, overlay)


def _in_python(name: str) -> str:
    """The name of an argument in Python: `or` and `and` are words of the language."""
    return f"{name}_" if name in ("or", "and") else name


def _verb_parameters(verb: str) -> tuple[list[inspect.Parameter], bool]:
    """The parameters of a verb, and whether it takes parameters of the node besides."""
    parameters = list(inspect.signature(getattr(Graph, verb)).parameters.values())[1:]
    named = [parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    return named, len(named) < len(parameters)


def _wrong_argument(verb: str, first: Any, others: Mapping[str, Any]) -> str:
    """What is wrong with the arguments of a verb, before it is called; empty if nothing is."""
    parameters, takes_more = _verb_parameters(verb)
    if parameters[0].name in others and parameters[0].kind is not parameters[0].POSITIONAL_ONLY:
        return f"`{parameters[0].name}` is the value of `{verb}` already"
    arguments = {**others, parameters[0].name: first}
    for parameter in parameters:
        name = parameter.name
        if name not in arguments:
            if parameter.default is parameter.empty:
                return f"`{name}` is missing"
        elif name == "between":
            if not isinstance(arguments[name], list) or not all(isinstance(end, str) for end in arguments[name]):
                return f'between: expected ["SOURCE", "TARGET"], got {show_value(arguments[name])}'
        elif name == "graph":
            if not isinstance(arguments[name], str | dict):
                return f"graph: expected a name, a path or a table, got {show_value(arguments[name])}"
        else:
            try:
                coerce(arguments[name], bool if name == "first" else str)
            except ValueError as error:
                return f"{name.rstrip('_')}: {error}"
    if verb == "guard" and not {"expression", "or_", "and_"}.intersection(arguments):
        return "one of `expression`, `or` and `and` is missing"
    known = {parameter.name.rstrip("_") for parameter in parameters}
    for name in arguments:
        if name.rstrip("_") not in known and not takes_more:
            return f"it takes no `{name}`. {suggestion(name, known)}".rstrip()
    return ""


def _usage(verb: str) -> str:
    (first, *others), takes_more = _verb_parameters(verb)
    required = [parameter.name for parameter in others if parameter.default is parameter.empty]
    optional = [
        parameter.name.rstrip("_") for parameter in (first, *others) if parameter.default is not parameter.empty
    ]
    written = ", ".join(f'{name} = "..."' for name in (verb, *required))
    options = f"; optional: {', '.join([*optional, IF_THERE])}"
    more = "; then parameters of the node" if takes_more else ""
    return f"the verb is written {written}{options}{more}"
