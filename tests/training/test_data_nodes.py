"""Promise 7: batches of any data, in any number of loaders, and the limits of an epoch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    get_worker_info,
)

from graphtrain import DataError, GraphError, Loader, PlannedRun, Trainer
from tests.fake_ranks import run_ranks
from tests.world import World, assert_exact, small_fit, world

# ---- one source of a training


class Noisy(Dataset[Any]):
    """Numbers, each with random numbers from every generator."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), random.random(), float(numpy.random.rand()), float(torch.rand(()))])


def batches_of(count: int) -> list[torch.Tensor]:
    return [torch.full((2, 2), float(number)) for number in range(count)]


class Unsized:
    """An iterable that starts over, without a `len()`."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(batches_of(self.count))


class Sized(Unsized):
    def __len__(self) -> int:
        return self.count


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        return iter(batches_of(self.count) if info is None else batches_of(self.count)[info.id :: info.num_workers])


class Growing(Unsized):
    """One batch more in every epoch, which it is told."""

    def set_epoch(self, epoch: int) -> None:
        self.count = epoch + 1

    def __len__(self) -> int:
        return self.count


def squared(model: nn.Module, batch: Any) -> torch.Tensor:
    parts = [part for part in batch.values() if part is not None] if isinstance(batch, dict) else [batch]
    total: torch.Tensor = sum(model(part).square().mean() for part in parts)  # type: ignore[assignment]
    return total


def fed(data: Callable[[], Any], epochs: int = 2, step: Any = squared, **next_batch: Any) -> World:
    """A training on this data, without a validation."""
    graph = small_fit(epochs=epochs, accumulate=1, validate_every="never", log_every="never")
    return world(
        graph.set("next_batch", **next_batch) if next_batch else graph,
        model=lambda: nn.Sequential(nn.Linear(2, 1), nn.Dropout(0.3)),
        data=lambda: {"train_data": data()},
        scheduler="none",
        training_step=step,
    ).but(val_data=None)


def fetched(trainer: Trainer) -> list[tuple[Any, ...]]:
    """Of each batch of a run: itself, the epoch, its number in it, and whether it is the last of the epoch."""
    seen = []
    while trainer.position != "end":
        position = trainer.position
        trainer.advance()
        if position == "next_batch" and not trainer.read("next_batch.exhausted"):
            batch, fields = trainer.read("batch"), trainer.progress["next_batch"]
            parts = batch if isinstance(batch, dict) else {"": batch}
            values = {name: None if part is None else float(part.flatten()[0]) for name, part in parts.items()}
            is_last = trainer.read("next_batch.last")
            seen.append((values.get("", values), fields["epoch"], fields["epoch_batches"], is_last))
    return seen


def values_of(it: World) -> list[Any]:
    return [value for value, *_ in fetched(it.trainer())]


KINDS: dict[str, Callable[[int], Any]] = {
    "list": batches_of,
    "DataLoader of a stream": lambda count: DataLoader(Stream(count), batch_size=None),
    "Loader": lambda count: Loader(batches_of(count), batch_size=None),
    "DataLoader": lambda count: DataLoader(batches_of(count), batch_size=None),  # type: ignore[arg-type]
    "sized iterable": Sized,
    "unsized iterable": Unsized,
    "IterableDataset": Stream,
    "Loader, 2 workers": lambda count: Loader(batches_of(count), batch_size=None, num_workers=2),
    "DataLoader of a stream, 2 workers": lambda count: DataLoader(Stream(count), batch_size=None, num_workers=2),
}


@pytest.mark.second(8)
@pytest.mark.first(6)
@pytest.mark.parametrize(("kind", "saving"), [*itertools.product(KINDS, (False, True))])
def test_the_position_in_every_kind_of_data(kind: str, saving: bool, tmp_path: Path) -> None:
    run_dir = tmp_path if saving else None
    rows = [(float(number), epoch, number + 1, number == 2) for epoch in range(2) for number in range(3)]
    assert fetched(fed(lambda: KINDS[kind](3)).trainer(run_dir)) == rows
    limited = [(float(number), epoch, number + 1, number == 1) for epoch in range(2) for number in range(2)]
    assert fetched(fed(lambda: KINDS[kind](5), limit=2).trainer(run_dir and run_dir / "limited")) == limited


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: iter(batches_of(3)), "only once"),
        (lambda: (batch for batch in batches_of(3)), "only once"),
        (lambda: DataLoader(batches_of(3), None, num_workers=1, persistent_workers=True), "persistent_workers=True"),  # type: ignore[arg-type]
    ],
)
def test_what_could_not_be_resumed_is_refused_only_where_checkpoints_are_made(
    data: Callable[[], Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        fed(data, 1).trainer(tmp_path).run()
    assert not [*tmp_path.glob("checkpoints/*")]
    if "once" in message:
        fed(data, 1).trainer().run()


class Numbered(Sampler[int]):
    """Draws the number of the epoch, twice."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([self.epoch] * 2)

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize("kind", [Loader, DataLoader])
def test_samplers_and_data_get_the_epoch(kind: Any) -> None:
    assert values_of(fed(lambda: kind(batches_of(9), 2, sampler=Numbered()), 3)) == [0.0, 1.0, 2.0]
    assert values_of(fed(lambda: Growing(0), 3)) == [0, 0, 1, 0, 1, 2]


