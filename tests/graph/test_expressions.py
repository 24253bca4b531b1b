"""Promise 3: the language of guards and parameters: what it takes, and that it means what Python means."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from graphtrain.graph.closures import Cell, compile_guard, constant, constant_value, stored
from graphtrain.graph.syntax import (
    FUNCTIONS,
    Constant,
    Expression,
    FieldOf,
    GuardSyntaxError,
    Name,
    Operation,
    expand,
    parse,
)

A, B = FieldOf("a", "b"), Name("b")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("open('x')", "unknown function `open`: open('x')"),
        ("sqrt()", "`sqrt` takes 1 number, got 0: sqrt()"),
        ("max(a.b)", "`max` takes at least 2 numbers, got 1: max(a.b)"),
        ("1 < \N{LATIN LETTER DENTAL CLICK}", "the character"),
        ("a.b.c > 1", "`a.b.c` is not allowed in an expression"),
        ("None", "`None` is not allowed in an expression"),
        *((text, "is not allowed") for text in (
            "max(*a, b)", "min(a, b, key=c)", "a.max(b, c)", "a[0]", "lambda: 1", "(x := 1)", "f'{x}'", "a is b",
            "a in b", "a ** 2", "a & b", "+a", "[x for x in y]", "(a, b)", "1j")),
        *((text, "not an expression") for text in ("a if b", "a = 1", "import os", "a\0")),
        (" \n ", "the expression is empty"),
        ("a > 0 # why\nand b", "several lines must not contain `#`"),
        ("(" * 900 + "a" + ")" * 900, "too many nested parentheses"),
        ("+".join("1" * 900), "nested too deeply"),
    ],
)  # fmt: skip
def test_what_an_expression_must_not_contain(text: str, expected: str) -> None:
    with pytest.raises(GuardSyntaxError) as caught:
        parse(text)
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 200, "a long text is shortened"


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("True", Constant(True)),
        ("'x  y'", Constant("x  y")),
        ("1_000", Constant(1000)),
        (str(2**63 - 1), Constant(2**63 - 1)),
        ("-a.b", Operation("-", (A,))),
        ("not a.b and b or 1", Operation("or", (Operation("and", (Operation("not", (A,)), B)), Constant(1)))),
        ("1 + 2 * 3", Operation("+", (Constant(1), Operation("*", (Constant(2), Constant(3)))))),
        ("1 < a.b <= 3", Operation("and", (Operation("<", (Constant(1), A)), Operation("<=", (A, Constant(3)))))),
        (" a.b\n  and b ", Operation("and", (A, B))),
        ("b # why", B),
        ("a.b if b else 2", Operation("if", (B, A, Constant(2)))),
        ("min(a.b, 3, pi)", Operation("min", (A, Constant(3), Constant(math.pi)))),
        ("a.b < -inf", Operation("<", (A, Operation("-", (Constant(math.inf),))))),
        (r"a.b == '\d'", Operation("==", (A, Constant("\\d")))),  # an odd escape is no warning
        (" and ".join(["b"] * 300), Operation("and", (B,) * 300)),  # wide is not deep
        # `fit` is a node with a body: a chain that begins with it is a path
        ("fit/step.steps/2", Operation("/", (FieldOf("fit/step", "steps"), Constant(2)))),
        ("b/fit/step.x", Operation("/", (Operation("/", (B, Name("fit"))), FieldOf("step", "x")))),
        ("1 / fit/in/step.x", Operation("/", (Constant(1), FieldOf("fit/in/step", "x")))),
        ("fit / step.x", Operation("/", (Name("fit"), FieldOf("step", "x")))),
        ("b/step.x", Operation("/", (B, FieldOf("step", "x")))),
        ("fit.runs / 2", Operation("/", (FieldOf("fit", "runs"), Constant(2)))),
        ("-(fit/step.x)", Operation("-", (FieldOf("fit/step", "x"),))),
        ("a.b == 'fit/step'", Operation("==", (A, Constant("fit/step")))),
    ],
)
def test_what_it_means(text: str, tree: Expression) -> None:
    assert parse(text, frozenset(["fit"])) == tree


def test_a_path_leads_to_a_field() -> None:
    for text, named in (("fit/step > 3", "fit/step"), ("fit/step.a.b > 3", "fit/step.a.b")):
        with pytest.raises(GuardSyntaxError) as caught:
            parse(text, frozenset(["fit"]))
        assert f"`{named}` is not allowed in an expression" in str(caught.value)


def test_guards_by_name_are_expanded() -> None:
    guards = {"ready": parse("due and x.y > 1"), "due": parse("z.due")}
    assert expand(parse("not ready or slot == 'due'"), guards) == parse("not (z.due and x.y > 1) or slot == 'due'")
    assert expand(parse("due and due"), guards) == parse("z.due and z.due")


@pytest.mark.parametrize(
    ("texts", "value"),
    [
        (["1 < 2", "x.y < 3 or 1 < 2", "max(1, 2) > sqrt(2)", "cos(pi) == -1", "True if 1 < 2 else False"], True),
        (["1 > 2", "'a' == 'b'", "x.y < 3 and not True", "not (1 < 2)", "False"], False),
        (["1 < 2 and x.y", "1 < x.y < 3", "1 / 0 > 1", "log(0) > 1", "exp(999) > 1", "x.y if 1 < 2 else False",
          "slot > 1", "3"], None),
    ],
)  # fmt: skip
def test_constants_are_known(texts: list[str], value: bool | None) -> None:
    assert {text: constant_value(parse(text)) for text in texts} == dict.fromkeys(texts, value)


# ---- the compiled form against Python

FIELDS = ("a.i", "a.f", "b.flag", "b.n", "slot")
LEAVES = st.one_of(
    st.builds(Constant, st.one_of(st.booleans(), st.integers(-3, 3), st.sampled_from([0.0, 0.5, -1.5, 1e308]))),
    st.sampled_from([FieldOf(*name.split(".")) if "." in name else Name(name) for name in FIELDS]),
)


def larger(inside: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    several = st.lists(inside, min_size=2, max_size=4).map(tuple)
    words = {
        1: ["not", "-", "abs", "ceil", "cos", "exp", "floor", "log", "sqrt"],
        2: ["+", "-", "*", "/", "//", "%", "==", "!=", "<", "<=", ">", ">="],
        3: ["if"],
    }
    return st.one_of(
        st.builds(Operation, st.sampled_from(["and", "or", "min", "max"]), several),
        *(st.builds(Operation, st.sampled_from(found), st.tuples(*[inside] * n)) for n, found in words.items()),
    )


VALUES = st.fixed_dictionaries(
    {name: st.one_of(st.booleans(), st.integers(-3, 3), st.floats(-2, 2, allow_nan=False)) for name in FIELDS}
)


class Held:
    """Attributes of nodes, one of which is constant, as a bound graph has them."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.nodes = {node: type("Instance", (), {})() for node in ("a", "b")}
        for name, value in values.items():
            node, dot, field = name.partition(".")
            if dot:
                setattr(self.nodes[node], field, value)

    def __call__(self, read: Name | FieldOf) -> Cell:
        if read == FieldOf("b", "n"):
            return constant(self.values["b.n"])
        if isinstance(read, FieldOf) and read.node == "a":
            return stored(vars(self.nodes["a"]), read.field)
        return Cell(lambda: self.values[read.name if isinstance(read, Name) else f"{read.node}.{read.field}"])


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
        case FieldOf(node, field):
            return f"{node}.{field}"
    assert isinstance(expression, Name)
    return expression.name


