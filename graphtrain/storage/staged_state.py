"""A state as the files of a checkpoint, copied at once, with the digest of what the continuation depends on."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Event
from typing import Any, final

from graphtrain.storage.digest import combined
from graphtrain.storage.state_files import PROGRESS_FILE, Sections, split
from graphtrain.storage.tensor_files import StagingBuffers, checksums, stage

Bytes = bytes | memoryview


@final
class StagedState:
    """The bytes of every file but the manifest; what the run does from now on is not in them.

    Arguments:
        sections: the state.
        essential: of the sections that the digest does not cover as they are: what it covers.
        buffers: the memory that the tensors are copied to; nothing else may be staged in it before this is written.

    Raises:
        UnsaveableError: something cannot be encoded; its path is named.

    Attributes:
        files: name -> bytes.
        given_up: once it is set, this does not become a checkpoint.
    """

    def __init__(self, sections: Sections, essential: Mapping[str, Mapping[str, Any]], buffers: StagingBuffers) -> None:
        saved = covered = split(sections)
        for name, part in essential.items():
            covered = covered.with_section(name, part)
        self.files: Mapping[str, Bytes] = {PROGRESS_FILE: saved.packed, **stage(saved.files, buffers)}
        self.given_up = Event()
        # The bytes of most files are read once, for checksum and digest alike. The rest is small, and the run will
        # change it, so it is read now.
        only_covered = [tensors for name, tensors in covered.tensors.items() if tensors is not saved.tensors.get(name)]
        self._packed = covered.packed
        self._sums = checksums([tensors for tensors in only_covered if tensors.named])
        self._shared = {tensors.file for tensors in covered.files} - {tensors.file for tensors in only_covered}

    def digest(self, sums: Mapping[str, str]) -> str:
        """SHA-256 (hexadecimal) of what is essential, given the checksum of every file."""
        shared = {name: checksum for name, checksum in sums.items() if name.rpartition(".")[0] in self._shared}
        return combined(self._packed, {**shared, **self._sums})
