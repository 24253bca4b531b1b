"""Jobs in threads: their results, and what they raise."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from graphtrain.storage import background
from graphtrain.storage.background import Background, largest_first

SIZE = 1 << 20


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
