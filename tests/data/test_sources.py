"""Sources without a run: which is taken for what data, and what is refused and said."""

from __future__ import annotations

import multiprocessing
import signal
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from graphtrain import DataError, Loader
from graphtrain.data import workers
from graphtrain.data.shares import Shared, Windows
from graphtrain.data.source import Indexed, Ordered, Replayed, Source, Stateful, source_of
from graphtrain.kind.batch_limit import BatchLimit


class Numbers:
    """Counts from 0."""

    def __init__(self, count: int = 5) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


class Sized(Numbers):
    def __len__(self) -> int:
        return self.count


class Once(Sized):
    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if not self.count:
            raise StopIteration
        self.count -= 1
        return self.count


class Restarting(Once):
    """Begins an epoch in a method that `__iter__` calls."""

    def __iter__(self) -> Iterator[int]:
        return self.begin()

    def begin(self) -> Iterator[int]:
        return self.again()

    def again(self) -> Iterator[int]:
        self.begin  # noqa: B018 - in a circle
        self.count = 4
        return self


class Keeps:
    """Keeps its position."""

    def __init__(self, count: int = 4) -> None:
        self.count, self.number, self.told = count, 0, list[int]()

    def set_epoch(self, epoch: int) -> None:
        self.told.append(epoch)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        while self.number < self.count:
            self.number += 1
            yield self.number - 1
        self.number = 0

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state.pop("number")


