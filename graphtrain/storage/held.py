"""A checkpoint that is still in memory: what was staged for it, read back."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import final

import msgpack
import safetensors.torch

from graphtrain.storage.checkpoint import Checkpoint, Manifest
from graphtrain.storage.manifest import FORMAT
from graphtrain.storage.state_files import PROGRESS_FILE, StagedState, join
from graphtrain.storage.tensor_files import TENSOR_SUFFIX


@final
@dataclass(frozen=True)
class HeldCheckpoint:
    """The state that was staged last, as long as nothing else is staged in its memory.

    Attributes:
        state: the bytes of its files.
        facts: what its manifest holds beside digest and checksums.
        rows: how many rows of metrics there were.
        path, manifest: where it was written, and as what; None if it was not.
    """

    state: StagedState
    facts: Manifest
    rows: int
    path: Path | None = None
    manifest: Manifest | None = None

    def read(self, path: Path) -> Checkpoint:
        """The checkpoint, as it would be read from the disk.

        Arguments:
            path: its name, if it was not written.
        """
        files = self.state.files
        tensors = {
            # Copies, which are aligned as the tensors of a run are.
            name.removesuffix(TENSOR_SUFFIX): {
                key: tensor.clone() for key, tensor in safetensors.torch.load(bytes(data)).items()
            }
            for name, data in files.items()
            if name != PROGRESS_FILE
        }
        manifest = self.manifest if self.manifest is not None else self._unwritten()
        # Through bytes, so that every value has the type that it has in a manifest that is read.
        manifest = msgpack.unpackb(msgpack.packb(manifest, use_bin_type=True, unicode_errors="backslashreplace"))
        return Checkpoint(self.path or path, manifest, join(bytes(files[PROGRESS_FILE]), tensors), files)

    def _unwritten(self) -> Manifest:
        """What would be written, for which every file is hashed."""
        sums = {name: hashlib.sha256(data).hexdigest() for name, data in self.state.files.items()}
        sizes = {name: [len(data), sums[name]] for name, data in self.state.files.items()}
        return {"format": FORMAT, **self.facts, "digest": self.state.digest(sums), "files": sizes}
