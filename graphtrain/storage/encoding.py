"""Encoding: nested Python values and tensors as msgpack and named tensors, and back to equal values.

msgpack alone knows None, booleans, 64-bit integers, floats, strings, bytes, lists and string-keyed maps. What else is
met in real state dicts has a tagged encoding below. What is read back is of these types only: data, never code.

Values come back equal to the last bit, and tensors with the strides they had. Two places that held the very same list
or tensor hold the same one again.
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
    _TENSOR, _RAW, _SPARSE, _SIZE, _DTYPE, _TEXT, _BYTEARRAY, _DEFAULT, _STATE, _PLACED, _DEVICE, _SAME,
) = range(1, 24)  # fmt: skip

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


def pack(value: Any, path: str, tensors: Tensors, memo: Memo | None = None, *, with_gradients: bool = False) -> bytes:
    """The msgpack form of a value; its tensors are added to `tensors` and referred to by name.

    Arguments:
        memo: of the values whose objects this one may share. Default: it shares none.
        with_gradients: True for leaves that bring their gradients along. Default: nothing does.

    Raises:
        UnsaveableError: something inside cannot be encoded; its path is named.

    >>> tensors = Tensors("example")
    >>> unpack(pack({"a": (1, {2.5}, 2**70)}, "example", tensors), {})
    {'a': (1, {2.5}, 1180591620717411303424)}
    >>> one = []
    >>> first, second = unpack(pack([one, one], "example", tensors), {})
    >>> first is second
    True
    """
    encoder = _Encoder(tensors, Memo() if memo is None else memo, with_gradients)
    packed: bytes = msgpack.packb(encoder.encode(value, path, ""), use_bin_type=True)
    return packed


def unpack(data: bytes, files: Mapping[str, Mapping[str, torch.Tensor]]) -> Any:
    """The value that `pack` wrote. The tensors in `files` become part of it: nobody else may change them.

    Raises:
        ValueError: the bytes are no such encoding.
    """
    return Decoder(files).unpack(data)


class Memo:
    """What was encoded, so that what is met again is referred to: the part it is in, and its number there.

    Objects are counted as they are met, by encoder and decoder alike: a number is written only where it is referred to.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, int, Any]] = {}  # with the object: an `id` is that of another one later
        self._part, self._count = "", 0

    def begin(self, part: str) -> None:
        """Count from 0, in a part of this name."""
        self._part, self._count = part, 0

    def met(self, value: Any) -> list[Any] | None:
        """The part and number of what was met before, of this part the number alone; None for what is new."""
        known = self._known.get(id(value))
        if known is None:
            self._known[id(value)] = self._part, self._count, value
            self._count += 1
            return None
        part, number, _ = known
        return [number] if part == self._part else [part, number]


