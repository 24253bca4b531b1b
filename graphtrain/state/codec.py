"""Encode values that refer to objects of the run, and decode them in another process.

A reference is the place of an object in a `state_dict`, the path of any other reachable object, or the number of a new
one. So two attributes that held one object hold one object after a resume. A tensor or an array in the memory of a
referenced one is a view of it after a resume; other shared memory is reported.

Decoded data may come from an untrusted file. Nothing is imported and nothing is called: classes and functions are those
defined in modules of the user that are already imported, and objects are created from their attributes.
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, final

import torch

from graphtrain.errors import CheckpointError
from graphtrain.names import plainly_named
from graphtrain.printable import shown_path
from graphtrain.state.autograd_graphs import KEEPS_GRAPH, keeps_graph
from graphtrain.state.classes import CONSTANTS, IN_CONTAINERS, RULES, Category, category_of, is_constant, is_users
from graphtrain.state.memory import MemoryIndex, view_of, viewed
from graphtrain.state.optimizers import states_of
from graphtrain.state.reachable import REMEDY
from graphtrain.state.snapshot import StateSnapshot
from graphtrain.storage.encoding import MOST_DEPTH, Decoder, Encoded, Encoder, UnsaveableError, is_saveable, tagged
from graphtrain.storage.value_types import DTYPES, type_of

MOST_BYTES = 256 * 2**20
_IN_MEMORY = ("tensor", "array")

# The categories of objects that are changed in place, so that a reference to one must lead to the same object.
_CONTAINERS = frozenset({"list", "mapping", "set", "object"})

# The errors that data raises which is not from a `StateWriter`.
MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


@final
class StateWriter(Encoder):
    """Encodes values that may refer to reachable objects.

    Attributes:
        is_in_transit: True while the values of slots are encoded.
        lost: a notice for each new value whose autograd graph or shared memory a resume cannot restore.
    """

    keeps_order = True

    def __init__(self, snapshot: StateSnapshot) -> None:
        super().__init__()
        self.is_in_transit = self.refuses_graphs = self._has_graph = False
        self.lost: list[str] = []
        self._snapshot = snapshot
        self._reachable, self._stateful = snapshot.reachable, snapshot.stateful
        self._saved_elsewhere: Mapping[str, Any] = {}  # tensors and arrays to which nothing can refer
        self._bytes = 0

    def pack(self, value: Any, path: str, part: str = "") -> Encoded:
        """Encode a value.

        Arguments:
            path: its path, for messages.
            part: a unique name, for references to objects in it. Default: the path.

        Raises:
            UnsaveableError: it, or something in it, cannot be encoded.
        """
        self._part, size, lost = part or path, self._bytes, len(self.lost)
        self._objects[self._part] = []
        try:
            return Encoded(self._part, self.encode(value, path))
        except UnsaveableError:
            for each in self._objects[self._part]:
                del self._numbers[id(each)]
            self._bytes = size
            del self.lost[lost:]
            raise

    def begin_transit(self, saved_elsewhere: Mapping[str, Any]) -> None:
        """From now on, encode the values of slots: of any size, with references also to objects encoded before.

        `saved_elsewhere` has the tensors and arrays of other sections, path -> value, to which no value can refer.
        """
        self.is_in_transit = self.refuses_graphs = True
        self._saved_elsewhere = saved_elsewhere

    def count(self, size: int, path: str) -> None:
        """Count saved bytes; raises an UnsaveableError beyond the limit."""
        if self._bytes + size > MOST_BYTES and not self.is_in_transit:
            most = f"more than {MOST_BYTES >> 20} MiB would be saved without a `state_dict`"
            raise UnsaveableError(path, f"{most}: {REMEDY}")
        self._bytes += size

    def note_graph(self, tensor: torch.Tensor, path: str) -> None:
        """Report once that a tensor is saved without its autograd graph."""
        if not self._has_graph and keeps_graph(tensor):
            self._has_graph = True
            self.lost.append(f"{shown_path(path)} {KEEPS_GRAPH}")

    def note_states(self) -> None:
        """Report state that optimizers have created as views of other memory."""
        for place, part in self._of_optimizers:
            is_new = isinstance(part, torch.Tensor) and id(part) not in self._reachable.initial_states
            if ".state[" in place and is_new and (self._reachable.find(part) or part._base is not None):
                self._report_shared_memory(place, [pair for pair in self._memory.overlapping(part) if pair[0] != place])

    def _report_shared_memory(self, path: str, near: Sequence[tuple[str, Any]]) -> None:
        for other, _ in near[:1]:
            problem = f"shares memory with {shown_path(other)}, which a resume cannot restore: clone it"
            self.lost.append(f"{shown_path(path)} {problem}")

    # ---- values other than plain data

    def describe(self, value: Any, path: str, depth: int) -> Any:
        """A reference to an existing object, or the description of a new one; None for plain data.

        Raises:
            UnsaveableError: it cannot be encoded.
        """
        category = category_of(type(value))
        if (reference := self._reference(value, category, path)) is not None or category == "value":
            return reference
        if category in _IN_MEMORY and is_saveable(value):
            return self._view(value, path, depth)
        return self._new_object(value, category, path, depth)

    def _reference(self, value: Any, category: Category, path: str) -> Any:
        """The reference to an object that a resumed process has too; None for a new object."""
        cls = type(value)
        if isinstance(value, enum.Enum) and value.name in cls.__members__:
            return tagged("member", *name_of(cls, path), value.name)
        if cls is int and value in self._reachable.by_id:  # an `id`, by which a `GradScaler` has optimizers
            return tagged("id", self._reachable.by_id[value].path)
        if category == "value" or (category in ("tuple", "set") and is_constant(value)):
            return None  # equal ones may be one object, or two
        entry = self._reachable.find(value)
        # By its place first: loading may fill another object than the one that training has assigned there.
        is_placed = category in _IN_MEMORY or (self.is_in_transit and category in _CONTAINERS)
        if is_placed if entry is None else entry.is_saved_elsewhere:
            known = self._places_in_transit if self.is_in_transit else self._places
            if (place := known.get(id(value))) is not None:
                return tagged("at", place)
        if entry is not None and not (self.is_in_transit and self._snapshot.is_excluded(entry.path)):
            return tagged("at", entry.path)
        if category in ("function", "class") and is_users(value.__module__):
            return tagged("named", *name_of(value, path))
        return None

    def _new_object(self, value: Any, category: Category, path: str, depth: int) -> Any:
        cls: Any = type(value)
        match category:
            case "tuple" if cls.__mro__[1] is tuple and hasattr(cls, "_fields") and is_users(cls.__module__):
                return tagged("named tuple", *name_of(cls, path), *self._each(value, path, depth))
            case "set" if not all(map(is_constant, value)):
                raise UnsaveableError(path, "it is a set of objects, in the order of their addresses: use a list")
            case _ if type_of(cls) is not None or (cls is type and value.__module__ == "builtins"):
                return None
            case "object" if cls is types.SimpleNamespace or is_plain_class(cls):
                self.add(value)
                attributes = {
                    key: self.encode(part, f"{path}.{key}", depth + 1)
                    for key, part in zip(*RULES["object"].contents(value), strict=True)
                }
                return tagged("object", attributes, *(name_of(cls, path) if is_users(cls.__module__) else ()))
        layout = f" ({value.layout})" if category == "tensor" else ""
        raise UnsaveableError(path, f"it is a new {cls.__qualname__}{layout}: {REMEDY}")

    def _view(self, value: Any, path: str, depth: int) -> Any:
        """The description of a new tensor or array as a view of another; None if its values are to be saved."""
        is_tensor = isinstance(value, torch.Tensor)
        if is_tensor:  # its graph cannot be saved; code that keeps a graph computes it again
            self.note_graph(value, path)
        memory = self._memory_in_transit if self.is_in_transit else self._memory
        near = [(other, owner) for other, owner in memory.overlapping(value) if owner is not value]
        for other, owner in near if not (is_tensor and value.is_leaf and value.requires_grad) else ():
            if other not in self._saved_elsewhere and (view := view_of(value, owner)) is not None:
                reference = self.encode(owner, path, depth + 1)
                self.add(value)
                return tagged("view", is_tensor, reference, *view)
        self.count(value.numel() * value.element_size() if is_tensor else value.nbytes, path)
        self._report_shared_memory(path, near)
        memory.add(path, value)
        return None

    @functools.cached_property
    def _of_optimizers(self) -> list[tuple[str, Any]]:
        return [*places(self._stateful, ["optimizer"])]

    @functools.cached_property
    def _placed(self) -> list[tuple[str, Any]]:
        return [*places(self._stateful, ["module"]), *self._of_optimizers]

    @functools.cached_property
    def _places(self) -> dict[int, str]:
        return {id(value): place for place, value in self._placed}

    @functools.cached_property
    def _places_in_transit(self) -> dict[int, str]:
        """Also of what other objects with a `state_dict` hold: they are encoded before the slots."""
        return self._places | {id(value): place for place, value in places(self._stateful, ["object"])}

    @functools.cached_property
    def _memory_in_transit(self) -> MemoryIndex:
        """Also of what other objects hold, and of what only a `state_dict` leads to."""
        for place, value in (*places(self._stateful, ["object"]), *self._saved_elsewhere.items()):
            if self._reachable.find(value) is None:
                self._memory.add(place, value)
        return self._memory

    @functools.cached_property
    def _memory(self) -> MemoryIndex:
        """The tensors and arrays that have a place or a path, and those that were encoded as new."""
        listed = (each for each in self._reachable.by_path.values() if each.category in _IN_MEMORY)
        named = ((each.path, each.value) for each in listed if not self._snapshot.is_excluded(each.path))
        return MemoryIndex({id(value): (path, value) for path, value in (*self._placed, *named)}.values())


@final
class StateReader(Decoder):
    """Decodes the values in a section that a `StateWriter` has encoded: finds referenced objects, creates new ones."""

    def __init__(self, snapshot: StateSnapshot, section: Any) -> None:
        super().__init__()
        self._reachable, self._stateful = snapshot.reachable, snapshot.stateful
        self._encoded = {each.part: each for each in reversed([*_encoded_in(section)])}  # the first of a name
        self._values: dict[str, Any] = {}

    def unpack(self, encoded: Any) -> Any:
        """Decode a value.

        Raises:
            CheckpointError: it refers to an object that does not exist, or that may not be created.
            one of `MALFORMED`: it is not from a `StateWriter`.
        """
        if not isinstance(encoded, Encoded):
            raise CheckpointError(f"no value can be created from {str(encoded)[:100]}")
        part = encoded.part
        if part not in self._values:
            before, self._part, self._objects[part] = self._part, part, []
            self._values[part] = self.decode(encoded.data)
            self._part = before
        return self._values[part]

    def numbered(self, part: str, number: int) -> Any:
        """The object with a number in a part, which is decoded first if needed."""
        if part not in self._objects and part in self._encoded:
            self.unpack(self._encoded[part])
        return super().numbered(part, number)

    @functools.cached_property
    def _places(self) -> dict[str, Any]:
        return dict(places(self._stateful))

    def resolve(self, name: str, parts: list[Any]) -> Any:
        """The referenced object, or a new one, which is created empty because its contents may refer to it."""
        match name, parts:
            case "at" | "id", [str(path)]:
                entry = self._reachable.by_path.get(path)
                value = entry.value if entry is not None else None
                if entry is None or entry.is_saved_elsewhere:
                    value = self._places.get(path, value)
                if value is None:
                    raise CheckpointError(f"`{path}` existed in the saved run, and does not exist now")
                return value if name == "at" else id(value)
            case "named", [str(module), str(named)]:
                return found_by_name(module, named)
            case "member", [str(module), str(named), str(member)]:
                return found_by_name(module, named).__members__[member]
            case "named tuple", [str(module), str(named), *members]:
                cls = found_by_name(module, named)
                if cls.__mro__[1] is tuple and len(cls._fields) == len(members):
                    return tuple.__new__(cls, map(self.decode, members))
            case "view", [bool(is_tensor), owner, str(dtype), *geometry]:
                return self.add(viewed(self.decode(owner), DTYPES[dtype] if is_tensor else dtype, *geometry))
            case "object", [{**attributes}, *names]:
                cls = found_by_name(*names) if names else types.SimpleNamespace
                if cls is types.SimpleNamespace or is_plain_class(cls):
                    value = self.add(cls.__new__(cls))
                    RULES["object"].put(value, {key: self.decode(part) for key, part in attributes.items()}, ())
                    return value
        raise CheckpointError(f"no value can be created from {str([name, *parts])[:100]}")


def _encoded_in(section: Any) -> Iterator[Encoded]:
    """The encoded values in nested mappings, those of progress last: it has older values under the same names."""
    if isinstance(section, Encoded):
        yield section
    elif isinstance(section, Mapping):
        for part in section.values():
            yield from _encoded_in(part)


# ---- places in what a `state_dict` saves, by which it is referred to: ``optimizer.state[0].exp_avg``


def places(
    stateful: Mapping[str, Any], categories: Collection[str] = ("module", "optimizer", "object")
) -> Iterator[tuple[str, Any]]:
    """What the `state_dict` of objects of these categories may save, and gradients: the place and value of each."""
    for path, value in stateful.items():
        category = category_of(type(value))
        if category not in categories:
            continue
        if category == "module":
            for name, parameter in plainly_named(value.named_parameters()):
                yield f"{path}.{name}", parameter
                if parameter.is_leaf and parameter.grad is not None:
                    yield f"{path}.{name}.grad", parameter.grad
            yield from [(f"{path}.{name}", tensor) for name, tensor in plainly_named(value.named_buffers())]
        elif category == "optimizer":
            for number, state in enumerate(states_of(value)):
                yield from _by_name(f"{path}.state[{number}]", state)
            for number, group in enumerate(value.param_groups):
                tensors = {name: part for name, part in group.items() if isinstance(part, torch.Tensor)}
                yield from _by_name(f"{path}.param_groups[{number}]", tensors)
        else:
            yield from _by_name(path, dict(zip(*RULES["object"].contents(value), strict=True)))


def _by_name(path: str, named: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for name, part in named.items():
        if isinstance(part, torch.Tensor):  # of which there may be 100,000
            yield f"{path}.{name}", part
        elif type(part) not in CONSTANTS:  # such as the list of an L-BFGS
            yield from parts_in(part, f"{path}.{name}")


def parts_in(value: Any, path: str, around: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The path and value of a value that can be changed in place, and of those in it; `around` are its containers."""
    category = category_of(type(value))
    if category in _CONTAINERS or category in _IN_MEMORY:
        yield path, value
    if category in IN_CONTAINERS and category != "set" and id(value) not in around and len(around) < MOST_DEPTH:
        keys, parts = RULES[category].contents(value)
        for key, part in zip(keys or range(len(parts)), parts, strict=True):
            if type(part) not in CONSTANTS and is_constant(key):
                yield from parts_in(part, f"{path}[{key!r}]", (*around, id(value)))


