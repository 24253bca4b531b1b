"""Text of others on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with every control character but the line break written out: a stranger's graph commands no terminal.

    >>> print(printable("\\x1b[31mred\\n\\tnext line"))
    \\x1b[31mred
    \\tnext line
    """
    return "".join(one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode() for one in text)


def one_line(text: str) -> str:
    """`text` with line breaks written out too: a name has its place on a line, and keeps to it.

    >>> print(one_line("loss\\n\\x1b[2J"))
    loss\\n\\x1b[2J
    """
    return printable(text).replace("\n", "\\n")
