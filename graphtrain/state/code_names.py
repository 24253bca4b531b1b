"""The names that functions use: globals, attributes, imported modules."""

from __future__ import annotations

import dis
import functools
import types
from typing import NamedTuple


class Names(NamedTuple):
    """The names that a code object uses."""

    variables: frozenset[str]  # globals
    attributes: frozenset[str]  # some of which may be those of modules
    imported: frozenset[str]  # modules
    assigned: frozenset[str]  # the globals and attributes that it sets


# Parts of the names of operations, for each field above.
_OPERATIONS = (
    ("_GLOBAL", "LOAD_NAME", "STORE_NAME", "DELETE_NAME"),
    ("_ATTR", "_METHOD", "IMPORT_FROM"),
    ("IMPORT_NAME",),
    ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR"),
)


@functools.cache
def names_in(code: types.CodeType) -> Names:
    """The names that a code object uses, including those in nested functions.

    >>> sorted(names_in(compile("math.pi + f()", "", "eval")).attributes)
    ['pi']
    """
    names_by_field: tuple[set[str], ...] = (set(), set(), set(), set())
    for each in dis.get_instructions(code):
        for names, parts in zip(names_by_field, _OPERATIONS, strict=True):
            for part in parts:
                if part in each.opname:
                    names.add(each.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for names, inner in zip(names_by_field, names_in(constant), strict=True):
                names |= inner
    return Names(*map(frozenset, names_by_field))
