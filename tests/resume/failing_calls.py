"""System calls that fail, or end the process, at the n-th time: what a disk and a kill can do to a save."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
from collections.abc import Callable, Iterator
from typing import Any

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


def killed(name: str) -> None:
    """End the process immediately: nothing is flushed, closed or printed."""
    os._exit(9)
