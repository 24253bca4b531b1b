"""Reading files of others: no device, no pipe, nothing larger than was agreed on."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class NotAsAgreedError(ValueError):
    """A file that is not read: it is no regular one, or of another size."""


def read_regular(path: Path, most: int, *, exactly: bool = False, links: bool = True) -> bytes:
    """The bytes of a regular file.

    Arguments:
        most: bytes that it may have.
        exactly: True if it must have as many. Default: it may have fewer.
        links: False refuses a symbolic link. Default: links are followed.

    Raises:
        NotAsAgreedError: it is no such file; found out before any of it is read.
        OSError: it cannot be opened or read.
    """
    # Not blocking: a pipe that nobody writes to would be waited for without end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW))
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotAsAgreedError("is no regular file")
        if status.st_size > most or (exactly and status.st_size != most):
            expected = str(most) if exactly else f"at most {most}"
            raise NotAsAgreedError(f"has {status.st_size} bytes instead of {expected}")
        return file.read(most)
