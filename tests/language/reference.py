"""The meaning of an expression as the value of its tree: simple, slow, and independent of the closures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphtrain.language.closures import operation
from graphtrain.language.syntax import Constant, Expression, FieldOf, Name, Operation


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
