"""The files of a checkpoint: what is the same on all ranks is written once, and each rank writes what is its own.

| file | what is in it |
| --- | --- |
| `model.safetensors` | tensors of `model` that are the same on all ranks |
| `model.frozen.safetensors` | those that are not trained, if `checkpoint.slim` |
| `state.msgpack` | everything but tensors that is the same on all ranks |
| `rank.00001.safetensors`, `rank.00001.msgpack` | what is rank 1's own: its tensors as `file/name`, and the rest |
| `rank.00001.sharded.safetensors` | its pieces of tensors that are sharded over ranks, in the same way |

With one process, everything is the same on all ranks. The manifest has the file of every tensor that is not in that of
its resource.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import torch

from graphtrain.errors import CheckpointError
from graphtrain.names import quoted
from graphtrain.storage.background import Background
from graphtrain.storage.manifest import Manifest, read_files, read_manifest
from graphtrain.storage.pieces import file_of_pieces
from graphtrain.storage.regular import checksum_of, write_pieces
from graphtrain.storage.sharing import EqualParts
from graphtrain.storage.state_files import LOCAL, STATE_FILE, Bytes, StagedState, joined
from graphtrain.storage.tensor_files import TENSOR_SUFFIX, StagedTensor, file_of, read_tensors

_OWN_TENSORS, _OWN_PARTS = "rank.{:05d}.safetensors", "rank.{:05d}.msgpack"
_OF_A_RANK = re.compile(r"rank\.\d{5,}\.(msgpack|safetensors|sharded\.safetensors)")
DRIFT = "reachable"  # the section of what has changed since `setup`
# Sections that a resume reads from other ranks too: they are summed, or given to the rank of the same number.
OF_RANKS = ("metrics", "progress", "slots", LOCAL)

Written = dict[str, list[Any]]
"""File name -> size and checksum."""


@dataclass(frozen=True)
class Slim:
    """How a checkpoint is divided into files, so that what stays the same is stored once.

    Attributes:
        frozen: file -> the names of the tensors that are not trained, which go to a separate file.
        previous: the name of the previous checkpoint, in the same folder; empty for none.
    """

    frozen: Mapping[str, Collection[str]] = field(default_factory=dict)
    previous: str = ""


def _linked(path: Path, pieces: Sequence[Bytes], previous: Path) -> list[Any] | None:
    """Hard-link a file to that of the previous checkpoint; its size and checksum, None if it has to be written."""
    try:
        size, checksum = read_manifest(previous).files[path.name]
        if size != sum(map(len, pieces)) or checksum != checksum_of(pieces):
            return None
        read_files(previous, {path.name: (size, checksum)}, lambda file: None)  # one that is damaged is written again
        os.link(previous / path.name, path, follow_symlinks=False)
    except (KeyError, OSError, CheckpointError):  # a file system without links, or the checkpoint is gone
        return None
    return [size, checksum]


def write_files(folder: Path, rank: int, state: StagedState, common: EqualParts, slim: Slim | None = None) -> Written:
    """Write and flush the files of one rank.

    Arguments:
        slim: how tensors are divided into files. Default: by resource, and no file is linked.

    Raises:
        OSError: the disk refuses, or the folder does not exist for this rank.
    """
    tensors: dict[str, dict[str, StagedTensor]] = {}
    contents: dict[str, Sequence[Bytes]] = {}
    for file, data in state.tensor_files.items():
        shardings, frozen = state.pieces.get(file, {}), slim.frozen.get(file) if slim is not None else None
        if common.tensors is None and not (shardings or frozen):
            contents[file + TENSOR_SUFFIX] = [data]  # as it is
            continue
        for name, tensor in state.tensors(file).items():
            if name in shardings:
                if rank < shardings[name].count:  # of others, it is the same
                    tensors.setdefault(file_of_pieces(rank), {})[f"{file}/{name}"] = tensor
            elif not common.has(file, name):
                tensors.setdefault(_OWN_TENSORS.format(rank), {})[f"{file}/{name}"] = tensor
            elif rank == 0:
                place = _frozen(file) if name in (frozen or ()) else file + TENSOR_SUFFIX
                tensors.setdefault(place, {})[name] = tensor
    contents |= {physical: file_of(named) for physical, named in tensors.items()}
    if common.parts is None:
        contents[STATE_FILE] = [state.packed]
    else:
        if rank == 0:
            contents[STATE_FILE] = [msgpack.packb(_parts(state, common.parts, are_common=True))]
        if own := _parts(state, common.parts, are_common=False):
            contents[_OWN_PARTS.format(rank)] = [msgpack.packb(own)]
    previous = folder.parent / slim.previous if slim is not None and slim.previous else None
    written: Written = {}
    for name, pieces in contents.items():
        linked = _linked(folder / name, pieces, previous) if previous and name.endswith(TENSOR_SUFFIX) else None
        written[name] = linked or write_file(folder / name, pieces)
    return written


def _parts(
    state: StagedState, common: Mapping[str, Collection[str]], *, are_common: bool
) -> dict[str, dict[str, bytes]]:
    """The packed parts that are the same on all ranks; or the others, of the sections that have any."""
    parts = {
        section: {name: part for name, part in parts.items() if (name in common.get(section, ())) is are_common}
        for section, parts in state.parts.items()
    }
    return {section: packed for section, packed in parts.items() if packed or are_common}


def manifest_of(
    facts: Manifest,
    state: StagedState,
    common: EqualParts,
    reports: Sequence[Mapping[str, Any]],
    slim: Slim | None = None,
) -> Manifest:
    """The manifest of a checkpoint whose files all ranks have written.

    Arguments:
        facts: those of rank 0, and those that are the same on all ranks.
        reports: of each rank, the `files` that it has written, the `digest` of its state, and its `own` facts; for
            sharded tensors a weight that is `not_finite`.
        slim: how tensors are divided into files.
    """
    elsewhere: dict[str, dict[str, str]] = {}
    for file, names in slim.frozen.items() if slim is not None else ():
        for name in sorted(state.tensors(file).keys() & names):
            if common.has(file, name) and name not in state.pieces.get(file, {}):
                elsewhere.setdefault(file, {})[name] = _frozen(file)
    files = {name: entry for report in reports for name, entry in report["files"].items()}
    digests = [report["digest"] for report in reports]
    if len(reports) > 1:
        own = [dict(report["own"]) for report in reports]
        facts = replace(facts, ranks=len(reports), digests=digests, own=own, differing=_differing(state, common))
    if state.pieces:
        named = [facts.not_finite, *(report.get("not_finite", "") for report in reports)]
        facts = replace(facts, sharded=True, not_finite=next(filter(None, named), ""))
    return replace(facts, digest=digest_of_ranks(digests), tensors=elsewhere, files=files)


def _differing(state: StagedState, common: EqualParts) -> str:
    """What is not the same on all ranks and that another number of them takes from rank 0, in words."""

    def own(file: str) -> set[str]:
        return {name for name in state.tensors(file).keys() - state.pieces.get(file, {}) if not common.has(file, name)}

    names = sorted(f"{file}.{name}" for file in state.parts.get("resources", ()) for name in own(file))
    has_drifted = own(DRIFT) or state.parts.get(DRIFT, {}).keys() - (common.parts or {}).get(DRIFT, ())
    taken = [quoted(names, 3)] * bool(names) + ["what has changed since `setup`"] * bool(has_drifted)
    return " and ".join(taken)


def digest_of_ranks(digests: Sequence[str]) -> str:
    """The digest of a run, of those of all its ranks."""
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()


def _frozen(file: str) -> str:
    """The file of the tensors of another one that are not trained."""
    return f"{file}.frozen{TENSOR_SUFFIX}"


def write_file(path: Path, pieces: Sequence[Bytes]) -> list[Any]:
    """Write and flush a file; returns its size, and its checksum, which is computed in parallel."""

    hashing = Background(partial(checksum_of, pieces))
    # Unbuffered: the lock of a buffer would stay locked in a process that is forked meanwhile.
    with path.open("xb", buffering=0) as file:
        size = write_pieces(file, pieces)
        os.fsync(file.fileno())
    return [size, hashing.result()]


# ---- reading


def read_state(
    path: Path,
    manifest: Manifest,
    ranks: Sequence[int],
    copied: Collection[str] | None = (),
    share: tuple[int, int] = (0, 1),
) -> dict[int, dict[str, dict[str, Any]]]:
    """Read the state of some ranks of a checkpoint: rank -> section -> name -> state.

    Arguments:
        ranks: the state of the first is read completely; of the others, only the sections in `OF_RANKS`.
        copied: as for `read_checkpoint`; None for all that has tensors.
        share: this reader, and how many there are, of which each verifies the checksums of some files.

    Raises:
        CheckpointError: a file is missing, torn or altered, or does not hold the state of these ranks.
    """
    listed, places, (number, count) = manifest.files, manifest.tensors, share
    named = [name.format(rank) for rank in ranks for name in (_OWN_TENSORS, _OWN_PARTS)] + [file_of_pieces(0)]
    wanted = {name for name in listed if name in named or not _OF_A_RANK.fullmatch(name)}
    if missing := sorted({STATE_FILE, *(place for each in places.values() for place in each.values())} - wanted):
        raise CheckpointError(f"{path}: the manifest lists no file `{missing[0]}`")
    in_place = {place for file in copied or () for place in (file + TENSOR_SUFFIX, *places.get(file, {}).values())}

    def read(file: Path) -> Any:
        if file.name not in wanted:
            return None
        if file.name == file_of_pieces(0):
            return {name: tensor.new_empty(0) for name, tensor in read_tensors(file, in_place=True).items()}
        if file.suffix != TENSOR_SUFFIX:
            return file.read_bytes()
        return read_tensors(file, in_place=copied is None or file.name in in_place)

    verified = sorted(listed)[number::count]
    entries = {name: (listed[name][0], listed[name][1] * (name in verified)) for name in {*wanted, *verified}}
    files = {name: content for name, content in read_files(path, entries, read).items() if name in wanted}
    return {rank: _joined(path, places, files, rank, None if rank == ranks[0] else OF_RANKS) for rank in ranks}


def _joined(
    path: Path,
    places: Mapping[str, Mapping[str, str]],
    files: Mapping[str, Any],
    rank: int,
    sections: Collection[str] | None,
) -> dict[str, dict[str, Any]]:
    """The state of a rank, in some sections or all, from the tensors or the bytes of files, by their names."""
    elsewhere = {place for listed in places.values() for place in listed.values()}
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    for physical, file in files.items():
        if physical.endswith(TENSOR_SUFFIX) and not (physical in elsewhere or _OF_A_RANK.fullmatch(physical)):
            tensors[physical.removesuffix(TENSOR_SUFFIX)] = dict(file)
    for name, listed in places.items():
        found = {each: files[physical][each] for each, physical in listed.items() if each in files[physical]}
        tensors.setdefault(name, {}).update(found)
    for physical in (_OWN_TENSORS.format(rank), file_of_pieces(0)):
        for key, tensor in files.get(physical, {}).items():
            name, _, inner = key.partition("/")
            tensors.setdefault(name, {})[inner] = tensor
    tensors = {name: named for name, named in tensors.items() if sections is None or name in sections}
    try:
        common = msgpack.unpackb(files[STATE_FILE])
        own = msgpack.unpackb(files.get(_OWN_PARTS.format(rank), msgpack.packb({})))
        # Sections are in the order of the format, names in the order of `split`.
        parts = {
            section: dict(sorted({**common.get(section, {}), **own.get(section, {})}.items()))
            for section in dict.fromkeys([*common, *own])
            if sections is None or section in sections
        }
        return joined(parts, tensors)
    except (msgpack.UnpackException, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{path}: {STATE_FILE}: {error or type(error).__name__}") from None
