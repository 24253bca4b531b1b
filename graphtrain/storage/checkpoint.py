"""One checkpoint: a folder that is written whole or not at all, and read only if every byte is as it was written."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from graphtrain.errors import CheckpointError
from graphtrain.names import quoted
from graphtrain.storage.background import Background
from graphtrain.storage.collector import uncollected
from graphtrain.storage.encoding import Tensors
from graphtrain.storage.manifest import FORMAT, MANIFEST_FILE, read_files
from graphtrain.storage.manifest import read_manifest as read_manifest
from graphtrain.storage.own_files import temporary_name
from graphtrain.storage.regular import HashedReader
from graphtrain.storage.state_files import PROGRESS_FILE, Bytes, Sections, StagedState, join
from graphtrain.storage.tensor_files import TENSOR_SUFFIX, Layout, TensorFile, read_tensors

_PIECE = 1 << 20  # written at once; pieces of 4 MB took 1.1 to 5 times as long

_NUMBERS = itertools.count(1)

Manifest = Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found sound.

    Attributes:
        manifest: what is known of it without loading tensors: position, digest, graph, versions, ...
        sections: the state: section -> name -> state.
        files: the bytes of its files, of one that is in memory; None where they are on the disk.
        tensor_files: of one on the disk, by name.
    """

    path: Path
    manifest: Manifest
    sections: Sections
    files: Mapping[str, Bytes] | None = None
    tensor_files: Mapping[str, TensorFile] = field(default_factory=dict)

    def checksum_of(self, name: str, tensors: Tensors) -> str | None:
        """The checksum of a file of tensors, if it holds these; None otherwise.

        The file is compared with them, which takes a tenth of the time that hashing does.
        """
        size, checksum = self.manifest["files"].get(name, (None, None))
        layout = self.tensor_files[name].layout_of(tensors) if name in self.tensor_files else Layout.of(tensors)
        if layout is None or size != layout.size:
            return None
        is_same = layout.is_in(self.path / name) if self.files is None else layout.is_equal(self.files[name])
        return checksum if is_same else None


def write_checkpoint(path: Path, state: StagedState, facts: Manifest) -> Manifest:
    """Write a checkpoint folder: under a temporary name, flushed to the disk, then renamed.

    Arguments:
        facts: what the manifest holds beside digest and checksums.

    Returns:
        The manifest.

    Raises:
        CheckpointError: the disk refuses, or the checkpoint was given up. No trace is left, unless it is the flush of
            the name alone that is refused.
    """
    # A number too: one that was given up may still be under way.
    temporary = temporary_name(path, next(_NUMBERS))
    try:
        temporary.mkdir(parents=True)
        # Beside the writing: one after the other took 1.7 times as long, for 500 MB.
        sums = Background(lambda: {name: hashlib.sha256(data).hexdigest() for name, data in state.files.items()})
        for name, data in state.files.items():
            _write(temporary / name, data)
        checksums = sums.result()
        if state.given_up.is_set():
            raise CheckpointError("the checkpoint was given up")
        written = {name: [len(data), checksums[name]] for name, data in state.files.items()}
        manifest = {"format": FORMAT, **facts, "digest": state.digest(checksums), "files": written}
        body = msgpack.packb(manifest, use_bin_type=True, unicode_errors="backslashreplace")
        _write(temporary / MANIFEST_FILE, msgpack.packb({"sha256": hashlib.sha256(body).hexdigest(), "manifest": body}))
        flush_folder(temporary)
        temporary.rename(path)
        flush_folder(path.parent)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError | MemoryError | RuntimeError) and not isinstance(error, CheckpointError):
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise CheckpointError(f"cannot write the checkpoint {path}: {reason}") from error
        raise
    return manifest


@uncollected()
def read_checkpoint(path: Path, manifest: Manifest | None = None) -> Checkpoint:
    """Read a whole checkpoint folder.

    Arguments:
        manifest: its own, if it has been read. Default: it is read.

    Raises:
        CheckpointError: any file is missing, torn or altered.
    """
    manifest = read_manifest(path) if manifest is None else manifest
    files = read_files(path, manifest, _read)
    packed = files.pop(PROGRESS_FILE, b"")
    tensors = {name.removesuffix(TENSOR_SUFFIX): file.named for name, file in files.items()}
    try:
        sections = join(packed, tensors)
    except MemoryError as error:
        raise CheckpointError(f"{path}: {PROGRESS_FILE} is too large for the memory") from OSError(str(error))
    except ValueError as error:
        raise CheckpointError(f"{path}: {PROGRESS_FILE}: {error}") from None
    if strange := [name for name, nodes in sections.get("progress", {}).items() if not isinstance(nodes, dict)]:
        raise CheckpointError(f"{path}: {PROGRESS_FILE}: the progress of {quoted(strange)} is no table")
    return Checkpoint(path, manifest, sections, tensor_files=files)


def _read(name: str, file: HashedReader) -> Any:
    """The content of one file: bytes, or tensors by name."""
    return file.read(file.size) if name == PROGRESS_FILE else read_tensors(file)


def _write(path: Path, data: Bytes) -> None:
    """Write and flush a file."""
    # Without a buffer: no lock is held that a process forked meanwhile would find closed.
    with path.open("xb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view[:_PIECE]) :]
        os.fsync(file.fileno())


def flush_folder(path: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
