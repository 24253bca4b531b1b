"""From text to a small tree: names, fields, literals, operators, and nothing else.

Python's own parser reads the text; every node of its result must be on the allow-list below. Nothing is executed.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

MAX_CHARACTERS = 2000
MAX_DEPTH = 30
MAX_INTEGER = 2**63 - 1
# Of a guard with the guards it names written out: names double at every level, so a page of text could fill the memory.
MAX_EXPANDED_DEPTH = 100
MAX_EXPANDED_PARTS = 10_000

Literal = bool | int | float | str


class GuardSyntaxError(ValueError):
    """The text is no guard expression; the message says what is not allowed."""


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
    """A field of a node: parameter, progress or declared guard field."""

    node: str
    field: str


@dataclass(frozen=True)
class Not:
    operand: Expression


@dataclass(frozen=True)
class Negative:
    operand: Expression


@dataclass(frozen=True)
class Both:
    """`and` of two or more."""

    operands: tuple[Expression, ...]


@dataclass(frozen=True)
class Either:
    """`or` of two or more."""

    operands: tuple[Expression, ...]


@dataclass(frozen=True)
class Arithmetic:
    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Comparison:
    """``first OP second OP third ...``, chained as in Python."""

    operands: tuple[Expression, ...]
    operators: tuple[str, ...]


Expression = Constant | Name | FieldOf | Not | Negative | Both | Either | Arithmetic | Comparison

_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
}  # fmt: skip
_COMPARISON: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_REFUSED: dict[type[ast.AST], str] = {
    ast.Call: "a call",
    ast.Subscript: "a subscript",
    ast.Lambda: "a lambda",
    ast.IfExp: "a conditional expression",
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
def parse(text: str) -> Expression:
    """The expression that `text` says.

    Raises:
        GuardSyntaxError: it is too long, too deep, no expression, or holds what guards may not.

    >>> parse("step.steps >= 3")
    Comparison(operands=(FieldOf(node='step', field='steps'), Constant(value=3)), operators=('>=',))
    >>> parse("open('x')")
    Traceback (most recent call last):
        ...
    graphtrain.guards.syntax.GuardSyntaxError: a call is not allowed in a guard: open('x')
    """
    if len(text) > MAX_CHARACTERS:
        raise GuardSyntaxError(f"a guard has at most {MAX_CHARACTERS} characters; this one has {len(text)}")
    try:
        tree = python_tree(text)
    except SyntaxError as error:
        raise GuardSyntaxError(f"{_no_expression(text, error)}: {shorten(text)}") from None
    except (ValueError, MemoryError, RecursionError):
        raise GuardSyntaxError(f"no expression, or nested too deeply: {shorten(text)}") from None
    return _convert(tree.body, on_one_line(text), 0)


def on_one_line(text: str) -> str:
    """The text without line breaks, every character at its old place: a guard in a TOML text may span lines."""
    return text.replace("\r", " ").replace("\n", " ")


def python_tree(text: str) -> ast.Expression:
    """What Python's parser makes of the text, its warnings (an odd escape in a string) aside.

    Raises:
        SyntaxError, ValueError, MemoryError, RecursionError: it makes nothing of it.
    """
    if "#" in text and len(text.strip().splitlines()) > 1:
        raise SyntaxError("a guard of several lines holds no `#`")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(on_one_line(text).strip(), mode="eval")


def _no_expression(text: str, error: SyntaxError) -> str:
    if not text.strip():
        return "the expression is empty"
    for pattern, advice in _FOREIGN:
        if re.search(pattern, text):
            return f"no expression: {advice}"
    return f"no expression: {error.msg}"


_FOREIGN = (
    (r"&&|\|\||!(?!=)", "write `and`, `or` and `not`"),
    (r"(?<![=!<>:])=(?!=)", "`==` compares"),
)


def _convert(tree: ast.expr, text: str, depth: int) -> Expression:
    def refuse(thing: str, at: ast.AST = tree) -> GuardSyntaxError:
        segment = ast.get_source_segment(text.strip(), at) if hasattr(at, "lineno") else None
        return GuardSyntaxError(f"{thing} is not allowed in a guard: {shorten(segment or text)}")

    def inside(each: ast.expr) -> Expression:
        return _convert(each, text, depth + 1)

    if depth > MAX_DEPTH:
        raise GuardSyntaxError(f"a guard is at most {MAX_DEPTH} levels deep; name its parts as guards of their own")
    match tree:
        case ast.Constant(value=bool() | float() | str() as value):
            return Constant(value)
        case ast.Constant(value=int() as value):
            if value > MAX_INTEGER:
                raise refuse("an integer beyond 64 bits")
            return Constant(value)
        case ast.Name(id=name):
            _refuse_dunder(name, text)
            return Name(name)
        case ast.Attribute(value=ast.Name(id=node), attr=name):
            _refuse_dunder(name, text)
            _refuse_dunder(node, text)
            return FieldOf(node, name)
        case ast.Attribute():
            raise refuse("an attribute of anything but a node (`node.field`)")
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return Not(inside(operand))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Negative(inside(operand))
        case ast.UnaryOp(op=sign):
            raise refuse(_REFUSED[type(sign)])
        case ast.BoolOp(op=operator, values=values):
            operands = tuple(inside(value) for value in values)
            return Both(operands) if isinstance(operator, ast.And) else Either(operands)
        case ast.BinOp(left=left, op=arithmetic, right=right):
            if type(arithmetic) not in _ARITHMETIC:
                raise refuse(_REFUSED.get(type(arithmetic), "this operator"))
            return Arithmetic(_ARITHMETIC[type(arithmetic)], inside(left), inside(right))
        case ast.Compare(left=left, ops=operators, comparators=comparators):
            for each in operators:
                if type(each) not in _COMPARISON:
                    raise refuse(_REFUSED.get(type(each), "this comparison"))
            return Comparison(
                tuple(inside(one) for one in (left, *comparators)),
                tuple(_COMPARISON[type(each)] for each in operators),
            )
    raise refuse(_REFUSED.get(type(tree), f"`{type(tree).__name__}`"))


def _refuse_dunder(name: str, text: str) -> None:
    if name.startswith("__"):
        raise GuardSyntaxError(f"the name `{name}` is not allowed in a guard: {shorten(text)}")


def shorten(text: str, limit: int = 60) -> str:
    """The first characters of a text, for messages."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def parts(expression: Expression) -> tuple[Expression, ...]:
    """The expressions directly inside."""
    match expression:
        case Not(operand) | Negative(operand):
            return (operand,)
        case Both(operands) | Either(operands) | Comparison(operands, _):
            return operands
        case Arithmetic(_, left, right):
            return (left, right)
    return ()


