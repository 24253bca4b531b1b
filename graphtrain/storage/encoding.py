"""Encoding: nested Python values and tensors as msgpack and named tensors, and back to equal values.

msgpack alone knows None, booleans, 64-bit integers, floats, strings, bytes, lists and string-keyed maps. What else is
met in real state dicts has a tagged encoding below. What is read back is of these types only: data, never code.

Values come back equal to the last bit, and tensors with the strides they had. Not kept is that two places hold the very
same list or tensor: they come back as two equal ones.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

import msgpack
import numpy
import torch

from graphtrain.errors import CheckpointError
from graphtrain.printable import one_line, shorten
from graphtrain.storage.strides import Placement, in_order, is_usual, placed, placement_of, without_repeats

# Codes of the tagged encodings. They are part of the format: never renumbered.
(
    _TUPLE, _SET, _FROZENSET, _COUNTER, _ORDERED, _DEQUE, _PAIRS, _BIG, _COMPLEX, _ARRAY, _SCALAR,
    _TENSOR, _RAW, _SPARSE, _SIZE, _DTYPE, _TEXT, _BYTEARRAY, _DEFAULT, _STATE, _PLACED, _DEVICE,
) = range(1, 23)  # fmt: skip

_MAX_DEPTH = 100
_MAX_DEPTH_OF_TAGS = _MAX_DEPTH + 3  # a sparse leaf with strides of its own is tags in each other
_MOST_EMPTY = 1 << 20  # elements of no bytes
_MOST_CHARACTERS = 200


class UnsaveableError(CheckpointError):
    """A value that cannot be encoded; `path` says where it is."""

    def __init__(self, path: str, reason: str, hint: str = "") -> None:
        self.path = path
        super().__init__(f"{path} cannot be saved: {reason}", hint)


@dataclass
class Tensors:
    """The tensors of one file, by name."""

    file: str
    named: dict[str, torch.Tensor] = field(default_factory=dict)

    def add(self, name: str, tensor: torch.Tensor) -> str:
        """Keep a tensor under `name`, or a name like it if that is taken."""
        readable = name if name.isascii() else name.encode("utf-8", "backslashreplace").decode()
        unique, number = readable, 1
        while unique in self.named or unique == _RESERVED:
            number += 1
            unique = f"{readable}#{number}"
        self.named[unique] = tensor
        return unique


# A key of every safetensors file that is no tensor.
_RESERVED = "__metadata__"
# What a safetensors file can hold.
_STORABLE = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.complex64,
    torch.float8_e4m3fn, torch.float8_e5m2,
}  # fmt: skip
_DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def pack(value: Any, path: str, tensors: Tensors) -> bytes:
    """The msgpack form of a value; its tensors are added to `tensors` and referred to by name.

    Raises:
        UnsaveableError: something inside cannot be encoded; its path is named.

    >>> tensors = Tensors("example")
    >>> unpack(pack({"a": (1, {2.5}, 2**70)}, "example", tensors), {})
    {'a': (1, {2.5}, 1180591620717411303424)}
    """
    packed: bytes = msgpack.packb(_Encoder(tensors).encode(value, path, ""), use_bin_type=True)
    return packed


def unpack(data: bytes, files: Mapping[str, Mapping[str, torch.Tensor]]) -> Any:
    """The value that `pack` wrote. The tensors in `files` become part of it: nobody else may change them.

    Raises:
        ValueError: the bytes are no such encoding.
    """
    return Decoder(files).unpack(data)


class _Encoder:
    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def encode(self, value: Any, path: str, name: str, depth: int = 0) -> Any:
        """`path` is for messages, `name` for the tensor file."""
        if depth > _MAX_DEPTH:
            raise UnsaveableError(path, f"it is nested more than {_MAX_DEPTH} deep")

        def inside(part: Any, key: Any) -> Any:
            return self.encode(part, f"{path}[{key!r}]", f"{name}/{key}" if name else str(key), depth + 1)

        kind = type(value)
        if value is None or kind in (bool, float, bytes):
            return value
        if kind is str:
            return value if _is_unicode(value) else _tag(_TEXT, value.encode("utf-8", "surrogatepass"))
        if kind is int:
            if -(2**63) <= value < 2**64:
                return value
            return _tag(_BIG, value.to_bytes((value.bit_length() + 8) // 8, "big", signed=True))
        if kind is list:
            return [inside(part, index) for index, part in enumerate(value)]
        if kind is dict and all(type(key) is str and _is_unicode(key) for key in value):
            return {key: inside(part, key) for key, part in value.items()}
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path, name)
        if kind in (set, frozenset):
            return _tag(_SET if kind is set else _FROZENSET, self._unordered(value, path, name, depth))
        if isinstance(value, dict) and kind in _MAPPINGS:
            return self._mapping(value, path, name, depth, inside)
        if kind in _SEQUENCES:
            code, parts = _SEQUENCES[kind]
            return _tag(code, parts([inside(part, index) for index, part in enumerate(value)], value))
        if isinstance(value, numpy.ndarray | numpy.generic):
            return self._numpy(value, path, name, depth)
        if kind in _SINGLE:
            code, single = _SINGLE[kind]
            return _tag(code, single(value))
        raise UnsaveableError(path, f"a {kind.__module__}.{kind.__qualname__} cannot be encoded", _advice(value))

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
            if factory is not None and factory not in _FACTORIES.values():
                known = ", ".join(_FACTORIES)
                reason = f"the default of a defaultdict is a type out of {known}; {factory!r} cannot be encoded"
                raise UnsaveableError(path, reason, "save `dict(value)`, and fill a new defaultdict with it")
            return _tag(_DEFAULT, [None if factory is None else factory.__name__, pairs])
        versions = getattr(value, "_metadata", None) if kind is collections.OrderedDict else None
        if versions is not None:  # of a module's state_dict: by them `load_state_dict` knows older forms
            return _tag(_STATE, [pairs, self.encode(versions, f"{path}._metadata", f"{name}/_metadata", depth + 1)])
        return _tag(_MAPPINGS[kind], pairs)

    def _unordered(self, value: set[Any] | frozenset[Any], path: str, name: str, depth: int) -> list[Any]:
        """The members in the order of their encodings: that of a set depends on PYTHONHASHSEED."""
        if any(isinstance(member, torch.Tensor) for member in value):
            raise UnsaveableError(path, _BY_IDENTITY.format("a tensor in a set"), "save a list")
        parts = [self.encode(member, f"{path}[{member!r}]", f"{name}/member", depth + 1) for member in value]
        return sorted(parts, key=lambda part: msgpack.packb(part, use_bin_type=True))

    def _tensor(self, tensor: torch.Tensor, path: str, name: str) -> Any:
        # Nearly all are of this form, and there may be 100,000 of them: 4 us instead of 9.
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.dtype in _STORABLE and is_usual(tensor):
            if not tensor.requires_grad:
                return self._stored(tensor, name, "cpu")
            if tensor.grad_fn is None:
                return _tag(_PLACED, [self._stored(tensor.detach(), name, "cpu"), None, True])
        if tensor.grad_fn is not None:
            raise UnsaveableError(path, "it is a tensor that is part of an autograd graph", "save `tensor.detach()`")
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
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
            encoded = _tag(_SPARSE, [indices, values, list(tensor.shape), tensor.is_coalesced()])
            return _tag(_PLACED, [encoded, None, True]) if tensor.requires_grad else encoded
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            what = "a quantised tensor" if tensor.is_quantized else f"a tensor of layout {tensor.layout}"
            raise UnsaveableError(path, f"{what} cannot be encoded")
        values = tensor.detach().resolve_conj().resolve_neg()
        placement = placement_of(values)
        encoded = self._values(values if placement is None else without_repeats(values), name)
        if placement is None and not tensor.requires_grad:
            return encoded
        where = None if placement is None else [list(placement.shape), list(placement.stride), placement.offset]
        return _tag(_PLACED, [encoded, where, tensor.requires_grad])

    def _values(self, tensor: torch.Tensor, name: str) -> Any:
        """The form of a tensor by its values alone, in the order of its dimensions."""
        device = str(tensor.device)
        tensor = in_order(tensor)
        if tensor.dtype not in _STORABLE:
            host = tensor.cpu().contiguous()
            raw = host.reshape(-1).view(torch.uint8).numpy().tobytes() if host.numel() else b""
            return _tag(_RAW, [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), raw, device])
        return self._stored(tensor, name, device)

    def _stored(self, tensor: torch.Tensor, name: str, device: str) -> Any:
        """The form of a tensor whose values are in the file of tensors."""
        return _tag(_TENSOR, [self._tensors.file, self._tensors.add(name or "value", tensor), None, device])

    def _numpy(self, value: Any, path: str, name: str, depth: int) -> Any:
        if value.dtype.hasobject:
            raise UnsaveableError(path, "a NumPy array of objects cannot be encoded")
        if isinstance(value, numpy.ndarray) and type(value) not in (numpy.ndarray, numpy.memmap):
            raise UnsaveableError(path, f"a {type(value).__qualname__} would come back as a plain array")
        description = numpy.lib.format.dtype_to_descr(value.dtype)
        if numpy.lib.format.descr_to_dtype(description) != value.dtype:
            raise UnsaveableError(path, f"NumPy values of the type {value.dtype} cannot be encoded")
        code = _ARRAY if isinstance(value, numpy.ndarray) else _SCALAR
        array = numpy.asarray(value)
        order: Literal["C", "F"] = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        dtype = self.encode(description, f"{path}.dtype", name, depth + 1)
        return _tag(code, [dtype, list(array.shape), array.tobytes(order), order])


_BY_IDENTITY = "{} is looked up by its identity, which no resume can keep"


def _is_unicode(text: str) -> bool:
    """False for text with half a character in it, as file names that are not UTF-8 have."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _advice(value: Any) -> str:
    """What to save in place of a value that cannot be encoded."""
    if isinstance(value, enum.Enum):
        return "save `member.name`, or `member.value`"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "save `dataclasses.asdict(value)`"
    if isinstance(value, tuple):
        return "save `tuple(value)`" + (", or `value._asdict()`" if hasattr(value, "_asdict") else "")
    if isinstance(value, Mapping):
        return "save `dict(value)`"
    if isinstance(value, torch.Generator):
        return "save `generator.get_state()`"
    if isinstance(value, numpy.random.Generator):
        return "save `generator.bit_generator.state`"
    if isinstance(value, random.Random):
        return "save `generator.getstate()`"
    for kind in (int, float, str, bytes, list, set):
        if isinstance(value, kind):
            return f"save `{kind.__name__}(value)`"
    if callable(getattr(value, "state_dict", None)):
        return "save `value.state_dict()`"
    return "save numbers, text, lists, dicts, tensors or arrays that it can be made from again"


