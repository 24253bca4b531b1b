"""The file of predictions: one file for each batch, joined at the end; a resume keeps those of its checkpoint."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import final

import safetensors
import safetensors.torch
import torch

from graphtrain.errors import UsageError
from graphtrain.storage.regular import replace_file
from graphtrain.storage.run_directory import readable_failure
from graphtrain.storage.tensor_files import TENSOR_SUFFIX

LINES_SUFFIX = ".jsonl"


@final
class PredictionsFile:
    """The file of the predictions of one run; nothing is written before `open`.

    Until it is complete, the predictions of each batch are a file in a folder beside it, by their first sample.

    Arguments:
        path: ends in ``.safetensors`` or ``.jsonl``.

    Raises:
        UsageError: it has another suffix, or its folder does not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._parts = self.path.with_name(f"{self.path.name}.parts")
        if self.path.suffix not in (TENSOR_SUFFIX, LINES_SUFFIX):
            raise UsageError(
                f"predictions_file: the name must end in {TENSOR_SUFFIX} or {LINES_SUFFIX}, got `{path}`",
                "safetensors holds tensors; jsonl has a line of JSON for each sample",
            )
        if not self.path.parent.is_dir():
            raise UsageError(f"predictions_file: there is no folder `{self.path.parent}`", "make it first")

    @property
    def holds_tensors(self) -> bool:
        """True for a file of tensors; False for one of lines."""
        return self.path.suffix == TENSOR_SUFFIX

    def open(self, samples: int) -> None:
        """Keep the first samples, of those that are written; a new run has none.

        Raises:
            UsageError: the file exists and is not of this run.
            CheckpointError: the disk refuses.
        """
        with readable_failure(self.path):
            if self.path.exists() and not samples:
                raise UsageError(f"`{self.path}` exists; a file is never overwritten", "remove it, or choose another")
            if self.path.exists() and not self._written():  # interrupted before the end of the run was saved
                self.append(0, self._joined([self.path], samples))
                self.path.unlink()
            for part in self._written():
                if int(part.stem) >= samples:
                    part.unlink()

    def append(self, first: int, content: bytes) -> None:
        """Add predictions, as a file of them.

        Arguments:
            first: how many samples there are before them.

        Raises:
            CheckpointError: the disk refuses.
        """
        with readable_failure(self.path):
            self._parts.mkdir(exist_ok=True)
            replace_file(self._parts / f"{first:012d}{self.path.suffix}", content)

    def finish(self, samples: int) -> None:
        """Join the predictions in one file, under its final name.

        Raises:
            UsageError: they are not those that were written.
            CheckpointError: the disk refuses.
        """
        with readable_failure(self.path):
            replace_file(self.path, self._joined(self._written(), samples))
            shutil.rmtree(self._parts)

    def _written(self) -> list[Path]:
        return sorted(self._parts.glob(f"*{self.path.suffix}"))

    def _joined(self, files: list[Path], samples: int) -> bytes:
        if not self.holds_tensors:
            lines = list(itertools.chain.from_iterable(file.read_bytes().splitlines(keepends=True) for file in files))
            self._expect(len(lines) >= samples)
            return b"".join(lines[:samples])
        try:
            parts = [safetensors.torch.load_file(file) for file in files]
            joined = {name: torch.cat([part[name] for part in parts])[:samples] for name in parts[0]}
        except (safetensors.SafetensorError, LookupError, RuntimeError):
            joined = {}
        self._expect(bool(joined) and all(len(tensor) == samples for tensor in joined.values()))
        return safetensors.torch.save(joined)

    def _expect(self, is_sound: bool) -> None:
        if not is_sound:
            raise UsageError(f"`{self.path}` was changed since the run wrote it", "predict into another file")
