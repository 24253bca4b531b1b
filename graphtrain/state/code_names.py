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


# Parts of the names of operations, for each field above.
_OPERATIONS = (
    ("_GLOBAL", "LOAD_NAME", "STORE_NAME", "DELETE_NAME"),
    ("_ATTR", "_METHOD", "IMPORT_FROM"),
    ("IMPORT_NAME",),
)


@functools.cache
def names_in(code: types.CodeType) -> Names:
    """The names that a code object uses, including those in nested functions.

    >>> sorted(names_in(compile("math.pi + f()", "", "eval")).attributes)
    ['pi']
    """
    used = [(each.opname, each.argval) for each in dis.get_instructions(code)]
    inner = [names_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    names = ({name for operation, name in used if any(part in operation for part in parts)} for parts in _OPERATIONS)
    return Names(*(frozenset(own).union(*others) for own, *others in zip(names, *inner, strict=True)))
