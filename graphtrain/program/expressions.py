"""Expressions that nodes read: their values as their parameters have them, or an error that names the expression."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, final, get_args, get_origin

from graphtrain.errors import ExpressionError
from graphtrain.kind.parameter import Above
from graphtrain.plan.scope import ExpressionTarget
from graphtrain.program.bind import BoundNode

Read = Callable[[], Any]


@final
class Expressions:
    """The aspect of visits whose parameters are evaluated.

    Arguments:
        value: makes a call that returns the value of an expression.
    """

    def __init__(self, value: Callable[[ExpressionTarget], Read]) -> None:
        self._value = value

    def wrap(self, bound: BoundNode, visit: Read) -> Read:
        """The visit of a node, before which its parameters get the values of their expressions."""
        getters = [(name, self._value(target)) for name, target in bound.planned.expressions.items()]
        if not getters:
            return visit
        arguments, (only_name, only_get) = bound.arguments, getters[0]

        def visit_one() -> Any:
            arguments[only_name] = only_get()
            return visit()

        def visit_all() -> Any:
            for name, get in getters:
                arguments[name] = get()
            return visit()

        return visit_one if len(getters) == 1 else visit_all  # a loop costs 0.1 us more


def evaluated(target: ExpressionTarget, read: Read) -> Read:
    """A call that returns the value of an expression.

    A number of the right type and within its bound is let through by two comparisons (0.05 us); `Parameter.evaluated`
    decides about the rest.

    Arguments:
        read: returns what the expression gives.

    Raises:
        ExpressionError: when called.
    """
    name, text, parameter = target.name, target.text, target.parameter

    def raised(error: Exception) -> ExpressionError:
        if isinstance(error, ExpressionError):  # of an expression that this one reads
            return error
        hint = "let what writes it write a number, as a tensor's `.item()`" if isinstance(error, TypeError) else ""
        return ExpressionError(name, text, f"raised {type(error).__name__}: {error}", hint)

    def read_or_raise() -> Any:
        try:
            return read()
        except Exception as error:
            raise raised(error) from None

    if parameter is None:
        return read_or_raise

    def converted(value: Any) -> Any:
        try:
            return parameter.evaluated(value)
        except (ValueError, OverflowError) as error:
            raise ExpressionError(name, text, str(error)) from None

    number, least = _bounded(parameter.annotation)

    def typed() -> Any:
        try:
            value: Any = read()
        except Exception as error:
            raise raised(error) from None
        return value if type(value) is number and least < value < math.inf else converted(value)

    return typed


def _bounded(annotation: Any) -> tuple[Any, float]:
    """The type of numbers that a parameter takes (None where it takes others), and what they have to exceed."""
    least = -math.inf
    if get_origin(annotation) is Annotated:
        annotation, *bounds = get_args(annotation)
        least = max((bound.bound for bound in bounds if isinstance(bound, Above)), default=least)
    return (annotation if annotation in (int, float) else None), least
