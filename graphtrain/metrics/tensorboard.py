"""Runs in TensorBoard: every row once, however often the run was cut, and once what the run is."""

from __future__ import annotations

import hashlib
import json
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from graphtrain.errors import GraphtrainError, UsageError
from graphtrain.graph import Graph
from graphtrain.metrics.logger import Beginning, RunLogger
from graphtrain.plain import json_value

# What was last described in a folder, and at which step. TensorBoard reads only files with "tfevents" in their names.
DESCRIBED_FILE = "described.json"


@final
class TensorBoard(RunLogger):
    """A logger that writes event files for TensorBoard; ``tensorboard --logdir runs`` shows them.

    Every value of a row is a scalar. When a run begins, its hyper-parameters (in the tab HParams, and as a table among
    the texts) and its graph (a picture, and its TOML among the texts) are described; a resume describes them again only
    where they changed, at the step from which that holds. The tab HParams goes on showing what the run began with:
    TensorBoard keeps the first.

    A resume purges what will be repeated and nothing else. A row is on disk when the call returns, so one that a
    checkpoint counts outlives a killed process. TensorBoard shows one value per name and step: of several rows of one
    step that have a name in common, it shows the last.

    Arguments:
        folder: where the event files go; a folder holds one run. Default: `tensorboard` inside the run directory.

    Attributes:
        writer: torch's `SummaryWriter`, for histograms and the like; None while the run stands still. What is written
            to it by hand is purged from the step of the last row on, and not written again.

    Raises:
        UsageError: TensorBoard is not installed; later: there is no folder, or it cannot be written.

    >>> logger = TensorBoard("runs/digits/tensorboard")  # Trainer(..., loggers=[logger])
    >>> logger.writer is None
    True
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        try:
            from tensorboard.plugins.hparams import summary_v2
            from torch.utils.tensorboard import writer
        except ImportError as error:
            raise UsageError(
                f"TensorBoard cannot be imported: {error}", "pip install 'graphtrain[tensorboard]'"
            ) from error
        self._hparams_summary = summary_v2.hparams_pb
        self._make_writer = writer.SummaryWriter
        self._given_folder = Path(folder) if folder is not None else None
        self._folder: Path | None = None
        self.writer: Any = None

    def begin(self, beginning: Beginning) -> None:
        """Purge what will be repeated, and describe what is not yet described."""
        self.close()
        self._folder = self._given_folder or (beginning.run_dir / "tensorboard" if beginning.run_dir else None)
        if self._folder is None:
            raise UsageError("TensorBoard has no folder to write to", "give the Trainer a run_dir, or it a folder")
        # Several rows may have one step, and a purge knows steps only: those of the last step are written again.
        purge_step = int(beginning.rows[-1]["step"]) if beginning.rows else 0
        with _readable_failure(self._folder):
            # Said by the first session too, where nothing is purged: TensorBoard does not purge for the first it meets.
            # Its fast loader never does, but there a value replaces what its name has at this and at later steps.
            self._open(self._folder, purge_step)
            self._describe(self._folder, beginning, purge_step)
            for row in beginning.rows:
                if row["step"] >= purge_step:
                    self._write(row)
            self.writer.flush()

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        """Write a row."""
        if self._folder is None:
            raise UsageError("TensorBoard was told of a row before the run began", "give it to a Trainer as a logger")
        with _readable_failure(self._folder):
            if self.writer is None:
                self._open(self._folder, None)
            self._write(metrics)
            self.writer.flush()  # waits for the thread that writes: 0.1 ms for a row of four values

    def close(self) -> None:
        """Let go of the event file; a later row opens another one."""
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close()

    def _write(self, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            if name != "step":
                self.writer.add_scalar(name, value, int(row["step"]))

    def _open(self, folder: Path, purge_step: int | None) -> None:
        """Open an event file that is read after all others of the folder.

        They are read in the order of their names, which have the second they were opened in, then the process and a
        count as plain text. Of two in one second the later may come first, and a purge would take the wrong one's rows.
        """
        before = _event_files(folder)
        while True:
            self.writer = self._make_writer(str(folder), purge_step=purge_step)
            (made,) = _event_files(folder) - before
            if not before or made > max(before) or _second(made) < _second(max(before)):
                return  # in the last case a clock was set back: waiting for it could take for ever
            self.writer.close()
            (folder / made).unlink()
            time.sleep(1 - time.time() % 1)

    # ---- what the run is

    def _describe(self, folder: Path, beginning: Beginning, purge_step: int) -> None:
        toml = _toml(beginning.graph)
        values = {name: _plain(value) for name, value in beginning.hyper_parameters.items()}
        content = hashlib.sha256(json.dumps([toml, values], sort_keys=True).encode()).hexdigest()
        described_content, described_step = _described(folder)
        if described_content == content and described_step < purge_step:
            return
        self.writer.add_text("hyper_parameters", _table(values), purge_step)
        if toml is not None:
            self.writer.add_text("graph", textwrap.indent(toml, "    ", lambda line: True), purge_step)
        summaries = [self._hparams_summary(values, trial_id="")]  # no name: a run is a group of its own
        if (png := beginning.picture("png")) is not None:
            summaries.append(_image_summary("graph", png))
        for summary in summaries:
            self.writer.file_writer.add_summary(summary, purge_step)
        self.writer.flush()
        (folder / DESCRIBED_FILE).write_text(json.dumps({"step": purge_step, "content": content}), encoding="utf-8")


@contextmanager
def _readable_failure(folder: Path) -> Iterator[None]:
    """A disk that refuses is said in words."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"TensorBoard cannot write to `{folder}`: {error.strerror or error}") from error


def _event_files(folder: Path) -> set[str]:
    return {file.name for file in folder.glob("*tfevents*")}


def _second(name: str) -> int:
    return int(name.partition("tfevents.")[2].partition(".")[0])


def _described(folder: Path) -> tuple[str, int]:
    """A hash of what was described last, and at which step; an empty one where that cannot be told."""
    try:
        read = json.loads((folder / DESCRIBED_FILE).read_text(encoding="utf-8"))
        return str(read["content"]), int(read["step"])
    except (OSError, ValueError, TypeError, KeyError):
        return "", 0


def _toml(graph: Graph) -> str | None:
    try:
        return graph.to_toml()
    except GraphtrainError:  # a parameter that has no text
        return None


def _plain(value: Any) -> bool | int | float | str:
    """A value as the tab HParams can show it."""
    shown = json_value(value)
    return shown if isinstance(shown, bool | int | float | str) else str(value)


def _table(values: Mapping[str, Any]) -> str:
    """Names and values as a Markdown table.

    >>> print(_table({"optimizer.lr": 0.1, "a|b": "c"}))
    | name | value |
    | --- | --- |
    | optimizer.lr | 0.1 |
    | a&#124;b | c |
    """
    rows = [("name", "value"), ("---", "---"), *values.items()]
    return "\n".join(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows)


def _cell(value: Any) -> str:
    return " ".join(str(value).replace("|", "&#124;").split())


def _image_summary(tag: str, png: bytes) -> Any:
    """A PNG as it is; `add_image` takes pixels, for which it would have to be decoded and encoded again."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))  # of the header
    image = Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=4)
    return Summary(value=[Summary.Value(tag=tag, image=image)])
