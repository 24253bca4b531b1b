"""Jobs in threads: their results, and what they raise."""

from __future__ import annotations

import threading

import pytest

from graphtrain.storage.background import side_by_side


def test_results_are_in_the_order_of_their_jobs() -> None:
    assert side_by_side([lambda number=number: number**2 for number in range(40)]) == [n**2 for n in range(40)]
    assert side_by_side([]) == []


def test_what_a_job_raises_is_raised_and_no_further_ones_are_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    begun = []
    both = threading.Barrier(2)

    def fails(number: int) -> None:
        begun.append(number)
        both.wait(10)
        raise IndexError(number)

    with pytest.raises(IndexError):
        side_by_side([lambda number=number: fails(number) for number in range(9)])
    assert sorted(begun) == [0, 1]
