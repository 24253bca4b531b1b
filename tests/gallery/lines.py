"""How long a graph file and a kind are."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.shipped import KINDS


def toml_lines(path: Path) -> int:
    """Lines that are neither blank nor comments."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    return sum(1 for line in lines if line and not line.startswith("#"))


def kind_lines(name: str) -> int:
    """Lines of code in the functions of a kind's module: what is neither declared (a signature, a field) nor written
    for the reader (docstrings, comments, blank lines)."""
    source = KINDS[name].read_text(encoding="utf-8")
    code: set[int] = set()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            body = function.body[1:] if ast.get_docstring(function) is not None else function.body
            code |= {line for statement in body for line in range(statement.lineno, (statement.end_lineno or 0) + 1)}
    lines = source.splitlines()
    return sum(1 for number in code if (line := lines[number - 1].strip()) and not line.startswith("#"))
