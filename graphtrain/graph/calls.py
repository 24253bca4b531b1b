"""Calls of public functions, whose arguments are checked by their annotations."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from graphtrain.errors import GraphtrainError, UsageError
from graphtrain.kind.parameter import coerce_item
from graphtrain.kind.signatures import hints_of
from graphtrain.names import suggestion

Called = TypeVar("Called", bound=Callable[..., Any])


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