def outcome(call: Callable[[], Any]) -> tuple[type, Any]:
    """The type and the value, or the type of the exception; NaN by its name, since it equals nothing."""
    try:
        value = call()
    except Exception as error:
        return type(error), None
    return type(value), value if value == value else "nan"


@pytest.mark.full
@settings(max_examples=150)
@given(st.recursive(LEAVES, larger, max_leaves=12), VALUES)
@example(parse("slot and b.n"), {"slot": 2, "b.n": 3, "a.i": 0, "a.f": 0, "b.flag": True})
@example(parse("(slot or b.n) == True"), {"slot": 2, "b.n": 3, "a.i": 0, "a.f": 0, "b.flag": True})
@example(parse("a.i / a.f > 1 and slot"), {"slot": 2, "b.n": 3, "a.i": 0, "a.f": 0, "b.flag": True})
@example(parse("3 > a.i >= b.n > 1"), {"slot": 2, "b.n": 2, "a.i": 2, "a.f": 0, "b.flag": True})
@example(parse("a.i > 0 and 1 / a.i > 0 or 1 < a.i < 1 / a.i"), dict.fromkeys(FIELDS, 0))
def test_it_means_what_python_means(expression: Expression, values: dict[str, Any]) -> None:
    held = Held(values)
    named = {"slot": values["slot"], **held.nodes}
    text = python_text(expression)
    expected = outcome(lambda: eval(text, {"__builtins__": {}}, named | FUNCTIONS))  # noqa: S307 - made above
    compiled = compile_guard(expression, held)
    assert outcome(compiled) == expected
    assert outcome(compiled) == expected, "it is pure: asking again changes nothing"
    if "not not" not in text:
        assert outcome(compile_guard(parse(text), held)) == expected


def test_a_constant_is_read_once_and_a_field_at_every_call() -> None:
    held = Held({"a.i": 1, "a.f": 0.0, "b.flag": True, "b.n": 2, "slot": 0})
    guard = compile_guard(parse("a.i >= b.n"), held)
    assert guard() is False
    held.nodes["a"].i = 2
    assert guard() is True
    held.values["b.n"] = 5
    assert guard() is True, "a parameter does not change while the graph runs"