def test_samples_are_what_batch_size_says_and_a_loader_has_the_seed_of_the_run() -> None:
    it = fed(lambda: Loader(torch.rand(6, 2), 2, shuffle=True), 1)
    trainer = it.but(batch_size=lambda made: lambda batch: 7).trainer()
    trainer.run()
    assert trainer.read("next_batch.samples") == 21
    firsts = [float(batch[0, 0]) for batch in Loader(it.resources()["train_data"].dataset, 2, shuffle=True, seed=11)]
    assert values_of(it) == firsts


def loader() -> Loader:
    return Loader(torch.rand(12, 2), batch_size=2, shuffle=True)


def together() -> dict[str, Any]:
    """Loaders of every kind and of different lengths: 2, 3, 5 and 3 batches."""
    return {
        "short": Loader(torch.arange(4.0).repeat(2, 1).T, batch_size=2, shuffle=True),
        "drawn": DataLoader(torch.arange(6.0).repeat(2, 1).T, batch_size=2, shuffle=True),  # type: ignore[arg-type]
        "long": batches_of(5),
        "unsized": Unsized(3),
    }


@pytest.mark.parametrize("data", [loader, lambda: {"a": loader(), "b": batches_of(9)}, lambda: batches_of(9)])
def test_every_epoch_has_the_same_batches_to_overfit(data: Callable[[], Any]) -> None:
    it = fed(data, 3, overfit=3)
    seen = values_of(it)
    assert len(seen) == 9 == PlannedRun(it.graph).steps(data()) and seen[:3] == seen[3:6] == seen[6:]
    assert seen[0] != seen[1] != seen[2]


@pytest.mark.parametrize("kind", [Loader, DataLoader])
def test_each_evaluation_sees_the_same_order_and_random_numbers(kind: Any) -> None:
    seen: list[Any] = []
    it = fed(lambda: batches_of(2), 3)
    trainer = it.but(
        it.graph.set("validate", every="1 epochs"),
        val_data=lambda made: kind(Noisy(), 4, shuffle=True),
        validation_step=lambda made: lambda model, batch: seen.append(batch.tolist()) or {},
    ).trainer()
    trainer.run()
    assert len(seen) == 9 and seen[:3] == seen[3:6] == seen[6:]


# ---- several loaders, together and in turn


def lists(*lengths: int) -> dict[str, Any]:
    return {name: batches_of(length) for name, length in zip("abc", lengths, strict=False)}


@pytest.mark.first(6)
@pytest.mark.parametrize("lengths", [(1, 2), (3, 7), (2, 5, 3), (4, 4, 1), (7, 3), (3, 3), (2, 1), (1, 7), (7, 7)])
def test_loaders_of_any_lengths_together(lengths: tuple[int, ...]) -> None:
    length = max(lengths)
    it = fed(lambda: lists(*lengths))
    expected = [
        {name: float(number % each) for name, each in zip("abc", lengths, strict=False)} for number in range(length)
    ]
    assert values_of(it) == expected * 2
    assert PlannedRun(it.graph).steps(lists(*lengths)) == 2 * length


