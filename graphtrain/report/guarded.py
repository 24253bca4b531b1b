"""A logger that raises is off from then on, and a function is called with each row once."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from graphtrain.errors import GraphtrainError
from graphtrain.report.logger import Beginning, Logger, RunLogger, Shown
from graphtrain.storage.regular import open_regular, read_regular, replace_file

_CODE_BYTES = 9  # of a row: eight digits and the end of the line
_MOST_BYTES = 64 << 20


@final
class Guarded(RunLogger):
    """A logger whose exceptions end it, and not the run; one line says so.

    What a `RunLogger` raises when a run begins is raised: nothing is trained yet.

    Arguments:
        logger: what is called, of any kind.
        notify: takes the line.
    """

    def __init__(self, logger: Logger, notify: Callable[[str], Any]) -> None:
        self._logger, self._run_logger = logger, logger if isinstance(logger, RunLogger) else None
        self._name, self._notify, self._is_off = getattr(logger, "__name__", type(logger).__name__), notify, False
        self._seen = _Seen(self._name)

    def begin(self, beginning: Beginning) -> None:
        self._is_off = False
        if self._run_logger is not None:
            self._run_logger.begin(beginning)
        else:
            self._safely(self._seen.begin, beginning)

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        if self._run_logger is not None:
            self._safely(self._run_logger, metrics, step)
        else:
            self._safely(self._seen.once, metrics, lambda: self._logger(metrics, step))

    def show(self, name: str, value: Shown, step: int) -> None:
        if self._run_logger is not None:
            self._safely(self._run_logger.show, name, value, step)

    def flush(self) -> None:
        if self._run_logger is not None:
            self._safely(self._run_logger.flush)

    def ended(self, state: str, error: BaseException | None) -> None:
        if self._run_logger is not None:
            self._safely(self._run_logger.ended, state, error)

    def close(self) -> None:
        if self._run_logger is not None:
            self._safely(self._run_logger.close)

    def _safely(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._is_off:
            return
        try:
            call(*arguments)
        except Exception as error:
            self._is_off = True
            said = error.message if isinstance(error, GraphtrainError) else f"{type(error).__name__}: {error}"
            self._notify(f"the logger {self._name} is off: {' '.join(said.split())}; the run continues without it")


@final
class _Seen:
    """The rows that a function was called with: a file of the run directory has a checksum of each."""

    def __init__(self, name: str) -> None:
        self._name = f"{name.strip('<>').lower()}.sent"
        self._file: Path | None = None
        self._codes: list[bytes] = []
        self._rows = 0

    def begin(self, beginning: Beginning) -> None:
        kept, self._rows = [_code(row) for row in beginning.rows], len(beginning.rows)
        if beginning.run_dir is not None:
            self._file = beginning.run_dir / self._name
            with contextlib.suppress(OSError, ValueError):
                self._codes = read_regular(self._file, _MOST_BYTES).splitlines(keepends=True)
        self._codes[: len(kept)] = kept
        if self._file is not None:
            replace_file(self._file, b"".join(self._codes))

    def once(self, row: Mapping[str, float], call: Callable[[], None]) -> None:
        """Call a function, and note the row; neither if it was called with the same row in this place."""
        number, code = self._rows, _code(row)
        self._rows += 1
        if self._codes[number : number + 1] == [code]:
            return
        call()
        self._codes[number:] = [code]
        if self._file is not None:
            descriptor = open_regular(self._file, os.O_RDWR | os.O_CREAT)
            try:
                os.ftruncate(descriptor, number * _CODE_BYTES)  # none after this row was seen
                os.pwrite(descriptor, code, number * _CODE_BYTES)
            finally:
                os.close(descriptor)


def _code(row: Mapping[str, float]) -> bytes:
    return b"%08x\n" % zlib.crc32(json.dumps(row).encode())