# ---- classes and functions


def is_plain_class(cls: Any) -> bool:
    """True for an importable class of the user whose objects consist of their attributes and nothing else."""
    if not isinstance(cls, type) or category_of(cls) != "object" or "<" in cls.__qualname__:
        return False
    special = ("__new__", "__del__", "__setstate__", "__getstate__", "__reduce__", "__reduce_ex__")
    methods = [vars(base)[name] for base in cls.__mro__[:-1] for name in special if name in vars(base)]
    # The decorators of frozen dataclasses and of attrs add some.
    modules = {getattr(method, "__globals__", {}).get("__name__") for method in methods}
    return is_users(cls.__module__) and modules <= {"dataclasses", "attr._make"}


def name_of(value: Any, path: str) -> tuple[str, str]:
    """The module and the name by which `found_by_name` finds a class or function."""
    module, name = value.__module__, value.__qualname__
    with suppress(CheckpointError):
        if found_by_name(module, name) is value:
            return module, name
    raise UnsaveableError(path, f"`{name}` cannot be found by its name: define it at the top of a module")


def found_by_name(module: str, name: str) -> Any:
    """A class or function that an imported module of the user defines, or any enumeration class."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = vars(value).get(part) if isinstance(value, types.ModuleType | type) else None
    is_known = isinstance(value, enum.EnumMeta) or (isinstance(value, type | types.FunctionType) and is_users(module))
    # Not what the module has only imported, as with `from subprocess import run`.
    if not is_known or (value.__module__, value.__qualname__) != (module, name):
        raise CheckpointError(f"no module `{module[:100]}` of yours defines `{name[:100]}`")
    return value
