"""The meaning of a guard, or of another expression: the value of its tree.

This is the reference implementation: simple, slow, and independent of the closures that `guards.closures` compiles.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from graphtrain.guards.syntax import (
    Arithmetic,
    Both,
    Call,
    Comparison,
    Conditional,
    Constant,
    Either,
    Expression,
    FieldOf,
    Name,
    Negative,
    Not,
    walk,
)

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "cos": math.cos,
    "exp": math.exp,
    "floor": math.floor,
    "log": math.log,
    "max": max,
    "min": min,
    "sqrt": math.sqrt,
}


def evaluate(expression: Expression, read: Callable[[str], Any]) -> Any:
    """The value of an expression whose named guards are expanded.

    Arguments:
        read: returns the value of ``"node.field"`` or of a slot.

    >>> from graphtrain.guards.syntax import parse
    >>> evaluate(parse("1 < step.steps <= 3"), {"step.steps": 3}.__getitem__)
    True
    """
    match expression:
        case Constant(value):
            return value
        case Name(name):
            return read(name)
        case FieldOf(node, field):
            return read(f"{node}.{field}")
        case Not(operand):
            return not evaluate(operand, read)
        case Negative(operand):
            return -evaluate(operand, read)
        case Both(operands):
            return all(evaluate(operand, read) for operand in operands)
        case Either(operands):
            return any(evaluate(operand, read) for operand in operands)
        case Arithmetic(symbol, left, right):
            return OPERATORS[symbol](evaluate(left, read), evaluate(right, read))
        case Conditional(condition, then, otherwise):
            return evaluate(then if evaluate(condition, read) else otherwise, read)
        case Call(function, operands):
            return FUNCTIONS[function](*[evaluate(operand, read) for operand in operands])
        case Comparison(operands, symbols):
            left = evaluate(operands[0], read)
            for symbol, operand in zip(symbols, operands[1:], strict=True):
                right = evaluate(operand, read)
                if not OPERATORS[symbol](left, right):
                    return False
                left = right
            return True


def constant_value(expression: Expression) -> bool | None:
    """True or False if the expression has that value whatever its fields hold; None if it depends on them.

    >>> from graphtrain.guards.syntax import parse
    >>> constant_value(parse("step.steps > 3 or 1 < 2")), constant_value(parse("step.steps > 3"))
    (True, None)
    """
    match expression:
        case Constant(bool() as value):
            return value
        case Not(operand):
            inner = constant_value(operand)
            return None if inner is None else not inner
        case Both(operands):
            values = [constant_value(operand) for operand in operands]
            return False if False in values else None if None in values else True
        case Either(operands):
            values = [constant_value(operand) for operand in operands]
            return True if True in values else None if None in values else False
        case Conditional(condition, then, otherwise):
            known, values = constant_value(condition), [constant_value(then), constant_value(otherwise)]
            return values[not known] if known is not None else values[0] if values[0] is values[1] else None
        case Comparison(operands, symbols) if len(set(operands)) == 1:
            return all(symbol in ("==", "<=", ">=") for symbol in symbols)
        case Comparison(operands, _) if not any(_reads(operand) for operand in operands):
            try:
                return bool(evaluate(expression, _nothing))
            except (ArithmeticError, ValueError):
                return None
    return None


def _reads(expression: Expression) -> bool:
    return any(isinstance(part, Name | FieldOf) for part in walk(expression))


def _nothing(name: str) -> Any:
    raise AssertionError(f"a constant expression read {name}")
