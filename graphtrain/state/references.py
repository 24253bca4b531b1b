"""Values as plain data that refer to objects instead of containing them, and back.

An object that was reached from the roots is referred to by its path, a tensor in a `state_dict` by its place there, and
an object that is new by a number: it is described once, by what it holds. So two places that held one object hold one
again, and a view is a view of its base again.

A description may come from a stranger. Nothing is imported and nothing is called: classes and functions are those that
modules of the user's own, imported already, define themselves; methods are those of objects that are there; objects
are their attributes.
"""

from __future__ import annotations

import array
import collections
import datetime
import enum
import functools
import ipaddress
import operator
import pathlib
import re
import sys
import types
import uuid
import weakref
import zoneinfo
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction
from typing import Any, final

import numpy
import torch
from torch.nn.utils.rnn import PackedSequence

from graphtrain.errors import CheckpointError
from graphtrain.state.category import category_of, is_constant, is_users
from graphtrain.state.contents import FORMS
from graphtrain.state.generators import any_generator, kind_of_generator, new_generator
from graphtrain.state.graphs import keeps_graph
from graphtrain.state.reachable import REMEDY, Reachable, shown_key
from graphtrain.state.shared_memory import Memory, memories

MOST_BYTES = 256 * 2**20
MOST_DEPTH = 100
_MOST_SHOWN = 120
# Of a larger tensor that nobody else holds, a view is saved without the rest.
_MOST_SHARED_BYTES = 64 * 2**10

# What goes wrong where a description is not one that a `Describer` has made.
MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)

_ENCODED = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_OF_TORCH = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.layout | torch.memory_format)
}
_MAPPINGS = {kind.__name__: kind for kind in (dict, collections.OrderedDict, collections.Counter)}
_FACTORIES = {kind.__name__: kind for kind in (bool, int, float, complex, str, bytes, list, tuple, dict, set)}
_BY_TEXT: Mapping[str, tuple[type, Callable[[str], Any]]] = {
    "PosixPath": (pathlib.PosixPath, pathlib.PosixPath),
    "PurePosixPath": (pathlib.PurePosixPath, pathlib.PurePosixPath),
    "PureWindowsPath": (pathlib.PureWindowsPath, pathlib.PureWindowsPath),
    "Decimal": (Decimal, Decimal),
    "UUID": (uuid.UUID, uuid.UUID),
    "date": (datetime.date, datetime.date.fromisoformat),
    "time": (datetime.time, datetime.time.fromisoformat),
    "datetime": (datetime.datetime, lambda text: datetime.datetime.fromisoformat(text)),
    **{
        kind.__name__: (kind, kind)
        for kind in (
            ipaddress.IPv4Address, ipaddress.IPv4Interface, ipaddress.IPv4Network,
            ipaddress.IPv6Address, ipaddress.IPv6Interface, ipaddress.IPv6Network,
        )
    },
}  # fmt: skip
_TUPLES_OF_TORCH: Mapping[str, Any] = {
    kind.__qualname__: kind for kind in (PackedSequence, *torch.return_types.all_return_types)
}