def test_a_limit_is_that_of_the_epoch_and_may_be_a_share() -> None:
    expected = [{"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 1.0}, {"a": 0.0, "b": 2.0}]
    assert values_of(fed(lambda: lists(2, 5), limit=3)) == expected * 2
    assert (
        len(values_of(fed(lambda: lists(2, 5), limit=0.61)))
        == len(values_of(fed(lambda: batches_of(5), limit=0.61)))
        == 6
    )


@pytest.mark.full
def test_a_loader_that_is_read_again_shuffles_in_another_order_each_time() -> None:
    shuffled = fed(lambda: {"a": Loader(torch.arange(6.0).repeat(2, 1).T, 1, shuffle=True), "b": batches_of(18)})
    seen = [each["a"] for each in values_of(shuffled)]
    orders = [tuple(seen[first : first + 6]) for first in range(0, 36, 6)]
    assert all(sorted(order) == [0, 1, 2, 3, 4, 5] for order in orders) and len(set(orders)) == 6


def validated(val_data: Callable[[], Any] = together, every: str = "1 epochs", limit: Any = None, **more: Any) -> World:
    """A validation reads several loaders in turn."""
    it = fed(lambda: batches_of(4))
    graph = it.graph.set("validate", every=every)
    graph = graph if limit is None else graph.set("validate/next_batch", limit=limit)
    return it.but(graph, val_data=lambda made: val_data(), **more)


def test_metrics_are_those_of_each_loader_and_their_mean() -> None:
    trainer = validated().trainer()
    trainer.run()
    model, expected = trainer.resources["model"].eval().requires_grad_(False), {}
    for name, data in together().items():
        expected[f"val/{name}/loss"] = float(model(torch.cat([*data])).square().mean())
    expected["val/loss"] = sum(expected.values()) / 4
    row = {name: value for name, value in trainer.metrics[-1].items() if name.startswith("val/")}
    assert row == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("limit", "counts"), [(1, [1, 1, 1, 1]), (3, [2, 3, 3, 3]), (0.5, [1, 1, 2])])
def test_a_limit_is_that_of_each_loader(limit: float, counts: list[int]) -> None:
    seen: list[str] = []

    def step(model: Any, batch: Any, loader: str) -> dict[str, float]:
        seen.append(loader)
        return {"loss": 1.0}

    def data() -> Any:  # what has no length has no half
        return {name: each for name, each in together().items() if isinstance(limit, int) or name != "unsized"}

    trainer = validated(data, limit=limit, validation_step=lambda made: step).trainer()
    trainer.run(until="1 epochs")
    assert [seen.count(name) for name in data()] == counts
    assert seen == sorted(seen, key=[*together()].index)


class Keeping:
    """Keeps its own position."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(batches_of(1))

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


ONE, TWO = batches_of(1), batches_of(2)
REFUSED: dict[str, tuple[Callable[[], World], str]] = {
    "no batch": (lambda: fed(lambda: {"a": [], "b": ONE}), "the loader `a` gave no batch"),
    "ended": (lambda: fed(lambda: {"a": iter(ONE), "b": TWO}), "the loader `a` gave no batch"),
    "a name": (lambda: fed(lambda: {"a/b": ONE}), "a loader is named 'a/b'"),
    "own position": (lambda: fed(lambda: {"a": Keeping(), "b": ONE}), "the loader `a` keeps its own position"),
    "no batch in turn": (lambda: validated(lambda: {"a": ONE, "b": []}), "the loader `b` gave no batch"),
    "nothing in turn": (lambda: validated(lambda: {"a": Unsized(0), "b": ONE}), "the loader `a` gave no batch"),
    "no name": (lambda: validated(lambda: {1: ONE}), "a loader is named 1"),
    "no loaders": (lambda: validated(dict), "G309: `val_data` is a dict"),
    "a batch": (lambda: validated(lambda: {"inputs": ONE[0], "targets": ONE[0]}), "G309: `val_data` is a dict"),
    "a batch that is None": (lambda: fed(lambda: [*TWO, None]), "train_data: batch 3 of epoch 1 is None"),
    "shuffled to overfit": (
        lambda: fed(lambda: DataLoader(torch.rand(4, 2), 2, shuffle=True), overfit=1),  # type: ignore[arg-type]
        "with a RandomSampler, which gives other batches in every epoch",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_data_that_cannot_be_read_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises((DataError, GraphError), match=REFUSED[name][1]):
        REFUSED[name][0]().trainer(tmp_path if name == "own position" else None).run()


# ---- cuts and ranks

CUT: dict[str, Callable[[], World]] = {
    "overfit": lambda: fed(loader, 3, overfit=3),
    "overfit together": lambda: fed(lambda: {"a": loader(), "b": batches_of(9)}, 3, overfit=3),
    "data that grows": lambda: fed(lambda: Growing(0), 3),
}


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("name", CUT)
def test_it_is_exact_through_cuts(name: str, tmp_path: Path) -> None:
    assert_exact(CUT[name](), tmp_path, at=4)


@pytest.mark.full
def test_ranks_take_turns_in_the_batches_of_all_loaders(tmp_path: Path) -> None:
    def run(run_dir: Path | None, cut: int = 0) -> list[Any]:
        def program(ranks: Any) -> Any:
            trainer = fed(together).trainer(run_dir)
            if cut:
                trainer.advance(cut)
                trainer.save()
                return None
            long = [value["long"] for value, *_ in fetched(trainer) if value is not None]
            return long, trainer.digest()

        return run_ranks(2, program)

    whole = run(None)
    assert [long for long, _ in whole] == [[0.0, 2.0, 4.0] * 2, [1.0, 3.0] * 2]
    run(tmp_path, cut=21)
    assert [digest for _, digest in run(tmp_path)] == [digest for _, digest in whole]


@pytest.mark.full
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_measure_what_one_process_measures(world_size: int) -> None:
    def measured(ranks: Any = None) -> dict[str, float]:
        it = validated(optimizer=lambda made: torch.optim.SGD(made["model"].parameters(), lr=0.0), scheduler=None)
        trainer = it.trainer()
        trainer.run()
        return {name: value for name, value in trainer.metrics[-1].items() if name.startswith("val/")}

    alone = measured()
    assert [*alone] == [*(f"val/{name}/loss" for name in together()), "val/loss"]
    for of_rank in run_ranks(world_size, measured):
        assert of_rank == pytest.approx(alone)
