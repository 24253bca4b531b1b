"""What was described, found again or made."""

from __future__ import annotations

import array
import collections
import datetime
import enum
import functools
import re
import types
import weakref
import zoneinfo
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, final

import numpy
import torch
from torch.nn.utils.rnn import PackedSequence

from graphtrain.errors import CheckpointError
from graphtrain.state.contents import FORMS
from graphtrain.state.generators import any_generator, new_generator
from graphtrain.state.reachable import Reachable
from graphtrain.state.references import (
    BY_TEXT,
    FACTORIES,
    MAPPINGS,
    MOST_DEPTH,
    OF_TORCH,
    TUPLES_OF_TORCH,
    found_by_name,
    is_plain_class,
    methods_of,
    places,
)
from graphtrain.state.shared_memory import view_beside


@final
class Rebuilder:
    """Finds or makes the values that a `Describer` has described.

    Arguments:
        new: its descriptions of new objects.
    """

    def __init__(self, reachable: Reachable, stateful: Mapping[str, Any], new: list[Any]) -> None:
        self._reachable, self._stateful, self._new = reachable, stateful, new
        self._made: dict[int, Any] = {}
        self._places: dict[tuple[Any, ...], Any] | None = None
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
            case ("tuple of torch", str(name), parts) if name in TUPLES_OF_TORCH:
                members = list(map(self.rebuild, parts))
                kind = TUPLES_OF_TORCH[name]
                return kind(*members) if kind is PackedSequence else kind(members)
            case ("weak reference", ("at" | "new" | "in", *_) as target):
                return weakref.ref(self.rebuild(target))
            case ("frozenset", parts):
                return frozenset(map(self.rebuild, parts))
            case ("named tuple", str(module), str(name), parts):
                kind = found_by_name(module, name)
                fields = getattr(kind, "_fields", ())
                if isinstance(kind, type) and kind.__mro__[1] is tuple and len(fields) == len(parts):
                    return tuple.__new__(kind, map(self.rebuild, parts))
            case ("named", str(module), str(name)):
                value = found_by_name(module, name)
                if isinstance(value, type | types.FunctionType):
                    return value
            case ("member", str(module), str(name), str(member)):
                kind = found_by_name(module, name, is_enum=True)
                if isinstance(kind, type) and issubclass(kind, enum.Enum) and member in kind.__members__:
                    return kind.__members__[member]
            case ("flag", str(module), str(name), list(members)):
                kind = found_by_name(module, name, is_enum=True)
                if issubclass(kind, enum.Flag) and all(member in kind.__members__ for member in members):
                    return functools.reduce(enum.Flag.__or__, map(kind.__members__.get, members), kind(0))
            case ("built-in", str(name)) if name in FACTORIES:
                return FACTORIES[name]
            case ("method", ("at" | "new" | "named", *_) as owner, str(name)):
                value = self.rebuild(owner)
                if (function := methods_of(value).get(name)) is not None:
                    return types.MethodType(function, value)
            case ("range", int(start), int(stop), int(step)):
                return range(start, stop, step)
            case ("slice", start, stop, step):
                return slice(self.rebuild(start), self.rebuild(stop), self.rebuild(step))
            case ("fraction", int(numerator), int(denominator)):
                return Fraction(numerator, denominator)
            case ("torch", str(name)) if name in OF_TORCH:
                return OF_TORCH[name]
            case ("ellipsis",):
                return Ellipsis
            case ("text", str(name), str(text)) if name in BY_TEXT:
                return BY_TEXT[name][1](text)
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
                return BY_TEXT[name][1](text).replace(fold=fold, tzinfo=self.rebuild(zone))
            case ("dtype of an array", str(text)) if not numpy.dtype(text).hasobject:
                return numpy.dtype(text)
        raise CheckpointError(f"a value described as {str(described)[:100]} cannot be made")

    def look_again(self) -> None:
        """Look for what objects with a `state_dict` hold where it is now."""
        self._places = None

    def at(self, path: str) -> Any:
        """The object at a path."""
        if path not in self._reachable.by_path:
            raise CheckpointError(f"`{path}`, which the saved run had, does not exist now")
        return self._reachable.by_path[path].value

    def _in(self, place: tuple[Any, ...]) -> Any:
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
                user_class = found_by_name(*map(str, described["class"]))
                if not (isinstance(user_class, type) and is_plain_class(user_class)):
                    raise CheckpointError(f"an object of the class {described['class']} cannot be made")
                made = self._made[number] = object.__new__(user_class)
                FORMS["object"].put(made, {name: self.rebuild(part) for name, part in described["parts"].items()}, ())
            case str() if kind in MAPPINGS:
                made = self._made[number] = MAPPINGS[kind]()
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
        if "memory" in described:
            dtype = numpy.dtype(str(described["dtype"]))
            if dtype.hasobject:
                raise CheckpointError("a view of numbers as objects cannot be made")
            return view_beside(self.rebuild(described["of"]), described["memory"], numpy.empty(0, dtype))
        owner, (shape, strides, offset) = self.rebuild(described["of"]), described["view"]
        if not isinstance(owner, numpy.ndarray) or owner.dtype.hasobject or not owner.flags.c_contiguous:
            raise CheckpointError("an array that it is a view of is of another form now")
        dtype = numpy.dtype(str(described["dtype"]))
        if dtype.hasobject:
            raise CheckpointError("a view of numbers as objects cannot be made")
        # Which checks that it lies within.
        return numpy.ndarray(tuple(shape), dtype, owner.reshape(-1).view(numpy.uint8), offset, tuple(strides))

    def _tensor(self, described: Mapping[str, Any]) -> torch.Tensor:
        if "memory" in described:
            like = torch.empty(0, dtype=described["dtype"])
            tensor: torch.Tensor = view_beside(self.rebuild(described["of"]), described["memory"], like)
        elif "of" in described:
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
