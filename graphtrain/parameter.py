"""Parameters of a node: values set in the graph, typed by the kind that declares them."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any, Final, Literal, Union, get_args, get_origin

from graphtrain.trigger import Trigger


class _Required:
    """Stands for a default that does not exist."""

    def __repr__(self) -> str:
        return "required"


REQUIRED: Final = _Required()


@dataclass(frozen=True)
class Parameter:
    """A declared parameter: its name, its type, and its default (or `REQUIRED`)."""

    name: str
    annotation: Any
    default: Any = REQUIRED

    @property
    def type_name(self) -> str:
        return type_name(self.annotation)

    def coerce(self, value: Any) -> Any:
        """`value` as this parameter's type.

        Raises:
            ValueError: it is of another type; the message says which was expected.

        >>> Parameter("max_norm", float).coerce(1)
        1.0
        >>> Parameter("max_norm", float).coerce("fast")
        Traceback (most recent call last):
            ...
        ValueError: expected a number, got "fast"
        """
        return coerce(value, self.annotation)


def is_trigger(annotation: Any) -> bool:
    """True for `Trigger` and for `Trigger | None`."""
    return Trigger in (annotation, *get_args(annotation))


def type_name(annotation: Any) -> str:
    """A type as the user reads it.

    >>> type_name(int), type_name(float), type_name(list[str]), type_name(Trigger | None)
    ('an integer', 'a number', 'a list of strings', 'a trigger such as "100 steps"')
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(show_value(one) for one in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(type_name(one) for one in arguments if one is not type(None))
    if origin is list and arguments:
        return "a list of " + _PLURALS.get(arguments[0], "values")
    return _NAMES.get(origin or annotation, "a value")


_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "a table",
    Trigger: 'a trigger such as "100 steps"',
}
_PLURALS: dict[Any, str] = {int: "integers", float: "numbers", str: "strings", bool: "booleans"}


def coerce(value: Any, annotation: Any) -> Any:
    """`value`, checked and converted to the type `annotation`; ValueError if it does not fit."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return value
    if annotation is Trigger:
        if isinstance(value, Trigger):
            return value
        if isinstance(value, str) or (isinstance(value, list) and value and all(isinstance(v, str) for v in value)):
            return Trigger(value)
        raise _mismatch(value, annotation)
    if origin in (Union, types.UnionType):
        return _coerce_union(value, annotation, arguments)
    if origin is Literal:
        if any(value == one and type(value) is type(one) for one in arguments):
            return value
        raise _mismatch(value, annotation)
    if origin is list and isinstance(value, list | tuple):
        return [coerce(one, arguments[0]) for one in value]
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = origin or annotation
    if not isinstance(plain, type) or (isinstance(value, plain) and isinstance(value, bool) == (plain is bool)):
        return value
    if plain in (Any, object):
        return value
    raise _mismatch(value, annotation)


def _coerce_union(value: Any, annotation: Any, arguments: tuple[Any, ...]) -> Any:
    if value is None and type(None) in arguments:
        return None
    reasons = []
    for one in arguments:
        if one is type(None):
            continue
        try:
            return coerce(value, one)
        except ValueError as error:
            reasons.append(error)
    raise reasons[0] if len(reasons) == 1 else _mismatch(value, annotation)


def _mismatch(value: Any, annotation: Any) -> ValueError:
    return ValueError(f"expected {type_name(annotation)}, got {show_value(value)}")


def show_value(value: Any) -> str:
    """A value as it stands in the text of a graph, shortened."""
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."



