"""One hash of values, and equality: equal values have equal hashes, in every process."""

from __future__ import annotations

import array
import contextvars
import ctypes
import enum
import itertools
import mmap
import operator
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.sharedctypes import SynchronizedBase
from typing import Any, final

import numpy
import torch
import xxhash

from graphtrain.state.category import category_of
from graphtrain.state.contents import CONSTANTS, FORMS
from graphtrain.state.generators import any_generator
from graphtrain.storage.strides import is_usual

MOST_BYTES = 2**30
MOST_ITEMS = 1_000_000
_SAMPLES = 1_024

# Hashed at once: other threads wait for the interpreter that long.
_MOST_AT_ONCE = 4_096
_ITEMS_BETWEEN_LOOKS = 16
_SECONDS_AT_ONCE = 0.0005
# Smaller tensors are read on any device.
_MAPPED = 2**20
_BY_NAME = frozenset({"function", "class", "skipped", "iterator", "file", "run", "opaque", "hidden"})


@final
class ContentHash:
    """A hash of the contents of values at any depth; of a sample beyond its bounds.

    Functions and classes count by their names; locks, files, iterators and hidden state by their types.

    Arguments:
        place_of: returns the place of an object that is compared separately, which counts instead of it; None for all
            others.
        most_bytes, most_items: the bounds for tensors and arrays, and for everything else. Beyond them, 1,024 elements
            of each tensor and items of each container count.
        pauses: True lets other threads run at intervals.

    Attributes:
        bytes: the size of all tensors and arrays so far.
        is_whole: True until something is beyond the bounds.

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
        self._items, self._until, self._is_of_a_set = 0, 0.0, False
        self.bytes = 0
        self.is_whole = True

    def hexdigest(self) -> str:
        """The hash of what was added."""
        return self._hash.hexdigest()

    def add(self, value: Any) -> None:
        """Add a value."""
        self._waiting.append(value)
        self._add_waiting()

    def of(self, place: str, value: Any) -> str:
        """The separate hash of an object at a place known to `place_of`; the bounds apply to all together."""
        self._hash = xxhash.xxh3_128()
        self._met.clear()
        self._text(place)
        self._add_content(value)
        self._add_waiting()
        return self.hexdigest()

    def _add_waiting(self) -> None:
        while self._waiting:
            self._items += 1
            if self._pauses and not self._items % _ITEMS_BETWEEN_LOOKS:
                self._pause()
            self._add(self._waiting.pop())

    def _pause(self) -> None:
        """Let other threads run: one that needs the interpreter would wait 5 ms for each operation."""
        if time.monotonic() > self._until:
            time.sleep(0)
            self._until = time.monotonic() + _SECONDS_AT_ONCE

    def _text(self, *parts: object) -> None:
        self._hash.update(repr(parts).encode())

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
            case "list" | "tuple" | "deque":
                self._add_parts(FORMS[category].contents(value)[1])
            case "mapping":
                keys, parts = FORMS[category].contents(value)
                self._add_parts(keys)
                self._add_parts(parts)
            case "set":
                hashes = sorted(map(self._separate_hash, self._chosen(FORMS[category].contents(value)[1])))
                self._text(len(hashes), *hashes)
            case "generator":
                self._waiting.append(any_generator(value).get_state())
            case "method":
                self._text(value.__func__.__qualname__)
                self._waiting.append(value.__self__)
            case "partial":
                self._waiting += [value.func, value.args, value.keywords]
            case "watched":
                self._add_watched(value)
            case "object" | "module" | "optimizer" | "cell":
                keys, parts = FORMS[category].contents(value)
                # The order in which names were set is not state.
                named = sorted(zip(keys, parts, strict=True), key=lambda pair: str(pair[0])) if keys else parts
                self._add_parts(tuple(named))
            case _ if category in _BY_NAME:
                self._text(getattr(value, "__qualname__", ""))
            case _:
                self._hash.update(bytes(value))  # a bytearray

    def _separate_hash(self, item: Any) -> str:
        """The hash of an item of a set, which has no order; of an object in a set within it, that of its type.

        Objects that know each other by sets would lead from one to the next and back for ever.
        """
        is_followed = not self._is_of_a_set or category_of(type(item)) in ("value", "tuple", "set")
        content = ContentHash(most_items=self._most_items)
        content._is_of_a_set, content._items = True, self._items
        content.add(item if is_followed else type(item).__qualname__)
        self._items = content._items
        return content.hexdigest()

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
            plain = _plain_form(several)
            if plain is not None and (plain is several or not any(map(self._place_of, several))):
                self._items += len(several)
                self._text(plain)
                if self._pauses:
                    self._pause()
            else:
                self._waiting += reversed(several)

    # ---- tensors and arrays

    def _add_tensor(self, tensor: torch.Tensor) -> None:
        is_plain = type(tensor) is torch.Tensor and not tensor.requires_grad and not tensor.is_quantized
        if is_plain and is_usual(tensor) and tensor.nbytes < _MAPPED:
            # Data with very many tensors has almost only this form: 3 us instead of 12.
            self._text(str(tensor.dtype), tuple(tensor.shape))
            self.bytes += tensor.nbytes
            if self.bytes <= self._most_bytes and tensor.dtype is not torch.bfloat16:
                self._hash.update(tensor.numpy().data)
                return
            self.bytes -= tensor.nbytes
        if torch.nn.parameter.is_lazy(tensor) or tensor.is_meta:
            return
        tensor = tensor.detach()
        self._text(str(tensor.dtype), tuple(tensor.shape) if not tensor.is_nested else ())
        for part in _strided_parts(tensor):
            mapped = part.untyped_storage().filename if part.is_cpu and part.nbytes >= _MAPPED else None
            if mapped is None or not self._add_file(mapped):
                self._add_strided(part)

    def _add_strided(self, tensor: torch.Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        self.bytes += size
        if self.bytes > self._most_bytes:
            self.is_whole = False
            step = max(1, tensor.numel() // _SAMPLES)
            tensor = torch.take(tensor, torch.arange(0, tensor.numel(), step, device=tensor.device))
        if tensor.numel():
            host = tensor.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
            # A single element may have any strides, which a view as bytes does not accept.
            host = host.as_strided((host.numel(),), (1,))
            self._hash.update(host.view(torch.uint8).numpy().data)

    def _add_array(self, array: Any) -> None:
        self._text(str(array.dtype), array.shape)
        if array.dtype.hasobject:
            self._add_parts(tuple(array.reshape(-1).tolist()) if array.dtype == object else (repr(array),))
            return
        mapped = _file_of(array)
        if mapped is not None and self._add_file(mapped):
            self._text(array.strides)
            return
        self.bytes += array.nbytes
        if self.bytes > self._most_bytes:
            self.is_whole = False
            array = array.flat[:: max(1, array.size // _SAMPLES)]
        if array.size:
            self._hash.update(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8).data)

    def _add_file(self, name: str) -> bool:
        """Add name, size and time of a file that is mapped into memory; False for one that may have any name."""
        try:
            status = os.stat(name)
        except OSError:
            return False
        if os.path.abspath(name).startswith(tempfile.gettempdir()):
            return False
        self._text(os.path.basename(name), status.st_size, status.st_mtime_ns)
        return True

    def _add_watched(self, value: Any) -> None:
        match value:
            case sqlite3.Connection():
                self._text(_changes_of(value))
            case contextvars.ContextVar():
                self._waiting.append(value.get(None))
            case threading.local():
                self._waiting.append(vars(value))
            case SynchronizedBase():
                self._waiting.append(value.get_obj())
            case array.array() | mmap.mmap() | ctypes.Array() | ctypes._SimpleCData():
                self._hash.update(bytes(value))
            case _:
                # A frame or a series of pandas: its names, and the arrays of its columns, without copies.
                columns = [value.iloc[:, number] for number in range(value.shape[1])] if value.ndim > 1 else [value]
                self._waiting.append(list(map(str, getattr(value, "columns", ()))))
                self._waiting += [each.to_numpy(copy=False) for each in [value.index, *columns]]


def content_hash(value: Any, *, most_bytes: int = MOST_BYTES) -> str:
    """A hash of the contents of a value; of a sample of a tensor or an array above this many bytes."""
    content = ContentHash(most_bytes=most_bytes)
    content.add(value)
    return content.hexdigest()


def is_identical(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """True for the very same objects in the same order."""
    return len(now) == len(before) and all(map(operator.is_, now, before))


def are_equal(now: Iterable[Any], before: Iterable[Any]) -> bool:
    now, before = tuple(now), tuple(before)
    return len(now) == len(before) and all(map(is_equal, now, before))


def hold_the_same(one: Any, other: Any) -> bool:
    """True if `is_equal`, also for two containers of such values, one of which may be a copy.

    >>> hold_the_same({"names": {"a", "b"}}, {"names": {"b", "a"}}), hold_the_same([0.0], [-0.0])
    (True, False)
    """
    if is_equal(one, other):
        return True
    category = category_of(type(one))
    if type(one) is not type(other) or category not in ("list", "tuple", "deque", "mapping", "set"):
        return False
    if category == "set":
        return len(one) == len(other) and content_hash(one) == content_hash(other)
    (keys, parts), (other_keys, other_parts) = (FORMS[category].contents(value) for value in (one, other))
    return (
        are_equal(keys, other_keys) and len(parts) == len(other_parts) and all(map(hold_the_same, parts, other_parts))
    )


def is_equal(before: Any, now: Any) -> bool:
    """True for the same object, and for equal plain values: 0.0 and -0.0 differ, a NaN equals itself."""
    if before is now:
        return True
    if type(before) is not type(now) or isinstance(before, enum.Enum):
        return False
    match category_of(type(before)):
        case "value":
            return content_hash(before) == content_hash(now)
        case "set" if isinstance(before, frozenset):
            return len(before) == len(now) and content_hash(before) == content_hash(now)
        case "tuple":
            return len(before) == len(now) and all(map(is_equal, before, now))
        case "method":
            return before.__func__ is now.__func__ and before.__self__ is now.__self__
    return False


def _plain_form(parts: tuple[Any, ...]) -> Any:
    """A key for the content of constants, and of tuples, lists and dictionaries of constants; None for others.

    They are hashed together, in a tenth of the time of one by one.
    """
    types = set(map(type, parts))
    if types <= CONSTANTS:
        return parts
    if types in ({tuple}, {list}):
        held = itertools.chain.from_iterable(parts)
    elif types == {dict}:
        held = itertools.chain.from_iterable(itertools.chain(part.keys(), part.values()) for part in parts)
    else:
        return None
    return (parts,) if set(map(type, held)) <= CONSTANTS else None


def _strided_parts(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    """Plain tensors with the content of this one."""
    if tensor.is_quantized:
        return (tensor.int_repr(),)
    if tensor.is_nested:
        return tensor.unbind()
    match tensor.layout:
        case torch.strided:
            return (tensor.as_subclass(torch.Tensor),)
        case torch.sparse_coo:
            return tensor._indices(), tensor._values()
        case torch.sparse_csr | torch.sparse_bsr:
            return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def _file_of(array: Any) -> str | None:
    """The file from which the memory of an array is mapped; None for other memory."""
    while isinstance(array, numpy.ndarray):
        if isinstance(array, numpy.memmap) and array.filename is not None:
            return str(array.filename)
        array = array.base
    return None


def _changes_of(connection: sqlite3.Connection) -> int:
    """The number of rows changed through a connection; none if it is closed or belongs to another thread."""
    try:
        return connection.total_changes
    except sqlite3.Error:
        return 0
