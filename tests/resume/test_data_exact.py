"""Promise 10: a run that is cut in mid-epoch is the run never cut, whatever its data is, and wherever that is cut."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from graphtrain import DataError, Graph, Loader, Trainer, node, progress
from tests.resume import data_kinds as kinds
from tests.resume.data_kinds import COUNT, Made, Noisy, Seen, hugging_face, reading, setting, stateful
from tests.world import World, assert_exact, assert_same, seed_generators

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata 0.11 calls it
    pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning"),
]


def on_workers(dataset: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, num_workers=2, **options)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": lambda: {"batch_size": 3},
    "shuffled": lambda: {"batch_size": 3, "shuffle": True},
    "without the last batch": lambda: {"batch_size": 3, "shuffle": True, "drop_last": True},
    "collated at random": lambda: {"batch_size": 3, "shuffle": True, "collate_fn": kinds.noisy_collate},
    "one by one": lambda: {"batch_size": None, "shuffle": True},
    "a part": lambda: {"batch_size": 2, "sampler": SubsetRandomSampler(range(9))},
    "weighted": lambda: {"batch_size": 2, "sampler": WeightedRandomSampler([1.0] * COUNT, 12)},
    "replacing": lambda: {"batch_size": 2, "sampler": RandomSampler(range(COUNT), True, 20)},
    "several times over": lambda: {
        "batch_size": 4, "sampler": RandomSampler(range(COUNT), num_samples=40, generator=generator()),
    },
    "a sampler": lambda: {"batch_size": 2, "sampler": kinds.BufferedSampler("python")},
    "a batch sampler": lambda: {"batch_sampler": kinds.SizedInPairs(kinds.BufferedSampler("numpy"))},
    "torch's batch sampler": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(COUNT)), 3, False)},
    "a sampler that counts": lambda: {"batch_size": 2, "sampler": kinds.CountingSampler()},
    "a sampler that adapts": lambda: {"batch_size": 2, "sampler": kinds.Adaptive()},
    "a batch sampler that counts": lambda: {"batch_sampler": kinds.SizedInPairs(kinds.CountingSampler())},
}  # fmt: skip
SETS: dict[str, Callable[[], Any]] = {
    "that counts": kinds.Counting,
    "that caches": kinds.Caching,
    "that grows": kinds.Growing,
    "that remembers": kinds.Remembering,
    "with a generator deep inside": kinds.Deep,
}
DRAWING: dict[str, Callable[[str], Any]] = {
    "a shuffle buffer": kinds.Buffered,
    "a shuffle buffer of known length": kinds.SizedBuffered,
    "an iterable data set": lambda drawn: DataLoader(kinds.BufferedSet(drawn), 2),
    "a sampler bit by bit": lambda drawn: DataLoader(Noisy(), 2, sampler=kinds.BufferedSampler(drawn)),
    "a batch sampler bit by bit": lambda drawn: DataLoader(
        Noisy(), batch_sampler=kinds.SizedInPairs(kinds.BufferedSampler(drawn))
    ),
    "a shuffle buffer for validation": lambda drawn: {
        "train_data": kinds.Buffered(), "val_data": kinds.SizedBuffered(drawn),
    },
}  # fmt: skip
POSITIONS: dict[str, Callable[[], Any]] = {
    "reset at the end": kinds.Carried,
    "of known length": kinds.SizedCarried,
    "told at the beginning": kinds.Flagged,
    "drawn by iter": kinds.Eager,
    "not asked before it begins": kinds.Unready,
}


def of_one_generator(count: int = 20) -> dict[str, Any]:
    """Samplers with replacement draw 32 numbers at once."""
    drawing = generator()

    def loader() -> DataLoader[Any]:
        return DataLoader(range(COUNT), 2, sampler=RandomSampler(range(COUNT), True, count, drawing))  # type: ignore[arg-type]

    return {"train_data": loader(), "val_data": loader()}


def validated(data: Any) -> dict[str, Any]:
    return {"train_data": Loader(Noisy(), 2, shuffle=True), "val_data": data}


def hugging_loader(kind: Any, dataset: Any = None, **options: Any) -> Any:
    return kind(hugging_face() if dataset is None else dataset, 2, collate_fn=kinds.stacked, **options)


EXACT: dict[str, Made] = {
    **{
        f"{kind.__name__}: {name}": lambda kind=kind, made=made: kind(Noisy(), **made())  # type: ignore[misc]
        for name, made in OPTIONS.items()
        for kind in (Loader, DataLoader)
    },
    **{
        f"{kind.__name__}: data {name}": lambda kind=kind, made=made: kind(made(), 2, shuffle=True)  # type: ignore[misc]
        for name, made in SETS.items()
        for kind in (Loader, DataLoader)
    },
    **{
        f"{name} from {drawn}": lambda made=made, drawn=drawn: made(drawn)  # type: ignore[misc]
        for name, made in DRAWING.items()
        for drawn in kinds.DRAWN
    },
    **{f"a position {name}": made for name, made in POSITIONS.items()},
    "DataLoader: a batch sampler without a length": lambda: DataLoader(
        Noisy(), batch_sampler=kinds.InPairs(kinds.BufferedSampler())
    ),
    "DataLoader: own generator": lambda: DataLoader(Noisy(), 3, shuffle=True, generator=generator()),
    "two loaders of one generator": of_one_generator,
    "Loader: a part of data that counts": lambda: Loader(Subset(kinds.Counting(), range(12)), 2, shuffle=True),
    "DataLoader: two sets that count": lambda: DataLoader(
        ConcatDataset([kinds.Counting(), kinds.Counting()]), 4, shuffle=True
    ),
    "a generator made in a fetch": lambda: Loader(kinds.LazilySeeded(), 2, shuffle=True),
    "generators made in a fetch, by transforms": lambda: Loader(kinds.Transformed(), 2, shuffle=True),
    "a list": lambda: [torch.full((2,), float(number)) for number in range(5)],
    "a batch of a class": lambda: kinds.OfKind(kinds.Own),
    "a batch of a class, from a loader": lambda: DataLoader(kinds.OfKind(kinds.Own), None),
    "a named tuple": lambda: kinds.OfKind(lambda inputs: kinds.Pair(inputs, 0)),
    "plain batches of unknown length": lambda: kinds.OfKind(lambda inputs: inputs),
    "a stream that learns": lambda: DataLoader(kinds.Learning(), 2),
    "a buffer that fills": kinds.Filling,
    "a buffer that fills, data that counts for validation": lambda: {
        "train_data": kinds.Filling(), "val_data": Loader(kinds.Counting(), 4),
    },
    "longer epochs": kinds.Longer,
    "fewer batches than its length": lambda: DataLoader(kinds.Told(20, 15), 2),
    "more batches than its length": lambda: DataLoader(kinds.Told(5, 15), 2),
    "no validation batches in a list": lambda: validated([]),
    "no validation batches in a Loader": lambda: validated(Loader([], 2)),
    "no validation batches, shuffled": lambda: validated(Loader([], 2, shuffle=True)),
    "too few validation samples": lambda: validated(Loader(range(3), 4, drop_last=True)),
    "no validation batches in a DataLoader": lambda: validated(DataLoader([], 2)),
    "no validation batches in a stream": lambda: validated(DataLoader(kinds.Told(0, 0), 2)),
}  # fmt: skip
# Of other libraries, whose import takes a second; and with workers.
LONGER: dict[str, Made] = {
    "StatefulDataLoader": lambda: stateful(Noisy(), 2),
    "StatefulDataLoader: shuffled": lambda: stateful(Noisy(), 3, shuffle=True, drop_last=True),
    "StatefulDataLoader: one by one": lambda: stateful(Noisy(), None, shuffle=True),
    "StatefulDataLoader: own generator": lambda: stateful(Noisy(), 2, shuffle=True, generator=generator()),
    "StatefulDataLoader: torch's sampler": lambda: stateful(Noisy(), 2, sampler=RandomSampler(range(COUNT))),
    "StatefulDataLoader: replacing": lambda: stateful(
        Noisy(), 2, sampler=RandomSampler(range(COUNT), True, 40, generator())
    ),
    "StatefulDataLoader: own sampler": lambda: stateful(Noisy(), 2, sampler=kinds.BufferedSampler()),
    "StatefulDataLoader: a set with a state": lambda: stateful(kinds.CountedSet(), 2),
    "StatefulDataLoader: a set without a state": lambda: stateful(kinds.BufferedSet(), 2),
    "StatefulDataLoader: data that counts": lambda: stateful(kinds.Counting(), 2, shuffle=True),
    "StatefulDataLoader: data that caches": lambda: stateful(kinds.Caching(), 2, shuffle=True),
    "StatefulDataLoader: for validation": lambda: validated(stateful(Noisy(), 4, shuffle=True)),
    "StatefulDataLoader: 2 workers": lambda: stateful(Noisy(), 2, shuffle=True, num_workers=2),
    "StatefulDataLoader: 2 workers, prefetching": lambda: stateful(
        Noisy(), 2, shuffle=True, num_workers=2, prefetch_factor=1
    ),
    "Hugging Face: Loader": lambda: hugging_loader(Loader, shuffle=True),
    "Hugging Face: Loader, transformed": lambda: hugging_loader(
        Loader, hugging_face().with_transform(kinds.disturbed), shuffle=True
    ),
    "Hugging Face: DataLoader, transformed": lambda: hugging_loader(
        DataLoader, hugging_face().with_transform(kinds.disturbed), shuffle=True
    ),
    "Hugging Face: a stream": lambda: hugging_loader(DataLoader, hugging_face(0)),
    "Hugging Face: a shuffled stream": lambda: hugging_loader(DataLoader, hugging_face(5)),
    "2 workers: collated at random": lambda: on_workers(Noisy(), **OPTIONS["collated at random"]()),
    "2 workers: without the last batch": lambda: on_workers(Noisy(), **OPTIONS["without the last batch"]()),
    "2 workers: a sampler bit by bit": lambda: on_workers(Noisy(), batch_size=2, sampler=kinds.BufferedSampler()),
    "2 workers: a batch sampler bit by bit": lambda: on_workers(
        Noisy(), batch_sampler=kinds.SizedInPairs(kinds.BufferedSampler())
    ),
    "2 workers: a batch of a class": lambda: on_workers(kinds.OfKind(kinds.Own), batch_size=None),
    "2 workers: an iterable data set": lambda: on_workers(kinds.BufferedSet(), batch_size=2),
    "2 workers: fewer batches than its length": lambda: on_workers(kinds.Told(20, 15), batch_size=2),
    "2 workers: no validation batches": lambda: validated(on_workers(kinds.Told(0, 0), batch_size=2)),
    "2 workers: data that counts": lambda: on_workers(kinds.Counting(), batch_size=2, shuffle=True),
    **{
        f"Loader, 2 workers: {name}": lambda made=made: Loader(made(), 2, shuffle=True, num_workers=2)  # type: ignore[misc]
        for name, made in {
            "noisy": Noisy, "a generator deep inside": kinds.Deep, "a generator made in a fetch": kinds.LazilySeeded,
            "generators of transforms": kinds.Transformed, "data that caches": kinds.Caching,
        }.items()
    },
    "Loader, 2 workers: a sampler that counts": lambda: Loader(
        kinds.Samples(), 2, sampler=kinds.CountingSampler(), num_workers=2
    ),
    "Loader, 2 workers: a sampler that adapts": lambda: Loader(
        kinds.Samples(), 2, sampler=kinds.Adaptive(), num_workers=2
    ),
}  # fmt: skip
EPOCHS = {name: 3 for name in EXACT if any(word in name for word in ("longer", "grows", "a position"))}


def epochs_of(name: str) -> Callable[[Graph], Graph]:
    return setting("finish", after=f"{EPOCHS.get(name, 2)} epochs")


# Each kind of data once; a third of the others in the second tier, all of them in the sweep.
FIRST = [
    "Loader: shuffled", "Loader: collated at random", "Loader: a sampler that adapts", "Loader: data that caches",
    "Loader: data with a generator deep inside", "DataLoader: shuffled",
    "DataLoader: collated at random", "DataLoader: a batch sampler without a length",
    "DataLoader: a sampler that counts", "DataLoader: data that grows", "DataLoader: own generator",
    "a shuffle buffer from python", "an iterable data set from torch",
    "a sampler bit by bit from numpy", "a position drawn by iter", "a position told at the beginning",
    "a generator made in a fetch", "a list", "a batch of a class",
    "a buffer that fills", "longer epochs", "fewer batches than its length", "no validation batches in a stream",
]  # fmt: skip
REST = [name for name in EXACT if name not in FIRST]


@pytest.mark.second(19)
@pytest.mark.first(9)
@pytest.mark.parametrize("name", [*FIRST, *(pytest.param(name, marks=pytest.mark.full) for name in REST[::3])])
def test_a_cut_is_exact(name: str, tmp_path: Path) -> None:
    assert_exact(reading(EXACT[name], edit=epochs_of(name)), tmp_path, at=1)


@pytest.mark.second(4)
@pytest.mark.full
@pytest.mark.parametrize("name", sorted(LONGER, key=lambda name: "workers" not in name))
def test_a_cut_is_exact_with_workers_and_other_libraries(name: str, tmp_path: Path) -> None:
    assert_exact(reading(LONGER[name]), tmp_path, at=1)


@pytest.mark.sweep
@pytest.mark.parametrize("name", [*EXACT, *LONGER])
def test_many_cuts_are_exact(name: str, tmp_path: Path) -> None:
    doubts = "before its second batch, so nothing shows whether" if "a position" in name else None
    assert_exact(reading({**EXACT, **LONGER}[name], edit=epochs_of(name)), tmp_path, at=6, doubts=doubts)


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize(
    "name", [*POSITIONS][:1] + [pytest.param(name, marks=pytest.mark.full) for name in [*POSITIONS][1:]]
)
def test_a_position_in_validation_is_exact(name: str, tmp_path: Path) -> None:
    """Restored for the next validation too, where the cut is outside of one, or before the first batch of one."""
    it = reading(
        lambda: {"train_data": POSITIONS[name](), "val_data": POSITIONS[name]()}, setting("finish", after="3 epochs")
    )
    assert_exact(it, tmp_path, [33, 53, 60, 66])


# ---- settings of what fetches batches

SETTINGS: dict[str, World] = {
    **{
        f"a limit: {name}": reading(made, edit=setting("next_batch", limit=4))
        for name, made in {
            "Loader": lambda: Loader(Noisy(), 2, shuffle=True),
            "DataLoader": lambda: DataLoader(Noisy(), 2, shuffle=True),
            "a sampler bit by bit": lambda: DataLoader(Noisy(), 2, sampler=kinds.BufferedSampler()),
            "unsized": kinds.Longer,
        }.items()
    },
    "replayed, though it has a state": reading(lambda: kinds.Wrapped(kinds.Forgetful())),
    "a transfer of the user's": reading(
        lambda: {
            "train_data": DataLoader(Noisy(), 2, shuffle=True),
            "val_data": [torch.ones(2)],
            "transfer": lambda batch, device: {"x": batch + 1},
        }
    ),
    "samples of a batch that the user counts": reading(
        lambda: {"train_data": DataLoader(Noisy(), 2, shuffle=True), "batch_size": lambda batch: 7}
    ),
}


@pytest.mark.second(3)
@pytest.mark.first(2)
@pytest.mark.parametrize("name", [*reversed(SETTINGS)])
def test_a_cut_is_exact_with_settings(name: str, tmp_path: Path) -> None:
    assert_exact(SETTINGS[name], tmp_path, at=1)


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize(
    ("before", "after"), [(0, 0), *(pytest.param(*pair, marks=pytest.mark.full) for pair in ((0, 2), (2, 4), (4, 0)))]
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes:UserWarning")
def test_the_number_of_workers_of_a_loader_may_change(before: int, after: int, tmp_path: Path) -> None:
    def of(workers: int) -> World:
        options: dict[str, Any] = {"collate_fn": kinds.noisy_collate, "shuffle": True, "num_workers": workers}
        return reading(lambda: Loader(Noisy(), 3, **options))

    assert_exact(of(before), tmp_path, at=1, resumed=of(after))


@pytest.mark.first(2)
@pytest.mark.parametrize("name", POSITIONS)
def test_a_cut_twice_in_one_epoch_is_exact(name: str, tmp_path: Path) -> None:
    """What data reports after a resume is the position that it has come to since."""
    it = reading(POSITIONS[name], training_step=(step := Seen()))
    whole = it.trainer()
    whole.run()
    seen = step.batches.copy()
    step.batches.clear()
    for until in ("2 batches", "4 batches", None):
        trainer = it.trainer(tmp_path)
        trainer.run(until=until)
    assert step.batches == seen and trainer.digest() == whole.digest()


@pytest.mark.full
def test_a_run_in_pieces_is_the_run_in_one() -> None:
    """Workers end between two pieces, so the epoch is opened again in the process that holds what came of it."""
    for made in (
        lambda: Loader(kinds.Samples(), 2, sampler=kinds.Adaptive()),
        lambda: DataLoader(kinds.Samples(), 2, sampler=kinds.CountingSampler()),
    ):
        assert_same_in_pieces(made)


@pytest.mark.full
@pytest.mark.parametrize(
    "made",
    [
        lambda: DataLoader(kinds.Samples(), 2, sampler=kinds.CountingSampler(), num_workers=1),
        lambda: Loader(kinds.LazilySeeded(), 2, shuffle=True, num_workers=1),
        lambda: Loader(kinds.Samples(), 2, sampler=kinds.Adaptive(), num_workers=2),
    ],
    ids=["a sampler that counts", "a lazy generator", "a sampler that adapts"],
)
def test_a_run_in_pieces_with_workers_is_the_run_in_one(made: Made) -> None:
    assert_same_in_pieces(made)


def assert_same_in_pieces(made: Made) -> None:
    whole, pieces = (reading(made).trainer() for _ in range(2))
    seed_generators(3)
    whole.run()
    for until in ("3 batches", "9 batches", None):
        pieces.run(until=until)
    assert pieces.digest() == whole.digest()


@pytest.mark.full
def test_a_generator_of_a_data_loader_that_is_made_in_a_fetch_is_continued(tmp_path: Path) -> None:
    """No two runs are alike; a resumed run uses the generator that it had."""
    it = reading(lambda: DataLoader(kinds.LazilySeeded(), 2, shuffle=True), training_step=(step := Seen()))
    whole = it.trainer(tmp_path)
    whole.run(until="4 batches")
    whole.run()
    seen = step.batches[4:]
    step.batches.clear()
    it.trainer().run(resume=min((tmp_path / "checkpoints").iterdir()))
    assert step.batches == seen


def test_a_node_that_is_replaced_in_mid_epoch_leaves_data_as_it_is() -> None:
    it = reading(lambda: DataLoader(kinds.Counting(), 2, shuffle=True))
    whole, rewired = it.trainer(), it.trainer()
    whole.run()
    rewired.run(until="4 batches")
    data: Any = rewired.resources["train_data"].dataset
    given = data.given
    rewired.rewire(rewired.graph.set("next_batch", limit=1000))
    assert data.given == given
    rewired.run()
    assert_same(rewired.resources["model"].state_dict(), whole.resources["model"].state_dict())


# ---- several loaders

SINGLE: dict[str, Made] = {
    "DataLoader": lambda: DataLoader(kinds.Samples(), 2, shuffle=True),
    "a sampler": lambda: DataLoader(kinds.Samples(), 2, sampler=kinds.BufferedSampler()),
    "a batch sampler": lambda: DataLoader(kinds.Samples(), batch_sampler=kinds.InPairs(kinds.BufferedSampler())),
    "own generator": lambda: DataLoader(kinds.Samples(), 2, shuffle=True, generator=generator()),
    "a sampler that counts": lambda: DataLoader(kinds.Samples(), 2, sampler=kinds.CountingSampler()),
    "noisy": lambda: DataLoader(Noisy(), 2, shuffle=True),
    "a worker": lambda: DataLoader(kinds.Samples(), 2, shuffle=True, num_workers=1),
    "Loader": lambda: Loader(kinds.Samples(), 2, shuffle=True),
    "Loader, batch sampler": lambda: Loader(kinds.Samples(), batch_sampler=kinds.SizedInPairs(kinds.BufferedSampler())),
    "a list": lambda: [*torch.arange(float(COUNT)).split(2)],
    "a shuffle buffer": kinds.Buffered,
    "a stream": lambda: DataLoader(kinds.BufferedSet(), 2),
    "a stream, workers": lambda: on_workers(kinds.BufferedSet(), batch_size=2),
    "Hugging Face": lambda: hugging_loader(DataLoader, hugging_face(5)),
    "StatefulDataLoader": lambda: stateful(kinds.Samples(), 2, shuffle=True),
    "StatefulDataLoader, a worker": lambda: stateful(kinds.Samples(), 2, shuffle=True, num_workers=1),
    "own state": kinds.Carried,
}
FAST = [name for name in SINGLE if not any(word in name for word in ("worker", "Hugging", "Stateful"))]


def shuffled() -> Any:
    return DataLoader(kinds.Samples(), 3, shuffle=True)


WAYS: dict[str, Callable[[Made], Any]] = {
    "together": lambda made: {"a": made(), "b": made()},
    "first": lambda made: {"a": made(), "b": shuffled()},
    "second": lambda made: {"a": shuffled(), "b": made()},
    "in a tuple": lambda made: kinds.Zipped(made(), made()),
}


def assert_exact_in_a_way(way: str, kind: str, folder: Path, cuts: int) -> None:
    it = reading(lambda: {"train_data": WAYS[way](SINGLE[kind])})
    if way != "in a tuple" and kind == "own state":
        with pytest.raises(DataError, match="keeps its own position, which an epoch"):
            assert_exact(it, folder, cuts)
    else:
        assert_exact(it, folder, cuts)


@pytest.mark.second(5)
@pytest.mark.first(1)
@pytest.mark.parametrize("kind", FAST)
def test_loaders_that_are_read_together_are_exact(kind: str, tmp_path: Path) -> None:
    assert_exact_in_a_way(random.Random(kind).choice([*WAYS]), kind, tmp_path, 1)


@pytest.mark.sweep
@pytest.mark.parametrize("kind", SINGLE)
@pytest.mark.parametrize("way", WAYS)
def test_several_loaders_of_every_kind_are_exact(way: str, kind: str, tmp_path: Path) -> None:
    assert_exact_in_a_way(way, kind, tmp_path, 3)


@pytest.mark.full
def test_loaders_that_share_a_generator_are_exact(tmp_path: Path) -> None:
    def made() -> dict[str, Any]:
        options: dict[str, Any] = {"generator": generator(), "shuffle": True}
        loaders = {name: DataLoader(kinds.Samples(), size, **options) for name, size in (("a", 4), ("b", 2))}
        return {"train_data": {**loaders, "c": shuffled()}}

    assert_exact(reading(made), tmp_path, 1)


# ---- data that the graph selects, or writes


def writing(choose: Callable[[int], Any], writes: str = "indices") -> Any:
    @node(writes=writes, name="select")
    class Select:
        """Write what the epochs from the next one on have."""

        count: int = progress(0)

        def __call__(self) -> Any:
            self.count += 1
            return choose(self.count)

    return Select


def selecting(choose: Callable[[int], Any], after: str = "begin_epoch") -> Callable[[Graph], Graph]:
    return lambda graph: graph.set("finish", after="3 epochs").insert("select", writing(choose), after=after)


def some(count: int) -> list[int]:
    return [number for number in range(12) if number % (count + 1)][: 4 + 2 * count]


SELECTED = [[1, 3, 5, 7, 9, 11], [1, 2, 4, 5, 7, 8, 10, 11], [1, 2, 3, 5, 6, 7, 9, 10, 11]]


def twelve(size: int = 3, **options: Any) -> Loader:
    return Loader([torch.tensor([float(number)]) for number in range(12)], size, **options)


def seen_by(it: World) -> tuple[list[list[float]], Trainer]:
    """The batches that a training is given."""
    step = Seen()
    trainer = it.but(training_step=lambda made: step).trainer()
    trainer.run()
    return step.batches, trainer


@pytest.mark.full
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_has_what_is_selected(shuffle: bool, tmp_path: Path) -> None:
    it = reading(lambda: twelve(shuffle=shuffle), edit=selecting(some))
    assert_exact(it, tmp_path, 1)
    batches = iter(seen_by(it)[0])
    for indices in SELECTED:
        had = [number for _ in range(-(-len(indices) // 3)) for number in next(batches)]
        assert sorted(had) == indices and (had == indices) is not shuffle
    assert next(batches, None) is None


@pytest.mark.full
def test_workers_load_what_is_selected(tmp_path: Path) -> None:
    alone, shared = (reading(lambda n=n: twelve(shuffle=True, num_workers=n), edit=selecting(some)) for n in (0, 2))  # type: ignore[misc]
    assert assert_exact(shared, tmp_path, 1).digest == seen_by(alone)[1].digest()


@pytest.mark.full
def test_what_is_selected_in_mid_epoch_is_for_the_next_one(tmp_path: Path) -> None:
    choose: Callable[[int], Any] = lambda count: [count % 12, (count + 1) % 12, 3]  # noqa: E731
    it = reading(lambda: twelve(2), edit=selecting(choose, after="zero_grad"))
    assert_exact(it, tmp_path, 1)
    seen, _ = seen_by(it)
    assert len(seen) > 6 and seen[:6] == [[2.0 * n, 2.0 * n + 1] for n in range(6)], "until it is written, everything"
    assert seen[6:8] == [[3.0, 4.0], [3.0]], "what the last step of the epoch before has written"


@pytest.mark.full
def test_batches_of_a_list_are_selected_by_number(tmp_path: Path) -> None:
    it = reading(lambda: [torch.tensor([float(n)]) for n in range(4)], edit=selecting(lambda n: [2, 0, 2][:n]))
    seen, trainer = seen_by(it)
    assert seen == [[2.0], [2.0], [0.0], [2.0], [0.0], [2.0]] and trainer.read("next_batch.epochs") == 3
    assert_exact(it, tmp_path, 1)


def test_validation_has_a_selection_of_its_own() -> None:
    def validated_batches(edit: Callable[[Graph], Graph]) -> list[Any]:
        seen: list[Any] = []
        it = reading(lambda: {"train_data": twelve(), "val_data": twelve(4)}, edit=edit)
        step = lambda model, batch: seen.append(batch.flatten().tolist()) or {"loss": 0.0}  # noqa: E731
        it.trainer(validation_step=step, not_state=["validation_step"]).run()
        return seen

    training = selecting(some)
    chosen = writing(lambda count: [0, count], writes="val_indices")
    both = lambda graph: training(graph.set("validate", every="1 epochs")).insert(  # noqa: E731
        "hold_out", chosen, after="begin_epoch"
    )
    assert validated_batches(both) == [[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]]
    assert {len(batch) for batch in validated_batches(training)} == {4}, "what training selects is not for it"


@pytest.mark.full
@pytest.mark.parametrize("again", [True, False], ids=["again in mid-epoch", "once"])
def test_data_that_the_graph_writes_is_exact(again: bool, tmp_path: Path) -> None:
    """The second before the slot is written again, whose value is not alive then."""

    def pool(count: int) -> list[torch.Tensor]:
        return [torch.full((2, 1), float(10 * count + number)) for number in range(2 + count)]

    def edit(graph: Graph) -> Graph:
        graph = graph.set("finish", after="3 epochs").set("next_batch", reads={"train_data": "pool"})
        graph = graph.insert("select", writing(pool, writes="pool"), after="begin_epoch")
        rewriting = node(writes="pool", name="again")(lambda *, of: [torch.full((2, 1), 7.0)] * of)
        return graph.insert("again", rewriting, after="zero_grad", of=2) if again else graph

    it = reading(lambda: {}, edit=edit)
    assert_exact(it, tmp_path, 1)
    assert [batch[0] for batch in seen_by(it)[0]] == [10.0, 11, 12, 20, 21, 22, 23, 30, 31, 32, 33, 34]
