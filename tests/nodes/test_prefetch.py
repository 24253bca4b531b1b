"""`next_batch.prefetch`: a batch early, none too many, and exact at every cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import Graph, Loader
from graphtrain.data.batch import EarlyMover
from graphtrain.kind import kind_of
from graphtrain.nodes import _opened
from graphtrain.nodes.next_batch import NextBatch
from tests.data.conftest import assert_exact as assert_exact  # the fixture
from tests.data.cutting import AssertExact, run_over
from tests.data.test_cuts import Own, Unsized, UnsizedSet, pair
from tests.data.test_lazy import Noisy
from tests.program.test_by_hand import assert_same

Edit = Callable[[Graph], Graph]


def prefetching(graph: Graph) -> Graph:
    return graph.set("next_batch", prefetch=True).set("accumulate", every=3)


class Counted:
    """Batches that know how many of them were drawn."""

    def __init__(self, length: int = 5) -> None:
        self.length, self.drawn = length, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self.length):
            self.drawn += 1
            yield torch.tensor([float(number), self.drawn])


class SizedCounted(Counted):
    def __len__(self) -> int:
        return self.length


class KeepsItsPosition(SizedCounted):
    def __init__(self) -> None:
        super().__init__()
        self.position = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.position < self.length:
            self.position += 1
            yield torch.tensor([float(self.position), 1.0])
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


DATA: dict[str, Callable[[], Any]] = {
    "Loader": lambda: Loader(Noisy(), 3, shuffle=True),
    "DataLoader": lambda: DataLoader(Noisy(), 3, shuffle=True),
    "IterableDataset": lambda: DataLoader(UnsizedSet(pair), None),
    "unsized": lambda: Unsized(lambda inputs: inputs),
    "unsized, cannot be encoded": lambda: Unsized(Own),
    "list": lambda: [torch.full((2,), float(number)) for number in range(5)],
    "list, cannot be encoded": lambda: [Own(torch.full((2,), float(number))) for number in range(5)],
    "with a state": KeepsItsPosition,
}


@pytest.mark.second(4)
@pytest.mark.first(2)
@pytest.mark.parametrize("made", DATA.values(), ids=DATA)
def test_cuts_are_exact(made: Callable[[], Any], tmp_path: Path, assert_exact: AssertExact) -> None:
    assert_exact(made, tmp_path, edit=prefetching)


@pytest.mark.parametrize("name", ["Loader", "list"])
def test_it_changes_nothing_where_batches_draw_nothing_from_the_run(name: str) -> None:
    found = []
    for edit in (prefetching, lambda graph: graph.set("accumulate", every=3)):
        trainer, seen = run_over(DATA[name](), None, edit=edit)
        trainer.run()
        progress = {key: value for key, value in trainer.progress["next_batch"].items() if key != "seconds"}
        found.append((seen, trainer.resources["model"].state_dict(), progress, trainer.metrics))
    assert_same(*found)


def drawn_by_batch(data: Counted, edit: Edit) -> list[tuple[int, int]]:
    """(batches given out, batches drawn) after every visit."""
    trainer, _ = run_over(data, None, epochs=2, edit=lambda graph: edit(graph).set("validate", every="never"))
    found = []
    while trainer.position != "end":
        before = trainer.position
        trainer.advance()
        if before == "next_batch":
            found.append((trainer.progress["next_batch"]["batches"], data.drawn))
    return found


def plain(graph: Graph) -> Graph:
    return graph


@pytest.mark.parametrize("kind", [Counted, SizedCounted])
def test_one_batch_is_drawn_early_and_none_that_no_epoch_needs(kind: type[Counted]) -> None:
    every_epoch = [(1, 2), (2, 3), (3, 4), (4, 5), (5, 5)]
    assert drawn_by_batch(kind(), prefetching) == [*every_epoch, *((one + 5, two + 5) for one, two in every_epoch)]


@pytest.mark.second(3)
@pytest.mark.full
@pytest.mark.parametrize("name", ["Loader", "list", "with a state"])
@pytest.mark.parametrize(("before", "after"), [(plain, prefetching), (prefetching, plain)])
def test_it_may_be_changed_at_a_resume(before: Edit, after: Edit, name: str, tmp_path: Path) -> None:
    def run(edit: Edit, until: str | None, run_dir: Path | None = None) -> list[Any]:
        trainer, seen = run_over(DATA[name](), run_dir, edit=lambda graph: edit(graph).set("accumulate", every=3))
        trainer.run(until=until)
        return seen

    assert run(before, "3 batches", tmp_path) + run(after, None, tmp_path) == run(before, None)


# The other stream, where there is none


class FakeStream:
    def __init__(self, journal: list[Any], name: str) -> None:
        self.journal, self.name = journal, name

    def wait_event(self, event: FakeEvent) -> None:
        self.journal.append((self.name, "waits for", event.number))


class FakeEvent:
    made = 0

    def __init__(self) -> None:
        FakeEvent.made += 1
        self.number = FakeEvent.made

    def record(self, stream: FakeStream) -> None:
        stream.journal.append((stream.name, "records", self.number))


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of two streams, in order; the device is one that computes nothing."""
    told: list[Any] = []
    side, current = FakeStream(told, "side"), FakeStream(told, "current")
    now = [current]

    @contextmanager
    def on(stream: FakeStream) -> Iterator[None]:
        now.append(stream)
        yield
        now.pop()

    to = torch.Tensor.to

    def copy(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        told.append((now[-1].name, "copies", tuple(tensor.shape), options))
        return to(tensor, *arguments, **options)

    FakeEvent.made = 0
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.Tensor, "to", copy)
    monkeypatch.setattr(
        torch.Tensor,
        "record_stream",
        lambda tensor, stream: told.append((stream.name, "reads", tuple(tensor.shape), tensor.device.type)),
    )
    return told


