"""The tensor files of a checkpoint, staged in memory byte for byte as they will be on disk.

They have the format of safetensors: a length, a header in JSON, and the bytes of each tensor. The library would make
two further copies of everything to write them.
"""

from __future__ import annotations

import ctypes
import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, final

import numpy
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from graphtrain.storage.background import largest_first, uncollected
from graphtrain.storage.encoding import RESERVED, TYPES, Tensors, UnsaveableError
from graphtrain.storage.manifest import is_file_name
from graphtrain.storage.regular import checksum_of

TENSOR_SUFFIX = ".safetensors"
_MOST_BYTES_OF_A_HEADER = 100_000_000  # the limit of the library
_PIECE = 1 << 20
_SMALL = 1 << 16

T = TypeVar("T")
Bytes = numpy.ndarray[Any, numpy.dtype[numpy.uint8]]

_BY_TYPE = {name: dtype for dtype, name in TYPES.items()}


@dataclass(frozen=True)
class Layout:
    """The layout of one tensor file.

    Attributes:
        header: the bytes before those of the first tensor.
        places: the tensors in order, each with its offset after the header.
        size: the total number of bytes.
    """

    header: bytes
    places: Sequence[tuple[torch.Tensor, int]]
    size: int

    @classmethod
    @uncollected()
    def of(cls, tensors: Tensors) -> Layout:
        """The layout that follows from names, types and shapes alone."""
        ordered = sorted(tensors.named.items(), key=lambda item: (-item[1].element_size(), item[0]))
        places, end = [], 0
        for _, tensor in ordered:
            places.append((tensor, end))
            end += tensor.nbytes
        if not is_file_name(tensors.file + TENSOR_SUFFIX):
            raise UnsaveableError(tensors.file, "that is not a valid name for a file", "give the resource another name")
        header = header_of((name, TYPES[tensor.dtype], tensor.shape, tensor.nbytes) for name, tensor in ordered)
        if len(header) - 8 > _MOST_BYTES_OF_A_HEADER:
            raise UnsaveableError(tensors.file, "it has more tensors than one file can hold")
        return cls(header, places, len(header) + end)

    def checksum(self) -> str:
        """The checksum that the file would have."""
        return checksum_of(piece.data for piece in self._pieces())

    def copy_to(self, memory: torch.Tensor) -> None:
        """Write the content of the file to memory. Copies from a device are begun: synchronize with it before use."""
        memory.numpy()[: len(self.header)] = numpy.frombuffer(self.header, dtype=numpy.uint8)
        for tensors, start, size in self._neighbours():
            _join(tensors, memory[start : start + size])

    def _pieces(self) -> Iterator[Bytes]:
        """The bytes of the file, in pieces of at most 1 MB. Use each before taking the next."""
        yield from _cut(numpy.frombuffer(self.header, dtype=numpy.uint8))
        memory = torch.empty(_PIECE, dtype=torch.uint8, device="cpu")
        for tensors, _, size in self._neighbours():
            if len(tensors) == 1:
                host = tensors[0].cpu().contiguous().reshape(-1)
                yield from _cut(host.view(torch.uint8).numpy())
            else:
                _join(tensors, memory[:size])
                yield memory[:size].numpy()

    def _neighbours(self) -> Iterator[tuple[list[torch.Tensor], int, int]]:
        """The tensors in order, small ones of one type together, with the start and the size of each group."""
        sized = (
            (place, place[0].dtype if place[0].is_cpu and place[0].is_contiguous() else None, place[0].nbytes)
            for place in self.places
        )
        for places, size in _together(sized):
            yield [tensor for tensor, _ in places], len(self.header) + places[0][1], size

    def devices(self) -> set[torch.device]:
        """The CUDA devices on which tensors are."""
        return {tensor.device for tensor, _ in self.places if tensor.device.type == "cuda"}


