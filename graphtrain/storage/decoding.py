"""Decode what `encoding` wrote, to equal values: data, never code.

Only a `Maker`, where one is given, looks up or creates anything that is more than plain data.
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, final

import msgpack
import numpy
import torch

from graphtrain.errors import GraphtrainError
from graphtrain.printable import one_line, shorten
from graphtrain.storage.encoding import BY_NAME, DTYPES, FACTORIES, MOST_DEPTH, SHAREABLE, Code, Packed
from graphtrain.storage.strides import DEVICES, Placement, placed

_MAX_DEPTH_OF_TAGS = MOST_DEPTH + 3  # a sparse leaf with its own strides is several nested tags
_MOST_EMPTY = 1 << 20  # elements of no bytes
_MOST_CHARACTERS = 200


class Maker(Protocol):
    """Looks up or creates what a `Describer` has described; raises an error for what is not allowed."""

    def need(self, part: str) -> None: ...

    def find(self, by: Sequence[Any]) -> Any: ...

    def make(self, by: Sequence[Any]) -> Any: ...

    def fill(self, made: Any, holds: Mapping[str, Any]) -> None: ...


def unpack(data: bytes, files: Mapping[str, Mapping[str, torch.Tensor]]) -> Any:
    """Decode what `pack` wrote. The tensors in `files` become part of the value: do not change them afterwards.

    Raises:
        ValueError: the bytes are not a valid encoding.
    """
    return Decoder(files).unpack(data)


@final
class Decoder:
    """Decodes what `pack` wrote, and refuses what `pack` cannot have written: the bytes are untrusted.

    Arguments:
        files: the tensors that are referred to, by file and name. Each may be referred to once: more references would
            be more copies.
        maker: looks up or creates what is more than plain data. Default: only plain data is accepted.
    """

    def __init__(self, files: Mapping[str, Mapping[str, torch.Tensor]], maker: Maker | None = None) -> None:
        self._files, self._maker = files, maker
        self._left = {file: dict(tensors) for file, tensors in files.items()}
        self._met: dict[str, list[Any]] = {}
        self._part = ""
        self._named = ("", "")  # file and name of the tensor that was referred to last

    def unpack(self, data: bytes, part: str = "") -> Any:
        """Decode a value.

        Arguments:
            part: its name in the memo of the encoder. Default: none.

        Raises:
            ValueError: the bytes are not a valid encoding.
        """
        before, self._part, self._met[part] = self._part, part, []
        try:
            return self._decode(self._message(data))
        except (MemoryError, GraphtrainError):
            raise
        except Exception as error:  # whatever a library raises for untrusted values
            reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise ValueError(f"not a valid encoding: {shorten(one_line(reason), _MOST_CHARACTERS)}") from error
        finally:
            self._part = before

    def _decode(self, value: Any, depth: int = 0) -> Any:
        """Decode a message; `depth` is counted as in the encoder."""
        if depth > _MAX_DEPTH_OF_TAGS:
            raise ValueError(f"it is nested more than {MOST_DEPTH} deep")
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
        # In Python: a hook of msgpack would take 20 KB of the C stack for each level.
        return self._tagged(value.code, self._message(value.data), depth)

    def _tagged(self, code: int, inner: Any, depth: int) -> Any:
        """Decode a tagged value."""
        inside = depth + 1
        if code == Code.SAME:
            *part, number = _typed(inner, list)
            return self.met(part[0] if part else self._part, number)
        if code == Code.STANDARD:
            name, arguments = _typed(inner, list)
            return BY_NAME[name].make(*(self._decode(part, inside) for part in _typed(arguments, list)))
        if code == Code.PACKED:
            name, data, tensors = _typed(inner, list)
            return Packed(_typed(name, str), _typed(data, bytes), {_typed(key, str): tensor for key, tensor in tensors})
        if code in (Code.FOUND, Code.INSTANCE) and self._maker is not None:
            return self._made(self._maker, code, _typed(inner, list), inside)
        if code in _OF_PARTS:
            members = (self._decode(part, inside) for part in _typed(inner, list))
            made = _OF_PARTS[code](members)
            return self._noted(made) if code == Code.SET else made
        if code in _EMPTY:
            return self._fill(self._noted(_EMPTY[code]()), inner, inside)
        if code == Code.DEFAULT:
            factory, pairs = _typed(inner, list)
            if type(factory) is msgpack.ExtType:
                factory = self._decode(factory, inside)
            elif factory is not None:
                factory = FACTORIES[factory]
            empty = collections.defaultdict[Any, Any](factory)
            return self._fill(self._noted(empty), pairs, inside)
        if code == Code.STATE:
            pairs, versions = _typed(inner, list)
            state = self._fill(self._noted(collections.OrderedDict()), pairs, inside)
            state._metadata = self._decode(versions, inside)
            return state
        if code == Code.DEQUE:
            most, items = _typed(inner, list)
            queue = self._noted(collections.deque[Any](maxlen=most))
            queue.extend(self._decode(item, inside) for item in _typed(items, list))
            return queue
        if code in _OF_VALUES:
            made = _OF_VALUES[code](self._quietly(_typed(inner, list), depth))
            return self._noted(made) if isinstance(made, SHAREABLE) else made
        if code in _SINGLE_VALUES:
            wanted, read = _SINGLE_VALUES[code]
            made = read(_typed(inner, wanted))
            return self._noted(made) if code == Code.BYTEARRAY else made
        if code == Code.PIECE:
            from graphtrain.storage.pieces import Piece  # which few checkpoints have

            parts = self._quietly(_typed(inner, list), depth)
            return self._noted(Piece.of(parts, self._named))
        raise ValueError(f"unknown code {code}")

    def unpack_part(self, packed: Packed) -> Any:
        """Decode a value that was encoded separately.

        Raises:
            ValueError: the bytes are not a valid encoding.
        """
        self._files = {**self._files, packed.part: packed.tensors}
        self._left[packed.part] = dict(packed.tensors)
        return self.unpack(packed.data, packed.part)

    def met(self, part: str, number: Any) -> Any:
        """The value with a number in a part."""
        if part not in self._met and self._maker is not None:
            self._maker.need(part)
        return self._met[part][_sizes([number])[0]]

    def _made(self, maker: Maker, code: int, inner: list[Any], depth: int) -> Any:
        if code == Code.FOUND:
            return maker.find([self._decode(part, depth) for part in inner])
        by, holds = inner
        made = self._noted(maker.make([self._decode(part, depth) for part in _typed(by, list)]))
        maker.fill(made, {name: self._decode(part, depth) for name, part in _typed(holds, dict).items()})
        return made

    def _quietly(self, parts: list[Any], depth: int) -> list[Any]:
        """Decode the components of a value, which are not numbered."""
        part, self._part, self._met["quiet"] = self._part, "quiet", []
        try:
            return [self._decode(each, depth + 1) for each in parts]
        finally:
            self._part = part

    def _noted(self, value: Any) -> Any:
        """Number a value that may be referred to, as the memo of the encoder has done."""
        self._met[self._part].append(value)
        return value

    def _fill(self, mapping: Any, pairs: Any, depth: int) -> Any:
        for key, part in _typed(pairs, list):
            mapping[self._decode(key, depth)] = self._decode(part, depth)
        return mapping

    def _message(self, data: bytes) -> Any:
        """Unpack one level of a message: tensors are decoded, every other tag is left as it is."""
        return _message(data, ext_hook=self._tag)

    def _tag(self, code: int, data: bytes) -> Any:
        return self._tensor(_message(data)) if code == Code.TENSOR else msgpack.ExtType(code, data)

    def _tensor(self, value: Any) -> torch.Tensor:
        file, key, device = _typed(value, list)
        stored = self._left[file].pop(key, None) if file in self._left else None
        if stored is None:
            is_known = file in self._left and key in self._files[file]
            raise ValueError(
                f"the tensor `{key}` of the file `{file}` is referred to twice"
                if is_known
                else f"the file `{file}` has no tensor `{key}`"
            )
        self._named = file, key
        return _on_device(stored, device)


_message = functools.partial(msgpack.unpackb, strict_map_key=True, raw=False)

# The types in a message that have to be decoded or numbered.
_WITH_PARTS = frozenset({list, dict, torch.Tensor, msgpack.ExtType, msgpack.Timestamp})


def _typed(value: Any, kind: type) -> Any:
    """Check the type of a value: `bytearray`, given a number, would allocate as many bytes."""
    if type(value) is not kind:
        raise ValueError(f"a tag with a value of type {type(value).__name__}, where a {kind.__name__} belongs")
    return value


def _sizes(value: Any) -> tuple[int, ...]:
    """Check a shape, or strides."""
    if not all(type(size) is int and 0 <= size < 2**63 for size in _typed(value, list)):
        raise ValueError("sizes that are not whole numbers >= 0")
    return tuple(value)


def _read_placed(value: Any) -> torch.Tensor:
    tensor, where, requires_grad, *more = value
    if where is not None:
        shape, stride, offset = where
        tensor = placed(tensor, Placement(_sizes(shape), _sizes(stride), _typed(offset, int)))
    gradient, is_parameter = more or (None, False)
    tensor = torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)
    if gradient is not None:
        tensor.grad = gradient
    return tensor


def _read_raw(value: Any) -> torch.Tensor:
    name, shape, raw, device = value
    dtype, shape = DTYPES[name], _sizes(shape)
    if len(_typed(raw, bytes)) != math.prod(shape) * dtype.itemsize:
        raise ValueError("a tensor of another size than its bytes")
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return _on_device(torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).reshape(shape), device)


def _on_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Move a tensor to its device, if that exists here; otherwise it stays in host memory."""
    if device == "cpu":
        return tensor
    wanted = torch.device(_typed(device, str))
    is_here = wanted.type in DEVICES and (wanted.index or 0) < getattr(torch, wanted.type).device_count()
    return tensor.to(wanted) if is_here else tensor


