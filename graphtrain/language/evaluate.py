"""The meaning of a guard, or of another expression: the value of its tree.

This is the reference implementation: simple, slow, and independent of the closures that `guards.closures` compiles.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from graphtrain.language.syntax import Constant, Expression, FieldOf, Name, Operation, walk

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
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")

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

    >>> from graphtrain.language.syntax import parse
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
        case Operation("if", (condition, then, otherwise)):
            return evaluate(then if evaluate(condition, read) else otherwise, read)
    values = (evaluate(operand, read) for operand in expression.operands)  # one after the other
    match expression.name:
        case "and":
            return all(values)
        case "or":
            return any(values)
    return operation(expression)(*values)


def operation(expression: Operation) -> Callable[..., Any]:
    """What an operator or a function computes from the values of all its operands."""
    if len(expression.operands) == 1 and expression.name in ("not", "-"):
        return operator.not_ if expression.name == "not" else operator.neg
    return OPERATORS.get(expression.name) or FUNCTIONS[expression.name]


def constant_value(expression: Expression) -> bool | None:
    """True or False if the expression has that value whatever its fields hold; None if it depends on them.

    >>> from graphtrain.language.syntax import parse
    >>> constant_value(parse("step.steps > 3 or 1 < 2")), constant_value(parse("step.steps > 3"))
    (True, None)
    """
    match expression:
        case Constant(bool() as value):
            return value
        case Operation("not", (operand,)):
            inner = constant_value(operand)
            return None if inner is None else not inner
        case Operation("and" | "or" as name, operands):
            values, decides = [constant_value(operand) for operand in operands], name == "or"
            return decides if decides in values else None if None in values else not decides
        case Operation("if", (condition, then, otherwise)):
            known, values = constant_value(condition), [constant_value(then), constant_value(otherwise)]
            return values[not known] if known is not None else values[0] if values[0] is values[1] else None
        case Operation(name, (left, right)) if name in COMPARISONS and left == right:
            return name in ("==", "<=", ">=")
        case Operation(name, _) if name in COMPARISONS and not any(
            isinstance(part, Name | FieldOf) for part in walk(expression)
        ):
            try:
                return bool(evaluate(expression, str))
            except (ArithmeticError, ValueError):
                return None
    return None
