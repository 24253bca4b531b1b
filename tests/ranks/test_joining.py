"""Promise 17: a rank joins the others by its environment, and says why it leaves them, once."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from graphtrain import CheckpointError, DataError, UsageError
from graphtrain.errors import RankFailedError, RanksDivergedError
from graphtrain.program.agreement import error_as_plain, error_of_plain
from graphtrain.program.resources import resolve_device
from graphtrain.ranks import (
    Ranks,
    current_ranks,
    is_one_of_several,
    on_all_ranks,
    prints,
    using_ranks,
)  # fmt: skip
from graphtrain.ranks.current import failure_of, leave
from graphtrain.ranks.processes import Processes

Patch = pytest.MonkeyPatch


class Noting(Ranks):
    """A rank that notes what it publishes, exchanges and leaves."""

    def __init__(self, rank: int = 1, world_size: int = 2) -> None:
        self.rank, self.world_size, self.local_rank, self.timeout_seconds = rank, world_size, 0, 1.0
        self.store: dict[str, bytes] = {}
        self.exchanged: list[torch.Tensor] = []

    def gather(self, record: bytes) -> list[bytes]:
        return [record] * self.world_size

    def begin_exchange(self, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        self.exchanged += tensors
        return lambda: None

    def publish(self, key: str, value: bytes) -> None:
        self.store[key] = value

    def read(self, key: str, timeout_seconds: float = 0.0) -> bytes | None:
        return self.store.get(key)

    def leave(self) -> None:
        self.times_left += 1

    def ended(self) -> list[int]:
        return []


@pytest.mark.parametrize(
    ("error", "published", "notes"),
    [
        (ValueError("bad batch"), "rank 1 failed in setup: ValueError: bad batch", ["on rank 1"]),
        (KeyboardInterrupt(), "rank 1 failed in setup: KeyboardInterrupt", ["on rank 1"]),
        (UsageError("no such file"), "rank 1 failed in setup: UsageError: no such file", []),
        (RankFailedError("rank 0 has ended", "look there"), "rank 0 has ended", []),
        (RanksDivergedError("on all of them"), "", []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_rank_publishes_why_it_leaves(error: BaseException, published: str, notes: list[str]) -> None:
    """And once, however many spans the error passes; a later reason of another rank is not the cause."""
    ranks = Noting()

    @on_all_ranks("in setup")
    def inside() -> None:
        raise error

    with using_ranks(ranks), pytest.raises(type(error)) as raised, on_all_ranks("outside"):
        inside()
    assert raised.value is error and getattr(error, "__notes__", []) == notes and ranks.times_left == 1
    assert failure_of(ranks) == published
    leave(ranks, "later", RankFailedError("rank 1 has ended"))
    assert failure_of(ranks) == (published or "rank 1 has ended")


def test_a_rank_alone_leaves_nobody() -> None:
    ranks, error = Noting(rank=0, world_size=1), ValueError("bad batch")
    leave(ranks, "in setup", error)
    assert not ranks.store and not ranks.times_left and not hasattr(error, "__notes__")


@pytest.mark.parametrize("kind", [UsageError, DataError, CheckpointError])
def test_an_error_of_the_leading_rank_has_its_type_on_all_ranks(kind: Any) -> None:
    error: Any = error_of_plain(error_as_plain(kind("what happened", "what to do")))
    assert (type(error), error.message, error.hint) == (kind, "what happened", "what to do")


@pytest.mark.parametrize(
    ("variables", "is_of_several", "prints_it"),
    [
        ({}, False, True),
        ({"RANK": "1"}, False, True),
        ({"RANK": "0", "WORLD_SIZE": "1"}, False, True),
        ({"RANK": "0", "WORLD_SIZE": "2"}, True, True),
        ({"RANK": "1", "WORLD_SIZE": "2"}, True, False),
    ],
)
def test_before_they_have_joined_rank_0_prints(
    variables: dict[str, str], is_of_several: bool, prints_it: bool, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("graphtrain.ranks.current._of_process", None)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (is_one_of_several(), prints("a message")) == (is_of_several, prints_it)
    if not is_of_several:
        assert type(current_ranks()) is Ranks and current_ranks() is current_ranks()


def test_another_rank_prints_what_rank_0_does_not_have() -> None:
    first, other = Noting(0, world_size=3), Noting(2, world_size=3)
    first.store = other.store
    for ranks, text, is_printed in ((first, "one", True), (other, "one", False), (other, "two", True)):
        with using_ranks(ranks):
            assert prints(text) is is_printed


OF_ONE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}
TIMEOUT = "GRAPHTRAIN_TIMEOUT_SECONDS"
# What is in the environment -> what is said.
WRONG = [
    *(({TIMEOUT: text}, f"{TIMEOUT} is {text!r}") for text in ("soon", "0.5", "inf", "nan", "")),
    ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', which is not a number"),
    ({"MASTER_PORT": ""}, "MASTER_PORT is '', which is not a number"),
    ({"unreachable": "1"}, "rank 1 cannot reach the other processes at node7:29500: timed out\n"),
]


@pytest.mark.parametrize(("variables", "message"), WRONG)
def test_an_environment_in_which_nobody_can_join(variables: Any, message: str, monkeypatch: Patch) -> None:
    def connect(*words: Any, **options: Any) -> Any:
        raise RuntimeError("timed out\nand where in the C++ code")

    monkeypatch.setattr("graphtrain.ranks.processes.TCPStore", connect)
    monkeypatch.setattr("graphtrain.ranks.current._of_process", None)
    for name, value in {**OF_ONE, **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as refused:
        current_ranks()
    assert message in str(refused.value)


def test_a_restart_finds_nothing_of_the_attempt_before(monkeypatch: Patch) -> None:
    """torchrun keeps its store, with the addresses of processes that have died."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {**OF_ONE, "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    for name, value in {**variables, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(atexit, "register", lambda function: None)
    attempts = []
    for attempt in ("0", "1", "0"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        attempts.append(Processes())
        if len(attempts) == 1:
            attempts[0].publish("joins/1", b"address")
    assert [ranks.read("joins/1") for ranks in attempts] == [b"address", None, b"address"]
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    with pytest.raises(UsageError, match=r"the script has called torch.distributed.init_process_group"):
        attempts[0].gather(b"record")


def test_every_rank_has_a_device_of_its_own(monkeypatch: Patch) -> None:
    used: list[Any] = []

    def empty(size: int, device: torch.device) -> None:
        if device.index == 2:
            raise RuntimeError("invalid device ordinal")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setattr(torch, "empty", empty)
    devices = [str(resolve_device(name, 1)) for name in ("auto", "cuda", torch.device("cuda"), "cpu")]
    assert devices == [*["cuda:1"] * 3, "cpu"] and [*map(str, used)] == ["cuda:1"] * 3
    with pytest.raises(UsageError, match='no device "cuda:2" here'):
        resolve_device("auto", 2)
