"""The types of values that can be encoded, beyond those of msgpack: how each is taken apart and created again."""

from __future__ import annotations

import datetime
import functools
import operator
import pathlib
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy
import torch

from graphtrain.storage.strides import placed

# The dtypes that safetensors supports, and their names there.
TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
DTYPES = {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
FACTORIES = {factory.__name__: factory for factory in (bool, int, float, complex, str, bytes, list, tuple, dict, set)}


class ValueType(NamedTuple):
    """How values of a type are encoded and created again.

    Attributes:
        name: the name of the type in the format.
        parts: returns the arguments of `make`; raises a ValueError for a value that cannot be encoded. None: no
            arguments.
        make: creates a value.
        is_mutable: True for mutable objects: two references to one object stay one object. Default: False.
        fill: adds the items to a container, which may refer to the container. None: `make` takes everything.
    """

    name: str
    parts: Callable[[Any], Sequence[Any]] | None
    make: Callable[..., Any]
    is_mutable: bool = False
    fill: Callable[[Any, Iterable[Any]], object] | None = None


def _fill_pairs(mapping: Any, content: Iterable[Any]) -> None:
    parts = iter(content)
    for key in parts:
        mapping[key] = next(parts)


def _ordered(versions: Any) -> Any:
    mapping = OrderedDict[Any, Any]()
    if versions is not None:  # of a module's state_dict: `load_state_dict` recognizes older formats by them
        mapping._metadata = versions  # type: ignore[attr-defined]
    return mapping


def _tensor(
    tensor: torch.Tensor, dtype_and_shape: Any, placement: Any, requires_grad: bool, is_parameter: bool, gradient: Any
) -> Any:
    if dtype_and_shape is not None:  # given for a dtype that safetensors does not support
        tensor = tensor.view(DTYPES[dtype_and_shape[0]]).reshape(dtype_and_shape[1])
    if placement is not None:
        tensor = placed(tensor, *placement)
    tensor = torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)
    if gradient is not None:
        tensor.grad = gradient
    return tensor


def _sparse(indices: Any, values: Any, shape: Any, is_coalesced: bool, requires_grad: bool) -> Any:
    tensor = torch.sparse_coo_tensor(indices, values, shape, is_coalesced=is_coalesced, check_invariants=True)
    return tensor.requires_grad_(requires_grad)


def _described(dtype: Any) -> Any:
    description = numpy.lib.format.dtype_to_descr(dtype)
    if dtype.hasobject or numpy.lib.format.descr_to_dtype(description) != dtype:
        raise ValueError(f"NumPy values of the type {dtype} cannot be encoded")
    return description


def _dtype(description: Any) -> Any:
    dtype = numpy.lib.format.descr_to_dtype(description)
    if dtype.hasobject:
        raise ValueError("a type of objects")
    return dtype


def _array_parts(value: Any) -> Sequence[Any]:
    array = numpy.asarray(value)
    order: Literal["C", "F"] = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    return [_described(array.dtype), [*array.shape], array.tobytes(order), order]


def _array(description: Any, shape: Any, raw: bytes, order: Any) -> Any:
    return numpy.ndarray(tuple(shape), _dtype(description), bytearray(raw), order=order)


def _in_state(cls: Any, put: str, *parts: Any) -> Any:
    """A random generator: the last part is its state, which the method named `put` restores."""
    generator = cls(*parts[:-1])
    getattr(generator, put)(parts[-1])
    return generator


def _numpy_generator(state: Any) -> Any:
    if (name := state["bit_generator"]) not in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"):
        raise ValueError(f"a generator over a {name} cannot be encoded")
    bits = getattr(numpy.random, name)()
    bits.state = state
    return numpy.random.Generator(bits)


_COPIED: Sequence[type] = (
    range, slice, Fraction, Decimal, datetime.date, datetime.time, datetime.datetime, datetime.timedelta,
    datetime.timezone, pathlib.PosixPath, pathlib.PurePosixPath, pathlib.PureWindowsPath, torch.device,
)  # fmt: skip
# Immutable values of Python, torch and NumPy.
STANDARD: Mapping[type, ValueType] = {
    # Created again with the arguments by which the `copy` module creates an equal value.
    **{cls: ValueType(cls.__name__, lambda value: value.__reduce_ex__(4)[1], cls) for cls in _COPIED},
    complex: ValueType("complex", operator.attrgetter("real", "imag"), complex),
    torch.dtype: ValueType("torch.dtype", lambda value: [str(value).removeprefix("torch.")], DTYPES.__getitem__),
    numpy.dtype: ValueType("numpy.dtype", lambda value: [_described(value)], _dtype),
}
_SCALAR = ValueType("scalar", _array_parts, lambda *parts: _array(*parts)[()])
_ARRAY = ValueType("array", _array_parts, _array, is_mutable=True)
_BY_TYPE: Mapping[type, ValueType] = {
    **STANDARD,
    int: ValueType("int", lambda value: [hex(value)], lambda text: int(text, 16)),  # which msgpack does not have
    tuple: ValueType("tuple", list, lambda *parts: parts),
    torch.Size: ValueType("torch.Size", list, lambda *parts: torch.Size(parts)),
    frozenset: ValueType("frozenset", list, lambda *parts: frozenset(parts)),
    numpy.ndarray: _ARRAY,
    numpy.memmap: _ARRAY,
    **{
        cls: ValueType(f"{package}.{cls.__name__}", parts, functools.partial(_in_state, cls, put), is_mutable=True)
        for cls, package, parts, put in (
            (torch.Generator, "torch", lambda each: [each.device.type, each.get_state()], "set_state"),
            (numpy.random.RandomState, "numpy", lambda each: [each.get_state(legacy=False)], "set_state"),
            (random.Random, "random", lambda each: [each.getstate()], "setstate"),
        )
    },
    numpy.random.Generator: ValueType(
        "numpy.Generator",
        lambda value: [_numpy_generator(value.bit_generator.state).bit_generator.state],  # only one that can be made
        _numpy_generator,
        is_mutable=True,
    ),
    bytearray: ValueType("bytearray", lambda value: [bytes(value)], bytearray, is_mutable=True),
    **{
        cls: ValueType(cls.__name__, parts, make, is_mutable=True, fill=fill)
        for cls, parts, make, fill in (
            (list, None, list, list.extend),
            (set, None, set, set.update),
            (dict, None, dict, _fill_pairs),
            (Counter, None, Counter, _fill_pairs),
            (OrderedDict, lambda value: [getattr(value, "_metadata", None)], _ordered, _fill_pairs),
            (defaultdict, lambda value: [value.default_factory], defaultdict, _fill_pairs),
            (deque, lambda value: [value.maxlen], lambda most: deque(maxlen=most), deque.extend),
        )
    },
}
BY_NAME: Mapping[str, ValueType] = {
    **{each.name: each for each in (*_BY_TYPE.values(), _SCALAR)},
    "type": ValueType("type", None, FACTORIES.__getitem__),
    "tensor": ValueType("tensor", None, _tensor, is_mutable=True),
    "sparse": ValueType("sparse", None, _sparse, is_mutable=True),
}


def type_of(cls: type) -> ValueType | None:
    """How values of a type are encoded; None if they cannot be."""
    if issubclass(cls, numpy.generic):
        return _SCALAR
    return _BY_TYPE.get(numpy.dtype if issubclass(cls, numpy.dtype) else cls)
