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
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, final

import torch

from graphtrain.errors import CheckpointError
from graphtrain.names import plainly_named
from graphtrain.printable import shown_path
from graphtrain.state.autograd_graphs import KEEPS_GRAPH, keeps_graph
from graphtrain.state.kinds import CONSTANTS, IN_CONTAINERS, KINDS, Category, category_of, is_constant, is_users
from graphtrain.state.memory import MemoryIndex, view_of, viewed
from graphtrain.state.optimizers import states_of
from graphtrain.state.reachable import REMEDY
from graphtrain.state.snapshot import StateSnapshot
from graphtrain.storage.encoding import MOST_DEPTH, Decoder, Encoded, Encoder, UnsaveableError, is_saveable, tagged
from graphtrain.storage.value_types import DTYPES, type_of

MOST_BYTES = 256 * 2**20
_IN_MEMORY = ("tensor", "array")

# The categories of objects that are changed in place, and can be found where others hold them too.
_CONTAINERS = frozenset({"list", "mapping", "set", "object"})

# Errors from data that no `StateWriter` has made.
MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


@final
class StateWriter(Encoder):
    """Encodes values in terms of reachable objects.

    Attributes:
        is_in_transit: True while values between nodes are encoded.
        lost: a line for each new value of which a resume cannot restore its graph, or what shares its memory.
    """

    keeps_order = True

    def __init__(self, snapshot: StateSnapshot) -> None:
        super().__init__()
        self.is_in_transit = self.refuses_graphs = self._has_graph = False
        self.lost: list[str] = []
        self._snapshot, self._reachable, self._stateful = snapshot, snapshot.reachable, snapshot.stateful
        self._saved_elsewhere: Mapping[str, Any] = {}  # tensors and arrays to which nothing can refer
        self._bytes = 0

    def pack(self, value: Any, path: str, part: str = "") -> Encoded:
        """A value, encoded.

        Arguments:
            path: its path, for messages.
            part: a unique name. Default: the path.

        Raises:
            UnsaveableError: it, or something in it, cannot be encoded.
        """
        self._part, size, lost = part or path, self._bytes, len(self.lost)
        self._shared[self._part] = []
        try:
            return Encoded(self._part, self.encode(value, path))
        except UnsaveableError:
            for each in self._shared[self._part]:
                del self._numbers[id(each)]
            self._bytes = size
            del self.lost[lost:]
            raise

    def begin_transit(self, saved_elsewhere: Mapping[str, Any]) -> None:
        """Encode values between nodes from now on, of any size: they may refer to the objects of all that was encoded.

        Arguments:
            saved_elsewhere: path -> tensor or array that is saved elsewhere, to which nothing can refer.
        """
        self.is_in_transit = self.refuses_graphs = True
        self._saved_elsewhere = saved_elsewhere

    def count(self, size: int, path: str) -> None:
        """Count saved bytes.

        Raises:
            UnsaveableError: there are too many.
        """
        if self._bytes + size > MOST_BYTES and not self.is_in_transit:
            raise UnsaveableError(path, f"it is beyond {MOST_BYTES >> 20} MiB that are saved without a `state_dict`")
        self._bytes += size

    def note_graph(self, tensor: torch.Tensor, path: str) -> None:
        """Note that a tensor is saved without its graph, once."""
        if not self._has_graph and keeps_graph(tensor):
            self._has_graph = True
            self.lost.append(f"{shown_path(path)} {KEEPS_GRAPH}")

    def note_states(self) -> None:
        """Note what optimizers have made in the memory of something else."""
        for place, part in self._of_optimizers:
            is_new = isinstance(part, torch.Tensor) and id(part) not in self._reachable.initial_states
            is_listed = self._reachable.find(part) is not None
            if ".state[" in place and is_new and (is_listed or part._base is not None):
                self._note_sharing(place, [pair for pair in self._memory.sharing(part) if pair[0] != place])

    def _note_sharing(self, path: str, near: Sequence[tuple[str, Any]]) -> None:
        for other, _ in near[:1]:
            problem = f"shares memory with {shown_path(other)}, which a resume cannot restore: clone it"
            self.lost.append(f"{shown_path(path)} {problem}")

    # ---- values other than plain data

    def describe(self, value: Any, path: str, depth: int) -> Any:
        """A reference to an object that exists, or the form of a new one; None for plain data.

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
        """The reference to what a resumed process has; None for a new object."""
        kind = type(value)
        if isinstance(value, enum.Enum) and value.name in kind.__members__:
            return tagged("member", *name_of(kind, path), value.name)
        if kind is int and value in self._reachable.by_id:  # an `id`, by which a `GradScaler` has optimizers
            return tagged("id", self._reachable.by_id[value].path)
        if category == "value" or (category in ("tuple", "set") and is_constant(value)):
            return None  # equal ones may be one object, or two
        entry = self._reachable.find(value)
        # By its place first: loading may fill another object than the one that training has bound there.
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
        kind: Any = type(value)
        match category:
            case "tuple" if kind.__mro__[1] is tuple and hasattr(kind, "_fields") and is_users(kind.__module__):
                return tagged("named tuple", *name_of(kind, path), *self._each(value, path, depth))
            case "set" if not all(map(is_constant, value)):
                raise UnsaveableError(path, "it is a set of objects, in the order of their addresses: use a list")
            case _ if type_of(kind) is not None or (kind is type and value.__module__ == "builtins"):
                return None
            case "object" if kind is types.SimpleNamespace or is_plain_class(kind):
                self.add(value)
                attributes = {
                    key: self.encode(part, f"{path}.{key}", depth + 1)
                    for key, part in zip(*KINDS["object"].contents(value), strict=True)
                }
                return tagged("object", attributes, *(name_of(kind, path) if is_users(kind.__module__) else ()))
        layout = f" ({value.layout})" if category == "tensor" else ""
        raise UnsaveableError(path, f"it is a new {kind.__qualname__}{layout}: {REMEDY}")

    def _view(self, value: Any, path: str, depth: int) -> Any:
        """The form of a new tensor or array as a view of another one; None for its values."""
        is_tensor = isinstance(value, torch.Tensor)
        if is_tensor:  # with its graph it could not be saved; code that keeps one computes it again
            self.note_graph(value, path)
        memory = self._memory_in_transit if self.is_in_transit else self._memory
        near = [(other, owner) for other, owner in memory.sharing(value) if owner is not value]
        for other, owner in near if not (is_tensor and value.is_leaf and value.requires_grad) else ():
            if other not in self._saved_elsewhere and (view := view_of(value, owner)) is not None:
                reference = self.encode(owner, path, depth + 1)
                self.add(value)
                return tagged("view", is_tensor, reference, *view)
        self.count(value.numel() * value.element_size() if is_tensor else value.nbytes, path)
        self._note_sharing(path, near)
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
        """Also of what other objects with a `state_dict` have, which may themselves be encoded before."""
        return self._places | {id(value): place for place, value in places(self._stateful, ["object"])}

    @functools.cached_property
    def _memory_in_transit(self) -> MemoryIndex:
        """Also those that other objects have, or that a `state_dict` alone leads to."""
        for place, value in (*places(self._stateful, ["object"]), *self._saved_elsewhere.items()):
            if self._reachable.find(value) is None:
                self._memory.add(place, value)
        return self._memory

    @functools.cached_property
    def _memory(self) -> MemoryIndex:
        """The tensors and arrays that have a place or a path, and new ones."""
        listed = (each for each in self._reachable.by_path.values() if each.category in _IN_MEMORY)
        named = ((each.path, each.value) for each in listed if not self._snapshot.is_excluded(each.path))
        pairs = (*self._placed, *named)
        return MemoryIndex({id(value): (path, value) for path, value in pairs}.values())


@final
class StateReader(Decoder):
    """Finds or makes the values encoded by a `StateWriter`.

    Arguments:
        section: holds the encoded values, in nested mappings.
    """

    def __init__(self, snapshot: StateSnapshot, section: Any) -> None:
        super().__init__()
        self._reachable, self._stateful = snapshot.reachable, snapshot.stateful
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
            self._values[part] = self.decode(encoded.data)
            self._part = before
        return self._values[part]

    def shared(self, part: str, number: int) -> Any:
        """The object with a number in a part, which is decoded first."""
        if part not in self._shared and part in self._encoded:
            self.unpack(self._encoded[part])
        return super().shared(part, number)

    @functools.cached_property
    def _places(self) -> dict[str, Any]:
        return dict(places(self._stateful))

    def resolve(self, name: str, parts: list[Any]) -> Any:
        """The object that is referred to, or a new one: empty first, for what it holds may refer to it."""
        match name, parts:
            case "at" | "id", [str(path)]:
                entry = self._reachable.by_path.get(path)
                value = entry.value if entry is not None else None
                if entry is None or entry.is_saved_elsewhere:
                    value = self._places.get(path, value)
                if value is None:
                    raise CheckpointError(f"`{path}`, which the saved run had, does not exist now")
                return value if name == "at" else id(value)
            case "named", [str(module), str(named)]:
                return found_by_name(module, named)
            case "member", [str(module), str(named), str(member)]:
                return found_by_name(module, named).__members__[member]
            case "named tuple", [str(module), str(named), *members]:
                kind = found_by_name(module, named)
                if kind.__mro__[1] is tuple and len(kind._fields) == len(members):
                    return tuple.__new__(kind, map(self.decode, members))
            case "view", [bool(is_tensor), owner, str(dtype), *geometry]:
                return self.add(viewed(self.decode(owner), DTYPES[dtype] if is_tensor else dtype, *geometry))
            case "object", [{**attributes}, *names]:
                kind = found_by_name(*names) if names else types.SimpleNamespace
                if kind is types.SimpleNamespace or is_plain_class(kind):
                    value = self.add(kind.__new__(kind))
                    KINDS["object"].put(value, {key: self.decode(part) for key, part in attributes.items()}, ())
                    return value
        raise CheckpointError(f"a value described as {str([name, *parts])[:100]} cannot be made")


def _encoded_in(section: Any) -> Iterator[Encoded]:
    """The values in nested mappings; those of progress come last, which has what data was when its epoch began too."""
    if isinstance(section, Encoded):
        yield section
    elif isinstance(section, Mapping):
        for part in section.values():
            yield from _encoded_in(part)


# ---- places in what a `state_dict` saves, by which it is referred to: ``optimizer.state[0].exp_avg``


def places(
    stateful: Mapping[str, Any], categories: Collection[str] = ("module", "optimizer", "object")
) -> Iterator[tuple[str, Any]]:
    """What the `state_dict` of objects of these categories may save, and gradients, with the place of each."""
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
            yield from _by_name(path, dict(zip(*KINDS["object"].contents(value), strict=True)))


def _by_name(path: str, named: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for name, part in named.items():
        if isinstance(part, torch.Tensor):  # of which there may be 100,000
            yield f"{path}.{name}", part
        elif type(part) not in CONSTANTS:  # such as the list of an L-BFGS
            yield from parts_in(part, f"{path}.{name}")


def parts_in(value: Any, path: str, around: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """A value, and the parts of nested containers that can be changed in place, with the path of each.

    Arguments:
        around: the identities of the containers that it is in: one that holds itself is walked once.
    """
    category = category_of(type(value))
    if category in _CONTAINERS or category in _IN_MEMORY:
        yield path, value
    is_walked = id(value) in around or len(around) >= MOST_DEPTH
    if category in IN_CONTAINERS and category != "set" and not is_walked:
        keys, parts = KINDS[category].contents(value)
        for key, part in zip(keys or range(len(parts)), parts, strict=True):
            if type(part) not in CONSTANTS and is_constant(key):
                yield from parts_in(part, f"{path}[{key!r}]", (*around, id(value)))


# ---- classes and functions


def is_plain_class(kind: Any) -> bool:
    """True for an importable class of the user's own whose objects are their attributes, and nothing else."""
    if not isinstance(kind, type) or category_of(kind) != "object" or "<" in kind.__qualname__:
        return False
    special = ("__new__", "__del__", "__setstate__", "__getstate__", "__reduce__", "__reduce_ex__")
    methods = [vars(base)[name] for base in kind.__mro__[:-1] for name in special if name in vars(base)]
    # A decorator of classes makes some: that of frozen dataclasses, and of attrs.
    modules = {getattr(method, "__globals__", {}).get("__name__") for method in methods}
    return is_users(kind.__module__) and modules <= {"dataclasses", "attr._make"}


def name_of(value: Any, path: str) -> tuple[str, str]:
    """The module and the name of a class or function, by which `found_by_name` finds it."""
    module, name = value.__module__, value.__qualname__
    with suppress(CheckpointError):
        if found_by_name(module, name) is value:
            return module, name
    raise UnsaveableError(path, f"`{name}` cannot be found by its name: define it at the top of a module")


def found_by_name(module: str, name: str) -> Any:
    """A class or function that a module of the user's own defines, or the class of members of an enumeration."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = vars(value).get(part) if isinstance(value, types.ModuleType | type) else None
    is_known = isinstance(value, enum.EnumMeta) or (isinstance(value, type | types.FunctionType) and is_users(module))
    # Not what the module has only imported, as with `from subprocess import run`.
    if not is_known or (value.__module__, value.__qualname__) != (module, name):
        raise CheckpointError(f"no module `{module[:100]}` of yours defines `{name[:100]}`")
    return value
