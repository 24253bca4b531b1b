"""Runs in TensorBoard: every row once, however often the run was interrupted."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

from graphtrain.errors import GraphtrainError, UsageError
from graphtrain.plain import json_value
from graphtrain.report.logger import Beginning, Histogram, RunLogger, Shown, Text


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
                form = "HW" if value.pixels.ndim == 2 else "CHW"
                self.writer.add_image(name, value.pixels, step, dataformats=form)

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
        named = (f"{name} = {json_value(value)}" for name, value in beginning.hyper_parameters.items())
        texts = {"hyper_parameters": "\n".join(named)}
        with suppress(GraphtrainError):  # a parameter that TOML cannot express
            texts["graph"] = beginning.graph.to_toml()
        for name, text in texts.items():  # as a block of code in Markdown
            self.writer.add_text(name, textwrap.indent(text, "    ", lambda line: True), step)


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
