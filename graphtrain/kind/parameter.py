"""Parameters of a node: values set in the graph, typed by the kind that declares them."""

from __future__ import annotations

import contextlib
import datetime
import inspect
import math
import numbers
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from graphtrain.kind.trigger import Trigger

REQUIRED: Final = inspect.Parameter.empty  # the default of a parameter without one


@dataclass(frozen=True)
class Above:
    """A bound in the type of a parameter: ``Annotated[int, Above(0)]`` takes whole numbers > 0, of at most 64 bits.

    >>> Parameter("every", Annotated[int, Above(0)]).coerce(0)
    Traceback (most recent call last):
        ...
    ValueError: expected an integer > 0, got 0
    """

    bound: float


@dataclass(frozen=True)
class Below:
    """The other bound: ``Annotated[float, Above(0), Below(1)]`` takes numbers > 0 and < 1."""

    bound: float


Metric = Annotated[str, "the name of a metric"]
"""Annotation of the parameter that names a metric: ``monitor: Metric``. A metric that no row has is an error, once
there are rows. A parameter of the type `Mode` then says whether small or large values are good."""


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
            ValueError: it is of another type, or not a number; the message says which was expected.

        >>> Parameter("max_norm", float).coerce(1)
        1.0
        >>> Parameter("max_norm", float).coerce("fast")
        Traceback (most recent call last):
            ...
        ValueError: expected a number, got "fast"
        """
        if isinstance(value, float) and math.isnan(value) and value is not self.default:
            raise _mismatch(value, self.annotation)
        return coerce(value, self.annotation)


def is_trigger(annotation: Any) -> bool:
    """True for `Trigger` and for `Trigger | None`."""
    return Trigger in (annotation, *get_args(annotation))


def type_name(annotation: Any) -> str:
    """A type in words for users.

    >>> type_name(int), type_name(float), type_name(list[str]), type_name(Trigger | None)
    ('an integer', 'a number', 'a list of strings', 'a trigger such as "100 steps"')
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        signs = {Above: ">", Below: "<"}
        bounds = [f"{signs[type(bound)]} {bound.bound:g}" for bound in arguments[1:] if type(bound) in signs]
        return f"{type_name(arguments[0])} {' and '.join(bounds)}".rstrip()
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(map(show_value, arguments))
    if origin in (Union, types.UnionType):
        implied = (type(None), *([int] if float in arguments else []))
        return " or ".join([type_name(member) for member in arguments if member not in implied])
    if (origin is list and arguments) or (origin is tuple and arguments[1:] == (...,)):
        return "a list of " + _PLURALS.get(arguments[0], "values")
    if origin is tuple:
        return f"a list of {len(arguments)}: " + ", ".join(type_name(item) for item in arguments)
    plain = origin or annotation
    return _NAMES.get(plain) or f"a value of type {getattr(plain, '__name__', plain)}"


_NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "a list",
    tuple: "a list",
    dict: "a table",
    type: "a class",
    object: "any value",
    Callable: "a function",
    Mapping: "a mapping",
    Iterable: "a list",
    Sequence: "a list",
    Path: "a path",
    Trigger: 'a trigger such as "100 steps"',
}
_PLURALS: dict[Any, str] = {int: "integers", float: "numbers", str: "strings", bool: "booleans"}


def coerce(value: Any, annotation: Any) -> Any:
    """`value`, checked and converted to the type `annotation`; ValueError if it does not fit."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    plain = PathLike if annotation is Path else origin or annotation
    if plain in (Any, object):
        return value
    if origin is Annotated:
        typed = coerce(value, arguments[0])
        is_above = all(typed > each.bound for each in arguments[1:] if isinstance(each, Above))
        if not is_above or not all(typed < each.bound for each in arguments[1:] if isinstance(each, Below)):
            raise _mismatch(value, annotation)
        if isinstance(typed, int) and typed >= 2**63:  # tensors are divided by such amounts
            raise ValueError(f"expected {type_name(annotation)} of at most 64 bits, got {show_value(value)}")
        return typed
    if origin in (Union, types.UnionType):
        reasons = []
        for member in arguments:
            try:
                return coerce(value, member)
            except ValueError as error:
                reasons += [error] if member is not type(None) else []
        raise reasons[0] if len(reasons) == 1 else _mismatch(value, annotation)
    if origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in arguments):
            return value
        raise _mismatch(value, annotation)
    texts = value if isinstance(value, list) else [value]
    if annotation is Trigger and texts and all(isinstance(text, str) for text in texts):
        return Trigger(value)
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {key: coerce_item(key, item, arguments[1]) for key, item in value.items()}
    if plain in (list, tuple) and isinstance(value, list | tuple):
        is_of_any_length = plain is list or not arguments or arguments[1:] == (...,)
        types_of = (*arguments, Any)[:1] * len(value) if is_of_any_length else arguments
        if len(value) != len(types_of):
            raise _mismatch(value, annotation)
        return plain(coerce(item, item_type) for item, item_type in zip(value, types_of, strict=True))
    if annotation in (int, float):
        number = numbers.Integral if annotation is int else numbers.Real
        with contextlib.suppress(OverflowError):
            if isinstance(value, number) and not isinstance(value, bool):
                return annotation(value)
    elif not isinstance(plain, type) or (isinstance(value, plain) and isinstance(value, bool) == (plain is bool)):
        return value
    raise _mismatch(value, annotation)


def coerce_item(key: str, item: Any, annotation: Any) -> Any:
    """As `coerce`, for an item of a table, whose key the message names."""
    try:
        return coerce(item, annotation)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def plain_value(value: Any) -> Any:
    """A copy of a parameter as TOML has it: a number, a string, a date, a list or a table.

    Raises:
        ValueError: it cannot be written as text.

    >>> plain_value((Trigger("1/2 epochs"), 3, True))
    ['0.5 epochs', 3, True]
    """
    match value:
        case bool() | datetime.date() | datetime.time():
            return value
        case numbers.Integral():
            return int(value)
        case numbers.Real():
            return float(value)
        case str():
            return str.__str__(value)
        case Trigger():
            return value.texts[0] if len(value.texts) == 1 else value.texts
        case list() | tuple():
            return [plain_value(item) for item in value]
        case Mapping() if all(isinstance(key, str) for key in value):
            return {str.__str__(key): plain_value(item) for key, item in value.items()}
    raise ValueError(f"{show_value(value)} cannot be written in a graph")


def _mismatch(value: Any, annotation: Any) -> ValueError:
    return ValueError(f"expected {type_name(annotation)}, got {show_value(value)}")


def show_value(value: Any) -> str:
    """A value as the text of a graph has it, shortened."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        text = "[" + ", ".join(show_value(item) for item in value) + "]"
    else:
        text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


Mode = Literal["min", "max"]

# Words in the names of metrics of which the smallest value is the best, and of those of which the largest is.
_SMALL = frozenset({"loss", "error", "perplexity", "bits"})
_LARGE = frozenset({"acc", "accuracy", "auc", "auroc", "bleu", "dice", "f1", "iou", "map", "reward", "rouge", "score"})


def known_mode(metric: str) -> Mode | None:
    """What the last part of a metric's name says: "min" for a loss, "max" for an accuracy, None for neither.

    >>> known_mode("val/loss"), known_mode("val/top1_error2"), known_mode("loss/f1"), known_mode("val/width")
    ('min', 'min', 'max', None)
    """
    words = {*re.split(r"[^a-z0-9]+", metric.rpartition("/")[2].casefold())}
    words |= {word.strip("0123456789") for word in words}
    return "min" if words & _SMALL else "max" if words & _LARGE else None


Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
