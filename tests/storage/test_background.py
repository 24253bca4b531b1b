"""Jobs in threads: their results, and what they raise."""

from __future__ import annotations

import concurrent.futures
import gc
import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from graphtrain.storage import background
from graphtrain.storage.background import Background, largest_first, uncollected

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

    assert threads(large, in_threads=False) == threads({"a": 1}) == threads({"a": 3 * SIZE, "b": SIZE - 1}) == {here}
    assert here not in threads(large) | threads({"a": 3 * SIZE, "b": SIZE})


def test_there_is_a_thread_for_each_core_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Pool(concurrent.futures.ThreadPoolExecutor):
        def __init__(self, count: int) -> None:
            asked.append(count)
            super().__init__(count)

    monkeypatch.setattr(concurrent.futures, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2} if process == 0 else set(), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert largest_first({"a": SIZE, "b": 9 * SIZE}, str.upper) == {"b": "B", "a": "A"}
    monkeypatch.delattr(os, "sched_getaffinity")
    largest_first({"a": SIZE, "b": 9 * SIZE}, str.upper)
    assert asked == [3, 5]


def test_a_job_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    begins, told = threading.Event(), threading.Event()

    def fails() -> None:
        begins.wait(60)
        raise KeyError("a")

    job = Background(fails, told.set)
    assert job._thread.daemon, "the end of the process does not wait for it"
    assert not job.is_over and not told.is_set()
    begins.set()
    with pytest.raises(KeyError):
        job.result()
    assert job.is_over and told.wait(60)


@pytest.mark.parametrize(("is_alive", "ends"), [(False, False), (False, True), (True, True)])
def test_a_forked_process_does_not_wait_for_a_job_that_it_does_not_have(
    is_alive: bool, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_SECONDS", 0.001)
    begins = threading.Event()
    job = Background(lambda: begins.wait(60))
    thread, asked = job._thread, []

    def looks_alive() -> bool:
        asked.append(1)
        if ends and len(asked) == 2 - (not is_alive):  # it may end in this moment
            begins.set()
            thread.join(60)
        return is_alive

    job._thread = SimpleNamespace(is_alive=looks_alive)  # type: ignore[assignment]
    if ends:
        assert job.result() is True
    else:
        with pytest.raises(RuntimeError, match=r"^the job runs in another process$"):
            job.result()
    begins.set()
    thread.join(60)


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_collector_is_as_before_after_a_block_without_it(was_enabled: bool) -> None:
    before = gc.isenabled()
    try:
        gc.enable() if was_enabled else gc.disable()
        with pytest.raises(KeyError), uncollected():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is was_enabled
    finally:
        gc.enable() if before else gc.disable()
