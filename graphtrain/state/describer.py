"""Values as plain data that refer to objects instead of containing them."""

from __future__ import annotations

import array
import collections
import datetime
import enum
import functools
import operator
import re
import types
import weakref
import zoneinfo
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, final

import numpy
import torch

from graphtrain.state.category import category_of, is_constant, is_users
from graphtrain.state.contents import FORMS
from graphtrain.state.generators import any_generator, kind_of_generator
from graphtrain.state.graphs import keeps_graph
from graphtrain.state.reachable import REMEDY, Reachable, shown_key
from graphtrain.state.references import (
    BY_TEXT,
    FACTORIES,
    MAPPINGS,
    MOST_DEPTH,
    TUPLES_OF_TORCH,
    UnknownStateError,
    is_plain_class,
    is_saveable,
    name_of,
    name_of_method,
    places,
)
from graphtrain.state.shared_memory import Memory, address_of, memories, owner_of

MOST_BYTES = 256 * 2**20
# Of a larger tensor that nobody else holds, a view is saved without the rest.
_MOST_SHARED_BYTES = 64 * 2**10
_ENCODED = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


# What can be changed in place, and be found again where others hold it too.
_SHARED = frozenset({"tensor", "array", "list", "mapping", "object", "buffer"})


@final
class Describer:
    """Describes values in terms of what was reached.

    Attributes:
        new: the descriptions of objects that were not reached, by number.
        graphs: the paths of tensors of which more is kept than their values, the first of them.
    """

    def __init__(self, reachable: Reachable, stateful: Mapping[str, Any]) -> None:
        self.new: list[Any] = []
        self.graphs: list[str] = []
        self._reachable, self._stateful = reachable, stateful
        self._numbers: dict[int, int] = {}
        self._in_transit: dict[int, Any] = {}
        self._paths: dict[int, str] = {}  # of new tensors and arrays
        self._storages: dict[int, Any] | None = None
        self._arrays: list[tuple[str, int, int]] | None = None  # path, first byte, and how many
        self._places: dict[int, tuple[Any, ...]] | None = None
        self._bytes = self._depth = 0

    def describe(self, value: Any, path: str) -> Any:
        """A value as plain data; `path` is where it is, for messages.

        Raises:
            UnknownStateError: it, or something in it, cannot be described.
        """
        category = category_of(type(value))
        if category == "value":
            return self._value(value, path)
        if (reached := self._reachable.find(value)) is not None:
            return ("at", reached.path)
        if id(value) in self._numbers:
            return ("new", self._numbers[id(value)])
        match category:
            case "tensor" if place := self._place(value):
                return ("in", *place)
            case "tuple":
                members = [self.describe(part, f"{path}[{number}]") for number, part in enumerate(value)]
                if type(value) is tuple:
                    return ("tuple", members)
                if type(value) in TUPLES_OF_TORCH.values():
                    return ("tuple of torch", type(value).__qualname__, members)
                if type(value).__mro__[1] is tuple and hasattr(value, "_fields") and is_users(type(value).__module__):
                    return ("named tuple", *name_of(type(value), path), members)
                raise UnknownStateError(path, f"is a {type(value).__qualname__}, a tuple of another class: {REMEDY}")
            case "set" if type(value) is frozenset:
                return ("frozenset", self._members(value, path))
            case "function" | "class" if is_users(value.__module__):
                return ("named", *name_of(value, path))
            case "skipped" if type(value) is weakref.ref and (target := value()) is not None:
                return ("weak reference", self.describe(target, path))
            case "class" if value in FACTORIES.values():
                return ("built-in", value.__name__)
            case "method":
                owner = self.describe(value.__self__, f"{path}.__self__")
                if owner[0] in ("at", "new", "named") and (name := name_of_method(value)) is not None:
                    return ("method", owner, name)
                raise UnknownStateError(path, f"is the method `{value.__func__.__name__}` of another class")
            case "iterator":
                what = f"is an iterator ({type(value).__name__}), whose position is not saved"
                raise UnknownStateError(path, f"{what}: {REMEDY}")
        number = self._numbers[id(value)] = len(self.new)
        self._paths[number] = path
        self.new.append(None)
        self._depth += 1
        try:
            if self._depth > MOST_DEPTH:
                raise UnknownStateError(path, f"is nested more than {MOST_DEPTH} deep: give it a `state_dict`")
            self.new[number] = self._new(value, path)
        finally:
            self._depth -= 1
        return ("new", number)

    def reference(self, value: Any, place: Any) -> list[Any] | None:
        """How a value in transit is found again; None for one that neither it nor its memory was met before.

        Arguments:
            place: how it is found again if it is met once more.
        """
        category = category_of(type(value))
        if category not in _SHARED:
            return None
        if (reached := self._reachable.find(value)) is not None:
            return ["at", reached.path]
        if id(value) in self._numbers:
            return ["new", self._numbers[id(value)]]
        if (other := self._in_transit.setdefault(id(value), place)) is not place:
            return list(other)
        if category == "tensor" and is_saveable(value) and _is_view_of_memory(value):
            storage = value.untyped_storage()
            is_whole = storage.nbytes() == value.numel() * value.element_size()
            owner = self._bases().setdefault(storage._cdata, place) if is_whole else self._bases().get(storage._cdata)
            if owner is not None and owner is not place:
                return ["view", list(owner), [list(value.shape), list(value.stride()), value.storage_offset()]]
            start = storage.data_ptr()
            if value.is_cpu and (within := self._within(start)) is not None:
                path, first = within
                return ["view", ["at", path], [list(value.shape), list(value.stride()), value.storage_offset(), first]]
        is_plain_array = category == "array" and _dtype_text(value) is not None
        if is_plain_array and (within := self._within(address_of(value))) is not None:
            path, offset = within
            return ["view", ["at", path], [list(value.shape), list(value.strides), offset]]
        return None

    def _within(self, address: int) -> tuple[str, int] | None:
        """The path of the array that was reached in whose memory an address is, and which of its bytes that is."""
        if self._arrays is None:
            listed = self._reachable.by_path.values()
            arrays = [(reached.path, reached.value) for reached in listed if reached.category == "array"]
            self._arrays = [
                (path, address_of(array), array.nbytes)
                for path, array in arrays
                if array.flags.c_contiguous and not array.dtype.hasobject
            ]
        for path, start, length in self._arrays:
            if start <= address < start + length:
                return path, address - start
        return None

    @contextmanager
    def attempt(self, unknown: list[str]) -> Iterator[None]:
        """A span in which something is described; if it cannot be, nothing of it is kept, and a line says why."""
        before = len(self.new)
        try:
            yield
        except UnknownStateError as error:
            unknown.append(str(error))
            del self.new[before:]
            self._numbers = {key: number for key, number in self._numbers.items() if number < before}
            self._storages = None

    def note_graph(self, tensor: torch.Tensor, path: str) -> None:
        """Note that a tensor is saved, of which the graph is not."""
        if not self.graphs and keeps_graph(tensor):
            self.graphs.append(path)

    def count(self, size: int, path: str) -> None:
        """Count bytes that are saved.

        Raises:
            UnknownStateError: they are too many.
        """
        self._bytes += size
        if self._bytes > MOST_BYTES:
            raise UnknownStateError(path, f"is beyond the {MOST_BYTES >> 20} MiB that are saved without a `state_dict`")

    def share_memory(self, unknown: list[str]) -> None:
        """Describe new tensors and arrays that lie in one memory as parts of it, once everything is described.

        So what is written to one is seen in another again. Those that do not overlap, and that lie far apart, stay by
        themselves: the memory between them would be saved for nothing.

        Arguments:
            unknown: takes a line for all that overlap and cannot be described.
        """
        for memory in list(memories(self.new)):
            with self.attempt(unknown):
                self._share(memory)

    def _share(self, memory: Memory) -> None:
        whole, start = self._bases().get(memory.key), 0
        if whole is None:
            own = memory.size_of_parts
            most = min(max(4 * own, _MOST_SHARED_BYTES), MOST_BYTES - self._bytes + own)
            if not memory.overlaps and memory.size > most:
                return
            for part in memory.parts:
                if isinstance(part.value, numpy.ndarray) and _dtype_text(part.value) is None:
                    if not memory.overlaps:
                        return
                    what = f"overlaps with another array, and is of the type {part.value.dtype}"
                    raise UnknownStateError(self._paths[part.number], what)
            self._bytes -= own
            self.count(memory.size, self._paths[memory.parts[0].number])
            whole, start = ("new", len(self.new)), memory.start
            is_tensor = isinstance(memory.whole, torch.Tensor)
            form = {"requires_grad": False, "grad": None} if is_tensor else {}
            self.new.append({"is": "tensor" if is_tensor else "array", **form, "values": memory.whole})
        for part in memory.parts:
            if whole != ("new", part.number):
                description = self.new[part.number]
                del description["values"]
                description |= {"of": whole, **part.view(start)}

    def _value(self, value: Any, path: str) -> Any:
        match value:
            case enum.Enum() if value.name in type(value).__members__:
                return ("member", *name_of(type(value), path, is_enum=True), value.name)
            case enum.Flag() if functools.reduce(operator.or_, value, type(value)(0)) is value:
                return ("flag", *name_of(type(value), path, is_enum=True), [member.name for member in value])
            case range():
                return ("range", value.start, value.stop, value.step)
            case slice():
                return ("slice", *(self.describe(part, path) for part in (value.start, value.stop, value.step)))
            case Fraction():
                return ("fraction", value.numerator, value.denominator)
            case torch.layout() | torch.memory_format():
                return ("torch", str(value).removeprefix("torch."))
            case re.Pattern():
                return ("pattern", value.pattern, int(value.flags & ~re.DEBUG))
            case zoneinfo.ZoneInfo() if type(value) is zoneinfo.ZoneInfo and value.key is not None:
                return ("zone", value.key)
            case datetime.timezone():
                return ("offset", self._value(value.utcoffset(None), path), value.tzname(None))
            case datetime.datetime() | datetime.time() if type(value.tzinfo) is zoneinfo.ZoneInfo:
                kind, text = type(value).__name__, value.replace(tzinfo=None).isoformat()
                if kind in BY_TEXT and type(value) is BY_TEXT[kind][0]:
                    return ("in zone", kind, text, value.fold, self._value(value.tzinfo, path))
            case numpy.dtype() if not value.hasobject and (dtype := _text_of_dtype(value)) is not None:
                return ("dtype of an array", dtype)
        if value is Ellipsis:
            return ("ellipsis",)
        kind = type(value).__name__
        zone = type(getattr(value, "tzinfo", None))
        if kind in BY_TEXT and type(value) is BY_TEXT[kind][0] and zone in (type(None), datetime.timezone):
            return ("text", kind, value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value))
        if type(value) is datetime.timedelta:
            return ("span", value.days, value.seconds, value.microseconds)
        if type(value) is int and value in self._reachable.by_id:  # an `id`, as a key
            return ("id", self._reachable.by_id[value].path)
        if type(value) in _ENCODED or isinstance(value, numpy.generic):
            return value
        raise UnknownStateError(path, f"is a {type(value).__qualname__}, which cannot be saved: {REMEDY}")

    def _new(self, value: Any, path: str) -> dict[str, Any]:
        kind, category = type(value), category_of(type(value))
        match category:
            case "tensor":
                return self._tensor(value, path)
            case "array" if kind in (numpy.ndarray, numpy.memmap) and not value.dtype.hasobject:
                return self._array(value, path)
            case "generator":
                if (name := kind_of_generator(value)) is None:
                    raise UnknownStateError(path, f"is a new {kind.__qualname__}, which cannot be saved")
                return {"is": "generator", "kind": name, "state": any_generator(value).get_state()}
            case "list" | "deque" if kind in (list, collections.deque):
                parts = [self.describe(part, f"{path}[{number}]") for number, part in enumerate(value)]
                return {"is": kind.__name__, "parts": parts, "maxlen": getattr(value, "maxlen", None)}
            case "set" if kind is set:
                return {"is": "set", "parts": self._members(value, path)}
            case "mapping" if kind is collections.defaultdict:
                factory = self.describe(value.default_factory, f"{path}.default_factory")
                return {"is": "defaultdict", "parts": self.pairs(value, path), "factory": factory}
            case "mapping" if kind in MAPPINGS.values():
                return {"is": kind.__name__, "parts": self.pairs(value, path)}
            case "buffer" if kind is bytearray:
                self.count(len(value), path)
                return {"is": "bytearray", "values": bytes(value)}
            case "partial" if kind is functools.partial:
                return {
                    "is": "partial",
                    "function": self.describe(value.func, f"{path}.func"),
                    "arguments": [self.describe(part, f"{path}.args") for part in value.args],
                    "keywords": {name: self.describe(part, f"{path}.{name}") for name, part in value.keywords.items()},
                }
            case "buffer" if kind is array.array:
                self.count(len(value) * value.itemsize, path)
                return {"is": "array of Python", "type": value.typecode, "values": value.tobytes()}
            case "object" if kind is types.SimpleNamespace:
                held = {name: self.describe(part, f"{path}.{name}") for name, part in vars(value).items()}
                return {"is": "namespace", "parts": held}
            case "object" if is_plain_class(kind):
                pairs = zip(*FORMS["object"].contents(value), strict=True)
                held = {name: self.describe(part, f"{path}.{name}") for name, part in pairs}
                return {"is": "object", "class": list(name_of(kind, path)), "parts": held}
        raise UnknownStateError(path, f"is a new {kind.__qualname__}, which cannot be saved: {REMEDY}")

    def pairs(self, value: Mapping[Any, Any], path: str) -> list[Any]:
        """The entries of a mapping, in order."""
        return [
            [self.describe(key, path), self.describe(part, f"{path}[{shown_key(key)}]")]
            for key, part in zip(*FORMS["mapping"].contents(value), strict=True)
        ]

    def _members(self, value: Iterable[Any], path: str) -> list[Any]:
        """The members of a set; where their order is not that of hashes that differ from process to process, in it."""
        members = list(value)
        if not all(map(is_constant, members)):
            raise UnknownStateError(path, "is a set of objects, whose order is that of their addresses: use a list")
        if not all(type(member) in (bool, int, float) for member in members):
            members.sort(key=repr)
        return [self.describe(member, path) for member in members]

    # ---- tensors

    def _tensor(self, tensor: Any, path: str) -> dict[str, Any]:
        if not is_saveable(tensor):
            raise UnknownStateError(path, f"is a new {type(tensor).__qualname__} ({tensor.layout}), which is not saved")
        # With its graph it could not be saved; whoever keeps one, as old weight_norm does, computes it again.
        values = tensor.detach()
        self.note_graph(tensor, path)
        is_leaf = tensor.grad_fn is None
        described = {
            "is": "parameter" if isinstance(tensor, torch.nn.Parameter) else "tensor",
            "requires_grad": is_leaf and tensor.requires_grad,
            "grad": self.describe(tensor.grad, f"{path}.grad") if is_leaf else None,
        }
        if tensor.is_conj() or tensor.is_neg():  # which a view of the memory would not be
            values = values.resolve_conj().resolve_neg()
        elif tensor.layout is torch.strided and tensor.numel() and not tensor.is_meta:
            storage = tensor.untyped_storage()
            base = self._bases().get(storage._cdata)
            if base is None and tensor._base is not None:
                base = self._whole(storage, tensor, path)
            if base is not None:
                view = (list(tensor.shape), list(tensor.stride()), tensor.storage_offset())
                return described | {"of": base, "view": view, "dtype": tensor.dtype}
            if storage.nbytes() == tensor.numel() * tensor.element_size():
                self._bases()[storage._cdata] = ("new", self._numbers[id(tensor)])
        self.count(tensor.numel() * tensor.element_size(), path)
        return described | {"values": values}

    def _array(self, array: Any, path: str) -> dict[str, Any]:
        """A view of an array that was reached is a view of it again."""
        owner = owner_of(array)
        reached = self._reachable.find(owner) if owner is not array else None
        if reached is None or not owner.flags.c_contiguous or owner.dtype.hasobject:
            self.count(array.nbytes, path)
            return {"is": "array", "values": numpy.asarray(array)}
        offset = address_of(array) - address_of(owner)
        if (dtype := _dtype_text(array)) is None:
            raise UnknownStateError(path, f"is a view of `{reached.path}` of the type {array.dtype}")
        view = (list(array.shape), list(array.strides), offset)
        return {"is": "array", "of": ("at", reached.path), "view": view, "dtype": dtype}

    def _whole(self, storage: Any, tensor: Any, path: str) -> Any:
        """What a new view is of, as one more new tensor; None if that is no larger than the view, or far larger."""
        size = storage.nbytes()
        if tensor._base.is_contiguous():  # memory behind it was never written to: the loss of `mse_loss` has some
            size = min(size, (tensor._base.storage_offset() + tensor._base.numel()) * tensor._base.element_size())
        own = tensor.numel() * tensor.element_size()
        if size <= own or size > max(4 * own, _MOST_SHARED_BYTES):
            return None
        self.count(size, path)
        whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        whole.set_(storage, 0, (size // tensor.element_size(),), (1,))
        reference = self._bases()[storage._cdata] = ("new", len(self.new))
        self.new.append({"is": "tensor", "requires_grad": False, "grad": None, "values": whole})
        return reference

    def _bases(self) -> dict[int, Any]:
        """By the memory of a tensor: a tensor that has it already."""
        if self._storages is None:
            self._storages = {}
            for reached in self._reachable.by_path.values():
                if reached.category == "tensor" and _has_memory(reached.value):
                    storage = reached.value.untyped_storage()._cdata
                    self._storages.setdefault(storage, ("at", reached.path))
        return self._storages

    def _place(self, tensor: torch.Tensor) -> tuple[Any, ...] | None:
        """Where a tensor is in what is saved by a `state_dict`, if it came there since it was reached."""
        if self._places is None:
            self._places = {id(value): place for place, value in places(self._stateful)}
        return self._places.get(id(tensor))


def _is_view_of_memory(tensor: torch.Tensor) -> bool:
    """True for a tensor that shape, strides and offset alone tell apart from others of its memory."""
    return _has_memory(tensor) and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())


def _dtype_text(array: Any) -> str | None:
    """The type of an array as a description has it; None for one with fields, or of a library's own."""
    return _text_of_dtype(array.dtype)


def _text_of_dtype(dtype: Any) -> str | None:
    text = numpy.lib.format.dtype_to_descr(dtype)
    return text if isinstance(text, str) and numpy.lib.format.descr_to_dtype(text) == dtype else None


def _has_memory(tensor: torch.Tensor) -> bool:
    is_lazy = torch.nn.parameter.is_lazy(tensor)
    return not is_lazy and tensor.layout is torch.strided and not tensor.is_meta and tensor.numel() > 0
