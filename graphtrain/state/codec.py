"""Values with references to the objects of a run: encoded, and decoded in another process.

An object that a `state_dict` saves is referred to by its place there, any other that is reachable by its path, a
repeated one by its number. So two places that held one object hold one again. A tensor or an array in the memory of
such an object is a view of it again; other memory that is shared is reported.

Decoded data may come from a stranger. Nothing is imported and nothing is called: classes and functions are those
defined in modules of the user that are already imported; objects are their attributes.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import numpy
import torch

from graphtrain.errors import CheckpointError
from graphtrain.state.entries import Entry
from graphtrain.state.graphs import keeps_graph
from graphtrain.state.kinds import KINDS, Category, category_of, is_constant, is_users
from graphtrain.state.memory import MemoryIndex, overlapping, owner_of, span_of, start_of_allocation, view_of, viewed
from graphtrain.state.places import CONTAINERS, Place, places, shown_place
from graphtrain.state.reachable import REMEDY, Reachable
from graphtrain.storage.encoding import Decoder, Encoded, Encoder, UnsaveableError, is_saveable, tagged
from graphtrain.storage.value_types import DTYPES, type_of

MOST_BYTES = 256 * 2**20
_SHARES = "shares memory with {}, which a resume cannot restore: clone it"
_MOST_SHOWN = 120

# Errors from data that no `StateWriter` has made.
MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


class UnknownStateError(UnsaveableError):
    """Something that cannot be saved, and is reported."""

    def __init__(self, path: str, what: str) -> None:
        self.line = f"{shown_path(path)} {what}"
        super().__init__(path, f"it {what}")


@final
class StateWriter(Encoder):
    """Encodes values in terms of reachable objects.

    Attributes:
        graphs: the first paths of tensors that keep a graph in addition to their values.
        is_in_transit: True while values between nodes are encoded.
    """

    keeps_order = True

    def __init__(
        self, reachable: Reachable, stateful: Mapping[str, Any], is_left_out: Callable[[str], bool] | None = None
    ) -> None:
        super().__init__()
        self.graphs: list[str] = []
        self.is_in_transit = self.refuses_graphs = False
        self._reachable, self._stateful, self._is_left_out = reachable, stateful, is_left_out
        # Path and value of new tensors and arrays, and what else is in their memory.
        self._new: list[tuple[str, Any, Any]] = []
        self._first: dict[int, Any] = {}  # of the new ones in an allocation, by its address
        self._others: Mapping[str, Any] = {}  # tensors and arrays to which nothing can refer
        self._bytes = 0

    def pack(self, value: Any, path: str, part: str = "") -> Encoded:
        """A value, encoded.

        Arguments:
            path: its path, for messages.
            part: a unique name. Default: the path.

        Raises:
            UnknownStateError: it, or something in it, cannot be encoded.
        """
        part, before, new = part or path, self._bytes, len(self._new)
        self.begin(part)
        try:
            return Encoded(part, self.encode(value, path, part))
        except UnsaveableError as error:
            self.forget()
            self._bytes = before
            del self._new[new:]
            if self.is_in_transit or isinstance(error, UnknownStateError):
                raise
            raise UnknownStateError(error.path, f"cannot be saved: {error.reason}") from None

    def pack_in_transit(self, values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Encoded]:
        """Values between nodes, by path, of any size; encoded after all else, to whose objects they may refer.

        Arguments:
            others: path -> tensor or array that is saved elsewhere, to which nothing can refer.

        Raises:
            UnsaveableError: one, or something in it, cannot be encoded.
        """
        self.is_in_transit = self.refuses_graphs = True
        self._others = others
        for name in ("_known", "_places"):
            vars(self).pop(name, None)
        return {path: self.pack(value, path) for path, value in values.items()}

    @contextmanager
    def attempt(self, unknown: list[str]) -> Iterator[None]:
        """A context in which something is encoded; if it cannot be, the reason is reported."""
        try:
            yield
        except UnknownStateError as error:
            unknown.append(error.line)

    def count(self, size: int, path: str) -> None:
        """Count saved bytes.

        Raises:
            UnknownStateError: there are too many.
        """
        if self._bytes + size > MOST_BYTES and not self.is_in_transit:
            raise UnknownStateError(path, f"is beyond the {MOST_BYTES >> 20} MiB that are saved without a `state_dict`")
        self._bytes += size

    def note_graph(self, tensor: torch.Tensor, path: str) -> None:
        """Note that a tensor is saved without its graph."""
        if not self.graphs and keeps_graph(tensor):
            self.graphs.append(path)

    # ---- values other than plain data

    def describe(self, value: Any, path: str, name: str, depth: int) -> Any:
        """A reference to an object that exists, or the form of a new one; None for plain data.

        Raises:
            UnknownStateError: it cannot be encoded.
        """
        category = category_of(type(value))
        if (reference := self._reference(value, category, path)) is not None or category == "value":
            return reference
        if category in ("tensor", "array") and is_saveable(value):
            return self._in_memory(value, path, name, depth)
        return self._new_object(value, category, path, name, depth)

    def _reference(self, value: Any, category: Category, path: str) -> Any:
        """The reference to what a resumed process has; None for a new object."""
        kind = type(value)
        if isinstance(value, enum.Enum):
            if value.name not in kind.__members__:
                raise UnknownStateError(path, f"is a combination of flags, {value!r}, which is not saved: {REMEDY}")
            return tagged("member", *name_of(kind, path, is_enum=True), value.name)
        if kind is int and value in self._reachable.by_id:  # an `id`, by which a `GradScaler` has optimizers
            return tagged("id", self._reachable.by_id[value].path)
        if category == "value" or (category in ("tuple", "set") and is_constant(value)):
            return None  # equal ones may be one object, or two
        entry = self._reachable.find(value)
        # By its place first: loading may fill another object than the one that training has bound there.
        has_place = entry.is_covered if entry is not None else self.is_in_transit and category in CONTAINERS
        if has_place and (place := self._places.get(id(value))) is not None:
            return self._at_place(place)
        if entry is not None and not (self.is_in_transit and self._leaves_out(entry)):
            return tagged("at", entry.path)
        if category in ("function", "class") and is_users(value.__module__):
            return tagged("named", *name_of(value, path))
        return None

    def _at_place(self, place: Place) -> Any:
        return tagged("in", *(self.encode(key, "") for key in place))

    def _new_object(self, value: Any, category: Category, path: str, name: str, depth: int) -> Any:
        kind: Any = type(value)
        match category:
            case "tuple" if kind.__mro__[1] is tuple and hasattr(kind, "_fields") and is_users(kind.__module__):
                return tagged("named tuple", *name_of(kind, path), *self._each(value, path, name, depth))
            case "set" if not all(map(is_constant, value)):
                raise UnknownStateError(path, "is a set of objects, whose order is that of their addresses: use a list")
            case _ if type_of(kind) is not None or (kind is type and value.__module__ == "builtins"):
                return None
            case "object" if kind is types.SimpleNamespace or is_plain_class(kind):
                self.add(value)
                attributes = {
                    key: self.encode(part, f"{path}.{key}", f"{name}/{key}", depth + 1)
                    for key, part in zip(*KINDS["object"].contents(value), strict=True)
                }
                return tagged("object", attributes, *(name_of(kind, path) if is_users(kind.__module__) else ()))
            case "iterator":
                what = f"is an iterator ({kind.__name__}), whose position is not saved: {REMEDY}"
                raise UnknownStateError(path, what)
        if self.is_in_transit and kind.__name__ != "DTensor":
            return None  # which the encoder refuses
        layout = f" ({value.layout})" if category == "tensor" else ""
        raise UnknownStateError(path, f"is a new {kind.__qualname__}{layout}, which cannot be saved: {REMEDY}")

    def _in_memory(self, value: Any, path: str, name: str, depth: int) -> Any:
        """The form of a tensor or an array that is not listed: its place, or a view; None for its values."""
        is_tensor = isinstance(value, torch.Tensor)
        if is_tensor:  # with its graph it could not be saved; code that keeps one computes it again
            self.note_graph(value, path)
        near = self._known.sharing(value)
        if any(each is value for each in near) and (place := self._places.get(id(value))) is not None:
            return self._at_place(place)
        allocation = start_of_allocation(value)
        first = self._first.get(allocation)
        owners = near if first is None or id(first) not in self._numbers else [*near, first]
        for owner in owners if not (is_tensor and value.is_leaf and value.requires_grad) else ():
            if owner is not value and not any(owner is other for other in self._others.values()):
                view = view_of(value, owner, is_new=self._reachable.find(owner) is None)
                if view is not None:
                    reference = self.encode(owner, path, name, depth + 1)
                    self.add(value)
                    return tagged("view", is_tensor, reference, *view)
        self.count(value.numel() * value.element_size() if is_tensor else value.nbytes, path)
        self._first.setdefault(allocation, value)
        self._new.append((path, value, near[0] if near else None))
        return None

    @functools.cached_property
    def _places(self) -> dict[int, Place]:
        """The places of what objects with a `state_dict` have, by identity."""
        # Outside of transit, an object with a `state_dict` may be encoded at this moment.
        return {
            id(value): place
            for place, value in places(self._stateful)
            if (self.is_in_transit or place[1] != "attribute") and all(map(is_constant, place))
        }

    @functools.cached_property
    def _known(self) -> MemoryIndex:
        """The tensors and arrays that are listed, or that objects with a `state_dict` have."""
        listed = [each for each in self._reachable.by_path.values() if not self._leaves_out(each)]
        saved = [value for place, value in places(self._stateful) if self.is_in_transit or place[1] != "attribute"]
        saved = [value for value in (*saved, *self._others.values()) if id(value) not in self._reachable.by_id]
        values = [each.value for each in listed if each.category in ("tensor", "array")] + saved
        # Read-only memory may be shared.
        arrays = [value for value in values if isinstance(value, numpy.ndarray) and owner_of(value).flags.writeable]
        return MemoryIndex([*(value for value in values if isinstance(value, torch.Tensor)), *arrays])

    def lost_memory(self) -> list[str]:
        """A line for each new tensor and array whose sharing of memory a resume cannot restore."""
        new = self._new if self.is_in_transit else [*self._new, *self._states_in_memory()]
        pairs = [(path, self._shown(near)) for path, _, near in new if near is not None]
        spans = {path: span for path, value, _ in self._new if (span := span_of(value)) is not None}
        pairs += [(other, first) for first, *others in overlapping(spans) for other in others]
        return [f"{shown_path(path)} {_SHARES.format(shown_path(other))}" for path, other in dict(pairs).items()]

    def _states_in_memory(self) -> Iterator[tuple[str, Any, Any]]:
        """What optimizers have made in the memory of something else, in the form of `_new`."""
        optimizers = {path: each for path, each in self._stateful.items() if isinstance(each, torch.optim.Optimizer)}
        for place, part in places(optimizers):
            is_made = place[1] == "state" and id(part) not in self._reachable.made_states
            is_listed = self._reachable.find(part) is not None
            if is_made and isinstance(part, torch.Tensor) and (is_listed or part._base is not None):
                near = (each for each in self._known.sharing(part) if is_listed or each is not part)
                yield shown_place(place), part, next(near, None)

    def _shown(self, value: Any) -> str:
        """The path of a known tensor or array, for messages."""
        if (entry := self._reachable.find(value)) is not None:
            return entry.path
        paths = {id(other): path for path, other in self._others.items()}
        paths |= {id(saved): shown_place(place) for place, saved in places(self._stateful)}
        return paths[id(value)]

    def _leaves_out(self, entry: Entry) -> bool:
        return self._is_left_out is not None and self._is_left_out(entry.path)


@final
class StateReader(Decoder):
    """Finds or makes the values encoded by a `StateWriter`.

    Arguments:
        section: holds the encoded values, in nested mappings.
    """

    def __init__(self, reachable: Reachable, stateful: Mapping[str, Any], section: Any) -> None:
        super().__init__()
        self._reachable, self._stateful = reachable, stateful
        self._encoded = {each.part: each for each in reversed([*_encoded_in(section)])}  # the first of a name
        self._values: dict[str, Any] = {}

    def unpack(self, encoded: Any) -> Any:
        """The value.

        Raises:
            CheckpointError: it refers to something that does not exist, or that must not be made.
            one of `MALFORMED`: no `StateWriter` has made it.
        """
        if not isinstance(encoded, Encoded):
            raise CheckpointError(f"a value described as {str(encoded)[:100]} cannot be made")
        part = encoded.part
        if part not in self._values:
            before, self._part, self._shared[part] = self._part, part, []
            try:
                self._values[part] = self.decode(encoded.data)
            finally:
                self._part = before
        return self._values[part]

    def shared(self, part: str, number: int) -> Any:
        """The object with a number in a part, which is decoded first."""
        if part not in self._shared and part in self._encoded:
            self.unpack(self._encoded[part])
        return super().shared(part, number)

    @functools.cached_property
    def _places(self) -> dict[Place, Any]:
        return dict(places(self._stateful))

    def resolve(self, name: str, parts: list[Any]) -> Any:
        """The object that is referred to, or a new one: empty first, for what it holds may refer to it."""
        match name, parts:
            case "at" | "id", [str(path)]:
                if path not in self._reachable.by_path:
                    raise CheckpointError(f"`{path}`, which the saved run had, does not exist now")
                value = self._reachable.by_path[path].value
                return value if name == "at" else id(value)
            case "in", _:
                place = tuple(map(self.decode, parts))
                if place not in self._places:
                    shown = ".".join(map(str, place))
                    raise CheckpointError(f"`{shown}`, which the saved run had, does not exist now")
                return self._places[place]
            case "named", [str(module), str(named)]:
                return found_by_name(module, named)
            case "member", [str(module), str(named), str(member)]:
                members = found_by_name(module, named, is_enum=True).__members__
                if member in members:
                    return members[member]
            case "named tuple", [str(module), str(named), *members]:
                kind = found_by_name(module, named)
                fields = getattr(kind, "_fields", ())
                if isinstance(kind, type) and kind.__mro__[1] is tuple and len(fields) == len(members):
                    return tuple.__new__(kind, map(self.decode, members))
            case "view", [bool(is_tensor), owner, str(dtype), *geometry]:
                return self.add(viewed(self.decode(owner), DTYPES[dtype] if is_tensor else dtype, *geometry))
            case "object", [{**attributes}, *names]:
                kind = found_by_name(*names) if names else None
                if kind is None or (isinstance(kind, type) and is_plain_class(kind)):
                    value = types.SimpleNamespace() if kind is None else object.__new__(kind)
                    self.add(value)
                    contents = {key: self.decode(part) for key, part in attributes.items()}
                    KINDS["object"].put(value, contents, ())
                    return value
        raise CheckpointError(f"a value described as {str([name, *parts])[:100]} cannot be made")


def _encoded_in(section: Any) -> Iterator[Encoded]:
    """The values in nested mappings; those of progress come last, which has what data was when its epoch began too."""
    if isinstance(section, Encoded):
        yield section
    elif isinstance(section, Mapping):
        for part in section.values():
            yield from _encoded_in(part)


def shown_path(path: str) -> str:
    """A path for a message: what is in a variable is called like the variable, and the middle of a long one left out.

    >>> shown_path("step<calls>.cell_contents.total")
    'step<calls>.total'
    """
    shown = path.replace(".cell_contents", "")
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[: _MOST_SHOWN // 2]}...{shown[-_MOST_SHOWN // 2 :]}"


def is_plain_class(kind: type) -> bool:
    """True for an importable class of the user's own whose objects are their attributes, and nothing else."""
    special = ("__new__", "__del__", "__setstate__", "__getstate__", "__reduce__", "__reduce_ex__")
    methods = [vars(base)[name] for base in kind.__mro__[:-1] for name in special if name in vars(base)]
    # A decorator of classes makes some: that of frozen dataclasses, and of attrs.
    modules = {getattr(method, "__globals__", {}).get("__name__") for method in methods}
    is_importable = is_users(kind.__module__) and "<" not in kind.__qualname__
    return is_importable and category_of(kind) == "object" and modules <= {"dataclasses", "attr._make"}


