"""Text that every file can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def utf8(text: str) -> str:
    """`text` with what UTF-8 cannot hold written out: a path or an argument may have any bytes.

    >>> utf8("plain"), utf8(b"\\xff.py".decode(errors="surrogateescape"))
    ('plain', '\\\\udcff.py')
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def all_utf8(value: Any) -> Any:
    """Plain data in which every text went through `utf8`; tuples become lists.

    >>> all_utf8({"a": ("b", 1)})
    {'a': ['b', 1]}
    """
    if isinstance(value, str):
        return utf8(value)
    if isinstance(value, Mapping):
        return {all_utf8(name): all_utf8(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [all_utf8(inner) for inner in value]
    return value
