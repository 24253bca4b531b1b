"""One process at a time trains in a run directory."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from graphtrain.errors import UsageError
from graphtrain.storage.regular import NotAsAgreedError, open_regular, parsed_json, read_regular

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = ".lock"
_MOST_BYTES = 4096
_TAKEN = (errno.EACCES, errno.EAGAIN)
_HINT = "wait for it, stop it, or choose another run directory"

# The locks that this process holds. A process that is forked from it, such as a loader worker, would share them, and
# lock everybody out for as long as it outlives the run: it closes them at once.
_HELD: set[int] = set()


@final
class RunLock:
    """A lock on a run directory, which ends with its process, however that ends.

    Arguments:
        folder: the run directory.
        notify: receives a line where the file system has no locks.
    """

    def __init__(self, folder: Path, notify: Callable[[str], None]) -> None:
        self._folder = folder
        self._notify = notify
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            UsageError: another run has it, or the file cannot be written.
        """
        if fcntl is None:
            return
        file = self._folder / LOCK_FILE
        try:
            descriptor = open_regular(file, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise UsageError(f"`{file}` cannot be written: {error.strerror}") from None
        except NotAsAgreedError as error:
            raise UsageError(f"`{file}` {error}", "remove it, or choose another run directory") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in _TAKEN:
                raise UsageError(f"`{self._folder}` is being trained by {_holder(file)}", _HINT) from None
            self._notify(
                f"the file system of `{self._folder}` has no locks ({error.strerror}): "
                "make sure that no second process trains there"
            )
            return
        self._descriptor = descriptor
        _HELD.add(descriptor)
        who = {"process": os.getpid(), "host": socket.gethostname(), "since_unix_seconds": round(time.time())}
        try:
            if not _is_ours(os.pread(descriptor, _MOST_BYTES, 0)):
                return  # of another program: the lock holds without a name
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(who).encode())
        except OSError:  # a full disk: the lock holds without a name
            return

    def release(self) -> None:
        """Release the lock, if it is held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor in _HELD:  # not so in a process that was forked
            _HELD.discard(descriptor)
            # Closing is not enough while a worker that was forked a moment ago still has the same open file.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _close_all() -> None:
    for descriptor in _HELD:
        os.close(descriptor)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)


def _is_ours(content: bytes) -> bool:
    """True for a lock file that is new, or that a run has written."""
    try:
        return not content or {"process", "host"} <= parsed_json(content).keys()
    except (ValueError, AttributeError):
        return False


def _holder(file: Path) -> str:
    try:
        holder: Any = parsed_json(read_regular(file, _MOST_BYTES))
        process, host = int(holder["process"]), str(holder["host"])
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["since_unix_seconds"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return "another process"
    is_this = process == os.getpid() and host == socket.gethostname()
    who = "another trainer of this process" if is_this else f"process {process} on {host!r}"
    return f"{who} since {since}"
