"""Sources without a run: what is refused and said, where an epoch continues, and loaders that are read together."""

from __future__ import annotations

import itertools
import multiprocessing
import random
import signal
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from graphtrain import DataError, Loader
from graphtrain.data import workers
from graphtrain.data.loader import NumberedEpoch, WorkerMemory
from graphtrain.data.loaders import RankLocal
from graphtrain.data.redrawing import Progress
from graphtrain.data.shares import Shared, Window, WindowCounter, Windows
from graphtrain.data.source import Indexed, Ordered, Replayed, Source, Stateful, source_of
from graphtrain.data.state import DataState
from graphtrain.data.stream import Stream
from graphtrain.data.together import InTurn, Together
from graphtrain.data.wrapped import Common, CommonBatches, Overfit, Wrapped
from graphtrain.kind.batch_limit import BatchLimit
from graphtrain.state.baseline import Baseline
from graphtrain.state.generators import HOST
from graphtrain.state.random import seed_everything


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
    assert opened.state["once"] is True and flat(opened.batches) == [4, 3, 2, 1, 0]
    with pytest.raises(DataError) as caught:
        source.reopen(0, 2, opened.state)
    assert str(caught.value) == (
        "the data is a Once that can be iterated over only once, and the run is in the middle of it: the node that "
        "reads it cannot be replaced without losing batches\n  hint: keep the node that fetches batches, and its data, "
        "until the epoch has ended"
    )
    assert said(Numbers())[0].open(0).state.keys() == {"random", "generators", "streams"}
    del opened.state["once"]
    assert flat(said(Once(), saving=False)[0].reopen(0, 2, opened.state)) == [2, 1, 0]


def test_numbers_select_from_a_list_and_a_loader_only() -> None:
    source = Indexed(["a", "b", "c"])
    assert source.select([2, 0, 2]).tolist() == [2, 0, 2] and source.open(1).length == 3  # type: ignore[union-attr]
    assert flat(source.open(1).batches) == ["c", "a", "c"]
    assert flat(source.reopen(1, 2, {}, again=1)) == ["c"] and source.redrawn == ["a"]
    assert flat(source.reopen(1, 1, {}, again=5)) == ["a", "c"] and source.redrawn == ["c"]
    assert source.select(None) is None and flat(source.reopen(1, 1, {})) == ["b", "c"] and source.redrawn == []
    loader = Ordered(Loader(range(9), 2), 0)
    assert loader.select([1, 2, 3]).tolist() == [1, 2, 3]  # type: ignore[union-attr]
    assert loader.open(0).length == 2 and flat(loader.reopen(0, 1, {})) == [[3]]
    assert loader.select(None) is None and loader.open(0).length == 5
    numbers, _ = said(Numbers())
    assert numbers.select(None) is None
    for other, name in ((numbers, "Numbers"), (Overfit(Stateful(Keeps()), [], 1), "Keeps")):
        with pytest.raises(DataError) as caught:
            other.select([1])
        assert str(caught.value) == (
            f"`indices` selects samples by their numbers, which a {name} does not draw by\n  hint: pass a "
            "graphtrain.Loader, which takes the keywords of DataLoader, or a list of batches"
        )
    together = Together({"a": [1]}, lambda data: said(data)[0], "cycle", DataState())
    with pytest.raises(DataError, match="which a Together does not draw by"):
        together.select([1])
    for name in ("sampler", "batch_sampler"):
        with pytest.raises(DataError) as caught:
            Ordered(Loader(range(9), **{name: [[1]]}), 0).select([1])  # type: ignore[arg-type]
        assert str(caught.value) == (
            f"`indices` selects the samples of an epoch, and so does the {name} of the Loader\n  hint: leave the "
            f"{name} out, or leave `indices` unwritten"
        )


def test_whether_data_has_a_length() -> None:
    assert [said(data)[0].has_length() for data in ([1], Sized(), Numbers(), DataLoader(Samples()))] == [
        True, True, False, False,
    ]  # fmt: skip


# ---- data that keeps its position


