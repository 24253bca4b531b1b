"""The types that annotations name."""

from __future__ import annotations

import inspect
import sys
import typing
from types import SimpleNamespace
from typing import Any


def hints_of(target: Any) -> dict[str, Any]:
    """The resolved annotations; one that names what cannot be imported here counts as Any, and the others do not."""
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
    # A class made by `exec` may be of no module that is imported; its own methods know where it was written.
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
