"""Modules that are imported at their first use: to read, check and draw a graph takes no torch."""

from __future__ import annotations

import importlib
import random
import sys
from types import ModuleType
from typing import Any

from graphtrain.errors import UsageError


class _Lazy(ModuleType):
    """Imports a module when an attribute is first read, and replaces itself by that module."""

    def __init__(self, name: str, owner: dict[str, Any]) -> None:
        super().__init__(name)
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        module = importlib.import_module(self.__name__)
        for alias in [alias for alias, value in self._owner.items() if value is self]:
            self._owner[alias] = module
        return getattr(module, name)


def lazy_import(name: str) -> Any:
    """A module that is imported when one of its attributes is first read; assign it to a global variable.

    For kinds, which can be declared without the libraries that they use. The annotations of a kind's signature are
    looked up when it is declared: import a type for them under ``if TYPE_CHECKING``.

    Arguments:
        name: its full name.

    >>> fractions = lazy_import("fractions")
    >>> fractions.Fraction(1, 2) + 1
    Fraction(3, 2)
    """
    return sys.modules.get(name) or _Lazy(name, sys._getframe(1).f_globals)


def imported(name: str) -> Any:
    """Import a module now; returns it. The state of `random` stays as it is: the import of rich draws from it.

    Arguments:
        name: its full name; of a package that need not be installed, what pip calls it.

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
