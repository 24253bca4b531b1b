"""How long a graph file and a kind are."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path


def toml_lines(path: Path) -> int:
    """Lines that are neither blank nor comments."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    return sum(1 for line in lines if line and not line.startswith("#"))


def kind_lines(name: str) -> int:
    """Lines of code of the functions and classes of a kind's module: without docstrings, comments and decorators."""
    source = inspect.getsource(importlib.import_module(f"graphtrain.nodes.{name}"))
    tree = ast.parse(source)
    code: set[int] = set()
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            code |= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                code -= set(range(decorator.lineno, (decorator.end_lineno or 0) + 1))
            if ast.get_docstring(node) is not None:
                code -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = source.splitlines()
    return sum(1 for number in code if (line := lines[number - 1].strip()) and not line.startswith("#"))
