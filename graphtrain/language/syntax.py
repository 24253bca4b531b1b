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
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

MAX_CHARACTERS = 2000
MAX_DEPTH = 30
MAX_INTEGER = 2**63 - 1
# Limits after named guards are expanded: a guard can double at every level, so a page of text could fill the memory.
MAX_EXPANDED_DEPTH = 100
MAX_EXPANDED_PARTS = 10_000

Literal = bool | int | float | str


# The functions of an expression, and how many operands each takes: at least, and at most (None: any number).
FUNCTIONS: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(("abs", "ceil", "cos", "exp", "floor", "log", "sqrt"), (1, 1)),
    **dict.fromkeys(("max", "min"), (2, None)),
}
# The names that are numbers in every expression.
NUMBERS = {"pi": math.pi, "inf": math.inf}

# Replaces the `/` of a path while Python's parser reads it: a letter, so that a path is one name.
_SLASH = "\N{LATIN LETTER DENTAL CLICK}"


class GuardSyntaxError(ValueError):
    """The text is not an expression; the message says which part is not allowed."""


class UnknownFunctionError(GuardSyntaxError):
    """A call of a function that an expression does not have."""

    def __init__(self, name: str, shown: str) -> None:
        self.name = name
        super().__init__(f"unknown function `{name}`: {shown}")


@dataclass(frozen=True)
class Constant:
    """A literal."""

    value: Literal


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
_REFUSED: dict[type[ast.AST], str] = {
    ast.Call: "a call",
    ast.Subscript: "a subscript",
    ast.Lambda: "a lambda",
    ast.Pow: "the operator **",
    ast.Is: "the operator `is`",
    ast.IsNot: "the operator `is not`",
    ast.In: "the operator `in`",
    ast.NotIn: "the operator `not in`",
    ast.NamedExpr: "an assignment",
    ast.JoinedStr: "a formatted string",
    ast.List: "a list",
    ast.Tuple: "a tuple",
    ast.Dict: "a dict",
    ast.Set: "a set",
    ast.Await: "an await",
    ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
    ast.Constant: "a literal other than a number, a string, True and False",
    ast.UAdd: "a sign +",
    ast.Invert: "the operator ~",
}


@functools.lru_cache(maxsize=4096)
def parse(text: str, bodies: frozenset[str] = frozenset()) -> Expression:
    """Parse the text of a guard, or of another expression.

    Arguments:
        bodies: the nodes that have a body. A chain of names that begins with one of them, written without spaces, is a
            path: ``fit/step.steps``. Every other `/` divides. Default: none.

    Raises:
        GuardSyntaxError: it is too long, nested too deeply, not an expression, or contains a part that is not allowed.

    >>> parse("step.steps >= 3")
    Operation(name='>=', operands=(FieldOf(node='step', field='steps'), Constant(value=3)))
    >>> parse("open('x')")
    Traceback (most recent call last):
        ...
    graphtrain.language.syntax.UnknownFunctionError: unknown function `open`: open('x')
    >>> parse("fit/step.steps", frozenset(["fit"]))
    FieldOf(node='fit/step', field='steps')
    """
    if len(text) > MAX_CHARACTERS:
        raise GuardSyntaxError(f"an expression has at most {MAX_CHARACTERS} characters; this one has {len(text)}")
    if _SLASH in text:
        raise GuardSyntaxError(f"the character {_SLASH} is not allowed in an expression: {shorten(text)}")
    text = with_paths(text, bodies)
    try:
        tree = python_tree(text)
    except SyntaxError as error:
        raise GuardSyntaxError(f"{_no_expression(text, error)}: {_shown(text)}") from None
    except (ValueError, MemoryError, RecursionError):
        raise GuardSyntaxError(f"not an expression, or nested too deeply: {_shown(text)}") from None
    return _convert(tree.body, on_one_line(text), 0)


