"""Promise 3: compiled triggers are due where floor(clock / every) has grown since the node last fired: a page of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graphtrain.kind import Field
from graphtrain.kind.trigger import Term
from graphtrain.program.bind import Clock
from graphtrain.program.triggers import Every

amounts = st.one_of(
    st.integers(1, 9).map(Fraction),
    st.fractions(min_value=Fraction(1, 12), max_value=12, max_denominator=60),
    st.sampled_from([Fraction(29, 100), Fraction(1, 10), Fraction(1, 3), Fraction(1, 4), Fraction(5, 2)]),
)
# What happens at one moment: how far the clock goes, how often it is asked, and whether the node may run then.
moments = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 2), st.booleans()), max_size=40)


class Defined:
    """The definition, and nothing but it."""

    def __init__(self, amounts: Sequence[Fraction], clocks: Sequence[Fraction]) -> None:
        self.amounts = amounts
        self.fire(clocks)

    def due(self, clocks: Sequence[Fraction]) -> bool:
        pairs = zip(self.amounts, clocks, self.fired, strict=True)
        return any(math.floor(now / amount) > math.floor(then / amount) for amount, now, then in pairs)

    def fire(self, clocks: Sequence[Fraction]) -> None:
        self.fired = list(clocks)


def clock_of(owner: Any, field: str) -> Clock:
    """The clock of an attribute of an object in place of a node."""
    kind = SimpleNamespace(fields={field: Field(field, int, stored=True)})
    return Clock(cast(Any, SimpleNamespace(instance=owner, kind=kind)), field)


def every(*terms: tuple[Clock, Fraction, str], fired: dict[str, Any] | None = None) -> tuple[Every, dict[str, Any]]:
    """A started trigger and the fields of its node."""
    fields = {"fired": dict(fired or {})}
    trigger = Every(fields, [(clock, Term(amount, unit)) for clock, amount, unit in terms])
    trigger.start()
    return trigger, fields


@pytest.mark.full
@given(st.lists(amounts, min_size=1, max_size=3), moments, st.integers(0, 50))
def test_counters(several: list[Fraction], moments: list[tuple[int, int, bool]], start: int) -> None:
    names = [f"count_{index}" for index in range(3)]
    owner = SimpleNamespace(**{name: start * index for index, name in enumerate(names)})
    trigger, _ = every(*((clock_of(owner, names[index]), amount, names[index]) for index, amount in enumerate(several)))

    def clocks() -> list[Fraction]:
        return [Fraction(getattr(owner, names[index])) for index in range(len(several))]

    defined = Defined(several, clocks())
    for advance, asked, may_run in moments:
        for index, name in enumerate(names):
            setattr(owner, name, getattr(owner, name) + advance * (index + 1) // 2)
        for _ in range(asked):
            assert trigger.due() == defined.due(clocks())
        if may_run and trigger.due():
            assert defined.due(clocks())
            trigger.fire()
            defined.fire(clocks())
            assert not trigger.due()  # else the node would run forever


@pytest.mark.full
@given(amounts, st.lists(st.one_of(st.integers(0, 40), st.floats(0, 3)), max_size=40))
@example(Fraction(1, 10), [3])  # 0.3, the float, is less than 3/10
@example(Fraction(1, 10), [1, 1])  # 0.1, the float, is more than 1/10
@example(Fraction(29, 100), [7, 2])
def test_seconds_which_are_floats(amount: Fraction, advances: list[float]) -> None:
    """An integer goes to the float nearest to a multiple of the amount, where rounding might fire twice or late."""
    owner, multiple = SimpleNamespace(seconds=0.0), 0
    trigger, _ = every((clock_of(owner, "seconds"), amount, "seconds"))
    defined = Defined([amount], [Fraction(0)])
    for advance in advances:
        if isinstance(advance, int):
            multiple += advance
            owner.seconds = max(owner.seconds, float(multiple * amount))
        else:
            owner.seconds += advance
        now = [Fraction(owner.seconds)]
        assert trigger.due() == defined.due(now)
        if trigger.due():
            trigger.fire()
            defined.fire(now)
            assert not trigger.due()


@pytest.mark.parametrize(
    ("unit", "amount", "start", "not_yet", "due"),
    [
        ("tokens", Fraction(5, 2), 0, 2, 2.5),  # a counter that turns from a whole number into a float
        ("samples", Fraction(2**60 + 1), 2**60, 2**60, 2**60 + 1),  # beyond what a float can hold
        ("hours", Fraction(1, 60), 0.0, 59.9, 60.0),
        ("minutes", Fraction(1, 10), 0.0, 5.9, 6.0),
        ("steps", Fraction(2), 3, 3, 4),
    ],
)
def test_one_moment(unit: str, amount: Fraction, start: Any, not_yet: Any, due: Any) -> None:
    owner = SimpleNamespace(count=start)
    trigger, fields = every((clock_of(owner, "count"), amount, unit))
    owner.count = not_yet
    assert not trigger.due()
    owner.count = due
    assert trigger.due()
    trigger.fire()
    assert not trigger.due()
    assert list(fields["fired"]) == ["seconds" if unit in ("hours", "minutes") else unit]


# A resume: the record is kept, everything else is created again.


@given(amounts, amounts, st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_another_amount_of_the_same_unit_counts_from_the_last_firing(
    old: Fraction, new: Fraction, fired_at: int, saved_at: int, more: int
) -> None:
    owner = SimpleNamespace(steps=fired_at)
    trigger, fields = every((clock_of(owner, "steps"), old, "steps"))
    trigger.fire()
    owner.steps += saved_at
    resumed, _ = every((clock_of(owner, "steps"), new, "steps"), fired=fields["fired"])
    owner.steps += more
    assert resumed.due() == (math.floor(owner.steps / new) > math.floor(fired_at / new))


@given(amounts, st.integers(0, 30), st.integers(0, 30))
def test_another_unit_counts_from_the_resume(amount: Fraction, before: int, more: int) -> None:
    owner = SimpleNamespace(steps=40, samples=before)
    _, fields = every((clock_of(owner, "steps"), Fraction(2), "steps"))
    resumed, _ = every((clock_of(owner, "samples"), amount, "samples"), fired=fields["fired"])
    assert not resumed.due()
    owner.samples += more
    assert resumed.due() == (math.floor(owner.samples / amount) > math.floor(before / amount))
