"""Data of which each rank has its own, and data whose loading leaves traces: saved and resumed by several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import Graph, Loader, Trainer, rank_local
from graphtrain.errors import DataError
from graphtrain.ranks import Alone, Ranks, using_ranks
from tests.ranks.fake_ranks import run_ranks
from tests.resume import rank_runs

LENGTHS = (5, 3, 4)


class Counting(torch.utils.data.Dataset[Any]):
    """Samples that depend on how many of them were loaded before, in this process."""

    def __init__(self, first: int, length: int) -> None:
        self.first, self.length, self.loaded = first, length, 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loaded += 1
        return torch.tensor([self.first + index, self.loaded, torch.rand(()).item()])


class Drawn:
    """An iterable that shuffles lazily."""

    def __init__(self, first: int, length: int) -> None:
        self.first, self.length = first, length

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self.length):
            yield torch.tensor([[self.first + number, 0.0, torch.rand(()).item()]])


def own(kind: str, rank: int) -> Any:
    if kind == "shared_loader":
        return Loader(Counting(0, 13), batch_size=2, shuffle=True)
    first, length = 100 * rank, LENGTHS[rank]
    if kind == "iterable":
        return rank_local(Drawn(first, length))
    dataset = Counting(first, 2 * length)
    made: Any = Loader if kind == "loader" else DataLoader
    return rank_local(made(dataset, batch_size=2, shuffle=True))


def trainer_of(kind: str, rank: int, run_dir: Path | None, seen: list[Any], lines: list[str]) -> Trainer:
    def training_step(model: Any, batch: torch.Tensor) -> torch.Tensor:
        seen.append(batch.tolist())
        torch.rand(rank + 1)
        return model(batch).square().mean()  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    graph = (
        Graph.load("fit").set("accumulate", every=2).set("finish", after="2 epochs").set("checkpoint", every="never")
    )
    return Trainer(
        graph.set("finish", after="2 epochs"),
        seed=0,
        run_dir=run_dir,
        display=None,
        notify=lines.append,
        not_state=["training_step<seen>"],
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
        train_data=own(kind, rank),
        training_step=training_step,
    )


def run(kind: str, world_size: int, run_dir: Path | None, advance: int = 0) -> list[Any]:
    """What every rank has seen, and the digest that it ends with."""

    def program(ranks: Ranks) -> tuple[Any, Any, Any]:
        seen: list[Any] = []
        lines: list[str] = []
        trainer = trainer_of(kind, ranks.rank, run_dir, seen, lines)
        if advance:
            trainer.advance(advance)
            trainer.save()
        else:
            trainer.run()
        return seen, trainer.digest(), lines

    if world_size > 1:
        return run_ranks(world_size, program)
    with using_ranks(Alone()):
        return [program(Alone())]


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "cuts"), [("loader", [9]), ("dataloader", [33]), ("iterable", [5]), ("shared_loader", [14])]
)
def test_each_rank_continues_in_its_own_data(kind: str, cuts: list[int], tmp_path: Path) -> None:
    whole = run(kind, 3, None)
    for advance in cuts:
        begun = run(kind, 3, tmp_path / f"{advance}", advance)
        resumed = run(kind, 3, tmp_path / f"{advance}")
        for rank in range(3):
            assert begun[rank][0] + resumed[rank][0] == whole[rank][0], (advance, rank)
            assert resumed[rank][1] == whole[rank][1], (advance, rank)
        assert not [line for line in resumed[0][2] if "not exact" in line]


@pytest.mark.first(1)
@pytest.mark.parametrize("world_size", [1, 2])
def test_others_cannot_continue_in_it(world_size: int, tmp_path: Path) -> None:
    run("loader", 3, tmp_path, 12)
    with pytest.raises(DataError) as raised:
        run("loader", world_size, tmp_path)
    assert raised.value.message.startswith("the data of the run is rank_local: each of 3 ranks has its own")
    assert "resume with 3 processes" in str(raised.value)


def test_a_part_of_the_run_is_counted_with_the_ranks_of_now(tmp_path: Path) -> None:
    def halves(graph: Graph) -> Graph:
        return graph.set("validate", every="0.5 run")

    rank_runs.run(2, tmp_path, advance=12, graph=halves)
    (end,) = rank_runs.run(1, tmp_path, graph=halves)
    begin = '`validate` is due by "0.5 run", which is counted as if the run had begun with 1 rank; it began with 2'
    assert [line for line in end.lines if line.startswith(begin)], end.lines
    for end in rank_runs.run(2, tmp_path, graph=halves):
        assert not [line for line in end.lines if "which is counted" in line]
