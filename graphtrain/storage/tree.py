"""The tree of a checkpoint, split over its files: one safetensors file per resource, one msgpack file for the rest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgpack
import torch

from graphtrain.storage.plain import Tensors, pack, unpack

PROGRESS_FILE = "progress.msgpack"


def split(tree: Mapping[str, Mapping[str, Any]]) -> tuple[bytes, list[Tensors]]:
    """The msgpack bytes of a tree of sections, and the tensors of each file.

    The parts of the section `resources` have a file each, under their own names; every other section has one.
    """
    packed: dict[str, dict[str, bytes]] = {}
    files: dict[str, Tensors] = {}
    for section, parts in tree.items():
        packed[section] = {}
        for name, value in parts.items():
            file = name if section == "resources" and name not in tree else section
            tensors = files.setdefault(file, Tensors(file))
            packed[section][name] = _pack_part(value, section, name, tensors)
    return msgpack.packb(packed), [one for one in files.values() if one.named]


def _pack_part(value: Any, section: str, name: str, tensors: Tensors) -> bytes:
    if section == "resources":
        return pack(value, name, tensors)
    return pack({name: value}, section, tensors)


def join(data: bytes, files: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, dict[str, Any]]:
    """The tree that `split` took apart.

    Raises:
        ValueError: the bytes are no such tree.
    """
    try:
        packed = msgpack.unpackb(data)
        return {
            section: {
                name: unpack(part, files) if section == "resources" else unpack(part, files)[name]
                for name, part in parts.items()
            }
            for section, parts in packed.items()
        }
    except (msgpack.UnpackException, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a checkpoint's tree: {error!r}") from error


def tree_digest(tree: Mapping[str, Mapping[str, Any]]) -> str:
    """SHA-256 (hexadecimal) of everything in a tree: equal digests mean bitwise equal state."""
    data, files = split(tree)
    digest = hashlib.sha256(data)
    for tensors in files:
        for name, tensor in tensors.named.items():
            digest.update(f"{tensors.file}/{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
            digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor's values, in order."""
    host = tensor.detach().cpu().contiguous().reshape(-1)
    return host.view(torch.uint8).numpy().data
