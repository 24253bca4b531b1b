"""Values with references: encoded as plain data, and decoded in another process.

An object reachable from the roots is referred to by its path, a tensor in a `state_dict` by its place there, and a
repeated object by its number. So two places that held one object hold one again. A tensor or an array in the memory of
such an object is a view of it again; other memory that is shared is reported.

Decoded data may come from a stranger. Nothing is imported and nothing is called: classes and functions are those
defined in modules of the user that are already imported; objects are their attributes.
"""

from __future__ import annotations

import collections
import enum
import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy
import torch

from graphtrain.errors import CheckpointError
from graphtrain.names import plainly_named
from graphtrain.state.generators import any_generator, kind_of_generator, new_generator
from graphtrain.state.graphs import keeps_graph
from graphtrain.state.kinds import CONSTANTS, KINDS, Category, category_of, is_constant, is_users, replaced
from graphtrain.state.memory import MemoryIndex, overlapping, owner_of, span_of, view_of, viewed
from graphtrain.state.reachable import REMEDY, Entry, Reachable, is_saveable
from graphtrain.storage.decoding import Decoder
from graphtrain.storage.encoding import (
    DTYPES,
    FACTORIES,
    Found,
    Instance,
    Memo,
    Packed,
    Tensors,
    UnsaveableError,
    advice,
    pack,
)

MOST_BYTES = 256 * 2**20
_SHARES = "shares memory with {}, which a resume cannot restore: clone it"
_NEW = (list, collections.deque, set, frozenset, dict, collections.OrderedDict, collections.Counter, bytearray)
_MOST_SHOWN = 120

# Objects that can be changed in place, and be found where others hold them too.
CHANGED_IN_PLACE = frozenset({"tensor", "array", "list", "mapping", "deque", "set", "object", "buffer"})

# Errors from a description that no `StateWriter` has made.
MALFORMED = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)