class UnknownStateError(Exception):
    """Something that cannot be described; the text says where it is and what."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{shown_path(path)} {what}")


def shown_path(path: str) -> str:
    """A path for a message: what is in a variable is called like the variable, and the middle of a long one left out.

    >>> shown_path("step<calls>.cell_contents.total")
    'step<calls>.total'
    """
    shown = path.replace(".cell_contents", "")
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[: _MOST_SHOWN // 2]}...{shown[-_MOST_SHOWN // 2 :]}"


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
        self._paths: dict[int, str] = {}  # of new tensors and arrays
        self._storages: dict[int, Any] | None = None
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
                if type(value) in _TUPLES_OF_TORCH.values():
                    return ("tuple of torch", type(value).__qualname__, members)
                if type(value).__mro__[1] is tuple and hasattr(value, "_fields") and is_users(type(value).__module__):
                    return ("named tuple", *_name(type(value), path), members)
                raise UnknownStateError(path, f"is a {type(value).__qualname__}, a tuple of another class: {REMEDY}")
            case "set" if type(value) is frozenset:
                return ("frozenset", self._members(value, path))
            case "function" | "class" if is_users(value.__module__):
                return ("named", *_name(value, path))
            case "skipped" if type(value) is weakref.ref and (target := value()) is not None:
                return ("weak reference", self.describe(target, path))
            case "class" if value in _FACTORIES.values():
                return ("built-in", value.__name__)
            case "method":
                owner = self.describe(value.__self__, f"{path}.__self__")
                if owner[0] in ("at", "new", "named") and (name := _name_of_method(value)) is not None:
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
                return ("member", *_name(type(value), path, is_enum=True), value.name)
            case enum.Flag() if functools.reduce(operator.or_, value, type(value)(0)) is value:
                return ("flag", *_name(type(value), path, is_enum=True), [member.name for member in value])
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
                if kind in _BY_TEXT and type(value) is _BY_TEXT[kind][0]:
                    return ("in zone", kind, text, value.fold, self._value(value.tzinfo, path))
            case numpy.dtype() if not value.hasobject and (dtype := _text_of_dtype(value)) is not None:
                return ("dtype of an array", dtype)
        if value is Ellipsis:
            return ("ellipsis",)
        kind = type(value).__name__
        zone = type(getattr(value, "tzinfo", None))
        if kind in _BY_TEXT and type(value) is _BY_TEXT[kind][0] and zone in (type(None), datetime.timezone):
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
            case "mapping" if kind in _MAPPINGS.values():
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
                return {"is": "object", "class": list(_name(kind, path)), "parts": held}
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
        owner = array
        while isinstance(owner.base, numpy.ndarray):
            owner = owner.base
        reached = self._reachable.find(owner) if owner is not array else None
        if reached is None or not owner.flags.c_contiguous or owner.dtype.hasobject:
            self.count(array.nbytes, path)
            return {"is": "array", "values": numpy.asarray(array)}
        offset = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
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


def places(stateful: Mapping[str, Any]) -> Iterable[tuple[tuple[Any, ...], torch.Tensor]]:
    """The tensors in modules and optimizers, with the place of each."""
    for path, value in stateful.items():
        if isinstance(value, torch.nn.Module):
            for name, tensor in (*value.named_parameters(), *value.named_buffers()):
                yield (path, "tensor", name), tensor
        elif isinstance(value, torch.optim.Optimizer):
            for number, state in enumerate(value.state.values()):
                for name, tensor in state.items():
                    if isinstance(tensor, torch.Tensor):
                        yield (path, "state", number, name), tensor
            for number, group in enumerate(value.param_groups):
                for name, tensor in group.items():
                    if isinstance(tensor, torch.Tensor):
                        yield (path, "group", number, name), tensor


@final
class Rebuilder:
    """Finds or makes the values that a `Describer` has described.

    Arguments:
        new: its descriptions of new objects.
    """

    def __init__(self, reachable: Reachable, stateful: Mapping[str, Any], new: list[Any]) -> None:
        self._reachable, self._stateful, self._new = reachable, stateful, new
        self._made: dict[int, Any] = {}
        self._places: dict[tuple[Any, ...], torch.Tensor] | None = None
        self._depth = 0

    def rebuild(self, described: Any) -> Any:
        """The value that was described.

        Raises:
            CheckpointError: it refers to something that is not there, or that must not be made.
        """
        if not isinstance(described, tuple):
            return described
        match described:
            case ("at", str(path)):
                return self.at(path)
            case ("id", str(path)):
                return id(self.at(path))
            case ("new", int(number)) if 0 <= number < len(self._new):
                return self._made[number] if number in self._made else self._nested(number)
            case ("in", *place):
                return self._in(tuple(place))
            case ("tuple", parts):
                return tuple(map(self.rebuild, parts))
            case ("tuple of torch", str(name), parts) if name in _TUPLES_OF_TORCH:
                members = list(map(self.rebuild, parts))
                kind = _TUPLES_OF_TORCH[name]
                return kind(*members) if kind is PackedSequence else kind(members)
            case ("weak reference", ("at" | "new" | "in", *_) as target):
                return weakref.ref(self.rebuild(target))
            case ("frozenset", parts):
                return frozenset(map(self.rebuild, parts))
            case ("named tuple", str(module), str(name), parts):
                kind = _find(module, name)
                fields = getattr(kind, "_fields", ())
                if isinstance(kind, type) and kind.__mro__[1] is tuple and len(fields) == len(parts):
                    return tuple.__new__(kind, map(self.rebuild, parts))
            case ("named", str(module), str(name)):
                value = _find(module, name)
                if isinstance(value, type | types.FunctionType):
                    return value
            case ("member", str(module), str(name), str(member)):
                kind = _find(module, name, is_enum=True)
                if isinstance(kind, type) and issubclass(kind, enum.Enum) and member in kind.__members__:
                    return kind.__members__[member]
            case ("flag", str(module), str(name), list(members)):
                kind = _find(module, name, is_enum=True)
                if issubclass(kind, enum.Flag) and all(member in kind.__members__ for member in members):
                    return functools.reduce(enum.Flag.__or__, map(kind.__members__.get, members), kind(0))
            case ("built-in", str(name)) if name in _FACTORIES:
                return _FACTORIES[name]
            case ("method", ("at" | "new" | "named", *_) as owner, str(name)):
                value = self.rebuild(owner)
                if (function := _methods_of(value).get(name)) is not None:
                    return types.MethodType(function, value)
            case ("range", int(start), int(stop), int(step)):
                return range(start, stop, step)
            case ("slice", start, stop, step):
                return slice(self.rebuild(start), self.rebuild(stop), self.rebuild(step))
            case ("fraction", int(numerator), int(denominator)):
                return Fraction(numerator, denominator)
            case ("torch", str(name)) if name in _OF_TORCH:
                return _OF_TORCH[name]
            case ("ellipsis",):
                return Ellipsis
            case ("text", str(name), str(text)) if name in _BY_TEXT:
                return _BY_TEXT[name][1](text)
            case ("span", int(days), int(seconds), int(microseconds)):
                return datetime.timedelta(days, seconds, microseconds)
            case ("pattern", str() | bytes() as pattern, int(flags)):
                try:
                    return re.compile(pattern, flags & ~re.DEBUG)
                except re.error as error:
                    raise CheckpointError(f"a pattern cannot be compiled: {error}") from None
            case ("zone", str(key)):
                return zoneinfo.ZoneInfo(key)
            case ("offset", ("span", *_) as span, str(name)):
                offset = datetime.timezone(self.rebuild(span))
                return offset if offset.tzname(None) == name else datetime.timezone(self.rebuild(span), name)
            case ("in zone", "datetime" | "time" as name, str(text), int(fold), ("zone", str()) as zone):
                return _BY_TEXT[name][1](text).replace(fold=fold, tzinfo=self.rebuild(zone))
            case ("dtype of an array", str(text)) if not numpy.dtype(text).hasobject:
                return numpy.dtype(text)
        raise CheckpointError(f"a value described as {str(described)[:100]} cannot be made")

    def at(self, path: str) -> Any:
        """The object at a path."""
        if path not in self._reachable.by_path:
            raise CheckpointError(f"`{path}`, which the saved run had, does not exist now")
        return self._reachable.by_path[path].value

    def _in(self, place: tuple[Any, ...]) -> torch.Tensor:
        if self._places is None:
            self._places = dict(places(self._stateful))
        if place not in self._places:
            raise CheckpointError(f"`{'.'.join(map(str, place))}`, which the saved run had, does not exist now")
        return self._places[place]

    def _nested(self, number: int) -> Any:
        self._depth += 1
        try:
            if self._depth > MOST_DEPTH + 1:
                raise CheckpointError(f"objects are nested more than {MOST_DEPTH} deep")
            return self._make(number)
        finally:
            self._depth -= 1

    def _make(self, number: int) -> Any:
        """Make a new object, empty first, for what it holds may refer to it."""
        described = self._new[number]
        kind = described["is"]
        made: Any
        match kind:
            case "tensor" | "parameter":
                made = self._made[number] = self._tensor(described)
                made.grad = self.rebuild(described["grad"])
            case "array":
                made = self._made[number] = self._array(described)
            case "bytearray" if type(described["values"]) is bytes:  # of a number it would make as many bytes
                made = self._made[number] = bytearray(described["values"])
            case "array of Python" if type(described["values"]) is bytes:
                made = self._made[number] = array.array(str(described["type"]), described["values"])
            case "generator":
                made = self._made[number] = new_generator(described["kind"])
                any_generator(made).set_state(described["state"])
            case "list":
                made = self._made[number] = []
                made.extend(map(self.rebuild, described["parts"]))
            case "deque":
                made = self._made[number] = collections.deque(maxlen=described["maxlen"])
                made.extend(map(self.rebuild, described["parts"]))
            case "set":
                made = self._made[number] = set(map(self.rebuild, described["parts"]))
            case "defaultdict":
                made = self._made[number] = collections.defaultdict(self.rebuild(described["factory"]))
                made.update(self.pairs(described["parts"]))
            case "partial":
                function = self.rebuild(described["function"])
                made = self._made[number] = functools.partial(function)
                arguments = tuple(map(self.rebuild, described["arguments"]))
                keywords = {name: self.rebuild(part) for name, part in described["keywords"].items()}
                made.__setstate__((function, arguments, keywords, {}))
            case "namespace":
                made = self._made[number] = types.SimpleNamespace()
                vars(made).update({str(name): self.rebuild(part) for name, part in described["parts"].items()})
            case "object":
                user_class = _find(*map(str, described["class"]))
                if not (isinstance(user_class, type) and is_plain_class(user_class)):
                    raise CheckpointError(f"an object of the class {described['class']} cannot be made")
                made = self._made[number] = object.__new__(user_class)
                FORMS["object"].put(made, {name: self.rebuild(part) for name, part in described["parts"].items()}, ())
            case str() if kind in _MAPPINGS:
                made = self._made[number] = _MAPPINGS[kind]()
                made.update(self.pairs(described["parts"]))
            case _:
                raise CheckpointError(f"an object described as {str(kind)[:100]} cannot be made")
        return made

    def pairs(self, parts: Iterable[Any]) -> dict[Any, Any]:
        """The entries of a mapping."""
        return {self.rebuild(key): self.rebuild(part) for key, part in parts}

    def _array(self, described: Mapping[str, Any]) -> Any:
        if "of" not in described:
            return numpy.asarray(described["values"])
        owner, (shape, strides, offset) = self.rebuild(described["of"]), described["view"]
        if not isinstance(owner, numpy.ndarray) or owner.dtype.hasobject or not owner.flags.c_contiguous:
            raise CheckpointError("an array that it is a view of is of another form now")
        dtype = numpy.dtype(str(described["dtype"]))
        if dtype.hasobject:
            raise CheckpointError("a view of numbers as objects cannot be made")
        # Which checks that it lies within.
        return numpy.ndarray(tuple(shape), dtype, owner.reshape(-1).view(numpy.uint8), offset, tuple(strides))

    def _tensor(self, described: Mapping[str, Any]) -> torch.Tensor:
        if "of" in described:
            base = self.rebuild(described["of"])
            shape, stride, offset = described["view"]
            tensor = torch.empty(0, dtype=described["dtype"], device=base.device)
            last = offset + sum((length - 1) * step for length, step in zip(shape, stride, strict=True))
            if min((*shape, *stride, offset), default=0) < 0 or (
                0 not in shape and (last + 1) * tensor.element_size() > base.untyped_storage().nbytes()
            ):
                raise CheckpointError("a view does not fit into the tensor that it is a view of")
            if base.dtype == described["dtype"] and base.layout is torch.strided and "apart" not in described:
                tensor = base.detach().as_strided(shape, stride, offset)  # which torch knows to be a view
            else:
                tensor.set_(base.untyped_storage(), offset, tuple(shape), tuple(stride))
        else:
            tensor = described["values"]
            if not isinstance(tensor, torch.Tensor):
                raise CheckpointError("a tensor is described without its values")
        if described["is"] == "parameter":
            return torch.nn.Parameter(tensor, described["requires_grad"])
        return tensor.requires_grad_(described["requires_grad"])


def is_plain_class(kind: type) -> bool:
    """True for an importable class of the user's own whose objects are their attributes, and nothing else."""
    special = ("__new__", "__del__", "__setstate__", "__getstate__", "__reduce__", "__reduce_ex__")
    return (
        is_users(kind.__module__)
        and "<" not in kind.__qualname__
        and category_of(kind) == "object"
        and not any(
            name in vars(base) and not _is_generated(vars(base)[name]) for base in kind.__mro__[:-1] for name in special
        )
    )


