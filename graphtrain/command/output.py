"""Text of others on a terminal, and lines to whoever sits before it."""

from __future__ import annotations

import sys

from rich.markup import escape

from graphtrain.printable import printable


def escaped(text: str) -> str:
    """`text` for a table: printable, and without a meaning as markup."""
    return escape(printable(text))


def notify(line: str) -> None:
    """A line on standard error, at once."""
    print(printable(line), file=sys.stderr, flush=True)  # noqa: T201  # a command prints


def ignore(line: str) -> None:
    """In the place of `notify` where nothing is printed."""
