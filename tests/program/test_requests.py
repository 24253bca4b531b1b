"""The mailbox of the loop: posted to from signal handlers and other threads, looked at once after each transition."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections.abc import Callable
from typing import get_args

import pytest

from graphtrain.outcome import Outcome
from graphtrain.program.loop import Loop
from graphtrain.program.requests import Request, Requests, SavePolicy


def test_each_is_asked_for_once_however_often_it_is_posted() -> None:
    requests = Requests()
    posts: dict[Request, Callable[[], None]] = {
        name: functools.partial(requests.post, name) for name in get_args(Request)
    }
    posts["save"] = requests.save
    assert not requests.pending
    for name, post in posts.items():
        post(), post()
        assert requests.pending == {name}
        assert requests.take(name) and not requests.take(name) and not requests.pending


def test_a_save_without_a_policy_keeps_the_last_one() -> None:
    requests, policy = Requests(), SavePolicy(mode="sync")
    requests.save(policy)
    requests.clear()
    requests.save()
    assert requests.policy is policy and "save" in requests


@pytest.mark.parametrize("sender", ["handler", "thread"])
def test_what_comes_from_outside_is_served_after_the_transition(sender: str) -> None:
    requests = Requests()
    served: list[int] = []

    def visit() -> int:
        if loop.position == 3 and sender == "handler":
            os.kill(os.getpid(), signal.SIGUSR1)
        elif loop.position == 3:
            thread = threading.Thread(target=requests.post, args=("stop",))
            thread.start()
            thread.join()
        return loop.position + 1

    def serve() -> Outcome | None:
        served.append(loop.position)
        return Outcome.STOPPED if requests.take("stop") else None

    loop = Loop(0, requests)
    former = signal.signal(signal.SIGUSR1, lambda number, frame: requests.post("stop"))
    try:
        assert loop.drive([visit] * 10, serve) is Outcome.STOPPED
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert served == [4] and loop.position == 4
