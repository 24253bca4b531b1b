"""Triggers: exact amounts, units, never, lists, and texts that are none."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphtrain import Trigger
from graphtrain.kind.trigger import Term, decimal, next_multiple


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("100 steps", Fraction(100), "steps"),
        ("0.29 epochs", Fraction(29, 100), "epochs"),  # a float would be 0.28999999999999998
        ("0.1 epochs", Fraction(1, 10), "epochs"),
        ("1/3 epochs", Fraction(1, 3), "epochs"),
        ("10/4 epochs", Fraction(5, 2), "epochs"),
        ("  7   d_steps ", Fraction(7), "d_steps"),
        ("999999999999999 samples", Fraction(10**15 - 1), "samples"),
        ("1.50 hours", Fraction(3, 2), "hours"),
    ],
)
def test_an_amount_is_exact(text: str, amount: Fraction, unit: str) -> None:
    assert Trigger(text).terms == (Term(amount, unit),)


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("4 per epoch", Fraction(1, 4), "epochs"),
        ("2 per batch", Fraction(1, 2), "batches"),
        ("1 per run", Fraction(1), "run"),
        ("1 per pass", Fraction(1), "passes"),
    ],
)
def test_an_amount_per_unit_is_a_part_of_it_and_shown_as_written(text: str, amount: Fraction, unit: str) -> None:
    trigger = Trigger(text)
    assert trigger.terms == (Term(amount, unit, per=text.split()[-1]),)
    assert str(trigger) == text


def test_never_has_no_terms_and_differs_from_everything_else() -> None:
    assert Trigger("never").terms == ()
    assert Trigger(["never"]) == Trigger("never") != Trigger("1 steps")
    assert str(Trigger("never")) == "never"
    assert [Trigger(text).is_never for text in ("never", "once", "1 steps")] == [True, False, False]


def test_a_list_keeps_its_order() -> None:
    trigger = Trigger(["1 epochs", "10 minutes"])
    assert [str(term) for term in trigger.terms] == ["1 epochs", "10 minutes"]
    assert str(trigger) == "1 epochs or 10 minutes"
    assert trigger == Trigger(("1.0 epochs", "10 minutes"))
    assert hash(trigger) == hash(Trigger(("1.0 epochs", "10 minutes")))


@pytest.mark.parametrize(
    "text", ["0 steps", "0.0 steps", "0/3 steps", "1/0 steps", "1/00 steps", "0/0 epochs", "0 per run"]
)
def test_an_amount_is_positive(text: str) -> None:
    with pytest.raises(ValueError, match="must be greater than 0; got"):
        Trigger(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "often",
        "5",
        "steps",
        "5steps",
        "-1 steps",
        "+1 steps",
        "nan steps",
        "inf steps",
        "1e5 steps",
        "1_0 steps",
        ".5 epochs",
        "1. epochs",
        "1,5 epochs",
        "1 / 3 epochs",
        "1/2/3 epochs",
        "0.5/2 epochs",
        "1 2 steps",
        "5 two words",
        "9" * 16 + " steps",
        "9" * 4000 + " steps",
        "٣ steps",
        "1 é",
        "Never",
        "1 steps\n2 steps",
        "5 steps;",
    ],
)
def test_what_is_no_trigger_is_refused_and_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r'expected "<number> <unit>", .* or "never"; got') as caught:
        Trigger(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "value", [[], (), 3, 3.5, None, True, [3], ["1 steps", None], ["never", "1 steps"], [["1 steps"]]]
)
def test_values_of_other_types_are_a_value_error(value: object) -> None:
    with pytest.raises(ValueError, match=r'expected "<number> <unit>", .* or "never"; got'):
        Trigger(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("term", "base", "counted"),
    [
        (Term(Fraction(2), "minutes"), "120 seconds", "seconds"),
        (Term(Fraction(1, 2), "hours"), "1800 seconds", "seconds"),
        (Term(Fraction(3), "steps"), "3 steps", "steps"),
        (Term(Fraction(5), "seconds"), "5 seconds", "seconds"),
        (Term(Fraction(1, 4), "run"), "0.25 run", "steps"),
        (Term(Fraction(1, 4), "run", whole=6), "1.5 steps", "steps"),
    ],
)
def test_an_amount_is_counted_in_the_unit_of_a_clock(term: Term, base: str, counted: str) -> None:
    """Minutes and hours in seconds, the run in steps."""
    assert (str(term.base), term.counted) == (base, counted)


@pytest.mark.full
@given(st.fractions(min_value=Fraction(1, 10**6), max_value=10**9, max_denominator=10**6))
def test_an_amount_reads_back_as_it_was_written(amount: Fraction) -> None:
    term = Term(amount, "steps")
    assert Trigger(str(term)).terms == (term,)
    assert Fraction(decimal(amount)) == amount


@pytest.mark.full
@given(st.fractions(min_value=0, max_value=1000), st.fractions(min_value=Fraction(1, 100), max_value=100))
def test_the_next_multiple_is_the_first_beyond(value: Fraction, amount: Fraction) -> None:
    multiple = next_multiple(value, amount)
    assert multiple / amount == multiple // amount
    assert multiple - amount <= value < multiple


def test_a_quarter_of_an_epoch_fires_four_times_an_epoch() -> None:
    amount, batches = Trigger("0.25 epochs").terms[0].amount, 7
    fired, last = [], Fraction(0)
    for batch in range(1, 3 * batches + 1):
        if (clock := Fraction(batch, batches)) >= next_multiple(last, amount):
            fired.append(batch)
            last = clock
    assert fired == [2, 4, 6, 7, 9, 11, 13, 14, 16, 18, 20, 21]  # after batch ceil(k / 4 * 7)
