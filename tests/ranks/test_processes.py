"""One rank of several processes, in this process: the others are made up, or share its store."""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from graphtrain.errors import UsageError
from graphtrain.ranks import LostRankError
from graphtrain.ranks import processes as module
from graphtrain.ranks.processes import Processes
from graphtrain.ranks.ranks import FAILURE

HOST = socket.gethostname()


@pytest.fixture(autouse=True)
def at_exit(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What would be called when the interpreter ends."""
    called: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", called.append)
    return called


@pytest.fixture
def store() -> Any:
    """In this process: to connect to one of torch may take seconds."""
    return HashStore()


def rank_of(store: Any, rank: int = 0, world_size: int = 2, seconds: float = 60.0) -> Processes:
    return Processes(store, rank, world_size, rank, seconds, has_store=rank == 0)


class Group:
    """A stand-in for `torch.distributed`: `of_others` makes what the other ranks pass from what this one does.

    Attributes:
        calls: what was called, in order.
        fails: the number of the call that raises an error.
    """

    def __init__(self, world_size: int, of_others: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
        self.world_size, self.of_others = world_size, of_others
        self.calls: list[str] = []
        self.fails = 0
        self.initialized = False

    def _called(self, call: str) -> None:
        self.calls.append(call)
        if len(self.calls) == self.fails:
            raise RuntimeError("connection closed")

    def is_initialized(self) -> bool:
        return self.initialized

    def init_process_group(self, backend: str, **options: Any) -> None:
        self._called("init")
        self.initialized, self.options = True, {"backend": backend, **options}

    def new_group(self, backend: str, timeout: Any) -> str:
        self._called(f"new {backend}")
        return f"{backend} {self.calls.count(f'new {backend}')}"

    def destroy_process_group(self) -> None:
        assert self.initialized
        self.calls.append("destroy")
        self.initialized = False

    def all_gather_single(self, out: torch.Tensor, passed: torch.Tensor, group: str, async_op: bool = False) -> Any:
        self._called(f"gather {passed.numel()} by {group}")
        parts = [passed, *(self.of_others(passed, rank) for rank in range(1, self.world_size))]
        return self._done(lambda: out.copy_(torch.cat(parts)), async_op)

    def all_reduce(self, tensor: torch.Tensor, group: str, async_op: bool = False) -> Any:
        self._called(f"reduce {tensor.numel()} by {group}")
        others = [self.of_others(tensor, rank) for rank in range(1, self.world_size)]
        return self._done(lambda: tensor.add_(sum(others)), async_op)  # type: ignore[arg-type]

    @staticmethod
    def _done(act: Callable[[], Any], async_op: bool) -> Any:
        if async_op:
            return SimpleNamespace(wait=act)
        return act()


def of_others(passed: torch.Tensor, rank: int) -> torch.Tensor:
    """The process of this host that rank 1 is, and of another host that others are; else ten times as much a rank."""
    if passed.dtype != torch.uint8:
        return passed * 10**rank
    if passed.numel() != 256:
        return passed + rank
    text = f"{os.getpid() + rank} {HOST if rank == 1 else 'elsewhere'}".encode().ljust(256)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


@pytest.fixture
def group(store: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], tuple[Group, Processes]]:
    """A rank 0 among as many, all of which have joined."""

    def of(world_size: int) -> tuple[Group, Processes]:
        group = Group(world_size, of_others)
        monkeypatch.setattr(module, "dist", group)
        for rank in range(1, world_size):
            rank_of(store, rank, world_size).publish(f"joins/{rank}", b"")
        return group, rank_of(store, world_size=world_size)

    return of


JOINED = ["init", "new gloo", "new gloo", "gather 256 by gloo 2"]


def test_records_come_in_the_order_of_ranks(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, ranks = group(3)
    assert ranks.gather(b"abc") == [b"abc", b"bcd", b"cde"]
    assert ranks.gather(b"\x00") == [b"\x00", b"\x01", b"\x02"]
    assert fake.calls == [*JOINED, "gather 3 by gloo 2", "gather 1 by gloo 2"]
    former = SimpleNamespace(all_gather_into_tensor=fake.all_gather_single)
    monkeypatch.setattr(module, "dist", former)
    assert ranks.gather(b"abc") == [b"abc", b"bcd", b"cde"], "as torch called it before 2.13"
    monkeypatch.setattr(module, "dist", fake)
    assert (fake.options["rank"], fake.options["world_size"], fake.options["backend"]) == (0, 3, "gloo")
    looked_at: list[int] = []
    monkeypatch.setattr(module, "is_alive", lambda process: looked_at.append(process) or False)  # type: ignore[func-returns-value]
    assert ranks.ended() == [1] and looked_at == [os.getpid() + 1], "the one of this host"


@pytest.mark.parametrize(
    ("world_size", "elements", "calls"),
    [
        (2, 2**16 - 1, ["gather 65535 by gloo 1"]),  # just below the limit
        (2, 2**16, ["reduce 65536 by gloo 1"]),
        (3, 6, ["reduce 6 by gloo 1"]),
    ],
)
def test_tensors_are_summed_in_place_by_the_faster_way(
    world_size: int, elements: int, calls: list[str], group: Any
) -> None:
    fake, ranks = group(world_size)
    tensors = [torch.arange(float(elements)), torch.ones(2, 3)]
    before = [tensor.clone() for tensor in tensors]
    ranks.begin_exchange(tensors)()
    assert all(
        torch.equal(tensor, of_rank * sum(10**rank for rank in range(world_size)))
        for tensor, of_rank in zip(tensors, before, strict=True)
    )
    assert fake.calls[:5] == [*JOINED, *calls]


def test_each_type_of_device_has_a_group_of_its_own(group: Any) -> None:
    fake, ranks = group(2)
    assert [ranks._group(device) for device in ("cuda", "xpu", "cuda")] == ["nccl 1", "gloo 1", "nccl 1"]
    assert fake.calls == ["new nccl", "new gloo"]


def test_ranks_leave_and_join_again(group: Any) -> None:
    fake, ranks = group(2)
    ranks.gather(b"abc")
    ranks.publish("key", b"value")
    other = rank_of(ranks._store, 1)
    assert other.read("key") == b"value"
    for each in (ranks, other):
        each.leave()
        each.leave()
    assert fake.calls.count("destroy") == 1 and (ranks.times_left, other.times_left) == (2, 2)
    assert ranks.read("key") is other.read("key") is None, "of the time before"
    other.publish("joins/1", b"")
    assert ranks.gather(b"abc") == [b"abc", b"bcd"]


def test_a_store_that_is_gone_is_not_connected_to_again() -> None:
    def check(keys: list[str]) -> bool:
        raise RuntimeError("connection closed")

    ranks = rank_of(SimpleNamespace(check=check, clone=lambda: pytest.fail("it would try for minutes")), 1)
    with pytest.raises(LostRankError, match=r"^connection closed$"):
        ranks.publish("key", b"value")
    assert ranks.read("key") is None


@pytest.mark.parametrize("fails", [1, 3])
def test_a_group_that_cannot_be_made_is_a_lost_rank(fails: int, group: Any) -> None:
    fake, ranks = group(2)
    fake.fails = fails
    with pytest.raises(LostRankError, match=r"^connection closed$") as lost:
        ranks.gather(b"abc")
    assert lost.value.__context__ is None, "its frames would keep connections open"
    assert not fake.initialized
    assert ranks.gather(b"abc") == [b"abc", b"bcd"]


def test_a_call_that_a_rank_does_not_take_part_in_is_a_lost_rank(group: Any) -> None:
    fake, ranks = group(2)
    fake.fails = 5
    with pytest.raises(LostRankError, match=r"^connection closed$") as lost:
        ranks.gather(b"abc")
    assert lost.value.__context__ is None
    fake.fails = 6
    with pytest.raises(LostRankError, match=r"^connection closed$"):
        ranks.begin_exchange([torch.ones(2)])


def test_a_script_that_has_made_a_group_is_told_to_leave_it_out(group: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, ranks = group(2)
    fake.initialized = True
    for act in (lambda: ranks.gather(b"abc"), lambda: ranks.begin_exchange([torch.ones(1)]), Processes.join):
        with pytest.raises(UsageError) as refused:
            act()
        assert str(refused.value) == (
            "the script has called torch.distributed.init_process_group\n"
            "  hint: leave it out, and DistributedDataParallel too: graphtrain joins the processes, and exchanges "
            "gradients at the node `exchange`"
        )
    ranks.leave()
    assert fake.calls == [], "the group is theirs"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time, which only waiting moves."""
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    yield now
    monkeypatch.undo()


def test_a_rank_that_does_not_join_is_waited_for_until_one_has_failed(store: Any, clock: list[float]) -> None:
    ranks, other = rank_of(store, seconds=10.0), rank_of(store, 1)
    with pytest.raises(LostRankError, match=r"^rank 1 has not joined$"):
        ranks._wait_for_all()
    assert 10 < clock[0] < 11
    other.publish(FAILURE, b"it failed")
    with pytest.raises(LostRankError, match=r"^rank 1 has not joined$"):
        ranks._wait_for_all()
    assert 10.5 < clock[0] < 11.5
    other.publish("joins/1", b"")
    ranks._wait_for_all()
    assert other.read("joins/0") == b""


def test_a_value_is_waited_for(store: Any, clock: list[float]) -> None:
    ranks = rank_of(store)
    assert ranks.read("key") is None and clock[0] <= 0.05
    clock[0] = 0.0
    assert ranks.read("key", 3.0) is None and 3 < clock[0] < 3.1
    ranks.publish("key", b"value")
    assert rank_of(store, 1).read("key", 3.0) == b"value" and clock[0] < 3.1


def test_one_rank_claims_a_key(store: Any) -> None:
    first, second = rank_of(store), rank_of(store, 1)
    assert [first.claim("a"), second.claim("a"), first.claim("a"), second.claim("b")] == [True, False, True, True]


class Gone:
    """The store of a rank that has ended."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("Connection reset by peer")


def test_without_the_store_a_rank_is_lost(clock: list[float]) -> None:
    ranks = rank_of(Gone(), 1)
    for act in (lambda: ranks.publish("key", b""), lambda: ranks.claim("key")):
        with pytest.raises(LostRankError, match=r"^Connection reset by peer$"):
            act()
    assert ranks.read("key", 3.0) is None and clock[0] == 0.5, "the process is about to be ended"
    assert ranks.read("key", 0.1) is None and clock[0] == 0.6
    ranks.leave()
    assert ranks.times_left == 1


@pytest.mark.parametrize(
    ("rank", "left", "ended", "seconds"),
    [
        (0, [], [], 5.0), (0, [1], [], 5.0), (0, [1, 2], [], 0.0), (0, [1], [2], 0.0), (0, [], [1, 2], 0.0),
        (1, [], [], 0.0),
    ],
)  # fmt: skip
def test_the_rank_with_the_store_ends_after_the_others_have_read_why(
    rank: int,
    left: list[int],
    ended: list[int],
    seconds: float,
    store: Any,
    clock: list[float],
    monkeypatch: pytest.MonkeyPatch,
    at_exit: list[Callable[[], None]],
) -> None:
    ranks = rank_of(store, rank, 3)
    monkeypatch.setattr(Processes, "ended", lambda self: ended)
    (end,) = at_exit
    end()
    assert clock[0] == 0.0, "it has not failed"
    ranks.leave()
    for other in left:
        rank_of(store, other, 3).leave()
    end()
    assert seconds <= clock[0] < seconds + 0.1


@pytest.mark.parametrize(("rank", "agent", "has_store"), [(0, None, True), (1, None, False), (0, "True", False)])
def test_rank_0_has_the_store_unless_torchrun_has(
    rank: int, agent: str | None, has_store: bool, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Any, ...]] = []

    def connect(*words: Any, **options: Any) -> Any:
        made.append((*words, options))
        return store

    monkeypatch.setattr(module, "TCPStore", connect)
    variables = {"RANK": f"{rank}", "WORLD_SIZE": "4", "MASTER_PORT": "7", "LOCAL_RANK": None, "MASTER_ADDR": None,
                 "GRAPHTRAIN_TIMEOUT_SECONDS": None, "TORCHELASTIC_USE_AGENT_STORE": agent}  # fmt: skip
    for name, value in variables.items():
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    ranks = Processes.join()
    ((address, port, world_size, is_master, timeout, options),) = made
    assert (address, port, world_size, is_master, timeout.total_seconds()) == ("127.0.0.1", 7, 4, has_store, 1800.0)
    assert options == {"wait_for_workers": False, "multi_tenant": True}
    assert (ranks.rank, ranks.world_size, ranks.local_rank, ranks._has_store) == (rank, 4, rank, has_store)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert Processes.join().local_rank == 3


@pytest.mark.parametrize("kind", [RuntimeError, ValueError])
def test_an_address_that_cannot_be_reached_is_an_error(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*words: Any, **options: Any) -> Any:
        raise kind("timed out\nand where in the C++ code")

    monkeypatch.setattr(module, "TCPStore", connect)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node7", "MASTER_PORT": "29500"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as refused:
        Processes.join()
    assert str(refused.value) == (
        "rank 1 cannot reach the other processes at node7:29500: timed out\n"
        "  hint: start all of them with one address and port, as torchrun does"
    )
