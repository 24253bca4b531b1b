"""Modules of the user's own that are imported for the first time during a run: their variables were not listed."""

from __future__ import annotations

import sys
import types
from collections.abc import Collection

from graphtrain.state.category import category_of, is_constant, is_users
from graphtrain.state.reachable import names_in

_MOST_NAMED = 3


def lines_about_modules(known: Collection[str]) -> list[str]:
    """A line for each module with variables.

    Arguments:
        known: the names of the modules that had been imported when the run began.
    """
    lines = []
    for name in sorted(sys.modules.keys() - known):
        # What a compiler writes, as into a module of torch, is in files of its own.
        if not (is_users(name) and is_users(name.partition(".")[0])):
            continue
        module = sys.modules[name]
        if isinstance(module, types.ModuleType) and (variables := variables_of(module)):
            shown = ", ".join([*variables[:_MOST_NAMED], *(["..."] if len(variables) > _MOST_NAMED else [])])
            what = f"so its variables ({shown}) are not saved: import it before the run begins"
            lines.append(f"the module {name} was imported during the run, {what}")
    return lines


def variables_of(module: types.ModuleType) -> list[str]:
    """The globals of a module that can change: those that its functions assign, and containers and objects.

    >>> module = types.ModuleType("example")
    >>> vars(module).update(RATE=0.1, NAMES=("a", "b"), SEEN=[])
    >>> variables_of(module)
    ['SEEN']
    """
    assigned: set[str] = set()
    for part in list(vars(module).values()):
        if getattr(part, "__module__", None) == module.__name__:
            assigned |= _assigned_by(part)
    return sorted(
        name
        for name, part in vars(module).items()
        if not name.startswith("__") and (name in assigned or not (is_constant(part) or _is_code(part)))
    )


def _assigned_by(part: object) -> frozenset[str]:
    """The globals that a function, or the functions of a class, assign."""
    part = getattr(part, "__func__", part)
    if isinstance(part, types.FunctionType):
        return names_in(part.__code__).assigned_variables
    functions = vars(part).values() if isinstance(part, type) else ()
    return frozenset[str]().union(*(_assigned_by(each) for each in functions if not isinstance(each, type)))


def _is_code(part: object) -> bool:
    """True for functions, and for what a library has made, such as annotations: it is looked into nowhere."""
    return category_of(type(part)) in ("function", "opaque")
