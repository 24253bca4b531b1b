"""A script on a terminal of its own."""

from __future__ import annotations

import codecs
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

from tests.report.display.screen import Screen

# Where tests run in the background, Ctrl-C is ignored by them and by what they start.
ATTENTIVE = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"

BEGIN = """\
import logging, os, sys, threading, time
from graphtrain.report.display.live import Live
from tests.report.display.runs import snapshot
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
        here = {"TERM": "xterm-256color", "PYTHONPATH": str(Path(__file__).parents[3]), "NO_COLOR": ""}
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
