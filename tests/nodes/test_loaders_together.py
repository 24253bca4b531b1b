"""Several loaders that are read together: what a batch has, where an epoch ends, cuts, ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import DataError, Graph, Loader, PlannedRun, Trainer, rank_local
from graphtrain.ranks import Ranks
from tests.ranks.fake_ranks import run_ranks

FIT = Graph.load("fit").set("finish", after="2 epochs").set("log", every="never").set("checkpoint", every="never")
Seen = list[dict[str, list[float] | None]]


class Unsized:
    """Draws its order, and does not say how long it is."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in torch.randperm(self.length).tolist():
            yield torch.full((1, 2), float(number))


def numbers(length: int) -> torch.Tensor:
    return torch.arange(float(length)).repeat(2, 1).T


def loaders() -> dict[str, Any]:
    return {
        "short": Loader(numbers(4), batch_size=2, shuffle=True),
        "drawn": DataLoader(numbers(6), batch_size=2, shuffle=True),
        "long": [*numbers(5).split(1)],
        "unsized": Unsized(3),
    }


def make(
    graph: Graph = FIT, run_dir: Path | None = None, data: Any = None, seen: Seen | None = None, **more: Any
) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Dropout(0.3))

    def training_step(model: Any, batch: dict[str, Any]) -> torch.Tensor:
        if seen is not None:
            seen.append({name: None if part is None else part[:, 0].tolist() for name, part in batch.items()})
        return sum(model(part).square().mean() for part in batch.values() if part is not None)

    supplied = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3),
        "train_data": loaders() if data is None else data,
        "training_step": training_step,
        **more,
    }
    not_state = ["training_step<seen>"] if supplied["training_step"] is training_step else []
    return Trainer(
        graph, seed=0, run_dir=run_dir, display=None, notify=lambda line: None, not_state=not_state, **supplied
    )


def seen_of(graph: Graph = FIT, data: Any = None) -> Seen:
    seen: Seen = []
    make(graph, data=data, seen=seen).run()
    return seen


# ---- what a batch has


def lists(*lengths: int) -> dict[str, Any]:
    return {name: [*numbers(length).split(1)] for name, length in zip("abc", lengths, strict=False)}


@pytest.mark.second(35)
@pytest.mark.first(9)
@pytest.mark.parametrize("lengths", [*itertools.product((1, 2, 3, 7), repeat=2), (2, 5, 3), (4, 4, 1)])
@pytest.mark.parametrize("combine", ["cycle", "shortest"])
def test_loaders_of_any_lengths(combine: str, lengths: tuple[int, ...]) -> None:
    length = min(lengths) if combine == "shortest" else max(lengths)
    expected = [
        {name: [float(number % of_loader)] for name, of_loader in zip("abc", lengths, strict=False)}
        for number in range(length)
    ]
    graph = FIT.set("next_batch", combine=combine)
    assert seen_of(graph, lists(*lengths)) == expected * 2
    assert PlannedRun(graph).steps(lists(*lengths)) == 2 * length


def test_they_are_cycled_by_default_and_a_limit_is_that_of_the_epoch() -> None:
    seen = seen_of(FIT.set("next_batch", limit=3), lists(2, 5))
    assert [(each["a"], each["b"]) for each in seen[:3]] == [([0.0], [0.0]), ([1.0], [1.0]), ([0.0], [2.0])]
    assert seen[3:] == seen[:3]
    assert len(seen_of(FIT.set("next_batch", limit=0.61), lists(2, 5))) == 6


def test_a_loader_that_is_read_again_shuffles_in_another_order_each_time() -> None:
    data = {"a": Loader(numbers(6), batch_size=1, shuffle=True), "b": lists(18)["a"]}
    seen = [each["a"][0] for each in seen_of(FIT, data)]  # type: ignore[index]
    orders = [tuple(seen[first : first + 6]) for first in range(0, 36, 6)]
    assert all(sorted(order) == [0, 1, 2, 3, 4, 5] for order in orders)
    assert len(set(orders)) == 6


def test_they_are_read_in_turn_if_that_is_wanted() -> None:
    graph = FIT.set("next_batch", combine="in_turn").set("finish", after="1 epochs")
    got: list[tuple[str, float]] = []

    def training_step(model: Any, batch: torch.Tensor, loader: str) -> torch.Tensor:
        got.append((loader, float(batch[0, 0])))
        return model(batch).mean()

    trainer = make(graph, data=lists(2, 3), training_step=training_step)
    trainer.run()
    assert got == [("a", 0.0), ("a", 1.0), ("b", 0.0), ("b", 1.0), ("b", 2.0)]
    assert PlannedRun(graph).steps(lists(2, 3)) == 5


# ---- cuts


def expect_cuts_are_exact(
    folder: Path, cuts: Iterable[int], graph: Graph, data: Callable[[], Any] = loaders, **more: Any
) -> None:
    seen: Seen = []
    whole = make(graph, data=data(), seen=seen)
    whole.run()
    for cut in cuts:
        again: Seen = []
        first = make(graph, folder / str(cut), data(), again)
        first.advance(cut)
        first.save()
        second = make(graph, folder / str(cut), data(), again)
        second.run()
        assert again == seen, f"cut before {first.position}"
        assert second.digest() == whole.digest(), f"cut before {first.position}"


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("combine", ["cycle", "shortest"])
def test_a_cut_anywhere_is_exact(tmp_path: Path, combine: str) -> None:
    expect_cuts_are_exact(tmp_path, (20, 45), FIT.set("next_batch", combine=combine))


# ---- several ranks


def at_ranks(graph: Graph, run_dir: Path | None = None, cut: int = 0, world_size: int = 2) -> list[Any]:
    def program(ranks: Ranks) -> Any:
        seen: Seen = []
        trainer = make(graph, run_dir, seen=seen)
        if cut:
            trainer.advance(cut)
            trainer.save()
        else:
            trainer.run()
        return trainer.digest(), seen, trainer.progress["next_batch"]["batches"]

    return run_ranks(world_size, program)


@pytest.mark.full
def test_ranks_take_turns_in_the_batches_of_all_loaders(tmp_path: Path) -> None:
    whole = at_ranks(FIT)
    assert {batches for *_, batches in whole} == {10}
    trained = [[each["long"] for each in seen] for _, seen, _ in whole]
    assert trained == [[[0.0], [2.0], [4.0]] * 2, [[1.0], [3.0]] * 2]
    for cut in (21,):
        at_ranks(FIT, tmp_path / str(cut), cut)
        assert [digest for digest, *_ in at_ranks(FIT, tmp_path / str(cut))] == [digest for digest, *_ in whole]


# ---- what is refused


class Keeping:
    """Keeps its own position."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([numbers(1)])

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"a": [], "b": [numbers(1)]}, "the loader `a` gave no batch"),
        ({"a": iter([numbers(1)]), "b": [numbers(1)] * 2}, "the loader `a` has ended, and does not start over"),
        ({"a/b": [numbers(1)]}, "a loader is named 'a/b'"),
    ],
)
def test_loaders_that_cannot_be_read_are_refused(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(data=data).run()


def test_data_that_keeps_its_position_is_refused_with_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the loader `a` keeps its own position, which is undefined where an epoch"):
        make(run_dir=tmp_path, data={"a": Keeping(), "b": [numbers(1)]}).run()


def test_rank_local_loaders_are_refused() -> None:
    def program(ranks: Ranks) -> str:
        with pytest.raises(DataError, match="rank_local data is read as one loader, and these are several: a, b"):
            make(data={"a": rank_local([numbers(1)]), "b": [numbers(1)]}).run()
        return ""

    run_ranks(2, program)
