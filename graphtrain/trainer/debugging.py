"""Errors of the user's code: on one line, and with tracebacks that begin in it."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from graphtrain.errors import GraphtrainError
from graphtrain.printable import one_line

_PACKAGE = Path(__file__).parent.parent
# By the name of the module, not by its file: a user's own folder may well be called `click`.
_MACHINERY = frozenset({"click", "rich", "importlib", "contextlib", "runpy"})


def error_line(error: BaseException) -> str:
    """An exception on one line, with the line of the user's code that raised it."""
    frames = None if isinstance(error, GraphtrainError) else users_frames(error.__traceback__)
    where = f" ({Path(frames.tb_frame.f_code.co_filename).name}:{frames.tb_lineno})" if frames is not None else ""
    return one_line(f"{type(error).__name__}: {' '.join(str(error).split())}", 300) + where


def users_frames(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame outside graphtrain and its libraries; None if there is none."""
    while frames is not None:
        frame = frames.tb_frame
        module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if not Path(frame.f_code.co_filename).is_relative_to(_PACKAGE) and module not in _MACHINERY:
            return frames
        frames = frames.tb_next
    return None