_PATH = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?<![\w./])([^\W\d]\w*)(?:/[^\W\d]\w*)+""", re.DOTALL)


def with_paths(text: str, bodies: Collection[str]) -> str:
    """The text with every path as one name of the same length; strings are unchanged. `without_paths` undoes it."""
    if not bodies or "/" not in text:
        return text
    return _PATH.sub(
        lambda match: match[0].replace("/", _SLASH) if match[2] in bodies else match[0],
        text,
    )


def without_paths(text: str) -> str:
    """The text as it was written."""
    return text.replace(_SLASH, "/")


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


def on_one_line(text: str) -> str:
    """The text with line breaks replaced by spaces, which keeps offsets: a guard in a TOML string may span lines."""
    return text.replace("\r", " ").replace("\n", " ")


def python_tree(text: str) -> ast.Expression:
    """The result of Python's parser, without its warnings (of an invalid escape in a string).

    Raises:
        SyntaxError, ValueError, MemoryError, RecursionError: the text cannot be parsed.
    """
    if "#" in text and len(text.strip().splitlines()) > 1:
        raise SyntaxError("several lines must not contain `#`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(on_one_line(text).strip(), mode="eval")


def _no_expression(text: str, error: SyntaxError) -> str:
    if not text.strip():
        return "the expression is empty"
    for pattern, advice in _FOREIGN:
        if re.search(pattern, text):
            return f"not an expression: {advice}"
    return f"not an expression: {error.msg}"


_FOREIGN = (
    (r"&&|\|\||!(?!=)", "write `and`, `or` and `not`"),
    (r"(?<![=!<>:])=(?!=)", "`==` compares"),
)


def _convert(tree: ast.expr, text: str, depth: int) -> Expression:
    def refuse(thing: str, at: ast.AST = tree) -> GuardSyntaxError:
        segment = ast.get_source_segment(text.strip(), at) if hasattr(at, "lineno") else None
        return GuardSyntaxError(f"{thing} is not allowed in an expression: {_shown(segment or text)}")

    def inside(part: ast.expr) -> Expression:
        return _convert(part, text, depth + 1)

    if depth > MAX_DEPTH:
        raise GuardSyntaxError(f"an expression is at most {MAX_DEPTH} levels deep; define its parts as separate guards")
    match tree:
        case ast.Constant(value=bool() | float() | str() as value):
            return Constant(value)
        case ast.Constant(value=int() as value):
            if value > MAX_INTEGER:
                raise refuse("an integer beyond 64 bits")
            return Constant(value)
        case ast.Name(id=name):
            _refuse_dunder(name, text)
            if _SLASH in name:
                raise GuardSyntaxError(f"`{_shown(name)}` is the path of a node, not of one of its fields")
            return Constant(NUMBERS[name]) if name in NUMBERS else Name(name)
        case ast.Attribute(value=ast.Name(id=node), attr=name):
            _refuse_dunder(name, text)
            _refuse_dunder(node, text)
            return FieldOf(without_paths(node), name)
        case ast.Attribute():
            raise refuse("an attribute of anything but a node (`node.field`)")
        case ast.UnaryOp(op=operator, operand=operand) if type(operator) in _SYMBOLS:
            return Operation(_SYMBOLS[type(operator)], (inside(operand),))
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _SYMBOLS:
            return Operation(_SYMBOLS[type(operator)], (inside(left), inside(right)))
        case ast.BoolOp(op=operator, values=values):
            return Operation(_SYMBOLS[type(operator)], tuple(map(inside, values)))
        case ast.UnaryOp(op=operator) | ast.BinOp(op=operator):
            raise refuse(_REFUSED.get(type(operator), "this operator"))
        case ast.Compare(left=left, ops=operators, comparators=comparators):
            if foreign := [operator for operator in operators if type(operator) not in _SYMBOLS]:
                raise refuse(_REFUSED.get(type(foreign[0]), "this comparison"))
            operands = [inside(operand) for operand in (left, *comparators)]
            names = (_SYMBOLS[type(operator)] for operator in operators)
            pairs = tuple(map(Operation, names, itertools.pairwise(operands)))
            return pairs[0] if len(pairs) == 1 else Operation("and", pairs)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return Operation("if", (inside(test), inside(body), inside(orelse)))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            _check_call(name, arguments, keywords, _shown(ast.get_source_segment(text.strip(), tree) or text))
            return Operation(name, tuple(map(inside, arguments)))
    raise refuse(_REFUSED.get(type(tree), f"`{type(tree).__name__}`"))


def _check_call(name: str, arguments: list[ast.expr], keywords: list[ast.keyword], shown: str) -> None:
    if name not in FUNCTIONS:
        raise UnknownFunctionError(name, shown)
    least, most = FUNCTIONS[name]
    if keywords or any(isinstance(argument, ast.Starred) for argument in arguments):
        raise GuardSyntaxError(f"`{name}` takes numbers by position: {shown}")
    if len(arguments) < least or (most is not None and len(arguments) > most):
        takes = "1 number" if most == 1 else f"at least {least} numbers"
        raise GuardSyntaxError(f"`{name}` takes {takes}, got {len(arguments)}: {shown}")


def _refuse_dunder(name: str, text: str) -> None:
    if name.startswith("__"):
        raise GuardSyntaxError(f"the name `{name}` is not allowed in an expression: {_shown(text)}")


def _shown(text: str) -> str:
    return shorten(without_paths(text))


def shorten(text: str, limit: int = 60) -> str:
    """The beginning of a text, for messages."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


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


class GuardCycleError(ValueError):
    """A guard that is defined in terms of itself; `path` is the cycle."""

    def __init__(self, path: tuple[str, ...]) -> None:
        self.path = path
        super().__init__(" -> ".join(path))


def expand(expression: Expression, guards: dict[str, Expression], path: tuple[str, ...] = ()) -> Expression:
    """The expression with the names of guards replaced by their expressions.

    Raises:
        GuardCycleError: a guard names itself, directly or through others.
        GuardSyntaxError: the expanded expression exceeds the limits above.

    >>> expand(parse("not ready"), {"ready": parse("step.steps > 3")}) == parse("not step.steps > 3")
    True
    """
    return _expand(expression, guards, path, 0, itertools.count(1))


def _expand(
    expression: Expression, guards: dict[str, Expression], path: tuple[str, ...], depth: int, counter: Iterator[int]
) -> Expression:
    if next(counter) > MAX_EXPANDED_PARTS:
        raise GuardSyntaxError(f"with its named guards expanded it has more than {MAX_EXPANDED_PARTS} parts")
    if depth > MAX_EXPANDED_DEPTH:
        raise GuardSyntaxError(f"with its named guards expanded it is more than {MAX_EXPANDED_DEPTH} levels deep")

    def inside(part: Expression) -> Expression:
        return _expand(part, guards, path, depth + 1, counter)

    match expression:
        case Name(name) if name in guards:
            if name in path:
                raise GuardCycleError((*path[path.index(name) :], name))
            return _expand(guards[name], guards, (*path, name), depth + 1, counter)
    return rebuilt(expression, inside)
