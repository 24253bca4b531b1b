"""Encode nested Python values and tensors as msgpack and named tensors, to be decoded to equal values.

msgpack supports None, booleans, 64-bit integers, floats, strings, bytes, lists and string-keyed maps. Other types that
occur in state dicts have the tagged encodings below. Only these types are decoded: data, never code.

Values are restored bitwise, and tensors with their strides. Two references to one list or tensor are two references to
one object again.
"""

from __future__ import annotations

import bisect
import collections
import datetime
import enum
import pathlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import msgpack
import numpy
import torch

from graphtrain.errors import CheckpointError
from graphtrain.storage.strides import in_order, is_usual, name_of, placement_of, without_repeats

if TYPE_CHECKING:
    from graphtrain.storage.pieces import Sharding


class Code(enum.IntEnum):
    """Codes of the tagged encodings. They are part of the format: never renumbered."""

    TUPLE = 1
    SET = 2
    FROZENSET = 3
    COUNTER = 4
    ORDERED = 5
    DEQUE = 6
    PAIRS = 7
    BIG = 8
    ARRAY = 9
    SCALAR = 10
    TENSOR = 11
    RAW = 12
    SPARSE = 13
    SIZE = 14
    TEXT = 15
    BYTEARRAY = 16
    DEFAULT = 17
    STATE = 18
    PLACED = 19
    SAME = 20
    STANDARD = 21
    FOUND = 22
    INSTANCE = 23
    PACKED = 24
    PIECE = 25


MOST_DEPTH = 100
# A larger number may be an `id` or another address, which differs between processes.
LEAST_ADDRESS = 2**32


class UnsaveableError(CheckpointError):
    """A value that cannot be encoded; `path` says where it is."""

    def __init__(self, path: str, reason: str, hint: str = "") -> None:
        self.path = path
        super().__init__(f"{path} cannot be saved: {reason}", hint)


@dataclass
class Tensors:
    """The tensors of one file, by name.

    Attributes:
        pieces: of those that are parts of tensors which are sharded over ranks, by name. None if none is.
        device: written as that of all of them. None: that of each.
    """

    file: str
    named: dict[str, torch.Tensor] = field(default_factory=dict)
    pieces: dict[str, Sharding] | None = None
    device: str | None = None

    def add(self, name: str, tensor: torch.Tensor) -> str:
        """Add a tensor under `name`, or a similar name if that is taken; returns the name."""
        readable = name if name.isascii() else name.encode("utf-8", "backslashreplace").decode()
        unique, number = readable, 1
        while unique in self.named or unique == RESERVED:
            number += 1
            unique = f"{readable}#{number}"
        self.named[unique] = tensor
        return unique


# A key of safetensors files that is not a tensor.
RESERVED = "__metadata__"
# The dtypes that safetensors supports, and their names there.
TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def pack(
    value: Any,
    path: str,
    tensors: Tensors,
    memo: Memo | None = None,
    *,
    with_gradients: bool = False,
    describer: Describer | None = None,
) -> bytes:
    """Encode a value as msgpack; its tensors are added to `tensors` and referred to by name.

    Arguments:
        memo: the objects that several values may share. Default: a new memo.
        with_gradients: True to keep parameters as parameters, and the gradients of leaves. Default: only values.
        describer: describes what is more than plain data. Default: only plain data can be encoded.

    Raises:
        UnsaveableError: something inside cannot be encoded; its path is named.

    >>> from graphtrain.storage.decoding import unpack
    >>> tensors = Tensors("example")
    >>> unpack(pack({"a": (1, {2.5}, 2**70)}, "example", tensors), {})
    {'a': (1, {2.5}, 1180591620717411303424)}
    >>> shared = []
    >>> first, second = unpack(pack([shared, shared], "example", tensors), {})
    >>> first is second
    True
    """
    encoder = _Encoder(tensors, Memo() if memo is None else memo, with_gradients, describer)
    packed: bytes = msgpack.packb(encoder.encode(value, path, ""), use_bin_type=True)
    return packed


