"""A checkpoint of several ranks on the disk, format 2: what they have in common once, and what is each rank's own.

| file | what is in it |
| --- | --- |
| `model.00001.safetensors` | of the tensors of `model` that are the same on all ranks, those that rank 1 has written |
| `progress.msgpack` | everything but tensors that is the same on all ranks |
| `model.frozen.00001.safetensors` | those of them that are not trained, if `checkpoint.slim` |
| `rank.00001.safetensors`, `rank.00001.msgpack` | what is rank 1's own: its tensors as `file/name`, and the rest |

The manifest has, for every tensor in common, its file, its global shape, and where in that this piece begins: at the
origin, as long as every tensor is written whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
import torch

from graphtrain.errors import CheckpointError
from graphtrain.storage.background import Background
from graphtrain.storage.manifest import FORMAT_OF_RANKS, read_files
from graphtrain.storage.regular import HashedReader
from graphtrain.storage.sharing import Digests, RankState, Sharing
from graphtrain.storage.slim import EarlierFiles, Slim
from graphtrain.storage.state_files import PROGRESS_FILE, Bytes, joined
from graphtrain.storage.tensor_files import TENSOR_SUFFIX, StagedTensor, file_of, read_tensors

_PIECE = 1 << 20
# The facts in a manifest that each rank has its own of.
DRIFT = "reachable"  # the section of what has changed since `setup`
OWN_FACTS = ("aliases", "data_content", "unknown")
# What is no rank's alone, whatever they have in common: it is summed, or given to the rank of the same number.
OF_RANKS = ("gradients", "metrics", "progress", "slots")

Manifest = Mapping[str, Any]
Written = dict[str, list[Any]]
"""Name of a file -> its size and its checksum."""


def write_files_of_rank(
    folder: Path, rank: int, state: RankState, sharing: Sharing, slim: Slim | None = None
) -> Written:
    """Write and flush the files of one rank.

    Arguments:
        slim: how they are divided. Default: each tensor by its resource, and all files are written.

    Raises:
        OSError: the disk refuses, or the folder cannot be seen.
    """
    written: Written = {}
    earlier = EarlierFiles(folder.parent / slim.previous) if slim is not None and slim.previous else None
    for file, ranks in sharing.tensors.items():
        tensors, shares = state.tensors(file), dict[str, dict[str, StagedTensor]]()
        for name, writer in ranks.items():
            if writer == rank:
                shares.setdefault(_file_with(file, name, rank, slim), {})[name] = tensors[name]
        for physical, share in shares.items():
            pieces = file_of(share)
            linked = earlier.link(folder / physical, pieces) if earlier is not None else None
            written[physical] = linked or _write(folder / physical, pieces)
    own = {
        f"{file}/{name}": tensor
        for file in state.summary.files
        for name, tensor in state.tensors(file).items()
        if name not in sharing.tensors.get(file, {})
    }
    if own:
        written[_own_tensors(rank)] = _write(folder / _own_tensors(rank), file_of(own))
    written[_own_parts(rank)] = _write(folder / _own_parts(rank), [msgpack.packb(_own(state, sharing))])
    if rank == 0:
        parts = {
            section: {name: part for name, part in parts.items() if name in sharing.parts[section]}
            for section, parts in state.parts.items()
        }
        written[PROGRESS_FILE] = _write(folder / PROGRESS_FILE, [msgpack.packb(parts)])
    return written


def _own(state: RankState, sharing: Sharing) -> dict[str, dict[str, bytes]]:
    return {
        section: {name: part for name, part in parts.items() if name not in sharing.parts[section]}
        for section, parts in state.parts.items()
    }


def manifest_of_ranks(
    facts: Manifest,
    state: RankState,
    sharing: Sharing,
    summaries: Sequence[Digests],
    told: Sequence[Mapping[str, Mapping[str, Any]]],
    slim: Slim | None = None,
) -> dict[str, Any]:
    """The manifest of a checkpoint whose files all ranks have written.

    Arguments:
        facts: those that are the same on all ranks, and rank 0's.
        told: of each rank, the `files` that it has written, and its `own` facts.
        slim: how they are divided.
    """
    digests = [summary.digest for summary in summaries]
    places = {
        file: {
            name: [_file_with(file, name, rank, slim), shape, [0] * len(shape)]
            for name, rank in ranks.items()
            for shape in [state.tensors(file)[name].shape]
        }
        for file, ranks in sharing.tensors.items()
    }
    return {
        "format": FORMAT_OF_RANKS,
        **facts,
        "ranks": len(summaries),
        "digest": digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest(),
        "digests": digests,
        "tensors": places,
        "own": [dict(each["own"]) for each in told],
        "own_drift": any(_drift(digests) != _drift(summaries[0]) for digests in summaries),
        "files": {name: entry for each in told for name, entry in each["files"].items()},
    }


def _drift(digests: Digests) -> tuple[Mapping[str, str], str | None]:
    """What tells whether a rank has the drift of another."""
    return digests.parts.get(DRIFT, {}), digests.files.get(DRIFT)


def _shared_file(file: str, rank: int) -> str:
    stem = f"{file}.shared" if file == "rank" else file  # whose name files of ranks have
    return f"{stem}.{rank:05d}{TENSOR_SUFFIX}"


def _file_with(file: str, name: str, rank: int, slim: Slim | None) -> str:
    """The file in which a rank writes a tensor that all have."""
    is_frozen = slim is not None and name in slim.frozen.get(file, ())
    return _shared_file(f"{file}.frozen" if is_frozen else file, rank)


def _own_tensors(rank: int) -> str:
    return f"rank.{rank:05d}{TENSOR_SUFFIX}"


def _own_parts(rank: int) -> str:
    return f"rank.{rank:05d}.msgpack"


def _write(path: Path, pieces: Sequence[Bytes]) -> list[Any]:
    """Write and flush a file; its size and its checksum, which is computed meanwhile."""
    checksum = Background(lambda: _checksum(pieces))
    size = 0
    with path.open("xb", buffering=0) as file:
        for piece in pieces:
            view = memoryview(piece)
            size += len(view)
            while view:
                view = view[file.write(view[:_PIECE]) :]
        os.fsync(file.fileno())
    return [size, checksum.result()]


def _checksum(pieces: Sequence[Bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


# ---- reading


def ranks_of(manifest: Manifest) -> int:
    """How many processes have written a checkpoint."""
    ranks: int = manifest.get("ranks", 1)
    return ranks


def read_ranks(path: Path, manifest: Manifest, ranks: Sequence[int]) -> dict[int, dict[str, dict[str, Any]]]:
    """The state of ranks that have written a checkpoint: rank -> section -> name -> state.

    Arguments:
        ranks: of the first all of the state is read; of the others what is not the same on all ranks of a run.

    Raises:
        CheckpointError: a file is missing, torn or altered, or is none of these ranks.
    """
    listed: Mapping[str, Any] = manifest["files"]
    places: Mapping[str, Mapping[str, Sequence[Any]]] = manifest["tensors"]
    wanted = {PROGRESS_FILE, *(place[0] for tensors in places.values() for place in tensors.values())}
    wanted |= {_own_parts(rank) for rank in ranks}
    if missing := sorted(wanted - listed.keys()):
        raise CheckpointError(f"{path}: the manifest lists no file `{missing[0]}`")
    wanted |= {_own_tensors(rank) for rank in ranks} & listed.keys()
    files = read_files(path, {**manifest, "files": {name: listed[name] for name in wanted}}, _read)
    return {rank: _joined(path, places, files, rank, sections=None if rank == ranks[0] else OF_RANKS) for rank in ranks}


def _read(name: str, file: HashedReader) -> Any:
    return read_tensors(file).named if name.endswith(TENSOR_SUFFIX) else file.read(file.size)


def _joined(
    path: Path,
    places: Mapping[str, Mapping[str, Sequence[Any]]],
    files: Mapping[str, Any],
    rank: int,
    sections: Collection[str] | None,
) -> dict[str, dict[str, Any]]:
    tensors = {
        file: {name: _whole(path, files, file, name, *place) for name, place in listed.items()}
        for file, listed in places.items()
        if sections is None or file in sections
    }
    for key, tensor in files.get(_own_tensors(rank), {}).items():
        file, _, name = key.partition("/")
        tensors.setdefault(file, {})[name] = tensor
    try:
        shared, own = msgpack.unpackb(files[PROGRESS_FILE]), msgpack.unpackb(files[_own_parts(rank)])
        # The order of sections is that of the format, and of names that in which `split` sorts them.
        parts = {
            section: dict(sorted({**shared.get(section, {}), **own.get(section, {})}.items()))
            for section in dict.fromkeys([*shared, *own])
            if sections is None or section in sections
        }
        return joined(parts, tensors)
    except (msgpack.UnpackException, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: no state of several ranks ({type(error).__name__})") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: the state of rank {rank}: {error}") from None


def _whole(
    path: Path,
    files: Mapping[str, Mapping[str, torch.Tensor]],
    file: str,
    name: str,
    physical: str,
    shape: Sequence[int],
    offset: Sequence[int],
) -> torch.Tensor:
    tensor = files[physical].get(name)
    if tensor is None:
        raise CheckpointError(f"{path}: `{physical}` has no tensor `{name}` of `{file}`")
    if list(tensor.shape) != list(shape) or any(offset):
        raise CheckpointError(
            f"{path}: `{physical}` has a piece of the tensor `{name}` of `{file}`, which this version cannot join",
            "use a later graphtrain",
        )
    return tensor
