"""The fenced blocks of a Markdown page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(?P<words>[^\n`]*)\n(?P<text>.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        language: the first word after the fence: ``"python"``, ``"toml"``, ``"console"``, ``"text"``; empty for none.
        words: the words after it, such as the name of a file.
        text: the text between the fences.
        line: the line of the page on which the text begins.
    """

    language: str
    words: tuple[str, ...]
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """One command of a console block, and its output in the block; None if the block shows none."""

    words: str
    shown: str | None
    line: int


def blocks_of(page: str) -> list[Block]:
    """Every fenced block of a page, in order.

    >>> blocks_of("See:\\n\\n```python train.py\\nx = 1\\n```\\n")
    [Block(language='python', words=('train.py',), text='x = 1\\n', line=4)]
    """
    blocks = []
    for match in _FENCE.finditer(page):
        language, *words = match["words"].split() or [""]
        blocks.append(Block(language, tuple(words), match["text"], page.count("\n", 0, match.start("text")) + 1))
    return blocks


def read_blocks(path: Path) -> list[Block]:
    """Every fenced block of the page at `path`."""
    return blocks_of(path.read_text(encoding="utf-8"))


def commands_of(block: Block) -> list[Command]:
    """The commands of a console block: the lines that begin with ``$``, each with the lines below it.

    >>> [(command.words, command.shown) for command in commands_of(Block("console", (), "$ ls\\n$ pwd\\n/tmp\\n", 1))]
    [('ls', None), ('pwd', '/tmp\\n')]
    """
    commands: list[Command] = []
    for number, row in enumerate(block.text.splitlines(keepends=True), start=block.line):
        if row.startswith("$ "):
            commands.append(Command(row[2:].rstrip("\n"), None, number))
        elif not commands:
            raise ValueError(f"line {number}: a console block begins with a command, `$ ...`; got {row!r}")
        else:
            last = commands.pop()
            commands.append(Command(last.words, (last.shown or "") + row, last.line))
    return commands


def without_fences(page: str) -> str:
    """The page without its fenced blocks; its lines keep their numbers."""
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), page)


def without_code(page: str) -> str:
    """The page without fenced blocks and code spans, in which nothing is a link; its lines keep their numbers."""
    return re.sub(r"`[^`\n]*`", "", without_fences(page))
