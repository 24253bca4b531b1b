"""Guards: what is allowed, what they mean, and that the compiled form means the same."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from graphtrain import Graph
from graphtrain.checks.guards import spell
from graphtrain.language.closures import FUNCTIONS, Cell, compile_guard, constant, constant_value, stored
from graphtrain.language.syntax import (
    Constant,
    Expression,
    FieldOf,
    GuardCycleError,
    GuardSyntaxError,
    Name,
    Operation,
    expand,
    parse,
    walk,
)
from tests.language.reference import evaluate


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("open('x')", "unknown function `open`: open('x')"),
        ("sqrt()", "`sqrt` takes 1 number, got 0: sqrt()"),
        ("max(a.b)", "`max` takes at least 2 numbers, got 1: max(a.b)"),
        ("max(*a, b)", "`*a` is not allowed in an expression"),
        ("min(a, b, key=c)", "is not allowed in an expression"),
        ("a.max(b, c)", "`a.max(b, c)` is not allowed in an expression"),
        ("1 < \N{LATIN LETTER DENTAL CLICK}", "the character"),
        ("a.b.c > 1", "`a.b.c` is not allowed in an expression"),
        ("a[0]", "is not allowed"),
        ("lambda: 1", "is not allowed"),
        ("(x := 1)", "is not allowed"),
        ("f'{x}'", "is not allowed"),
        ("a is b", "is not allowed"),
        ("a in b", "is not allowed"),
        ("a ** 2", "is not allowed"),
        ("a & b", "is not allowed"),
        ("+a", "is not allowed"),
        ("[x for x in y]", "is not allowed"),
        ("(a, b)", "is not allowed"),
        ("None", "`None` is not allowed in an expression"),
        ("1j", "is not allowed"),
        ("a if b", "not an expression"),
        ("a = 1", "not an expression"),
        (" \n ", "the expression is empty"),
        ("import os", "not an expression"),
        ("a\0", "not an expression"),
        ("a > 0 # why\nand b", "several lines must not contain `#`"),
        ("(" * 900 + "a" + ")" * 900, "too many nested parentheses"),
        ("+".join("1" * 900), "nested too deeply"),
    ],
)
def test_what_a_guard_must_not_contain(text: str, expected: str) -> None:
    with pytest.raises(GuardSyntaxError) as caught:
        parse(text)
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 200, "a long text is shortened"


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a", Name("a")),
        ("True", Constant(True)),
        ("'x  y'", Constant("x  y")),
        ("1_000", Constant(1000)),
        (str(2**63 - 1), Constant(2**63 - 1)),
        ("a.b", FieldOf("a", "b")),
        ("-a.b", Operation("-", (FieldOf("a", "b"),))),
        (
            "not a and b or c",
            Operation("or", (Operation("and", (Operation("not", (Name("a"),)), Name("b"))), Name("c"))),
        ),
        ("1 + 2 * 3", Operation("+", (Constant(1), Operation("*", (Constant(2), Constant(3)))))),
        (
            "1 < a.b <= 3",
            Operation(
                "and",
                (Operation("<", (Constant(1), FieldOf("a", "b"))), Operation("<=", (FieldOf("a", "b"), Constant(3)))),
            ),
        ),
        (" a\n  and b ", Operation("and", (Name("a"), Name("b")))),
        ("a # why", Name("a")),
        ("a if b else 2", Operation("if", (Name("b"), Name("a"), Constant(2)))),
        ("min(a.b, 3, pi)", Operation("min", (FieldOf("a", "b"), Constant(3), Constant(math.pi)))),
        ("a.b < -inf", Operation("<", (FieldOf("a", "b"), Operation("-", (Constant(math.inf),))))),
        ("sqrt(-a.b)", Operation("sqrt", (Operation("-", (FieldOf("a", "b"),)),))),
        (r"a.b == '\d'", Operation("==", (FieldOf("a", "b"), Constant("\\d")))),  # an odd escape is no warning
        (" and ".join(["a"] * 300), Operation("and", (Name("a"),) * 300)),  # wide is not deep
    ],
)
def test_what_it_may(text: str, tree: Expression | None) -> None:
    assert tree is None or parse(text) == tree


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("fit/step.steps", FieldOf("fit/step", "steps")),
        ("fit/step.steps/2", Operation("/", (FieldOf("fit/step", "steps"), Constant(2)))),
        ("a/fit/step.steps", Operation("/", (Operation("/", (Name("a"), Name("fit"))), FieldOf("step", "steps")))),
        ("a.b/fit/step.steps", None),
        ("1/fit/step.steps", None),
        ("1 / fit/step.steps", Operation("/", (Constant(1), FieldOf("fit/step", "steps")))),
        ("fit / step.steps", Operation("/", (Name("fit"), FieldOf("step", "steps")))),
        ("other/step.steps", Operation("/", (Name("other"), FieldOf("step", "steps")))),
        ("fit/inner/step.steps > 'fit/step'", None),
        ("fit.runs / 2", Operation("/", (FieldOf("fit", "runs"), Constant(2)))),
        ("-fit/step.steps", Operation("-", (FieldOf("fit/step", "steps"),))),
        ("(fit/step.steps)", FieldOf("fit/step", "steps")),
    ],
)
def test_a_chain_that_begins_with_a_node_with_a_body_is_a_path(text: str, tree: Expression | None) -> None:
    parsed = parse(text, frozenset(["fit"]))
    assert tree is None or parsed == tree
    assert {part.node for part in walk(parsed) if isinstance(part, FieldOf) and "/" in part.node} <= {
        "fit/step",
        "fit/inner/step",
    }
    strings = [part.value for part in walk(parsed) if isinstance(part, Constant) and isinstance(part.value, str)]
    assert strings in ([], ["fit/step"]), "a string is left alone"


def test_a_path_leads_to_a_field() -> None:
    with pytest.raises(GuardSyntaxError, match="`fit/step` is not allowed in an expression"):
        parse("fit/step > 3", frozenset(["fit"]))
    with pytest.raises(GuardSyntaxError, match=r"`fit/step\.a\.b` is not allowed in an expression"):
        parse("fit/step.a.b > 3", frozenset(["fit"]))


def test_expansion_replaces_guards_and_leaves_slots_and_strings() -> None:
    guards = {"ready": parse("due and x.y > 1"), "due": parse("z.due")}
    assert expand(parse("not ready or slot == 'due'"), guards) == parse("not (z.due and x.y > 1) or slot == 'due'")


@pytest.mark.parametrize(
    ("guards", "path"),
    [
        ({"a": "a"}, ("a", "a")),
        ({"a": "b", "b": "not a"}, ("a", "b", "a")),
        ({"a": "x.y > 0 and b", "b": "c", "c": "b"}, ("b", "c", "b")),
    ],
)
def test_a_circle_of_guards_is_named(guards: dict[str, str], path: tuple[str, ...]) -> None:
    trees = {name: parse(text) for name, text in guards.items()}
    with pytest.raises(GuardCycleError) as caught:
        expand(trees["a"], trees, ("a",))
    assert caught.value.path == path


def test_a_guard_named_twice_is_no_circle() -> None:
    assert expand(parse("a and a"), {"a": parse("x.y")}) == parse("x.y and x.y")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 < 2", True),
        ("1 > 2", False),
        ("'a' == 'b'", False),
        ("x.y == x.y", True),
        ("x.y != x.y", False),
        ("x.y < 3 or 1 < 2", True),
        ("x.y < 3 and not True", False),
        ("1 < 2 and x.y", None),
        ("not (1 < 2)", False),
        ("1 < x.y < 3", None),
        ("1 / 0 > 1", None),
        ("log(0) > 1", None),
        ("exp(999) > 1", None),
        ("max(1, 2) > sqrt(2)", True),
        ("cos(pi) == -1", True),
        ("True if x.y else True", True),
        ("False if 1 < 2 else x.y", False),
        ("x.y if 1 < 2 else False", None),
        ("slot > 1", None),
        ("True", True),
    ],
)
def test_constants(text: str, value: bool | None) -> None:
    assert constant_value(parse(text)) is value


# --- The compiled form against the reference -----------------------------------------------------------------------

FIELDS = ("a.i", "a.f", "b.flag", "b.n", "slot")
LEAVES = st.one_of(
    st.builds(Constant, st.one_of(st.booleans(), st.integers(-3, 3), st.sampled_from([0.0, 0.5, -1.5, 1e308]))),
    st.sampled_from([FieldOf(*name.split(".")) if "." in name else Name(name) for name in FIELDS]),
)
OPERATORS = ["==", "!=", "<", "<=", ">", ">="]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


def larger(inside: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    several = st.lists(inside, min_size=2, max_size=4).map(tuple)
    pair = st.tuples(inside, inside)
    return st.one_of(
        st.builds(
            Operation,
            st.sampled_from(["not", "-", "abs", "ceil", "cos", "exp", "floor", "log", "sqrt"]),
            st.tuples(inside),
        ),
        st.builds(Operation, st.sampled_from(["and", "or", "min", "max"]), several),
        st.builds(Operation, st.sampled_from(["+", "-", "*", "/", "//", "%", *OPERATORS]), pair),
        st.builds(Operation, st.just("if"), st.tuples(inside, inside, inside)),
    )


EXPRESSIONS = st.recursive(LEAVES, larger, max_leaves=12)
VALUES = st.fixed_dictionaries(
    {name: st.one_of(st.booleans(), st.integers(-3, 3), st.floats(-2, 2, allow_nan=False)) for name in FIELDS}
)


class Held:
    """Plain attributes, some of which the scope declares constant, as a bound graph does."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.nodes = {node: type("Instance", (), {})() for node in ("a", "b")}
        for name, value in values.items():
            node, dot, field = name.partition(".")
            if dot:
                setattr(self.nodes[node], field, value)

    def __call__(self, expression: Name | FieldOf) -> Cell:
        if expression == FieldOf("b", "n"):
            return constant(self.values["b.n"])
        if isinstance(expression, FieldOf) and expression.node == "a":
            return stored(vars(self.nodes["a"]), expression.field)
        return Cell(
            lambda: self.values[
                expression.name if isinstance(expression, Name) else f"{expression.node}.{expression.field}"
            ]
        )


