"""The lock on a run directory: one process trains in it."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from graphtrain.errors import UsageError
from graphtrain.storage.files import readable_failure

LOCK_FILE = ".lock"

# The descriptors of the locks that this process holds. A forked process, such as a loader worker, inherits them and
# would hold the locks as long as it lives, so it closes them immediately.
_OPEN_LOCKS: set[int] = set()


@contextmanager
def locked(folder: Path, notify: Callable[[str], None]) -> Iterator[None]:
    """A context that holds the lock on a run directory. The system releases it too when the process ends or is killed.

    Arguments:
        notify: receives a message if the file system has no locks.

    Raises:
        UsageError: another process holds the lock, or the file cannot be written.
    """
    file = folder / LOCK_FILE
    with readable_failure(file, UsageError):
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(
            f"`{folder}` is in use by {file.read_text() or 'another process'}, which trains there",
            "wait for it, stop it, or choose another run directory",
        ) from None
    except OSError as error:
        notify(f"`{folder}` has no locks ({error.strerror}): make sure that no second process trains there")
    _OPEN_LOCKS.add(descriptor)
    with suppress(OSError):  # a full disk: the lock works without the name of its holder
        os.ftruncate(descriptor, 0)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()} since {started}".encode())
    try:
        yield
    finally:
        if descriptor in _OPEN_LOCKS:  # false in a forked process
            _OPEN_LOCKS.discard(descriptor)
            with suppress(OSError):  # closing is not enough while a worker that was just forked has the file open
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _close_all() -> None:
    while _OPEN_LOCKS:
        os.close(_OPEN_LOCKS.pop())


os.register_at_fork(after_in_child=_close_all)
