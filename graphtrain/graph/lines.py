"""The lines of keys and edges in a TOML text: `tomllib` keeps no positions, and messages need them."""

from __future__ import annotations

import re

_HEADER = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_PART = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_KEY = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")
_TOKEN = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|#.*|[\[\]{}]")


class Lines:
    """The lines of keys (``("nodes", "clip")``), of strings in lists (``("edges", "decide", "step if due")``), and of
    tables in lists, by their number (``("edit", "0")``).

    A dotted key is a line of what it is in too, where that has none.

    >>> Lines('edit = [\\n  { remove = "log" },\\n  { remove = "clip" },\\n]').of("edit", "1")
    3
    >>> Lines('[nodes]\\nclip = {}\\n[edges]\\nclip = [\\n  "step",\\n]').of("edges", "clip", "step")
    5
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[str, ...], int] = {}
        section: tuple[str, ...] = ()
        key: tuple[str, ...] = ()
        edits = -1
        quotes = ""  # of the multi-line string that is open
        depth = 0  # of the multi-line list that is open
        tables = 0  # in that list
        # Not splitlines(), which splits at characters that do not end a line in TOML.
        for number, line in enumerate(text.split("\n"), start=1):
            if quotes:
                if quotes in line:
                    quotes = ""
                continue
            if depth == 0 and (header := _HEADER.match(line)):
                section = tuple(part.strip().strip("\"'") for part in header.group(1).split("."))
                if line.lstrip().startswith("[["):
                    edits += 1
                    section = (*section, str(edits))
                self._lines.setdefault(section, number)
                key = section
                continue
            if depth == 0 and (match := _KEY.match(line)):
                key, tables = section, 0
                for part in re.findall(_PART, match.group(1)):
                    key = (*key, part.strip("\"'"))
                    self._lines.setdefault(key, number)
            quotes = next((mark for mark in ('"""', "'''") if line.count(mark) == 1), "")
            if quotes:
                continue
            for token in _TOKEN.finditer(line):
                if depth == 1 and token.group() == "{":
                    self._lines.setdefault((*key, str(tables)), number)
                    tables += 1
                depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token.group(), 0)
                string = token.group(1) if token.group(1) is not None else token.group(2)
                if string is not None:
                    self._lines.setdefault((*key, " ".join(string.split())), number)
            depth = max(depth, 0)

    def of(self, *key: str) -> int | None:
        """The line of a key, or of the nearest enclosing key or section that has one."""
        while key:
            if key in self._lines:
                return self._lines[key]
            key = key[:-1]
        return None
