"""A script on a terminal of its own, which is small enough to be understood: what a person would see."""

from __future__ import annotations

import codecs
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.cells import cell_len

_PIECES = re.compile(r"\x1b\[(?P<number>\d*)(?P<final>[A-Za-z])|\x1b\[[0-9;]*m|(?P<one>.)", re.DOTALL)


class Screen:
    """Knows what a footer uses, and refuses everything else."""

    def __init__(self, columns: int = 80, rows: int = 1000) -> None:
        self.columns = columns
        self.rows = rows
        self.lines = [""]
        self.row = self.column = 0

    def feed(self, text: str) -> Screen:
        position = 0
        for piece in _PIECES.finditer(text):
            assert piece.start() == position, f"not understood: {text[position : position + 10]!r}"
            position = piece.end()
            if one := piece["one"]:
                self._put(one)
            elif piece["final"] == "A":
                self.row = max(0, len(self.lines) - self.rows, self.row - int(piece["number"] or 1))
            elif piece["final"] == "J":
                self.lines[self.row] = self.lines[self.row][: self.column]
                del self.lines[self.row + 1 :]
            else:
                assert piece["final"] in ("m", None), f"not understood: {piece[0]!r}"
        assert position == len(text)
        return self

    def _put(self, one: str) -> None:
        if one == "\r":
            self.column = 0
        elif one == "\n":
            self._next_row()
        else:
            assert one.isprintable(), f"not understood: {one!r}"
            if self.column + cell_len(one) > self.columns:
                self.column = 0
                self._next_row()
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + one + line[self.column + 1 :]
            self.column += 1

    def _next_row(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    @property
    def shown(self) -> list[str]:
        """The lines that are not empty, without the blanks at their ends."""
        return [line.rstrip() for line in self.lines if line.strip()]


# Where tests run in the background, Ctrl-C is ignored by them and by what they start.
ATTENTIVE = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"

# The third of ten epochs, everything known.
VALUES: dict[str, Any] = {
    **{"state": "running", "graph": "fit", "position": "train_batch", "step": 4812, "epoch": 2 + 117 / 938},
    **{"end": ("10 epochs",), "done": 0.2125, "batch": 117, "epoch_batches": 938, "window": (2, 4)},
    "metrics": {"val/loss": 0.051, "loss": 0.04231, "accuracy": 0.987, "lr": 0.001},
    "rates": {"batches": 812.4, "samples": 25_996.8},
    **{"elapsed_seconds": 41.2, "seconds_left": 133.0, "memory_bytes": int(1.2 * 2**30), "device": "cpu"},
    "seconds": {"data": 8.0, "train": 84.0, "validate": 6.0, "save": 2.0},
}
BEGIN = f"""\
import logging, os, sys, threading, time
from graphtrain import Snapshot
from graphtrain.report.display.live import Live
VALUES = {VALUES!r}
def snapshot(**changes): return Snapshot(**{{**VALUES, **changes}})
display = Live()
"""


class Terminal:
    """A pseudo-terminal, and a process that has it as its standard streams.

    Arguments:
        script: what to run after `BEGIN`.
        folder: where.
        output: where its standard output goes. Default: to the terminal.
    """

    def __init__(
        self,
        script: str,
        folder: Path,
        *,
        columns: int = 80,
        rows: int = 24,
        output: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (rows, columns))
        here = {"TERM": "xterm-256color", "PYTHONPATH": str(Path(__file__).parents[2]), "NO_COLOR": ""}
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "FORCE_COLOR")}
        with open(output if output is not None else os.devnull, "wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", ATTENTIVE + BEGIN + script],
                stdin=theirs,
                stdout=theirs if output is None else file,
                stderr=theirs,
                cwd=folder,
                env={**kept, **here, **(environment or {})},
                start_new_session=True,
            )
        os.close(theirs)
        self.columns, self.rows = columns, rows
        os.set_blocking(self._ours, False)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._waited = 0
        self.text = ""

    def read(self, until: str | None = None, seconds: float = 300) -> None:
        """Wait for a text after the one that was waited for last. Default: for the end."""
        deadline = time.monotonic() + seconds
        while until is None or until not in self.text[self._waited :]:
            assert time.monotonic() < deadline, f"it hangs; so far: {self.text!r}"
            try:
                piece = os.read(self._ours, 65536)
            except BlockingIOError:
                time.sleep(0.01)
                continue
            except OSError:  # the other side is closed
                piece = b""
            if not piece:
                assert until is None, f"it ended; so far: {self.text!r}"
                return
            self.text += self._decoder.decode(piece)
        self._waited = self.text.index(until, self._waited) + len(until)

    def type(self, text: str) -> None:
        """What a person types."""
        os.write(self._ours, text.encode())

    def end(self) -> Screen:
        """Wait for its end; what is on the screen then."""
        self.read()
        self.process.wait(300)
        os.close(self._ours)
        return self.screen

    def hang_up(self) -> None:
        """The terminal is gone."""
        os.close(self._ours)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(300)

    @property
    def screen(self) -> Screen:
        """What is on the screen, by what was read."""
        return Screen(self.columns, self.rows).feed(self.text)