@final
class StateWriter:
    """Encodes values in terms of reachable objects.

    Attributes:
        graphs: the first paths of tensors that keep a graph in addition to their values.
        is_in_transit: True while a value between nodes is encoded.
    """

    def __init__(
        self, reachable: Reachable, stateful: Mapping[str, Any], is_left_out: Callable[[str], bool] | None = None
    ) -> None:
        self.graphs: list[str] = []
        self.is_in_transit = False
        self._reachable, self._stateful, self._is_left_out = reachable, stateful, is_left_out
        self._memo = Memo()
        # part -> path and value of new tensors and arrays, and what else is in their memory
        self._new: dict[str, list[tuple[str, Any, Any]]] = {}
        self._places: dict[bool, dict[int, tuple[Any, ...]]] = {}
        self._by_memory: dict[tuple[Any, ...], torch.Tensor] = {}  # new tensors
        self._others: dict[str, Any] = {}  # tensors and arrays to which nothing can refer
        self._bytes, self._part = 0, ""

    def pack(self, value: Any, path: str, part: str = "") -> Packed:
        """A value, encoded.

        Arguments:
            path: its path, for messages.
            part: a unique name. Default: the path.

        Raises:
            UnknownStateError: it, or something in it, cannot be encoded.
        """
        try:
            return self._packed(value, path, part or path)
        except UnsaveableError as error:
            raise UnknownStateError(error.path, error.message.removeprefix(error.path).strip()) from None

    def pack_in_transit(self, values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Packed]:
        """Values between nodes, by path, of any size; encoded after all else, to whose objects they may refer.

        Arguments:
            others: path -> tensor or array that is saved elsewhere, to which nothing can refer.

        Raises:
            UnsaveableError: one, or something in it, cannot be encoded.
        """
        self.is_in_transit, self._others = True, dict(others)
        return {path: self._packed(value, path, path) for path, value in values.items()}

    def _packed(self, value: Any, path: str, part: str) -> Packed:
        tensors, bytes_before = Tensors(part), self._bytes
        self._memo.begin(part)
        self._part, self._new[part] = part, []
        try:
            data = pack(value, path, tensors, self._memo, with_gradients=True, describer=self)
        except (UnsaveableError, UnknownStateError):
            self._memo.forget()
            self._bytes = bytes_before
            del self._new[part]
            raise
        return Packed(part, data, tensors.named)

    @contextmanager
    def attempt(self, unknown: list[str]) -> Iterator[None]:
        """A context in which something is encoded; if it cannot be, the reason is reported."""
        try:
            yield
        except UnknownStateError as error:
            unknown.append(str(error))

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

    def describe(self, value: Any, path: str) -> Found | Instance | None:
        """The form of a value for the encoder; None for plain data.

        Raises:
            UnknownStateError: it cannot be encoded; an `UnsaveableError` if it is in transit.
        """
        try:
            return self._reference(value, category_of(type(value))) or self._description(value, path)
        except UnknownStateError as error:
            if self.is_in_transit:
                raise UnsaveableError(path, f"it {error.what}", advice(value)) from None
            raise

    def _reference(self, value: Any, category: Category) -> Found | None:
        """The form of an object that exists; None for a new one."""
        if category == "value" or (category in ("tuple", "set") and is_constant(value)):
            return None  # equal ones may be one object, or two
        reached, place = self._reachable.find(value), None
        if not self.is_in_transit:
            return Found(("at", reached.path)) if reached is not None else None
        # By its place first: loading may fill another object than the one that training has bound there.
        if reached is not None and reached.is_covered:
            place = self._place_of(value)
        elif reached is None and category in CHANGED_IN_PLACE - {"tensor", "array"}:
            place = self._place_of(value, of_objects=True)
        if place is not None:
            return Found(("in", *place))
        return Found(("at", reached.path)) if reached is not None and not self._leaves_out(reached) else None

    def _description(self, value: Any, path: str) -> Found | Instance | None:
        """The form of a new value."""
        kind, category = type(value), category_of(type(value))
        match category:
            case "value":
                return self._value(value, path)
            case "tensor":
                return self._tensor(value, path)
            case "array" if is_saveable(value):
                return self._in_memory(value, value.nbytes, path)
            case "tuple":
                return _tuple(value, path)
            case "set" if kind in _NEW:
                if all(map(is_constant, value)):
                    return None
                what = "is a set of objects, whose order is that of their addresses: use a list"
                raise UnknownStateError(path, what)
            case "list" | "deque" | "mapping" | "buffer" if kind in _NEW or kind is collections.defaultdict:
                self.count(len(value) * (category == "buffer"), path)
                return None
            case "function" | "class" if is_users(value.__module__):
                return Found(("named", *name_of(value, path)))
            case "class" if value in FACTORIES.values():
                return Found(("built-in", value.__name__))
            case "generator" if (name := kind_of_generator(value)) is not None:
                return Instance(("generator", name), {"state": any_generator(value).get_state()})
            case "object" if kind is types.SimpleNamespace:
                return Instance(("namespace",), vars(value))
            case "object" if is_plain_class(kind):
                attributes = dict(zip(*KINDS["object"].contents(value), strict=True))
                return Instance(("object", *name_of(kind, path)), attributes)
            case "iterator":
                what = f"is an iterator ({kind.__name__}), whose position is not saved: {REMEDY}"
                raise UnknownStateError(path, what)
            case "method":
                what = f"is the method `{value.__func__.__name__}`, which is not saved: keep the object, or its name"
                raise UnknownStateError(path, what)
        if self.is_in_transit:
            return None  # which the encoder refuses, with what to save instead
        raise UnknownStateError(path, f"is a new {kind.__qualname__}, which cannot be saved: {REMEDY}")

    def _value(self, value: Any, path: str) -> Found | None:
        if isinstance(value, enum.Enum):
            if value.name not in type(value).__members__:
                raise UnknownStateError(path, f"is a combination of flags, {value!r}, which is not saved: {REMEDY}")
            return Found(("member", *name_of(type(value), path, is_enum=True), value.name))
        if type(value) is int and value in self._reachable.by_id:  # an `id`, by which a `GradScaler` has optimizers
            return Found(("id", self._reachable.by_id[value].path))
        return None

    def _tensor(self, tensor: torch.Tensor, path: str) -> Found | Instance | None:
        if not is_saveable(tensor):
            if self.is_in_transit and type(tensor).__name__ != "DTensor":
                return None  # which the encoder refuses
            raise UnknownStateError(path, f"is a new {type(tensor).__qualname__} ({tensor.layout}), which is not saved")
        # With its graph it could not be saved; code that keeps one, as old weight_norm does, computes it again.
        self.note_graph(tensor, path)
        if (span := span_of(tensor)) is not None and not (tensor.is_leaf and tensor.requires_grad):
            memory = span, tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()
            if (same := self._by_memory.get(memory)) is not None and self._memo.place(same) is not None:
                return Instance(("detached", same), {})  # a loss that is kept, and its value that is logged
            self._by_memory[memory] = tensor
        return self._in_memory(tensor, tensor.numel() * tensor.element_size(), path)

    def _in_memory(self, value: Any, size: int, path: str) -> Found | Instance | None:
        """The form of a tensor or an array that is not listed: its place, or a view; None for its values."""
        near = self._known.sharing(value)
        if self.is_in_transit:
            near += self._known_in_transit.sharing(value)
        if any(each is value for each in near) and (place := self._place_of(value)) is not None:
            return Found(("in", *place))
        kind = "tensor" if isinstance(value, torch.Tensor) else "array"
        for owner in near if kind == "array" or not value.requires_grad else ():
            is_referred_to = owner is not value and not any(owner is other for other in self._others.values())
            view = view_of(value, owner, beyond=self._reachable.find(owner) is not None) if is_referred_to else None
            if view is not None:
                return Instance(("view", kind, owner, *view), {})
        self.count(size, path)
        self._new[self._part].append((path, value, near[0] if near else None))
        return None

    def _place_of(self, value: Any, *, of_objects: bool = False) -> tuple[Any, ...] | None:
        """The place of what an object with a `state_dict` has; None for anything else.

        Arguments:
            of_objects: True to look only into objects other than modules and optimizers.
        """
        if of_objects not in self._places:
            held = places(self._objects if of_objects else self._stateful)
            self._places[of_objects] = {id(value): place for place, value in held}
        place = self._places[of_objects].get(id(value))
        # An object with a `state_dict` may be encoded at this moment.
        if place is None or (place[1] == "attribute" and not self.is_in_transit):
            return None
        return place if all(map(is_constant, place)) else None

    @property
    def _objects(self) -> dict[str, Any]:
        return {path: value for path, value in self._stateful.items() if category_of(type(value)) == "object"}

    @functools.cached_property
    def _known(self) -> MemoryIndex:
        """The tensors and arrays that are listed, or that modules and optimizers have."""
        listed = [each for each in self._reachable.by_path.values() if not self._leaves_out(each)]
        tensors = [each.value for each in listed if each.category == "tensor"]
        arrays = [each.value for each in listed if each.category == "array"]
        held: list[torch.Tensor] = []
        for value in self._stateful.values():
            if isinstance(value, torch.nn.Module):
                held += _tensors_of(value)
            elif isinstance(value, torch.optim.Optimizer):
                parts = [part for state in value.state.values() for part in state.values()]
                parts += [part for group in value.param_groups for part in group.values() if type(part) is not list]
                held += [part for part in parts if isinstance(part, torch.Tensor)]
                others = [part for part in parts if type(part) not in CONSTANTS and not isinstance(part, torch.Tensor)]
                inner = [part for each in others for _, part in parts_in(each)]
                held += [part for part in inner if isinstance(part, torch.Tensor)]
        unlisted = [value for value in held if id(value) not in self._reachable.by_id]
        # Read-only memory may be shared.
        return MemoryIndex([*tensors, *unlisted], [each for each in arrays if owner_of(each).flags.writeable])

    @functools.cached_property
    def _known_in_transit(self) -> MemoryIndex:
        """The tensors and arrays that other objects with a `state_dict` have or save."""
        held = [*(value for _, value in places(self._objects)), *self._others.values()]
        tensors = [value for value in held if isinstance(value, torch.Tensor)]
        return MemoryIndex(tensors, [value for value in held if isinstance(value, numpy.ndarray)])

    def lost_memory(self) -> list[str]:
        """A line for each new tensor and array whose sharing of memory a resume cannot restore."""
        pairs = [] if self.is_in_transit else list(self._shared_states())
        new = {path: (value, near) for each in self._new.values() for path, value, near in each}
        pairs += [(path, self._shown(near)) for path, (_, near) in new.items() if near is not None]
        spans = {path: span for path, (value, _) in new.items() if (span := span_of(value)) is not None}
        pairs += [(other, first) for first, *others in overlapping(spans) for other in others]
        return [f"{shown_path(path)} {_SHARES.format(shown_path(other))}" for path, other in dict(pairs).items()]

    def _shown(self, value: Any) -> str:
        """The path of a known tensor or array, for messages."""
        if (reached := self._reachable.find(value)) is not None:
            return reached.path
        paths = {id(other): path for path, other in self._others.items()}
        paths |= {id(held): shown_place(place) for place, held in places(self._stateful)}
        return paths[id(value)]

    def _shared_states(self) -> Iterator[tuple[str, str]]:
        """The paths of the state of optimizers that training has made in the memory of something else."""
        made, by_id = self._reachable.made_states, self._reachable.by_id
        optimizers = ((path, each) for path, each in self._stateful.items() if isinstance(each, torch.optim.Optimizer))
        for path, optimizer in optimizers:
            parts: dict[int, tuple[tuple[Any, ...], torch.Tensor]] = {}
            has_views = False
            for number, state in enumerate(optimizer.state.values()):
                for name, part in state.items():
                    if isinstance(part, torch.Tensor) and id(part) not in made:
                        parts[id(part)] = (path, "state", number, name), part
                        has_views |= (base := part._base) is not None
                        if (reached := by_id.get(id(part)) or by_id.get(id(base))) is not None:
                            yield shown_place((path, "state", number, name)), reached.path
            if has_views:
                spans = {shown_place(place): span for place, part in parts.values() if (span := span_of(part))}
                yield from ((other, first) for first, *others in overlapping(spans) for other in others)

    def _leaves_out(self, reached: Entry) -> bool:
        return self._is_left_out is not None and self._is_left_out(reached.path)


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Its parameters, buffers and gradients."""
    for inner in module.modules():
        held = [each for each in (*inner._buffers.values(), *inner._parameters.values()) if each is not None]
        yield from held
        yield from (each.grad for each in held if each.is_leaf and each.grad is not None)


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


def _tuple(value: tuple[Any, ...], path: str) -> Found | None:
    kind = type(value)
    if kind in (tuple, torch.Size):
        return None
    if kind.__mro__[1] is tuple and hasattr(value, "_fields") and is_users(kind.__module__):
        return Found(("named tuple", *name_of(kind, path), tuple(value)))
    raise UnknownStateError(path, f"is a {kind.__qualname__}, a tuple of another class: {REMEDY}")


@final
class StateReader:
    """Finds or makes the values encoded by a `StateWriter`.

    Arguments:
        section: holds the packed parts.
    """

    def __init__(self, reachable: Reachable, stateful: Mapping[str, Any], section: Any) -> None:
        self._reachable, self._stateful = reachable, stateful
        self._packed = {packed.part: packed for packed in reversed([*_packed_in(section)])}  # the first of a name
        self._decoder = Decoder({}, self)
        self._values: dict[str, Any] = {}
        self._places: dict[tuple[Any, ...], Any] | None = None

    def unpack(self, packed: Any) -> Any:
        """The value of a part.

        Raises:
            CheckpointError: it refers to something that does not exist, or that must not be made.
        """
        if not isinstance(packed, Packed):
            raise CheckpointError(f"a value described as {str(packed)[:100]} cannot be made")
        if packed.part not in self._values:
            self._values[packed.part] = self._decoder.unpack_part(packed)
        return self._values[packed.part]

    def at(self, path: str) -> Any:
        """The object at a path."""
        if path not in self._reachable.by_path:
            raise CheckpointError(f"`{path}`, which the saved run had, does not exist now")
        return self._reachable.by_path[path].value

    def met(self, part: str, number: int) -> Any:
        """What has a number in a part."""
        self.need(part)
        return self._decoder.met(part, number)

    def need(self, part: str) -> None:
        """Decode a part to which another one refers."""
        if part in self._packed:
            self.unpack(self._packed[part])

    def in_state(self, place: tuple[Any, ...]) -> Any:
        """What an object with a `state_dict` holds at a place."""
        if self._places is None:
            self._places = dict(places(self._stateful))
        if place not in self._places:
            raise CheckpointError(f"`{'.'.join(map(str, place))}`, which the saved run had, does not exist now")
        return self._places[place]

    # ---- for the decoder

    def find(self, by: Sequence[Any]) -> Any:
        """What a `Found` stands for."""
        match by:
            case ["at", str(path)]:
                return self.at(path)
            case ["id", str(path)]:
                return id(self.at(path))
            case ["in", *place]:
                return self.in_state(tuple(place))
            case ["named tuple", str(module), str(name), tuple(members)]:
                kind = found_by_name(module, name)
                fields = getattr(kind, "_fields", ())
                if isinstance(kind, type) and kind.__mro__[1] is tuple and len(fields) == len(members):
                    return tuple.__new__(kind, members)
            case ["named", str(module), str(name)]:
                return found_by_name(module, name)
            case ["member", str(module), str(name), str(member)]:
                kind = found_by_name(module, name, is_enum=True)
                if member in kind.__members__:
                    return kind.__members__[member]
            case ["built-in", str(name)] if name in FACTORIES:
                return FACTORIES[name]
        raise CheckpointError(f"a value described as {str(by)[:100]} cannot be made")

    def make(self, by: Sequence[Any]) -> Any:
        """The object that an `Instance` stands for, empty first, for what it holds may refer to it."""
        match by:
            case ["generator", str(kind)]:
                return new_generator(kind)
            case ["detached", torch.Tensor() as same]:
                return same.detach()
            case ["view", str(kind), torch.Tensor() | numpy.ndarray() as owner, str(dtype), *geometry]:
                return viewed(owner, DTYPES[dtype] if kind == "tensor" else dtype, *geometry)
            case ["namespace"]:
                return types.SimpleNamespace()
            case ["object", str(module), str(name)]:
                kind = found_by_name(module, name)
                if isinstance(kind, type) and is_plain_class(kind):
                    return object.__new__(kind)
        raise CheckpointError(f"an object described as {str(by)[:100]} cannot be made")

    def fill(self, made: Any, holds: Mapping[str, Any]) -> None:
        """Let an object hold what it held."""
        match made:
            case types.SimpleNamespace():
                vars(made).update(holds)
            case _ if category_of(type(made)) == "generator":
                any_generator(made).set_state(holds["state"])
            case _:
                KINDS["object"].put(made, holds, ())


def _packed_in(section: Any) -> Iterator[Packed]:
    """The parts in nested mappings; those of progress come last, which has what data was when its epoch began too."""
    if isinstance(section, Packed):
        yield section
    elif isinstance(section, Mapping):
        for part in section.values():
            yield from _packed_in(part)


class UnknownStateError(Exception):
    """Something that cannot be described; the text says where it is and what."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{shown_path(path)} {what}")
        self.what = what


