"""The parser: from text to an expression tree of names, fields, literals, operators and a few functions.

Python's parser reads the text; every node of its result must be on the allow-list below. Nothing is executed.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from graphtrain.printable import one_line

# The functions of an expression: of one number, or of two and more.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{function.__name__: function for function in (math.ceil, math.cos, math.exp, math.floor, math.log, math.sqrt)},
    **{function.__name__: function for function in (abs, max, min)},
}
# The names that are numbers in every expression.
NUMBERS = {"pi": math.pi, "inf": math.inf}

# Replaces the `/` of a path while Python's parser reads it: a letter, so that a path is one name.
SLASH = "\N{LATIN LETTER DENTAL CLICK}"


class GuardSyntaxError(ValueError):
    """The text is not an expression; the message says which part is not allowed."""


@dataclass(frozen=True)
class Constant:
    """A literal."""

    value: bool | int | float | str


@dataclass(frozen=True)
class Name:
    """Another guard, or a slot that holds a number."""

    name: str


@dataclass(frozen=True)
class FieldOf:
    """A field of a node: parameter, progress or declared guard field.

    Arguments:
        node: its name, or its path if it is in the body of a node: ``"validate/next_batch"``.
    """

    node: str
    field: str


@dataclass(frozen=True)
class Operation:
    """An operator, or a function, and its operands.

    Arguments:
        name: ``"and"`` and ``"or"`` of two or more; ``"not"``; ``"-"`` of one or two; ``"if"`` of the condition and the
            two values; any other in `OPERATORS`, of two; or a function in `FUNCTIONS`. A chain of comparisons is the
            `and` of its pairs.
    """

    name: str
    operands: tuple[Expression, ...]


Expression = Constant | Name | FieldOf | Operation

_SYMBOLS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.And: "and", ast.Or: "or", ast.Not: "not", ast.USub: "-",
}  # fmt: skip


@functools.lru_cache(maxsize=4096)
def parse(text: str, bodies: frozenset[str] = frozenset()) -> Expression:
    """Parse the text of a guard, or of another expression.

    Arguments:
        bodies: the nodes that have a body. A chain of names that begins with one of them, written without spaces, is a
            path: ``fit/step.steps``. Every other `/` divides. Default: none.

    Raises:
        GuardSyntaxError: it is nested too deeply, not an expression, or contains a part that is not allowed.

    >>> parse("step.steps >= 3")
    Operation(name='>=', operands=(FieldOf(node='step', field='steps'), Constant(value=3)))
    >>> parse("open('x')")
    Traceback (most recent call last):
        ...
    graphtrain.graph.syntax.GuardSyntaxError: unknown function `open`: open('x')
    >>> parse("fit/step.steps", frozenset(["fit"]))
    FieldOf(node='fit/step', field='steps')
    """
    if SLASH in text:
        raise GuardSyntaxError(f"the character {SLASH} is not allowed in an expression: {_shown(text)}")
    if "#" in text and len(text.strip().splitlines()) > 1:
        raise GuardSyntaxError(f"several lines must not contain `#`: {_shown(text)}")
    # A guard in a TOML string may span lines.
    line = with_paths(text, bodies).replace("\r", " ").replace("\n", " ").strip()
    if not line:
        raise GuardSyntaxError("the expression is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an invalid escape in a string
            tree = ast.parse(line, mode="eval")
        return _convert(tree.body, line)
    except GuardSyntaxError:
        raise
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = getattr(error, "msg", "it may be nested too deeply")
        raise GuardSyntaxError(f"not an expression: {reason}: {_shown(text)}") from None


STRING = r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')"""
_PATH = re.compile(rf"{STRING}|(?<![\w./])([^\W\d]\w*)(?:/[^\W\d]\w*)+", re.DOTALL)


def with_paths(text: str, bodies: Collection[str]) -> str:
    """The text with every path as one name of the same length; strings are unchanged. `restore_paths` undoes it."""
    if not bodies or "/" not in text:
        return text
    return _PATH.sub(lambda match: match[0].replace("/", SLASH) if match[2] in bodies else match[0], text)