def outcome(call: Callable[[], Any]) -> tuple[type, Any]:
    """The type and the value, or the type of the exception; NaN by its name, since it equals nothing."""
    try:
        value = call()
    except Exception as error:
        return type(error), None
    return type(value), value if value == value else "nan"


@pytest.mark.full
@settings(max_examples=600)
@given(EXPRESSIONS, VALUES)
@example(parse("slot and b.n"), {"slot": 2, "b.n": 3, "a.i": 0, "a.f": 0, "b.flag": True})
@example(parse("(slot or b.n) == True"), {"slot": 2, "b.n": 3, "a.i": 0, "a.f": 0, "b.flag": True})
@example(parse("a.i / a.f > 1 and slot"), {"slot": 2, "b.n": 3, "a.i": 0, "a.f": 0, "b.flag": True})
@example(parse("3 > a.i >= b.n > 1"), {"slot": 2, "b.n": 2, "a.i": 2, "a.f": 0, "b.flag": True})
def test_the_compiled_guard_equals_the_reference(expression: Expression, values: dict[str, Any]) -> None:
    compiled = compile_guard(expression, Held(values))
    expected = outcome(lambda: evaluate(expression, values.__getitem__))
    assert outcome(compiled) == expected
    assert outcome(compiled) == expected, "a guard is pure: asking again changes nothing"


