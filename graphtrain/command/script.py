"""A user's script: its function, and its graph.

It is imported under its stem, with its folder on the path, so that loader workers can import it too. Its graph is its
variable `graph`, else `fit`: the same for ``python train.py`` and for every command that is given ``train.py``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from graphtrain.errors import UsageError
from graphtrain.graph.elements import Problem
from graphtrain.graph.read_toml import read_overlays, sound
from graphtrain.graph.registry import find_graph
from graphtrain.names import nearest, quoted
from graphtrain.storage.named import holds_a_graph
from graphtrain.trainer.graph import Graph

DEFAULT = "fit"
NAME = "graph"

_IMPORTING: ContextVar[bool] = ContextVar("importing", default=False)


def is_importing() -> bool:
    """True while a script is imported by `import_script`, and not run."""
    return _IMPORTING.get()


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
    if path.is_dir():
        raise UsageError(f"`{path}` is a folder", "SCRIPT is the path of a Python file")
    if not path.is_file():
        folder = path.parent if path.parent.is_dir() else Path()
        close = nearest(path.name, [file.name for file in folder.glob("*.py")])
        hint = f"did you mean {folder / close}?" if close else "SCRIPT is the path of a Python file"
        raise UsageError(f"there is no script `{path}`", hint)
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise UsageError(
            f"`{path}` cannot be imported: its name must be letters, digits and underscores, and end in .py",
            "rename the script",
        )
    if path.stem in sys.stdlib_module_names:
        raise UsageError(f"`{path}` has the name of a standard library module, `{path.stem}`", "rename the script")
    # A symbolic link is imported under its own name and from its own folder, as `python link.py` does.
    folder_name = str(path.parent.absolute())
    if folder_name not in sys.path:
        sys.path.insert(0, folder_name)
    importlib.invalidate_caches()  # the script may be newer than the cached listing of its folder
    token = _IMPORTING.set(True)
    try:
        module = importlib.import_module(path.stem)
    finally:
        _IMPORTING.reset(token)
    if module.__file__ is None or not path.samefile(module.__file__):
        other = module.__file__ or "a package without a file"
        raise UsageError(f"`{path}` has the name of another module, `{path.stem}` ({other})", "rename the script")
    return module


def setup_function(script: str) -> tuple[Path, str, Callable[..., Any]]:
    """The path, the name and the function of ``SCRIPT[:FUNCTION]``.

    Raises:
        UsageError: there is no such script or function.
    """
    path, function_name = split_script(script)
    function_name = function_name or "setup"
    module = import_script(path)
    function = getattr(module, function_name, None)
    if not callable(function):
        defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        close = nearest(function_name, defined)
        hint = (
            f"did you mean {path}:{close}?"
            if close
            else f"write a function {function_name}() that returns the resources as a mapping"
        )
        raise UsageError(f"`{path}` has no function `{function_name}`", hint)
    return path, function_name, function


# ---- the graph


def is_script(source: str) -> bool:
    """True for ``SCRIPT`` and ``SCRIPT:FUNCTION``; a shipped graph or a run directory may have any name.

    >>> is_script("train.py"), is_script("train.py:setup"), is_script("fit"), is_script("my_fit.toml")
    (True, True, False, False)
    """
    path = split_script(source)[0]
    return path.suffix == ".py" and find_graph(source) is None and not holds_a_graph(path)


def load_graph(source: str | Path | Graph, *, overlays: Sequence[str] = ()) -> Graph:
    """The graph that a word of the command line names, with overlays; a script is imported for it.

    Arguments:
        overlays: the names or paths of overlays that are added. Default: none.

    Raises:
        GraphError: the text is not a graph, or overlays do not fit it.
        UsageError: there is no such graph, overlay or script; or the graph of a script is known only when it runs.
        CheckpointError: the checkpoint is damaged.
    """
    named = named_graph(source)
    graph = named if isinstance(named, Graph) else Graph.load(named)
    return sound(*with_overlays(graph, overlays), f"graph `{graph.name}` with {quoted(overlays)}")


def with_overlays(graph: Graph, overlays: Sequence[str]) -> tuple[Graph, list[Problem]]:
    """A graph with the overlays of the command line, as far as they fit it.

    Raises:
        UsageError: there is no such overlay, or the graph has it already.
    """
    if not overlays:
        return graph, []
    for number, overlay in enumerate(overlays):
        if overlay in graph.layers.names:
            raise UsageError(
                f"--overlay {overlay}: the graph `{graph.title}` has this overlay already", "leave the option out"
            )
        if overlay in overlays[:number]:
            raise UsageError(f"--overlay {overlay} is given twice", "give it once")
    return read_overlays(graph, overlays)


def named_graph(source: str | Path | Graph) -> str | Path | Graph:
    """The graph of a script, as the script names it; any other source as it is.

    Raises:
        UsageError: there is no such script, or its graph is no graph.
    """
    return script_graph(source) if isinstance(source, str) and is_script(source) else source


def script_graph(script: str) -> Graph | str | Path:
    """The graph of ``SCRIPT[:FUNCTION]``, which is imported, not run.

    Raises:
        UsageError: there is no such script, its graph is known only when it runs, or it is no graph.
    """
    path, _ = split_script(script)
    module = import_script(path)
    return graph_of_module(module, str(path))


def graph_of_module(module: ModuleType, script: str) -> Graph | str | Path:
    """The variable `graph` of a script, else `fit`.

    Raises:
        UsageError: it is no graph.
    """
    graph = getattr(module, NAME, DEFAULT)
    if not isinstance(graph, Graph | str | Path):
        raise UsageError(
            f"{script}: `{NAME}` is a {type(graph).__name__}; expected a Graph, the name of a shipped graph, or the "
            "path of a TOML file",
            "give the value another name",
        )
    return graph


@dataclass(frozen=True)
class Script:
    """A script or program to run.

    Attributes:
        function: the name of the setup.
        file: where it is; None for a program that has no file.
        words: the beginning of the command line, before the words of its user: ``["python", "train.py"]``.
        source: the words that name it for other commands: ``["train.py:setup"]``; none where they cannot.
        own_graph: returns its graph, which is used if the command line names none.
    """

    setup: Callable[..., Any]
    function: str
    file: Path | None
    words: Sequence[str]
    source: Sequence[str]
    own_graph: Callable[[], Graph | str | Path]

    @property
    def name(self) -> str:
        """The setup in messages: ``"train.py:setup"``."""
        return self.function if self.file is None else f"{self.file.name}:{self.function}"

    @classmethod
    def of_script(cls, script: str) -> Script:
        """That of ``SCRIPT[:FUNCTION]``, which is imported.

        Raises:
            UsageError: there is no such script or function.
        """
        path, name, setup = setup_function(script)
        return cls(setup, name, path, ["graphtrain"], [script], lambda: script_graph(script))
