"""Decode what `encoding` wrote, to equal values: data, never code.

Only a `Maker`, where one is given, looks up or creates anything that is more than plain data.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, final

import msgpack
import numpy
import torch

from graphtrain.errors import GraphtrainError
from graphtrain.printable import one_line, shorten
from graphtrain.storage.encoding import BY_NAME, DTYPES, FACTORIES, SHAREABLE, Code, Packed
from graphtrain.storage.strides import DEVICES, Placement, placed

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
    """Decodes what `pack` wrote.

    Arguments:
        files: the tensors that are referred to, by file and name.
        maker: looks up or creates what is more than plain data. Default: only plain data is accepted.
    """

    def __init__(self, files: Mapping[str, Mapping[str, torch.Tensor]], maker: Maker | None = None) -> None:
        self._files, self._maker = files, maker
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

    def _decode(self, value: Any) -> Any:
        kind = type(value)
        if kind is list:
            parts: list[Any] = self._noted([])
            parts.extend(self._decode(part) if type(part) in _WITH_PARTS else part for part in value)
            return parts
        if kind is dict:
            entries: dict[str, Any] = self._noted({})
            for name, part in value.items():
                entries[name] = self._decode(part) if type(part) in _WITH_PARTS else part
            return entries
        if kind is torch.Tensor:
            return self._noted(value)
        if kind is not msgpack.ExtType:
            return value
        # In Python: a hook of msgpack would take 20 KB of the C stack for each level.
        return self._tagged(value.code, self._message(value.data))

    def _tagged(self, code: int, inner: Any) -> Any:
        """Decode a tagged value."""
        if code == Code.SAME:
            *part, number = inner
            return self.met(part[0] if part else self._part, number)
        if code == Code.STANDARD:
            name, arguments = inner
            return BY_NAME[name].make(*(self._decode(part) for part in arguments))
        if code == Code.PACKED:
            name, data, tensors = inner
            return Packed(name, data, dict(tensors))
        if code in (Code.FOUND, Code.INSTANCE) and self._maker is not None:
            return self._made(self._maker, code, inner)
        if code in _OF_PARTS:
            members = (self._decode(part) for part in inner)
            made = _OF_PARTS[code](members)
            return self._noted(made) if code == Code.SET else made
        if code in _EMPTY:
            return self._fill(self._noted(_EMPTY[code]()), inner)
        if code == Code.DEFAULT:
            factory, pairs = inner
            if type(factory) is msgpack.ExtType:
                factory = self._decode(factory)
            elif factory is not None:
                factory = FACTORIES[factory]
            empty = collections.defaultdict[Any, Any](factory)
            return self._fill(self._noted(empty), pairs)
        if code == Code.STATE:
            pairs, versions = inner
            state = self._fill(self._noted(collections.OrderedDict()), pairs)
            state._metadata = self._decode(versions)
            return state
        if code == Code.DEQUE:
            most, items = inner
            queue = self._noted(collections.deque[Any](maxlen=most))
            queue.extend(self._decode(item) for item in items)
            return queue
        if code in _OF_VALUES:
            made = _OF_VALUES[code](self._quietly(inner))
            return self._noted(made) if isinstance(made, SHAREABLE) else made
        if code in _SINGLE_VALUES:
            made = _SINGLE_VALUES[code](inner)
            return self._noted(made) if code == Code.BYTEARRAY else made
        if code == Code.PIECE:
            from graphtrain.storage.pieces import Piece  # which few checkpoints have

            parts = self._quietly(inner)
            return self._noted(Piece.of(parts, self._named))
        raise ValueError(f"unknown code {code}")

    def unpack_part(self, packed: Packed) -> Any:
        """Decode a value that was encoded separately.

        Raises:
            ValueError: the bytes are not a valid encoding.
        """
        self._files = {**self._files, packed.part: packed.tensors}
        return self.unpack(packed.data, packed.part)

    def met(self, part: str, number: Any) -> Any:
        """The value with a number in a part."""
        if part not in self._met and self._maker is not None:
            self._maker.need(part)
        return self._met[part][number]

    def _made(self, maker: Maker, code: int, inner: list[Any]) -> Any:
        if code == Code.FOUND:
            return maker.find([self._decode(part) for part in inner])
        by, holds = inner
        made = self._noted(maker.make([self._decode(part) for part in by]))
        maker.fill(made, {name: self._decode(part) for name, part in holds.items()})
        return made

    def _quietly(self, parts: list[Any]) -> list[Any]:
        """Decode the components of a value, which are not numbered."""
        part, self._part, self._met["quiet"] = self._part, "quiet", []
        try:
            return [self._decode(each) for each in parts]
        finally:
            self._part = part

    def _noted(self, value: Any) -> Any:
        """Number a value that may be referred to, as the memo of the encoder has done."""
        self._met[self._part].append(value)
        return value

    def _fill(self, mapping: Any, pairs: Any) -> Any:
        for key, part in pairs:
            mapping[self._decode(key)] = self._decode(part)
        return mapping

    def _message(self, data: bytes) -> Any:
        """Unpack one level of a message: tensors are decoded, every other tag is left as it is."""
        return _message(data, ext_hook=self._tag)

    def _tag(self, code: int, data: bytes) -> Any:
        return self._tensor(_message(data)) if code == Code.TENSOR else msgpack.ExtType(code, data)

    def _tensor(self, value: Any) -> torch.Tensor:
        file, key, device = value
        self._named = file, key
        return _on_device(self._files[file][key], device)


_message = functools.partial(msgpack.unpackb, strict_map_key=True, raw=False)

# The types in a message that have to be decoded or numbered.
_WITH_PARTS = frozenset({list, dict, torch.Tensor, msgpack.ExtType, msgpack.Timestamp})


def _read_placed(value: Any) -> torch.Tensor:
    tensor, where, requires_grad, *more = value
    if where is not None:
        shape, stride, offset = where
        tensor = placed(tensor, Placement(tuple(shape), tuple(stride), offset))
    gradient, is_parameter = more or (None, False)
    tensor = torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)
    if gradient is not None:
        tensor.grad = gradient
    return tensor


def _read_raw(value: Any) -> torch.Tensor:
    name, shape, raw, device = value
    dtype, shape = DTYPES[name], tuple(shape)
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return _on_device(torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).reshape(shape), device)


def _on_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Move a tensor to its device, if that exists here; otherwise it stays in host memory."""
    if device == "cpu":
        return tensor
    wanted = torch.device(device)
    is_here = wanted.type in DEVICES and (wanted.index or 0) < getattr(torch, wanted.type).device_count()
    return tensor.to(wanted) if is_here else tensor


def _read_array(value: Any) -> numpy.ndarray[Any, Any]:
    description, shape, raw, order = value
    dtype, shape = numpy.lib.format.descr_to_dtype(description), tuple(shape)
    if dtype.hasobject:
        raise ValueError("an array of objects")
    memory = numpy.array(bytearray(raw))  # all bytes; a copy of an array leaves out the padding between its fields
    return numpy.ndarray(shape, dtype, memory.data, order=order)


def _read_scalar(value: Any) -> Any:
    return _read_array(value)[()]


def _read_sparse(value: Any) -> torch.Tensor:
    indices, values, shape, coalesced = value
    return torch.sparse_coo_tensor(indices, values, tuple(shape), is_coalesced=coalesced, check_invariants=True)


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
_SINGLE_VALUES: dict[int, Callable[[Any], Any]] = {
    Code.BIG: lambda value: int.from_bytes(value, "big", signed=True),
    Code.TEXT: lambda value: value.decode("utf-8", "surrogatepass"),
    Code.BYTEARRAY: bytearray,
}
