"""Reading a checkpoint of sharded models on another number of ranks: each joins whole tensors, and takes its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors
import torch

from graphtrain.errors import CheckpointError
from graphtrain.storage.manifest import Manifest, read_files
from graphtrain.storage.pieces import Piece, pieces_of
from graphtrain.storage.rank_files import OF_RANKS, joined_state, own_pieces, read_files_of, read_state

State = dict[str, dict[str, Any]]


def read_resharded(
    path: Path, manifest: Manifest, ranks: Sequence[int], rank: int, world_size: int, mesh: tuple[int, ...]
) -> dict[int, State]:
    """The state of some ranks of a checkpoint, the first with the pieces that a rank has on the mesh of now.

    All ranks together verify the checksums of all pieces, each those of some saved ranks.

    Arguments:
        ranks: as for `read_state`.
        rank, world_size: that of this process now, and how many there are.
        mesh: as for `read_checkpoint`.

    Raises:
        CheckpointError: a file is missing, torn or altered, or does not hold the state of these ranks.
    """
    first = ranks[0]
    if world_size == manifest.ranks:
        states = read_state(path, manifest, ranks)
        meshes = {piece.sharding.mesh for piece in pieces_of(states[first])}
        if mesh and not meshes <= {mesh}:
            raise CheckpointError(
                f"{path}: its models are sharded over a mesh of {meshes.pop()}, and those of now over one of {mesh}",
                "set run.mesh_shape as it was; with another number of processes, any mesh can be read",
            )
        return states
    saved = [own_pieces(number) for number in range(manifest.ranks) if own_pieces(number) in manifest.files]
    read_files(path, {name: manifest.files[name] for name in saved[rank::world_size]}, lambda file: None)
    in_place = {name: tensors_in(path / name) for name in saved}
    files = read_files_of(path, manifest, ranks, in_place)
    states = {
        number: joined_state(path, manifest.tensors, files, number, None if number == first else OF_RANKS)
        for number in ranks
    }
    for piece in pieces_of(states[first]):
        whole = joined(path, piece, in_place)
        piece.sharding = replace(piece.sharding, mesh=mesh or (world_size,))
        piece.values = piece.sharding.part(whole, rank).clone()
    return states


def tensors_in(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file, in its memory.

    Raises:
        CheckpointError: it is missing or torn.
    """
    try:
        file: Any = safetensors.safe_open(path, "pt")
        return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no mapping
    except OSError as error:
        raise CheckpointError(f"{path.parent}: {path.name} cannot be read ({error.strerror})") from error
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path.parent}: {path.name} is damaged: {error}") from None


def joined(path: Path, piece: Piece, files: Mapping[str, Mapping[str, torch.Tensor]]) -> torch.Tensor:
    """The whole tensor of a piece.

    Arguments:
        path: of the checkpoint.
        files: the tensors in the files of the pieces of all ranks.

    Raises:
        CheckpointError: the pieces of the ranks do not make a tensor.
    """
    name = "/".join(piece.named)
    try:
        return piece.sharding.joined([files[own_pieces(rank)][name] for rank in range(piece.sharding.count)])
    except (KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path}: `{name}`: {error}") from None
