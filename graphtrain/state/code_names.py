"""The names in code."""

from __future__ import annotations

import dis
import functools
import types
from typing import NamedTuple


class Names(NamedTuple):
    """The names in code."""

    variables: frozenset[str]  # globals
    attributes: frozenset[str]  # some of which may be those of modules
    imported: frozenset[str]  # modules
    assigned_variables: frozenset[str]  # the globals that it sets


@functools.cache
def names_in(code: types.CodeType) -> Names:
    """The names in code, including those in nested functions.

    >>> sorted(names_in(compile("math.pi + f()", "", "eval")).attributes)
    ['pi']
    """
    pairs = [(instruction.opname, instruction.argval) for instruction in dis.get_instructions(code)]

    def named(*operations: str) -> set[str]:
        return {name for operation, name in pairs if any(part in operation for part in operations)}

    own = (
        named("_GLOBAL", "LOAD_NAME", "STORE_NAME", "DELETE_NAME"),
        named("_ATTR", "_METHOD", "IMPORT_FROM"),
        named("IMPORT_NAME"),
        named("STORE_GLOBAL", "DELETE_GLOBAL"),
    )
    inner = [names_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return Names(*(frozenset(names).union(*further) for names, *further in zip(own, *inner, strict=True)))