class Memo:
    """The objects encoded so far, so that a repeated object is encoded as a reference: its part and its number there.

    Encoder and decoder number objects in the same order, so that a number is written only in references.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # of all parts together, by identity
        self._held: list[Any] = []  # kept alive, since an `id` can be reused
        self._names, self._starts = [""], [0]

    def begin(self, part: str) -> None:
        """Begin a part of this name, with numbers from 0."""
        self._names.append(part)
        self._starts.append(len(self._held))

    def place(self, value: Any) -> tuple[str, int] | None:
        """The part of a known value and its number there; None for a new one."""
        number = self._numbers.get(id(value))
        if number is None:
            return None
        part = bisect.bisect_right(self._starts, number) - 1
        return self._names[part], number - self._starts[part]

    def met(self, value: Any) -> list[Any] | None:
        """The reference to a known value: its number, after its part if that is another one; None for a new one."""
        if id(value) not in self._numbers or (place := self.place(value)) is None:
            return None
        part, number = place
        return [number] if part == self._names[-1] else [part, number]

    def is_new(self, value: Any) -> bool:
        """Add a value if it is new; returns whether it is."""
        count = len(self._held)
        if self._numbers.setdefault(id(value), count) != count:
            return False
        self._held.append(value)
        return True

    def add(self, value: Any) -> None:
        """Add a value."""
        self._numbers[id(value)] = len(self._held)
        self._held.append(value)

    def forget(self) -> None:
        """Forget the current part."""
        self._names.pop()
        for value in self._held[self._starts.pop() :]:
            del self._numbers[id(value)]
            self._held.pop()


@dataclass(frozen=True)
class Found:
    """A value that the decoding process has and looks up, by components that can be encoded."""

    by: Sequence[Any]


@dataclass(frozen=True)
class Instance:
    """A value that is created again by `by`, then filled with what it holds, by name; that may refer back to it."""

    by: Sequence[Any]
    holds: Mapping[str, Any]


@dataclass(frozen=True)
class Packed:
    """A value that is already encoded, because only the receiving process can decode it.

    Attributes:
        part: its name in the memo.
    """

    part: str
    data: bytes
    tensors: Mapping[str, torch.Tensor]


class Describer(Protocol):
    """Describes what is more than plain data.

    Attributes:
        is_in_transit: True to refuse tensors that are part of a graph.
    """

    is_in_transit: bool

    def describe(self, value: Any, path: str) -> Found | Instance | None:
        """How a value is looked up or created again; None if it is encoded as it is."""


class _Encoder:
    def __init__(self, tensors: Tensors, memo: Memo, with_gradients: bool, describer: Describer | None) -> None:
        self._tensors, self._memo, self._with_gradients, self._describer = tensors, memo, with_gradients, describer
        self._open: set[int] = set()  # the containers that are being encoded

    def encode(self, value: Any, path: str, name: str, depth: int = 0) -> Any:
        """`path` is for messages, `name` for the tensor file."""
        if depth > MOST_DEPTH:
            raise UnsaveableError(path, f"it is nested more than {MOST_DEPTH} deep")
        kind = type(value)
        if value is None or kind in _PLAIN:
            return value
        if kind is str:
            return value if _is_unicode(value) else _tag(Code.TEXT, value.encode("utf-8", "surrogatepass"))
        if kind is int and (self._describer is None or value < LEAST_ADDRESS):
            return self._int(value)
        if kind is torch.Tensor and self._describer is None:  # of which there may be 100,000
            if self._memo.is_new(value):
                return self._tensor(value, path, name)
            return _tag(Code.SAME, self._memo.met(value))
        if (met := self._memo.met(value)) is not None:
            if id(value) in self._open and self._describer is None:
                raise UnsaveableError(path, "it contains itself")
            return _tag(Code.SAME, met)
        if self._describer is not None and (described := self._describer.describe(value, path)) is not None:
            by = [self.encode(part, path, name, depth + 1) for part in described.by]
            if isinstance(described, Found):
                return _tag(Code.FOUND, by)
            self._memo.add(value)
            holds = {
                key: self.encode(part, f"{path}.{key}", f"{name}/{key}", depth + 1)
                for key, part in described.holds.items()
            }
            return _tag(Code.INSTANCE, [by, holds])
        if kind is int:
            return self._int(value)
        if isinstance(value, SHAREABLE):
            self._memo.add(value)
        if not isinstance(value, _CONTAINERS):
            return self._leaf(value, path, name, depth)
        self._open.add(id(value))
        try:
            return self._container(value, path, name, depth)
        finally:
            self._open.discard(id(value))

    def _int(self, value: int) -> Any:
        if -(2**63) <= value < 2**64:
            return value
        return _tag(Code.BIG, value.to_bytes((value.bit_length() + 8) // 8, "big", signed=True))

    def _container(self, value: Any, path: str, name: str, depth: int) -> Any:
        def inside(part: Any, key: Any) -> Any:
            # Any other key may be, or show, an address, and a name is the same in every process.
            is_name = type(key) is str or (type(key) is int and key < LEAST_ADDRESS)
            label = key if is_name else "value"
            return self.encode(part, f"{path}[{key!r}]", f"{name}/{label}" if name else str(label), depth + 1)

        def each() -> list[Any]:
            if depth < MOST_DEPTH and {*map(type, value)} == {int} and min(value) >= 0 and max(value) < LEAST_ADDRESS:
                return [*value]  # as in the state of `random`, which takes a seventh of the time
            return [inside(part, index) for index, part in enumerate(value)]

        kind = type(value)
        if kind is list:
            return each()
        if kind is dict and all(type(key) is str and _is_unicode(key) for key in value):
            encode, inner = self.encode, f"{name}/" if name else ""
            return {key: encode(part, f"{path}[{key!r}]", f"{inner}{key}", depth + 1) for key, part in value.items()}
        if kind in (set, frozenset):
            return _tag(Code.SET if kind is set else Code.FROZENSET, self._unordered(value, path, name, depth))
        if isinstance(value, dict) and kind in _MAPPINGS:
            return self._mapping(value, path, name, depth, inside)
        if kind in _SEQUENCES:
            code, parts = _SEQUENCES[kind]
            return _tag(code, parts(each(), value))
        raise _unsaveable(value, path)

    def _leaf(self, value: Any, path: str, name: str, depth: int) -> Any:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path, name)
        if isinstance(value, numpy.ndarray | numpy.generic):
            return self._numpy(value, path, name, depth)
        if kind is bytearray:
            return _tag(Code.BYTEARRAY, bytes(value))
        if (standard := STANDARD.get(numpy.dtype if isinstance(value, numpy.dtype) else kind)) is not None:
            arguments = [self.encode(part, path, name, depth + 1) for part in standard.arguments(value)]
            return _tag(Code.STANDARD, [standard.name, arguments])
        if kind is Packed:
            tensors = [[key, self._stored(tensor, f"{name}/{key}")] for key, tensor in value.tensors.items()]
            return _tag(Code.PACKED, [value.part, value.data, tensors])
        raise _unsaveable(value, path)

    def _mapping(
        self, value: dict[Any, Any], path: str, name: str, depth: int, inside: Callable[[Any, Any], Any]
    ) -> Any:
        pairs = []
        for key, part in value.items():
            if isinstance(key, torch.Tensor):
                raise UnsaveableError(path, _BY_IDENTITY.format("a tensor as a key"), "use its name as the key")
            pairs.append([self.encode(key, f"{path}.keys()[{key!r}]", f"{name}/key", depth + 1), inside(part, key)])
        kind = type(value)
        if isinstance(value, collections.defaultdict):
            factory = value.default_factory
            if self._describer is not None:
                return _tag(Code.DEFAULT, [self.encode(factory, f"{path}.default_factory", name, depth + 1), pairs])
            if factory is not None and factory not in FACTORIES.values():
                known = ", ".join(FACTORIES)
                reason = f"the default of a defaultdict must be one of {known}; {factory!r} cannot be encoded"
                raise UnsaveableError(path, reason, "save `dict(value)`, and fill a new defaultdict with it")
            return _tag(Code.DEFAULT, [None if factory is None else factory.__name__, pairs])
        versions = getattr(value, "_metadata", None) if kind is collections.OrderedDict else None
        if versions is not None:  # of a module's state_dict: `load_state_dict` recognizes older formats by them
            return _tag(Code.STATE, [pairs, self.encode(versions, f"{path}._metadata", f"{name}/_metadata", depth + 1)])
        return _tag(_MAPPINGS[kind], pairs)

    def _unordered(self, value: set[Any] | frozenset[Any], path: str, name: str, depth: int) -> list[Any]:
        """Encode the members, sorted by their encodings: the order of a set depends on PYTHONHASHSEED."""
        if any(isinstance(member, torch.Tensor) for member in value):
            raise UnsaveableError(path, _BY_IDENTITY.format("a tensor in a set"), "save a list")
        parts = [self.encode(member, f"{path}[{member!r}]", f"{name}/member", depth + 1) for member in value]
        if self._describer is not None and {bool, int, float}.issuperset(map(type, value)):
            return parts  # their hashes, and so their order, do not depend on the process
        return sorted(parts, key=lambda part: msgpack.packb(part, use_bin_type=True))

    def _tensor(self, tensor: torch.Tensor, path: str, name: str) -> Any:
        # Nearly all are of this form, and there may be 100,000 of them: 4 us instead of 9.
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.dtype in TYPES and is_usual(tensor):
            if not (tensor.requires_grad or (self._with_gradients and type(tensor) is torch.nn.Parameter)):
                return self._stored(tensor, name)
            if tensor.grad_fn is None and not self._with_gradients:
                return _tag(Code.PLACED, [self._stored(tensor.detach(), name), None, True])
        if tensor.grad_fn is not None and (self._describer is None or self._describer.is_in_transit):
            raise UnsaveableError(path, "it is a tensor that is part of an autograd graph", "save `tensor.detach()`")
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            if type(tensor).__name__ == "DTensor":
                return self._piece(tensor, path, name)
            kind = type(tensor)
            reason = f"a {kind.__module__}.{kind.__qualname__} would come back as a plain tensor"
            if torch.nn.parameter.is_lazy(tensor):
                reason, hint = "it is a lazy parameter, which has no values yet", "pass a batch through the model first"
            else:
                hint = "save `tensor.as_subclass(torch.Tensor)`"
            raise UnsaveableError(path, reason, hint)
        if tensor.is_meta:
            raise UnsaveableError(path, "a tensor on the device `meta` has no values")
        if tensor.layout is torch.sparse_coo:
            indices = self._tensor(tensor._indices(), f"{path}.indices", f"{name}/indices")
            values = self._tensor(tensor._values().detach(), f"{path}.values", f"{name}/values")
            encoded = _tag(Code.SPARSE, [indices, values, list(tensor.shape), tensor.is_coalesced()])
            return _tag(Code.PLACED, [encoded, None, True]) if tensor.requires_grad else encoded
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            what = "a quantised tensor" if tensor.is_quantized else f"a tensor of layout {tensor.layout}"
            raise UnsaveableError(path, f"{what} cannot be encoded")
        requires_grad = tensor.is_leaf and tensor.requires_grad
        values = tensor.detach().resolve_conj().resolve_neg()
        placement = placement_of(values)
        encoded = self._values(values if placement is None else without_repeats(values), name)
        if placement is None and not requires_grad and type(tensor) is torch.Tensor:
            return encoded
        where = None if placement is None else [list(placement.shape), list(placement.stride), placement.offset]
        if not self._with_gradients:
            return _tag(Code.PLACED, [encoded, where, requires_grad])
        gradient = None
        if requires_grad and tensor.grad is not None:
            gradient = self._tensor(tensor.grad, f"{path}.grad", f"{name}/grad")
        return _tag(Code.PLACED, [encoded, where, requires_grad, gradient, type(tensor) is torch.nn.Parameter])

    def _piece(self, tensor: torch.Tensor, path: str, name: str) -> Any:
        """Encode what this rank has of a sharded tensor, so that the bytes are the same on all ranks."""
        from graphtrain.storage.pieces import part_of  # which few runs need

        try:
            local, sharding = part_of(tensor)
        except ValueError as error:
            raise UnsaveableError(path, str(error)) from None
        count = len(self._tensors.named)
        encoded = self._tensor(local, path, name)
        if len(self._tensors.named) > count:
            self._tensors.pieces = self._tensors.pieces or {}
            self._tensors.pieces[next(reversed(self._tensors.named))] = sharding
        parts = [list(sharding.shape), list(sharding.stride), sharding.dimension, list(sharding.mesh)]
        return _tag(Code.PIECE, [encoded, *parts, list(sharding.order), tensor.requires_grad])

    def _values(self, tensor: torch.Tensor, name: str) -> Any:
        """Encode the values of a tensor, in the order of its dimensions."""
        tensor = in_order(tensor)
        if tensor.dtype not in TYPES:
            host = tensor.cpu().contiguous()
            raw = host.reshape(-1).view(torch.uint8).numpy().tobytes() if host.numel() else b""
            device = self._tensors.device or name_of(tensor.device)
            return _tag(Code.RAW, [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), raw, device])
        return self._stored(tensor, name)

    def _stored(self, tensor: torch.Tensor, name: str) -> Any:
        """Add a tensor to the tensor file, and encode a reference to it."""
        device = self._tensors.device or ("cpu" if tensor.is_cpu else name_of(tensor.device))
        return _tag(Code.TENSOR, [self._tensors.file, self._tensors.add(name or "value", tensor), device])

    def _numpy(self, value: Any, path: str, name: str, depth: int) -> Any:
        if value.dtype.hasobject:
            raise UnsaveableError(path, "a NumPy array of objects cannot be encoded")
        if isinstance(value, numpy.ndarray) and type(value) not in (numpy.ndarray, numpy.memmap):
            raise UnsaveableError(path, f"a {type(value).__qualname__} would come back as a plain array")
        description = numpy.lib.format.dtype_to_descr(value.dtype)
        if numpy.lib.format.descr_to_dtype(description) != value.dtype:
            raise UnsaveableError(path, f"NumPy values of the type {value.dtype} cannot be encoded")
        code = Code.ARRAY if isinstance(value, numpy.ndarray) else Code.SCALAR
        array = numpy.asarray(value)
        order: Literal["C", "F"] = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        dtype = _Encoder(self._tensors, Memo(), False, None).encode(description, f"{path}.dtype", name, depth + 1)
        return _tag(code, [dtype, list(array.shape), array.tobytes(order), order])


# Mutable types: two references to one object are not the same as two equal objects.
SHAREABLE = (list, dict, torch.Tensor, numpy.ndarray, collections.deque, set, bytearray)
_PLAIN = frozenset({bool, float, bytes})
_CONTAINERS = (list, dict, tuple, collections.deque, set, frozenset)
_BY_IDENTITY = "{} is looked up by its identity, which a resume cannot keep"


def _is_unicode(text: str) -> bool:
    """False for text with lone surrogates, as in file names that are not UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unsaveable(value: Any, path: str) -> UnsaveableError:
    kind = type(value)
    return UnsaveableError(path, f"a {kind.__module__}.{kind.__qualname__} cannot be encoded", advice(value))


