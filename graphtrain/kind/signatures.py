"""Signatures of functions and classes: the types of annotations, and the descriptions in docstrings."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import textwrap
import typing
from typing import Any


@functools.cache  # 0.2 ms
def hints_of(target: Any) -> dict[str, Any]:
    """The resolved annotations; one that cannot be resolved counts as Any, without affecting the others."""
    with contextlib.suppress(NameError, AttributeError, TypeError):
        return typing.get_type_hints(target, include_extras=True)
    hints: dict[str, Any] = {}
    for owner in reversed(target.__mro__) if inspect.isclass(target) else (target,):
        # The module of a class made by `exec` may not be imported; its methods hold the globals of their source.
        spaces = (getattr(function, "__globals__", None) for function in (owner, *vars(owner).values()))
        space = next(filter(None, spaces), None) or vars(sys.modules.get(owner.__module__, typing))
        for name, annotation in inspect.get_annotations(owner).items():
            alone = type("_", (), {"__annotations__": {name: annotation}})  # a class may have a ClassVar
            hints[name] = Any
            with contextlib.suppress(NameError, AttributeError, TypeError):
                hints[name] = typing.get_type_hints(alone, globalns=space, include_extras=True)[name]
    return hints


_SECTION = re.compile(r"^(?:Arguments|Args|Parameters):[ ]*\n((?:(?:[ ].*)?\n)+)", re.MULTILINE)


def descriptions_of(documented: Any) -> dict[str, str]:
    """The first sentence of the description of each argument in the docstring of a function or a class."""
    section = _SECTION.search(f"{inspect.getdoc(documented) or ''}\n")
    descriptions: dict[str, str] = {}
    for described in re.split(r"\n(?=\S)", textwrap.dedent(section[1]).strip() if section is not None else ""):
        names, colon, text = described.partition(":")
        sentence = re.split(r"(?<=\.)\s", " ".join(text.split()))[0]
        descriptions |= {name.partition("(")[0].strip(): sentence for name in names.split(",") if colon}
    return descriptions
