"""Hashes and equality of values of any type: equal values have equal hashes in every process."""

from __future__ import annotations

import contextlib
import enum
import itertools
import operator
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import msgpack
import numpy
import torch
import xxhash

from graphtrain.state.classes import CONSTANTS, IN_CONTAINERS, RULES, WATCHED, WRAPPERS, category_of, is_constant
from graphtrain.state.generators import generator_of
from graphtrain.storage.strides import flat_bytes

MOST_BYTES = 2**30
MOST_ITEMS = 1_000_000
_SAMPLES = 1_024

# How many items are hashed at once: other threads wait for the interpreter meanwhile.
_MOST_AT_ONCE = 4_096
_ITEMS_BETWEEN_PAUSES = 64


def _plain(value: Any) -> list[Any]:
    """A value that msgpack cannot encode; integers beyond 64 bits as hexadecimal, which has no limit of digits."""
    return [tuple.__name__, *value] if type(value) is tuple else [hex(value) if isinstance(value, int) else repr(value)]


@final
class ContentHash:
    """A hash of the contents of values, nested to any depth.

    Functions and classes are hashed by name, with closures; locks, files, iterators and hidden state by type. Once the
    limits are reached, a tensor is hashed by 1,024 of its elements, and a container by its length.

    Arguments:
        place_of: returns the path of an object that is compared separately, which is hashed instead; None for others.
        most_bytes: the limit for all tensors and arrays together. Default: 1 GiB.

    Attributes:
        hexdigest: returns the hash of what was added so far.
        is_whole: False once a limit was reached, or an iterator was added.

    >>> def hashed(value):
    ...     content = ContentHash(); content.add(value); return content.hexdigest()
    >>> hashed({"a": [1, {2, 3}]}) == hashed({"a": [1, {3, 2}]}), hashed([0.0]) == hashed([-0.0])
    (True, False)
    """

    def __init__(
        self,
        place_of: Callable[[Any], str | None] = lambda value: None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._place_of = place_of
        self._most_bytes = most_bytes
        self._hash = xxhash.xxh3_128()
        self.hexdigest = self._hash.hexdigest
        self._seen: dict[int, tuple[int, Any]] = {}  # with the objects: an `id` may be reused
        self._waiting: list[Any] = []
        self._items = self._bytes = 0
        self.is_whole = True

    def add(self, value: Any, place: str = "") -> None:
        """Add a value; one that `place_of` knows is added by its contents if `place` is given."""
        if place:
            self._text(place)
            self._add_content(value)
        else:
            self._waiting.append(value)
        while self._waiting:
            self._items += 1
            # Other threads run meanwhile: one that needs the interpreter would wait 5 ms for each operation.
            if not self._items % _ITEMS_BETWEEN_PAUSES:
                time.sleep(0)
            part = self._waiting.pop()
            if type(part) in CONSTANTS:
                self._text(part)
            elif (known := self._place_of(part)) is not None:
                self._text("at", known)
            else:
                self._add_content(part)

    def _text(self, *parts: Any) -> None:
        self._hash.update(msgpack.packb([*parts], default=_plain, strict_types=True, unicode_errors="surrogatepass"))

    def _add_content(self, value: Any) -> None:
        while type(value) in WRAPPERS:  # such as a method of a random generator
            self._text(getattr(value, "__qualname__", ""))
            value = getattr(value, WRAPPERS[type(value)])
        cls, category = type(value), category_of(type(value))
        if category == "value":
            plain = value.tobytes() if isinstance(value, numpy.generic) else value
            self._text(cls.__qualname__, value.name if isinstance(value, enum.Enum) else plain)
            return
        if (first_seen := self._seen.get(id(value))) is not None:
            self._text("same", first_seen[0])
            return
        self._seen[id(value)] = len(self._seen), value
        self._text(cls.__module__, cls.__qualname__)
        match category:
            case "tensor":
                self._add_tensor(value)
            case "array":
                self._add_array(value)
            case "generator":
                self._waiting.append(generator_of(value).get_state())
            case "watched":
                shown = next((shown for base, shown in WATCHED.items() if isinstance(value, base)), _of_a_frame)
                with contextlib.suppress(sqlite3.Error):  # it is closed, or belongs to another thread
                    self._waiting.append(shown(value))
            case "set":  # it has no order
                members = RULES[category].contents(value)[1]
                plain = (item if is_constant(item) else type(item).__qualname__ for item in members)
                self._text(len(members), *sorted(map(content_hash, plain)))
            case _ if category not in RULES or category in ("function", "class"):
                self._text(getattr(value, "__qualname__", ""))
                self.is_whole &= category != "iterator"
                self._waiting += (category == "function" and value.__closure__) or ()
            case _:
                keys, parts = RULES[category].contents(value)
                if RULES[category].is_named:  # nor have names
                    keys, parts = (), tuple(sorted(zip(keys, parts, strict=True), key=lambda pair: str(pair[0])))
                self._add_parts(keys)
                self._add_parts(parts)

    def _add_parts(self, parts: tuple[Any, ...]) -> None:
        self._text(len(parts))
        if self._items + len(parts) > MOST_ITEMS:
            self.is_whole = False
            return
        for start in range(0, len(parts), _MOST_AT_ONCE):
            several = parts[start : start + _MOST_AT_ONCE]
            if _is_plain(several) and not any(map(self._place_of, several)):
                self._items += len(several)
                self._text(several)
            else:
                self._waiting += reversed(several)

    def _step(self, size: int, count: int) -> int:
        """The distance between the hashed elements of a tensor or array of this many bytes and elements."""
        self._bytes += size
        is_within = self._bytes <= self._most_bytes
        self.is_whole &= is_within
        return 1 if is_within else max(1, count // _SAMPLES)

    def _add_tensor(self, tensor: torch.Tensor) -> None:
        if torch.nn.parameter.is_lazy(tensor) or tensor.is_meta:
            return
        self._text(str(tensor.dtype), str(tensor.layout), [*tensor.shape] if not tensor.is_nested else [])
        for part in _strided_parts(tensor.detach()):
            count = part.numel()
            if (step := self._step(count * part.element_size(), count)) > 1:
                part = torch.take(part, torch.arange(0, count, step, device=part.device))
            if count:
                self._hash.update(flat_bytes(part.resolve_conj().resolve_neg().cpu()).numpy().data)

    def _add_array(self, array: Any) -> None:
        self._text(str(array.dtype), array.shape)
        if array.dtype.hasobject:
            self._add_parts(tuple(array.reshape(-1).tolist()) if array.dtype == object else (repr(array),))
        elif array.size:
            if (step := self._step(array.nbytes, array.size)) > 1:
                array = array.flat[::step]
            self._hash.update(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8).data)


def _of_a_frame(value: Any) -> list[Any]:
    """The names of a frame or a series of pandas, and the arrays of its columns, without copies."""
    columns = (value if value.ndim > 1 else value.to_frame()).items()
    return [value.index.to_numpy(copy=False), *((str(name), each.to_numpy(copy=False)) for name, each in columns)]


def content_hash(value: Any, *, most_bytes: int = MOST_BYTES) -> str:
    """A hash of the contents of a value; beyond this many bytes, of a sample of each tensor and array."""
    content = ContentHash(most_bytes=most_bytes)
    content.add(value)
    return content.hexdigest()


def is_identical(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """True for the very same objects in the same order."""
    return len(now) == len(before) and all(map(operator.is_, now, before))


def have_equal_contents(before: Any, now: Any) -> bool:
    """True if `is_equal`, and for containers of equal values, such as a copy of a list.

    >>> have_equal_contents({"names": {"a", "b"}}, {"names": {"b", "a"}}), have_equal_contents([0.0], [-0.0])
    (True, False)
    """
    if is_equal(before, now):
        return True
    if category_of(type(before)) not in IN_CONTAINERS:
        return False
    contents = ContentHash(), ContentHash()
    for content, value in zip(contents, (before, now), strict=True):
        content.add(value)
    return all(content.is_whole for content in contents) and contents[0].hexdigest() == contents[1].hexdigest()


def is_equal(before: Any, now: Any) -> bool:
    """True for the same object, and for equal plain values: 0.0 and -0.0 differ, a NaN equals itself."""
    if before is now:
        return True
    if type(before) is not type(now) or isinstance(before, enum.Enum):
        return False
    match category_of(type(before)):
        case "tuple":
            return len(now) == len(before) and all(map(is_equal, now, before))
        case "method":
            return before.__func__ is now.__func__ and before.__self__ is now.__self__
        case "value" | "set":
            return not isinstance(before, set) and is_constant(before) and content_hash(before) == content_hash(now)
    return False


def _is_plain(parts: tuple[Any, ...]) -> bool:
    """True for constants, and for tuples, lists or dictionaries of them: hashed together, in a tenth of the time."""
    types = set(map(type, parts))
    if types in ({tuple}, {list}):
        types = set(map(type, itertools.chain.from_iterable(parts)))
    elif types == {dict}:
        types = set(map(type, itertools.chain.from_iterable(itertools.chain(part, part.values()) for part in parts)))
    return types <= CONSTANTS


def _strided_parts(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    """Plain tensors with the content of this one."""
    if tensor.is_quantized or tensor.is_nested:
        return (tensor.int_repr(),) if tensor.is_quantized else tensor.unbind()
    if tensor.layout is torch.strided:
        return (tensor.as_subclass(torch.Tensor),)
    entries = tensor if tensor.layout is torch.sparse_coo else tensor.to_sparse(layout=torch.sparse_coo)
    return entries._indices(), entries._values()
