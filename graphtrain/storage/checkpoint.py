"""Write and read one checkpoint: a folder that appears atomically, and is verified by checksums when it is read."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import msgpack

from graphtrain.errors import CheckpointError, GraphtrainError
from graphtrain.storage.files import temporary_name, uncollected
from graphtrain.storage.manifest import FORMAT, MANIFEST_FILE, Manifest, read_manifest
from graphtrain.storage.rank_files import read_state, write_file
from graphtrain.storage.state_files import Sections


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and verified.

    Attributes:
        manifest: its metadata: position, digest, graph, versions, ...
        sections: section -> name -> state. A tensor that is sharded over ranks is a `Piece`, without values.
        rank: the rank whose state this is.
        rank_states: rank -> state of the ranks from which this one takes running means and values in transit. Empty
            unless the number of ranks has changed.
    """

    path: Path
    manifest: Manifest
    sections: Sections
    rank: int = 0
    rank_states: Mapping[int, Sections] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """The digest of the saved state of this rank."""
        return (self.manifest.digests or [self.manifest.digest])[self.rank]


@contextmanager
def new_folder(path: Path, abandoned: Event) -> Iterator[Path]:
    """A context with a temporary folder, which becomes a checkpoint at its end: flushed to the disk, then renamed.

    Arguments:
        abandoned: if it is set by then, the folder is removed instead.

    Raises:
        CheckpointError: writing fails, or the checkpoint was abandoned. The folder is removed, unless only the last
            step, the flush of its parent, fails.
    """
    temporary = temporary_name(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if abandoned.is_set():
            raise CheckpointError("the checkpoint was abandoned")
        flush_folder(temporary)
        temporary.rename(path)
        flush_folder(path.parent)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError | MemoryError | RuntimeError) and not isinstance(error, GraphtrainError):
            raise CheckpointError(f"cannot write the checkpoint {path}: {reason_of(error)}") from error
        raise


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of a new checkpoint, after all its other files."""
    body = msgpack.packb({"format": FORMAT, **vars(manifest)}, use_bin_type=True, unicode_errors="backslashreplace")
    write_file(folder / MANIFEST_FILE, [msgpack.packb({"sha256": hashlib.sha256(body).hexdigest(), "manifest": body})])


def reason_of(error: BaseException) -> str:
    """The reason why writing failed, as text."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@uncollected()
def read_checkpoint(
    path: Path,
    manifest: Manifest | None = None,
    rank: int = 0,
    world_size: int | None = None,
    *,
    together: bool = False,
) -> Checkpoint:
    """Read and verify a checkpoint, or the part of it that one of several ranks needs.

    Arguments:
        manifest: its manifest, if already read. Default: it is read.
        rank: the rank whose state is read; that of rank 0 if the checkpoint has no such rank. Default: 0.
        world_size: the number of ranks that resume from it. Default: the number that wrote it.
        together: True if all ranks read it at once and exchange the outcome: each then verifies the checksums of some
            of the files. Default: this process verifies all.

    Raises:
        CheckpointError: a file is missing, truncated or altered.
    """
    manifest = read_manifest(path) if manifest is None else manifest
    saved = manifest.ranks
    if world_size in (None, saved):
        ranks = [rank if rank < saved else 0]
    elif rank == 0:  # it gets the sums over all ranks
        ranks = [*range(saved)]
    else:
        ranks = sorted({0, min(rank, saved - 1)})
    states = read_state(path, manifest, ranks, (rank, world_size) if together and world_size else (0, 1))
    first = ranks[0]
    if manifest.rank_facts:
        manifest = replace(manifest, **manifest.rank_facts[first])
    rank_states = states if world_size not in (None, saved) else {}
    return Checkpoint(path, manifest, states[first], rank=first, rank_states=rank_states)


def flush_folder(path: Path) -> None:
    """Flush the entries of a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
