"""Folders of `torch.distributed.checkpoint`, read without unpickling: its metadata and tensors are pickled.

What it saves of a tensor is an archive of `torch.save`, somewhere in a file.
"""

from __future__ import annotations

import functools
import math
import mmap
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch

from graphtrain.storage.encoding import TYPES
from graphtrain.storage.manifest import is_file_name
from graphtrain.storage.pickled import PickledObject, read_pickled
from graphtrain.storage.pieces import Box
from graphtrain.storage.regular import open_regular, read_regular
from graphtrain.storage.weight_files import StoredTensor

_MOST_BYTES_OF_METADATA = 1 << 30
_MOST_BYTES_OF_A_DESCRIPTION = 1 << 16
_HEADER_BYTES = 30  # of a file in an archive, before its name
_OF_METADATA = "torch.distributed.checkpoint.metadata "
_TYPES = {f"torch {str(dtype).removeprefix('torch.')}": dtype for dtype in TYPES}
_REBUILT = {"torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3"}


def open_distributed(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a folder, by name. Values that are not tensors are left out.

    Arguments:
        path: its `.metadata`.

    Raises:
        ValueError: the folder is not what `torch.distributed.checkpoint` writes.
        OSError: a file cannot be read.
    """
    try:
        fields = _state(read_pickled(read_regular(path, _MOST_BYTES_OF_METADATA)), "Metadata")
        infos = {
            (key.state["fqn"], _sizes(key.state["offset"])): info.state
            for key, info in fields["storage_data"].items()
            if key.state.get("offset") is not None
        }
        return {
            name: _stored(path.parent, name, _state(tensor, "TensorStorageMetadata"), infos)
            for name, tensor in fields["state_dict_metadata"].items()
            if tensor.name != f"{_OF_METADATA}BytesStorageMetadata"
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"is not a checkpoint of torch.distributed.checkpoint that can be read: {error}") from error


def _stored(folder: Path, name: str, tensor: Mapping[str, Any], infos: Mapping[Any, Any]) -> StoredTensor:
    stored = StoredTensor(_TYPES[_state(tensor["properties"], "TensorProperties")[0].name], _sizes(tensor["size"]))
    for chunk in tensor["chunks"]:
        place = _state(chunk, "ChunkStorageMetadata")
        starts, sizes = _sizes(place["offsets"]), _sizes(place["sizes"])
        box = tuple((start, start + size) for start, size in zip(starts, sizes, strict=True))
        if any(end > size for (_, end), size in zip(box, stored.shape, strict=True)):
            raise ValueError(f"a part of `{name}` is outside of it")
        info = infos[name, starts]
        if info.get("transform_descriptors"):
            raise ValueError(f"`{name}` was written by an extension ({info['transform_descriptors']})")
        if not is_file_name(info["relative_path"]):
            raise ValueError(f"`{name}` is in a file outside of the folder")
        start, end = info["offset"], info["offset"] + info["length"]
        read = functools.partial(_part, folder / info["relative_path"], start, end, box, stored.dtype)
        stored.parts.append((box, read))
    return stored


def _state(record: Any, name: str) -> Any:
    if not isinstance(record, PickledObject) or record.name != _OF_METADATA + name:
        raise ValueError(f"something else than its {name}")
    return record.state


def _sizes(size: Any) -> tuple[int, ...]:
    """The numbers of a `torch.Size`."""
    (numbers,) = size.arguments
    if size.name != "torch Size" or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("sizes that are not whole numbers")
    return tuple(numbers)


@final
class _Memory(mmap.mmap):
    """A part of a file as memory, and as a file for `zipfile`."""

    def seekable(self) -> bool:  # which Python 3.13 has
        return True


def _part(path: Path, start: int, end: int, box: Box, dtype: torch.dtype) -> torch.Tensor:
    """The bytes of a part, which is an archive within a file.

    Raises:
        ValueError: it is not as `torch.save` writes it.
    """
    try:
        with open(open_regular(path), "rb") as file:
            # Private, so that torch may take it for writable; read where it is used. It ends where the archive does.
            base = start - start % mmap.ALLOCATIONGRANULARITY
            memory: Any = _Memory(file.fileno(), end - base, access=mmap.ACCESS_COPY, offset=base)
        with zipfile.ZipFile(memory) as archive:
            entries = {entry.filename.partition("/")[2]: entry for entry in archive.infolist()}
            read = [entries[name] for name in ("data.pkl", "byteorder") if name in entries]
            if any(entry.file_size > _MOST_BYTES_OF_A_DESCRIPTION or entry.compress_type for entry in read):
                raise ValueError("a description that is too large, or compressed")
            if "byteorder" in entries and archive.read(entries["byteorder"]) != b"little":
                raise ValueError("numbers of another byte order")
            tensor = read_pickled(archive.read(entries["data.pkl"]))
        reference, first, shape, stride = tensor.arguments[:4]
        values = entries[f"data/{reference.arguments[2]}"]
        sizes = tuple(stop - begin for begin, stop in box)
        if tensor.name not in _REBUILT or shape != sizes or values.compress_type or values.header_offset < start - base:
            raise ValueError("a tensor of another shape or kind than the metadata says")
        if not math.prod(sizes):
            return torch.empty(*sizes, dtype.itemsize, dtype=torch.uint8)
        header = memory[values.header_offset + _HEADER_BYTES - 4 : values.header_offset + _HEADER_BYTES]
        lengths = int.from_bytes(header[:2], "little") + int.from_bytes(header[2:], "little")
        place = values.header_offset + _HEADER_BYTES + lengths
        data = torch.frombuffer(memory, dtype=torch.uint8, count=values.file_size, offset=place)
        strides = (*(step * dtype.itemsize for step in stride), 1)
        return data.as_strided((*shape, dtype.itemsize), strides, first * dtype.itemsize)
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path.name} is damaged, or not what torch.save writes: {error}") from error
