"""``NAME=VALUE`` and ``NODE.PARAM=VALUE`` of the command line; values are TOML or else strings."""

from __future__ import annotations

import inspect
import re
import shlex
import tomllib
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from graphtrain.errors import UsageError
from graphtrain.graph.registry import find_kind
from graphtrain.kind.parameter import REQUIRED, Parameter
from graphtrain.kind.signatures import descriptions_of, hints_of
from graphtrain.names import suggestion
from graphtrain.trainer.graph import Graph

# The name of the argument of `setup` that receives the run.
RUN_ARGUMENT = "run"

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def pairs(texts: Iterable[str], expected: str) -> dict[str, str]:
    """The parts of ``NAME=VALUE`` by name.

    Arguments:
        expected: what a text should look like, for the message.

    Raises:
        UsageError: a text has another form, or a name is given twice.

    >>> pairs(["accumulate=gather", "validate/next_batch=validate/fetch"], "OLD=NEW")
    {'accumulate': 'gather', 'validate/next_batch': 'validate/fetch'}
    """
    values: dict[str, str] = {}
    for text in texts:
        name, _, value = map(str.strip, text.partition("="))
        if not (name and value):
            raise UsageError(f"expected {expected}, got `{text}`", "no spaces around =; options begin with --")
        if name in values:
            raise UsageError(f"`{name}` is set twice")
        values[name] = value
    return values


def split_settings(settings: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of `setup` and the parameters of nodes.

    Raises:
        UsageError: a setting has no ``=``, or is given twice.

    >>> split_settings(["lr=1e-3", "finish.after=2 epochs", "validate/next_batch.limit=5"])
    ({'lr': 0.001}, {'finish.after': '2 epochs', 'validate/next_batch.limit': 5})
    """
    arguments: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    for name, text in pairs(settings, "NAME=VALUE or NODE.PARAM=VALUE").items():
        (parameters if "." in name else arguments)[name] = toml_value(text)
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
        EditError: there is no such node, or a parameter cannot have this value.
    """
    for name, value in parameters.items():
        node, _, parameter = name.rpartition(".")
        graph = graph.set(node, **{parameter: value})
    return graph


# ---- the arguments of a setup


def arguments_of(setup: Callable[..., Any]) -> dict[str, Parameter]:
    """The arguments of a setup, or of a class, that can be set, by their names."""
    hints = hints_of(setup.__init__ if isinstance(setup, type) else setup)  # type: ignore[misc]
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
    for key in values:
        if key == RUN_ARGUMENT or not (key in known or takes_any):
            hint = suggestion(key, known).removesuffix("?") or f"it takes {'others' if known else 'no arguments'}"
            hint = f"{hint}; to set a parameter of a node, write NODE.{key}=VALUE"
            if (kind := find_kind(key)) is not None and (parameter := kind.trigger or next(iter(kind.parameters), "")):
                example = f"{key}.{parameter}={shlex.quote(str(values[key]))}"
                hint = f"`{key}` is a node: NODE.PARAM=VALUE, as in {example}"
            raise UsageError(f"`{key}` is not an argument of {name} that can be set", hint)
    for key, argument in known.items():
        if argument.default is REQUIRED and key not in values:
            raise UsageError(f"{name} needs the argument `{key}`", f"set it with {key}=VALUE")
    return {key: _coerced(known[key], value, name) if key in known else value for key, value in values.items()}


def arguments_in_force(setup: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, str]:
    """All arguments of a call of `setup`, with the defaults, as text that is saved with a run.

    Defaults are converted as arguments of the command line are, and paths become strings. Addresses, which differ
    between processes, are left out.

    Arguments:
        arguments: those of the call, as `setup_arguments` returns them.

    >>> def setup(lr: float = 1, make=len, **rest): ...
    >>> arguments_in_force(setup, {"width": 8})
    {'lr': '1.0', 'make': '<built-in function len>', 'width': '8'}
    """
    values = {}
    for name, argument in arguments_of(setup).items():
        if name not in arguments and argument.default is not REQUIRED:
            values[name] = argument.default
            with suppress(UsageError):
                values[name] = _coerced(argument, argument.default, "setup")
    in_force = {**values, **arguments}.items()
    return {name: _ADDRESS.sub("", repr(str(value) if isinstance(value, Path) else value)) for name, value in in_force}


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


def setup_rows(setup: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """The arguments of a setup for its help: the name with the default, the type with the description.

    >>> def setup(layer: type = dict, *, lr: float):
    ...     '''Make the parts of a run.
    ...
    ...     Arguments:
    ...         lr: learning rate.'''
    >>> list(setup_rows(setup))
    [('layer=dict', 'a class'), ('lr=VALUE', 'a number; learning rate.')]
    """
    descriptions = descriptions_of(setup)
    for name, argument in arguments_of(setup).items():
        default = "VALUE" if argument.default is REQUIRED else getattr(argument.default, "__name__", argument.default)
        named = "a path" if argument.annotation is Path else argument.type_name
        yield f"{name}={default}", "; ".join(filter(None, [named, descriptions.get(name, "")]))
