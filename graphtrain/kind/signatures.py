"""Signatures of functions and classes: annotations, by which calls are checked, and descriptions in docstrings."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from graphtrain.errors import GraphtrainError, UsageError
from graphtrain.kind.parameter import coerce_item
from graphtrain.names import suggestion

Called = TypeVar("Called", bound=Callable[..., Any])


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


def checked_call(*unchecked: str, error: type[GraphtrainError] = UsageError) -> Callable[[Called], Called]:
    """A decorator of a public function: an argument that its signature does not take is an `error` that names it.

    Arguments:
        unchecked: the arguments of which the types are checked elsewhere.
    """

    def decorated(function: Called) -> Called:
        signature, name = inspect.signature(function), function.__qualname__.removesuffix(".__init__").split(".")[-1]
        known = [key for key in signature.parameters if key != "self"]

        @functools.wraps(function)
        def call(*args: Any, **arguments: Any) -> Any:
            try:
                bound = signature.bind(*args, **arguments).arguments
            except TypeError as problem:
                unknown = next((key for key in arguments if key not in known), None)
                meant = suggestion(unknown, known) if unknown is not None else "known"
                hint = f"it takes {', '.join(known)}" if meant.startswith("known") else meant
                raise error(f"{name}: {problem}", hint) from None
            try:
                for key in bound.keys() & hints_of(function).keys() - {*unchecked}:
                    passing, value = signature.parameters[key].kind, bound[key]
                    values = value if passing is passing.VAR_POSITIONAL else [value]
                    for each in value.values() if passing is passing.VAR_KEYWORD else values:
                        coerce_item(key.rstrip("_"), each, hints_of(function)[key])
            except ValueError as problem:
                raise error(f"{name}: {problem}") from None
            return function(*args, **arguments)

        return call  # type: ignore[return-value]

    return decorated


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
