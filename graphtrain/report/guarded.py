"""Loggers that a run does not depend on: one that raises is off, and one that is slow has a thread of its own."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from graphtrain.errors import GraphtrainError
from graphtrain.report.logger import Beginning, Histogram, Image, Logger, RunLogger, Shown

_CODE_BYTES = 9  # of a row: eight digits and the end of the line


class SlowLoggerError(Exception):
    """A logger that has not done what it was told within its time."""


@final
class Guarded(RunLogger):
    """A logger whose exceptions end it, and not the run; one line says so.

    What it raises when a run begins is raised, unless it is called by its own thread: nothing is trained yet.

    Arguments:
        logger: what is called, of any kind.
        notify: takes the line.
    """

    def __init__(self, logger: Logger, notify: Callable[[str], Any]) -> None:
        is_slow = isinstance(logger, RunLogger) and logger.in_background
        self._logger: Logger = InBackground(logger) if isinstance(logger, RunLogger) and is_slow else logger
        self._name, self._notify, self._is_off = getattr(logger, "__name__", type(logger).__name__), notify, False
        self._sent = None if isinstance(logger, RunLogger) else _Sent(self._name)

    def begin(self, beginning: Beginning) -> None:
        self._is_off = False
        if isinstance(self._logger, RunLogger):
            self._logger.begin(beginning)
        elif self._sent is not None:
            self._sent.begin(beginning.run_dir)
            for row in beginning.rows:
                self._sent.once(row, lambda: None, self._safely)  # it has been called with those that are kept

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        if self._sent is None:
            self._safely(lambda: self._logger(metrics, step))
        else:
            self._sent.once(metrics, lambda: self._logger(metrics, step), self._safely)

    def show(self, name: str, value: Shown, step: int) -> None:
        self._of_run(lambda logger: logger.show(name, value, step))

    def flush(self) -> None:
        self._of_run(lambda logger: logger.flush())

    def ended(self, state: str, error: BaseException | None) -> None:
        self._of_run(lambda logger: logger.ended(state, error))

    def close(self) -> None:
        self._of_run(lambda logger: logger.close())

    def _of_run(self, call: Callable[[RunLogger], None]) -> None:
        logger = self._logger
        if isinstance(logger, RunLogger):
            self._safely(lambda: call(logger))

    def _safely(self, call: Callable[[], None]) -> None:
        if self._is_off:
            return
        try:
            call()
        except SlowLoggerError as error:
            self._notify(f"the logger {self._name} {error}")
        except Exception as error:
            self._is_off = True
            said = error.message if isinstance(error, GraphtrainError) else f"{type(error).__name__}: {error}"
            self._notify(f"the logger {self._name} is off: {' '.join(said.split())}; the run continues without it")


@final
class InBackground(RunLogger):
    """Calls a logger by a thread of its own, each row once, however often the run was interrupted.

    A call returns at once; what the logger has raised is raised by the next one. Which rows were sent is noted in the
    run directory: after a resume, rows that are repeated as they were are not sent again, and rows that a killed
    process has left are. A process that is killed while a row is sent may send it twice.

    Arguments:
        logger: what is called, always by the same thread.
    """

    def __init__(self, logger: RunLogger) -> None:
        self._logger = logger
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._sent = _Sent(type(logger).__name__)

    def begin(self, beginning: Beginning) -> None:
        self._error = None
        self._sent.begin(beginning.run_dir)
        beginning = replace(beginning, rows=[dict(row) for row in beginning.rows])
        self._later(lambda: self._logger.begin(beginning))
        for row in beginning.rows:
            self(row, int(row["step"]))

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        self._sent.once(metrics, lambda: self._logger(metrics, step), self._later)

    def show(self, name: str, value: Shown, step: int) -> None:
        if isinstance(value, Image):
            value = Image(value.pixels.detach().cpu().clone())  # training may change it before it is sent
        elif isinstance(value, Histogram):
            value = Histogram(value.values.detach().cpu().clone())
        self._later(lambda: self._logger.show(name, value, step))

    def flush(self) -> None:
        """Nothing to wait for: a resume sends what is missing."""
        self._raise()

    def ended(self, state: str, error: BaseException | None) -> None:
        self._later(lambda: self._logger.ended(state, error))

    def close(self) -> None:
        """Wait for the logger, but not for long.

        Raises:
            SlowLoggerError: it needs longer.
        """
        done = threading.Event()
        self._later(self._logger.close)
        self._waiting.put(done.set)
        if not done.wait(seconds := self._logger.seconds_to_close):
            raise SlowLoggerError(
                f"has not sent everything within {seconds:g} seconds; the run ends without waiting for it"
            )
        self._raise()

    def _later(self, call: Callable[[], None]) -> None:
        self._raise()
        if self._thread is None or not self._thread.is_alive():  # a fork has no threads
            self._thread = threading.Thread(
                target=self._work, name=f"logger {type(self._logger).__name__}", daemon=True
            )
            self._thread.start()
        self._waiting.put(lambda: self._try(call))

    def _work(self) -> None:
        while True:
            self._waiting.get()()

    def _try(self, call: Callable[[], None]) -> None:
        if self._error is None:
            try:
                call()
            except Exception as error:
                self._error = error

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


@final
class _Sent:
    """The rows that a logger was called with, which a file of the run directory notes: each is sent once."""

    def __init__(self, name: str) -> None:
        self._name = f"{name.strip('<>').lower()}.sent"
        self._file: Path | None = None
        self._codes: list[bytes] = []  # of the rows that are sent, or will be
        self._rows = 0

    def begin(self, run_dir: Path | None) -> None:
        self._rows = 0
        if run_dir is not None:
            self._file, self._codes = run_dir / self._name, []
            with contextlib.suppress(OSError, ValueError):
                lines = self._file.read_bytes().split(b"\n")
                self._codes = [line for line in lines if len(line) == _CODE_BYTES - 1]

    def once(self, row: Mapping[str, float], send: Callable[[], None], do: Callable[..., None]) -> None:
        """Send the next row and note it, unless it was sent as it is; `do` calls what does this, now or later."""
        number, code = self._rows, b"%08x" % zlib.crc32(json.dumps(row).encode())
        self._rows += 1
        if self._codes[number : number + 1] == [code]:
            return
        self._codes[number:] = [code]

        def send_and_note() -> None:
            send()
            if self._file is None:
                return
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                os.ftruncate(descriptor, number * _CODE_BYTES)  # none after this row is sent
                os.pwrite(descriptor, code + b"\n", number * _CODE_BYTES)
            finally:
                os.close(descriptor)

        do(send_and_note)
