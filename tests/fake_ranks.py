"""Ranks that are threads of this process, of which one runs at a time: the real engine, and any order of its ranks.

Which rank runs next is drawn at every collective call, at every call of the store, and wherever a test says so. What
gloo would abort at, and what the protocol of graphtrain excludes, is an assertion here. Random numbers are each rank's
own, as in processes.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgpack
import pytest
import torch

from graphtrain.ranks import LostRankError, Ranks, buckets, using_ranks
from graphtrain.state.generators import PreservedRandom, capture_random, restore_random
from tests.world import World as Training
from tests.world import rows_of, said_at_resume, says_exact

Result = TypeVar("Result")


class BrokenProtocolError(AssertionError):
    """Calls of ranks that do not meet, or that nothing has announced: what would abort or hang processes."""


class KilledError(BaseException):
    """A rank that is killed: nothing of it runs any more, no handler either."""


class World:
    """As many ranks as the world size, and who of them runs.

    Arguments:
        choose: draws who runs next, and whatever the test draws.
        at_switch: called whenever another rank may run, with the world: sends signals, kills ranks. Default: nothing.

    Attributes:
        calls: of every rank, in order: the kind of a collective call, its size, and whether it is a synchronisation.
        begun: of every rank, the bytes of the exchanges that it has begun, in order.
        store: what ranks have published.
        switches: how many times another rank could run.
    """

    def __init__(
        self, world_size: int, choose: random.Random, at_switch: Callable[[World], None] = lambda world: None
    ) -> None:
        self.world_size, self.choose, self._at_switch = world_size, choose, at_switch
        self.calls: list[list[tuple[str, int]]] = [[] for _ in range(world_size)]
        self.begun: list[list[int]] = [[] for _ in range(world_size)]
        self.store: dict[str, bytes] = {}
        self.switches = 0
        self.killed: set[int] = set()
        self._passed: list[dict[int, Any]] = []
        self._turn: int | None = None
        lock = threading.RLock()
        self._turns = [threading.Condition(lock) for _ in range(world_size)]
        self._waits: dict[int, Callable[[], bool]] = {}
        self._over: set[int] = set()
        self.left: set[int] = set()
        self._broken: BaseException | None = None

    def run(self, program: Callable[[Ranks], Result]) -> list[Result | BaseException]:
        """Run a program on every rank; returns what each has returned or raised.

        Raises:
            BrokenProtocolError: the calls of the ranks do not fit each other.
        """
        results: list[Any] = [None] * self.world_size
        beginning = capture_random()

        def thread(rank: int) -> None:
            with self._turns[rank]:
                self._turns[rank].wait_for(lambda: self._turn == rank)
            restore_random(beginning)
            ranks = FakeRank(self, rank)
            try:
                with using_ranks(ranks):
                    results[rank] = program(ranks)
            except BaseException as error:
                results[rank] = error
                if isinstance(error, BrokenProtocolError):
                    self._broken = self._broken or error
            with self._turns[rank]:
                self._over.add(rank)
                self._next()

        threads = [threading.Thread(target=thread, args=(rank,), daemon=True) for rank in range(self.world_size)]
        for each in threads:
            each.start()
        with self._turns[0]:
            self._next()
        for each in threads:
            each.join(120)
            assert not each.is_alive(), "a rank hangs outside of a call"
        restore_random(beginning)
        if self._broken is not None:
            raise self._broken
        return results

    def switch(self, rank: int, until: Callable[[], bool] = lambda: True) -> None:
        """Let any rank run, and return once it is this one's turn again, and `until` answers True."""
        with self._turns[rank]:
            self._waits[rank] = until
            self._next()
            if self._turn != rank:  # nobody else draws random numbers meanwhile
                with PreservedRandom():
                    self._turns[rank].wait_for(lambda: self._turn == rank)
            self._waits.pop(rank, None)
        if rank in self.killed or self._broken is not None:
            raise KilledError

    def _next(self) -> None:
        """Draw who runs; the lock is held."""
        self.switches += 1
        if self._broken is None:
            self._at_switch(self)
        alive = [rank for rank in range(self.world_size) if rank not in self._over]
        ready = [
            rank
            for rank in alive
            if self._broken is not None or rank in self.killed or self._waits.get(rank, lambda: True)()
        ]
        if alive and not ready:
            self._broken = BrokenProtocolError(f"ranks {alive} wait for each other: {self.last_calls()}")
            ready = alive
        self._turn = self.choose.choice(ready) if ready else None
        if self._turn is not None:
            self._turns[self._turn].notify()

    @property
    def gone(self) -> set[int]:
        """The ranks that make no further call."""
        return self._over | self.killed | self.left

    def last_calls(self) -> list[list[tuple[str, int]]]:
        """The last calls of every rank."""
        return [calls[-3:] for calls in self.calls]

    def meet(self, rank: int, kind: str, size: int, value: Any) -> list[Any]:
        """A collective call: what all ranks have passed in theirs."""
        number = len(self.calls[rank])
        self._refuse_unannounced(rank, kind, size, value)
        self.calls[rank].append((kind, size))
        while len(self._passed) <= number:
            self._passed.append({})
        passed = self._passed[number]
        for other in passed:
            if self.calls[other][number] != (kind, size):
                raise BrokenProtocolError(
                    f"call {number}: rank {rank} makes {kind} of {size} bytes, rank {other} {self.calls[other][number]}"
                )
        passed[rank] = value

        def is_answered() -> bool:
            return len(passed) == self.world_size or bool(self.gone - set(passed))

        self.switch(rank, is_answered)
        if len(passed) < self.world_size:
            raise LostRankError(f"rank {min(self.gone - set(passed))} is gone")
        return [passed[other] for other in range(self.world_size)]

    def begin(self, rank: int, size: int) -> None:
        """Begin an exchange, which no synchronisation need have announced yet: in the same order on all ranks."""
        number = len(self.begun[rank])
        self.begun[rank].append(size)
        for other, sizes in enumerate(self.begun):
            if len(sizes) > number and sizes[number] != size:
                raise BrokenProtocolError(
                    f"exchange {number}: rank {rank} begins one of {size} bytes, rank {other} of {sizes[number]}"
                )

    def _refuse_unannounced(self, rank: int, kind: str, size: int, value: Any) -> None:
        """Every call but a synchronisation follows a synchronisation in which all records say the same, or another
        call that did: an exchange in several buckets, whose ranks have gathered first who has which gradient.
        """
        if _sync_point(kind, value):
            return
        if not self.calls[rank]:
            raise BrokenProtocolError(f"rank {rank} makes {kind} of {size} bytes before any synchronisation")
        number = len(self.calls[rank]) - 1
        before, passed = self.calls[rank][number], self._passed[number]
        if sync_point := _sync_point(before[0], passed[rank]):
            differ = any(_sync_point("gather", passed[other]) != sync_point for other in range(self.world_size))
            is_longer = any(int.from_bytes(each[:8], "little") > len(each) - 8 for each in passed.values())
            if differ or is_longer != (kind == "gather") or (kind == "exchange" and sync_point[0] != "exchange"):
                raise BrokenProtocolError(f"rank {rank} makes {kind} after {passed}")
        elif kind != "exchange":
            raise BrokenProtocolError(f"rank {rank} makes {kind} of {size} bytes after {before}")