@pytest.mark.full
@settings(max_examples=300)
@given(EXPRESSIONS, VALUES)
def test_python_itself_agrees_with_the_reference(expression: Expression, values: dict[str, Any]) -> None:
    """`and` and `or` of the reference answer True or False; of a guard's value nothing else is asked."""
    named = {"slot": values["slot"], **Held(values).nodes}

    def python() -> bool:
        return bool(eval(python_text(expression), {"__builtins__": {}}, named | FUNCTIONS))  # noqa: S307 - made above

    kind, value = outcome(lambda: bool(evaluate(expression, values.__getitem__)))
    assert outcome(python) == (kind, value)


def python_text(expression: Expression) -> str:
    match expression:
        case Operation("and" | "or" as word, operands):
            # Written so that it answers a truth value, as a guard's `and` does.
            return "(not not (" + f" {word} ".join(map(python_text, operands)) + "))"
        case Operation("if", (condition, then, otherwise)):
            return f"({python_text(then)} if {python_text(condition)} else {python_text(otherwise)})"
        case Operation(function, operands) if function in FUNCTIONS:
            return f"{function}({', '.join(map(python_text, operands))})"
        case Operation(symbol, (operand,)):
            return f"({symbol} {python_text(operand)})"
        case Operation(symbol, (left, right)):
            return f"({python_text(left)} {symbol} {python_text(right)})"
        case Constant(value):
            return f"({value!r})"
    return spell(expression)


@pytest.mark.full
@settings(max_examples=200)
@given(EXPRESSIONS)
def test_an_expression_parses_back_from_python_text(expression: Expression) -> None:
    text = python_text(expression)
    if "not not" in text:
        return
    parsed = parse(text)
    assert len(list(walk(parsed))) >= len(list(walk(expression)))
    assert {part for part in walk(parsed) if isinstance(part, FieldOf)} == {
        part for part in walk(expression) if isinstance(part, FieldOf)
    }


def test_a_constant_is_read_once_and_a_field_at_every_call() -> None:
    held = Held({"a.i": 1, "a.f": 0.0, "b.flag": True, "b.n": 2, "slot": 0})
    guard = compile_guard(parse("a.i >= b.n"), held)
    assert guard() is False
    held.nodes["a"].i = 2
    assert guard() is True
    held.values["b.n"] = 5
    assert guard() is True, "a parameter does not change while the graph runs"


def test_short_circuits_protect_what_follows() -> None:
    held = Held({"a.i": 0, "a.f": 0.0, "b.flag": False, "b.n": 2, "slot": 0})
    assert compile_guard(parse("a.i > 0 and 1 / a.i > 0"), held)() is False
    assert compile_guard(parse("a.i == 0 or 1 / a.i > 0 or b.flag"), held)() is True
    assert compile_guard(parse("1 < a.i < 1 / a.i"), held)() is False


def test_comparison_uses_every_operator_the_reference_knows() -> None:
    for symbol, function in zip(OPERATORS, COMPARISONS, strict=True):
        for value in (1, 2, 3):
            held = Held({"a.i": value, "a.f": 0.0, "b.flag": False, "b.n": 2, "slot": 0})
            assert compile_guard(parse(f"a.i {symbol} 2"), held)() is function(value, 2)
            assert compile_guard(parse(f"a.i {symbol} b.n"), held)() is function(value, 2)
            assert compile_guard(parse(f"2 {symbol} a.i"), held)() is function(2, value)


def test_guards_of_shipped_graphs_parse_and_are_not_constant() -> None:
    for name in ("fit", "evaluate"):
        guards = {key: parse(text) for key, text in Graph.load(name).guards.items()}
        for key, tree in guards.items():
            assert constant_value(expand(tree, guards, (key,))) is None
