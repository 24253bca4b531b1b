"""``NAME=VALUE`` and ``NODE.PARAM=VALUE`` of the command line and of `--config`; values are TOML or else strings."""

from __future__ import annotations

import inspect
import re
import shlex
import tomllib
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import indent
from typing import Any

from graphtrain.command.output import console, escaped, table
from graphtrain.errors import EditError, GraphError, GraphtrainError, UsageError
from graphtrain.graph import Graph
from graphtrain.graph.elements import NESTED, nodes_of
from graphtrain.graph.read_toml import Lines
from graphtrain.graph.registry import kind_of_node
from graphtrain.kind.parameter import REQUIRED, Parameter, plain_value, show_value
from graphtrain.kind.signatures import descriptions_of, hints_of
from graphtrain.names import pasted, suggestion

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


class _SeveralError(UsageError):
    """Errors that are reported at once."""

    def __init__(self, errors: Sequence[GraphtrainError]) -> None:
        self.errors = errors
        super().__init__(f"{len(errors)} settings are wrong:\n" + indent("\n".join(map(str, errors)), "    "))


def together(*calls: Callable[[], Any]) -> list[Any]:
    """What some calls return; if several of them refuse a setting, all that they refuse is reported.

    Raises:
        UsageError, GraphError: what the only one that refuses raises, or all of it.
    """
    returned: list[Any] = []
    errors: list[GraphtrainError] = []
    for call in calls:
        try:
            returned.append(call())
        except _SeveralError as error:
            errors += error.errors
        except (UsageError, GraphError) as error:
            errors.append(error)
    if errors:
        raise errors[0] if len(errors) == 1 else _SeveralError(errors)
    return returned


def with_parameters(graph: Graph, parameters: Mapping[str, Any], in_file: Collection[str] = ()) -> Graph:
    """The graph with parameters set by ``"node.parameter"``.

    Arguments:
        in_file: the names of those that a file sets, for messages. Default: the command line sets all.

    Raises:
        UsageError: there is no such node, or a parameter cannot have this value.
    """

    def set_parameter(name: str, value: Any) -> None:
        nonlocal graph
        node, _, parameter = name.rpartition(".")
        if not node or not parameter:
            raise UsageError(f"`{name}=` is not a parameter", "a parameter of a node is set with NODE.PARAM=VALUE")
        try:
            graph = graph.set(node, **{parameter: value})
        except EditError as error:
            shown = name if name in in_file else f"{name}="
            raise UsageError(f"`{shown}`: {error.message.removeprefix('set: ')}", error.hint) from None

    together(*(partial(set_parameter, name, value) for name, value in parameters.items()))
    return graph


def logged_every(graph: Graph, amount: str | None) -> Graph:
    """The graph with another interval for rows of metrics.

    Arguments:
        amount: such as ``"1 epochs"``; a number alone counts steps. None leaves it.

    Raises:
        UsageError: there is no node of the kind `log`.

    >>> logged_every(Graph.load("fit"), "10").nodes["log"]
    <Node log: every = "10 steps">
    """
    if amount is None:
        return graph
    every = f"{amount} steps" if amount.strip().isdecimal() else amount
    parameters = {f"{path}.every": every for path, node in nodes_of(graph).items() if node.use == "log"}
    if not parameters:
        raise UsageError(f"--log-every: `{graph.title}` has no node of the kind `log`", "insert one")
    return with_parameters(graph, parameters)


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


# ---- all settings of a run


