"""The rows of a run as a table of comma-separated values, with one row per step."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

from graphtrain.errors import UsageError
from graphtrain.report.logger import Beginning, RunLogger
from graphtrain.report.rows import joined
from graphtrain.storage.regular import replace_file
from graphtrain.storage.run_directory import readable_failure

_NAME = "metrics.csv"


@final
class CSV(RunLogger):
    """A logger that writes a table, for spreadsheets and other programs.

    The row of a step has all of its metrics, such as `epoch/loss` and `val/loss`; missing values are empty. A new
    metric adds a column. After a resume the table has every row once.

    Arguments:
        path: the file. Default: `metrics.csv` in the run directory.

    Raises:
        UsageError: when a run begins, there is neither a path nor a run directory.
        CheckpointError: it cannot be written.

    >>> logger = CSV("metrics.csv")  # Trainer(..., loggers=[logger])
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._given = Path(path) if path is not None else None
        self._path: Path | None = None
        self._clocks: tuple[str, ...] = ()
        self._columns: list[str] = []
        self._last: dict[str, float] | None = None
        self._bytes_before_last = 0

    def begin(self, beginning: Beginning) -> None:
        """Write the table so far."""
        self._path = self._given or (beginning.run_dir / _NAME if beginning.run_dir else None)
        if self._path is None:
            raise UsageError("CSV has no file to write to", "pass run_dir to Trainer, or path to CSV")
        self._clocks, self._columns, self._last = beginning.clocks, [], None
        rows = joined(beginning.rows, self._clocks)
        self._columns = list(dict.fromkeys(name for row in rows for name in row))
        self._replace(rows)
        self._last = rows[-1] if rows else None

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        """Write a row, or more of the last one."""
        if self._path is None:
            raise UsageError("CSV was called with a row before `begin`", "pass it to a Trainer in `loggers`")
        rows = joined([*([self._last] if self._last is not None else []), metrics], self._clocks)
        new = [name for name in metrics if name not in self._columns]
        if new:
            self._columns += new
            with readable_failure(self._path), self._path.open(newline="") as file:
                before: list[Mapping[str, float | str]] = [*csv.DictReader(file)]
            self._replace([*(before[:-1] if self._last is not None else before), *rows])
        else:
            with readable_failure(self._path), self._path.open("r+b") as file:
                file.truncate(self._bytes_before_last if self._last is not None else file.seek(0, io.SEEK_END))
                for row in rows:
                    self._bytes_before_last = file.seek(0, io.SEEK_END)
                    file.write(self._line(row))
        self._last = dict(rows[-1])

    def close(self) -> None:
        """Nothing is open."""

    def _replace(self, rows: Sequence[Mapping[str, float | str]]) -> None:
        assert self._path is not None, "asked before"
        header = self._line({name: name for name in self._columns}) if self._columns else b""
        lines = [header, *map(self._line, rows)]
        with readable_failure(self._path):
            replace_file(self._path, b"".join(lines))
        self._bytes_before_last = sum(map(len, lines[:-1]))

    def _line(self, row: Mapping[str, float | str]) -> bytes:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerow([row.get(name, "") for name in self._columns])
        return text.getvalue().encode()
