"""What is done with another number of ranks, and in a save, is needed: without it a resume is not equal any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from graphtrain.program.bind import Program
from graphtrain.resume import rank_resume
from graphtrain.storage.sharing import Sharing
from tests.resume.rank_runs import run
from tests.resume.test_rank_resume import assert_equal

BETWEEN, IN_VALIDATION, WINDOW = 12, 49, 6  # transitions

Mutate = Callable[[pytest.MonkeyPatch], None]


def take_the_window_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Program, "window_ranks", property(lambda program: 1, lambda program, value: None), raising=False
    )


def drop_means_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_resume._Resized, "_means", lambda resized: resized._states[0]["metrics"])


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize(
    ("mutate", "cut", "world_size"),
    [
        (take_the_window_of_now, BETWEEN, 1),
        (drop_means_of_others, IN_VALIDATION, 1),
    ],
)
def test_another_number_of_ranks_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutate: Mutate, cut: int, world_size: int
) -> None:
    whole = run(2, None, is_plain=True)
    run(2, tmp_path, advance=cut, is_plain=True)
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        assert_equal(run(world_size, tmp_path, is_plain=True), whole)


@pytest.mark.full
def test_what_is_each_ranks_own_is_saved_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of: Any = Sharing.of

    def all_of_rank_0(state: Any, told: Sequence[Any]) -> Sharing:
        return of(state, [told[0]] * len(told))  # type: ignore[no-any-return]

    whole = run(2, None)
    monkeypatch.setattr(Sharing, "of", all_of_rank_0)
    run(2, tmp_path, advance=WINDOW)
    monkeypatch.undo()
    monkeypatch.setattr("graphtrain.resume.restore._expect_digest", lambda *arguments, **how: None)
    ends = run(2, tmp_path)
    assert [end.digest for end in ends] != [end.digest for end in whole]
