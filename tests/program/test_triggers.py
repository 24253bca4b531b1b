"""Compiled triggers against the definition: due when floor(clock / every) has grown since the node last fired."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from graphtrain.kind import kind_of
from graphtrain.kind.trigger import Term, next_multiple
from graphtrain.nodes.next_batch import NextBatch
from graphtrain.program import triggers
from graphtrain.program.triggers import Clock, Every, after

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


def every(*terms: tuple[Clock, Fraction, str], fired: dict[str, Any] | None = None) -> tuple[Every, SimpleNamespace]:
    """A started trigger and the record of its node."""
    record = SimpleNamespace(fired=dict(fired or {}))
    trigger = Every([(clock, Term(amount, unit)) for clock, amount, unit in terms], record)
    trigger.start()
    return trigger, record


@pytest.mark.full
@given(st.lists(amounts, min_size=1, max_size=3), moments, st.integers(0, 50))
def test_a_counter(several: list[Fraction], moments: list[tuple[int, int, bool]], start: int) -> None:
    owner = SimpleNamespace(**{f"count_{index}": start * index for index in range(3)})
    trigger, _ = every(
        *((Clock(owner, f"count_{index}"), amount, f"unit_{index}") for index, amount in enumerate(several))
    )

    def clocks() -> list[Fraction]:
        return [Fraction(getattr(owner, f"count_{index}")) for index in range(len(several))]

    defined = Defined(several, clocks())
    for advance, asked, may_run in moments:
        for index in range(3):
            setattr(owner, f"count_{index}", getattr(owner, f"count_{index}") + advance * (index + 1) // 2)
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
    owner = SimpleNamespace(seconds=0.0)
    trigger, _ = every((Clock(owner, "seconds"), amount, "seconds"))
    defined = Defined([amount], [Fraction(0)])
    multiple = 0
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


def test_a_counter_that_turns_from_a_whole_number_into_a_float() -> None:
    owner = SimpleNamespace(tokens=0)
    trigger, _ = every((Clock(owner, "tokens"), Fraction(5, 2), "tokens"))
    owner.tokens = 2.5
    assert trigger.due()


def test_counts_beyond_what_a_float_can_hold() -> None:
    owner = SimpleNamespace(samples=2**60)
    trigger, _ = every((Clock(owner, "samples"), Fraction(2**60 + 1), "samples"))
    assert not trigger.due()
    owner.samples += 1
    assert trigger.due()


@pytest.mark.full
@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), amounts, st.data())
def test_a_count_that_restarts(lengths: list[int], amount: Fraction, data: st.DataObject) -> None:
    owner = SimpleNamespace(epoch=0, epoch_batches=0)
    trigger, _ = every((Clock(owner, "epoch_batches", "epoch"), amount, "epoch_batches"))
    then = (0, 0)
    for owner.epoch, length in enumerate(lengths):
        owner.epoch_batches = 0
        for _ in range(length):
            owner.epoch_batches += 1
            if data.draw(st.integers(0, 3)) == 0:
                continue  # nobody asks
            since = then[1] if then[0] == owner.epoch else 0
            expected = math.floor(owner.epoch_batches / amount) > math.floor(since / amount)
            assert trigger.due() == expected
            if expected and data.draw(st.booleans()):
                trigger.fire()
                then = (owner.epoch, owner.epoch_batches)


class Epochs:
    """Data whose epochs differ in length; `claims` is what `len()` says before each, None for nothing."""

    def __init__(self, lengths: list[int], claims: list[int]) -> None:
        self.lengths, self.claims, self.opened = lengths, claims, 0

    def __len__(self) -> int:
        return self.claims[self.opened]

    def __iter__(self) -> Any:
        self.opened += 1
        return iter([torch.zeros(1)] * self.lengths[self.opened - 1])


class UnsizedEpochs(Epochs):
    __len__ = None  # type: ignore[assignment]


def fetching(data: Any, limit: int | None = None) -> Any:
    """A `next_batch` of its own, ready to be called."""
    instance = kind_of(NextBatch).new_instance()
    instance.limit = limit
    instance.setup(data, 0, torch.device("cpu"), False, lambda line: None)
    return instance


@pytest.mark.full
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(-3, 3)), min_size=1, max_size=6), amounts, st.data())
def test_epochs_that_differ_in_length(shapes: list[tuple[int, int]], amount: Fraction, data: st.DataObject) -> None:
    lengths = [length for length, _ in shapes]
    claims = [max(length + error, 0) for length, error in shapes]
    sized = data.draw(st.booleans())
    node = fetching((Epochs if sized else UnsizedEpochs)(lengths, claims))
    term = Term(amount, "epochs")
    trigger, _ = every((Clock(node, "epochs"), amount, "epochs"))
    ending = after([(Clock(node, "epochs"), term)])
    defined = Defined([amount], [Fraction(0)])
    for epoch, (length, claim) in enumerate(zip(lengths, claims, strict=True)):
        fetched = 0
        while True:
            node()
            fetched += 1
            if fetched > length or (fetched == length and (not sized or claim <= length)):
                now = Fraction(epoch + 1)
            else:  # whole epochs only, where nobody says how long this one is
                now = epoch + (Fraction(min(fetched, claim - 1), claim) if sized and claim else 0)
            assert node.epochs == now
            if data.draw(st.integers(0, 3)):
                assert trigger.due() == defined.due([now])
                assert ending() == (now >= amount)
                if trigger.due() and data.draw(st.booleans()):
                    trigger.fire()
                    defined.fire([now])
                    assert not trigger.due()
            if now == epoch + 1:
                break


def test_minutes_and_hours_count_seconds() -> None:
    owner = SimpleNamespace(seconds=0.0)
    trigger, record = every((Clock(owner, "seconds"), Fraction(1, 60), "hours"))
    owner.seconds = 59.9
    assert not trigger.due()
    owner.seconds = 60.0
    assert trigger.due()
    trigger.fire()
    assert list(record.fired) == ["seconds"]


# A resume: the record is kept, everything else is created again.


@pytest.mark.full
@given(amounts, amounts, st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_another_amount_of_the_same_unit_counts_from_the_last_firing(
    old: Fraction, new: Fraction, fired_at: int, saved_at: int, more: int
) -> None:
    owner = SimpleNamespace(steps=fired_at)
    trigger, record = every((Clock(owner, "steps"), old, "steps"))
    trigger.fire()
    owner.steps += saved_at
    resumed, _ = every((Clock(owner, "steps"), new, "steps"), fired=record.fired)
    owner.steps += more
    assert resumed.due() == (math.floor(owner.steps / new) > math.floor(fired_at / new))


@pytest.mark.full
@given(amounts, st.integers(0, 30), st.integers(0, 30))
def test_another_unit_counts_from_the_resume(amount: Fraction, before: int, more: int) -> None:
    owner = SimpleNamespace(steps=40, samples=before)
    _, record = every((Clock(owner, "steps"), Fraction(2), "steps"))
    resumed, _ = every((Clock(owner, "samples"), amount, "samples"), fired=record.fired)
    assert not resumed.due()
    owner.samples += more
    assert resumed.due() == (math.floor(owner.samples / amount) > math.floor(before / amount))


def test_whole_amounts_are_counted_in_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `Fraction` in what is done at every step would cost as much as a small optimizer's."""
    owner = SimpleNamespace(steps=0)
    trigger, record = every((Clock(owner, "steps"), Fraction(2), "steps"))

    def refuse(*values: Any) -> Any:
        raise AssertionError(f"a fraction of {values}")

    monkeypatch.setattr(triggers, "Fraction", refuse)
    monkeypatch.setattr(triggers, "exactly", refuse)
    owner.steps = 3
    assert trigger.due()
    trigger.fire()
    assert record.fired == {"steps": [3, 1, None]} and not trigger.due()
    owner.steps = 4
    assert trigger.due() and type(next_multiple(3, Fraction(2))) is int
