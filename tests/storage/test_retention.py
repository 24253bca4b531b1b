"""Which checkpoints stay."""

from __future__ import annotations

from math import nan

from hypothesis import given
from hypothesis import strategies as st

from graphtrain.storage.run_directory import Retention

VALUES = st.dictionaries(st.integers(0, 30), st.floats(allow_nan=True), max_size=20)


@given(
    st.lists(st.integers(0, 30), unique=True, max_size=20),
    VALUES,
    st.sets(st.integers(0, 30)),
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from(["min", "max"]),
)
def test_the_newest_sound_ones_and_the_best_stay(
    order: list[int], values: dict[int, float], unsound: set[int], keep: int, keep_best: int, mode: str
) -> None:
    values = {one: value for one, value in values.items() if one in order and one not in unsound}
    retention = Retention(keep, "loss", mode, keep_best)  # type: ignore[arg-type]
    expired = retention.expired(order, values, unsound)
    stays = [one for one in order if one not in expired]
    sound = [one for one in order if one not in unsound]
    assert set(sound[-keep:]) <= set(stays)
    assert not unsound & set(stays)
    numbers = sorted((value for value in values.values() if value == value), reverse=mode == "max")
    assert numbers[:keep_best] == sorted(
        [values[one] for one in retention.ranked(values)[:keep_best]], reverse=mode == "max"
    )
    assert set(retention.ranked(values)[:keep_best]) <= set(stays)
    assert len(stays) <= keep + keep_best


def test_of_equal_ones_the_first_stays_and_nan_is_never_best() -> None:
    values = {1: 0.5, 2: 0.5, 3: nan, 4: 0.7}
    assert Retention(1, "loss").expired([1, 2, 3, 4], values) == [2, 3]
    assert Retention(1, "loss", "max").ranked(values) == [4, 1, 2]
    assert Retention(1).expired([1, 2, 3, 4], {}) == [1, 2, 3]
