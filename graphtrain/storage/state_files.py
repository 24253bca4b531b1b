"""The state in a checkpoint, split over its files: one safetensors file per resource, one msgpack file for the rest.

Equal digests mean bitwise equal states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from threading import Event
from types import MappingProxyType
from typing import Any, final

import msgpack
import torch

from graphtrain.printable import one_line
from graphtrain.storage.background import uncollected
from graphtrain.storage.decoding import Decoder
from graphtrain.storage.encoding import Memo, Tensors, pack
from graphtrain.storage.tensor_files import (
    TENSOR_SUFFIX,
    KnownChecksum,
    StagingBuffers,
    checksums,
    nothing_known,
    stage,
    staged_tensors,
)

PROGRESS_FILE = "progress.msgpack"
_MOST_CHARACTERS = 400

# Section -> name -> state.
Sections = Mapping[str, Mapping[str, Any]]
Bytes = bytes | memoryview


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

    def digest(self, known: KnownChecksum = nothing_known) -> str:
        """SHA-256 (hexadecimal) of everything in it; `known` as for `checksums`."""
        return _combined(self.packed, checksums(self.files, known))

    def with_section(self, name: str, parts: Mapping[str, Any]) -> StateFiles:
        """The same with another section in the place of one, which is not `resources`."""
        other = split({name: parts})
        tensors = {file: kept for file, kept in self.tensors.items() if file != name}
        return StateFiles({**self.sections, **other.sections}, {**tensors, **other.tensors})


@uncollected()
def split(sections: Sections) -> StateFiles:
    """Take a state apart.

    The parts of the section `resources` have a file each, under their own names; every other section has one.

    Raises:
        UnsaveableError: something cannot be encoded; its path is named.
    """
    packed: dict[str, Mapping[str, bytes]] = {}
    files: dict[str, Tensors] = {}
    # A `state_dict` can be loaded without the others, so each shares objects with itself alone.
    shared = Memo()
    for section, parts in sections.items():
        packed_parts: dict[str, bytes] = {}
        for name, value in sorted(parts.items()):  # not in the order in which a graph or a `setup` happens to have them
            file = name if section == "resources" and name not in sections else section
            tensors = files.setdefault(file, Tensors(file))
            memo = Memo() if section == "resources" else shared
            memo.begin(f"{section}/{name}")
            if section == "resources":
                packed_parts[name] = pack(value, name, tensors, memo)
            else:
                packed_parts[name] = pack({name: value}, section, tensors, memo, with_gradients=True)
        packed[section] = packed_parts
    return StateFiles(packed, files)


def joined(
    packed: Mapping[str, Mapping[str, bytes]], files: Mapping[str, Mapping[str, torch.Tensor]]
) -> dict[str, dict[str, Any]]:
    """The state whose parts are packed: section -> name -> bytes.

    Raises:
        ValueError: the bytes are no such state.
    """
    decoder = Decoder(files)

    def value_of(section: str, name: str, part: bytes) -> Any:
        try:
            value = decoder.unpack(part, f"{section}/{name}")
            return value if section == "resources" else value[name]
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(one_line(f"{section}/{name}: {error}", _MOST_CHARACTERS)) from error

    try:
        return {
            section: {name: value_of(section, name, part) for name, part in parts.items()}
            for section, parts in packed.items()
        }
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not the state of a checkpoint ({type(error).__name__})") from error


def state_digest(sections: Sections, known: KnownChecksum = nothing_known) -> str:
    """SHA-256 (hexadecimal) of everything in a state; `known` as for `checksums`."""
    return split(sections).digest(known)


def _combined(packed: bytes, sums: Mapping[str, str]) -> str:
    """One digest of what is packed and of the checksums of the files of tensors."""
    digest = hashlib.sha256(packed)
    for name in sorted(sums):
        digest.update(f"{name}:{sums[name]}\n".encode())
    return digest.hexdigest()


@final
class StagedState:
    """The bytes of every file but the manifest; what the run does from now on is not in them.

    Arguments:
        sections: the state.
        essential: of the sections that the digest does not cover as they are: what it covers.
        buffers: the memory that the tensors are copied to; nothing else may be staged in it before this is written.
        weights: file -> the names of tensors in it that are weights. Default: none are known.

    Raises:
        UnsaveableError: something cannot be encoded; its path is named.

    Attributes:
        files: name -> bytes.
        given_up: once it is set, this does not become a checkpoint.
        packed: what the digest covers beside the tensors.
    """

    def __init__(
        self,
        sections: Sections,
        essential: Mapping[str, Mapping[str, Any]],
        buffers: StagingBuffers,
        weights: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> None:
        self._weights = weights
        saved = covered = split(sections)
        for name, part in essential.items():
            covered = covered.with_section(name, part)
        self.files: Mapping[str, Bytes] = {PROGRESS_FILE: saved.packed, **stage(saved.files, buffers)}
        self.given_up = Event()
        # The bytes of most files are read once, for checksum and digest alike. The rest is small, and the run will
        # change it, so it is read now.
        only_covered = [tensors for name, tensors in covered.tensors.items() if tensors is not saved.tensors.get(name)]
        self.packed = covered.packed
        self._sums = checksums([tensors for tensors in only_covered if tensors.named])
        self._shared = {tensors.file for tensors in covered.files} - {tensors.file for tensors in only_covered}

    def weight_that_is_not_finite(self) -> str:
        """The path of the first weight that has an infinite value, or one that is no number; empty if none has."""
        for file, names in self._weights.items():
            data = self.files.get(file + TENSOR_SUFFIX)
            for name, tensor in staged_tensors(data).items() if isinstance(data, memoryview) else ():
                if name in names and not tensor.is_finite():
                    return f"{file}.{name}"
        return ""

    def digest(self, sums: Mapping[str, str]) -> str:
        """SHA-256 (hexadecimal) of what is essential, given the checksum of every file."""
        shared = {name: checksum for name, checksum in sums.items() if name.rpartition(".")[0] in self._shared}
        return _combined(self.packed, {**shared, **self._sums})
