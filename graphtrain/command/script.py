"""Importing a user's script: under its stem, with its folder on the path, so that loader workers can import it too."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from graphtrain.errors import UsageError
from graphtrain.names import nearest


def import_script(path: Path) -> ModuleType:
    """The module of a script.

    Raises:
        UsageError: there is no such file, or it cannot be imported under its name.
    """
    if not path.is_file():
        folder = path.parent if path.parent.is_dir() else Path()
        close = nearest(path.name, [one.name for one in folder.glob("*.py")])
        hint = f"did you mean {folder / close}?" if close else "SCRIPT is the path of a Python file"
        raise UsageError(f"there is no script `{path}`", hint)
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise UsageError(f"`{path}` cannot be imported: its name must be an identifier and end in .py")
    folder_name = str(path.resolve().parent)
    if folder_name not in sys.path:
        sys.path.insert(0, folder_name)
    module = importlib.import_module(path.stem)
    if Path(module.__file__ or "").resolve() != path.resolve():
        raise UsageError(f"`{path}` has the name of another module, `{path.stem}`", "rename the script")
    return module


def setup_function(script: str) -> tuple[Path, str, Callable[..., Any]]:
    """The path, the name and the function of ``SCRIPT[:FUNCTION]``.

    Raises:
        UsageError: there is no such script or function.
    """
    file, _, function_name = script.rpartition(":")
    if not file or Path(script).exists():
        file, function_name = script, ""
    path, function_name = Path(file), function_name or "setup"
    module = import_script(path)
    function = getattr(module, function_name, None)
    if not callable(function):
        close = nearest(function_name, [name for name, value in vars(module).items() if callable(value)])
        hint = (
            f"did you mean {path}:{close}?"
            if close
            else "write a function setup() that returns the resources as a mapping"
        )
        raise UsageError(f"`{path}` has no function `{function_name}`", hint)
    return path, function_name, function


def resources_of(setup: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What `setup` returns.

    Raises:
        UsageError: it is no mapping from names to resources.
    """
    resources = setup(**arguments)
    if not isinstance(resources, Mapping) or not all(isinstance(key, str) for key in resources):
        raise UsageError(
            f"`{name}` must return a mapping of resources, it returned a {type(resources).__name__}",
            'as in `return {"model": model, "optimizer": optimizer, "train_data": train_data}`',
        )
    return dict(resources)
