"""Debugging a run: time in a debugger does not count, and tracebacks begin with the user's own code."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from graphtrain.errors import GraphtrainError
from graphtrain.printable import one_line

_PACKAGE = Path(__file__).parent.parent
# By the name of the module, not by its file: a user's own folder may well be called `click`.
_MACHINERY = frozenset({"click", "rich", "importlib", "contextlib", "runpy"})
_MOST_CHARACTERS = 300


@contextmanager
def untimed_breakpoints(paused: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """While the block runs, `breakpoint()` opens Python's debugger, which waits for input inside `paused()`.

    A hook that is set already, or named in PYTHONBREAKPOINT, is kept.
    """
    thread = threading.get_ident()

    def open_debugger(*arguments: Any, **options: Any) -> None:
        import pdb

        class UntimedDebugger(pdb.Pdb):
            def interaction(self, *arguments: Any) -> None:
                if threading.get_ident() != thread:
                    super().interaction(*arguments)
                    return
                with paused():
                    super().interaction(*arguments)

        # An interrupt after `continue` stops the run at its next save point, as any other does.
        UntimedDebugger(nosigint=True).set_trace(sys._getframe(1))

    if sys.breakpointhook is not sys.__breakpointhook__ or os.environ.get("PYTHONBREAKPOINT"):
        yield
        return
    sys.breakpointhook = open_debugger
    try:
        yield
    finally:
        if sys.breakpointhook is open_debugger:
            sys.breakpointhook = sys.__breakpointhook__


def error_line(error: BaseException) -> str:
    """An exception on one line, with the line of the user's code that raised it, and what a node notes on it.

    >>> error_line(ValueError("no\\nlabel"))
    'ValueError: no label'
    """
    frames = None if isinstance(error, GraphtrainError) else users_frames(error.__traceback__)
    where = f" ({Path(frames.tb_frame.f_code.co_filename).name}:{frames.tb_lineno})" if frames is not None else ""
    line = one_line(f"{type(error).__name__}: {' '.join(str(error).split())}", _MOST_CHARACTERS) + where
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("raised in node ")]
    is_told = isinstance(error, GraphtrainError) or not notes
    return line if is_told else f"{line} hint: {one_line(notes[0], _MOST_CHARACTERS)}"


def users_frames(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame outside graphtrain and its libraries; None if there is none."""
    while frames is not None:
        frame = frames.tb_frame
        module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if not Path(frame.f_code.co_filename).is_relative_to(_PACKAGE) and module not in _MACHINERY:
            return frames
        frames = frames.tb_next
    return None
