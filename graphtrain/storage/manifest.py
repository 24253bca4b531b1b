"""What a manifest must hold, and what one of an earlier version is taken to hold."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

_HASH = re.compile(r"[0-9a-f]{64}")


def checked(manifest: Any) -> dict[str, Any]:
    """A manifest in which every field that is read anywhere has its type, and those of later versions are filled in.

    Raises:
        ValueError: it is no manifest; the field is named.

    >>> checked({"format": 1, "files": {"../x": [1, ""]}})
    Traceback (most recent call last):
    ValueError: files
    """
    if not _is_table(manifest):
        raise ValueError("it is no table")
    whole: dict[str, Any] = {**_defaults(), **manifest}
    for name, fits in _FIELDS.items():
        if not (fits(whole.get(name)) or (name in _WITHOUT_A_DEFAULT and name not in whole)):
            raise ValueError(name)
    return whole


def _defaults() -> dict[str, Any]:
    return {"origin": {}, "data": {}, "environment": {}, "about": {}, "seconds": {}, "metrics": {}, "run": ""}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_amount(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value) and value >= 0


def _is_table(value: Any, of: Callable[[Any], bool] = lambda inner: True) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) and of(inner) for name, inner in value.items())


def _is_origin(value: Any) -> bool:
    return _is_table(value) and _is_text(value.get("script", "")) and _is_table(value.get("code", {}), _is_text)


def _is_about(value: Any) -> bool:
    return _is_table(value) and _is_table(value.get("arguments", {}))


def _are_files(value: Any) -> bool:
    """Names that stay inside the folder, each with a size and a checksum."""
    return _is_table(value, _is_file) and all(_is_name(name) for name in value)


def _is_name(name: str) -> bool:
    """True for the name of a file; one of a resource, which is not always an identifier."""
    return bool(name) and name.isprintable() and not name.startswith(".") and not {"/", "\\"} & set(name)


def _is_file(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _is_count(value[0]) and _is_hash(value[1])


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "files": _are_files,
    "graph": _is_text,
    "graph_hash": _is_text,
    "position": _is_text,
    "ended": lambda value: isinstance(value, bool),
    "digest": _is_text,
    "step": _is_count,
    "metrics_bytes": _is_count,
    "origin": _is_origin,
    "data": lambda value: _is_table(value, _is_table),
    "environment": _is_table,
    "about": _is_about,
    "seconds": lambda value: _is_table(value, _is_amount),
    "metrics": lambda value: _is_table(value, _is_number),
    "run": _is_text,
    "hyper_parameters": lambda value: _is_table(value, _is_table),
    "hyper_parameters_in_force": lambda value: _is_table(value, _is_table),
}
# Not to know them is something else than that there were none.
_WITHOUT_A_DEFAULT = ("hyper_parameters", "hyper_parameters_in_force")
