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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import numpy
import torch

from graphtrain.state.category import category_of, is_constant, is_users
from graphtrain.state.contents import FORMS, MOST_COMPARED
from graphtrain.state.generators import any_generator, kind_of_generator
from graphtrain.state.graphs import keeps_graph
from graphtrain.state.nested import CONSTANTS
from graphtrain.state.reachable import REMEDY, Reachable, Reached, shown_key
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
    parts_in,
    places,
    shown_path,
)
from graphtrain.state.shared_memory import (
    Memory,
    Spans,
    address_of,
    has_memory,
    lie_of,
    memories,
    owner_of,
    view_within,
)

MOST_BYTES = 256 * 2**20
# Of a larger tensor that nobody else holds, a view is saved without the rest.
_MOST_SHARED_BYTES = 64 * 2**10
# Of a sample in a large container of data, levels at which a tensor may be.
_MOST_LEVELS = 3
_ENCODED = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


@dataclass(frozen=True)
class Owner:
    """A tensor or an array whose memory others may share.

    Attributes:
        reference: how it is found again.
        path: for messages.
        is_as_set_up: True for one that `setup` made, with all that shares its memory.
    """

    value: Any
    reference: list[Any]
    path: str
    is_as_set_up: bool

    @property
    def may_be_new(self) -> bool:
        """True if it is described as new, or may be."""
        kind, place = self.reference
        return bool(kind == "new" or (kind == "place" and place[1] == "attribute"))


@final
class Describer:
    """Describes values in terms of what was reached.

    Attributes:
        new: the descriptions of objects that were not reached, by number.
        graphs: the paths of tensors of which more is kept than their values, the first of them.
    """

    def __init__(
        self, reachable: Reachable, stateful: Mapping[str, Any], is_left_out: Callable[[str], bool] | None = None
    ) -> None:
        self.new: list[Any] = []
        self._is_left_out = is_left_out
        self.graphs: list[str] = []
        self._reachable, self._stateful = reachable, stateful
        self._numbers: dict[int, int] = {}
        self._paths: dict[int, str] = {}  # of new tensors and arrays
        self._storages: dict[int, Any] | None = None
        self._places: dict[int, tuple[Any, ...]] | None = None
        self._held: dict[int, tuple[Any, ...]] | None = None  # by objects with a `state_dict`
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
            # What an object with a `state_dict` holds may be described right now.
            case "tensor" if (place := self._place(value)) and place[1] != "attribute":
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

    def identity(self, value: Any) -> list[Any] | None:
        """How a value in transit that is the very same as one met before is found again; None for another."""
        if (reached := self._reachable.find(value)) is not None:
            return None if self._leaves_out(reached) else ["at", reached.path]
        if id(value) in self._numbers:
            return ["new", self._numbers[id(value)]]
        if category_of(type(value)) in ("tensor", "array"):  # which are found by their memory
            return None
        if self._held is None:
            objects = {path: held for path, held in self._stateful.items() if category_of(type(held)) == "object"}
            self._held = {id(part): place for place, part in places(objects)}
        place = self._held.get(id(value))
        return ["place", list(place)] if place is not None and all(map(is_plain_key, place)) else None

    def items_of_large(self, wanted: Collection[int]) -> dict[int, list[Any]]:
        """How items of containers of data that were too large to be looked into are found again, by identity.

        Arguments:
            wanted: the identities of values in transit.
        """
        found: dict[int, list[Any]] = {}
        for reached in self._reachable.by_path.values():
            is_searched = not reached.is_entered and reached.category in ("list", "tuple", "deque", "mapping")
            if is_searched and len(reached.value) <= MOST_COMPARED and not self._leaves_out(reached):
                for keys, part in _parts_among(reached.value, wanted):
                    found.setdefault(id(part), ["item", reached.path, list(keys)])
        return found

    def owners(self, spans: Spans) -> Iterator[Owner]:
        """Whatever is saved, or set up again, that may have a byte in some spans of memory.

        What was set up comes first, then what is new, then what a `state_dict` has.
        """
        listed = self._reachable.by_path.values()
        for category in ("tensor", "array"):
            reached = [each for each in listed if each.category == category and not self._leaves_out(each)]
            if category == "array":  # what nobody can write to may be another's
                reached = [each for each in reached if owner_of(each.value).flags.writeable]
            for number in spans.met_by([each.value for each in reached]):
                each = reached[number]
                yield Owner(each.value, ["at", each.path], each.path, is_as_set_up=True)
        described = [(number, new["values"]) for number, new in enumerate(self.new) if _is_by_values(new)]
        for number in spans.met_by([value for _, value in described]):
            new, value = described[number]
            yield Owner(value, ["new", new], self._paths.get(new, "what it shares"), is_as_set_up=False)
        if not spans.met_by(self._unlisted()):  # their places take a hundred times as long
            return
        held = [each for each in places(self._stateful) if isinstance(each[1], torch.Tensor | numpy.ndarray)]
        for number in spans.met_by([value for _, value in held]):
            place, value = held[number]
            if all(map(is_plain_key, place)):
                yield Owner(value, ["place", list(place)], shown_place(place), is_as_set_up=False)

    def _unlisted(self) -> list[Any]:
        """The tensors and arrays that `places` gives, all but those that were reached."""
        unlisted: list[Any] = []
        for value in self._stateful.values():
            if isinstance(value, torch.nn.Module):
                for module in value.modules():
                    unlisted += [tensor for tensor in module._buffers.values() if tensor is not None]
                    parameters = [parameter for parameter in module._parameters.values() if parameter is not None]
                    unlisted += parameters
                    unlisted += [grad for parameter in parameters if (grad := parameter.grad) is not None]
            elif isinstance(value, torch.optim.Optimizer):
                held = [part for state in value.state.values() for part in state.values()]
                held += [part for group in value.param_groups for part in group.values() if type(part) is not list]
                unlisted += [part for part in held if isinstance(part, torch.Tensor)]
                further = [part for part in held if type(part) not in CONSTANTS and not isinstance(part, torch.Tensor)]
                unlisted += [part for each in further for _, part in parts_in(each)]
            elif category_of(type(value)) == "object":
                unlisted += [part for _, part in places({"": value})]
        by_id = self._reachable.by_id
        kinds = (torch.Tensor, numpy.ndarray)
        return [value for value in unlisted if id(value) not in by_id and isinstance(value, kinds)]

    def _leaves_out(self, reached: Reached) -> bool:
        return self._is_left_out is not None and self._is_left_out(reached.path)

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
            self._paths = {number: path for number, path in self._paths.items() if number < before}
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
        self._share_with_others(unknown)
        for memory in list(memories(self.new)):
            with self.attempt(unknown):
                self._share(memory)

    def _share_with_others(self, unknown: list[str]) -> None:
        """Describe new tensors and arrays in the memory of what is no new tensor or array as views of that."""
        described = {number: new for number, new in enumerate(self.new) if _is_by_values(new)}
        lies = {number: lie for number, new in described.items() if (lie := lie_of(new["values"])) is not None}
        if not lies:
            return
        Spans(described[number]["values"] for number in lies)
        # What an object with a `state_dict` holds is perhaps what was described.
        listed = [
            owner
            for owner in self.owners(Spans(described[number]["values"] for number in lies))
            if not owner.may_be_new
        ]
        owners = [(owner, lie) for owner in listed if (lie := lie_of(owner.value)) is not None]
        for number, lie in lies.items():
            description, value = described[number], described[number]["values"]
            near = [owner for owner, other in owners if lie.overlaps(other)]
            views = ((owner, view_within(value, owner.value, beyond=owner.is_as_set_up)) for owner in near)
            dtype = value.dtype if isinstance(value, torch.Tensor) else _dtype_text(value)
            for owner, view in views:
                if view is not None and dtype is not None:
                    self._bytes -= value.nbytes
                    kind, *place = owner.reference
                    of = ("in", *place[0]) if kind == "place" else ("at", *place)
                    del description["values"]
                    description |= {"of": of, "memory": view, "dtype": dtype}
                    break
            else:
                if near:
                    what = f"shares memory with {shown_path(near[0].path)}, which a resume cannot restore"
                    unknown.append(str(UnknownStateError(self._paths[number], what)))

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
        self._paths[len(self.new)] = path
        self.new.append({"is": "tensor", "requires_grad": False, "grad": None, "values": whole})
        return reference

    def _bases(self) -> dict[int, Any]:
        """By the memory of a tensor: a tensor that has it already."""
        if self._storages is None:
            self._storages = {}
            for reached in self._reachable.by_path.values():
                if reached.category == "tensor" and has_memory(reached.value):
                    storage = reached.value.untyped_storage()._cdata
                    self._storages.setdefault(storage, ("at", reached.path))
        return self._storages

    def _place(self, tensor: torch.Tensor) -> tuple[Any, ...] | None:
        """Where a tensor is in what is saved by a `state_dict`, if it came there since it was reached."""
        if self._places is None:
            self._places = {id(value): place for place, value in places(self._stateful)}
        return self._places.get(id(tensor))


