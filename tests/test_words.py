"""Names say what they hold, in the words of PyTorch's documentation: some words say nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.test_layers import MODULES, walked

# In no name, as one of its words. `held_out` is a term.
WORDS = {
    *("made", "given", "again", "fresh", "aside", "held", "poured", "covered", "lie", "supply", "surroundings"),
    *("rounds", "horizon", "drift", "baseline", "counted", "answers"),
}
# No name of their own.
NAMES = {"stands_for", "with_made", "form", "forms", "found", "without"}
TERMS = ("held_out",)


def bindings(tree: ast.AST) -> Iterator[str]:
    """The names that a module gives: to functions, classes, arguments, variables, attributes and imports."""
    for each in walked(tree):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield each.name
        elif isinstance(each, ast.arg):
            yield each.arg
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
            yield each.attr
        elif isinstance(each, ast.alias) and each.asname:
            yield each.asname


def says_nothing(name: str) -> bool:
    """True for a name that consists of, or contains, one of the words.

    >>> [name for name in ("made", "RandomAside", "held_out", "is_held", "found", "found_nodes") if says_nothing(name)]
    ['made', 'RandomAside', 'is_held', 'found']
    """
    for term in TERMS:
        name = name.replace(term, "")
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
    return name.strip("_").lower() in NAMES or not words.isdisjoint(WORDS)


@pytest.mark.full
def test_no_name_says_nothing() -> None:
    names = {(module, name) for module, tree in MODULES.items() for name in bindings(tree)}
    assert len(names) > 5_000
    assert sorted((module, name) for module, name in names if says_nothing(name)) == []
