"""The file of predictions: appended to batch by batch, truncated by a resume, renamed when it is complete.

A checkpoint holds a description of its columns, by name. Each column has its own file until all are complete. A file of
lines has one column, without a name.
"""

from __future__ import annotations

import io
import math
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, final

from graphtrain.errors import GraphtrainError, UsageError
from graphtrain.storage.regular import parsed_json, temporary_name, write_pieces
from graphtrain.storage.run_directory import readable_failure
from graphtrain.storage.tensor_files import TENSOR_SUFFIX, header_of

LINES_SUFFIX = ".jsonl"
_PIECE = 1 << 20

# A column: the `type` of its values as safetensors calls it, the `shape` of a sample, and how many `bytes` there are.
Column = Mapping[str, Any]


def grown(column: Column, content: bytes) -> dict[str, Any]:
    """The description of a column after more bytes: their number, and their checksum."""
    size, crc = column.get("bytes", 0), column.get("crc", 0)
    return {**column, "bytes": size + len(content), "crc": zlib.crc32(content, crc)}


@final
class PredictionsFile:
    """The file of the predictions of one run; nothing is written before `open`.

    Arguments:
        path: ends in ``.safetensors`` or ``.jsonl``.

    Raises:
        UsageError: it has another suffix, or its folder does not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
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

    def open(self, columns: Mapping[str, Column]) -> None:
        """Truncate the files to the described columns; a new run has none.

        Raises:
            UsageError: the file exists and is not of this run, or it was changed.
        """
        with self._readable_failure():
            is_complete = os.path.lexists(self.path)
            if is_complete and not columns:
                raise UsageError(f"`{self.path}` exists; a file is never overwritten", "remove it, or choose another")
            if is_complete and not os.path.lexists(self._part(0)):  # interrupted before the end of the run was saved
                self._take_apart(columns)
            for number, column in enumerate(columns.values()):
                self._cut(self._part(number), column)
            if not columns:  # of a run that was killed before its first checkpoint
                self._remove_parts(0)

    def append(self, contents: Sequence[bytes]) -> None:
        """Append to each column, in the order of the columns.

        Raises:
            CheckpointError: the disk refuses.
        """
        with self._readable_failure():
            for number, content in enumerate(contents):
                with open(self._part(number), "ab", buffering=0) as file:
                    write_pieces(file, [content])

    def finish(self, columns: Mapping[str, Column], samples: int) -> None:
        """Combine the columns into one file, under its final name.

        Raises:
            CheckpointError: the disk refuses.
        """
        with self._readable_failure():
            if not self.holds_tensors:
                self._part(0).rename(self.path)
                return
            ordered = sorted(enumerate(columns.items()), key=lambda item: -_width(item[1][1], samples))
            entries = (
                (name, column["type"], [samples, *column["shape"]], column["bytes"]) for _, (name, column) in ordered
            )
            temporary = temporary_name(self.path)
            with temporary.open("wb") as file:
                file.write(header_of(entries))
                for number, _ in ordered:
                    with open(self._part(number), "rb") as part:
                        shutil.copyfileobj(part, file, _PIECE)
            temporary.rename(self.path)
            self._remove_parts(0)

    def _take_apart(self, columns: Mapping[str, Column]) -> None:
        """Split the complete file into columns again, as far as they are described."""
        if not self.holds_tensors:
            self.path.rename(self._part(0))
            return
        with open(self.path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            entries = parsed_json(file.read(min(length, _PIECE)))
            for number, (name, column) in enumerate(columns.items()):
                file.seek(8 + length + entries[name]["data_offsets"][0])
                with self._part(number).open("wb") as part:
                    for piece in _pieces(file, column["bytes"]):
                        part.write(piece)
        self.path.unlink()

    def _cut(self, path: Path, column: Column) -> None:
        size, crc = column["bytes"], 0
        with open(path, "r+b", buffering=0) as file:
            for piece in _pieces(file, size):
                crc = zlib.crc32(piece, crc)
            if file.tell() != size or crc != column["crc"]:
                raise UsageError(
                    f"`{path}` was changed since the run wrote it",
                    "predict again, into another run directory",
                )
            file.truncate(size)

    def _part(self, number: int) -> Path:
        """The file of a column until all are complete."""
        return self.path.with_name(
            f"{self.path.name}.{number}.part" if self.holds_tensors else f"{self.path.name}.part"
        )

    def _remove_parts(self, number: int) -> None:
        while os.path.lexists(self._part(number)):
            self._part(number).unlink()
            number += 1

    @contextmanager
    def _readable_failure(self) -> Iterator[None]:
        try:
            with readable_failure(self.path):
                yield
        except (ValueError, LookupError, TypeError) as error:
            if isinstance(error, GraphtrainError):
                raise
            raise UsageError(f"`{self.path}` was changed since the run wrote it", "predict into another file") from None


def _width(column: Column, samples: int) -> int:
    """Bytes of one value."""
    values = samples * math.prod(column["shape"])
    return int(column["bytes"]) // values if values else 0


def _pieces(file: BinaryIO | io.FileIO, size: int) -> Iterator[bytes]:
    """The next `size` bytes of a file, or as many as it has."""
    while size and (piece := file.read(min(size, _PIECE))):
        size -= len(piece)
        yield piece