def _tag(code: int, value: Any) -> msgpack.ExtType:
    return msgpack.ExtType(code, msgpack.packb(value, use_bin_type=True))


_MAPPINGS: dict[type, int] = {
    dict: _PAIRS,
    collections.Counter: _COUNTER,
    collections.OrderedDict: _ORDERED,
    collections.defaultdict: _DEFAULT,
}
_SEQUENCES: dict[type, tuple[int, Callable[[list[Any], Any], Any]]] = {
    tuple: (_TUPLE, lambda parts, value: parts),
    torch.Size: (_SIZE, lambda parts, value: parts),
    collections.deque: (_DEQUE, lambda parts, value: [value.maxlen, parts]),
}
_SINGLE: dict[type, tuple[int, Callable[[Any], Any]]] = {
    complex: (_COMPLEX, lambda value: [value.real, value.imag]),
    bytearray: (_BYTEARRAY, bytes),
    torch.dtype: (_DTYPE, lambda value: str(value).removeprefix("torch.")),
    torch.device: (_DEVICE, str),
}
_FACTORIES = {factory.__name__: factory for factory in (bool, int, float, complex, str, bytes, list, tuple, dict, set)}


@final
class Decoder:
    """Reads what `pack` wrote, as far as `pack` can have written it: what a stranger wrote has the same bounds.

    Arguments:
        files: the tensors that are referred to, by file and name. Each can be taken once, as each was written once:
            many references to one would be many copies of it.
    """

    def __init__(self, files: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        self._files = files
        self._left = {file: dict(tensors) for file, tensors in files.items()}

    def unpack(self, data: bytes) -> Any:
        """A value.

        Raises:
            ValueError: the bytes are no such encoding.
        """
        try:
            return self._decode(self._message(data))
        except MemoryError:
            raise
        except Exception as error:  # whatever a library makes of the values of a stranger
            reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise ValueError(f"not a valid encoding: {shorten(one_line(reason), _MOST_CHARACTERS)}") from error

    def _decode(self, value: Any, depth: int = 0) -> Any:
        """The value that a message stands for. `depth` counts as that of the encoder."""
        if depth > _MAX_DEPTH_OF_TAGS:
            raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
        kind, inside = type(value), depth + 1
        if kind is list:
            return [self._decode(part, inside) if type(part) in _WITH_PARTS else part for part in value]
        if kind is dict:
            return {
                name: self._decode(part, inside) if type(part) in _WITH_PARTS else part for name, part in value.items()
            }
        if kind is not msgpack.ExtType:
            if kind in _WITH_PARTS:
                raise ValueError(f"a {kind.__name__}, which is never written")
            return value
        # By a loop in Python: a hook of msgpack would take 20 KB of the stack of C for every level.
        code, inner = value.code, self._message(value.data)
        if code in _OF_PARTS:
            parts = _typed(inner, list)
            return _OF_PARTS[code](
                [self._decode(part, inside) if type(part) in _WITH_PARTS else part for part in parts]
            )
        if code in _OF_PAIRS:
            return _OF_PAIRS[code](self._pairs(inner, inside))
        if code == _DEFAULT:
            factory, pairs = _typed(inner, list)
            return collections.defaultdict(None if factory is None else _FACTORIES[factory], self._pairs(pairs, inside))
        if code == _STATE:
            pairs, versions = _typed(inner, list)
            state = collections.OrderedDict(self._pairs(pairs, inside))
            state._metadata = self._decode(versions, inside)  # type: ignore[attr-defined]
            return state
        if code == _DEQUE:
            most, parts = _typed(inner, list)
            return collections.deque(self._decode(_typed(parts, list), depth), maxlen=most)
        if code in _OF_VALUES:
            return _OF_VALUES[code](self._decode(_typed(inner, list), depth))
        if code in _SINGLE_VALUES:
            wanted, read = _SINGLE_VALUES[code]
            return read(_typed(inner, wanted))
        raise ValueError(f"unknown code {code}")

    def _pairs(self, pairs: Any, depth: int) -> list[tuple[Any, Any]]:
        return [(self._decode(key, depth), self._decode(part, depth)) for key, part in _typed(pairs, list)]

    def _message(self, data: bytes) -> Any:
        """A message with its tensors in place, which hold no further level; every other tag is left as it is."""
        return _message(data, ext_hook=self._tag)

    def _tag(self, code: int, data: bytes) -> Any:
        return self._tensor(_message(data)) if code == _TENSOR else msgpack.ExtType(code, data)

    def _tensor(self, value: Any) -> torch.Tensor:
        file, key, stride, device = _typed(value, list)
        stored = self._left[file].pop(key, None) if file in self._left else None
        if stored is None:
            is_known = file in self._left and key in self._files[file]
            raise ValueError(
                f"the tensor `{key}` of the file `{file}` is referred to twice"
                if is_known
                else f"the file `{file}` has no tensor `{key}`"
            )
        if stride is None:
            return _on_device(stored, device)
        return _on_device(placed(stored, Placement(tuple(stored.shape), _sizes(stride), 0)), device)


_message = functools.partial(msgpack.unpackb, strict_map_key=True, raw=False)

# The types of a message that stand for something else, or hold what does.
_WITH_PARTS = (list, dict, msgpack.ExtType, msgpack.Timestamp)


def _typed(value: Any, kind: type) -> Any:
    """A value that must be of a type: `bytearray`, given a number, would make as many bytes."""
    if type(value) is not kind:
        raise ValueError(f"a tag with a value of type {type(value).__name__}, where a {kind.__name__} belongs")
    return value


def _sizes(value: Any) -> tuple[int, ...]:
    """A shape, or strides."""
    if not all(type(size) is int and 0 <= size < 2**63 for size in _typed(value, list)):
        raise ValueError("sizes that are no whole numbers >= 0")
    return tuple(value)


def _read_placed(value: Any) -> torch.Tensor:
    tensor, where, requires_grad = value
    if where is not None:
        shape, stride, offset = where
        tensor = placed(tensor, Placement(_sizes(shape), _sizes(stride), _typed(offset, int)))
    return tensor.requires_grad_(requires_grad)  # type: ignore[no-any-return]


def _read_raw(value: Any) -> torch.Tensor:
    name, shape, raw, device = value
    dtype, shape = _DTYPES[name], _sizes(shape)
    if len(_typed(raw, bytes)) != math.prod(shape) * torch.empty(0, dtype=dtype).element_size():
        raise ValueError("a tensor of another size than its bytes")
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return _on_device(torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).reshape(shape), device)


