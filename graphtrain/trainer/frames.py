"""Tracebacks that begin with the user's own code."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

_PACKAGE = Path(__file__).parent.parent
# By the name of the module, not by its file: a user's own folder may well be called `click`.
_MACHINERY = frozenset({"click", "rich", "importlib", "contextlib", "runpy"})


def users_frames(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame after graphtrain's own and its libraries'; None if there is none."""
    while frames is not None:
        frame = frames.tb_frame
        module = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if not Path(frame.f_code.co_filename).is_relative_to(_PACKAGE) and module not in _MACHINERY:
            return frames
        frames = frames.tb_next
    return None
