"""One checkpoint: a folder that is written whole or not at all, and read only if every byte is as it was written."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import safetensors
import safetensors.torch

from graphtrain.errors import CheckpointError
from graphtrain.storage.manifest import checked
from graphtrain.storage.regular import NotAsAgreedError, read_regular
from graphtrain.storage.tree import PROGRESS_FILE, join, split

FORMAT = 1
MANIFEST_FILE = "manifest.msgpack"
_TENSOR_SUFFIX = ".safetensors"
_MOST_BYTES_OF_A_MANIFEST = 64 << 20


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found sound.

    Attributes:
        manifest: what is known of it without loading tensors: position, digest, graph, versions, ...
        tree: section -> name -> state.
    """

    path: Path
    manifest: Mapping[str, Any]
    tree: Mapping[str, Mapping[str, Any]]


def write_checkpoint(path: Path, tree: Mapping[str, Mapping[str, Any]], manifest: Mapping[str, Any]) -> None:
    """Write a checkpoint folder: under a temporary name, flushed to the disk, then renamed.

    Raises:
        CheckpointError: something cannot be saved, or the disk refuses; no trace is left.
    """
    packed, files = split(tree)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        written = {PROGRESS_FILE: _write(temporary / PROGRESS_FILE, packed)}
        for tensors in files:
            name = tensors.file + _TENSOR_SUFFIX
            # Tied parameters share memory, which the format refuses: every tensor is written in full.
            data = safetensors.torch.save(
                {key: one.detach().cpu().contiguous().clone() for key, one in tensors.named.items()}
            )
            written[name] = _write(temporary / name, data)
        whole = {"format": FORMAT, **manifest, "files": written}
        body = msgpack.packb(whole, use_bin_type=True, unicode_errors="backslashreplace")
        _write(temporary / MANIFEST_FILE, msgpack.packb({"sha256": hashlib.sha256(body).hexdigest(), "manifest": body}))
        _flush_folder(temporary)
        temporary.rename(path)
        _flush_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(temporary)
        raise CheckpointError(f"cannot write the checkpoint {path}: {error.strerror or error}") from error
    except CheckpointError:
        with contextlib.suppress(OSError):
            shutil.rmtree(temporary)
        raise


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint folder, each field of its type; what an earlier version did not write is empty.

    Raises:
        CheckpointError: it is missing, torn, altered, or of a later format.
    """
    try:
        outer = msgpack.unpackb(read_regular(path / MANIFEST_FILE, _MOST_BYTES_OF_A_MANIFEST, links=False))
        body = outer["manifest"]
        if hashlib.sha256(body).hexdigest() != outer["sha256"]:
            raise CheckpointError(f"{path}: the manifest is not as it was written")
        manifest = msgpack.unpackb(body)
        version = manifest["format"]
    except OSError as error:
        raise CheckpointError(f"{path}: the manifest cannot be read ({error.strerror})") from None
    except (msgpack.UnpackException, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: the manifest is torn or foreign ({type(error).__name__})") from None
    if version != FORMAT:
        raise CheckpointError(
            f"{path}: format {_shown(version)} is not known to this version", "use a later graphtrain"
        )
    try:
        return checked(manifest)
    except ValueError as error:
        raise CheckpointError(f"{path}: the manifest is torn or foreign ({error})") from None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint folder whole.

    Raises:
        CheckpointError: any file is missing, torn or altered.
    """
    manifest = read_manifest(path)
    tensors: dict[str, dict[str, Any]] = {}
    packed = b""
    for name, (size, checksum) in manifest["files"].items():
        try:
            data = read_regular(path / name, size, exactly=True, links=False)
        except OSError as error:
            raise CheckpointError(f"{path}: {name} cannot be read ({error.strerror})") from None
        except NotAsAgreedError as error:
            raise CheckpointError(f"{path}: {name} {error}") from None
        if hashlib.sha256(data).hexdigest() != checksum:
            raise CheckpointError(f"{path}: {name} is not as it was written")
        if name == PROGRESS_FILE:
            packed = data
        else:
            tensors[name.removesuffix(_TENSOR_SUFFIX)] = _tensors(path, name, data)
    try:
        tree = join(packed, tensors)
    except (ValueError, OverflowError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    return Checkpoint(path, manifest, tree)


def _tensors(path: Path, name: str, data: bytes) -> dict[str, Any]:
    try:
        return safetensors.torch.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{path}: {name} is no file of tensors ({type(error).__name__})") from None


def _shown(version: Any) -> str:
    return str(version) if isinstance(version, int) else f"of type {type(version).__name__}"


def _write(path: Path, data: bytes) -> list[Any]:
    """Write and flush a file; its size and checksum."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return [len(data), hashlib.sha256(data).hexdigest()]


def _flush_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
