"""A disk that fails, fills up, and forgets what was not flushed when the power goes (promise 12)."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KILLED = 9  # what a process returns that was ended at a call
# What writing, flushing, putting in place and removing come down to, and the opening of files to write.
NAMES = ("mkdir", "open", "write", "fsync", "rename", "replace", "unlink", "rmdir")


class Calls:
    """Counts the calls that change a disk, and does something else at the n-th.

    Arguments:
        at: the number of the call, from 1. Default: none.
        instead: what is done there, given the name of the call. The call itself is made only if that returns.

    Attributes:
        made: the names of the calls, in order.
    """

    def __init__(self, at: int | None = None, instead: Callable[[str], None] = lambda name: None) -> None:
        self.made: list[str] = []
        self._at, self._instead = at, instead

    def count(self, name: str) -> None:
        self.made.append(name)
        if len(self.made) == self._at:
            self._instead(name)

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **keywords: Any) -> Any:
            self.count(name)
            return call(*arguments, **keywords)

        return counted

    def _opening(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
            if set(mode) & set("wxa+"):
                self.count("open")
            opened = call(file, mode, *arguments, **keywords)
            return _File(opened, self) if isinstance(opened, io.FileIO) else opened

        return counted

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """A span in which the calls of this process are counted."""
        names = [name for name in NAMES if name != "open"]
        former = {name: getattr(os, name) for name in names}
        openers = (builtins.open, io.open, os.open)
        for name in names:
            setattr(os, name, self._wrapped(name, former[name]))
        builtins.open, io.open = self._opening(openers[0]), self._opening(openers[1])
        os.open = self._opening_descriptor(openers[2])
        try:
            yield
        finally:
            for name in names:
                setattr(os, name, former[name])
            builtins.open, io.open, os.open = openers

    def _opening_descriptor(self, call: Callable[..., int]) -> Callable[..., int]:
        def counted(path: Any, flags: int, *arguments: Any, **keywords: Any) -> int:
            if flags & (os.O_WRONLY | os.O_RDWR):
                self.count("open")
            return call(path, flags, *arguments, **keywords)

        return counted


class _File:
    """A file without a buffer, each write of which counts."""

    def __init__(self, file: io.FileIO, calls: Calls) -> None:
        self._file, self._calls = file, calls

    def write(self, data: Any) -> int:
        self._calls.count("write")
        return self._file.write(data) or 0

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def failing(number: int) -> Callable[[str], None]:
    """Fail with an error number of the system."""

    def fail(name: str) -> None:
        raise OSError(number, os.strerror(number))

    return fail


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
        for file, size in [*self._unflushed.items()]:  # the thread that saves writes meanwhile
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
                self._unflushed.pop(target, None)  # what was there is no longer part of the tree
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


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")