def _read_array(value: Any) -> numpy.ndarray[Any, Any]:
    description, shape, raw, order = value
    dtype, shape = numpy.lib.format.descr_to_dtype(description), _sizes(shape)
    if dtype.hasobject:
        raise ValueError("an array of objects")
    if len(_typed(raw, bytes)) != math.prod(shape) * dtype.itemsize or math.prod(shape) > max(len(raw), _MOST_EMPTY):
        raise ValueError("an array of another size than its bytes")
    memory = numpy.array(bytearray(raw))  # all bytes; a copy of an array leaves out the padding between its fields
    return numpy.ndarray(shape, dtype, memory.data, order=order)


def _read_scalar(value: Any) -> Any:
    array = _read_array(value)
    if array.shape:
        raise ValueError("an array in the place of a number")
    return array[()]


def _read_sparse(value: Any) -> torch.Tensor:
    indices, values, shape, coalesced = value
    return torch.sparse_coo_tensor(indices, values, _sizes(shape), is_coalesced=coalesced, check_invariants=True)


# Decoders by code, grouped by what the tag holds: members, pairs of key and value, components, or a single value.
_OF_PARTS: dict[int, Callable[[Any], Any]] = {
    Code.TUPLE: tuple,
    Code.SET: set,
    Code.FROZENSET: frozenset,
    Code.SIZE: torch.Size,
}
_EMPTY: dict[int, Callable[[], Any]] = {
    Code.COUNTER: collections.Counter,
    Code.ORDERED: collections.OrderedDict,
    Code.PAIRS: dict,
}
_OF_VALUES: dict[int, Callable[[Any], Any]] = {
    Code.ARRAY: _read_array,
    Code.SCALAR: _read_scalar,
    Code.RAW: _read_raw,
    Code.SPARSE: _read_sparse,
    Code.PLACED: _read_placed,
}
_SINGLE_VALUES: dict[int, tuple[type, Callable[[Any], Any]]] = {
    Code.BIG: (bytes, lambda value: int.from_bytes(value, "big", signed=True)),
    Code.TEXT: (bytes, lambda value: value.decode("utf-8", "surrogatepass")),
    Code.BYTEARRAY: (bytes, bytearray),
}
