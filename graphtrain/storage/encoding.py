"""Encode values as plain data and tensors, and decode them: data only, never code.

None, booleans, numbers, strings, bytes, lists, and dictionaries with string keys are written as msgpack has them. Any
other value is `{"": [type, part, ...]}`, with a type of `value_types.py`. A mutable object is encoded once; further
occurrences are references. Values are restored bitwise, and tensors with their strides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgpack
import numpy
import torch

from graphtrain.errors import CheckpointError, GraphtrainError
from graphtrain.printable import one_line, shown_path
from graphtrain.storage.strides import flat_bytes, placement_of, without_repeats
from graphtrain.storage.value_types import BY_NAME, FACTORIES, TYPES, ValueType, type_of

if TYPE_CHECKING:
    from graphtrain.storage.pieces import Piece

MOST_DEPTH = 100
# A larger number may be an `id` or another address, which differs between processes.
LEAST_ADDRESS = 2**32
# A key of safetensors files that is not a tensor.
RESERVED = "__metadata__"

_TENSOR = 1  # the extension type of msgpack, part of the format
_PLAIN = frozenset({type(None), bool, float, str, bytes})
_MOST_CHARACTERS = 200


class UnsaveableError(CheckpointError):
    """A value that cannot be encoded: `path` is where it is, `reason` is why."""

    def __init__(self, path: str, reason: str, hint: str = "") -> None:
        self.path, self.reason = path, reason
        super().__init__(f"{shown_path(path)} cannot be saved: {reason}", hint)


@dataclass(eq=False, slots=True)
class SavedTensor:
    """A tensor in encoded data, whose values are in a file.

    Attributes:
        name: its name in the file; before it is written, its path in the encoded value.
        piece: for the local part of a tensor that is sharded over ranks, how that is divided. Default: None.
    """

    tensor: torch.Tensor
    name: str
    piece: Piece | None = None


@dataclass(frozen=True)
class Encoded:
    """A value encoded with references to objects of the run: only a process with these objects can decode it.

    Attributes:
        part: its name, for references to objects in it.
    """

    part: str
    data: Any


@dataclass
class Tensors:
    """The tensors of one file by name; `pieces` says how those are divided that are parts of sharded tensors."""

    file: str
    named: dict[str, torch.Tensor] = field(default_factory=dict)
    pieces: dict[str, Piece] = field(default_factory=dict)

    def pack(self, data: Any) -> bytes:
        """Convert encoded data to bytes; its tensors are added to the file, and replaced by their names in it."""
        packed: bytes = msgpack.packb(data, default=self._extension, unicode_errors="surrogatepass")
        return packed

    def _extension(self, value: Any) -> msgpack.ExtType:
        path = value.name.encode("utf-8", "backslashreplace").decode()
        for bracket, slash in (("['", "/"), ("']", ""), ("[", "/"), ("]", "")):
            path = path.replace(bracket, slash)
        name, number = (readable := path.removeprefix(f"{self.file}/")), 1
        while name in self.named or name == RESERVED:
            number += 1
            name = f"{readable}#{number}"
        self.named[name] = value.tensor
        if value.piece is not None:
            self.pieces[name] = value.piece
        return msgpack.ExtType(_TENSOR, name.encode())


def pack(value: Any, path: str, tensors: Tensors) -> bytes:
    """Encode a value as msgpack; its tensors are added to `tensors`.

    Raises:
        UnsaveableError: something inside cannot be encoded; its path is named.

    >>> unpack(pack({"a": (1, {2.5}, 2**70)}, "example", Tensors("example")))
    {'a': (1, {2.5}, 1180591620717411303424)}
    >>> items = []
    >>> first, second = unpack(pack([items, items], "example", Tensors("example")))
    >>> first is second
    True
    """
    return tensors.pack(Encoder().encode(value, path))


def unpack(data: bytes, tensors: Mapping[str, torch.Tensor] | None = None, file: str = "") -> Any:
    """Decode what `pack` returned. The tensors become part of the value: do not change them afterwards.

    Arguments:
        tensors: name -> tensor, for those in the value. Default: it has none.
        file: the name of the file that they are in.

    Raises:
        ValueError: the bytes are not a valid encoding.
    """

    def extension(code: int, content: bytes) -> Any:
        if code != _TENSOR:
            raise ValueError(f"unknown code {code}")
        name = content.decode()
        return SavedTensor((tensors or {})[name], name)

    try:
        plain = msgpack.unpackb(data, ext_hook=extension, strict_map_key=True, unicode_errors="surrogatepass")
        return Decoder(file).decode(plain)
    except (MemoryError, GraphtrainError):
        raise
    except Exception as error:  # whatever a library raises for damaged data
        reason = one_line(f"{type(error).__name__}: {error}", _MOST_CHARACTERS)
        raise ValueError(f"not a valid encoding: {reason}") from error


def tagged(name: str, *parts: Any) -> dict[str, Any]:
    """The encoding of a value of a type that msgpack does not have."""
    return {"": [name, *parts]}


class Encoder:
    """Encodes values, which may share objects.

    Attributes:
        keeps_order: True to keep the order of numbers in a set, which depends on how they were added. False: sort them.
        refuses_graphs: True to refuse tensors that are part of an autograd graph. False: save their values.
    """

    keeps_order, refuses_graphs = False, True

    def __init__(self) -> None:
        self._part = ""
        self._objects: dict[str, list[Any]] = {"": []}  # part -> objects, by number
        self._numbers: dict[int, tuple[str, int]] = {}  # identity -> part, and number there

    def add(self, value: Any) -> None:
        """Number an object, in the order in which the decoder creates objects: before its contents."""
        objects = self._objects[self._part]
        self._numbers[id(value)] = self._part, len(objects)
        objects.append(value)

    def describe(self, value: Any, path: str, depth: int) -> Any:
        """The encoding of a value that is more than plain data, by subclasses; None for plain data."""
        return None

    def encode(self, value: Any, path: str, depth: int = 0) -> Any:
        """Encode a value as plain data with `SavedTensor`s.

        Arguments:
            path: where the value is, for messages and for the names of tensors: the same in every process.

        Raises:
            UnsaveableError: something in it cannot be encoded.
        """
        cls = type(value)
        if cls in _PLAIN or (cls is int and -LEAST_ADDRESS < value < LEAST_ADDRESS):
            return value
        if (place := self._numbers.get(id(value))) is not None:
            return tagged("same", *place)
        if cls is SavedTensor:
            self.add(value)
            return value
        if (described := self.describe(value, path, depth)) is not None:
            return described
        if isinstance(value, torch.Tensor):
            encoded = self._tensor(value, path, depth)
            self.add(value)
            return encoded
        if cls is int and -(2**63) <= value < 2**64:
            return value
        if cls is type and value in FACTORIES.values():
            return tagged("type", value.__name__)
        if cls is Encoded:
            return tagged("part", value.part, value.data)
        if (encoding := type_of(cls)) is None:
            raise UnsaveableError(path, *_refusal(value))
        if depth >= MOST_DEPTH:
            raise UnsaveableError(path, f"it is nested more than {MOST_DEPTH} deep")
        if cls is list:
            self.add(value)
            return self._each(value, path, depth)
        if cls is dict and "" not in value and {str}.issuperset(map(type, value)):
            self.add(value)
            return {key: self.encode(part, f"{path}[{key!r}]", depth + 1) for key, part in value.items()}
        return self._with_parts(value, encoding, path, depth)

    def _with_parts(self, value: Any, encoding: ValueType, path: str, depth: int) -> Any:
        is_set = isinstance(value, set | frozenset)
        if (is_set or isinstance(value, dict)) and any(isinstance(each, torch.Tensor) for each in value):
            problem = "a tensor in a set or as a key is found by its identity, which a resume cannot keep"
            raise UnsaveableError(path, problem, "save a list, or use its name as the key")
        try:
            parts = self._each(encoding.parts(value), path, depth) if encoding.parts is not None else []
        except ValueError as error:
            raise UnsaveableError(path, str(error)) from None
        if encoding.is_mutable:
            self.add(value)
        if encoding.fill is not None:
            parts.insert(0, (self._pairs if isinstance(value, dict) else self._each)(value, path, depth))
        if is_set and not (self.keeps_order and {bool, int, float}.issuperset(map(type, value))):
            members = parts if encoding.fill is None else parts[0]
            members.sort(key=Tensors("").pack)  # the order of a set depends on PYTHONHASHSEED
        return tagged(encoding.name, *parts)

    def _pairs(self, value: dict[Any, Any], path: str, depth: int) -> list[Any]:
        """Encode keys and values, alternating."""
        pairs = []
        for number, (key, part) in enumerate(value.items()):
            # Any other key may be an address, or have one in its text.
            shown = repr(key) if type(key) is str or (type(key) is int and key < LEAST_ADDRESS) else f"#{number}"
            pairs.append(self.encode(key, f"{path}.keys()[{shown}]", depth + 1))
            pairs.append(self.encode(part, f"{path}[{shown}]", depth + 1))
        return pairs

    def _each(self, values: Iterable[Any], path: str, depth: int) -> list[Any]:
        if {*map(type, values)} == {int} and -LEAST_ADDRESS < min(values) <= max(values) < LEAST_ADDRESS:
            return [*values]  # as in the state of `random`, which takes a seventh of the time
        return [self.encode(part, f"{path}[{index}]", depth + 1) for index, part in enumerate(values)]

    def _tensor(self, tensor: torch.Tensor, path: str, depth: int) -> Any:
        # Nearly all tensors are plain, and there may be 100,000 of them.
        is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and tensor.dtype in TYPES
        is_plain = is_plain and not (tensor.is_conj() or tensor.is_neg() or tensor.is_nested)
        if is_plain and not (tensor.requires_grad or tensor.is_meta or placement_of(tensor) is not None):
            return SavedTensor(tensor, path)
        if type(tensor).__name__ == "DTensor":
            return self._piece(tensor, path)
        if not is_saveable(tensor):
            raise UnsaveableError(path, *_refusal(tensor))
        if tensor.grad_fn is not None and self.refuses_graphs:
            raise UnsaveableError(path, "it is a tensor that is part of an autograd graph", "save `tensor.detach()`")
        requires_grad, values, dtype_and_shape = tensor.is_leaf and tensor.requires_grad, tensor.detach(), None
        if tensor.layout is torch.sparse_coo:
            parts = [values._indices(), values._values(), [*tensor.shape], tensor.is_coalesced(), requires_grad]
            return tagged("sparse", *self._each(parts, path, depth))
        values = values.resolve_conj().resolve_neg()
        if (placement := placement_of(values)) is not None:
            values = without_repeats(values)
        if tensor.dtype not in TYPES:
            dtype_and_shape, values = [str(tensor.dtype).removeprefix("torch."), [*values.shape]], flat_bytes(values)
        saved, is_parameter = SavedTensor(values, path), type(tensor) is torch.nn.Parameter
        if placement is dtype_and_shape is None and not requires_grad and not is_parameter:
            return saved
        parts = self._each([saved, dtype_and_shape, placement, requires_grad, is_parameter], path, depth)
        return tagged("tensor", *parts, self.encode(tensor.grad if requires_grad else None, f"{path}.grad", depth + 1))

    def _piece(self, tensor: torch.Tensor, path: str) -> Any:
        """Encode the local part of a sharded tensor; the encoding is the same on all ranks."""
        from graphtrain.storage.pieces import part_of  # which few runs need

        try:
            local, piece = part_of(tensor)
        except ValueError as error:
            raise UnsaveableError(path, str(error)) from None
        parts = [[*piece.shape], piece.dimension, piece.count, piece.requires_grad]
        return tagged("piece", SavedTensor(local, path, piece), *parts)


class Decoder:
    """Decodes what an `Encoder` has encoded.

    Arguments:
        file: the name of the file that the tensors are in.
    """

    def __init__(self, file: str = "") -> None:
        self._file, self._part = file, ""
        self._objects: dict[str, list[Any]] = {"": []}

    def decode(self, data: Any) -> Any:
        """Decode a value."""
        cls = type(data)
        if cls is list:
            items = self.add([])
            items.extend(self.decode(part) if type(part) in _WITH_PARTS else part for part in data)
            return items
        if cls is SavedTensor:
            return self.add(data.tensor)
        if cls is not dict:
            return data
        if "" not in data:
            entries = self.add({})
            for key, part in data.items():
                entries[key] = self.decode(part) if type(part) in _WITH_PARTS else part
            return entries
        name, *parts = data[""]
        if name == "same":
            return self.numbered(*parts)
        if name == "part":
            return Encoded(*parts)
        if name == "piece":
            from graphtrain.storage.pieces import Piece  # which few checkpoints have

            saved, shape, dimension, count, requires_grad = parts
            name = f"{self._file}/{saved.name}"
            return self.add(Piece(tuple(shape), dimension, count, requires_grad, saved.tensor, name))
        if (encoding := BY_NAME.get(name)) is None:
            return self.resolve(name, parts)
        content = parts.pop(0) if encoding.fill is not None else ()
        value = encoding.make(*map(self.decode, parts))
        if encoding.is_mutable:
            self.add(value)
        if encoding.fill is not None:
            encoding.fill(value, map(self.decode, content))
        return value

    def resolve(self, name: str, parts: list[Any]) -> Any:
        """The value of an encoding that only subclasses know."""
        raise ValueError(f"unknown type {name}")

    def numbered(self, part: str, number: int) -> Any:
        """The object with a number in a part."""
        return self._objects[part][number]

    def add(self, value: Any) -> Any:
        """Number an object; returns it."""
        self._objects[self._part].append(value)
        return value


def _refusal(value: Any) -> tuple[str, str]:
    """Why a value cannot be encoded, and what to save instead."""
    shown = f"it is a {type(value).__module__}.{type(value).__qualname__}"
    hint = "save numbers, text, lists, dicts, tensors or arrays from which it can be recreated"
    if isinstance(value, torch.Tensor):
        shown += f" ({value.device}, {value.dtype}, {value.layout})"
        hint = "save a plain tensor that is dense"
        if torch.nn.parameter.is_lazy(value):
            hint = "pass a batch through the model first, which gives it values"
    elif callable(getattr(value, "state_dict", None)):
        hint = "save `value.state_dict()`"
    return shown, hint


def is_saveable(value: Any) -> bool:
    """True for values of types that a checkpoint can hold by themselves."""
    if not isinstance(value, torch.Tensor):
        return type_of(type(value)) is not None and not (isinstance(value, numpy.ndarray) and value.dtype.hasobject)
    is_plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout in (torch.strided, torch.sparse_coo)
    return is_plain and not (value.is_meta or value.is_quantized or value.is_nested)


# The types in encoded data that need decoding or numbering.
_WITH_PARTS = frozenset({list, dict, SavedTensor})
