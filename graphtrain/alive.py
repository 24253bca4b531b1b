"""Whether a process of this host is alive; and processes that end with their parent."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl


def is_alive(process: int) -> bool:
    """True for a process that has not ended, by its number.

    >>> is_alive(os.getpid())
    True
    """
    if process <= 0:
        return False
    # Linux tells a process that has ended and whose parent has not collected its exit code.
    with suppress(OSError, IndexError, UnicodeDecodeError):
        if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def end_with_parent(parent: int) -> Callable[[], None] | None:
    """A first call of the process that requests SIGTERM when its parent ends; None where that is not possible."""
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() != parent:  # it has already ended
            os.kill(os.getpid(), signal.SIGTERM)

    return ask
