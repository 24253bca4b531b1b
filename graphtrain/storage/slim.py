"""Checkpoints that store what stays the same once: frozen tensors apart, files that have not changed as hard links."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from graphtrain.errors import CheckpointError
from graphtrain.storage.manifest import read_manifest
from graphtrain.storage.state_files import Bytes
from graphtrain.storage.tensor_files import holds


@dataclass(frozen=True)
class Slim:
    """How a checkpoint is divided into files.

    Attributes:
        frozen: file -> the names of the tensors that are not trained, which go to a file of their own.
        previous: the name of the checkpoint before, beside this one; empty for none.
    """

    frozen: Mapping[str, Collection[str]] = field(default_factory=dict)
    previous: str = ""

    def as_plain(self) -> dict[str, Any]:
        return asdict(self)


@final
class EarlierFiles:
    """The files of the checkpoint before. Of one that cannot be read there are none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._files: Mapping[str, Sequence[Any]] = read_manifest(folder).files
        except CheckpointError:
            self._files = {}

    def link(self, path: Path, pieces: Sequence[Bytes]) -> list[Any] | None:
        """Make a file a hard link to the earlier one of its name, if that holds the same bytes.

        Returns:
            Its size and its checksum; None if it has to be written.
        """
        size, checksum = self._files.get(path.name, (None, ""))
        if size != sum(map(len, pieces)):
            return None
        try:
            # Its bytes and not only its checksum: what is damaged on the disk is written again.
            if not holds(self._folder / path.name, size, pieces):
                return None
            os.link(self._folder / path.name, path, follow_symlinks=False)
        except OSError:  # a file system without links, or the checkpoint is gone
            return None
        return [size, checksum]
