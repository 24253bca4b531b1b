"""A user's script: its function, and its graph.

It is imported under its stem, with its folder on the path, so that loader workers can import it too. Its graph is its
variable `graph`, else `fit`: the same for ``python train.py`` and for every command that is given ``train.py``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from graphtrain.command.output import notify
from graphtrain.errors import UsageError
from graphtrain.graph.read_toml import read_overlays, sound
from graphtrain.graph.registry import find_graph
from graphtrain.names import nearest, quoted
from graphtrain.storage.named import holds_a_graph, saved_graph
from graphtrain.trainer.graph import Graph

# True while a script is imported by `import_script`, and not run.
IS_IMPORTING: ContextVar[bool] = ContextVar("importing", default=False)


def split_script(script: str) -> tuple[Path, str]:
    """The path and the function of ``SCRIPT[:FUNCTION]``; an empty name where there is none.

    >>> path, function = split_script("src/train.py:other")
    >>> path.as_posix(), function, split_script("train.py")[1]
    ('src/train.py', 'other', '')
    """
    file, _, function_name = script.rpartition(":")
    if not file or Path(script).exists():
        return Path(script), ""
    return Path(file), function_name


def import_script(path: Path) -> ModuleType:
    """The module of a script.

    Raises:
        UsageError: there is no such file, or it cannot be imported under its name.
    """
    if not path.is_file():
        close = nearest(path.name, [file.name for file in path.parent.glob("*.py") if file.is_file()])
        hint = f"did you mean {path.with_name(close)}?" if close else "SCRIPT is the path of a Python file"
        raise UsageError(f"there is no script `{path}`", hint)
    if path.suffix != ".py" or not path.stem.isidentifier():
        hint = "rename the script: letters, digits and underscores, and .py"
        raise UsageError(f"`{path}` cannot be imported: its name is not a module name", hint)
    # A symbolic link is imported under its own name and from its own folder, as `python link.py` does.
    folder_name = str(path.parent.absolute())
    if folder_name not in sys.path:
        sys.path.insert(0, folder_name)
    importlib.invalidate_caches()  # the script may be newer than the cached listing of its folder
    token = IS_IMPORTING.set(True)
    try:
        module = None if path.stem in sys.stdlib_module_names else importlib.import_module(path.stem)
    finally:
        IS_IMPORTING.reset(token)
    if module is None or module.__file__ is None or not path.samefile(module.__file__):
        raise UsageError(f"`{path}` has the name of another module, `{path.stem}`", "rename the script")
    return module


def function_in(module: ModuleType, named: str, name: str) -> Callable[..., Any]:
    """A function or class of a module, by its name; `named` is the module in the message, if there is none."""
    function: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(function):
        defined = [each for each, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        close = nearest(name, defined)
        hint = f"did you mean {named}:{close}?" if close else f"write one, as in def {name}(): ..."
        raise UsageError(f"`{named}` has no function or class `{name}`", hint)
    return function


# ---- the graph


def load_graph(source: str | Path | Graph, *, overlays: Sequence[str] = ()) -> Graph:
    """The graph that a word of the command line names, with overlays; a script is imported for it.

    Raises:
        GraphError: the text is not a graph, or overlays do not fit it.
        UsageError: there is no such graph, overlay or script, or the graph of a script is no graph.
        CheckpointError: the checkpoint is damaged.
    """
    named = named_graph(source)
    graph = named if isinstance(named, Graph) else Graph.load(named)
    return sound(*read_overlays(graph, overlays), f"graph `{graph.name}` with {quoted(overlays)}")


def named_graph(source: str | Path | Graph) -> str | Path | Graph:
    """The graph of a script, which is imported, not run, as the script names it, or of a run; another source as it is.

    Raises:
        UsageError: there is no such script, or its graph is no graph.
    """
    if isinstance(source, Graph) or find_graph(str(source)) is not None:
        return source
    if holds_a_graph(Path(source)):
        return Graph.of(saved_graph(source, notify))
    path, _ = split_script(str(source))
    return graph_of_module(import_script(path)) if path.suffix == ".py" else source


def graph_of_module(module: ModuleType) -> Graph | str | Path:
    """The variable `graph` of a script, else `fit`."""
    graph = getattr(module, "graph", "fit")
    if not isinstance(graph, Graph | str | Path):
        expected = "expected a Graph, the name of a shipped graph, or the path of a TOML file"
        message = f"{Path(module.__file__ or '').name}: `graph` is a {type(graph).__name__}; {expected}"
        raise UsageError(message, "give the value another name")
    return graph


@dataclass(frozen=True)
class Script:
    """A script or program to run.

    Attributes:
        function: the name of the setup.
        file: where it is; None for a program that has no file.
        words: the beginning of the command line, before the words of its user: ``["python", "train.py"]``.
        source: the words that name it for other commands: ``["train.py:setup"]``; none where they cannot.
        own_graph: returns its graph, given the arguments of the setup; used if the command line names none.
    """

    setup: Callable[..., Any]
    function: str
    file: Path | None
    words: Sequence[str]
    source: Sequence[str]
    own_graph: Callable[[Mapping[str, Any]], Graph | str | Path]

    @property
    def name(self) -> str:
        """The setup in messages: ``"train.py:setup"``."""
        return self.function if self.file is None else f"{self.file.name}:{self.function}"

    @classmethod
    def of_script(cls, script: str) -> Script:
        """That of ``SCRIPT[:FUNCTION]``, which is imported."""
        path, name = split_script(script)
        module = import_script(path)
        setup = function_in(module, str(path), name or "setup")
        return cls(setup, name or "setup", path, ["graphtrain"], [script], lambda arguments: graph_of_module(module))
