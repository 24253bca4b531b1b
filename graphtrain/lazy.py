"""Modules that are imported at their first use: to read, check and draw a graph takes no torch."""

from __future__ import annotations

import importlib
import random
import sys
from types import ModuleType
from typing import Any

from graphtrain.errors import UsageError


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


def imported(name: str) -> Any:
    """A module, which is imported now. Its import leaves `random` as it is: rich draws from it.

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
