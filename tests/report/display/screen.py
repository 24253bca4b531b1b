"""A terminal small enough to be understood: what a person would see after some bytes were written to it."""

from __future__ import annotations

import re

from rich.cells import cell_len

_PIECES = re.compile(r"\x1b\[(?P<number>\d*)(?P<final>[A-Za-z])|\x1b\[[0-9;]*m|(?P<one>.)", re.DOTALL)


class Screen:
    """Knows what a footer uses, and refuses everything else."""

    def __init__(self, columns: int = 80, rows: int = 1000) -> None:
        self.columns = columns
        self.rows = rows
        self.lines = [""]
        self.row = self.column = 0

    def feed(self, text: str) -> Screen:
        position = 0
        for piece in _PIECES.finditer(text):
            assert piece.start() == position, f"not understood: {text[position : position + 10]!r}"
            position = piece.end()
            if one := piece["one"]:
                self._put(one)
            elif piece["final"] == "A":
                self.row = max(0, len(self.lines) - self.rows, self.row - int(piece["number"] or 1))
            elif piece["final"] == "J":
                self.lines[self.row] = self.lines[self.row][: self.column]
                del self.lines[self.row + 1 :]
            else:
                assert piece["final"] in ("m", None), f"not understood: {piece[0]!r}"
        assert position == len(text)
        return self

    def _put(self, one: str) -> None:
        if one == "\r":
            self.column = 0
        elif one == "\n":
            self._next_row()
        else:
            assert one.isprintable(), f"not understood: {one!r}"
            if self.column + cell_len(one) > self.columns:
                self.column = 0
                self._next_row()
            line = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = line[: self.column] + one + line[self.column + 1 :]
            self.column += 1

    def _next_row(self) -> None:
        self.row += 1
        if self.row == len(self.lines):
            self.lines.append("")

    @property
    def shown(self) -> list[str]:
        """The lines that are not empty, without the blanks at their ends."""
        return [line.rstrip() for line in self.lines if line.strip()]