def _on_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """On the device it came from where there is such a one; else it stays in host memory."""
    if device == "cpu":
        return tensor
    wanted = torch.device(_typed(device, str))
    if wanted.type == "cuda" and torch.cuda.is_available() and (wanted.index or 0) < torch.cuda.device_count():
        return tensor.to(wanted)
    return tensor


def _read_array(value: Any) -> numpy.ndarray[Any, Any]:
    description, shape, raw, *order = value
    dtype, shape = numpy.lib.format.descr_to_dtype(description), _sizes(shape)
    if dtype.hasobject:
        raise ValueError("an array of objects")
    if len(_typed(raw, bytes)) != math.prod(shape) * dtype.itemsize or math.prod(shape) > max(len(raw), _MOST_EMPTY):
        raise ValueError("an array of another size than its bytes")
    memory = numpy.array(bytearray(raw))  # all bytes; a copy of an array leaves out those between its fields
    return numpy.ndarray(shape, dtype, memory.data, order=order[0] if order else "C")


def _read_scalar(value: Any) -> Any:
    array = _read_array(value)
    if array.shape:
        raise ValueError("an array in the place of a number")
    return array[()]


def _read_sparse(value: Any) -> torch.Tensor:
    indices, values, shape, coalesced = value
    return torch.sparse_coo_tensor(indices, values, _sizes(shape), is_coalesced=coalesced, check_invariants=True)