def advice(value: Any) -> str:
    """What to save instead of a value that cannot be encoded."""
    if callable(getattr(value, "state_dict", None)):
        return "save `value.state_dict()`"
    return "save numbers, text, lists, dicts, tensors or arrays from which it can be recreated"


def _tag(code: int, value: Any) -> msgpack.ExtType:
    return msgpack.ExtType(code, msgpack.packb(value, use_bin_type=True))


_MAPPINGS: dict[type, int] = {
    dict: Code.PAIRS,
    collections.Counter: Code.COUNTER,
    collections.OrderedDict: Code.ORDERED,
    collections.defaultdict: Code.DEFAULT,
}
_SEQUENCES: dict[type, tuple[int, Callable[[list[Any], Any], Any]]] = {
    tuple: (Code.TUPLE, lambda parts, value: parts),
    torch.Size: (Code.SIZE, lambda parts, value: parts),
    collections.deque: (Code.DEQUE, lambda parts, value: [value.maxlen, parts]),
}
FACTORIES = {factory.__name__: factory for factory in (bool, int, float, complex, str, bytes, list, tuple, dict, set)}


# ---- immutable types of Python, torch and NumPy


class Standard(NamedTuple):
    """An immutable type: the arguments that make a value, and the function that takes them."""

    name: str
    arguments: Callable[[Any], Sequence[Any]]
    make: Callable[..., Any]