class Samples(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


class OfTorchdata(DataLoader[int]):
    """As a `StatefulDataLoader`."""

    __module__ = "torchdata.stateful_dataloader"

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class OfLength:
    """Has samples by number, and no `__iter__`."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        if index > 1:
            raise IndexError
        return index


def said(data: Any, saving: bool = True, **options: Any) -> tuple[Source, list[str]]:
    lines: list[str] = []
    return source_of(data, seed=3, saving=saving, notify=lines.append, **options), lines


def flat(batches: Any) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in batches]


# ---- which source, and what is refused


KINDS: list[tuple[Callable[[], Any], dict[str, Any], type, bool, bool]] = [
    (lambda: Loader(range(4), 2), {}, Ordered, True, False),
    (lambda: [1], {}, Indexed, True, False),
    (lambda: (1,), {}, Indexed, True, False),
    (Keeps, {}, Stateful, False, False),
    (Keeps, {"resume": "state"}, Stateful, False, False),
    (Keeps, {"resume": "replay"}, Replayed, True, True),
    (Keeps, {"limit": 3, "saving": False}, Stateful, False, False),
    (lambda: OfTorchdata(range(4), None), {}, Stateful, False, False),
    (lambda: OfTorchdata(range(4), None), {"limit": 3}, Replayed, False, True),
    (lambda: OfTorchdata(range(4), None, num_workers=1), {}, Replayed, True, True),
    (Numbers, {}, Replayed, True, True),
    (OfLength, {}, Replayed, True, True),
    (Restarting, {}, Replayed, True, True),
    (Once, {"saving": False}, Replayed, True, True),
    (lambda: DataLoader(range(4)), {}, Replayed, False, True),
    (lambda: DataLoader(range(4), num_workers=1), {}, Replayed, True, True),
    (lambda: DataLoader(Samples()), {}, Replayed, True, True),
    (lambda: DataLoader(range(4), num_workers=1, persistent_workers=True), {"saving": False}, Replayed, True, True),
]


@pytest.mark.parametrize("row", KINDS, ids=range(len(KINDS)))
def test_the_source_of_data(row: tuple[Callable[[], Any], dict[str, Any], type, bool, bool]) -> None:
    make, options, kind, redraws, replays = row
    source, _ = said(make(), **options)
    assert (type(source), source.redraws, source.replays) == (kind, redraws, replays)
    assert source.release(iter([])) is False


COST = (
    "train or validation data is a DataLoader: a resume inside an epoch draws that epoch's earlier batches again; "
    "graphtrain.Loader takes the same keywords and resumes at once"
)


class KeepingLoader(DataLoader[Any]):
    state_dict = load_state_dict = len


def test_the_cost_of_a_resume_is_said_of_a_data_loader_only() -> None:
    assert said(DataLoader(range(4)))[1] == [COST]
    assert said(DataLoader(range(4)), saving=False)[1] == said(Numbers())[1] == said([1])[1] == []
    for options in ({"resume": "replay"}, {"resume": "replay", "limit": 3}):
        assert said(KeepingLoader(range(4)), **options)[1] == [COST.replace("a DataLoader", "a KeepingLoader")]


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (
            3,
            {},
            "the data is a int, which cannot be iterated over\n  hint: pass a graphtrain.Loader, a DataLoader, a list "
            "of batches, or any iterable of batches",
        ),
        (
            Numbers(),
            {"resume": "state"},
            'next_batch.resume = "state": the data is a Numbers, which has no state_dict and load_state_dict\n  hint: '
            'leave it at "auto"',
        ),
        (
            Keeps(),
            {"limit": 3},
            "next_batch.limit = 3: the data is a Keeps that keeps its own position, which is undefined after an epoch "
            'cut short by the limit\n  hint: end the epochs in the data; or next_batch.resume = "replay", if its '
            "`__iter__` starts a new epoch",
        ),
        (
            Once(),
            {},
            "the data is a Once that can be iterated over only once, so no resume could be exact\n  hint: pass an "
            "object whose `__iter__` starts over, such as a generator method, or run without a run directory",
        ),
        (
            DataLoader(range(4), num_workers=1, persistent_workers=True),
            {},
            "a DataLoader with persistent_workers=True cannot be resumed exactly: its workers keep random states that "
            "nothing can restore\n  hint: use graphtrain.Loader, which takes the same keywords, or "
            "persistent_workers=False",
        ),
        (
            DataLoader(Samples(), num_workers=1, persistent_workers=True),
            {},
            "a DataLoader with persistent_workers=True cannot be resumed exactly: its workers keep random states that "
            "nothing can restore\n  hint: use persistent_workers=False",
        ),
    ],
    ids=range(6),
)
def test_data_that_is_refused(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        said(data, **options)
    assert str(caught.value) == message


OTHER_KIND = (
    "the run is inside an epoch that was begun with another kind of data: its position, after 3 batches, is not "
    "defined in a {}\n  hint: change the data at the end of an epoch, or pass a list of batches or a graphtrain.Loader"
)


@pytest.mark.parametrize(
    ("data", "state", "message"),
    [
        (Keeps(), {}, OTHER_KIND.format("Keeps")),
        (Numbers(), {"loaders": {}}, OTHER_KIND.format("Numbers")),
        (
            Sized(2),
            None,
            "the data ended after 2 batches, it gave 3 before: it has changed\n  hint: restore it; and `setup` must "
            "not draw batches from it, unless `__iter__` starts over",
        ),
    ],
)
def test_an_epoch_that_cannot_be_continued(data: Any, state: Any, message: str) -> None:
    source, _ = said(data)
    state = source.open(0).state if state is None else state
    with pytest.raises(DataError) as caught:
        source.reopen(0, 3, state)
    assert str(caught.value) == message


def test_what_can_be_read_only_once_can_be_opened_and_not_again() -> None:
    source, _ = said(Once(), saving=False)
    opened = source.open(0)
    assert flat(opened.batches) == [4, 3, 2, 1, 0]
    with pytest.raises(DataError) as caught:
        source.reopen(0, 2, opened.state)
    assert str(caught.value) == (
        "the data is a Once that can be iterated over only once, and the run is in the middle of it: the node that "
        "reads it cannot be replaced without losing batches\n  hint: keep the node that fetches batches, and its data, "
        "until the epoch has ended"
    )


# ---- shares of ranks


@pytest.mark.parametrize(("limit", "numbers"), [(None, [0, 1, 2, 3, 4]), (3, [0, 1, 2]), (9, [0, 1, 2, 3, 4])])
def test_a_share_ends_with_the_limit(limit: int | None, numbers: list[int]) -> None:
    found: list[Any] = []
    for rank in range(2):
        source = Shared(Ordered(Loader(range(10), 2), 0), rank, 2, BatchLimit(limit), Windows())
        opened = source.open(0)
        share: Any = opened.batches
        assert (opened.length, opened.state, share.end) == (5, {}, len(numbers))
        for first in range(0, len(numbers), 2):
            share.begin_round(first, min(2, len(numbers) - first))
            if first + rank < len(numbers):
                found.append(next(share).tolist())
        assert source.release(share) is False
    assert sorted(found) == [[2 * number, 2 * number + 1] for number in numbers]


# ---- workers


def test_signals_for_the_run_are_blocked_while_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked: list[set[int]] = []
    signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGUSR2})

    class Data:
        num_workers = 2

        def __iter__(self) -> Iterator[int]:
            blocked.append({*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))})
            return iter([1])

    try:
        data: Any = Data()
        assert list(workers.iterate(data)) == [1]
        data.multiprocessing_context = multiprocessing.get_context("spawn")
        started: list[int] = []
        unblock = lambda: started.append(signal.pthread_sigmask(signal.SIG_SETMASK, ()) and 1)  # noqa: E731
        monkeypatch.setattr(workers.resource_tracker, "ensure_running", unblock)
        workers.iterate(data)
        del data.multiprocessing_context
        data.num_workers = 0
        workers.iterate(data)
        own = {int(signal.SIGUSR2)}
        for_the_run = {int(each) for each in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)}
        assert blocked == [own | for_the_run, for_the_run, own] and len(started) == 1
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {signal.SIGUSR2}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


def test_a_worker_ignores_its_end_while_the_run_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Any] = []
    killed: list[Any] = []
    called: list[int] = []
    monkeypatch.setattr(workers.signal, "signal", lambda *given: handlers.append(given))
    monkeypatch.setattr(workers.os, "kill", lambda *given: killed.append(given))
    workers.WorkerStart(called.append)(3)
    workers.WorkerStart(None)(4)
    (number, handler), _ = handlers
    assert called == [3] and number is signal.SIGTERM
    handlers.clear()
    for parent, ends in ((types.SimpleNamespace(is_alive=lambda: True), False),
                         (types.SimpleNamespace(is_alive=lambda: False), True), (None, True)):  # fmt: skip
        monkeypatch.setattr(workers.multiprocessing, "parent_process", lambda parent=parent: parent)
        handler(signal.SIGTERM, None)
        assert handlers == [(signal.SIGTERM, signal.SIG_DFL)] * ends
        assert killed == [(workers.os.getpid(), signal.SIGTERM)] * ends
        handlers.clear(), killed.clear()


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_torchdatas_loader_is_resumed_by_its_state_where_that_is_exact() -> None:
    made = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    kept = type("Kept", (Samples,), {"state_dict": len, "load_state_dict": len})
    for data, limit, is_exact in (
        (made(range(4)), None, True),
        (made(range(4), shuffle=True), None, True),
        (made(range(4)), 3, False),
        (made(range(4), num_workers=1), None, False),
        (made(range(4), None), None, True),
        (made(range(4), sampler=SequentialSampler(range(4))), None, True),
        (made(range(4), sampler=RandomSampler(range(4))), None, False),
        (made(range(4), sampler=[1, 2]), None, False),
        (made(range(4), batch_sampler=BatchSampler(SequentialSampler(range(4)), 2, False)), None, False),
        (made(Samples()), None, False),
        (made(kept()), None, True),
    ):
        source, lines = said(data, limit=limit)
        assert isinstance(source, Stateful) is is_exact
        if not is_exact:
            assert ("its state is not complete" in lines[0]) is (limit is None)