def test_a_position_is_that_of_the_data_once_it_has_begun() -> None:
    data = Keeps()
    source = Stateful(data)
    assert source.position() == {}
    opened = source.open(2)
    assert (opened.length, set(opened.state), data.told) == (4, {"random", "generators"}, [2])
    next(opened.batches), next(opened.batches)
    position = source.position()
    assert position == {"data": {"number": 2}}
    other = Stateful(again := Keeps())
    other.load_position({}, inside=True)
    assert other.position() == {}
    other.load_position(position, inside=True)
    assert other.position() == position and again.number == 0
    rest = other.reopen(5, 2, {})
    assert other.position() == position and again.told == [5]
    assert next(rest) == 2 and other.position() == {"data": {"number": 3}}
    assert list(rest) == [3] and other.position() == {"data": {"number": 0}}
    assert position == {"data": {"number": 2}}, "though the data takes its state apart"


@pytest.mark.parametrize(("number", "doubts"), [(3, ["has a batch: loaded after the last bat"]), (4, [])])
def test_whether_there_is_another_batch_behind_a_position(number: int, doubts: list[str]) -> None:
    source = Stateful(data := Keeps())
    source.load_position({"data": {"number": number}}, inside=True)
    found = source.doubts(3, "has a batch", {})
    assert [line[:38] for line in found] == [*doubts, "was saved with a state of its own, bef"]
    assert data.told == [3]


def test_between_two_epochs_the_empty_rest_of_the_last_is_left_out() -> None:
    for number, expected in ((4, [0, 1, 2, 3]), (0, [0, 1, 2, 3])):
        source = Stateful(Keeps())
        source.load_position({"data": {"number": number}}, inside=False)
        assert source.position() == {"data": {"number": number}}
        before = random.getstate()
        assert list(source.open(1).batches) == expected and random.getstate() == before


# ---- loaders together and in turn


def together(combine: Any, loaders: dict[str, Any], **options: Any) -> Together:
    return Together(loaders, lambda data: said(data)[0], combine, DataState(), **options)


@pytest.mark.parametrize(
    ("combine", "batches", "length"),
    [
        ("shortest", [(0, 10), (1, 11)], 2),
        ("longest", [(0, 10), (1, 11), (2, None), (3, None)], 4),
        ("cycle", [(0, 10), (1, 11), (2, 10), (3, 11)], 4),
    ],
)
def test_loaders_together(combine: Any, batches: list[Any], length: int) -> None:
    loaders = {"a": [0, 1, 2, 3], "b": [10, 11]}
    opened = together(combine, loaders).open(0)
    assert [tuple(batch.values()) for batch in opened.batches] == batches and opened.length == length
    for drawn, again in itertools.product(range(length + 1), range(3)):
        source = together(combine, loaders)
        whole = source.open(0)
        list(itertools.islice(whole.batches, drawn))
        other = together(combine, loaders)
        rest = other.reopen(0, drawn, whole.state, again)
        assert [tuple(batch.values()) for batch in other.redrawn] == batches[max(drawn - again, 0) : drawn]
        assert [tuple(batch.values()) for batch in rest] == batches[drawn:]
        assert other.position() == (
            {"passes": {"a": 1, "b": 2}} if combine == "cycle" else {"passes": {"a": 1, "b": 1}}
        )


def test_a_loader_that_is_read_again_is_told_another_epoch() -> None:
    first, second = Keeps(5), Keeps(2)
    source = together("cycle", {"a": first, "b": second}, passes={"b": 7, "c": 1})
    opened = source.open(0)
    assert len(list(opened.batches)) == 5 and (first.told, second.told) == ([0], [7, 8, 9])
    assert source.position() == {"passes": {"a": 1, "b": 10}}
    passes = opened.state["loaders"]["b"]["passes"]
    assert [(each["first"], each["pass"]) for each in passes] == [(0, 7), (2, 8), (4, 9)] and "data" not in passes[0]
    other = together("cycle", {"a": Keeps(5), "b": Keeps(2)})
    other.load_position(source.position(), inside=True)
    assert other.passes == {"a": 0, "b": 0}
    other.load_position({"passes": {"b": 3, "c": 5}}, inside=False)
    assert other.passes == {"a": 0, "b": 3}
    other.load_position({}, inside=False)
    assert other.passes == {"a": 0, "b": 3}


def test_of_many_passes_the_last_and_those_of_64_batches_are_kept() -> None:
    opened = together("cycle", {"a": [0] * 200, "b": [1]}).open(0)
    list(itertools.islice(opened.batches, 150))
    assert [each["first"] for each in opened.state["loaders"]["b"]["passes"]] == [0, *range(85, 150)]


