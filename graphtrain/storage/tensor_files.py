"""The tensor files of a checkpoint, staged in memory byte for byte as they will be on disk.

They are safetensors files: a length, a header in JSON, and the bytes of each tensor. The library would need two more
copies of everything to write them.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from graphtrain.storage.encoding import RESERVED, Tensors, UnsaveableError
from graphtrain.storage.files import checksum_of, uncollected
from graphtrain.storage.manifest import is_file_name
from graphtrain.storage.strides import flat_bytes
from graphtrain.storage.value_types import TYPES

TENSOR_SUFFIX = ".safetensors"
_MOST_BYTES_OF_A_HEADER = 100_000_000  # the limit of the library
# Tensors below the second size are copied together, up to the first: both in bytes.
_PIECE = 1 << 20
_SMALL = 1 << 16

DTYPES = {name: dtype for dtype, name in TYPES.items()}


def header_of(ordered: Iterable[tuple[str, str, Sequence[int], int]]) -> bytes:
    """The bytes of a file before its first tensor, padded so that this is aligned.

    Arguments:
        ordered: name, dtype, shape and size in bytes of each tensor. With the widest dtypes first, all are aligned.
    """
    entries: dict[str, Any] = {RESERVED: {"format": "pt"}}  # which `transformers` looks for
    end = 0
    for name, dtype, shape, size in ordered:
        start, end = end, end + size
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


Buffers = dict[str, torch.Tensor]
"""File -> the staging buffer for its content. Each checkpoint reuses those of the one before: one copy of the state."""


@uncollected()
def stage(files: Sequence[Tensors], buffers: Buffers) -> dict[str, memoryview]:
    """Copy the content of every tensor file to the staging buffers; returns the contents by file.

    Raises:
        UnsaveableError: the name of a file is not valid, or it has more tensors than a file can hold.
    """
    staged, devices = {}, set[torch.device]()
    with torch.no_grad():
        for tensors in files:
            file, (header, ordered) = tensors.file, layout_of(tensors)
            size = len(header) + sum([tensor.nbytes for tensor in ordered])
            on_devices = {tensor.device for tensor in ordered if tensor.is_cuda}
            if len(buffers.get(file, ())) < size:
                buffers.pop(file, None)  # released first: never two copies
                buffers[file] = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=bool(on_devices))
            block = buffers[file][:size]
            block.numpy()[: len(header)] = numpy.frombuffer(header, dtype=numpy.uint8)
            _fill(block[len(header) :], ordered)
            devices |= on_devices
            staged[file] = block.numpy().data
        for device in devices:  # once for all tensors: waiting for each copy takes three times as long
            torch.cuda.current_stream(device).synchronize()
    return staged


def layout_of(tensors: Tensors) -> tuple[bytes, list[torch.Tensor]]:
    """The header of a file, and its tensors in their order.

    Raises:
        UnsaveableError: the name of the file is not valid, or it has more tensors than a file can hold.
    """
    if not is_file_name(tensors.file + TENSOR_SUFFIX):
        raise UnsaveableError(tensors.file, "its name is not valid for a file", "give the resource another name")
    named = sorted(tensors.named.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header = header_of((name, TYPES[tensor.dtype], tensor.shape, tensor.nbytes) for name, tensor in named)
    if len(header) - 8 > _MOST_BYTES_OF_A_HEADER:
        raise UnsaveableError(tensors.file, "it has more tensors than a file can hold")
    return header, [tensor for _, tensor in named]


def checksum_in_place(tensors: Tensors) -> str:
    """The checksum that the file of these tensors would have; tensors in host memory are not copied."""
    header, ordered = layout_of(tensors)
    return checksum_of(itertools.chain([header], (flat_bytes(each.cpu()).numpy().data for each in ordered)))


def _fill(memory: torch.Tensor, ordered: Sequence[torch.Tensor]) -> None:
    """Copy tensors to memory in order; small ones of one dtype together, because each copy takes 2 us."""
    group: list[torch.Tensor] = []
    common, start, size = None, 0, 0
    for tensor in ordered:
        count = tensor.nbytes
        is_small = count < _SMALL and tensor.is_cpu and tensor.is_contiguous()
        if group and not (is_small and common is tensor.dtype and size + count <= _PIECE):
            _join(group, memory[start : start + size])
            group, start, size = [], start + size, 0
        group.append(tensor)
        common, size = tensor.dtype if is_small else None, size + count
    if group:
        _join(group, memory[start : start + size])


def _join(tensors: Sequence[torch.Tensor], memory: torch.Tensor) -> None:
    """Copy the values of tensors of one dtype to memory, one after the other."""
    first = tensors[0]
    if len(tensors) == 1 and not (first.is_cpu and first.is_contiguous()):
        memory.view(first.dtype).view(first.shape).copy_(first, non_blocking=first.is_cuda)
    elif len(tensors) == 1 and first.data_ptr():  # 0.9 of the time of the call below
        ctypes.memmove(memory.data_ptr(), first.data_ptr(), first.nbytes)
    else:  # takes 0.85 of the time of `copy_`
        flat = [tensor if tensor.dim() <= 1 else tensor.reshape(-1) for tensor in tensors]
        with torch.no_grad():  # a leaf that the user keeps may require gradients
            torch.hstack(flat, out=memory.view(first.dtype))


class StagedTensor(NamedTuple):
    """A tensor in the staged content of a file."""

    dtype: str
    shape: list[int]
    data: memoryview

    def digest(self) -> str:
        """The checksum of dtype, shape and values."""
        return checksum_of([f"{self.dtype}{self.shape}".encode(), self.data])

    def is_finite(self) -> bool:
        """False if a value is infinite or NaN."""
        dtype = DTYPES[self.dtype]
        if not dtype.is_floating_point or not self.data:
            return True
        values = torch.frombuffer(self.data, dtype=dtype)
        # One pass without temporaries; NaN propagates through the maximum.
        return math.isfinite(torch.linalg.vector_norm(values if dtype.itemsize > 1 else values.float(), math.inf))


def staged_tensors(data: memoryview) -> dict[str, StagedTensor]:
    """The tensors in the content of a file that `stage` returned, by name; they share its memory."""
    (length,) = struct.unpack("<Q", data[:8])
    header, first = json.loads(bytes(data[8 : 8 + length])), 8 + length
    return {
        name: StagedTensor(entry["dtype"], entry["shape"], data[first + start : first + end])
        for name, entry in header.items()
        if name != RESERVED
        for start, end in [entry["data_offsets"]]
    }


def file_of(tensors: Mapping[str, StagedTensor]) -> list[bytes | memoryview]:
    """The content, in pieces, of a file of staged tensors, given by name."""
    ordered = sorted(tensors.items(), key=lambda item: (-DTYPES[item[1].dtype].itemsize, item[0]))
    header = header_of((name, tensor.dtype, tensor.shape, len(tensor.data)) for name, tensor in ordered)
    return [header, *(tensor.data for _, tensor in ordered)]


def read_tensors(path: Path, *, in_place: bool = False) -> dict[str, torch.Tensor]:
    """Read the tensors of a file by name.

    Arguments:
        in_place: True to map the file to memory instead of reading it. Writing to such a tensor does not change the
            file; but if the file is truncated, reading from one ends the process. Default: False.

    Raises:
        ValueError: it is not a tensor file.
    """
    try:
        named: dict[str, torch.Tensor] = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"is not a tensor file ({error})") from error
    return named if in_place else {name: tensor.clone() for name, tensor in named.items()}