def _is_generated(method: Any) -> bool:
    """True for a method that a decorator of classes made: that of frozen dataclasses, or of attrs."""
    return getattr(method, "__globals__", {}).get("__name__") in ("dataclasses", "attr._make")


def is_saveable(tensor: torch.Tensor) -> bool:
    """True for tensors whose values a checkpoint can hold."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout in (torch.strided, torch.sparse_coo)
        and not (tensor.is_meta or tensor.is_quantized or tensor.is_nested)
    )


def _methods_of(owner: Any) -> dict[str, types.FunctionType]:
    """The methods of an object by name: those of a class of the user's own, `forward` and `step` of a library's."""
    kind = type(owner)
    methods: dict[str, types.FunctionType] = {}
    if category_of(kind) == "class":
        for base in reversed(owner.__mro__ if is_users(owner.__module__) else ()):
            functions = {name: part.__func__ for name, part in vars(base).items() if isinstance(part, classmethod)}
            methods |= {name: part for name, part in functions.items() if isinstance(part, types.FunctionType)}
    elif category_of(kind) in ("object", "module", "optimizer", "list", "mapping", "deque", "set"):
        for base in reversed(kind.__mro__[:-1]):
            names = vars(base) if is_users(base.__module__) else {"forward", "step", "__call__"} & vars(base).keys()
            parts = {name: vars(base)[name] for name in names}
            methods |= {name: part for name, part in parts.items() if isinstance(part, types.FunctionType)}
    return methods


def _name_of_method(method: types.MethodType) -> str | None:
    """The name under which the class of its object has a method; None if it does not have it."""
    for name, function in _methods_of(method.__self__).items():
        if function is method.__func__:
            return name
    return None


def _dtype_text(array: Any) -> str | None:
    """The type of an array as a description has it; None for one with fields, or of a library's own."""
    return _text_of_dtype(array.dtype)