def test_what_several_loaders_are() -> None:
    source = together("cycle", {"a": [1], "b": Numbers(), "c": Loader(range(4), 2)})
    assert (source.replays, source.redraws, source.has_length()) == (True, True, False)
    source = together("cycle", {"a": [1], "b": Keeps()})
    assert (source.replays, source.redraws, source.has_length()) == (False, False, True)
    opened = source.open(0)
    assert source.release(iter([])) is False and source.release(opened.batches) is False
    source.sources["b"].release = lambda batches: True  # type: ignore[method-assign]
    assert source.release(opened.batches) is True
    source.sources["b"].unsaved = lambda: [" changes"]  # type: ignore[method-assign]
    assert source.unsaved() == [".b changes"]


AGAIN = (
    "the loader `b` has ended, and does not start over\n  hint: give it an `__iter__` that starts over; or set "
    'next_batch.combine = "shortest", or "longest"'
)
EMPTY = (
    "the loader `b` gave no batch: it is empty, or was iterated over before and does not start over\n  hint: leave it "
    "out of the mapping, or give it data"
)


@pytest.mark.parametrize(
    ("other", "drawn", "message"),
    [([], 0, EMPTY), (Once(2), 2, AGAIN)],
)
def test_a_loader_without_a_batch_is_refused(other: Any, drawn: int, message: str) -> None:
    source = Together({"a": [1, 2, 3], "b": other}, lambda data: said(data, saving=False)[0], "cycle", DataState())
    batches = source.open(0).batches
    assert len(list(itertools.islice(batches, drawn))) == drawn
    with pytest.raises(DataError) as caught:
        next(batches)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("state", "saved"), [({}, "other data"), ({"loaders": {"x": {}, "b": {}}}, "x, b"), ({"loaders": {}}, "other data")]
)
def test_an_epoch_of_other_loaders_is_refused(state: Any, saved: str) -> None:
    with pytest.raises(DataError) as caught:
        together("cycle", {"a": [1], "b": [2]}).reopen(0, 0, state)
    assert str(caught.value) == (
        f"the run is inside an epoch of {saved}, and now there are the loaders a, b\n  hint: change the loaders at the "
        "end of an epoch"
    )


def test_loaders_in_turn_that_are_not_there_are_named() -> None:
    loaders = InTurn({"a": [1], "b": [2]}, lambda data: said(data)[0])
    with pytest.raises(DataError) as caught:
        loaders.source("c")
    assert str(caught.value) == (
        "the run was saved in the loader `c`, and now there are a, b\n  hint: supply the loader `c` too, or resume "
        "from a checkpoint that was made elsewhere"
    )
    with pytest.raises(DataError) as caught:
        loaders.ends_with("b", 0)
    assert str(caught.value) == EMPTY
    assert InTurn({"a": RankLocal([1]), "b": [2]}, lambda data: said(data)[0]).length(BatchLimit(None)) == 0


# ---- around another source


def test_a_source_around_another_asks_it() -> None:
    inner = Stateful(Keeps())
    source = Wrapped.__new__(type("Around", (Wrapped,), {"open": inner.open, "reopen": inner.reopen}))
    source.__init__(inner)  # type: ignore[misc]
    asked: list[Any] = []
    for name in ("select", "has_length", "release", "sample", "unsaved", "position", "load_position", "doubts"):
        setattr(inner, name, lambda *given, name=name, **named: asked.append((name, given, named)) or name)
    assert source.select(1) == "select" and source.has_length() == "has_length" and source.release(2) == "release"  # type: ignore[comparison-overlap, arg-type]
    assert source.sample() == "sample" and source.doubts(1, "", {}) == "doubts"  # type: ignore[comparison-overlap]
    assert source.unsaved() == "unsaved" and source.position() == "position"  # type: ignore[comparison-overlap]
    source.load_position({"a": 1}, inside=True)
    assert asked[0] == ("select", (1,), {}) and asked[4] == ("doubts", (1, "", {}), {})
    assert asked[7] == ("load_position", ({"a": 1},), {"inside": True})


def test_data_in_order_can_be_the_same_in_every_epoch() -> None:
    in_order: list[Any] = [
        [], DataLoader(range(4)), DataLoader(range(4), None),
        Loader(range(4), shuffle=True),
    ]  # fmt: skip
    assert Overfit(Indexed([1]), in_order, 2).open(3).length == 1
    with pytest.raises(DataError) as caught:
        Overfit(Indexed([1]), [*in_order, DataLoader(range(4), sampler=RandomSampler(range(4)))], 2)
    assert str(caught.value) == (
        "next_batch.overfit = 2: the data is a DataLoader with a RandomSampler, which gives other batches in every "
        "epoch\n  hint: leave shuffle=True out; or use graphtrain.Loader, which gives those of its first epoch again"
    )


