"""Plain forms: nests of Python values and tensors, as msgpack and named tensors, and back to equal values.

msgpack alone knows None, booleans, 64-bit integers, floats, strings, bytes, lists and string-keyed maps. What else is
met in real state dicts has a tagged form below. Reading one back makes values of these types only: data, never code.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy
import torch

from graphtrain.errors import CheckpointError

# Codes of the tagged forms. They are part of the format: never renumbered.
(
    _TUPLE,
    _SET,
    _FROZENSET,
    _COUNTER,
    _ORDERED,
    _DEQUE,
    _PAIRS,
    _BIG,
    _COMPLEX,
    _ARRAY,
    _SCALAR,
    _TENSOR,
    _RAW,
    _SPARSE,
    _SIZE,
    _DTYPE,
) = range(1, 17)

_MAX_DEPTH = 100


class UnsaveableError(CheckpointError):
    """A value that has no plain form; `path` says where it is."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        super().__init__(f"{path} cannot be saved: {reason}")


@dataclass
class Tensors:
    """The tensors of one file, by name."""

    file: str
    named: dict[str, torch.Tensor] = field(default_factory=dict)

    def add(self, name: str, tensor: torch.Tensor) -> str:
        """Keep a tensor under `name`, or a name like it if that is taken."""
        unique, number = name, 1
        while unique in self.named:
            number += 1
            unique = f"{name}#{number}"
        self.named[unique] = tensor
        return unique


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
        UnsaveableError: something inside has no plain form; its path is named.

    >>> tensors = Tensors("example")
    >>> unpack(pack({"a": (1, {2.5}, 2**70)}, "example", tensors), {})
    {'a': (1, {2.5}, 1180591620717411303424)}
    """
    packed: bytes = msgpack.packb(_Encoder(tensors).encode(value, path, ""), use_bin_type=True)
    return packed


def unpack(data: bytes, files: Mapping[str, Mapping[str, torch.Tensor]]) -> Any:
    """The value that `pack` wrote, with its tensors from `files` copied into storage of their own.

    Raises:
        ValueError: the bytes are no plain form.
    """

    def decode(code: int, payload: bytes) -> Any:
        reader = _DECODERS.get(code)
        if reader is None:
            raise ValueError(f"unknown plain form {code}")
        return reader(read(payload), files)

    def read(payload: bytes) -> Any:
        return msgpack.unpackb(payload, ext_hook=decode, strict_map_key=True, raw=False)

    try:
        return read(data)
    except (msgpack.UnpackException, ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"not a plain form: {error!r}") from error


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
        if value is None or kind in (bool, float, str, bytes):
            return value
        if kind is int:
            if -(2**63) <= value < 2**64:
                return value
            return _tag(_BIG, value.to_bytes((value.bit_length() + 8) // 8, "big", signed=True))
        if kind is list:
            return [inside(part, index) for index, part in enumerate(value)]
        if kind is dict:
            return self._mapping(value, inside)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path, name, depth)
        encoder = _CONTAINERS.get(kind)
        if encoder is not None:
            code, parts = encoder
            return _tag(code, parts(value, inside))
        if isinstance(value, numpy.ndarray | numpy.generic):
            return self._numpy(value, path)
        if kind is complex:
            return _tag(_COMPLEX, [value.real, value.imag])
        if kind is torch.dtype:
            return _tag(_DTYPE, str(value).removeprefix("torch."))
        raise UnsaveableError(path, f"a {kind.__module__}.{kind.__qualname__} has no plain form")

    def _mapping(self, value: Mapping[Any, Any], inside: Callable[[Any, Any], Any]) -> Any:
        if all(type(key) is str for key in value):
            return {key: inside(part, key) for key, part in value.items()}
        return _tag(_PAIRS, [[inside(key, "key"), inside(part, key)] for key, part in value.items()])

    def _tensor(self, tensor: torch.Tensor, path: str, name: str, depth: int) -> Any:
        if tensor.grad_fn is not None:
            raise UnsaveableError(path, "it is a tensor that is part of an autograd graph; write `tensor.detach()`")
        if tensor.layout is torch.sparse_coo:
            parts = {"indices": tensor._indices(), "values": tensor._values()}
            encoded = {
                key: self.encode(part, f"{path}.{key}", f"{name}/{key}", depth + 1) for key, part in parts.items()
            }
            return _tag(_SPARSE, [encoded["indices"], encoded["values"], list(tensor.shape), tensor.is_coalesced()])
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise UnsaveableError(path, f"a tensor of layout {tensor.layout} has no plain form")
        tensor = tensor.detach()
        device = str(tensor.device)
        if tensor.dtype not in _STORABLE:
            host = tensor.cpu().contiguous()
            raw = host.reshape(-1).view(torch.uint8).numpy().tobytes() if host.numel() else b""
            return _tag(_RAW, [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), raw, device])
        stride = None if tensor.is_contiguous() else _dense_stride(tensor)
        key = self._tensors.add(name or "value", tensor)
        return _tag(_TENSOR, [self._tensors.file, key, stride, device])

    def _numpy(self, value: Any, path: str) -> Any:
        if value.dtype.hasobject:
            raise UnsaveableError(path, "a NumPy array of objects has no plain form")
        code = _ARRAY if isinstance(value, numpy.ndarray) else _SCALAR
        array = numpy.asarray(value)
        return _tag(code, [array.dtype.str, list(array.shape), array.tobytes()])


def _dense_stride(tensor: torch.Tensor) -> list[int] | None:
    """The strides of a permuted but dense tensor (channels last, say); None where a plain copy must do."""
    stride = list(tensor.stride())
    expected = 1
    for size, step in sorted(zip(tensor.shape, stride, strict=True), key=lambda pair: (pair[1], pair[0])):
        if size != 1:
            if step != expected:
                return None
            expected *= size
    return stride if expected == tensor.numel() and tensor.numel() else None


def _tag(code: int, value: Any) -> msgpack.ExtType:
    return msgpack.ExtType(code, msgpack.packb(value, use_bin_type=True))


def _items(value: Any, inside: Callable[[Any, Any], Any]) -> list[Any]:
    return [inside(part, index) for index, part in enumerate(value)]


def _sorted_items(value: Any, inside: Callable[[Any, Any], Any]) -> list[Any]:
    # The order of a set depends on PYTHONHASHSEED; equal sets must have one form.
    return [
        inside(part, index) for index, part in enumerate(sorted(value, key=lambda one: (type(one).__name__, repr(one))))
    ]


def _key_values(value: Any, inside: Callable[[Any, Any], Any]) -> list[Any]:
    return [[inside(key, "key"), inside(part, key)] for key, part in value.items()]


_CONTAINERS: dict[type, tuple[int, Callable[[Any, Callable[[Any, Any], Any]], Any]]] = {
    tuple: (_TUPLE, _items),
    set: (_SET, _sorted_items),
    frozenset: (_FROZENSET, _sorted_items),
    collections.Counter: (_COUNTER, _key_values),
    collections.OrderedDict: (_ORDERED, _key_values),
    collections.deque: (_DEQUE, lambda value, inside: [value.maxlen, _items(value, inside)]),
    torch.Size: (_SIZE, lambda value, inside: list(value)),
}


def _read_tensor(value: Any, files: Mapping[str, Mapping[str, torch.Tensor]]) -> torch.Tensor:
    file, key, stride, device = value
    stored = files[file][key]
    if stride is None:
        fresh = stored.clone()
    else:
        fresh = torch.empty_strided(stored.shape, stride, dtype=stored.dtype)
        fresh.copy_(stored)
    return _on_device(fresh, device)


def _read_raw(value: Any) -> torch.Tensor:
    name, shape, raw, device = value
    dtype = _DTYPES[name]
    if len(raw) != math.prod(shape) * torch.empty(0, dtype=dtype).element_size():
        raise ValueError("a tensor of another size than its bytes")
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return _on_device(torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).reshape(shape), device)


def _on_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """On the device it came from where there is such a one; else it stays in host memory."""
    wanted = torch.device(device)
    if wanted.type == "cuda" and torch.cuda.is_available() and (wanted.index or 0) < torch.cuda.device_count():
        return tensor.to(wanted)
    return tensor


def _read_array(value: Any) -> numpy.ndarray[Any, Any]:
    name, shape, raw = value
    dtype = numpy.dtype(name)
    if dtype.hasobject:
        raise ValueError("an array of objects")
    return numpy.frombuffer(raw, dtype=dtype).reshape(shape).copy()


def _read_sparse(value: Any) -> torch.Tensor:
    indices, values, shape, coalesced = value
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=coalesced, check_invariants=True)


_Files = Mapping[str, Mapping[str, torch.Tensor]]
_DECODERS: dict[int, Callable[[Any, _Files], Any]] = {
    _TUPLE: lambda value, files: tuple(value),
    _SET: lambda value, files: set(value),
    _FROZENSET: lambda value, files: frozenset(value),
    _COUNTER: lambda value, files: collections.Counter(dict(value)),
    _ORDERED: lambda value, files: collections.OrderedDict(value),
    _DEQUE: lambda value, files: collections.deque(value[1], maxlen=value[0]),
    _PAIRS: lambda value, files: dict(value),
    _BIG: lambda value, files: int.from_bytes(value, "big", signed=True),
    _COMPLEX: lambda value, files: complex(*value),
    _ARRAY: lambda value, files: _read_array(value),
    _SCALAR: lambda value, files: _read_array(value)[()],
    _TENSOR: _read_tensor,
    _RAW: lambda value, files: _read_raw(value),
    _SPARSE: lambda value, files: _read_sparse(value),
    _SIZE: lambda value, files: torch.Size(value),
    _DTYPE: lambda value, files: _DTYPES[value],
}