def shown_path(path: str) -> str:
    """A path for a message: what is in a variable is called like the variable, and the middle of a long one left out.

    >>> shown_path("step<calls>.cell_contents.total")
    'step<calls>.total'
    """
    shown = path.replace(".cell_contents", "")
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[: _MOST_SHOWN // 2]}...{shown[-_MOST_SHOWN // 2 :]}"


def places(stateful: Mapping[str, Any]) -> Iterable[tuple[tuple[Any, ...], Any]]:
    """What a `state_dict` saves, and gradients, with the place of each: tensors, of other objects also containers."""
    for path, value in stateful.items():
        if isinstance(value, torch.nn.Module):
            for name, parameter in plainly_named(value.named_parameters()):
                yield (path, "tensor", name), parameter
                if parameter.grad is not None:
                    yield (path, "grad", name), parameter.grad
            for name, tensor in plainly_named(value.named_buffers()):
                yield (path, "tensor", name), tensor
        elif isinstance(value, torch.optim.Optimizer):
            for number, state in enumerate(value.state.values()):
                for name, part in state.items():
                    if isinstance(part, torch.Tensor):
                        yield (path, "state", number, name), part
                    elif type(part) not in CONSTANTS:  # such as the list of an L-BFGS
                        yield from (((path, "state", number, name, *keys), part) for keys, part in parts_in(part))
            for number, group in enumerate(value.param_groups):
                for name, tensor in group.items():
                    if isinstance(tensor, torch.Tensor):
                        yield (path, "group", number, name), tensor
        elif category_of(type(value)) == "object":
            for name, part in zip(*KINDS["object"].contents(value), strict=True):
                yield from (((path, "attribute", name, *keys), part) for keys, part in parts_in(part))


def parts_in(value: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """A value, and the parts of nested containers that can be changed in place, with the keys that lead to each."""
    parts: list[tuple[tuple[Any, ...], Any]] = []

    def note(part: Any, keys: tuple[Any, ...]) -> Any:
        if category_of(type(part)) in CHANGED_IN_PLACE:
            parts.append((keys, part))
        return part

    replaced(value, note)
    return parts


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


def name_of(value: Any, path: str, *, is_enum: bool = False) -> tuple[str, str]:
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
