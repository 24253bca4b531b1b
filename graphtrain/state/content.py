"""One hash of values, and equality: equal values have equal hashes, in every process."""

from __future__ import annotations

import contextlib
import contextvars
import enum
import itertools
import operator
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.sharedctypes import SynchronizedBase
from typing import Any, final

import numpy
import torch
import xxhash

from graphtrain.state.generators import any_generator
from graphtrain.state.kinds import CONSTANTS, KINDS, category_of, is_constant

MOST_BYTES = 2**30
MOST_ITEMS = 1_000_000
_SAMPLES = 1_024

# Hashed at once: other threads wait for the interpreter that long.
_MOST_AT_ONCE = 4_096
_ITEMS_BETWEEN_LOOKS = 16
_SECONDS_AT_ONCE = 0.0005


@final
class ContentHash:
    """A hash of the contents of values at any depth; of a sample beyond its bounds, where `is_whole` becomes False.

    Functions and classes count by their names; locks, files, iterators and hidden state by their types.

    Arguments:
        place_of: returns the place of an object that is compared separately, which counts instead of it; None for all
            others.
        most_bytes, most_items: the bounds for tensors and arrays, and for everything else. Beyond them, 1,024 elements
            of each tensor and items of each container count.
        pauses: True lets other threads run at intervals.

    >>> def hashed(value):
    ...     content = ContentHash(); content.add(value); return content.hexdigest()
    >>> hashed({"a": [1, {2, 3}]}) == hashed({"a": [1, {3, 2}]}), hashed([0.0]) == hashed([-0.0])
    (True, False)
    """

    def __init__(
        self,
        place_of: Callable[[Any], str | None] = lambda value: None,
        most_bytes: int = MOST_BYTES,
        most_items: int = MOST_ITEMS,
        *,
        pauses: bool = False,
    ) -> None:
        self._place_of, self._most_bytes, self._most_items, self._pauses = place_of, most_bytes, most_items, pauses
        self._hash = xxhash.xxh3_128()
        self._met: dict[int, tuple[int, Any]] = {}  # with the objects: an `id` may be reused
        self._waiting: list[Any] = []
        self._items, self._until = 0, 0.0
        self.bytes = 0
        self.is_whole = True

    def hexdigest(self) -> str:
        """The hash of what was added."""
        return self._hash.hexdigest()

    def add(self, value: Any) -> None:
        """Add a value."""
        self._waiting.append(value)
        self._add_waiting()

    def begin(self) -> None:
        """Begin another hash; the bounds apply to all together."""
        self._hash, self.is_whole = xxhash.xxh3_128(), True
        self._met.clear()

    def add_at(self, place: str, value: Any) -> None:
        """Add an object at a place known to `place_of`."""
        self._text(place)
        self._add_content(value)
        self._add_waiting()

    def _add_waiting(self) -> None:
        while self._waiting:
            self._items += 1
            # Other threads run meanwhile: one that needs the interpreter would wait 5 ms for each operation.
            if self._pauses and not self._items % _ITEMS_BETWEEN_LOOKS and time.monotonic() > self._until:
                time.sleep(0)
                self._until = time.monotonic() + _SECONDS_AT_ONCE
            self._add(self._waiting.pop())

    def _text(self, *parts: object) -> None:
        try:
            self._hash.update(repr(parts).encode())
        except ValueError:  # an integer of more digits than Python writes
            self._hash.update(repr(_in_hexadecimal(parts)).encode())

    def _add(self, value: Any) -> None:
        kind = type(value)
        if kind in CONSTANTS:
            self._text(value)
            return
        if (place := self._place_of(value)) is not None:
            self._text("at", place)
            return
        self._add_content(value)

    def _add_content(self, value: Any) -> None:
        kind, category = type(value), category_of(type(value))
        if category == "value":
            is_enum = isinstance(value, enum.Enum)
            plain = value.tobytes() if isinstance(value, numpy.generic) else value
            self._text(kind.__qualname__, value.name if is_enum else plain)
            return
        if (met := self._met.get(id(value))) is not None:
            self._text("same", met[0])
            return
        self._met[id(value)] = len(self._met), value
        self._text(kind.__module__, kind.__qualname__)
        match category:
            case "tensor":
                self._add_tensor(value)
            case "array":
                self._add_array(value)
            case "buffer":
                self._hash.update(value)
            case "generator":
                self._waiting.append(any_generator(value).get_state())
            case "method":
                self._waiting += [value.__func__, value.__self__]
            case "partial":
                self._waiting += [value.func, value.args, value.keywords]
            case "watched":
                self._add_watched(value)
            case "set":  # it has no order
                members = self._chosen(KINDS[category].contents(value)[1])
                plain = (item if is_constant(item) else type(item).__qualname__ for item in members)
                self._text(len(members), *sorted(map(content_hash, plain)))
            case "object" | "module" | "optimizer":  # nor have names
                pairs = zip(*KINDS[category].contents(value), strict=True)
                self._add_parts(tuple(sorted(pairs, key=lambda pair: str(pair[0]))))
            case "list" | "tuple" | "deque" | "mapping" | "cell":
                for parts in KINDS[category].contents(value):
                    self._add_parts(parts)
            case _:
                self._text(getattr(value, "__qualname__", ""))

    def _chosen(self, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """All parts, or a sample if there are too many."""
        if self._items + len(parts) <= self._most_items or len(parts) <= _SAMPLES:
            return parts
        self.is_whole = False
        return parts[:: len(parts) // _SAMPLES]

    def _add_parts(self, parts: tuple[Any, ...]) -> None:
        self._text(len(parts))
        chosen = self._chosen(parts)
        for start in range(0, len(chosen), _MOST_AT_ONCE):
            several = chosen[start : start + _MOST_AT_ONCE]
            if _is_plain(several) and not any(map(self._place_of, several)):
                self._items += len(several)
                self._text(several)
            else:
                self._waiting += reversed(several)

    # ---- tensors and arrays

    def _add_tensor(self, tensor: torch.Tensor) -> None:
        if torch.nn.parameter.is_lazy(tensor) or tensor.is_meta:
            return
        self._text(str(tensor.dtype), str(tensor.layout), tuple(tensor.shape) if not tensor.is_nested else ())
        for part in _strided_parts(tensor.detach()):
            self.bytes += part.numel() * part.element_size()
            if self.bytes > self._most_bytes:
                self.is_whole = False
                step = max(1, part.numel() // _SAMPLES)
                part = torch.take(part, torch.arange(0, part.numel(), step, device=part.device))
            if part.numel():
                host = part.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
                # A single element may have any strides, which a view as bytes does not accept.
                host = host.as_strided((host.numel(),), (1,))
                self._hash.update(host.view(torch.uint8).numpy().data)

    def _add_array(self, array: Any) -> None:
        self._text(str(array.dtype), array.shape)
        if array.dtype.hasobject:
            self._add_parts(tuple(array.reshape(-1).tolist()) if array.dtype == object else (repr(array),))
            return
        self.bytes += array.nbytes
        if self.bytes > self._most_bytes:
            self.is_whole = False
            array = array.flat[:: max(1, array.size // _SAMPLES)]
        if array.size:
            self._hash.update(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8).data)

    def _add_watched(self, value: Any) -> None:
        match value:
            case sqlite3.Connection():
                with contextlib.suppress(sqlite3.Error):  # it is closed, or belongs to another thread
                    self._text(value.total_changes)
            case contextvars.ContextVar():
                self._waiting.append(value.get(None))
            case threading.local():
                self._waiting.append(vars(value))
            case numpy.random.SeedSequence():  # with the number of its children
                self._text(repr(value))
            case SynchronizedBase():
                self._waiting.append(value.get_obj())
            case _ if hasattr(value, "iloc"):
                # A frame or a series of pandas: its names, and the arrays of its columns, without copies.
                columns = [value.iloc[:, number] for number in range(value.shape[1])] if value.ndim > 1 else [value]
                self._waiting.append(list(map(str, getattr(value, "columns", ()))))
                self._waiting += [each.to_numpy(copy=False) for each in [value.index, *columns]]
            case _:
                self._hash.update(bytes(value))


def content_hash(value: Any, *, most_bytes: int = MOST_BYTES) -> str:
    """A hash of the contents of a value; of a sample of a tensor or an array above this many bytes."""
    content = ContentHash(most_bytes=most_bytes)
    content.add(value)
    return content.hexdigest()


def is_identical(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """True for the very same objects in the same order."""
    return len(now) == len(before) and all(map(operator.is_, now, before))


def are_equal(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """True if each pair `is_equal`."""
    return len(now) == len(before) and all(map(is_equal, now, before))


def hold_the_same(one: Any, other: Any) -> bool:
    """True if `is_equal`, also for two containers of such values, one of which may be a copy.

    >>> hold_the_same({"names": {"a", "b"}}, {"names": {"b", "a"}}), hold_the_same([0.0], [-0.0])
    (True, False)
    """
    category = category_of(type(one))
    is_container = category in ("list", "tuple", "deque", "mapping", "set")
    if is_equal(one, other) or not is_container or type(one) is not type(other):
        return is_equal(one, other)
    if category == "set":
        return content_hash(one) == content_hash(other)
    pairs = zip(KINDS[category].contents(one), KINDS[category].contents(other), strict=True)
    return all(len(parts) == len(others) and all(map(hold_the_same, parts, others)) for parts, others in pairs)


def is_equal(before: Any, now: Any) -> bool:
    """True for the same object, and for equal plain values: 0.0 and -0.0 differ, a NaN equals itself."""
    if before is now:
        return True
    if type(before) is not type(now) or isinstance(before, enum.Enum):
        return False
    match category_of(type(before)):
        case "value":
            return content_hash(before) == content_hash(now)
        case "set" if isinstance(before, frozenset) and is_constant(before):
            return content_hash(before) == content_hash(now)
        case "tuple":
            return are_equal(before, now)
        case "method":
            return before.__func__ is now.__func__ and before.__self__ is now.__self__
    return False


def _is_plain(parts: tuple[Any, ...]) -> bool:
    """True for constants, and for tuples, lists or dictionaries of them: hashed together, in a tenth of the time."""
    types = set(map(type, parts))
    if types in ({tuple}, {list}):
        types = set(map(type, itertools.chain.from_iterable(parts)))
    elif types == {dict}:
        types = set(map(type, itertools.chain.from_iterable(itertools.chain(part, part.values()) for part in parts)))
    return types <= CONSTANTS


def _in_hexadecimal(value: Any) -> Any:
    if isinstance(value, dict):
        return _in_hexadecimal(tuple(value.items()))
    if isinstance(value, tuple | list):
        return tuple(map(_in_hexadecimal, value))
    return hex(value) if isinstance(value, int) else value


def _strided_parts(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    """Plain tensors with the content of this one."""
    if tensor.is_quantized or tensor.is_nested:
        return (tensor.int_repr(),) if tensor.is_quantized else tensor.unbind()
    if tensor.layout is torch.strided:
        return (tensor.as_subclass(torch.Tensor),)
    entries = tensor if tensor.layout is torch.sparse_coo else tensor.to_sparse(layout=torch.sparse_coo)
    return entries._indices(), entries._values()
