"""Files of predictions: a line for each sample, or a file of tensors for each batch; a resume continues them."""

from __future__ import annotations

from pathlib import Path
from typing import final

from graphtrain.errors import UsageError
from graphtrain.storage.files import readable_failure, replace_file
from graphtrain.storage.run_directory import RowsFile
from graphtrain.storage.tensor_files import TENSOR_SUFFIX

LINES_SUFFIX = ".jsonl"


@final
class Predictions:
    """The file or folder of the predictions of a run. Until `finish`, its name has the suffix ``.part``.

    Nothing is written before `open`. Each method raises a CheckpointError if writing fails.

    Arguments:
        path: a file that ends in ``.jsonl``; or a folder, in which each batch has a file of tensors.

    Raises:
        UsageError: it has another suffix, or its parent folder does not exist.

    Attributes:
        are_lines: True for a file of lines; False for a folder of tensors.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self.are_lines = self.path.suffix == LINES_SUFFIX
        self._part = self.path.with_name(f"{self.path.name}.part")
        if self.path.suffix not in ("", LINES_SUFFIX):
            raise UsageError(
                f"predictions_file: `{path}` must end in {LINES_SUFFIX}, or be a folder without a suffix",
                "a folder gets a file of tensors for each batch; jsonl has a line of JSON for each sample",
            )
        if not self.path.parent.is_dir():
            raise UsageError(f"predictions_file: there is no folder `{self.path.parent}`", "create it first")

    def open(self, samples: int, size: int) -> None:
        """Keep the predictions of the first samples, none in a new run, which take `size` bytes as lines.

        Raises:
            UsageError: the path exists and does not belong to this run, or the file of lines is shorter than that.
        """
        with readable_failure(self.path):
            if self.path.exists() and not samples:
                raise UsageError(f"`{self.path}` exists; a file is never overwritten", "remove it, or choose another")
            if self.path.exists():  # interrupted after `finish`, before the end of the run was saved
                self.path.rename(self._part)
            if self.are_lines:
                RowsFile(self._part).cut(size)
                return
            self._part.mkdir(exist_ok=True)
            for file in self._part.glob(f"*{TENSOR_SUFFIX}"):
                if int(file.stem) >= samples:
                    file.unlink()

    def append(self, first: int, content: bytes) -> None:
        """Append the predictions of a batch, lines or a file of tensors, after those of the first samples."""
        with readable_failure(self.path):
            if not self.are_lines:
                replace_file(self._part / f"{first:012d}{TENSOR_SUFFIX}", content)
                return
            with self._part.open("ab") as file:
                file.write(content)

    def finish(self) -> None:
        """Rename the file or folder to its final name."""
        with readable_failure(self.path):
            if self._part.exists():  # else the run was interrupted after this
                self._part.rename(self.path)
