"""A disk that fails, fills up, and forgets what was not flushed when the power goes."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.resume.failing_calls import Calls

_WRITES = {"open", "write", "mkdir"}
_BLOCK = 4096  # bytes


class Disk(Calls):
    """Counts the calls that change the disk, and remembers what of them the disk may still forget.

    Arguments:
        what: an event of `Event` that is one of the disk, or any other.
        at: the number of the call.
        seed: of how much is forgotten.
    """

    def __init__(self, what: str, at: int, seed: int) -> None:
        super().__init__()
        self._what, self._number, self._choose = what, at, random.Random(seed)
        self._process = os.getpid()
        self._renamed: list[tuple[str, str]] = []  # since their folder was flushed, in order
        self._unflushed: dict[str, int] = {}  # file -> bytes that are certainly on the disk

    def count(self, name: str) -> None:
        if os.getpid() != self._process:  # a worker: what it sends would be lost, and waited for
            return
        super().count(name)
        number = len(self.made)
        if self._what == "fail" and number == self._number:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self._what == "full" and number >= self._number and name in _WRITES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._what == "kill in a save" and number == self._number:
            os._exit(KILLED)
        if self._what == "power" and number == self._number:
            self._forget()
            os._exit(KILLED)

    def _forget(self) -> None:
        """Undo some of what was not flushed: the last renames, and the ends of files."""
        self._what = ""
        kept = self._choose.randint(0, len(self._renamed))
        for source, target in reversed(self._renamed[kept:]):
            if os.path.lexists(target) and not os.path.lexists(source):
                Path(target).rename(source)
        for file, size in self._unflushed.items():
            if os.path.isfile(file):  # a disk forgets blocks, not bytes
                now = os.path.getsize(file)
                sizes = [min(size, now), *range(-(-size // _BLOCK) * _BLOCK, now, _BLOCK), now]
                os.truncate(file, self._choose.choice(sizes))

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        counted = super()._wrapped(name, call)

        def remembered(*arguments: Any, **keywords: Any) -> Any:
            result = counted(*arguments, **keywords)
            if name in ("rename", "replace"):
                source, target = (os.path.abspath(os.fspath(path)) for path in arguments[:2])
                moved = [path for path in self._unflushed if path == source or path.startswith(source + os.sep)]
                for path in moved:
                    self._unflushed[target + path[len(source) :]] = self._unflushed.pop(path)
                self._renamed.append((source, target))
            elif name == "write":
                path = _path_of(arguments[0])
                self._unflushed.setdefault(path, os.path.getsize(path) - result if os.path.isfile(path) else 0)
            elif name == "fsync":
                path = _path_of(arguments[0])
                self._unflushed.pop(path, None)
                self._renamed = [(a, b) for a, b in self._renamed if os.path.dirname(b) != path]
            return result

        return remembered

    def _opening(self, call: Callable[..., Any]) -> Callable[..., Any]:
        opening = super()._opening(call)

        def remembered(file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
            opened = opening(file, mode, *arguments, **keywords)
            if set(mode) & set("wxa+") and isinstance(file, str | os.PathLike):
                path = os.path.abspath(os.fspath(file))
                size = os.path.getsize(path) if os.path.isfile(path) else 0
                self._unflushed.setdefault(path, size if "a" in mode or "+" in mode else 0)
            return opened

        return remembered


KILLED = 9


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")