def _sync_point(kind: str, value: Any) -> list[Any] | None:
    """Where a rank is, the first entry of a record; None for other data."""
    unpacker = msgpack.Unpacker()
    try:
        unpacker.feed(value[8:] if kind == "gather" else b"\0")
        unpacker.read_map_header()
        return list(unpacker.unpack()) if unpacker.unpack() == "sync_point" else None
    except (ValueError, msgpack.OutOfData):
        return None


class FakeRank(Ranks):
    """One of them."""

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank, self.world_size = world, rank, world.world_size
        self.local_rank, self.timeout_seconds = rank, 60.0
        self._thread = threading.current_thread()

    def _is_rank(self) -> bool:
        return threading.current_thread() is self._thread

    def gather(self, record: bytes) -> list[bytes]:
        return self.world.meet(self.rank, "gather", len(record), record)

    def begin_exchange(self, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        copies = [tensor.detach().clone() for tensor in tensors]
        self.world.begin(self.rank, size)

        def wait() -> None:
            if not all(torch.allclose(*pair, 0, 0, equal_nan=True) for pair in zip(tensors, copies, strict=True)):
                raise BrokenProtocolError(f"rank {self.rank} changes a tensor before its sum is there")
            of_ranks = self.world.meet(self.rank, "exchange", size, copies)
            for tensor, parts in zip(tensors, zip(*of_ranks, strict=True), strict=True):
                total = parts[0].clone()
                for part in parts[1:]:
                    total += part
                with torch.no_grad():
                    tensor.copy_(total)

        return wait

    def publish(self, key: str, value: bytes) -> None:
        self.world.store[key] = value
        if self._is_rank():
            self.world.switch(self.rank)

    def read(self, key: str, timeout_seconds: float = 0.0) -> bytes | None:
        store = self.world.store
        if self._is_rank():
            # Time is counted in turns: whoever waits longest is not waited for.
            turns = (200 if timeout_seconds >= 1 else 40) * self.world_size if timeout_seconds else 1
            for _ in range(turns):
                self.world.switch(self.rank)
                if key in store:
                    break
            return store.get(key)
        waited = threading.Event()
        for _ in range(int(timeout_seconds / 0.002) + 1):
            if key in store:
                break
            waited.wait(0.002)
        return store.get(key)

    def leave(self) -> None:
        self.world.left.add(self.rank)

    def ended(self) -> list[int]:
        return []  # as on another host, where nobody can tell


def outcomes_of(world_size: int, program: Callable[[FakeRank], Any], seed: int = 0) -> list[Any]:
    """What a program returns or raises on every rank, in an order drawn from a seed."""
    return World(world_size, random.Random(seed)).run(program)  # type: ignore[arg-type]


def run_ranks(world_size: int, program: Callable[[FakeRank], Result], seed: int = 0) -> list[Result]:
    """Run a program on every rank, in an order drawn from a seed; what they return. What one raises is raised."""
    results = outcomes_of(world_size, program, seed)
    for result in results:
        if isinstance(result, BaseException):
            with suppress(AttributeError):
                result.add_note(f"of ranks that ended with {[type(each).__name__ for each in results]}")
            raise result
    return results


def assert_exact_on_ranks(it: Training, world_size: int, folder: Path, at: int | Sequence[int] = 2) -> None:
    """A run of several ranks that is cut, and resumed by as many, is the run that was never cut.

    Arguments:
        at: after which transitions it is cut; a number: so many of them at random, 0 for all.
    """

    def whole(ranks: FakeRank) -> tuple[int, str]:
        trainer, count = it.trainer(folder / "whole"), 0
        while trainer.position != "end":
            trainer.advance()
            count += 1
        return count, trainer.digest()

    ends = run_ranks(world_size, whole)
    every = range(1, ends[0][0])
    if isinstance(at, int):
        at = every if not at else sorted(random.Random(folder.name).sample(every, min(at, len(every))))
    for number in at:
        run_dir, lines = folder / f"cut-{number}", list[str]()

        def cut(ranks: FakeRank, number: int = number, run_dir: Path = run_dir) -> str:
            trainer = it.trainer(run_dir)
            trainer.advance(number)
            trainer.save()
            return trainer.position

        def resumed(ranks: FakeRank, run_dir: Path = run_dir, lines: list[str] = lines) -> str:
            trainer = it.trainer(run_dir, lines=lines if ranks.rank == 0 else None)
            trainer.run()
            return trainer.digest()

        place = f"cut {number}, before {run_ranks(world_size, cut, seed=number)[0]}"
        assert run_ranks(world_size, resumed, seed=-number) == [digest for _, digest in ends], place
        assert says_exact(said_at_resume(lines)), f"{place}: {lines}"
        assert rows_of(run_dir) == rows_of(folder / "whole"), place


def begun_sums(patch: pytest.MonkeyPatch, large_bytes: int) -> list[tuple[int, int, int]]:
    """Of every backward pass that ends a window: the rank, the sums it had begun in it, and how many some rank had.

    Arguments:
        large_bytes: a gradient of so many is summed for itself.
    """
    begun: list[tuple[int, int, int]] = []
    exchange = buckets.GradientSums.exchange

    def noting(self: buckets.GradientSums, buffers: Any, gather: Callable[..., Any]) -> Any:
        def noted(**record: Any) -> Any:
            records = gather(**record)
            if self._expected:  # else no sum may begin early
                begun.append((self._ranks.rank, record["begun"], max(each["begun"] for each in records)))
            return records

        return exchange(self, buffers, noted)

    patch.setattr(buckets, "LARGE_BYTES", large_bytes)
    patch.setattr(buckets.GradientSums, "exchange", noting)
    return begun
