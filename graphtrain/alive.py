"""Whether a process of this host is alive."""

from __future__ import annotations

import os
from pathlib import Path


def is_alive(process: int) -> bool:
    """True for a process that has not ended, by its number.

    >>> is_alive(os.getpid())
    True
    """
    if process <= 0 or _is_zombie(process):
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _is_zombie(process: int) -> bool:
    """True for a process that has ended and whose parent has not collected its exit code; Linux only."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError, UnicodeDecodeError):
        return False
