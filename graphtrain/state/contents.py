"""The contents of an object, by name or in order, and restoring them; the parts of nested containers, by key."""

from __future__ import annotations

import collections
import copy
import enum
import functools
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphtrain.state.category import Category, slots_of

Contents = tuple[tuple[Any, ...], tuple[Any, ...]]
"""The keys, none for a sequence, and the values."""

MOST_COMPARED = 100_000

_MOST_DEPTH = 100
CONSTANTS = frozenset({type(None), bool, int, float, str, bytes})

_OF_FUNCTIONS = ("__defaults__", "__kwdefaults__")
CONTAINERS = (
    collections.OrderedDict, collections.deque, dict, list, tuple, set, frozenset,
    weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet,
)  # fmt: skip


@dataclass(frozen=True)
class Form:
    """The access to the contents of objects of a category.

    Attributes:
        contents: returns the present contents.
        put: sets some keys and removes others; for a sequence, sets everything.
        is_named: True if keys are set one by one, False if all contents are.
    """

    contents: Callable[[Any], Contents]
    put: Callable[[Any, Mapping[Any, Any] | Sequence[Any], Sequence[Any]], None]
    is_named: bool


def _attributes(value: Any) -> Contents:
    attributes = getattr(value, "__dict__", None)
    names, values = (tuple(attributes), tuple(attributes.values())) if attributes is not None else ((), ())
    for name in slots_of(type(value)):
        try:
            values += (object.__getattribute__(value, name),)
            names += (name,)
        except AttributeError:  # not set
            pass
    return names, values


def _put_attributes(value: Any, parts: Any, removed: Sequence[Any]) -> None:
    attributes = getattr(value, "__dict__", None)
    slots = slots_of(type(value))
    for name, part in parts.items():
        if name in slots:
            object.__setattr__(value, name, part)
        elif attributes is None:
            raise AttributeError(f"it has no slot `{name}`")
        else:
            attributes[name] = part
    for name in removed:
        if attributes is not None and name in attributes:
            del attributes[name]
        elif name in slots:
            object.__delattr__(value, name)


@functools.cache
def _base_of(kind: type) -> Any:
    """The container that a class derives from: its methods are called, not overriding ones."""
    return next(base for base in kind.__mro__ if base in CONTAINERS)


def _in_order(value: Any) -> Contents:
    kind: Any = type(value)
    return (), tuple(value if kind in CONTAINERS else _base_of(kind).__iter__(value))


def _put_in_order(value: Any, parts: Any, removed: Sequence[Any]) -> None:
    kind: Any = type(value)
    base = _base_of(kind)
    base.clear(value)
    base.extend(value, parts)


def _put_members(value: Any, parts: Any, removed: Sequence[Any]) -> None:
    """Remove and add only what differs, which keeps the order of the members if it is not that of hashes."""
    kind: Any = type(value)
    members, base = tuple(parts), _base_of(kind)
    base.difference_update(value, set(value).difference(members))
    for member in members:
        base.add(value, member)
    if _in_order(value)[1] != members:
        base.clear(value)
        base.update(value, members)


def _pairs(value: Any) -> Contents:
    kind: Any = type(value)
    if kind in CONTAINERS:
        return tuple(value), tuple(value.values())
    base = _base_of(kind)
    return tuple(base.__iter__(value)), tuple(base.values(value))


def _put_pairs(value: Any, parts: Any, removed: Sequence[Any]) -> None:
    kind: Any = type(value)
    base = _base_of(kind)
    base.clear(value)
    base.update(value, parts)


def _of_cell(value: types.CellType) -> Contents:
    try:
        return (), (value.cell_contents,)
    except ValueError:  # empty
        return (), ()


def _put_in_cell(value: types.CellType, parts: Any, removed: Sequence[Any]) -> None:
    if parts:
        value.cell_contents = parts[0]
    else:
        del value.cell_contents


def _of_function(value: Any) -> Contents:
    return _OF_FUNCTIONS, tuple(getattr(value, name) for name in _OF_FUNCTIONS)


def _of_class(value: type) -> Contents:
    is_enum = isinstance(value, enum.EnumMeta)  # its bookkeeping, such as `_value2member_map_`, belongs to Python
    pairs = [
        (name, part)
        for name, part in vars(value).items()
        if not name.startswith("__") and not (is_enum and name.startswith("_") and name.endswith("_"))
    ]
    return tuple(name for name, _ in pairs), tuple(part for _, part in pairs)


def _put_in_function(value: Any, parts: Any, removed: Sequence[Any]) -> None:
    for name, part in parts.items():
        if name not in _OF_FUNCTIONS:
            raise AttributeError(f"`{name}` of a function is not state")
        setattr(value, name, part)


def _put_in_class(value: type, parts: Any, removed: Sequence[Any]) -> None:
    for name in (*parts, *removed):
        if name.startswith("__"):
            raise AttributeError(f"`{name}` of a class is not state")
    for name, part in parts.items():
        setattr(value, name, part)
    for name in removed:
        delattr(value, name)


def compared_contents(value: Any, category: Category) -> Contents:
    """The contents of an object; of a very large container nothing."""
    form = FORMS[category]
    is_compared = form.is_named or category == "cell" or len(value) <= MOST_COMPARED
    return form.contents(value) if is_compared else ((), ())


_BY_ATTRIBUTES = Form(_attributes, _put_attributes, is_named=True)
_BY_ORDER = Form(_in_order, _put_in_order, is_named=False)

FORMS: Mapping[Category, Form] = {
    "module": _BY_ATTRIBUTES,
    "optimizer": _BY_ATTRIBUTES,
    "object": _BY_ATTRIBUTES,
    "list": _BY_ORDER,
    "deque": _BY_ORDER,
    "tuple": _BY_ORDER,
    "set": Form(_in_order, _put_members, is_named=False),
    "mapping": Form(_pairs, _put_pairs, is_named=False),
    "cell": Form(_of_cell, _put_in_cell, is_named=False),
    "function": Form(_of_function, _put_in_function, is_named=True),
    "class": Form(_of_class, _put_in_class, is_named=True),
}


# ---- nested containers


def replaced(
    value: Any,
    replace: Callable[[Any, tuple[Any, ...]], Any],
    keys: tuple[Any, ...] = (),
    kept: frozenset[type] = CONSTANTS,
) -> Any:
    """A value with parts replaced by those that `replace` returns; the same object if it replaces none.

    Arguments:
        replace: takes a part and the keys that lead to it.
        kept: types of parts for which it is not called.
    """
    kind = type(value)
    if (other := replace(value, keys)) is not value or len(keys) > _MOST_DEPTH:
        return other
    if kind in (dict, collections.OrderedDict, collections.defaultdict):
        others = {
            key: other
            for key, part in value.items()
            if type(part) not in kept and (other := replaced(part, replace, (*keys, key), kept)) is not part
        }
        if others:
            value = copy.copy(value)  # with its attributes, such as those of a module's `state_dict`
            value.update(others)
    elif kind in (list, tuple, collections.deque):
        parts = [
            part if type(part) in kept else replaced(part, replace, (*keys, number), kept)
            for number, part in enumerate(value)
        ]
        if any(part is not before for part, before in zip(parts, value, strict=True)):
            return collections.deque(parts, value.maxlen) if isinstance(value, collections.deque) else kind(parts)
    return value


def at(value: Any, keys: tuple[Any, ...]) -> Any:
    """The part at a place of nested containers; None if there is no such place."""
    for key in keys:
        try:
            value = value.get(key) if isinstance(value, dict) else value[key]  # a `defaultdict` must not grow
        except (LookupError, TypeError):
            return None
    return value
