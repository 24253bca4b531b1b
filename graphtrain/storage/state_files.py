"""The state in a checkpoint, split over its files: one safetensors file per resource, one msgpack file for the rest.

Equal digests mean bitwise equal states, on whatever devices they are.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from threading import Event
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import msgpack
import torch

from graphtrain.printable import one_line
from graphtrain.storage.background import uncollected
from graphtrain.storage.decoding import Decoder
from graphtrain.storage.encoding import Tensors, pack
from graphtrain.storage.regular import checksum_of
from graphtrain.storage.tensor_files import (
    TENSOR_SUFFIX,
    StagedTensor,
    StagingBuffers,
    checksums,
    stage,
    staged_tensors,
)

if TYPE_CHECKING:
    from graphtrain.storage.pieces import Sharding

PROGRESS_FILE = "progress.msgpack"
_MOST_CHARACTERS = 400

# Section -> name -> state.
Sections = Mapping[str, Mapping[str, Any]]
Bytes = bytes | memoryview


@dataclass(frozen=True)
class StateFiles:
    """A state, split into packed sections and tensors.

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
        """The tensor files that are not empty."""
        return [tensors for tensors in self.tensors.values() if tensors.named]

    @property
    def digest(self) -> str:
        """A digest of everything in it: SHA-256 (hexadecimal) of the sections and the checksums of the tensor files."""
        return _combined(self.packed, checksums(self.files))

    def with_sections(self, others: Sections, device: str | None = None) -> StateFiles:
        """The same with some sections replaced, which must not include `resources`; `device` as for `split`."""
        other = split(others, device)
        tensors = {file: kept for file, kept in self.tensors.items() if file not in others}
        return StateFiles({**self.sections, **other.sections}, {**tensors, **other.tensors})


@uncollected()
def split(sections: Sections, device: str | None = None) -> StateFiles:
    """Split a state into files.

    Each part of the section `resources` has its own file, under its name; every other section has one file.

    Arguments:
        device: written as that of all tensors, as for a digest: where they are does not matter. Default: that of each.

    Raises:
        UnsaveableError: something cannot be encoded; its path is named.
    """
    packed: dict[str, Mapping[str, bytes]] = {}
    files: dict[str, Tensors] = {}
    for section, parts in sections.items():
        packed_parts: dict[str, bytes] = {}
        for name, value in sorted(parts.items()):  # independent of their order in a graph or a `setup`
            file = name if section == "resources" and name not in sections else section
            tensors = files.setdefault(file, Tensors(file, device=device))
            if section == "resources":
                packed_parts[name] = pack(value, name, tensors)
            else:
                packed_parts[name] = pack({name: value}, section, tensors, with_gradients=True)
        packed[section] = packed_parts
    return StateFiles(packed, files)


def joined(
    packed: Mapping[str, Mapping[str, bytes]], files: Mapping[str, Mapping[str, torch.Tensor]]
) -> dict[str, dict[str, Any]]:
    """Decode a state from its packed parts: section -> name -> bytes.

    Raises:
        ValueError: the bytes are not a state.
    """
    decoder = Decoder(files)

    def value_of(section: str, name: str, part: bytes) -> Any:
        try:
            value = decoder.unpack(part)
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


def state_digest(sections: Sections) -> str:
    """The digest of everything in a state."""
    return split(sections, "cpu").digest


def _combined(packed: bytes, sums: Mapping[str, str]) -> str:
    """One digest of the packed bytes and the checksums of the tensor files."""
    digest = hashlib.sha256(packed)
    for name in sorted(sums):
        digest.update(f"{name}:{sums[name]}\n".encode())
    return digest.hexdigest()


@dataclass(frozen=True)
class Digests:
    """The digests of the state of a rank, by which ranks find out what they have in common.

    Attributes:
        digest: of the state, as `StagedState.digest` returns it.
        tensors: file -> name -> digest of the tensor.
        parts: section -> name -> digest of the packed bytes.
        progress: node path -> field that a continuation depends on -> digest.
    """

    digest: str
    tensors: Mapping[str, Mapping[str, str]]
    parts: Mapping[str, Mapping[str, str]]
    progress: Mapping[str, Mapping[str, str]]

    def as_plain(self) -> dict[str, Any]:
        return asdict(self)


