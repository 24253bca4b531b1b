"""Jobs in threads: their results, and what they raise."""

from __future__ import annotations

import threading

import pytest

from graphtrain.storage.background import largest_first

SIZE = 1 << 20


def test_results_are_those_of_their_names() -> None:
    sizes = {str(number): SIZE for number in range(40)}
    assert largest_first(sizes, lambda name: int(name) ** 2) == {str(n): n**2 for n in range(40)}
    assert largest_first({}, str) == {}


def test_what_a_job_raises_is_raised_and_no_further_ones_are_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    begun = []
    both = threading.Barrier(2)

    def fails(name: str) -> None:
        begun.append(name)
        both.wait(10)
        raise IndexError(name)

    with pytest.raises(IndexError):
        largest_first({str(number): SIZE for number in range(9)}, fails)
    assert sorted(begun) == ["0", "1"]


def test_small_amounts_and_those_that_hold_the_lock_stay_in_this_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    here, large = threading.get_ident(), {str(number): 100 * SIZE for number in range(4)}

    def threads(sizes: dict[str, int], **options: bool) -> set[int]:
        return set(largest_first(sizes, lambda name: threading.get_ident(), **options).values())

    assert threads(large, in_threads=False) == threads({"a": 1}) == {here}
    assert here not in threads(large)
