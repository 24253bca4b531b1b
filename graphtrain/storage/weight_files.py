"""Files of weights by others, read part by part: a process reads no more of a tensor than it has of it.

| path | what is in it |
| --- | --- |
| `NAME.safetensors` | whole tensors |
| `NAME.safetensors.index.json` | which of several such files each tensor is in |
| a folder of `.safetensors` | whole tensors |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, final

import safetensors
import torch

from graphtrain.storage.encoding import TYPES
from graphtrain.storage.manifest import is_file_name
from graphtrain.storage.pieces import Box, copy_common, overlap
from graphtrain.storage.regular import parsed_json, read_regular
from graphtrain.storage.tensor_files import TENSOR_SUFFIX

INDEX_SUFFIX = ".safetensors.index.json"
_MOST_BYTES_OF_AN_INDEX = 1 << 28
_BY_TYPE = {name: dtype for dtype, name in TYPES.items()}


@final
@dataclass
class StoredTensor:
    """A tensor in files, which are read when its values are asked for.

    Attributes:
        parts: of which it consists: each with its place in the whole, and a function that returns its bytes, of an
            additional last dimension, in the memory of the file.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: list[tuple[Box, Callable[[], torch.Tensor]]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """The size of all of it."""
        return math.prod(self.shape) * self.dtype.itemsize

    def like(self) -> torch.Tensor:
        """A tensor of this type and shape, without values.

        Raises:
            ValueError: there can be no such tensor.
        """
        if self.nbytes >= 2**63:
            raise ValueError(f"has a tensor of shape {self.shape}")
        return torch.empty(self.shape, dtype=self.dtype, device="meta")

    def read(self, box: Box | None = None) -> torch.Tensor:
        """The values of a part of it. Default: all.

        Raises:
            ValueError: some are missing, or a part is not what the file says.
        """
        box = whole_box(self.shape) if box is None else box
        values = torch.empty([end - start for start, end in box], dtype=self.dtype)
        target, count = bytes_of(values), 0
        for place, read in self.parts:
            if overlap(box, place) is not None:
                count += copy_common(target, box, read(), place)
        if count != values.numel():
            raise ValueError(f"{count} of {values.numel()} elements are there")
        return values


def whole_box(shape: Sequence[int]) -> Box:
    """All of a tensor."""
    return tuple((0, size) for size in shape)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, with a dimension more; they share its memory.

    >>> bytes_of(torch.zeros(3, 2)).shape
    torch.Size([3, 2, 4])
    """
    return tensor.reshape(-1).view(torch.uint8).view(*tensor.shape, tensor.itemsize)


def open_weights(path: Path) -> dict[str, StoredTensor]:
    """The tensors in files of weights, by name, of which nothing but the names is read yet.

    Arguments:
        path: a file or a folder as in the table above.

    Raises:
        ValueError: it is no such file or folder; the text follows its name.
        OSError: a file cannot be read.
    """
    if path.name.endswith(INDEX_SUFFIX):
        return _of_files([path.parent / name for name in _indexed(path)])
    if not path.is_dir():
        return _of_files([path])
    if files := sorted(path.glob(f"*{TENSOR_SUFFIX}")):
        return _of_files(files)
    raise ValueError(f"has no file {TENSOR_SUFFIX}")


def _indexed(path: Path) -> list[str]:
    index = parsed_json(read_regular(path, _MOST_BYTES_OF_AN_INDEX))
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(
        isinstance(name, str) and is_file_name(name) for name in places.values()
    ):
        raise ValueError("has no `weight_map` with the names of files")
    return sorted({*places.values()})


def _of_files(paths: Sequence[Path]) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        try:
            file: Any = safetensors.safe_open(path, "pt")
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                if name in tensors:
                    raise ValueError(f"`{name}` is in another file too")
                part = file.get_slice(name)
                tensor = tensors[name] = StoredTensor(_BY_TYPE[part.get_dtype()], tuple(part.get_shape()))
                tensor.parts.append((whole_box(tensor.shape), partial(_bytes_in, file, name)))
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"cannot be read as safetensors: {path.name}: {error}") from error
    return tensors


def _bytes_in(file: Any, name: str) -> torch.Tensor:
    return bytes_of(file.get_tensor(name))
