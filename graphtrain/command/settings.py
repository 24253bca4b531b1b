"""``NAME=VALUE`` and ``NODE.PARAM=VALUE`` from the command line: values are TOML, else strings."""

from __future__ import annotations

import inspect
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from graphtrain.errors import EditError, UsageError
from graphtrain.graph import Graph
from graphtrain.kind.hints import hints_of
from graphtrain.kind.parameter import Parameter
from graphtrain.names import suggestion


def split_settings(settings: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of `setup` and the parameters of nodes.

    Raises:
        UsageError: a setting has no ``=``, or comes twice.

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
                "no spaces around =; an option begins with --",
            )
        target = parameters if "." in name else arguments
        if name in target:
            raise UsageError(f"`{name}` is set twice")
        target[name] = toml_value(text)
    return arguments, parameters


def toml_value(text: str) -> Any:
    """A value of TOML, or the text itself where it is none.

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
        UsageError: there is no such node, or the value cannot be one of a parameter.
    """
    for name, value in parameters.items():
        node, _, parameter = name.rpartition(".")
        if not node or not parameter:
            raise UsageError(f"`{name}=` names no parameter", "a parameter of a node is set as NODE.PARAM=VALUE")
        try:
            graph = graph.set(node, **{parameter: value})
        except EditError as error:
            raise UsageError(f"`{name}=`: {error.message.removeprefix('set: ')}", error.hint) from None
    return graph


def renamings(texts: Iterable[str]) -> dict[str, str]:
    """Former paths of nodes and their paths now, from ``OLD=NEW``.

    Raises:
        UsageError: a text is none, or names a node twice.

    >>> renamings(["accumulate=gather", "validate/next_batch=validate/fetch"])
    {'accumulate': 'gather', 'validate/next_batch': 'validate/fetch'}
    """
    found: dict[str, str] = {}
    for text in texts:
        old, equals, new = (one.strip() for one in text.partition("="))
        if not (old and equals and new):
            raise UsageError(f"--rename: expected OLD=NEW, got `{text}`", "as in --rename accumulate=gather")
        if old in found:
            raise UsageError(f"--rename: `{old}` is renamed twice")
        found[old] = new
    return found


def setup_arguments(setup: Callable[..., Any], given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The arguments for a script's `setup`, checked against its signature.

    Raises:
        UsageError: one is unknown, missing, or of another type.
    """
    parameters = inspect.signature(setup).parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    named = {key: one for key, one in parameters.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)}
    hints = hints_of(setup)
    checked = {}
    for key, value in given.items():
        if key not in named:
            if takes_any:
                checked[key] = value
                continue
            hint = suggestion(key, named) or ("it takes others" if named else "it takes none")
            raise UsageError(
                f"`{key}` is no argument of {name}",
                f"{hint.removesuffix('?')}; or, for a parameter of a node, write NODE.{key}=VALUE",
            )
        checked[key] = _argument(Parameter(key, hints.get(key, Any)), value, name)
    for key, one in named.items():
        if one.default is one.empty and key not in checked:
            raise UsageError(f"{name} needs the argument `{key}`", f"give it as {key}=VALUE")
    return checked


def _argument(declared: Parameter, value: Any, name: str) -> Any:
    wanted = typing.get_args(declared.annotation) or (declared.annotation,)
    if isinstance(value, str) and Path in wanted and str not in wanted:
        return Path(value)
    try:
        return declared.coerce(value)
    except ValueError as error:
        hint = ""
        if str in wanted:  # `tag=001` is text, `tag=3` a number
            hint = f"quote text that looks like another value, also from the shell: {declared.name}='\"...\"'"
        raise UsageError(f"{name}: {declared.name}: {error}", hint) from None
