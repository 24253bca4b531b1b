"""Runs in TensorBoard: every row once, however often the run was interrupted."""

from __future__ import annotations

import json
import os
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

from graphtrain.errors import GraphtrainError, UsageError
from graphtrain.lazy import imported
from graphtrain.plain import json_value
from graphtrain.report.logger import Beginning, Histogram, Image, RunLogger, Shown, Text
from graphtrain.storage.files import replace_file


@final
class TensorBoard(RunLogger):
    """A logger that writes event files for TensorBoard; ``tensorboard --logdir runs`` shows them.

    Every value of a row is a scalar. The hyper-parameters and the graph, as TOML, are texts at the step from which a
    process trained with them. A resume truncates the event files to its checkpoint. Of several rows of one step that
    share a name, TensorBoard shows the last. If rows have a column for a graph around the training, such as `fold`,
    each of its values has a separate curve: ``val/loss/fold 2``.

    Arguments:
        folder: the folder of the event files, for one run only. Default: `tensorboard` inside the run directory.

    Attributes:
        writer: torch's `SummaryWriter`, for data that `show` does not accept; None while the run is not running.

    Raises:
        UsageError: TensorBoard is not installed; or, when a run begins, there is no folder or it cannot be written to.

    >>> logger = TensorBoard("runs/digits/tensorboard")  # Trainer(..., loggers=[logger])
    >>> logger.writer is None
    True
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        imported("tensorboard")
        self._make_writer = imported("torch.utils.tensorboard").SummaryWriter
        self._chosen_folder = Path(folder) if folder is not None else None
        self._folder = Path()
        self._clocks: tuple[str, ...] = ()
        self._rows = 0
        self._sizes: dict[str, int] = {}  # of the event files of this run, when last noted
        self.writer: Any = None

    def begin(self, beginning: Beginning) -> None:
        """Truncate the files to the rows that are kept, and write hyper-parameters and graph."""
        self.close()
        folder = self._chosen_folder or (beginning.run_dir / "tensorboard" if beginning.run_dir else None)
        if folder is None:
            raise UsageError("TensorBoard has no folder to write to", "pass run_dir to Trainer, or a folder to this")
        self._folder, self._clocks = folder, beginning.clocks
        with self._opened(len(beginning.rows)):
            named = (f"{name} = {json_value(value)}" for name, value in beginning.hyper_parameters.items())
            texts = {"hyper_parameters": "\n".join(named)}
            with suppress(GraphtrainError):  # a parameter that TOML cannot express
                texts["graph"] = beginning.graph.to_toml()
            for name, text in texts.items():  # as a block of code in Markdown
                step = int(beginning.rows[-1]["step"]) if beginning.rows else 0
                self.writer.add_text(name, textwrap.indent(text, "    ", lambda line: True), step)
            for row in beginning.rows[self._rows :]:
                self._write(row)

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        """Write a row."""
        with self._opened():
            self._write(metrics)

    def show(self, name: str, value: Shown, step: int) -> None:
        """Write a text, an image or a histogram."""
        with self._opened():
            match value:
                case Text(text):
                    self.writer.add_text(name, text, step)
                case Histogram(values):
                    self.writer.add_histogram(name, values, step)
                case Image(pixels):
                    self.writer.add_image(name, pixels, step, dataformats="CHW"[-pixels.ndim :])

    def flush(self) -> None:
        """Note the sizes of the files, which a resume from this checkpoint keeps."""
        if self.writer is not None:
            with self._opened():
                self.writer.flush()
                self._note()

    def close(self) -> None:
        """Close the event file; a later row opens another one."""
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()

    @contextmanager
    def _opened(self, rows: int | None = None) -> Iterator[None]:
        """An event file to write to, which is flushed afterwards: 0.1 ms for a row of four values."""
        try:
            if rows is not None:
                self._cut(rows)
            if self.writer is None:
                self._open()
            yield
            self.writer.flush()
        except OSError as error:
            raise UsageError(f"TensorBoard cannot write to `{self._folder}`: {error.strerror or error}") from error

    def _open(self) -> None:
        """Open another event file. TensorBoard reads files in the order of their names, which have the second."""
        before = {*self._folder.glob("*tfevents*")}
        if any(f".{int(time.time())}." in path.name for path in before):
            time.sleep(1 - time.time() % 1)
        self.writer = self._make_writer(str(self._folder))
        (path,) = {*self._folder.glob("*tfevents*")} - before
        self._sizes[path.name] = 0
        self._note()

    def _write(self, row: Mapping[str, float]) -> None:
        self._rows += 1
        clocks = [name for name in self._clocks if name in row]
        tag = "".join(f"/{name} {row[name]}" for name in clocks)  # a curve for each round: its steps are the same
        for name, value in row.items():
            if name != "step" and name not in clocks:
                self.writer.add_scalar(f"{name}{tag}", value, int(row["step"]))

    def _note(self) -> None:
        """Add a line to `sizes.jsonl`: the rows so far, and the sizes of the event files that have them."""
        paths = [path for name in self._sizes if (path := self._folder / name).exists()]
        self._sizes = {path.name: path.stat().st_size for path in paths}
        with (self._folder / "sizes.jsonl").open("a") as file:
            file.write(json.dumps({"rows": self._rows, "sizes": self._sizes}) + "\n")

    def _cut(self, rows: int) -> None:
        """Truncate event files to what they had at the last line with at most so many rows."""
        notes: list[dict[str, Any]] = [{"rows": 0, "sizes": {}}]
        file = self._folder / "sizes.jsonl"
        for line in file.read_text().splitlines() if file.exists() else ():
            with suppress(ValueError):  # cut by a kill
                notes.append(json.loads(line))
        kept = [note for note in notes if note["rows"] <= rows]
        self._rows, self._sizes = kept[-1]["rows"], kept[-1]["sizes"]
        for path in self._folder.glob("*tfevents*"):
            if any(path.name in note["sizes"] for note in notes):  # of this run
                os.truncate(path, min(path.stat().st_size, self._sizes.get(path.name, 0)))
        if len(notes) > 1:
            replace_file(file, "".join(json.dumps(note) + "\n" for note in kept[1:]).encode())
