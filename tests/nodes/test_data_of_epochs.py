"""What an epoch has: the same batches in each, and data that depends on the epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import DataError, Graph, Loader, PlannedRun, Trainer

FIT = Graph.load("fit").set("finish", after="3 epochs").set("log", every="never").set("checkpoint", every="never")
NUMBERS = torch.arange(12.0).repeat(2, 1).T


class Noisy(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return len(NUMBERS)

    def __getitem__(self, index: int) -> torch.Tensor:
        return NUMBERS[index] + 0.1 * torch.rand(())


def make(graph: Graph, data: Any, seen: list[Any] | None = None, run_dir: Path | None = None) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Dropout(0.5))

    def training_step(model: Any, batch: Any) -> torch.Tensor:
        parts = [*batch.values()] if isinstance(batch, dict) else [batch]
        if seen is not None:
            seen.append([part.tolist() for part in parts])
        return sum(model(part).square().mean() for part in parts)  # type: ignore[return-value]

    return Trainer(
        graph,
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=lambda line: None,
        not_state=["training_step<seen>"],
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        train_data=data,
        training_step=training_step,
    )


def seen_of(graph: Graph, data: Any) -> list[Any]:
    seen: list[Any] = []
    make(graph, data, seen).run()
    return seen


def expect_a_cut_is_exact(graph: Graph, make_data: Any, folder: Path, cut: int) -> None:
    whole, again = seen_of(graph, make_data()), []
    first = make(graph, make_data(), again, folder / str(cut))
    first.advance(cut)
    first.save()
    make(graph, make_data(), again, folder / str(cut)).run()
    assert again == whole


def loader() -> Loader:
    return Loader(Noisy(), batch_size=2, shuffle=True)


def together() -> dict[str, Any]:
    return {"a": loader(), "b": Loader(Noisy(), batch_size=4, shuffle=True)}


# ---- overfit


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("make_data", [loader, together, lambda: DataLoader(NUMBERS, 2), lambda: [*NUMBERS.split(2)]])
def test_every_epoch_has_the_same_batches(make_data: Any, tmp_path: Path) -> None:
    graph = FIT.set("next_batch", overfit=3)
    seen = seen_of(graph, make_data())
    assert len(seen) == 9 and seen[:3] == seen[3:6] == seen[6:]
    assert seen[0] != seen[1] != seen[2]
    assert PlannedRun(graph).steps(make_data()) == 9
    expect_a_cut_is_exact(graph, make_data, tmp_path, 40)


def test_data_that_shuffles_is_refused() -> None:
    with pytest.raises(DataError, match="with a RandomSampler, which gives other batches in every epoch"):
        make(FIT.set("next_batch", overfit=3), DataLoader(NUMBERS, 2, shuffle=True)).run()


# ---- a function of the epoch


class Growing:
    """One batch more in every epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.epoch + 1

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(NUMBERS[: 2 * len(self)].split(2))


@pytest.mark.full
def test_data_that_is_told_the_epoch_is_a_function_of_it(tmp_path: Path) -> None:
    firsts = [parts[0][0][0] for parts in seen_of(FIT, Growing())]
    assert firsts == [0, 0, 2, 0, 2, 4]
    for cut in (7, 16, 30):
        expect_a_cut_is_exact(FIT, Growing, tmp_path, cut)


# ---- in a nested graph


CLIENTS = {
    "Loader": lambda: Loader(Noisy(), 4, shuffle=True, seed=5),
    "DataLoader": lambda: DataLoader(Noisy(), 4, shuffle=True),
}


@pytest.mark.parametrize("kind", CLIENTS)
def test_each_evaluation_sees_the_same_order_and_random_numbers(kind: str) -> None:
    seen: list[Any] = []
    trainer = make(FIT, [*NUMBERS.split(2)], run_dir=None)
    resources = {**trainer.resources, "val_data": CLIENTS[kind]()}
    resources["validation_step"] = lambda model, batch: seen.append(batch.tolist()) or {}
    Trainer(FIT, seed=0, display=None, notify=lambda line: None, **resources).run()
    assert len(seen) == 9 and seen[:3] == seen[3:6] == seen[6:]