def walk(expression: Expression) -> Iterator[Expression]:
    """The expression and everything inside it."""
    yield expression
    for part in parts(expression):
        yield from walk(part)


class GuardCycleError(ValueError):
    """A guard that is defined by itself; `path` is the circle."""

    def __init__(self, path: tuple[str, ...]) -> None:
        self.path = path
        super().__init__(" -> ".join(path))


def expand(expression: Expression, guards: dict[str, Expression], path: tuple[str, ...] = ()) -> Expression:
    """The expression with named guards replaced by what they say.

    Raises:
        GuardCycleError: a guard names itself, directly or through others.
        GuardSyntaxError: the guards named make it larger than anyone could read.

    >>> expand(parse("not ready"), {"ready": parse("step.steps > 3")}) == parse("not step.steps > 3")
    True
    """
    return _expand(expression, guards, path, 0, itertools.count(1))


def _expand(
    expression: Expression, guards: dict[str, Expression], path: tuple[str, ...], depth: int, parts_made: Iterator[int]
) -> Expression:
    if next(parts_made) > MAX_EXPANDED_PARTS:
        raise GuardSyntaxError(f"with the guards it names written out it has more than {MAX_EXPANDED_PARTS} parts")
    if depth > MAX_EXPANDED_DEPTH:
        raise GuardSyntaxError(f"with the guards it names written out it is more than {MAX_EXPANDED_DEPTH} levels deep")

    def inside(each: Expression) -> Expression:
        return _expand(each, guards, path, depth + 1, parts_made)

    match expression:
        case Name(name) if name in guards:
            if name in path:
                raise GuardCycleError((*path[path.index(name) :], name))
            return _expand(guards[name], guards, (*path, name), depth + 1, parts_made)
        case Not(operand):
            return Not(inside(operand))
        case Negative(operand):
            return Negative(inside(operand))
        case Both(operands):
            return Both(tuple(map(inside, operands)))
        case Either(operands):
            return Either(tuple(map(inside, operands)))
        case Comparison(operands, operators):
            return Comparison(tuple(map(inside, operands)), operators)
        case Arithmetic(operator, left, right):
            return Arithmetic(operator, inside(left), inside(right))
    return expression