class _Encoder:
    def __init__(self, tensors: Tensors, memo: Memo, with_gradients: bool) -> None:
        self._tensors, self._memo, self._with_gradients = tensors, memo, with_gradients
        self._open: set[int] = set()  # the containers in which the encoder is

    def encode(self, value: Any, path: str, name: str, depth: int = 0) -> Any:
        """`path` is for messages, `name` for the tensor file."""
        if depth > _MAX_DEPTH:
            raise UnsaveableError(path, f"it is nested more than {_MAX_DEPTH} deep")
        kind = type(value)
        if value is None or kind in (bool, float, bytes):
            return value
        if kind is str:
            return value if _is_unicode(value) else _tag(_TEXT, value.encode("utf-8", "surrogatepass"))
        if kind is int:
            if -(2**63) <= value < 2**64:
                return value
            return _tag(_BIG, value.to_bytes((value.bit_length() + 8) // 8, "big", signed=True))
        if isinstance(value, _SHAREABLE) and (met := self._memo.met(value)) is not None:
            if id(value) in self._open:
                raise UnsaveableError(path, "it is nested more than any depth: it holds itself")
            return _tag(_SAME, met)
        if not isinstance(value, _CONTAINERS):
            return self._leaf(value, path, name, depth)
        self._open.add(id(value))
        try:
            return self._container(value, path, name, depth)
        finally:
            self._open.discard(id(value))

    def _container(self, value: Any, path: str, name: str, depth: int) -> Any:
        def inside(part: Any, key: Any) -> Any:
            return self.encode(part, f"{path}[{key!r}]", f"{name}/{key}" if name else str(key), depth + 1)

        kind = type(value)
        if kind is list:
            return [inside(part, index) for index, part in enumerate(value)]
        if kind is dict and all(type(key) is str and _is_unicode(key) for key in value):
            return {key: inside(part, key) for key, part in value.items()}
        if kind in (set, frozenset):
            return _tag(_SET if kind is set else _FROZENSET, self._unordered(value, path, name, depth))
        if isinstance(value, dict) and kind in _MAPPINGS:
            return self._mapping(value, path, name, depth, inside)
        if kind in _SEQUENCES:
            code, parts = _SEQUENCES[kind]
            return _tag(code, parts([inside(part, index) for index, part in enumerate(value)], value))
        raise _unsaveable(value, path)

    def _leaf(self, value: Any, path: str, name: str, depth: int) -> Any:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, path, name)
        if isinstance(value, numpy.ndarray | numpy.generic):
            return self._numpy(value, path, name, depth)
        if kind in _SINGLE:
            code, single = _SINGLE[kind]
            return _tag(code, single(value))
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
            if tensor.grad_fn is None and (tensor.grad is None or not self._with_gradients):
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
        if not self._with_gradients or tensor.grad is None:
            return _tag(_PLACED, [encoded, where, tensor.requires_grad])
        gradient = self._tensor(tensor.grad, f"{path}.grad", f"{name}/grad")
        return _tag(_PLACED, [encoded, where, tensor.requires_grad, gradient])

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
        dtype = _Encoder(self._tensors, Memo(), False).encode(description, f"{path}.dtype", name, depth + 1)
        return _tag(code, [dtype, list(array.shape), array.tobytes(order), order])


# What can be changed where it is, so that two places that hold it are not like two that hold equal ones.
_SHAREABLE = (list, dict, torch.Tensor, numpy.ndarray, collections.deque, set, bytearray)
_CONTAINERS = (list, dict, tuple, collections.deque, set, frozenset)
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


def _unsaveable(value: Any, path: str) -> UnsaveableError:
    kind = type(value)
    return UnsaveableError(path, f"a {kind.__module__}.{kind.__qualname__} cannot be encoded", _advice(value))


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
        self._met: dict[str, list[Any]] = {}
        self._part = ""

    def unpack(self, data: bytes, part: str = "") -> Any:
        """A value.

        Arguments:
            part: the name that the memo had for it. Default: it has none.

        Raises:
            ValueError: the bytes are no such encoding.
        """
        self._part, self._met[part] = part, []
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
            parts: list[Any] = self._noted([])
            parts.extend(self._decode(part, inside) if type(part) in _WITH_PARTS else part for part in value)
            return parts
        if kind is dict:
            entries: dict[str, Any] = self._noted({})
            for name, part in value.items():
                entries[name] = self._decode(part, inside) if type(part) in _WITH_PARTS else part
            return entries
        if kind is torch.Tensor:
            return self._noted(value)
        if kind is not msgpack.ExtType:
            if kind in _WITH_PARTS:
                raise ValueError(f"a {kind.__name__}, which is never written")
            return value
        # By a loop in Python: a hook of msgpack would take 20 KB of the stack of C for every level.
        code, inner = value.code, self._message(value.data)
        if code == _SAME:
            *part, number = _typed(inner, list)
            return self._met[part[0] if part else self._part][_sizes([number])[0]]
        if code in _OF_PARTS:
            members = (self._decode(part, inside) for part in _typed(inner, list))
            made = _OF_PARTS[code](members)
            return self._noted(made) if code == _SET else made
        if code in _EMPTY:
            return self._fill(self._noted(_EMPTY[code]()), inner, inside)
        if code == _DEFAULT:
            factory, pairs = _typed(inner, list)
            empty = collections.defaultdict[Any, Any](None if factory is None else _FACTORIES[factory])
            return self._fill(self._noted(empty), pairs, inside)
        if code == _STATE:
            pairs, versions = _typed(inner, list)
            state = self._fill(self._noted(collections.OrderedDict()), pairs, inside)
            state._metadata = self._decode(versions, inside)
            return state
        if code == _DEQUE:
            most, items = _typed(inner, list)
            queue = self._noted(collections.deque[Any](maxlen=most))
            queue.extend(self._decode(item, inside) for item in _typed(items, list))
            return queue
        if code in _OF_VALUES:
            made = _OF_VALUES[code](self._quietly(_typed(inner, list), depth))
            return self._noted(made) if isinstance(made, _SHAREABLE) else made
        if code in _SINGLE_VALUES:
            wanted, read = _SINGLE_VALUES[code]
            made = read(_typed(inner, wanted))
            return self._noted(made) if code == _BYTEARRAY else made
        raise ValueError(f"unknown code {code}")

    def _quietly(self, parts: list[Any], depth: int) -> list[Any]:
        """What something is made of, none of which is referred to."""
        part, self._part, self._met["quiet"] = self._part, "quiet", []
        try:
            return [self._decode(each, depth + 1) for each in parts]
        finally:
            self._part = part

    def _noted(self, value: Any) -> Any:
        """A value that may be referred to: they are counted as the memo has counted them."""
        self._met[self._part].append(value)
        return value

    def _fill(self, mapping: Any, pairs: Any, depth: int) -> Any:
        for key, part in _typed(pairs, list):
            mapping[self._decode(key, depth)] = self._decode(part, depth)
        return mapping

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

# The types of a message that stand for something else, or hold what does, or may be referred to.
_WITH_PARTS = frozenset({list, dict, torch.Tensor, msgpack.ExtType, msgpack.Timestamp})


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
    tensor, where, requires_grad, *gradient = value
    if where is not None:
        shape, stride, offset = where
        tensor = placed(tensor, Placement(_sizes(shape), _sizes(stride), _typed(offset, int)))
    tensor.requires_grad_(requires_grad)
    if gradient:
        (tensor.grad,) = gradient
    return tensor  # type: ignore[no-any-return]


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
_EMPTY: dict[int, Callable[[], Any]] = {_COUNTER: collections.Counter, _ORDERED: collections.OrderedDict, _PAIRS: dict}
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
