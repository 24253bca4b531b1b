"""Importing a user's script under its stem, with its folder on the path, so that loader workers can import it too."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from graphtrain.errors import UsageError
from graphtrain.names import nearest

_IMPORTING: ContextVar[bool] = ContextVar("importing", default=False)
# The graph that a module passed to `main` while it was imported.
_PASSED: WeakKeyDictionary[ModuleType, Any] = WeakKeyDictionary()


def is_importing() -> bool:
    """True while a script is imported by `import_script`, and not run."""
    return _IMPORTING.get()


def note_graph(module: str, graph: Any) -> None:
    """Keep the graph that the module of that name passes to `main` while it is imported."""
    if module in sys.modules:
        _PASSED[sys.modules[module]] = graph


def graph_passed_to_main(module: ModuleType) -> Any:
    """The graph that a module passed to `main` while it was imported; None if it passed none."""
    return _PASSED.get(module)


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
