"""Signatures of functions and classes: the types of annotations, and the descriptions in docstrings."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
import typing
from types import SimpleNamespace
from typing import Any


def hints_of(target: Any) -> dict[str, Any]:
    """The resolved annotations; one that cannot be resolved counts as Any, without affecting the others."""
    try:
        return typing.get_type_hints(target, include_extras=True)
    except (NameError, AttributeError, TypeError):
        owners = reversed(target.__mro__) if inspect.isclass(target) else (target,)
        return {
            name: _hint(owner, name, annotation)
            for owner in owners
            for name, annotation in inspect.get_annotations(owner).items()
        }


def _hint(owner: Any, name: str, annotation: Any) -> Any:
    # The module of a class made by `exec` may not be imported; its methods hold the globals of their source.
    functions = [owner]
    if inspect.isclass(owner):
        own = f"{owner.__qualname__}."
        functions = [value for value in vars(owner).values() if getattr(value, "__qualname__", "").startswith(own)]
    spaces = (getattr(function, "__globals__", None) for function in functions)
    space = next(filter(None, spaces), None) or vars(sys.modules.get(owner.__module__, typing))
    annotations = {"__annotations__": {name: annotation}}
    alone = type("_", (), annotations) if inspect.isclass(owner) else SimpleNamespace(**annotations)  # for ClassVar
    try:
        return typing.get_type_hints(alone, globalns=space, include_extras=True)[name]
    except (NameError, AttributeError, TypeError):
        return Any


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
