"""Modules that are imported at their first use, and those that may not be there at all.

To read, check and draw a graph takes the declarations of its kinds, which are their signatures. What kinds work with is
torch and most of the engine, whose import takes ten times as long as everything else that such a command does.
"""

from __future__ import annotations

import importlib
import random
import sys
from types import ModuleType
from typing import Any

from graphtrain.errors import UsageError

# What can be deleted from the package: the modules by which the rest reaches each part. Nothing else imports them.
PARTS = {
    "explain": "graphtrain.proof.tracing",
    "display": "graphtrain.report.display.choose",
    "page": "graphtrain.page.document",
    "panel": "graphtrain.report.display.panel",
    "summary": "graphtrain.report.display.summary",
    "tensorboard": "graphtrain.report.tensorboard",
    "launcher": "graphtrain.ranks.launcher",
    "processes": "graphtrain.ranks.processes",
    "viz": "graphtrain.viz.render",
}


class _Lazy(ModuleType):
    """Stands for a module until it is asked for an attribute; from then on its place is taken by that module."""

    def __init__(self, name: str, owner: dict[str, Any]) -> None:
        super().__init__(name)
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        module = importlib.import_module(self.__name__)
        for alias in [alias for alias, value in self._owner.items() if value is self]:
            self._owner[alias] = module
        return getattr(module, name)


def lazy_import(name: str) -> Any:
    """A module that is imported when it is first asked for an attribute, for a name of the module that calls this.

    For kinds, which are declared without what they work with. The annotations of a kind's signature are looked up when
    it is declared: import a type for them under ``if TYPE_CHECKING``.

    Arguments:
        name: its full name.

    >>> fractions = lazy_import("fractions")
    >>> fractions.Fraction(1, 2) + 1
    Fraction(3, 2)
    """
    return sys.modules.get(name) or _Lazy(name, sys._getframe(1).f_globals)


def installed(name: str) -> Any:
    """A module of the package, or None where it was deleted. Its import, late as it may be, leaves `random` as it is.

    Arguments:
        name: its full name.
    """
    state = random.getstate()  # rich draws from it when it is imported
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # something that it imports
        return None
    finally:
        random.setstate(state)


def imported(name: str) -> Any:
    """A module of a package that need not be installed. Its import leaves `random` as it is.

    Arguments:
        name: its full name, which is what pip calls the package.

    Raises:
        UsageError: it cannot be imported.
    """
    state = random.getstate()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{name} cannot be imported: {error}", f"pip install {name}") from error
    finally:
        random.setstate(state)


def part(name: str) -> Any:
    """A module of `PARTS`.

    Raises:
        UsageError: it was deleted from the package.
    """
    module = installed(PARTS[name])
    if module is None:
        raise UsageError(f"{name} is not installed", f"this copy of graphtrain lacks {PARTS[name]}: install all of it")
    return module