def name_of(value: Any, path: str, *, is_enum: bool = False) -> tuple[str, str]:
    """The module and the name of a class or function, by which `found_by_name` finds it."""
    module, name = value.__module__, value.__qualname__
    try:
        if found_by_name(module, name, is_enum=is_enum) is value:
            return module, name
    except CheckpointError:
        pass
    raise UnknownStateError(path, f"is `{name}`, which cannot be found by its name: define it at the top of a module")


def found_by_name(module: str, name: str, *, is_enum: bool = False) -> Any:
    """A class or function that a module of the user's own defines, or a class of enumeration members, by name."""
    value: Any = sys.modules.get(module)
    if not isinstance(value, types.ModuleType) or not (is_users(module) or is_enum):
        raise CheckpointError(f"there is no module `{module[:100]}` of yours")
    for part in name.split("."):
        value = vars(value).get(part)
        if not isinstance(value, type | types.FunctionType):
            raise CheckpointError(f"there is no `{name[:100]}` in the module `{module[:100]}`")
    # Not what the module has only imported, as with `from subprocess import run`.
    if (value.__module__, value.__qualname__) != (module, name) or (is_enum and not issubclass(value, enum.Enum)):
        raise CheckpointError(f"the module `{module[:100]}` does not define `{name[:100]}` itself")
    return value