def _zone(offset: datetime.timedelta, name: str) -> datetime.timezone:
    zone = datetime.timezone(offset)
    return zone if zone.tzname(None) == name else datetime.timezone(offset, name)


def _dtype_text(dtype: Any) -> str:
    text = numpy.lib.format.dtype_to_descr(dtype)
    if not isinstance(text, str) or numpy.lib.format.descr_to_dtype(text) != dtype or dtype.hasobject:
        raise TypeError(f"the NumPy type {dtype} has no plain name")
    return text


def _plain_dtype(text: str) -> Any:
    dtype = numpy.dtype(text)
    if dtype.hasobject:
        raise ValueError("a type of objects")
    return dtype


_OF_TORCH = {
    str(value): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format)
}
_AS_TEXT: Sequence[type] = (
    Decimal, uuid.UUID, torch.device, pathlib.PosixPath, pathlib.PurePosixPath, pathlib.PureWindowsPath,
)  # fmt: skip
STANDARD: Mapping[type, Standard] = {
    range: Standard("range", lambda value: [value.start, value.stop, value.step], range),
    slice: Standard("slice", lambda value: [value.start, value.stop, value.step], slice),
    type(Ellipsis): Standard("ellipsis", lambda value: [], lambda: Ellipsis),
    complex: Standard("complex", lambda value: [value.real, value.imag], complex),
    Fraction: Standard("Fraction", lambda value: [value.numerator, value.denominator], Fraction),
    datetime.date: Standard("date", lambda value: [value.isoformat()], datetime.date.fromisoformat),
    datetime.timedelta: Standard(
        "timedelta", lambda value: [value.days, value.seconds, value.microseconds], datetime.timedelta
    ),
    datetime.timezone: Standard("timezone", lambda value: [value.utcoffset(None), value.tzname(None)], _zone),
    **{
        kind: Standard(
            kind.__name__,
            lambda value: [value.replace(tzinfo=None).isoformat(), value.fold, value.tzinfo],
            lambda text, fold, zone, read=kind.fromisoformat: read(text).replace(fold=fold, tzinfo=zone),
        )
        for kind in (datetime.datetime, datetime.time)
    },
    **{kind: Standard(kind.__name__, lambda value: [str(value)], kind) for kind in _AS_TEXT},
    numpy.dtype: Standard("numpy.dtype", lambda value: [_dtype_text(value)], _plain_dtype),
    **{
        kind: Standard(f"torch.{kind.__name__}", lambda value: [str(value)], _OF_TORCH.__getitem__)
        for kind in (torch.dtype, torch.layout, torch.memory_format)
    },
}
BY_NAME = {standard.name: standard for standard in STANDARD.values()}
