"""The weights in a checkpoint, one whole tensor after the other, so that memory holds only one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from graphtrain.errors import CheckpointError
from graphtrain.storage.encoding import TYPES
from graphtrain.storage.manifest import Manifest, read_manifest
from graphtrain.storage.pieces import Piece
from graphtrain.storage.rank_files import joined_state, read_files_of
from graphtrain.storage.regular import replace_file
from graphtrain.storage.state_files import Sections
from graphtrain.storage.tensor_files import header_of
from graphtrain.storage.weight_files import StoredTensor, bytes_of, whole_box


def states_in_place(path: Path, manifest: Manifest) -> list[Sections]:
    """The state of every rank, of rank 0 alone if no model is sharded; tensors stay in the memory of their files.

    Raises:
        CheckpointError: a file is missing, torn or altered, or does not hold the state.
    """
    ranks = range(manifest.ranks if manifest.sharded else 1)
    files = read_files_of(path, manifest, ranks, copied=None)
    return [joined_state(path, manifest.tensors, files, rank, None) for rank in ranks]


def model_in_place(path: Path, model: str) -> dict[str, StoredTensor]:
    """The weights of a model in a checkpoint of any number of ranks, by name; none if it has no such model.

    Raises:
        CheckpointError: it is damaged.
    """
    of_ranks = []
    for sections in states_in_place(path, read_manifest(path)):
        state = sections["resources"].get(model)
        named = state.items() if isinstance(state, Mapping) else ()
        of_ranks.append({name: tensor for name, tensor in named if isinstance(tensor, torch.Tensor | Piece)})
    return weights_in_place(path, of_ranks)


def weights_in_place(path: Path, of_ranks: Sequence[Mapping[str, Any]]) -> dict[str, StoredTensor]:
    """Weights, by name, from those that every rank has; plain ones, and pieces that several have, are of the first.

    Arguments:
        path: of the checkpoint.

    Raises:
        CheckpointError: the pieces of the ranks do not make a tensor.
    """
    weights = {}
    for name, first in of_ranks[0].items():
        is_sharded = isinstance(first, Piece)
        weights[name] = StoredTensor(
            first.values.dtype if is_sharded else first.dtype,
            first.sharding.shape if is_sharded else tuple(first.shape),
        )
        parts = weights[name].parts
        if not is_sharded:
            parts.append((whole_box(first.shape), partial(bytes_of, first.detach())))
            continue
        for rank, weights_of_rank in enumerate(of_ranks):
            piece = weights_of_rank.get(name)
            try:
                if not isinstance(piece, Piece) or piece.sharding != first.sharding:
                    raise ValueError("a piece of another tensor than on rank 0")
                piece.check(rank)
            except ValueError as error:
                raise CheckpointError(f"{path}: `{name}` on rank {rank}: {error}") from None
            if piece.sharding.is_first(rank) and (piece.values.numel() or not parts):
                parts.append((piece.sharding.box(rank), partial(bytes_of, piece.values)))
    return weights


def write_weights(path: Path, tensors: Mapping[str, StoredTensor], origin: Path) -> None:
    """Write tensors to a new file.

    Arguments:
        origin: the checkpoint, for messages.

    Raises:
        CheckpointError: a part of a tensor is missing.
        OSError: the disk refuses.
    """
    replace_file(path, _bytes_of(tensors, origin), flush=True)


def _bytes_of(part: Mapping[str, StoredTensor], origin: Path) -> Iterator[bytes | memoryview]:
    """The bytes of a file of tensors, one tensor at a time."""
    ordered = sorted(part, key=lambda name: (-part[name].dtype.itemsize, name))
    entries = ((name, TYPES[part[name].dtype], part[name].shape, part[name].nbytes) for name in ordered)
    yield header_of(entries, {"format": "pt"})
    for name in ordered:
        try:
            whole = part[name].read().reshape(-1)
        except ValueError as error:
            raise CheckpointError(f"{origin}: `{name}`: {error}") from None
        if whole.numel():
            yield memoryview(whole.view(torch.uint8).numpy().data)
