"""Whether a process of this host is alive."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def is_alive(process: int) -> bool:
    """True if the process with this number exists and has not ended.

    >>> is_alive(os.getpid())
    True
    """
    # A zombie: it has ended, and its parent has not collected its exit code. Only Linux shows that.
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