def is_plain_key(key: Any) -> bool:
    """True for a key that a manifest can have."""
    return (type(key) is int and abs(key) < 2**63) or (type(key) is str and key.isprintable())


def shown_place(place: tuple[Any, ...]) -> str:
    """A place of `places` for a message.

    >>> shown_place(("optimizer", "state", 0, "exp_avg")), shown_place(("model", "grad", "0.weight"))
    ('optimizer.state[0].exp_avg', 'model.0.weight.grad')
    """
    path, kind, *keys = place
    if kind == "grad":
        return f"{path}.{keys[0]}.grad"
    if kind in ("state", "group"):
        path = f"{path}.{'state' if kind == 'state' else 'param_groups'}[{keys.pop(0)}]"
    name, *inner = keys
    return f"{path}.{name}" + "".join(f"[{key!r}]" for key in inner)


def _is_by_values(described: Any) -> bool:
    return isinstance(described, dict) and isinstance(described.get("values"), torch.Tensor | numpy.ndarray)


def _parts_among(value: Any, wanted: Collection[int], keys: tuple[Any, ...] = ()) -> Iterator[tuple[Any, Any]]:
    """The parts of nested containers that have some identities, with the keys that lead to each."""
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, part in pairs:
        if id(part) in wanted and is_plain_key(key):
            yield (*keys, key), part
        elif type(part) in (tuple, list, dict) and len(keys) < _MOST_LEVELS and is_plain_key(key):
            yield from _parts_among(part, wanted, (*keys, key))


def _dtype_text(array: Any) -> str | None:
    """The type of an array as a description has it; None for one with fields, or of a library's own."""
    return _text_of_dtype(array.dtype)


def _text_of_dtype(dtype: Any) -> str | None:
    text = numpy.lib.format.dtype_to_descr(dtype)
    return text if isinstance(text, str) and numpy.lib.format.descr_to_dtype(text) == dtype else None
