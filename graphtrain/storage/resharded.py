"""Reading a checkpoint of sharded models on another mesh: the saved ranks one after the other, by the boxes in common.

A rank reads what it needs of the pieces of others, and no more. The checksum of a file covers all of it, so what was
read is compared by the digests of whole values, which all ranks compute together (`sums_of_pieces`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import safetensors
import torch

from graphtrain.errors import CheckpointError
from graphtrain.names import quoted
from graphtrain.storage.encoding import TYPES
from graphtrain.storage.manifest import Manifest
from graphtrain.storage.pieces import Piece, copy_common, digests_of_whole, overlap, sum_of
from graphtrain.storage.rank_files import OF_RANKS, joined_state, own_pieces, read_files_of, read_state

State = dict[str, dict[str, Any]]
Values = Callable[[str], torch.Tensor]
Place = tuple[Any, ...]

_MAPPED_BYTES = 2**25  # of a file, in the memory of a rank at a time


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
    if world_size == manifest.ranks:
        states = read_state(path, manifest, ranks)
        meshes = {piece.sharding.mesh for _, piece in pieces_of(states[first])}
        if mesh and not meshes <= {mesh}:
            raise CheckpointError(
                f"{path}: its models are sharded over a mesh of {meshes.pop()}, and those of now over one of {mesh}",
                "set run.mesh_shape as it was; with another number of processes, any mesh can be read",
            )
        return states
    files: dict[str, Any] = {}

    def read(saved: int) -> tuple[State, Values]:
        values, without = _values_in_place(path, manifest, saved)
        nonlocal files
        files = read_files_of(path, manifest, [saved], {**files, own_pieces(saved): without})
        return joined_state(path, manifest.tensors, files, saved, sections=None), values

    states, cut = {}, None
    for saved in [first, *(each for each in range(manifest.ranks) if each != first)]:
        if cut is not None and saved not in others and not cut.needs(saved):
            continue
        state, values = read(saved)
        if cut is None:
            cut = _Cut(path, state, rank, mesh or (world_size,))
            states[first] = state
        cut.take(state, saved, values)
        if saved in others:
            kept = {section: state[section] for section in OF_RANKS if section in state}
            kept["gradients"] = {
                name: {key: part for key, part in gradients.items() if not isinstance(part, Piece)}
                for name, gradients in kept.get("gradients", {}).items()
            }
            states[saved] = kept
    assert cut is not None, "a checkpoint has a first rank"
    cut.put(states[first])
    return states


def _values_in_place(path: Path, manifest: Manifest, saved: int) -> tuple[Values, dict[str, torch.Tensor]]:
    """The values of the pieces of a saved rank, read where they are used; and tensors without values in their place.

    Raises:
        CheckpointError: their file is missing or torn.
    """
    name = own_pieces(saved)
    if name not in manifest.files:
        return _no_values, {}
    try:
        file: Any = safetensors.safe_open(path / name, "pt")
        without = {key: torch.empty_like(file.get_tensor(key), device="meta") for key in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise CheckpointError(f"{path}: {name} cannot be read ({error.strerror})") from error
    except safetensors.SafetensorError as error:
        raise CheckpointError(f"{path}: {name} is damaged: {error}") from None
    used = 0

    def values(key: str) -> torch.Tensor:
        """Those of a tensor, in the memory of the file: to open it again frees what was used of that."""
        nonlocal file, used
        if used > _MAPPED_BYTES:
            file, used = safetensors.safe_open(path / name, "pt"), 0
        tensor: torch.Tensor = file.get_tensor(key)
        used += tensor.nbytes
        return tensor

    return values, without


def _no_values(key: str) -> torch.Tensor:
    raise KeyError(key)


def sums_of_pieces(sections: Mapping[str, Any], rank: int) -> dict[str, dict[str, str]]:
    """What a rank contributes to the digests of sharded tensors, by what it has read: file -> name -> sum."""
    sums: dict[str, dict[str, str]] = {}
    for _, piece in pieces_of(sections):
        file, name = piece.named
        data = memoryview(piece.values.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        sums.setdefault(file, {})[name] = f"{sum_of(piece.sharding, rank, data, TYPES[piece.values.dtype]):x}"
    return sums


def compare_sums(path: Path, manifest: Manifest, of_ranks: Sequence[Mapping[str, Mapping[str, str]]]) -> None:
    """Raise unless all ranks together have read the values that were saved, each its pieces.

    Arguments:
        of_ranks: of each, what `sums_of_pieces` returns.

    Raises:
        CheckpointError: they have not.
    """
    found = digests_of_whole(of_ranks)
    if wrong := [file for file, digest in manifest.sharded.items() if found.get(file) != digest]:
        raise CheckpointError(
            f"{path}: what the ranks have read of {quoted(wrong)} together is not what was saved",
            "resume from an earlier checkpoint, or with the number of processes that saved it",
        )


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

    def take(self, state: State, saved: int, values: Values = _no_values) -> None:
        """Copy what is needed of a saved rank.

        Arguments:
            values: returns those of a piece that is without, by its name in the file.
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
            box = sharding.box(saved)
            if sharding.is_first(saved) and overlap(self._boxes[place], box) is not None:
                source = values("/".join(piece.named)) if piece.values.is_meta else piece.values
                self._filled[place] += copy_common(self._parts[place], self._boxes[place], source, box)

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
