"""Names a user may have meant."""

from __future__ import annotations

import pytest

from graphtrain.names import FOREIGN, nearest, suggestion


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("chekpoint", "checkpoint"),
        ("Clip", "clip"),
        ("qqq", None),
        ("", None),
    ],
)
def test_the_nearest_known_name(name: str, meant: str | None) -> None:
    assert nearest(name, ["checkpoint", "clip", "step", "zero_grad"]) == meant


def test_a_foreign_name_wins_over_a_similar_one() -> None:
    assert suggestion("max_steps", ["max_step"]) == 'that is `finish.after = "N steps"` here'


def test_few_names_are_listed_and_many_are_not() -> None:
    assert suggestion("qqq", ["b", "a"]) == "known: a, b"
    assert suggestion("qqq", [f"name_{number}" for number in range(21)]) == ""
    assert suggestion("qqq", []) == ""


def test_the_table_of_foreign_names_stays_small() -> None:
    assert {"max_epochs", "num_train_epochs", "accumulate_grad_batches", "gradient_clip_val"} <= FOREIGN.keys()
    assert len(FOREIGN) <= 40
