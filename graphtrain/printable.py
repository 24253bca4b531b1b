"""Text of others on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with every control character but the line break escaped: a stranger's graph commands no terminal.

    >>> print(printable("\\x1b[31mred\\n\\tnext line"))
    \\x1b[31mred
    \\tnext line
    """
    return "".join(
        character if character.isprintable() or character == "\n" else character.encode("unicode_escape").decode()
        for character in text
    )


def one_line(text: str, most: int | None = None) -> str:
    """`text` with line breaks escaped too: a name has its place on a line, and keeps to it.

    Arguments:
        most: characters of `text` that are shown; the rest is ``...``. Default: all.

    >>> print(one_line("loss\\n\\x1b[2J"), one_line("accumulate", most=5))
    loss\\n\\x1b[2J accum...
    """
    line = printable(text[:most]).replace("\n", "\\n")
    return line if most is None or len(text) <= most else f"{line}..."


def shorten(text: str, limit: int = 60) -> str:
    """`text`, or its beginning and an ellipsis where it is longer than the limit.

    >>> shorten("the whole of it"), shorten("the whole of it", 10)
    ('the whole of it', 'the who...')
    """
    return text if len(text) <= limit else text[: limit - 3] + "..."
