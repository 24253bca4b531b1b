"""Lines that stay at the bottom of a terminal, below other output."""

from __future__ import annotations

import logging
import math
import mmap
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast, final

from rich.cells import cell_len

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_PAGE_BYTES = 64 * 1024


@final
class Footer:
    """Lines at the bottom of a terminal, below all other output.

    While it is open, `sys.stderr`, `sys.stdout` where it is the same terminal, and the handlers of `logging` that write
    to them go through it: a text is written in place of the lines, and the lines again after it, in one write. The
    lines are kept in memory shared with forked processes, so that their output appears above too. While the keyboard is
    read (`input`, a debugger) the lines are cleared until they are drawn again. The cursor stays visible, on the line
    below, so that even a killed process leaves a usable terminal.

    It draws only when called, starts no thread, and its lock is released in a forked process.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _PAGE_BYTES)
        self._lock, self._locks_in = threading.RLock(), os.getpid()
        self._is_writing, self._waiting, self._process = False, list[str](), 0
        self._terminal: Any = None
        self._replaced: dict[str, _Above | _Keyboard] = {}

    @property
    def lock(self) -> Any:
        """Reentrant, for signal handlers; free in a forked process, where a line begun by the parent stays its own."""
        if self._locks_in != os.getpid():
            self._lock, self._locks_in = threading.RLock(), os.getpid()
            self._is_writing, self._waiting = False, []
            for stream in self._replaced.values():
                stream.begun = ""
        return self._lock

    @property
    def is_open(self) -> bool:
        """True between `open` and `close`; never in a process that was forked meanwhile."""
        return self._terminal is not None and self._process == os.getpid()

    @property
    def size(self) -> os.terminal_size:
        """Columns and lines of the terminal, while this is open; 80 by 24 if not known."""
        with suppress(OSError, ValueError):
            size = os.get_terminal_size(self._terminal.fileno())
            if size.columns > 0 and size.lines > 0:
                return size
        return os.terminal_size((80, 24))

    def open(self, terminal: TextIO) -> None:
        """Take the place at the bottom of a terminal; nothing is drawn yet."""
        self._terminal, self._process = terminal, os.getpid()
        self._keep("")
        for name in ("stderr", "stdout"):
            stream = getattr(sys, name)
            if stream is terminal or _same_device(stream, terminal):
                stream.flush()
                above = _Above(self, stream)
                self._replaced[name] = above
                setattr(sys, name, above)
                _redirect_logging(stream, above)
        if _same_device(sys.stdin, terminal):
            sys.stdin = self._replaced["stdin"] = cast(Any, _Keyboard(self, sys.stdin))

    def draw(self, lines: Iterable[str]) -> None:
        """Draw these lines in place of the former ones; none make room for other users of the terminal."""
        if not self.is_open:
            return
        frame = "".join(f"{line}\n" for line in [*lines][: max(self.size.lines - 1, 1)])
        with suppress(OSError, ValueError), self._alone():  # a closed terminal ends no run
            # Moves the cursor to the beginning of a line, and only there if it is at one: a line of blanks wraps.
            new_line = " " * self.size.columns + "\r" if frame else ""
            self._write((self._erasure() or new_line) + frame)
            self._keep(frame)

    def close(self) -> None:
        """Leave the lines where they are, and restore the streams."""
        if not self.is_open:
            return
        with suppress(OSError, ValueError), self.lock:
            for stream in self._replaced.values():
                if stream.begun:
                    stream.write("\n")
        self._keep("")
        for name, replacement in self._replaced.items():
            if getattr(sys, name) is replacement:
                setattr(sys, name, replacement.stream)
            _redirect_logging(replacement, replacement.stream)
        self._replaced.clear()
        self._terminal = None

    def print(self, text: str, stream: TextIO) -> None:
        """Write a text above the lines. One that ends within a line replaces them until they are drawn again."""
        with self.lock:
            if self._terminal is None:
                stream.write(text)
                stream.flush()
            elif self._is_writing:  # a signal handler prints while its thread was writing
                self._waiting.append(text)
            else:
                with self._alone():
                    self._print(text)

    def _print(self, text: str) -> None:
        frame = self._frame if text.endswith("\n") else ""
        self._write(self._erasure() + text + frame)
        self._keep(frame)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Output of this very thread in the block is printed after it."""
        with self.lock:
            self._is_writing = True
            try:
                yield
                while self._waiting:
                    self._print(self._waiting.pop(0))
            finally:
                self._is_writing = False

    def _erasure(self) -> str:
        """The codes that move the cursor to the first line, and clear the lines, which a narrow terminal wraps."""
        columns = self.size.columns
        lines = self._frame.splitlines()
        rows = sum(max(1, math.ceil(cell_len(_ESCAPE.sub("", line)) / columns)) for line in lines)
        return f"\r\x1b[{rows}A\x1b[J" if rows else ""

    def _write(self, text: str) -> None:
        encoding = getattr(self._terminal, "encoding", None) or "utf-8"
        self._terminal.write(text.encode(encoding, "replace").decode(encoding))
        self._terminal.flush()

    def _keep(self, frame: str) -> None:
        """Note what is on the terminal now, for forked processes too; at worst two of them draw a line twice."""
        content = frame.encode("utf-8", "replace")
        self._memory[0:4] = bytes(4)  # a concurrent reader finds no lines, not half of them
        if len(content) <= _PAGE_BYTES - 4:
            self._memory[4 : 4 + len(content)] = content
            self._memory[0:4] = len(content).to_bytes(4, "big")

    @property
    def _frame(self) -> str:
        length = int.from_bytes(self._memory[0:4], "big")
        return self._memory[4 : 4 + length].decode("utf-8", "replace")


class _Above:
    """Replaces a standard stream: whole lines, and flushed parts of lines, are printed above the footer."""

    def __init__(self, footer: Footer, stream: TextIO) -> None:
        self.stream, self._footer = stream, footer
        self.begun = ""  # a line that is not complete

    def write(self, text: str) -> int:
        with self._footer.lock:
            lines, line_break, self.begun = (self.begun + text).rpartition("\n")
            if line_break:
                self._footer.print(lines + line_break, self.stream)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self._footer.lock:
            begun, self.begun = self.begun, ""
            if begun:
                self._footer.print(begun, self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Keyboard:
    """Replaces standard input: a reader of the terminal also writes to it, bypassing every stream."""

    begun = ""

    def __init__(self, footer: Footer, stream: TextIO) -> None:
        self.stream, self._footer = stream, footer

    def __iter__(self) -> Iterator[str]:
        return iter(self.__getattr__("readline"), "")

    def __getattr__(self, name: str) -> Any:
        self._footer.draw(())
        return getattr(self.stream, name)


def can_be_drawn_on(stream: Any) -> bool:
    """True for a terminal that can move its cursor."""
    try:
        return bool(stream.isatty()) and os.environ.get("TERM") not in ("dumb", "unknown")
    except (AttributeError, ValueError):  # None under pythonw, closed
        return False


def _same_device(stream: TextIO, terminal: TextIO) -> bool:
    try:
        return stream.isatty() and os.fstat(stream.fileno()).st_rdev == os.fstat(terminal.fileno()).st_rdev
    except (AttributeError, OSError, ValueError):
        return False


def _redirect_logging(source: Any, target: Any) -> None:
    """Handlers keep the stream they were made with, so replacing `sys.stderr` does not reach them."""
    for logger in (logging.getLogger(), *logging.Logger.manager.loggerDict.values()):
        for handler in getattr(logger, "handlers", ()):
            if isinstance(handler, logging.StreamHandler) and handler.stream is source:
                handler.setStream(target)
