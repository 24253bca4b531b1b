"""A script, or a LightningModule in its place, as the words of a command name it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from graphtrain.command.cli import options
from graphtrain.command.script import Script, function_in, import_script, split_script
from graphtrain.command.settings import arguments_of, setup_arguments
from graphtrain.errors import UsageError
from graphtrain.lazy import imported
from graphtrain.trainer.graph import Graph

adapter_options = options(
    click.option("--lightning", metavar="MODULE:CLASS", help="A LightningModule in place of a script."),
    click.option("--data", metavar="MODULE:CLASS", help="With --lightning: its LightningDataModule."),
)
script_argument = click.argument("script", default="", metavar="[SCRIPT[:FUNCTION]]")


@dataclass(frozen=True, kw_only=True)
class ScriptOrClass:
    """What the words of a command name: a script, or the class that is given as ``--lightning``, with ``--data``."""

    script: str = ""
    lightning: str | None = None
    data: str | None = None

    @property
    def words(self) -> list[str]:
        """Those by which commands name it: ``["--lightning", "net.py:Net"]``."""
        options = {"--lightning": self.lightning, "--data": self.data}.items()
        return [self.script] if self.script else [word for name, value in options if value for word in (name, value)]

    def program(self) -> Script:
        """The script, which is imported, or what the adapter makes of the class."""
        return Script.of_script(self.script) if self.script else self._adapted()

    def reimported(self) -> Script:
        """The program of a new import of its files, with new global variables."""
        for word in (self.script, self.lightning, self.data):
            file, _ = split_script(word or "")
            if file.suffix == ".py":
                sys.modules.pop(file.stem, None)
        return self.program()

    def _adapted(self) -> Script:
        classes = [_class_of(named) for named in (self.lightning, self.data) if named is not None]
        try:
            from graphtrain.adapters.lightning import setup as adapt  # whose library takes seconds
        except ModuleNotFoundError as error:
            raise UsageError(f"--lightning needs {error.name}", "install it, or the extra `lightning`") from None

        def adapted(arguments: Mapping[str, Any]) -> tuple[Graph, dict[str, Any]]:
            flags, objects = dict(arguments), []
            for each in classes:
                values = {name: arguments[name] for name in arguments_of(each) if name in arguments}
                objects.append(each(**setup_arguments(each, values, each.__name__)))
                flags = {name: value for name, value in flags.items() if name not in values}
            return adapt(*objects, **flags)

        def setup(**arguments: Any) -> dict[str, Any]:
            return adapted(arguments)[1]

        file = split_script(str(self.lightning))[0] if ".py:" in str(self.lightning) else None
        function = classes[0].__name__
        return Script(setup, function, file, ["graphtrain"], self.words, lambda arguments: adapted(arguments)[0])


def _class_of(named: str) -> Callable[..., Any]:
    """The class of ``MODULE:CLASS`` or ``FILE.py:CLASS``."""
    place, _, name = named.rpartition(":")
    if not place:
        raise UsageError(f"expected MODULE:CLASS or FILE.py:CLASS, got `{named}`", "as in train.py:Net")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return function_in(import_script(Path(place)) if place.endswith(".py") else imported(place), place, name)


def script_or_class(
    script: str, settings: Sequence[str], lightning: str | None, data: str | None
) -> tuple[ScriptOrClass, list[str]]:
    """What the words of a command name, and its settings, of which `script` is one if a class is named."""
    if lightning is not None:
        return ScriptOrClass(lightning=lightning, data=data), [*filter(None, [script]), *settings]
    if not script:
        missing = "Missing argument 'SCRIPT[:FUNCTION]', or --lightning MODULE:CLASS."
        raise click.UsageError(missing, click.get_current_context())
    return ScriptOrClass(script=script), [*settings]
