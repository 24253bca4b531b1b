"""``NAME=VALUE`` and ``NODE.PARAM=VALUE`` of the command line; values are TOML or else strings."""

from __future__ import annotations

import inspect
import re
import tomllib
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from graphtrain.command.output import console, escaped, table
from graphtrain.errors import EditError, UsageError
from graphtrain.graph.elements import NESTED, nodes_of
from graphtrain.graph.registry import kind_of_node
from graphtrain.kind.parameter import REQUIRED, Parameter, plain_value, show_value
from graphtrain.kind.signatures import descriptions_of, hints_of
from graphtrain.names import suggestion
from graphtrain.trainer.graph import Graph

# The name of the argument of `setup` that receives the run.
RUN_ARGUMENT = "run"

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def split_settings(settings: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of `setup` and the parameters of nodes.

    Raises:
        UsageError: a setting has no ``=``, or is given twice.

    >>> split_settings(["lr=1e-3", "finish.after=2 epochs", "validate/next_batch.limit=5"])
    ({'lr': 0.001}, {'finish.after': '2 epochs', 'validate/next_batch.limit': 5})
    """
    arguments: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(
                f"expected NAME=VALUE or NODE.PARAM=VALUE, got `{setting}`",
                "no spaces around =; options begin with --",
            )
        target = parameters if "." in name else arguments
        if name in target:
            raise UsageError(f"`{name}` is set twice")
        target[name] = toml_value(text)
    return arguments, parameters


def toml_value(text: str) -> Any:
    """A TOML value, or the text itself if it is not one.

    >>> toml_value("true"), toml_value("[1, 2]"), toml_value("bf16-mixed"), toml_value("inf")
    (True, [1, 2], 'bf16-mixed', inf)
    """
    if text in ("True", "False"):
        return text == "True"
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def with_parameters(graph: Graph, parameters: Mapping[str, Any]) -> Graph:
    """The graph with parameters set by ``"node.parameter"``.

    Raises:
        UsageError: there is no such node, or a parameter cannot have this value.
    """
    for name, value in parameters.items():
        node, _, parameter = name.rpartition(".")
        if not node or not parameter:
            raise UsageError(f"`{name}=` is not a parameter", "a parameter of a node is set with NODE.PARAM=VALUE")
        try:
            graph = graph.set(node, **{parameter: value})
        except EditError as error:
            raise UsageError(f"`{name}=`: {error.message.removeprefix('set: ')}", error.hint) from None
    return graph


def renamings(texts: Iterable[str]) -> dict[str, str]:
    """Old paths of nodes and their new paths, from ``OLD=NEW``.

    Raises:
        UsageError: a text has another form, or a node is renamed twice.

    >>> renamings(["accumulate=gather", "validate/next_batch=validate/fetch"])
    {'accumulate': 'gather', 'validate/next_batch': 'validate/fetch'}
    """
    renamed: dict[str, str] = {}
    for text in texts:
        old, equals, new = (part.strip() for part in text.partition("="))
        if not (old and equals and new):
            raise UsageError(f"--rename: expected OLD=NEW, got `{text}`", "as in --rename accumulate=gather")
        if old in renamed:
            raise UsageError(f"--rename: `{old}` is renamed twice")
        renamed[old] = new
    return renamed


# ---- the arguments of a setup


def arguments_of(setup: Callable[..., Any]) -> dict[str, Parameter]:
    """The arguments of a setup that can be set, by their names."""
    hints = hints_of(setup)
    return {
        name: Parameter(name, hints.get(name, Any), argument.default)
        for name, argument in inspect.signature(setup).parameters.items()
        if argument.kind not in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL) and name != RUN_ARGUMENT
    }


def setup_arguments(setup: Callable[..., Any], values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The arguments for a script's `setup`, checked against its signature.

    Raises:
        UsageError: an argument is unknown, missing, or of another type.
    """
    known = arguments_of(setup)
    takes_any = any(argument.kind is argument.VAR_KEYWORD for argument in inspect.signature(setup).parameters.values())
    if RUN_ARGUMENT in values:
        raise UsageError(
            f"`{RUN_ARGUMENT}` cannot be set: {name} receives the run itself by that name",
            "give the argument another name",
        )
    for key in values:
        if key not in known and not takes_any:
            hint = suggestion(key, known) or ("it takes others" if known else "it takes none")
            raise UsageError(
                f"`{key}` is not an argument of {name}",
                f"{hint.removesuffix('?')}; to set a parameter of a node, write NODE.{key}=VALUE",
            )
    for key, argument in known.items():
        if argument.default is REQUIRED and key not in values:
            raise UsageError(f"{name} needs the argument `{key}`", f"set it with {key}=VALUE")
    return {key: _coerced(known[key], value, name) if key in known else value for key, value in values.items()}


def arguments_in_force(setup: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, str]:
    """Every argument of a call of `setup`, defaults included, as text that is saved with a run.

    A default has the same form as if it were given. Addresses, which differ between processes, are left out.

    Arguments:
        given: the arguments of the call, as `setup_arguments` returns them.

    >>> def setup(lr: float = 1, make=len, **rest): ...
    >>> arguments_in_force(setup, {"width": 8})
    {'lr': '1.0', 'make': '<built-in function len>', 'width': '8'}
    """
    values = {}
    for name, argument in arguments_of(setup).items():
        if name not in given and argument.default is not REQUIRED:
            values[name] = argument.default
            with suppress(UsageError):
                values[name] = _coerced(argument, argument.default, "setup")
    return {name: _ADDRESS.sub("", repr(value)) for name, value in {**values, **given}.items()}


def _coerced(argument: Parameter, value: Any, name: str) -> Any:
    wanted = typing.get_args(argument.annotation) or (argument.annotation,)
    if isinstance(value, str) and Path in wanted and str not in wanted:
        return Path(value)
    try:
        return argument.coerce(value)
    except ValueError as error:
        hint = ""
        if str in wanted:  # `tag=001` is text, `tag=3` a number
            hint = f"quote text that looks like another value, and the quotes for the shell: {argument.name}='\"...\"'"
        raise UsageError(f"{name}: {argument.name}: {error}", hint) from None


# ---- how they are listed

# Name, default, type and description.
Row = tuple[str, str, str, str]


def print_arguments(setup: Callable[..., Any], name: str) -> None:
    """Print the arguments of a setup."""
    _print(f"Arguments of {name}", "NAME=VALUE", [*setup_rows(setup)])


def print_parameters(graph: Graph, nodes: Sequence[str] = ()) -> None:
    """Print which nodes of a graph have parameters, and those of some nodes.

    Arguments:
        nodes: the paths of these. Default: none.

    Raises:
        UsageError: there is no such node, or it has no parameters.
    """
    rows: dict[str, list[Row]] = {}
    for row in graph_rows(graph):
        rows.setdefault(row[0].rpartition(".")[0], []).append(row)
    for node in (word for word in nodes if "=" not in word):
        if node not in rows:
            raise UsageError(f"--help: no node `{node}` of `{graph.title}` has parameters", suggestion(node, rows))
        _print(f"Parameters of the node {node}", "NODE.PARAM=VALUE", rows[node])
    printed = console()
    printed.print(f"\n[bold]Nodes with parameters[/bold], as in --help {next(iter(rows), 'NODE')}")
    printed.print(escaped("  " + ", ".join(rows)))


def _print(title: str, heading: str, rows: Sequence[Row]) -> None:
    printed = console()
    printed.print(f"\n[bold]{escaped(title)}[/bold]" + ("" if rows else ": none"))
    if rows:
        printed.print(table([heading, "default", "type", ""], rows, whole=[heading]))


def setup_rows(setup: Callable[..., Any]) -> Iterator[Row]:
    """The arguments of a setup.

    >>> def setup(lr: float = 0.1):
    ...     '''Make the parts of a run.
    ...
    ...     Arguments:
    ...         lr: learning rate.'''
    >>> list(setup_rows(setup))
    [('lr', '0.1', 'number', 'learning rate.')]
    >>> def setup(activation: Callable[[Any], Any] = lambda value: value, layer: type = dict):
    ...     pass
    >>> [row[:3] for row in setup_rows(setup)]
    [('activation', 'a function', 'function'), ('layer', 'dict', 'class')]
    """
    descriptions = descriptions_of(setup)
    for name, argument in arguments_of(setup).items():
        yield _row(name, argument, argument.default, descriptions.get(name, ""))


def graph_rows(graph: Graph) -> Iterator[Row]:
    """The parameters of the nodes of a graph; nodes of nested graphs are named by their paths."""
    for path, node in nodes_of(graph).items():
        kind = kind_of_node(node)
        if kind is None:
            continue  # declared by a script that is not loaded
        for name, parameter in kind.parameters.items():
            if node.use != NESTED or name in node.parameters:
                value = node.parameters.get(name, parameter.default)
                yield _row(f"{path}.{name}", parameter, value, kind.descriptions.get(name, ""))


def _row(name: str, parameter: Parameter, value: Any, description: str) -> Row:
    wanted = parameter.annotation
    named = "path" if wanted is Path else "" if wanted is Any else parameter.type_name
    return name, _shown(value), re.sub(r"^an? (value of type )?| such as .*", "", named), description


def _shown(value: Any) -> str:
    if value is None or value is REQUIRED:
        return "none" if value is None else "required"
    try:
        return show_value(plain_value(value))
    except ValueError:
        name = getattr(value, "__name__", str(value))
        return "a function" if name == "<lambda>" else name