def restore_paths(text: str) -> str:
    """The text as it was written."""
    return text.replace(SLASH, "/")


def field_of(text: str) -> tuple[str, str] | None:
    """The node, or its path, and the field that a text names; None for any other text.

    >>> field_of("fit/step.steps"), field_of("1.5"), field_of("step.steps + 1")
    (('fit/step', 'steps'), None, None)
    """
    owner, dot, field = text.rpartition(".")
    is_field = dot and field.isidentifier() and all(name.isidentifier() for name in owner.split("/"))
    return (owner, field) if is_field else None


def is_expression(text: str) -> bool:
    """True if what a node reads is neither the name of a slot nor of a field, so that it has to be evaluated.

    >>> is_expression("1.0 / (1 + next_batch.epoch)"), is_expression("accumulate.every"), is_expression("loss")
    (True, False, False)
    """
    return not text.isidentifier() and field_of(text) is None


def _convert(tree: ast.expr, text: str) -> Expression:
    def inside(part: ast.expr) -> Expression:
        return _convert(part, text)

    match tree:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return Constant(value)
        case ast.Name(id=name) if SLASH not in name:
            return Constant(NUMBERS[name]) if name in NUMBERS else Name(name)
        case ast.Attribute(value=ast.Name(id=node), attr=name):
            return FieldOf(restore_paths(node), name)
        case ast.UnaryOp(op=operator, operand=operand) if type(operator) in _SYMBOLS:
            return Operation(_SYMBOLS[type(operator)], (inside(operand),))
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _SYMBOLS:
            return Operation(_SYMBOLS[type(operator)], (inside(left), inside(right)))
        case ast.BoolOp(op=operator, values=values):
            return Operation(_SYMBOLS[type(operator)], tuple(map(inside, values)))
        case ast.Compare(left=left, ops=operators, comparators=comparators) if {*map(type, operators)} <= {*_SYMBOLS}:
            operands = [inside(operand) for operand in (left, *comparators)]
            names = (_SYMBOLS[type(operator)] for operator in operators)
            pairs = tuple(map(Operation, names, itertools.pairwise(operands)))
            return pairs[0] if len(pairs) == 1 else Operation("and", pairs)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return Operation("if", (inside(test), inside(body), inside(orelse)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            takes_several = name in ("max", "min")
            if len(arguments) < 2 if takes_several else len(arguments) != 1:
                takes = "at least 2 numbers" if takes_several else "1 number"
                raise GuardSyntaxError(f"`{name}` takes {takes}, got {len(arguments)}: {_shown(text)}")
            return Operation(name, tuple(map(inside, arguments)))
        case ast.Call(func=ast.Name(id=name)) if name not in FUNCTIONS:
            raise GuardSyntaxError(f"unknown function `{name}`: {_shown(text)}")
    shown = ast.get_source_segment(text, tree) or text
    raise GuardSyntaxError(f"`{_shown(shown)}` is not allowed in an expression")


def _shown(text: str) -> str:
    return one_line(" ".join(restore_paths(text).split()), 60)


def walk(expression: Expression) -> Iterator[Expression]:
    """The expression and all expressions inside it, each before its operands."""
    waiting = [expression]
    while waiting:  # a generator per level would take a third longer
        part = waiting.pop()
        yield part
        if isinstance(part, Operation):
            waiting += reversed(part.operands)


def rebuilt(expression: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """The expression with each of its direct operands changed.

    >>> rebuilt(parse("not ready"), lambda operand: Constant(True))
    Operation(name='not', operands=(Constant(value=True),))
    """
    if not isinstance(expression, Operation):
        return expression
    return Operation(expression.name, tuple(map(change, expression.operands)))


def expand(expression: Expression, guards: Mapping[str, Expression]) -> Expression:
    """The expression with the names of guards, none of which names itself, replaced by their expressions.

    >>> expand(parse("not ready"), {"ready": parse("step.steps > 3")}) == parse("not step.steps > 3")
    True
    """
    if isinstance(expression, Name) and expression.name in guards:
        return expand(guards[expression.name], guards)
    return rebuilt(expression, lambda part: expand(part, guards))
