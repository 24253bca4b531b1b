"""Reading a checkpoint of sharded models on another mesh: the saved ranks one after the other, by the boxes in common.

A rank holds what it needs itself. The pieces of the saved ranks stay in their files, of which every byte is hashed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch

from graphtrain.errors import CheckpointError
from graphtrain.storage.manifest import Manifest
from graphtrain.storage.pieces import Piece, copy_common, overlap
from graphtrain.storage.rank_files import OF_RANKS, read_state
from graphtrain.storage.tensor_files import InPlace

State = dict[str, dict[str, Any]]
Place = tuple[Any, ...]


def pieces_of(value: Any, place: Place = ()) -> Iterator[tuple[Place, Piece]]:
    """The pieces in a state, with the keys that lead to each."""
    if isinstance(value, Piece):
        yield place, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from pieces_of(part, (*place, key))
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from pieces_of(part, (*place, number))


def read_resharded(
    path: Path, manifest: Manifest, ranks: Sequence[int], rank: int, world_size: int, mesh: tuple[int, ...]
) -> dict[int, State]:
    """The state of some ranks of a checkpoint, the first with the pieces that a rank has on the mesh of now.

    Arguments:
        ranks: as for `read_state`.
        rank, world_size: that of this process now, and how many there are.
        mesh: as for `read_checkpoint`.

    Raises:
        CheckpointError: a file is missing, torn or altered, or does not hold the state of these ranks.
    """
    first, *others = ranks
    in_place = InPlace() if world_size != manifest.ranks else None
    states = read_state(path, manifest, [first], in_place)
    meshes = {piece.sharding.mesh for _, piece in pieces_of(states[first])}
    if in_place is None:
        if mesh and not meshes <= {mesh}:
            raise CheckpointError(
                f"{path}: its models are sharded over a mesh of {meshes.pop()}, and those of now over one of {mesh}",
                "set run.mesh_shape as it was; with another number of processes, any mesh can be read",
            )
        return states
    cut = _Cut(path, states[first], rank, mesh or (world_size,))
    for saved in range(manifest.ranks):
        if saved != first and not cut.needs(saved) and saved not in others:
            continue
        state = states[first] if saved == first else read_state(path, manifest, [saved], in_place)[saved]
        cut.take(state, saved, in_place.release)
        if saved in others:
            kept = {section: state[section] for section in OF_RANKS if section in state}
            kept["gradients"] = {
                name: {key: part for key, part in gradients.items() if not isinstance(part, Piece)}
                for name, gradients in kept.get("gradients", {}).items()
            }
            states[saved] = kept
    cut.put(states[first])
    return states


@final
class _Cut:
    """The pieces of one rank on a mesh, filled from those of the saved ranks.

    Arguments:
        state: that of one of them, by which it is known what there is.
    """

    def __init__(self, path: Path, state: State, rank: int, mesh: tuple[int, ...]) -> None:
        self._path, self._rank = path, rank
        self._saved = {place: piece.sharding for place, piece in pieces_of(state)}
        self._now = {place: sharding.on(mesh) for place, sharding in self._saved.items()}
        self._boxes = {place: sharding.box(rank) for place, sharding in self._now.items()}
        self._filled = dict.fromkeys(self._saved, 0)
        self._parts = {
            place: torch.empty([end - start for start, end in self._boxes[place]], dtype=piece.values.dtype)
            for place, piece in pieces_of(state)
        }

    def needs(self, saved: int) -> bool:
        """True if a saved rank has something that is needed, and is the first that has it."""
        return any(
            sharding.is_first(saved) and overlap(self._boxes[place], sharding.box(saved)) is not None
            for place, sharding in self._saved.items()
        )

    def take(self, state: State, saved: int, release: Callable[[], None] = lambda: None) -> None:
        """Copy what is needed of a saved rank.

        Arguments:
            release: called after each piece.
        """
        for place, piece in pieces_of(state):
            sharding = self._saved.get(place)
            if sharding is None:  # a value of a single rank, which no other takes
                continue
            try:
                piece.check(saved)
                if piece.sharding != sharding:
                    raise ValueError("a piece of another tensor than on other ranks")
            except ValueError as error:
                raise self._error(place, str(error)) from None
            if sharding.is_first(saved):
                box = sharding.box(saved)
                self._filled[place] += copy_common(self._parts[place], self._boxes[place], piece.values, box)
                release()

    def put(self, state: State) -> None:
        """Let the pieces of a state be those that were filled.

        Raises:
            CheckpointError: a part of one is missing.
        """
        for place, piece in pieces_of(state):
            expected = math.prod(end - start for start, end in self._boxes[place])
            if self._filled[place] != expected:
                raise self._error(place, f"{self._filled[place]} of {expected} elements of rank {self._rank} are there")
            piece.values, piece.sharding = self._parts[place], self._now[place]

    def _error(self, place: Place, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: `{'.'.join(map(str, place[1:]))}` ({place[0]}): {what}")
