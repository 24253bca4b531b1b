"""Whether a process of this host is alive."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def is_alive(process: int) -> bool:
    """True for a process that has not ended, by its number.

    >>> is_alive(os.getpid())
    True
    """
    # Linux tells a process that has ended and whose parent has not collected its exit code.
    with suppress(OSError, IndexError, UnicodeDecodeError):
        if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return False
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return process > 0
