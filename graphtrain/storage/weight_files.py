"""The weights of a model in a checkpoint, sharded or not; or in a safetensors file, or a folder of several.

They are read one tensor at a time, so that memory holds only one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch

from graphtrain.storage.files import replace_file
from graphtrain.storage.manifest import Manifest, read_manifest
from graphtrain.storage.pieces import Piece, PieceFiles
from graphtrain.storage.rank_files import read_state
from graphtrain.storage.state_files import Sections
from graphtrain.storage.strides import flat_bytes
from graphtrain.storage.tensor_files import DTYPES, TENSOR_SUFFIX, header_of
from graphtrain.storage.value_types import TYPES


class StoredTensor(NamedTuple):
    """A tensor in files.

    Attributes:
        like: a tensor of its dtype and shape, with or without values.
        read: returns the tensor with its values.
    """

    like: torch.Tensor
    read: Callable[[], torch.Tensor]


def stored_weights(path: Path, manifest: Manifest) -> tuple[Sections, Callable[[Any], StoredTensor | None]]:
    """The state of a checkpoint of any number of ranks; and a function that returns the whole tensor of a value in it.

    Raises:
        CheckpointError: a file is missing, truncated or altered, or does not hold the state.
    """
    files = PieceFiles(path)

    def stored(value: Any) -> StoredTensor | None:
        if isinstance(value, Piece):
            like = torch.empty(value.shape, dtype=value.like.dtype, device="meta")
            return StoredTensor(like, partial(files.part, value))
        return StoredTensor(value, value.detach) if isinstance(value, torch.Tensor) else None

    return read_state(path, manifest, [0], in_place=True)[0], stored


def weights_of_model(path: Path, model: str) -> dict[str, StoredTensor]:
    """The weights of a model in a checkpoint that any number of ranks has written, by name; empty without such a model.

    Raises:
        CheckpointError: it is damaged.
    """
    sections, stored = stored_weights(path, read_manifest(path))
    state = sections["resources"].get(model)
    named = state.items() if isinstance(state, Mapping) else ()
    return {name: tensor for name, value in named if (tensor := stored(value)) is not None}


def write_weights(path: Path, tensors: Mapping[str, StoredTensor]) -> None:
    """Write tensors to a safetensors file, one at a time.

    Raises:
        CheckpointError: the parts of a sharded tensor cannot be read.
        OSError: the file cannot be written.
    """
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].like.itemsize, item[0]))

    def pieces() -> Iterator[bytes | memoryview]:
        yield header_of((name, TYPES[like.dtype], like.shape, like.nbytes) for name, (like, _) in ordered)
        for _, tensor in ordered:
            yield memoryview(flat_bytes(tensor.read()).numpy().data)

    replace_file(path, pieces(), flush=True)


def open_weights(path: Path) -> dict[str, StoredTensor]:
    """The tensors in a safetensors file, or in those of a folder, by name; their values are not read yet.

    Raises:
        ValueError: there is no such file, or it is invalid; the text is to follow the path.
        OSError: a file cannot be read.
    """
    paths = sorted(path.glob(f"*{TENSOR_SUFFIX}")) if path.is_dir() else [path]
    if not paths:
        raise ValueError(f"has no {TENSOR_SUFFIX} file")
    tensors: dict[str, StoredTensor] = {}
    for each in paths:
        try:
            file: Any = safetensors.safe_open(each, "pt")
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                if name in tensors:
                    raise ValueError(f"`{name}` is in another file too")
                entry = file.get_slice(name)
                like = torch.empty(entry.get_shape(), dtype=DTYPES[entry.get_dtype()], device="meta")
                tensors[name] = StoredTensor(like, partial(file.get_tensor, name))
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"cannot be read as safetensors: {each.name}: {error}") from error
    return tensors