# By code, and by what the tag holds: parts, pairs of a key and a value, the values that something is made of, or one.
_OF_PARTS: dict[int, Callable[[Any], Any]] = {_TUPLE: tuple, _SET: set, _FROZENSET: frozenset, _SIZE: torch.Size}
_OF_PAIRS: dict[int, Callable[[Any], Any]] = {
    _COUNTER: lambda pairs: collections.Counter(dict(pairs)),
    _ORDERED: collections.OrderedDict,
    _PAIRS: dict,
}
_OF_VALUES: dict[int, Callable[[Any], Any]] = {
    _COMPLEX: lambda value: complex(*(_typed(part, float) for part in value)),
    _ARRAY: _read_array,
    _SCALAR: _read_scalar,
    _RAW: _read_raw,
    _SPARSE: _read_sparse,
    _PLACED: _read_placed,
}
_SINGLE_VALUES: dict[int, tuple[type, Callable[[Any], Any]]] = {
    _BIG: (bytes, lambda value: int.from_bytes(value, "big", signed=True)),
    _DTYPE: (str, _DTYPES.__getitem__),
    _TEXT: (bytes, lambda value: value.decode("utf-8", "surrogatepass")),
    _BYTEARRAY: (bytes, bytearray),
    _DEVICE: (str, torch.device),
}
