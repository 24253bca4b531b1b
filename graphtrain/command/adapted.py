"""A script, or a LightningModule in its place, as the words of a command name it."""

from __future__ import annotations

import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from graphtrain.command.cli import options
from graphtrain.command.script import Script, import_script, split_script
from graphtrain.command.settings import setup_arguments
from graphtrain.errors import UsageError
from graphtrain.names import nearest
from graphtrain.trainer.graph import Graph


def adapted(named: str, data: str | None, values: Callable[[], Mapping[str, Any]]) -> Script:
    """The script that the adapter makes of a class.

    Arguments:
        named: ``MODULE:CLASS``, or ``FILE.py:CLASS``, which is imported.
        data: the class of its data, named in the same way. Default: none.
        values: returns the settings of the command line, by which the graph is made.

    Raises:
        UsageError: Lightning is not installed, or there is no such module or class.
    """
    file, made = _class_of(named)
    made_data = _class_of(data)[1] if data is not None else None
    try:
        from graphtrain.adapters.lightning import setup as make  # whose library takes seconds
    except ModuleNotFoundError as error:
        raise UsageError(f"--lightning needs {error.name}", "install it, or the extra `lightning`") from None

    def graph_and_resources(given: Mapping[str, Any]) -> tuple[Graph, dict[str, Any]]:
        classes = [each for each in (made, made_data) if each is not None]
        taken = [{*inspect.signature(each).parameters} - {"args", "kwargs"} for each in classes]
        named_by = zip(classes, taken, strict=True)
        objects = [each(**{name: given[name] for name in names & given.keys()}) for each, names in named_by]
        flags = {name: value for name, value in given.items() if not any(name in names for names in taken)}
        return make(*objects, **flags)

    def setup(**given: Any) -> dict[str, Any]:
        return graph_and_resources(given)[1]

    parameters = {
        name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in (made, made_data)
        if each is not None
        for name, parameter in inspect.signature(each).parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    flags = inspect.Parameter("flags", inspect.Parameter.VAR_KEYWORD)
    setup.__signature__ = inspect.Signature([*parameters.values(), flags])  # type: ignore[attr-defined]
    setup.__annotations__ = {
        key: value for each in (made_data, made) if each is not None for key, value in _hints(each)
    }
    name = named.rpartition(":")[2]
    return Script(
        setup, name, file, ["graphtrain"], [], lambda: graph_and_resources(setup_arguments(setup, values(), name))[0]
    )


def _hints(made: Any) -> Sequence[tuple[str, Any]]:
    hints = typing.get_type_hints(made.__init__ if isinstance(made, type) else made)  # type: ignore[misc]
    return [(name, hints[name]) for name in hints if name != "return"]


def _class_of(named: str) -> tuple[Path | None, Callable[..., Any]]:
    """The file, if it has a name of one, and the class of ``MODULE:CLASS``."""
    place, _, name = named.rpartition(":")
    if not place or not name:
        raise UsageError(f"expected MODULE:CLASS or FILE.py:CLASS, got `{named}`", "as in train.py:Net")
    if place.endswith(".py"):
        file, _ = split_script(place)
        module = import_script(file)
    else:
        file = None
        sys.path.insert(0, str(Path.cwd()))
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{place}.".startswith(f"{error.name}."):
                raise
            raise UsageError(f"there is no module `{place}`", f"a file is named {place}.py:{name}") from None
        finally:
            sys.path.remove(str(Path.cwd()))
    made = getattr(module, name, None)
    if not callable(made):
        close = nearest(name, [each for each, value in vars(module).items() if isinstance(value, type)])
        raise UsageError(f"`{place}` has no class `{name}`", f"did you mean {place}:{close}?" if close else "")
    return file, made


# Those that stand in for a script.
ADAPTER_OPTIONS = ("lightning", "data")
adapter_options = options(
    click.option("--lightning", metavar="MODULE:CLASS", help="A LightningModule in place of a script."),
    click.option("--data", metavar="MODULE:CLASS", help="With --lightning: its LightningDataModule."),
)
script_argument = click.argument("script", default="", metavar="[SCRIPT[:FUNCTION]]")


@dataclass(frozen=True, kw_only=True)
class ScriptOrClass:
    """What the words of a command name: a script, or a class that an adapter trains.

    Attributes:
        script: ``SCRIPT[:FUNCTION]``; empty for a class.
        lightning, data: as of `RunOptions`.
    """

    script: str = ""
    lightning: str | None = None
    data: str | None = None

    @property
    def words(self) -> list[str]:
        """Those by which commands name it.

        >>> ScriptOrClass(lightning="net.py:Net", data="net.py:Data").words
        ['--lightning', 'net.py:Net', '--data', 'net.py:Data']
        """
        named = {name: getattr(self, name) for name in ADAPTER_OPTIONS}
        options = [word for name, value in named.items() if value is not None for word in (f"--{name}", value)]
        return [self.script] if self.script else options

    def program(self, values: Callable[[], Mapping[str, Any]] = dict) -> Script:
        """The script, which is imported, or what the adapter makes of the class.

        Arguments:
            values: returns the settings by which an adapter makes its graph. Default: none.

        Raises:
            UsageError: there is no such script, function or class.
        """
        if self.script:
            return Script.of_script(self.script)
        return replace(adapted(self.lightning or "", self.data, values), source=self.words)

    def imported_again(self) -> Script:
        """The program of a new import of its files, with new global variables."""
        for word in (self.script, self.lightning, self.data):
            file, _ = split_script(word or "")
            if file.suffix == ".py":
                sys.modules.pop(file.stem, None)
        return self.program()


def script_or_class(script: str, settings: Sequence[str], **options: Any) -> tuple[ScriptOrClass, list[str]]:
    """What the words of a command name, and its settings, of which `script` is one if a class is named.

    Raises:
        click.UsageError: neither is named.
    """
    if options["lightning"] is None:
        if not script:
            missing = "Missing argument 'SCRIPT[:FUNCTION]', or --lightning MODULE:CLASS."
            raise click.UsageError(missing, click.get_current_context())
        return ScriptOrClass(script=script), [*settings]
    return ScriptOrClass(**options), [*filter(None, [script]), *settings]