@final
class StagedState:
    """The state of one rank as the bytes of files: a copy, which the run does not change any more.

    Arguments:
        sections: the state.
        essential: what the digest covers in place of some sections.
        buffers: the memory that the tensors are copied to; nothing else may be staged in it before this is written.
        weights: file -> the names of tensors in it that are weights. Default: none are known.

    Raises:
        UnsaveableError: something cannot be encoded; its path is named.

    Attributes:
        progress: the content of `progress.msgpack`, everything but tensors.
        tensor_files: file -> its content.
        pieces: file -> the shardings of the tensors in it that are sharded over ranks, by name.
        given_up: once it is set, this does not become a checkpoint.
    """

    def __init__(
        self,
        sections: Sections,
        essential: Mapping[str, Mapping[str, Any]],
        buffers: StagingBuffers,
        weights: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> None:
        self._weights = weights
        saved = split(sections)
        covered = saved.with_sections(essential)
        if False in {tensor.is_cpu for tensors in saved.files for tensor in tensors.named.values()}:
            anywhere = split(sections, "cpu").with_sections(essential, "cpu")
            covered = replace(covered, sections=anywhere.sections)
        self.progress = saved.packed
        self.tensor_files: Mapping[str, memoryview] = stage(saved.files, buffers)
        self.pieces: dict[str, dict[str, Sharding]] = {}
        for tensors in saved.files:
            if tensors.pieces:
                self.pieces[tensors.file] = tensors.pieces
        self.given_up = Event()
        # Most files are hashed once, for checksum and digest alike. The rest is small, and the run will change it, so
        # it is hashed now.
        only_covered = [tensors for name, tensors in covered.tensors.items() if tensors is not saved.tensors.get(name)]
        self._packed = covered.packed
        self._sums = checksums([tensors for tensors in only_covered if tensors.named])
        self._shared = {tensors.file for tensors in covered.files} - {tensors.file for tensors in only_covered}

    @functools.cached_property
    def weight_that_is_not_finite(self) -> str:
        """The path of the first weight with an infinite or NaN value; empty if there is none."""
        for file, names in self._weights.items():
            for name, tensor in self.tensors(file).items():
                if name in names and not tensor.is_finite():
                    return f"{file}.{name}"
        return ""

    @functools.cached_property
    def parts(self) -> Mapping[str, Mapping[str, bytes]]:
        """Section -> name -> msgpack bytes."""
        parts: Mapping[str, Mapping[str, bytes]] = msgpack.unpackb(self.progress)
        return parts

    @functools.cached_property
    def summary(self) -> Digests:
        """The digests that this rank sends to the others, computed once: all tensors are hashed in this thread."""
        sums = {file: checksum_of([data]) for file, data in self.tensor_files.items()}
        return Digests(
            self._digest(sums),
            {file: {name: tensor.digest() for name, tensor in self.tensors(file).items()} for file in sums},
            {
                section: {name: checksum_of([part]) for name, part in parts.items()}
                for section, parts in self.parts.items()
            },
            {
                path: {name: checksum_of([msgpack.packb(value)]) for name, value in _fields(part, path).items()}
                for path, part in msgpack.unpackb(self._packed).get("progress", {}).items()
            },
        )

    def digest(self, written: Mapping[str, Sequence[Any]]) -> str:
        """The digest of what is essential.

        Arguments:
            written: file name -> size and checksum; files that were written whole are not hashed again.
        """
        entries = {file: written.get(file + TENSOR_SUFFIX, (None, "")) for file in self.tensor_files}
        if all(size == len(self.tensor_files[file]) for file, (size, _) in entries.items()):
            return self._digest({file: checksum for file, (_, checksum) in entries.items()})
        return self.summary.digest

    def _digest(self, sums: Mapping[str, str]) -> str:
        """The digest of what is essential, given the checksum of every tensor file."""
        shared = {file + TENSOR_SUFFIX: checksum for file, checksum in sums.items() if file in self._shared}
        return _combined(self._packed, {**shared, **self._sums})

    def tensors(self, file: str) -> dict[str, StagedTensor]:
        """The tensors of a file, by name; empty if this rank does not have the file."""
        return staged_tensors(self.tensor_files[file]) if file in self.tensor_files else {}


def _fields(packed: bytes, path: str) -> Mapping[str, Any]:
    """The fields of a node, still encoded."""
    fields = msgpack.unpackb(packed, strict_map_key=False)[path]
    return fields if isinstance(fields, dict) else {"": fields}