class Drawing(Keeps):
    """Keeps its position, and draws every batch."""

    def __iter__(self) -> Iterator[float]:
        for _ in super().__iter__():
            yield random.random()


def test_numbers_of_no_rank_are_part_of_a_position() -> None:
    source = Common(Stateful(Drawing()), Drawing(), 3)
    assert source.position() == {}
    opened = source.open(1)
    assert "common" not in opened.state
    first = [next(opened.batches), next(opened.batches)]
    assert opened.state["common"] is True
    position = source.position()
    assert position["data"] == {"number": 2} and len(position["common"]) == len(HOST)
    rest = [next(opened.batches), next(opened.batches)]
    seed_everything(8)
    other = Common(Stateful(Drawing()), Drawing(), 3)
    other.load_position({**position}, inside=True)
    assert [*itertools.islice(other.reopen(1, 2, {}), 2)] == rest and first != rest
    other.load_position({**position}, inside=False)
    before = random.getstate()
    batches = other.open(1)
    assert [*itertools.islice(batches.batches, 2)] == first and random.getstate() == before
    replayed = Common(said(Numbers())[0], Numbers(), 3)
    replayed.open(0)
    assert replayed.position() == {}


def test_in_one_process_an_epoch_is_opened_as_it_is() -> None:
    inner = Indexed([1, 2])
    source = Common(inner, [1, 2], 3, is_shared=False)
    opened = source.open(0)
    assert not isinstance(opened.batches, CommonBatches) and source.release(opened.batches) is False
    assert isinstance(source.reopen(0, 1, {}), CommonBatches)
    released: list[Any] = []
    inner.release = lambda batches: released.append(batches) or True  # type: ignore[method-assign, assignment]
    shared = Common(inner, [1, 2], 3).open(0).batches
    assert source.release(shared) is True and released == [shared.iterator]  # type: ignore[attr-defined]
    plain = iter([1])
    assert source.release(plain) and released[1] is plain


# ---- shares of ranks


def test_a_window_takes_what_is_left_of_it() -> None:
    fields = {"count": 0, "size": 5}
    counter = WindowCounter("accumulate", fields, "count", "size", lambda: 3)
    table = {0: Window(3, 3), 1: Window(4, 3), 5: Window(0, 3)}
    for count, window in table.items():
        fields["count"] = count
        assert counter.now() == window
        windows = Windows([counter])
        assert windows() == [window] and windows.unstepped() == ("accumulate" if count == 5 else None)
        windows.epoch = counter
        assert windows() == [window] * 2


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
                found.append(share.fetch().tolist())
        assert source.release(share) is False
    assert sorted(found) == [[2 * number, 2 * number + 1] for number in numbers]


def test_a_batch_is_fetched_early_once() -> None:
    share: Any = Shared(Ordered(Loader(range(4), 2), 0), 0, 1, BatchLimit(None), Windows()).open(0).batches
    (early,) = share.fetch_early()
    assert share.fetch_early() == [] and share.begin_round(0, 1) and share.fetch() is early
    assert share.begin_round(1, 1) and share.fetch().tolist() == [2, 3] and share.fetch_early() == []


def test_a_batch_before_the_place_is_drawn_again() -> None:
    source = Shared(Ordered(Loader(range(10), 2), 0), 1, 2, BatchLimit(None), Windows())
    for again, redrawn in ((0, []), (1, [[6, 7]]), (2, [[4, 5], None])):
        source.reopen(0, 4, {}, again)
        assert flat(source.redrawn) == redrawn


# ---- what data holds beside its position


class Holding:
    def __init__(self) -> None:
        self.values = [1]

    def __iter__(self) -> Iterator[int]:
        return iter(self.values)


def test_the_state_of_data_that_is_followed() -> None:
    data, later = Holding(), Holding()
    state = DataState()
    assert (state.name(data), state.is_known(data), state.capture(data)) == ("the data", False, {})
    state.baseline = Baseline({"train_data": data}, ["train_data"])
    assert (state.name(data), state.name(later)) == ("train_data", "the data")
    assert (state.is_known(data), state.is_known(later), state.capture(data), state.capture(later)) == (
        True,
        False,
        {},
        {},
    )
    with state.kept(data), state.kept(later):
        data.values.append(2)
        later.values.append(2)
    assert (data.values, later.values) == ([1], [1, 2])
    data.values.append(3)
    section = state.capture(data)
    assert list(section) == ["train_data.values"]
    data.values.append(4)
    state.restore(data, section)
    state.restore(later, section)
    assert (data.values, later.values) == ([1, 3], [1, 2])
    state.restore(data, {})
    assert data.values == [1]
    state.comparisons = [lambda: "a", lambda: "", lambda: "b"]
    assert (state.not_as_before(), state.not_as_before()) == (["a", "b"], [])


