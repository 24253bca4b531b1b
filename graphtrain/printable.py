"""Text of others on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with every control character but the line break written out: a stranger's graph commands no terminal.

    >>> print(printable("\\x1b[31mred\\n\\tnext line"))
    \\x1b[31mred
    \\tnext line
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str, most: int | None = None) -> str:
    """`text` with line breaks written out too: a name has its place on a line, and keeps to it.

    Arguments:
        most: characters of `text` that are shown; the rest is ``...``. Default: all.

    >>> print(one_line("loss\\n\\x1b[2J"), one_line("accumulate", most=5))
    loss\\n\\x1b[2J accum...
    """
    line = printable(text[:most]).replace("\n", "\\n")
    return line if most is None or len(text) <= most else f"{line}..."
