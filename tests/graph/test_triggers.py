"""Promise 3: triggers: exact amounts, units, never, lists, and texts that are none."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphtrain import Trigger
from graphtrain.kind.trigger import Term, decimal, next_multiple


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("100 steps", Fraction(100), "steps"),
        ("0.29 epochs", Fraction(29, 100), "epochs"),  # a float would be 0.28999999999999998
        ("1/3 epochs", Fraction(1, 3), "epochs"),
        ("10/4 epochs", Fraction(5, 2), "epochs"),
        ("  7   d_steps ", Fraction(7), "d_steps"),
        ("999999999999999 samples", Fraction(10**15 - 1), "samples"),
        ("1.50 hours", Fraction(3, 2), "hours"),
    ],
)
def test_an_amount_is_exact(text: str, amount: Fraction, unit: str) -> None:
    (term,) = Trigger(text).terms
    assert (term.amount, term.unit) == (amount, unit)


def test_never_once_and_lists() -> None:
    assert Trigger("never").terms == () and str(Trigger("never")) == "never"
    assert Trigger(["never"]) == Trigger("never") != Trigger("1 steps")
    assert [Trigger(text).is_never for text in ("never", "once", "1 steps")] == [True, False, False]
    trigger = Trigger(["1 epochs", "10 minutes"])
    assert str(trigger) == "1 epochs or 10 minutes"
    assert trigger == Trigger(("1.0 epochs", "10 minutes")) and hash(trigger) == hash(
        Trigger(("1.0 epochs", "10 minutes"))
    )
    assert [str(term) for term in trigger.terms] == ["1 epochs", "10 minutes"]


@pytest.mark.parametrize("text", ["0 steps", "0.0 steps", "0/3 steps", "1/0 steps", "1/00 steps", "0/0 epochs"])
def test_an_amount_is_positive(text: str) -> None:
    with pytest.raises(ValueError, match="must be greater than 0; got"):
        Trigger(text)


@pytest.mark.parametrize(
    "value",
    ["", " ", "often", "5", "steps", "5steps", "-1 steps", "+1 steps", "nan steps", "inf steps", "1e5 steps",
     "1_0 steps", ".5 epochs", "1. epochs", "1,5 epochs", "1 / 3 epochs", "1/2/3 epochs", "0.5/2 epochs", "1 2 steps",
     "5 two words", "9" * 16 + " steps", "9" * 4000 + " steps", "٣ steps", "1 é", "Never", "1 steps\n2 steps",
     "5 steps;", [], (), 3, 3.5, None, True, [3], ["1 steps", None], ["never", "1 steps"], [["1 steps"]],
     "4 per epoch"],
    ids=lambda value: repr(value)[:20],
)  # fmt: skip
def test_what_is_no_trigger_is_refused_and_shown(value: object) -> None:
    with pytest.raises(ValueError, match=r'expected "<number> <unit>", .* or "never"; got') as caught:
        Trigger(value)  # type: ignore[arg-type]
    assert not isinstance(value, str) or repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("term", "base"),
    [
        (Term(Fraction(2), "minutes"), "120 seconds"),
        (Term(Fraction(1, 2), "hours"), "1800 seconds"),
        (Term(Fraction(3), "steps"), "3 steps"),
    ],
)
def test_minutes_and_hours_are_counted_in_seconds(term: Term, base: str) -> None:
    assert str(term.base) == base


@settings(max_examples=40)
@given(st.fractions(min_value=Fraction(1, 10**6), max_value=10**9, max_denominator=10**6))
def test_an_amount_reads_back_as_it_was_written(amount: Fraction) -> None:
    assert Trigger(str(Term(amount, "steps"))).terms == (Term(amount, "steps"),)
    assert Fraction(decimal(amount)) == amount


@settings(max_examples=40)
@given(st.fractions(min_value=0, max_value=1000), st.fractions(min_value=Fraction(1, 100), max_value=100))
def test_the_next_multiple_is_the_first_beyond(value: Fraction, amount: Fraction) -> None:
    multiple = next_multiple(value, amount)
    assert multiple / amount == multiple // amount
    assert multiple - amount <= value < multiple
