"""Untrusted text made safe for a terminal, and the notices of a run."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, final

_MOST_LINES, _MOST_CHARACTERS = 20, 300  # of notices, in a status


def printable(text: str) -> str:
    """`text` with control characters, except line breaks, escaped: untrusted text cannot control a terminal.

    >>> print(printable("\\x1b[31mred\\n\\tnext line"))
    \\x1b[31mred
    \\tnext line
    """
    return "".join([c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text])


def one_line(text: str, most: int | None = None) -> str:
    """`text` with line breaks escaped too; one longer than `most` is cut, and ends in an ellipsis.

    >>> print(one_line("loss\\n\\x1b[2J"), one_line("accumulate", most=8))
    loss\\n\\x1b[2J accum...
    """
    text = text if most is None or len(text) <= most else f"{text[: most - 3]}..."
    return printable(text).replace("\n", "\\n")


def shown_path(path: str, most: int = 120) -> str:
    """The path of an object, short: the content of a cell has the name of its variable; a long path loses its middle.

    >>> shown_path("step<calls>.cell_contents.total")
    'step<calls>.total'
    """
    path = path.replace(".cell_contents", "")
    return path if len(path) <= most else f"{path[: most // 2]}...{path[-most // 2 :]}"


def shown(value: Any, most: int = 200) -> str:
    """An untrusted value, on one line."""
    return one_line(str(value), most)


def error_lines(error: Any, most: int = 200) -> list[str]:
    """An untrusted error of a status file as lines: what happened, and the hint, if there is one.

    >>> error_lines("UsageError: no script hint: name one")
    ['UsageError: no script', 'hint: name one']
    """
    message, mark, hint = str(error).rpartition(" hint: ")
    return [shown(message, most), f"hint: {shown(hint, most)}"] if mark else [shown(error, most)]


@final
class Notices:
    """Lines for the person who trains; `write` receives each. Default: they go to standard error.

    >>> notices = Notices(print)
    >>> notices.once("memory grows"); notices.once("memory grows"); notices("memory grows")
    memory grows
    memory grows
    """

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self._write = write or (lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201
        self._written: set[str] = set()
        self.last: deque[tuple[float, str]] = deque(maxlen=_MOST_LINES)  # each with its time in Unix seconds

    def __call__(self, line: str) -> None:
        self.last.append((round(time.time()), one_line(line, _MOST_CHARACTERS)))
        self._write(line)

    def once(self, line: str) -> None:
        """Write a line, unless this method wrote it before."""
        if line not in self._written:
            self._written.add(line)
            self(line)
