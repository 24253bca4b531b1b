"""The files of a checkpoint: rank 0 writes the tensors that are equal on all ranks, each rank writes its others.

| file | what is in it |
| --- | --- |
| `model.safetensors` | tensors of `model` that are equal on all ranks |
| `state.msgpack`, `rank.00001.msgpack` | everything but tensors, of rank 0 and of rank 1 |
| `rank.00001.safetensors` | tensors that differ from those of other ranks, of rank 1, as `file/name` |
| `rank.00001.sharded.safetensors` | the parts of rank 1 of tensors that are sharded over ranks, as `file/name` |

With one process, everything counts as equal. A file that equals that in the previous checkpoint becomes a hard link to
it, so that frozen weights are stored once.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import torch

from graphtrain.errors import CheckpointError
from graphtrain.names import quoted
from graphtrain.storage.files import temporary_name, write_pieces
from graphtrain.storage.manifest import Manifest, read_file, read_files, read_manifest
from graphtrain.storage.pieces import file_of_pieces
from graphtrain.storage.state_files import LOCAL, STATE_FILE, Bytes, StagedState, joined, name_of_part
from graphtrain.storage.tensor_files import TENSOR_SUFFIX, StagedTensor, file_of, read_tensors

_OWN_TENSORS = "rank.{:05d}.safetensors"
_OF_A_RANK = re.compile(r"rank\.\d{5,}\.(msgpack|safetensors|sharded\.safetensors)")
REACHABLE = "reachable"  # the section of what has changed since `setup`
# The sections that a resume with another number of ranks reads from several ranks.
OF_RANKS = ("metrics", "progress", "slots", LOCAL)


def _parts_file(rank: int) -> str:
    """The name of the file of everything but tensors."""
    return f"rank.{rank:05d}.msgpack" if rank else STATE_FILE


def common_names(digests: Sequence[Mapping[str, str]]) -> set[str]:
    """The names with bitwise equal values on all ranks, given the digests of each."""
    return {name for name, digest in digests[0].items() if all(each.get(name) == digest for each in digests)}


def write_files(
    folder: Path, rank: int, state: StagedState, common: Collection[str] | None = None, previous: Path | None = None
) -> dict[str, list[Any]]:
    """Write and flush the files of one rank; returns the size and checksum of each, by name.

    Arguments:
        common: the names that are equal on all ranks, which rank 0 writes. Default: everything, as in one process.
        previous: the previous checkpoint; files that are the same become hard links to it. Default: none.

    Raises:
        OSError: writing fails, or this rank does not see the folder.
    """
    tensors: dict[str, dict[str, StagedTensor]] = {}
    contents: dict[str, Sequence[Bytes]] = {}
    for file, data in state.tensor_files.items():
        shardings = state.pieces.get(file, {})
        if common is None and not shardings:
            contents[file + TENSOR_SUFFIX] = [data]  # as it is
            continue
        for name, tensor in state.tensors(file).items():
            if name in shardings:
                if rank < shardings[name].count:  # of others, it is the same
                    tensors.setdefault(file_of_pieces(rank), {})[f"{file}/{name}"] = tensor
            elif common is not None and f"{file}/{name}" not in common:
                tensors.setdefault(_OWN_TENSORS.format(rank), {})[f"{file}/{name}"] = tensor
            elif rank == 0:
                tensors.setdefault(file + TENSOR_SUFFIX, {})[name] = tensor
    contents |= {physical: file_of(named) for physical, named in tensors.items()}
    contents[_parts_file(rank)] = [msgpack.packb(state.parts)]
    known: Mapping[str, Sequence[Any]] = {}
    with suppress(CheckpointError):
        known = read_manifest(previous).files if previous is not None else {}
    return {name: write_file(folder / name, pieces, previous, known.get(name)) for name, pieces in contents.items()}


def _linked(path: Path, previous: Path, entry: Sequence[Any]) -> bool:
    """Replace a file by a hard link to that in another checkpoint; False if that is damaged, or linking fails."""
    link = temporary_name(path)
    try:
        read_file(previous / path.name, entry, functools.partial(os.link, dst=link, follow_symlinks=False))
        link.replace(path)
    except (OSError, CheckpointError):
        return False
    return True


def manifest_of(
    facts: Manifest, state: StagedState, common: Collection[str] | None, reports: Sequence[Mapping[str, Any]]
) -> Manifest:
    """The manifest of a checkpoint whose files all ranks have written.

    Arguments:
        facts: those of rank 0, and those that are the same on all ranks.
        reports: of each rank, the `files` that it has written, the `digest` of its state, and its `rank_facts`; for
            sharded tensors a weight that is `not_finite`.
    """
    files = {name: entry for report in reports for name, entry in report["files"].items()}
    digests = [report["digest"] for report in reports]
    if common is not None:
        rank_facts = [dict(report["rank_facts"]) for report in reports]
        facts = replace(
            facts, ranks=len(reports), digests=digests, rank_facts=rank_facts, differing=_differing(state, common)
        )
    if state.pieces:
        named = [facts.not_finite, *(report.get("not_finite", "") for report in reports)]
        facts = replace(facts, sharded=True, not_finite=next(filter(None, named), ""))
    return replace(facts, digest=digest_of_ranks(digests), files=files)


def _differing(state: StagedState, common: Collection[str]) -> str:
    """What differs between ranks, so that a resume with another number of ranks takes it from rank 0; in words."""

    def differing_tensors(file: str) -> list[str]:
        names = state.tensors(file).keys() - state.pieces.get(file, {})
        return sorted(f"{file}.{name}" for name in names if f"{file}/{name}" not in common)

    names = [name for file in sorted(state.parts.get("resources", ())) for name in differing_tensors(file)]
    parts = [name_of_part(REACHABLE, name) for name in state.parts.get(REACHABLE, ())]
    has_changed = bool(differing_tensors(REACHABLE)) or any(part not in common for part in parts)
    return " and ".join([quoted(names, 3)] * bool(names) + ["what has changed since `setup`"] * has_changed)


def digest_of_ranks(digests: Sequence[str]) -> str:
    """The digest of a run, computed from those of its ranks."""
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()


def write_file(
    path: Path, pieces: Iterable[Bytes], previous: Path | None = None, known: Sequence[Any] | None = None
) -> list[Any]:
    """Write and flush a new file; returns its size and checksum.

    Arguments:
        previous: a folder, to whose file of that name it becomes a hard link if its size and checksum are `known`.
    """
    # Unbuffered: the lock of a buffer would stay locked in a process that is forked meanwhile.
    with path.open("xb", buffering=0) as file:
        entry = write_pieces(file, pieces)
        if previous is None or known != entry or not _linked(path, previous, entry):
            os.fsync(file.fileno())
    return entry


# ---- reading


def read_state(
    path: Path, manifest: Manifest, ranks: Sequence[int], reader: tuple[int, int] = (0, 1), *, in_place: bool = False
) -> dict[int, dict[str, dict[str, Any]]]:
    """Read the state of some ranks of a checkpoint: rank -> section -> name -> state.

    Arguments:
        ranks: the state of the first is read completely; of the others, only the sections in `OF_RANKS`.
        reader: the number of this process, and how many read the checkpoint at once; each verifies the checksums of
            some of the files. Default: this process verifies all.
        in_place: as for `read_tensors`.

    Raises:
        CheckpointError: a file is missing, truncated or altered, or does not hold the state of these ranks.
    """
    listed, (number, count) = manifest.files, reader
    named = [file_of_pieces(0), *map(_OWN_TENSORS.format, ranks), *map(_parts_file, ranks)]
    wanted = {name for name in listed if name in named or not _OF_A_RANK.fullmatch(name)}

    def read(file: Path) -> Any:
        if file.name not in wanted:
            return None
        if file.name == file_of_pieces(0):
            return {name: tensor.new_empty(0) for name, tensor in read_tensors(file, in_place=True).items()}
        if file.suffix != TENSOR_SUFFIX:
            return file.read_bytes()
        return read_tensors(file, in_place=in_place)

    verified = sorted(listed)[number::count]
    entries = {name: (listed[name][0], listed[name][1] * (name in verified)) for name in {*wanted, *verified}}
    files = {name: content for name, content in read_files(path, entries, read).items() if name in wanted}
    return {rank: _joined(path, files, rank, None if rank == ranks[0] else OF_RANKS) for rank in ranks}


def _joined(
    path: Path, files: Mapping[str, Any], rank: int, sections: Collection[str] | None
) -> dict[str, dict[str, Any]]:
    """The state of a rank from the tensors or bytes of files by name; all sections, or only some."""
    tensors: dict[str, dict[str, torch.Tensor]] = {
        physical.removesuffix(TENSOR_SUFFIX): dict(file)
        for physical, file in files.items()
        if physical.endswith(TENSOR_SUFFIX) and not _OF_A_RANK.fullmatch(physical)
    }
    for physical in (_OWN_TENSORS.format(rank), file_of_pieces(0)):
        for key, tensor in files.get(physical, {}).items():
            name, _, inner = key.partition("/")
            tensors.setdefault(name, {})[inner] = tensor
    tensors = {name: named for name, named in tensors.items() if sections is None or name in sections}
    try:
        parts = msgpack.unpackb(files[_parts_file(rank)])
        return joined({name: part for name, part in parts.items() if sections is None or name in sections}, tensors)
    except (msgpack.UnpackException, KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{path}: {_parts_file(rank)} is damaged: {type(error).__name__}: {error}") from None