def header_of(
    ordered: Iterable[tuple[str, str, Sequence[int], int]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """The bytes before the first tensor, padded to keep it aligned.

    Arguments:
        ordered: name, type, shape and number of bytes of each tensor. With wide types first, each tensor begins at a
            multiple of its width.
        metadata: for other readers. Default: none.
    """
    entries: dict[str, Any] = {RESERVED: metadata} if metadata else {}
    end = 0
    for name, dtype, shape, size in ordered:
        start, end = end, end + size
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


@final
class StagingBuffers:
    """The memory in which checkpoints are staged, one at a time. The next one reuses it: one copy of the state."""

    def __init__(self) -> None:
        self._blocks: dict[str, torch.Tensor] = {}

    def block(self, name: str, size: int, *, pinned: bool) -> torch.Tensor:
        """`size` bytes; the earlier block of this name if that is large enough."""
        block = self._blocks.get(name)
        if block is None or len(block) < size:
            self._blocks.pop(name, None)  # released first: never two copies
            del block
            block = self._blocks[name] = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        return block[:size]

    def keep_only(self, names: Callable[[str], bool]) -> None:
        """Release all other blocks."""
        self._blocks = {name: block for name, block in self._blocks.items() if names(name)}


def stage(files: Sequence[Tensors], memory: StagingBuffers) -> dict[str, memoryview]:
    """Copy every tensor file to memory that the run does not write to; returns them by name, without the suffix.

    >>> files = [Tensors("model", {"weight": torch.ones(2, 3)})]
    >>> {name: len(data) for name, data in stage(files, StagingBuffers()).items()}
    {'model': 96}
    """
    layouts = {tensors.file: Layout.of(tensors) for tensors in files}
    memory.keep_only(layouts.__contains__)
    staged, begun = {}, set[torch.device]()
    with torch.no_grad():
        for name, layout in layouts.items():
            devices = layout.devices()
            block = memory.block(name, layout.size, pinned=bool(devices))
            layout.copy_to(block)
            begun |= devices
            staged[name] = block.numpy().data
        for device in begun:  # once for all tensors: to wait for each copy alone takes three times as long
            torch.cuda.current_stream(device).synchronize()
    return staged


def checksums(files: Sequence[Tensors]) -> dict[str, str]:
    """The checksum of every tensor file by name, without copying the tensors."""
    by_name = {tensors.file + TENSOR_SUFFIX: tensors for tensors in files}
    sizes = {name: sum(tensor.nbytes for tensor in tensors.named.values()) for name, tensors in by_name.items()}
    # A device may still be computing the tensors, in the stream of this thread.
    on_device = any(tensor.device.type == "cuda" for tensors in files for tensor in tensors.named.values())
    return largest_first(sizes, lambda name: Layout.of(by_name[name]).checksum(), in_threads=not on_device)


class StagedTensor(NamedTuple):
    """A tensor in the staged bytes of a file."""

    dtype: str
    shape: list[int]
    data: memoryview

    def digest(self) -> str:
        """The checksum of type, shape and values."""
        return checksum_of([f"{self.dtype}{self.shape}".encode(), self.data])

    def is_finite(self) -> bool:
        """False if it has an infinite or NaN value."""
        dtype = _BY_TYPE[self.dtype]
        if not dtype.is_floating_point or not self.data:
            return True
        values = torch.frombuffer(self.data, dtype=dtype)
        # One pass without temporaries; NaN propagates through the maximum.
        largest = torch.linalg.vector_norm(values if dtype.itemsize > 1 else values.float(), math.inf)
        return math.isfinite(largest)


def staged_tensors(data: memoryview) -> dict[str, StagedTensor]:
    """The tensors in a file staged by `stage`, by name; they share its memory.

    >>> staged = stage([Tensors("model", {"weight": torch.ones(2, 3)})], StagingBuffers())
    >>> staged_tensors(staged["model"])["weight"].shape
    [2, 3]
    """
    (length,) = struct.unpack("<Q", data[:8])
    header, first = json.loads(bytes(data[8 : 8 + length])), 8 + length
    return {
        name: StagedTensor(entry["dtype"], entry["shape"], data[first + start : first + end])
        for name, entry in header.items()
        for start, end in [entry["data_offsets"]]
    }


def file_of(tensors: Mapping[str, StagedTensor]) -> list[bytes | memoryview]:
    """The bytes, in pieces, of a file of staged tensors, given by their names in it.

    >>> staged = stage([Tensors("model", {"weight": torch.ones(2)})], StagingBuffers())
    >>> len(b"".join(file_of({"of/rank": staged_tensors(staged["model"])["weight"]}))) % 8
    0
    """
    ordered = sorted(tensors.items(), key=lambda item: (-_BY_TYPE[item[1].dtype].itemsize, item[0]))
    header = header_of((name, tensor.dtype, tensor.shape, len(tensor.data)) for name, tensor in ordered)
    return [header, *(tensor.data for _, tensor in ordered)]


def read_tensors(path: Path, *, in_place: bool = False) -> dict[str, torch.Tensor]:
    """Read the tensors of a file by name, each into its own memory.

    Arguments:
        in_place: True to leave them in the memory of the file; what is written to them is not written to the file. Use
            them soon: if the file becomes shorter, the system ends the process. Default: False.

    Raises:
        ValueError: it is not a tensor file.
    """
    try:
        named: dict[str, torch.Tensor] = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"is not a tensor file ({error})") from error
    return named if in_place else {name: tensor.clone() for name, tensor in named.items()}


def _together(items: Iterable[tuple[T, torch.dtype | None, int]]) -> Iterator[tuple[list[T], int]]:
    """Groups of neighbours that are copied together, with their size in bytes: to start a copy takes 2 us.

    Arguments:
        items: each with its type, None to copy it alone, and its size in bytes.
    """
    neighbours: list[T] = []
    alike, size = None, 0
    for item, dtype, count in items:
        if neighbours and (alike is None or dtype is not alike or count >= _SMALL or size + count > _PIECE):
            yield neighbours, size
            neighbours, size = [], 0
        neighbours.append(item)
        alike, size = dtype if count < _SMALL else None, size + count
    if neighbours:
        yield neighbours, size


def _join(tensors: Sequence[torch.Tensor], memory: torch.Tensor) -> None:
    """Copy the values of tensors of one type into bytes, one after the other."""
    first = tensors[0]
    if len(tensors) == 1 and not (first.is_cpu and first.is_contiguous()):
        memory.view(first.dtype).view(first.shape).copy_(first, non_blocking=first.is_cuda)
    elif len(tensors) == 1 and first.data_ptr():  # 0.9 of the time of the call below
        ctypes.memmove(memory.data_ptr(), first.data_ptr(), first.nbytes)
    else:  # copies memory as it is, which takes 0.85 of the time of `copy_`
        flat = [tensor if tensor.dim() <= 1 else tensor.reshape(-1) for tensor in tensors]
        with torch.no_grad():  # a leaf that the user keeps may require gradients
            torch.hstack(flat, out=memory.view(first.dtype))


def _cut(data: Bytes) -> Iterator[Bytes]:
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE]
