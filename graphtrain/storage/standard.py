"""Immutable types of Python, torch and NumPy: what their values are made of, and by."""

from __future__ import annotations

import datetime
import ipaddress
import pathlib
import re
import uuid
import zoneinfo
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy
import torch


class Standard(NamedTuple):
    """An immutable type of the standard library, or of torch and NumPy: what its values are made of, and by."""

    name: str
    arguments: Callable[[Any], Sequence[Any]]
    make: Callable[..., Any]


def _zone(offset: datetime.timedelta, name: str) -> datetime.timezone:
    zone = datetime.timezone(offset)
    return zone if zone.tzname(None) == name else datetime.timezone(offset, name)


def _dtype_text(dtype: Any) -> str:
    text = numpy.lib.format.dtype_to_descr(dtype)
    if not isinstance(text, str) or numpy.lib.format.descr_to_dtype(text) != dtype or dtype.hasobject:
        raise TypeError(f"{dtype} is a type of NumPy that has no plain name")
    return text


def _plain_dtype(text: str) -> Any:
    dtype = numpy.dtype(text)
    if dtype.hasobject:
        raise ValueError("a type of objects")
    return dtype


_OF_TORCH = {
    str(value): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format)
}
_AS_TEXT: Sequence[type] = (
    Decimal, uuid.UUID, torch.device, pathlib.PosixPath, pathlib.PurePosixPath, pathlib.PureWindowsPath,
    ipaddress.IPv4Address, ipaddress.IPv4Interface, ipaddress.IPv4Network,
    ipaddress.IPv6Address, ipaddress.IPv6Interface, ipaddress.IPv6Network,
)  # fmt: skip
STANDARD: Mapping[type, Standard] = {
    range: Standard("range", lambda value: [value.start, value.stop, value.step], range),
    slice: Standard("slice", lambda value: [value.start, value.stop, value.step], slice),
    type(Ellipsis): Standard("ellipsis", lambda value: [], lambda: Ellipsis),
    complex: Standard("complex", lambda value: [value.real, value.imag], complex),
    Fraction: Standard("Fraction", lambda value: [value.numerator, value.denominator], Fraction),
    datetime.date: Standard("date", lambda value: [value.isoformat()], datetime.date.fromisoformat),
    datetime.timedelta: Standard(
        "timedelta", lambda value: [value.days, value.seconds, value.microseconds], datetime.timedelta
    ),
    datetime.timezone: Standard("timezone", lambda value: [value.utcoffset(None), value.tzname(None)], _zone),
    zoneinfo.ZoneInfo: Standard("ZoneInfo", lambda value: [value.key], zoneinfo.ZoneInfo),
    **{
        kind: Standard(
            kind.__name__,
            lambda value: [value.replace(tzinfo=None).isoformat(), value.fold, value.tzinfo],
            lambda text, fold, zone, read=kind.fromisoformat: read(text).replace(fold=fold, tzinfo=zone),
        )
        for kind in (datetime.datetime, datetime.time)
    },
    **{kind: Standard(kind.__name__, lambda value: [str(value)], kind) for kind in _AS_TEXT},
    numpy.dtype: Standard("numpy.dtype", lambda value: [_dtype_text(value)], _plain_dtype),
    re.Pattern: Standard(
        "Pattern",
        lambda value: [value.pattern, int(value.flags & ~re.DEBUG)],
        lambda pattern, flags: re.compile(pattern, flags & ~re.DEBUG),
    ),
    **{
        kind: Standard(f"torch.{kind.__name__}", lambda value: [str(value)], _OF_TORCH.__getitem__)
        for kind in (torch.dtype, torch.layout, torch.memory_format)
    },
}
BY_NAME = {standard.name: standard for standard in STANDARD.values()}
