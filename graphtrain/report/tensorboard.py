"""Runs in TensorBoard: every row once, however often the run was interrupted."""

from __future__ import annotations

import struct
import textwrap
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

import torch

from graphtrain.errors import GraphtrainError, UsageError
from graphtrain.plain import json_value
from graphtrain.report.logger import Beginning, Histogram, Image, RunLogger, Shown, Text

_COLOR_TYPES = {1: 0, 3: 2}  # of a PNG: grey, and colours


@final
class TensorBoard(RunLogger):
    """A logger that writes event files for TensorBoard; ``tensorboard --logdir runs`` shows them.

    Every value of a row is a scalar. The hyper-parameters and the graph, as TOML, are texts at the step from which a
    process trained with them.

    A resume purges the rows that will be repeated, and no others. A row is on disk when the call returns, so the rows
    that a checkpoint counts survive a killed process. TensorBoard shows one value per name and step: where several rows
    of one step share a name, it shows the last. If rows have a column for a graph around the training, such as `fold`,
    each of its values has a separate curve: ``val/loss/fold 2``.

    Arguments:
        folder: the folder of the event files, for one run only. Default: `tensorboard` inside the run directory.

    Attributes:
        writer: torch's `SummaryWriter`, for data that `show` does not accept; None while the run is not running. A
            resume purges your data from the step of the last row on, and does not write it again.

    Raises:
        UsageError: TensorBoard is not installed; or, when a run begins, there is no folder or it cannot be written to.

    >>> logger = TensorBoard("runs/digits/tensorboard")  # Trainer(..., loggers=[logger])
    >>> logger.writer is None
    True
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        try:
            from torch.utils.tensorboard import writer
        except ImportError as error:
            raise UsageError(f"TensorBoard cannot be imported: {error}", "pip install tensorboard") from error
        self._make_writer = writer.SummaryWriter
        self._given_folder = Path(folder) if folder is not None else None
        self._folder: Path | None = None
        self._clocks: tuple[str, ...] = ()
        self.writer: Any = None

    def begin(self, beginning: Beginning) -> None:
        """Purge the rows that will be repeated, and write what the run is made of."""
        self.close()
        self._folder = self._given_folder or (beginning.run_dir / "tensorboard" if beginning.run_dir else None)
        if self._folder is None:
            raise UsageError(
                "TensorBoard has no folder to write to", "pass run_dir to Trainer, or folder to TensorBoard"
            )
        # Several rows may share a step, and a purge knows steps only: rows of the last step are written again below.
        # Steps that restart in each round of an outer graph do not show what will be repeated.
        self._clocks = beginning.clocks
        purge_step = int(beginning.rows[-1]["step"]) if beginning.rows and not self._clocks else 0
        with _readable_failure(self._folder):
            # The first session sets purge_step too, though nothing is purged: TensorBoard ignores the first it reads.
            # Its fast loader never purges, but a value replaces those of its name at this and at later steps.
            self._open(self._folder, purge_step)
            self._describe(beginning, purge_step)
            for row in beginning.rows:
                if row["step"] >= purge_step:
                    self._write(row)
            self.writer.flush()

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        """Write a row."""
        with self._opened("a row"):
            self._write(metrics)
            self.writer.flush()  # waits for the writing thread: 0.1 ms for a row of four values

    def show(self, name: str, value: Shown, step: int) -> None:
        """Write a text, an image or a histogram."""
        with self._opened("a value"):
            if isinstance(value, Text):
                self.writer.add_text(name, value.text, step)
            elif isinstance(value, Histogram):
                self.writer.add_histogram(name, value.values, step)
            else:
                self.writer.file_writer.add_summary(_image_summary(name, png_of(value)), step)

    @contextmanager
    def _opened(self, what: str) -> Iterator[None]:
        """An event file to write to."""
        if self._folder is None:
            raise UsageError(f"TensorBoard was called with {what} before `begin`", "pass it to a Trainer in `loggers`")
        with _readable_failure(self._folder):
            if self.writer is None:
                self._open(self._folder, None)
            yield

    def flush(self) -> None:
        """Flush everything to disk."""
        if self.writer is not None and self._folder is not None:
            with _readable_failure(self._folder):
                self.writer.flush()

    def close(self) -> None:
        """Close the event file; a later row opens another one."""
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()

    def _write(self, row: Mapping[str, float]) -> None:
        clocks = [name for name in self._clocks if name in row]
        tag = "".join(f"/{name} {row[name]}" for name in clocks)  # a curve for each round: its steps are the same
        for name, value in row.items():
            if name != "step" and name not in clocks:
                self.writer.add_scalar(f"{name}{tag}", value, int(row["step"]))

    def _open(self, folder: Path, purge_step: int | None) -> None:
        """Open an event file that is read after all others of the folder.

        TensorBoard reads them in the order of their names, which are made of the second of opening, then the process id
        and a counter as plain text. Of two files of one second the newer may sort first, and its purge would hit the
        wrong rows.
        """
        older = _event_files(folder)
        while True:
            self.writer = self._make_writer(str(folder), purge_step=purge_step)
            (opened,) = _event_files(folder) - older
            if not older or opened > max(older) or _second(opened) < _second(max(older)):
                return  # in the last case the clock was set back: waiting for it could take forever
            self.writer.close()
            (folder / opened).unlink()
            time.sleep(1 - time.time() % 1)

    def _describe(self, beginning: Beginning, step: int) -> None:
        self.writer.add_text("hyper_parameters", _table(beginning.hyper_parameters), step)
        with suppress(GraphtrainError):  # a parameter that TOML cannot express
            toml = beginning.graph.to_toml()
            self.writer.add_text("graph", textwrap.indent(toml, "    ", lambda line: True), step)


@contextmanager
def _readable_failure(folder: Path) -> Iterator[None]:
    """Turn an OSError into a message."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"TensorBoard cannot write to `{folder}`: {error.strerror or error}") from error