def test_a_batch_is_copied_beside_waited_for_and_kept_while_it_is_read(journal: list[Any]) -> None:
    mover = EarlyMover(torch.device("meta"))
    first, second = {"inputs": [torch.ones(2)], "name": "a"}, (torch.ones(3),)
    mover.begin(first)
    mover.begin(second)
    moved = mover.move(first)
    assert (moved["inputs"][0].device.type, moved["name"]) == ("meta", "a")
    assert journal == [
        ("side", "copies", (2,), {"non_blocking": True}),
        ("side", "records", 1),
        ("side", "copies", (3,), {"non_blocking": True}),
        ("side", "records", 2),
        ("current", "waits for", 1),
        ("current", "reads", (2,), "meta"),
    ]
    journal.clear()
    assert mover.move(second)[0].device.type == "meta"
    assert journal == [("current", "waits for", 2), ("current", "reads", (3,), "meta")]


class WithTo:
    def to(self, device: Any) -> WithTo:
        return self


@pytest.mark.parametrize("other", [lambda: torch.ones(2, device="meta"), WithTo], ids=["on a device", "own `to`"])
def test_a_batch_that_is_not_on_the_host_alone_is_moved_when_it_is_asked_for(
    other: Callable[[], Any], journal: list[Any]
) -> None:
    mover = EarlyMover(torch.device("meta"))
    batch, following = (torch.ones(2), other()), (torch.ones(3),)
    mover.begin(batch)
    mover.begin(following)
    mover.move(batch)
    assert ("current", "copies", (2,), {"non_blocking": True}) in journal
    assert ("side", "copies", (2,), {"non_blocking": True}) not in journal
    assert not [one for one in journal if "waits for" in one]
    mover.move(following)
    assert journal[-2:] == [("current", "waits for", 1), ("current", "reads", (3,), "meta")]


def test_on_a_cuda_device_the_copy_is_begun_before_the_batch_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    class Mover:
        def __init__(self, device: torch.device) -> None:
            assert device.type == "cuda"

        def begin(self, batch: Any) -> None:
            told.append(("begin", batch))

        def move(self, batch: Any) -> Any:
            told.append(("move", batch))
            return f"{batch} moved"

    monkeypatch.setattr(_opened, "EarlyMover", Mover)

    def make(prefetch: bool, state: dict[str, Any] | None = None) -> NextBatch:
        node = kind_of(NextBatch).new_instance()
        node.prefetch = prefetch
        for name, value in (state or {}).items():
            setattr(node, name, value)
        node.setup(["a", "b", "c"], seed=0, device=torch.device("cuda"), saving=False, notify=told.append)
        return node

    node = make(True)
    assert [node()[0] for _ in range(3)] == ["a moved", "b moved", "c moved"]
    assert told == [("begin", "b"), ("move", "a"), ("begin", "c"), ("move", "b"), ("move", "c")]
    told.clear()
    resumed = make(True, {"opened": True, "pass_over": False, "length": 3, "epoch_batches": 1, "fetched_ahead": 1})
    assert told == [("begin", "b")]
    assert resumed()[0] == "b moved"
    told.clear()
    make(False)()
    assert told == []