def test_iterators_of_data_that_is_redrawn_are_not_reported() -> None:
    data, later = Holding(), Holding()
    state = DataState()
    state.is_redrawn(data)
    baseline = state.baseline = Baseline({"train_data": data}, ["train_data"])
    data.iterator = iter([1])  # type: ignore[attr-defined]
    state.is_redrawn(later)
    assert len(baseline.drift().unknown) == 1
    state.is_redrawn(data)
    assert baseline.drift().unknown == []


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


@pytest.mark.parametrize(
    ("iterator", "even_persistent", "ends"),
    [
        (iter([]), True, False),
        (types.SimpleNamespace(_shutdown_workers=1), False, True),
        (types.SimpleNamespace(_shutdown_workers=1, _persistent_workers=True), False, False),
        (types.SimpleNamespace(_shutdown_workers=1, _persistent_workers=True), True, True),
    ],
)
def test_workers_are_ended_where_there_are_any(iterator: Any, even_persistent: bool, ends: bool) -> None:
    ended: list[int] = []
    if hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers = lambda: ended.append(1)
    assert workers.shut_down(iterator, even_persistent=even_persistent) is ends
    assert ended == [1] * ends


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


def test_what_a_worker_remembers_is_compared_at_the_second_fourth_and_eighth_batch() -> None:
    memory = WorkerMemory({"dataset": Holding(), "collate_fn": None}, None)  # type: ignore[arg-type]
    assert [number for number in range(1, 20) if memory.is_due()] == [2, 4, 8, 16]


# ---- numbered epochs


@pytest.mark.parametrize(
    ("size", "drop_last", "start", "length", "batches"),
    [
        (3, False, 0, 4, [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]),
        (3, True, 0, 3, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
        (3, False, 2, 4, [[6, 7, 8], [9]]),
        (3, True, 2, 3, [[6, 7, 8]]),
        (None, False, 8, 10, [8, 9]),
        (3, False, 4, 4, []),
    ],
)
def test_a_numbered_epoch(size: int | None, drop_last: bool, start: int, length: int, batches: list[Any]) -> None:
    for order in (range(10), torch.arange(10)):
        epoch = NumberedEpoch(order, size, drop_last, 7, 5, is_in_batches=False)
        assert epoch.length == length and list(epoch.batches(start)) == batches
        for number in range(start, length):
            assert epoch.job(number) == (7, 5, number, batches[number - start])
            assert epoch.samples(number) == (1 if size is None else len(batches[number - start]))


def test_progress_is_said_after_two_seconds_and_every_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    now = [100.0]
    monkeypatch.setattr("graphtrain.data.redrawing.time.monotonic", lambda: now[0])
    progress = Progress(2, 4_000, lines.append)
    for seconds, number in ((1.9, 1), (2.0, 1_000), (11.9, 2_000), (12.0, 2_000), (21.0, 3_000), (22.0, 4_000)):
        now[0] = 100 + seconds
        progress.report(number)
    assert lines == [
        "1,000 of 4,000 batches of epoch 3 are drawn again, 6 s left; a graphtrain.Loader, or data with a state_dict, "
        "resumes at once",
        "2,000 of 4,000 batches of epoch 3 are drawn again, 12 s left",
        "4,000 of 4,000 batches of epoch 3 are drawn again, 0 s left",
    ]


def test_where_data_gets_a_stream_of_its_own() -> None:
    """Torch's samplers that draw at once need none; of a sampler in this process only the sampler gets one."""

    class Own(RandomSampler):
        pass

    for data, is_stream in (
        (Numbers(), True),
        (DataLoader(range(4)), False),
        (DataLoader(Samples()), True),
        (DataLoader(range(4), sampler=Own(range(4))), False),
    ):
        batches = said(data)[0].open(0).batches
        assert isinstance(batches, Stream) is is_stream
        has_one = isinstance(getattr(batches, "_sampler_iter", None), Stream)
        assert has_one is (isinstance(data, DataLoader) and isinstance(data.sampler, Own))


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