def _event_files(folder: Path) -> set[str]:
    return {file.name for file in folder.glob("*tfevents*")}


def _second(name: str) -> int:
    return int(name.partition("tfevents.")[2].partition(".")[0])


def _table(values: Mapping[str, Any]) -> str:
    """Names and values as a Markdown table.

    >>> print(_table({"optimizer.lr": 0.1, "a|b": "c"}))
    | name | value |
    | --- | --- |
    | optimizer.lr | 0.1 |
    | a&#124;b | c |
    """
    rows = [("name", "value"), ("---", "---"), *((name, json_value(value)) for name, value in values.items())]
    return "\n".join(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows)


def _cell(value: Any) -> str:
    return " ".join(str(value).replace("|", "&#124;").split())


def _image_summary(tag: str, png: bytes) -> Any:
    """A PNG as it is; `add_image` takes pixels, so the PNG would be decoded and encoded again."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))  # in the PNG header
    image = Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=4)
    return Summary(value=[Summary.Value(tag=tag, image=image)])


def png_of(image: Image) -> bytes:
    """An image as the bytes of a PNG, without another library.

    >>> png_of(Image(torch.zeros(2, 3)))[:4]
    b'\\x89PNG'

    Raises:
        UsageError: its pixels do not have such a shape or type.
    """
    pixels = image.pixels
    if isinstance(pixels, torch.Tensor) and pixels.ndim == 2:
        pixels = pixels[None]
    if (
        not isinstance(pixels, torch.Tensor)
        or pixels.ndim != 3
        or len(pixels) not in _COLOR_TYPES
        or not pixels.numel()
    ):
        received = f"shape {tuple(pixels.shape)}" if isinstance(pixels, torch.Tensor) else f"a {type(pixels).__name__}"
        raise UsageError(
            f"Image: expected a tensor of shape (height, width), or with 1 or 3 channels first, got {received}",
            "colours come first: pixels.permute(2, 0, 1)",
        )
    if pixels.is_floating_point():
        pixels = (pixels.detach().float().nan_to_num(0.0).clamp(0, 1) * 255).round()
    channels, height, width = pixels.shape
    rows = pixels.detach().cpu().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).reshape(height, width * channels)
    # Each row begins with the number of its filter: none.
    content = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), rows], 1).numpy().tobytes()
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(content)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
