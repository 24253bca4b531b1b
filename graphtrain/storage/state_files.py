"""The state in a checkpoint, split over its files: one safetensors file per resource, one msgpack file for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import torch

from graphtrain.storage.digest import combined
from graphtrain.storage.encoding import Tensors, pack, unpack
from graphtrain.storage.tensor_files import checksums

PROGRESS_FILE = "progress.msgpack"

# Section -> name -> state.
Sections = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class StateFiles:
    """A state that is taken apart.

    Attributes:
        sections: section -> name -> msgpack bytes, in which tensors are referred to by file and name.
        tensors: file -> tensors; those of the run, not copies.
    """

    sections: Mapping[str, Mapping[str, bytes]]
    tensors: Mapping[str, Tensors]

    @property
    def packed(self) -> bytes:
        """Everything but the tensors, as the content of one file."""
        packed: bytes = msgpack.packb(self.sections)
        return packed

    @property
    def files(self) -> list[Tensors]:
        """The files of tensors that hold any."""
        return [tensors for tensors in self.tensors.values() if tensors.named]

    def digest(self) -> str:
        """A hash of everything in it (SHA-256, hexadecimal)."""
        return combined(self.packed, checksums(self.files))

    def with_section(self, name: str, parts: Mapping[str, Any]) -> StateFiles:
        """The same with another section in the place of one, which is not `resources`."""
        other = split({name: parts})
        tensors = {file: kept for file, kept in self.tensors.items() if file != name}
        return StateFiles({**self.sections, **other.sections}, {**tensors, **other.tensors})


def split(sections: Sections) -> StateFiles:
    """Take a state apart.

    The parts of the section `resources` have a file each, under their own names; every other section has one.

    Raises:
        UnsaveableError: something cannot be encoded; its path is named.
    """
    packed: dict[str, Mapping[str, bytes]] = {}
    files: dict[str, Tensors] = {}
    for section, parts in sections.items():
        packed_parts: dict[str, bytes] = {}
        for name, value in sorted(parts.items()):  # not in the order in which a graph or a `setup` happens to have them
            file = name if section == "resources" and name not in sections else section
            tensors = files.setdefault(file, Tensors(file))
            packed_parts[name] = _pack_part(value, section, name, tensors)
        packed[section] = packed_parts
    return StateFiles(packed, files)


def _pack_part(value: Any, section: str, name: str, tensors: Tensors) -> bytes:
    if section == "resources":
        return pack(value, name, tensors)
    return pack({name: value}, section, tensors)


def join(data: bytes, files: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, dict[str, Any]]:
    """The state that `split` took apart.

    Raises:
        ValueError: the bytes are no such state.
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
        raise ValueError(f"not the state of a checkpoint: {error!r}") from error


def state_digest(sections: Sections) -> str:
    """SHA-256 (hexadecimal) of everything in a state: equal digests mean bitwise equal state."""
    return split(sections).digest()