def _text_of_dtype(dtype: Any) -> str | None:
    text = numpy.lib.format.dtype_to_descr(dtype)
    return text if isinstance(text, str) and numpy.lib.format.descr_to_dtype(text) == dtype else None


def _has_memory(tensor: torch.Tensor) -> bool:
    is_lazy = torch.nn.parameter.is_lazy(tensor)
    return not is_lazy and tensor.layout is torch.strided and not tensor.is_meta and tensor.numel() > 0


def _name(value: Any, path: str, *, is_enum: bool = False) -> tuple[str, str]:
    module, name = value.__module__, value.__qualname__
    try:
        if _find(module, name, is_enum=is_enum) is value:
            return module, name
    except CheckpointError:
        pass
    raise UnknownStateError(path, f"is `{name}`, which cannot be found by its name: define it at the top of a module")


def _find(module: str, name: str, *, is_enum: bool = False) -> Any:
    """A class or function that a module of the user's own defines, or a class of enumeration members, by name."""
    value: Any = sys.modules.get(module)
    if not isinstance(value, types.ModuleType) or not (is_users(module) or is_enum):
        raise CheckpointError(f"there is no module `{module[:100]}` of yours")
    for part in name.split("."):
        value = vars(value).get(part)
        if not isinstance(value, type | types.FunctionType):
            raise CheckpointError(f"there is no `{name[:100]}` in the module `{module[:100]}`")
    # Not what the module has only imported, as `from subprocess import run`.
    if (value.__module__, value.__qualname__) != (module, name) or (is_enum and not issubclass(value, enum.Enum)):
        raise CheckpointError(f"the module `{module[:100]}` does not define `{name[:100]}` itself")
    return value
