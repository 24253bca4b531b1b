"""The weights of sharded models in a checkpoint, one whole tensor after the other, so that memory holds only one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch

from graphtrain.errors import CheckpointError
from graphtrain.storage.encoding import TYPES
from graphtrain.storage.manifest import Manifest, read_files
from graphtrain.storage.pieces import Piece, copy_common
from graphtrain.storage.rank_files import joined_state
from graphtrain.storage.regular import HashedReader, replace_file
from graphtrain.storage.tensor_files import TENSOR_SUFFIX, header_of

_PIECE = 1 << 24


def states_in_place(path: Path, manifest: Manifest) -> list[Mapping[str, Mapping[str, Any]]]:
    """The state of every rank, whose tensors stay in their files until they are read.

    All files are read once, to compare their checksums.

    Raises:
        CheckpointError: a file is missing, torn or altered, or does not hold the state.
    """
    contents = read_files(path, manifest.files, _read)
    files = {
        name: _mapped(path / name) if name.endswith(TENSOR_SUFFIX) else content for name, content in contents.items()
    }
    return [joined_state(path, manifest.tensors, files, rank, None) for rank in range(manifest.ranks)]


def _read(name: str, file: HashedReader) -> bytes:
    if not name.endswith(TENSOR_SUFFIX):
        return bytes(file.read(file.size))
    while file.left:
        file.read(min(_PIECE, file.left))
    return b""


def _mapped(path: Path) -> dict[str, torch.Tensor]:
    with safetensors.safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping


def whole_tensor(of_ranks: Sequence[Any]) -> torch.Tensor:
    """A tensor from what every rank has of it; a plain one is that of rank 0.

    Raises:
        ValueError: the pieces of the ranks do not make one.
    """
    first = of_ranks[0]
    if not isinstance(first, Piece):
        plain: torch.Tensor = first
        return plain.detach()
    whole = torch.empty(first.sharding.shape, dtype=first.values.dtype)
    everything, count = tuple((0, size) for size in whole.shape), 0
    for rank, piece in enumerate(of_ranks):
        if not isinstance(piece, Piece) or piece.sharding != first.sharding:
            raise ValueError(f"rank {rank} has a piece of another tensor")
        piece.check(rank)
        if piece.sharding.is_first(rank):
            count += copy_common(whole, everything, piece.values, piece.sharding.box(rank))
    if count != whole.numel():
        raise ValueError(f"{count} of {whole.numel()} elements are there")
    return whole


def write_weights(
    path: Path, tensors: Mapping[str, Sequence[Any]], most_bytes: float, origin: Path
) -> tuple[list[Path], int]:
    """Write tensors to one file, or to several with an index, as `transformers` and others read them.

    Arguments:
        path: of the file; of several, ``name-00001-of-00003.safetensors`` and ``name.safetensors.index.json``.
        tensors: name -> what every rank has of it.
        most_bytes: how large a file may be; one with a single tensor may be larger.
        origin: the checkpoint, for messages.

    Returns:
        The files of tensors, and how many elements they have.

    Raises:
        CheckpointError: the pieces of a tensor do not fit.
        OSError: the disk refuses, or a file exists.
    """
    parts: list[dict[str, Sequence[Any]]] = [{}]
    size = total = count = 0
    for name, of_ranks in tensors.items():
        numbers, bytes_of = _size(of_ranks[0])
        if parts[-1] and size + bytes_of > most_bytes:
            parts.append({})
            size = 0
        parts[-1][name] = of_ranks
        size, total, count = size + bytes_of, total + bytes_of, count + numbers
    paths = [path]
    if len(parts) > 1:
        numbered = range(1, len(parts) + 1)
        paths = [path.with_name(f"{path.stem}-{number:05d}-of-{len(parts):05d}{path.suffix}") for number in numbered]
    for file, part in zip(paths, parts, strict=True):
        with file.open("xb") as opened:
            for piece in _bytes_of(part, origin):
                opened.write(piece)
    if len(parts) > 1:
        places = {name: file.name for file, part in zip(paths, parts, strict=True) for name in part}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        replace_file(path.with_name(f"{path.name}.index.json"), json.dumps(index, indent=2).encode(), flush=True)
    return paths, count


def _size(value: Any) -> tuple[int, int]:
    if isinstance(value, Piece):
        numbers = torch.Size(value.sharding.shape).numel()
        return numbers, numbers * value.values.element_size()
    return value.numel(), value.nbytes


def _form(value: Any) -> tuple[torch.dtype, Sequence[int]]:
    if isinstance(value, Piece):
        return value.values.dtype, value.sharding.shape
    return value.dtype, value.shape


def _bytes_of(part: Mapping[str, Sequence[Any]], origin: Path) -> Iterator[bytes | memoryview]:
    """The bytes of a file of tensors, one tensor at a time."""
    forms = {name: _form(of_ranks[0]) for name, of_ranks in part.items()}
    ordered = sorted(part, key=lambda name: (-forms[name][0].itemsize, name))
    yield header_of((name, TYPES[forms[name][0]], forms[name][1], _size(part[name][0])[1]) for name in ordered)
    for name in ordered:
        try:
            whole = whole_tensor(part[name]).cpu().contiguous().reshape(-1)
        except ValueError as error:
            raise CheckpointError(f"{origin}: `{name}`: {error}") from None
        if whole.numel():
            yield memoryview(whole.view(torch.uint8).numpy().data)
