"""Parts of the data of a run with a contract of their own: shares of ranks, moving a batch, workers and signals."""

from __future__ import annotations

import dataclasses
import random
import signal
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch

from graphtrain import Loader
from graphtrain.data import workers
from graphtrain.data.batch import as_tuples, count_samples, move, tensors_of, trace
from graphtrain.data.shares import RankBatches, round_size

# ---- shares of ranks

BATCHES, SIZE = 23, 3


class Counted:
    """Samples with random numbers, and how many were loaded."""

    loaded = 0

    def __len__(self) -> int:
        return BATCHES * SIZE - 1

    def __getitem__(self, index: int) -> Any:
        self.loaded += 1
        return torch.tensor([float(index), torch.rand(()).item(), random.random()])


def counted_loader(**keywords: Any) -> Loader:
    return Loader(Counted(), batch_size=SIZE, shuffle=True, seed=4, **keywords)


EXPECTED = [batch.tolist() for batch in counted_loader().batches(1)]


def share_of(loader: Loader, world_size: int) -> RankBatches:
    return RankBatches(loader, loader.epoch(1), world_size)


def sizes(world_size: int, window: int | None, first: int, is_early: Callable[[], bool]) -> Iterator[tuple[int, int]]:
    """The rounds of an epoch from one on, where windows of this size may be stepped before they are full."""
    count = 0
    while first < BATCHES:
        size = round_size(first, BATCHES, world_size, [] if window is None else [window - count])
        yield first, size
        first += size
        count += size
        if window is not None and (count >= window or is_early()):
            count = 0


@pytest.mark.first(3)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_batch_is_loaded_once_from_any_place(world_size: int) -> None:
    choose = random.Random(world_size)
    for window, first, early in ((None, 0, 0), (1, 5, 0), (4, 0, 0), (6, 5, 0), (6, 22, 0), (100, 5, 0), (5, 0, 0.3)):
        loaders = [counted_loader() for _ in range(world_size)]
        shares, batches = [share_of(loader, world_size) for loader in loaders], list[Any]()
        for number, size in sizes(world_size, window, first, lambda early=early: choose.random() < early):  # type: ignore[misc]
            batches += [shares[rank].batch(number + rank, BATCHES).tolist() for rank in range(size)]
        assert batches == EXPECTED[first:]
        assert sum(loader.dataset.loaded for loader in loaders) == sum(map(len, batches)), "nothing in vain"


@pytest.mark.parametrize("count", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_rank_loads_again_from_a_round_that_has_no_batch_for_each(count: int) -> None:
    share = share_of(counted_loader(num_workers=count), 2)
    for number in (1, 3, 4, 6, 8, 9):
        assert share.batch(number, BATCHES).tolist() == EXPECTED[number]
        if number == 6:
            share.release()
    share.release()


# ---- batches


class Pair(NamedTuple):
    inputs: Any
    name: str


@dataclasses.dataclass(frozen=True)
class Frozen:
    inputs: Any
    length: int = 3
    made: Any = dataclasses.field(init=False, default=None)


@dataclasses.dataclass(slots=True)
class Slotted:
    inputs: Any


class Moving:
    """It says itself how it is moved."""

    was_moved = False

    def __init__(self, inputs: Any) -> None:
        self.inputs = inputs

    def to(self, device: torch.device) -> Moving:
        moved = Moving(self.inputs.to(device))
        moved.was_moved = True
        return moved


WIDE = torch.ones(4, 2)
NESTS = [WIDE, [WIDE], Pair(WIDE, "a"), {"deep": (Pair([WIDE], "a"),)}, UserDict(inputs=WIDE), Frozen(WIDE),
         Slotted({"inputs": WIDE}), Frozen(Slotted(Pair(WIDE, "a")))]  # fmt: skip


@pytest.mark.parametrize("batch", NESTS, ids=lambda batch: type(batch).__name__)
def test_every_tensor_of_a_nest_is_moved(batch: Any) -> None:
    moved = move(batch, torch.device("meta"))
    assert type(moved) is type(batch)
    assert [each.device.type for each in tensors_of(moved)] == ["meta"]
    assert [each.device.type for each in tensors_of(batch)] == ["cpu"], "the batch of the data stays as it is"
    assert count_samples(batch) == 4


def test_what_moves_itself_does() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    moving, sequence, name = move([Moving(WIDE), packed, "a"], torch.device("meta"))
    assert type(moving) is Moving and moving.was_moved and moving.inputs.device.type == "meta" and name == "a"
    assert sequence.data.device.type == "meta" and sequence.batch_sizes.device.type == "cpu"


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.ones(3, 2), 3),
        (torch.ones(()), 1),
        (torch.ones(0, 2), 0),
        ("a", 1),
        ([], 1),
        (None, 1),
        ([(torch.ones(4), torch.ones(3))], 4),
        (["a", torch.ones(5)], 5),
        ([(), torch.ones(5)], 5),
        ({"a": "text", "b": [torch.ones(6)]}, 6),
        (Slotted(torch.ones(7)), 7),
        (Moving(torch.ones(7)), 1),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3), torch.ones(1)], layout=torch.jagged), 3),
    ],
    ids=range(13),
)
def test_samples_are_the_first_dimension_of_the_first_tensor(batch: Any, samples: int) -> None:
    assert count_samples(batch) == samples


def test_the_tuples_of_a_batch_do_not_change_with_it() -> None:
    first, second = torch.ones(1), torch.zeros(1)
    for batch in ({"a": first, "b": second}, [first, second]):
        kept = as_tuples(batch)
        batch.clear()
        assert kept == (first, second)
    pair = (first, second)
    assert as_tuples(pair) is pair and as_tuples(first) is first


@pytest.mark.filterwarnings("ignore:.*quantize", "ignore:.*nested tensor")
def test_a_trace_counts_changes_and_hashes_on_the_host() -> None:
    tensor = torch.zeros(3)
    before = trace(as_tuples([{"a": [tensor]}]))
    assert before["versions"] == 0 and before == trace((tensor, "a", object()))
    tensor[1] = 5
    tensor[1] = 6
    assert trace(tensor)["versions"] == 2 and trace(tensor)["hash"] != before["hash"]
    with torch.inference_mode():
        inference = torch.ones(2)
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided)
    elsewhere = torch.ones(2, device="meta")
    assert trace((quantized, nested, torch.ones(2).to_sparse(), inference, elsewhere)) == trace(())


# ---- workers


def test_the_function_of_a_loader_that_starts_workers_is_as_it_was() -> None:
    class Data:
        num_workers, worker_init_fn = 2, None

        def __iter__(self) -> Iterator[Any]:
            return iter([self.worker_init_fn])

    data: Any = Data()
    [used] = workers.iterate(data)
    assert used.func is workers.start_worker and data.worker_init_fn is None
    data.num_workers = 0
    assert [*workers.iterate(data)] == [None]


def test_a_worker_ignores_the_signals_that_are_for_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ignored: list[Any] = []
    called: list[int] = []
    monkeypatch.setattr(workers.signal, "signal", lambda *given: ignored.append(given))
    workers.start_worker(called.append, 3)
    workers.start_worker(None, 4)
    for_the_run = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
    assert called == [3] and ignored == [(number, signal.SIG_IGN) for number in for_the_run] * 2