@dataclass(frozen=True)
class Settings:
    """What a run is set up with.

    Attributes:
        arguments: of `setup`.
        parameters: of nodes, by ``"node.parameter"``.
        places: where those are that come from a file: ``"settings.toml:3"``.
    """

    arguments: Mapping[str, Any]
    parameters: Mapping[str, Any]
    places: Mapping[str, str]

    @classmethod
    def of(cls, words: Sequence[str], config: Path | None) -> Settings:
        """The settings of the command line, and those of a file that it does not set.

        Raises:
            UsageError: a word is no setting, or the file cannot be read.
        """
        arguments, parameters = split_settings(words)
        if config is None:
            return cls(arguments, parameters, {})
        lines, table = _read(config)
        of_nodes = {node: inner for node, inner in table.items() if isinstance(inner, dict)}
        keys: dict[str, tuple[str, ...]] = {
            f"{node}.{name}": (node, name) for node, inner in of_nodes.items() for name in inner
        }
        keys |= {name: (name,) for name in table.keys() - of_nodes.keys()}
        return cls(
            {name: value for name, value in table.items() if name not in of_nodes} | arguments,
            {name: of_nodes[key[0]][key[1]] for name, key in keys.items() if len(key) > 1} | parameters,
            {
                name: f"{config}:{lines.of(*key)}"
                for name, key in keys.items()
                if name not in arguments.keys() | parameters.keys()
            },
        )

    @contextmanager
    def named(self) -> Iterator[None]:
        """Add the place in the file to an error about a setting."""
        try:
            yield
        except GraphtrainError as error:
            for name, place in self.places.items():
                if re.search(rf"(?<![\w./]){re.escape(name)}(?![\w/])", error.message):
                    error.add_note(f"{place} sets `{name}`")
            raise


def _read(config: Path) -> tuple[Lines, dict[str, Any]]:
    """A TOML file: the lines of its keys, and its table."""
    try:
        text = config.read_text(encoding="utf-8")
        return Lines(text), tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"--config: `{config}` cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--config: `{config}` is not TOML: {error}", 'text is quoted, as in name = "adam"') from None


# ---- the arguments of a setup


def arguments_of(setup: Callable[..., Any]) -> dict[str, Parameter]:
    """The arguments of a setup that can be set, by their names."""
    hints = hints_of(setup)
    return {
        name: Parameter(
            name, hints.get(name, Any), REQUIRED if argument.default is argument.empty else argument.default
        )
        for name, argument in inspect.signature(setup).parameters.items()
        if argument.kind not in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL) and name != RUN_ARGUMENT
    }


def setup_arguments(
    setup: Callable[..., Any], values: Mapping[str, Any], name: str, in_file: Collection[str] = ()
) -> dict[str, Any]:
    """The arguments for a script's `setup`, checked against its signature.

    Arguments:
        in_file: the names of those that a file sets, for messages. Default: the command line sets all.

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

    def checked(key: str) -> Any:
        if key in known:
            return _coerced(known[key], values[key], name)
        if takes_any:
            return values[key]
        raise _unknown_argument(key, values[key], known, name, is_in_file=key in in_file)

    def require(key: str, argument: Parameter) -> None:
        if argument.default is REQUIRED and key not in values:
            raise UsageError(f"{name} needs the argument `{key}`", f"set it with {key}=VALUE")

    required = [partial(require, key, argument) for key, argument in known.items()]
    arguments = together(*(partial(checked, key) for key in values), *required)
    return dict(zip(values, arguments, strict=False))


def _unknown_argument(key: str, value: Any, known: Collection[str], name: str, *, is_in_file: bool) -> UsageError:
    words = pasted(key, value)
    hint = (suggestion(key, known) or ("it takes others" if known else "it takes none")).removesuffix("?")
    parameter = re.fullmatch(r"([\w/]+)\.(\w+)=(.+)", words)
    if is_in_file and parameter is not None:
        value = show_value(toml_value("".join(shlex.split(parameter[3]))))
        words = f"{parameter[2]} = {value} in the table [{parameter[1]}]"
    to_a_node = f"{key} = VALUE below the line [NODE]" if is_in_file else f"NODE.{key}=VALUE"
    return UsageError(
        f"`{key}` is not an argument of {name}",
        f"write {words}" if words else f"{hint}; to set a parameter of a node, write {to_a_node}",
    )


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
    ...     '''Arguments:
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
