"""Reading files of others: no device, no pipe, nothing larger than was agreed on."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

_PIECE = 1 << 20  # read at once: it is hashed while it is in the cache of the processor


class NotAsAgreedError(ValueError):
    """A file that is not read: it is no regular one, or of another size."""


@contextmanager
def opened_regular(path: Path, most: int, *, exactly: bool = False, links: bool = True) -> Iterator[io.FileIO]:
    """A regular file, open to be read without a buffer.

    Arguments:
        most: bytes that it may have.
        exactly: True if it must have as many. Default: it may have fewer.
        links: False refuses a symbolic link. Default: links are followed.

    Raises:
        NotAsAgreedError: it is no such file; found out before any of it is read.
        OSError: it cannot be opened.
    """
    # Not blocking: a pipe that nobody writes to would be waited for without end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW))
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotAsAgreedError("is no regular file")
        if status.st_size > most or (exactly and status.st_size != most):
            expected = str(most) if exactly else f"at most {most}"
            raise NotAsAgreedError(f"has {status.st_size} bytes instead of {expected}")
        yield file


def read_regular(path: Path, most: int, *, exactly: bool = False, links: bool = True) -> bytes:
    """The bytes of a regular file; the arguments are those of `opened_regular`.

    Raises:
        NotAsAgreedError: it is no such file; found out before any of it is read.
        OSError: it cannot be opened or read.
    """
    with opened_regular(path, most, exactly=exactly, links=links) as file, io.BufferedReader(file) as buffered:
        return buffered.read(most)


@final
class HashedReader:
    """A file that is read once, from its beginning to its end, and hashed on the way.

    Arguments:
        size: bytes of the file.
    """

    def __init__(self, file: io.FileIO, size: int) -> None:
        self._file, self._hash = file, hashlib.sha256()
        self.size = self.left = size

    def fill(self, memory: memoryview) -> None:
        """Fill memory, which is a sequence of bytes, with what comes next.

        Raises:
            NotAsAgreedError: the file ends before.
        """
        while memory:
            count = self._file.readinto(memory[:_PIECE])
            if not count:
                raise NotAsAgreedError(f"has {self.size - self.left} bytes instead of {self.size}")
            self._hash.update(memory[:count])
            self.left -= count
            memory = memory[count:]

    def read(self, size: int) -> bytearray:
        """The next bytes.

        Raises:
            NotAsAgreedError: the file ends before.
        """
        data = bytearray(size)
        self.fill(memoryview(data))
        return data

    def checksum(self) -> str:
        """The SHA-256 (hexadecimal) of the file; what was not read yet is read."""
        if self.left:
            memory = memoryview(bytearray(min(self.left, _PIECE)))
            while self.left:
                self.fill(memory[: self.left])
        return self._hash.hexdigest()
