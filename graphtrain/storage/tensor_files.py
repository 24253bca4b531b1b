"""The files of a checkpoint in memory, byte for byte as they will be on disk: copied at once, written in time.

The files of tensors are laid out as safetensors has them: a length, a header in JSON, and the bytes of each tensor. The
library reads them; it would write them through two further copies of everything.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy
import torch

from graphtrain.storage.encoding import Tensors, UnsaveableError
from graphtrain.storage.manifest import is_file_name

TENSOR_SUFFIX = ".safetensors"
_MOST_BYTES_OF_A_HEADER = 100_000_000  # more the library does not read

# The names of types in the format.
_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """Where everything is in one file of tensors.

    Attributes:
        header: the bytes before those of the first tensor.
        places: the tensors in order, each with the number of its first byte in the file.
        size: bytes in all.
    """

    header: bytes
    places: Sequence[tuple[torch.Tensor, int]]
    size: int

    @classmethod
    def of(cls, tensors: Tensors) -> Layout:
        """The layout that follows from names, types and shapes alone."""
        # Wide types first, so that each begins at a multiple of its width.
        ordered = sorted(tensors.named.items(), key=lambda item: (-item[1].element_size(), item[0]))
        entries, ends = {}, [0]
        for name, tensor in ordered:
            ends.append(ends[-1] + tensor.numel() * tensor.element_size())
            entries[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": ends[-2:]}
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        if not is_file_name(tensors.file + TENSOR_SUFFIX):
            raise UnsaveableError(tensors.file, "that is not a valid name for a file", "give the resource another name")
        if len(text) > _MOST_BYTES_OF_A_HEADER:
            raise UnsaveableError(tensors.file, "it has more tensors than one file can hold")
        header = struct.pack("<Q", len(text)) + text
        places = [(tensor, len(header) + start) for (_, tensor), start in zip(ordered, ends, strict=False)]
        return cls(header, places, len(header) + ends[-1])

    def checksum(self) -> str:
        """The SHA-256 (hexadecimal) that the file would have."""
        digest = hashlib.sha256(self.header)
        for tensor, _ in self.places:
            digest.update(_bytes_of(tensor))
        return digest.hexdigest()

    def copy_to(self, memory: torch.Tensor) -> None:
        """Make bytes of memory what the file will be."""
        memory.numpy()[: len(self.header)] = numpy.frombuffer(self.header, dtype=numpy.uint8)
        for tensor, start in self.places:
            size = tensor.numel() * tensor.element_size()
            memory[start : start + size].view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())

    def on_device(self) -> bool:
        """True if some tensor is not in the memory of the host."""
        return any(tensor.device.type == "cuda" for tensor, _ in self.places)


@final
class StagingBuffers:
    """The memory that checkpoints are staged in, one at a time, and used again by the next: one copy of the state."""

    def __init__(self) -> None:
        self._blocks: dict[str, torch.Tensor] = {}

    def block(self, name: str, size: int, *, pinned: bool) -> torch.Tensor:
        """`size` bytes; those that had this name before, where they are enough."""
        block = self._blocks.get(name)
        if block is None or len(block) < size:
            self._blocks.pop(name, None)  # released first: never two copies
            del block
            block = self._blocks[name] = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        return block[:size]

    def keep_only(self, names: Callable[[str], bool]) -> None:
        """Release the memory that no file needs any more."""
        self._blocks = {name: block for name, block in self._blocks.items() if names(name)}


def stage(files: Sequence[Tensors], memory: StagingBuffers) -> dict[str, memoryview]:
    """The bytes of every file of tensors by its name, in memory that the run does not write to.

    >>> files = [Tensors("model", {"weight": torch.ones(2, 3)})]
    >>> {name: len(data) for name, data in stage(files, StagingBuffers()).items()}
    {'model.safetensors': 96}
    """
    layouts = {tensors.file: Layout.of(tensors) for tensors in files}
    memory.keep_only(layouts.__contains__)
    staged = {}
    with torch.no_grad():
        for name, layout in layouts.items():
            block = memory.block(name, layout.size, pinned=layout.on_device())
            layout.copy_to(block)
            staged[name + TENSOR_SUFFIX] = block.numpy().data
    return staged


def checksums(files: Sequence[Tensors]) -> dict[str, str]:
    """The checksum of every file of tensors by its name, without any copy of them."""
    return {tensors.file + TENSOR_SUFFIX: Layout.of(tensors).checksum() for tensors in files}


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor's values, in order."""
    host = tensor.detach().cpu().contiguous().reshape(-1)
    return host.view(torch.uint8).numpy().data
