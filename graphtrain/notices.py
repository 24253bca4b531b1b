"""Lines for a person."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import final


@final
class Notices:
    """What a person should know, a line at a time.

    Arguments:
        write: receives each line. Default: standard error.

    >>> notices = Notices(print)
    >>> notices.once("memory grows"); notices.once("memory grows"); notices("memory grows")
    memory grows
    memory grows
    """

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write or _print_to_stderr
        self._written: set[str] = set()

    def __call__(self, line: str) -> None:
        self._write(line)

    def once(self, line: str) -> None:
        """Write a line, unless it was written by this before."""
        if line not in self._written:
            self._written.add(line)
            self._write(line)


def _print_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201
