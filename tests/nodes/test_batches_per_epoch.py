"""`next_batch.batches_per_epoch`: epochs that are longer or shorter than the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import graphtrain
from graphtrain import DataError, Graph, Loader, PlannedRun, Trainer
from graphtrain.ranks import Ranks
from tests.nodes.test_loaders_together import Unsized, lists, numbers
from tests.ranks.fake_ranks import run_ranks

FIT = Graph.load("fit").set("log", every="never").set("checkpoint", every="never").set("finish", after="3 epochs")
LENGTH = 5  # batches in a pass
Seen = list[tuple[int, int, float]]


class Torchdata:
    """Keeps its own position, and continues there after `load_state_dict`."""

    def __init__(self) -> None:
        self.number = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.number < LENGTH:
            self.number += 1
            yield torch.full((1, 2), float(self.number - 1))
        self.number = 0

    def state_dict(self) -> dict[str, int]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.number = state["number"]


class Stream(torch.utils.data.IterableDataset[torch.Tensor]):
    """Draws its order, in a DataLoader."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.full((2,), float(number)) for number in torch.randperm(LENGTH).tolist()])


class Noisy(torch.utils.data.Dataset[torch.Tensor]):
    """Augmented in this process, and changed by being read."""

    def __init__(self) -> None:
        self.given = 0

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        self.given += 1
        return torch.full((2,), float(index)) + 0.1 * torch.rand(()) + 0.01 * self.given


DATA: dict[str, Callable[[], Any]] = {
    "Loader": lambda: Loader(numbers(LENGTH), batch_size=1, shuffle=True),
    "list": lambda: [*numbers(LENGTH).split(1)],
    "DataLoader": lambda: DataLoader(numbers(LENGTH), batch_size=1, shuffle=True),
    "unsized": lambda: Unsized(LENGTH),
    "augmented Loader": lambda: Loader(Noisy(), batch_size=1, shuffle=True),
    "augmented DataLoader": lambda: DataLoader(Noisy(), batch_size=1, shuffle=True),
    "stream": lambda: DataLoader(Stream(), batch_size=1),
    "keeps its position": Torchdata,
}


def make(graph: Graph, data: Any, run_dir: Path | None = None, seen: Seen | None = None) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Dropout(0.3))

    def training_step(model: Any, batch: Any, epoch: int, batch_index: int) -> torch.Tensor:
        tensor = next(iter(batch.values())) if isinstance(batch, dict) else batch
        if seen is not None:
            seen.append((epoch, batch_index, round(float(tensor[0, 0]), 4)))
        return model(tensor).square().mean()

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


def seen_of(graph: Graph, data: Any) -> Seen:
    seen: Seen = []
    make(graph, data, seen=seen).run()
    return seen


def with_epochs_of(batches: int, epochs: int = 3) -> Graph:
    return FIT.set("next_batch", batches_per_epoch=batches).set("finish", after=f"{epochs} epochs")


@pytest.mark.first(3)
@pytest.mark.parametrize("batches", [3, 12, *[pytest.param(n, marks=pytest.mark.sweep) for n in (1, 5, 7)]])
@pytest.mark.parametrize("kind", ["Loader", "list", "unsized", "keeps its position"])
def test_an_epoch_has_the_next_batches_of_pass_after_pass(kind: str, batches: int) -> None:
    passes = [number for _, _, number in seen_of(FIT.set("finish", after="8 epochs"), DATA[kind]())]
    seen = seen_of(with_epochs_of(batches), DATA[kind]())
    if kind != "unsized":  # whose order is drawn among the numbers of dropout
        assert [number for _, _, number in seen] == passes[: 3 * batches]
    for first in range(0, 3 * batches - LENGTH + 1, LENGTH):
        assert sorted(number for _, _, number in seen[first : first + LENGTH]) == [0, 1, 2, 3, 4]
    assert [(epoch, index) for epoch, index, _ in seen] == [(e, i) for e in range(3) for i in range(batches)]
    assert PlannedRun(with_epochs_of(batches)).steps(DATA[kind]()) == 3 * batches


def test_an_epoch_can_be_divided_where_the_data_has_no_length() -> None:
    graph = with_epochs_of(4).set("finish", after="2.5 epochs").set("accumulate", every=3)
    trainer = make(graph, Unsized(LENGTH))
    trainer.run()
    assert (trainer.progress["next_batch"]["batches"], trainer.progress["step"]["steps"]) == (10, 5)  # 3+1, 3+1, 2


def cuts_are_exact(folder: Path, cuts: Iterable[int], graph: Graph, data: Callable[[], Any]) -> None:
    seen: Seen = []
    whole = make(graph, data(), seen=seen)
    whole.run()
    for cut in cuts:
        again: Seen = []
        first = make(graph, data(), folder / str(cut), again)
        first.advance(cut)
        if first.position == "end":
            return
        first.save()
        second = make(graph, data(), folder / str(cut), again)
        second.run()
        assert again == seen, f"cut before {first.position}"
        assert second.digest() == whole.digest(), f"cut before {first.position}"


# With epochs of 3: epoch 1 ends inside a pass after 24 transitions, and epoch 2 begins there.
@pytest.mark.first(2)
@pytest.mark.parametrize("kind", DATA)
def test_a_cut_between_epochs_inside_the_data_is_exact(kind: str, tmp_path: Path) -> None:
    cuts_are_exact(tmp_path, (24,), with_epochs_of(3), DATA[kind])


@pytest.mark.parametrize(("last", "batches"), [(1, [0, 1, 0, 1]), (3, [0, 1, 2, 3, 4, 0, 1, 2])])
def test_what_asks_for_the_end_of_an_epoch_begins_the_data_again(last: int, batches: list[float]) -> None:
    """But not with the last batch, where there is nothing to end."""

    def stops(model: Any, batch: torch.Tensor, batch_index: int) -> Any:
        got.append(float(batch[0, 0]))
        loss = model(batch).mean()
        return (loss, graphtrain.END_EPOCH) if batch_index == last else loss

    got: list[float] = []
    trainer = make(with_epochs_of(4, 2), DATA["list"]())
    resources = {**trainer.resources, "training_step": stops}
    Trainer(with_epochs_of(4, 2), display=None, notify=lambda line: None, **resources).run()
    assert got == batches


def test_data_that_ends_before_its_length_is_read_again() -> None:
    class Short:
        def __len__(self) -> int:
            return 5

        def __iter__(self) -> Iterator[torch.Tensor]:
            return iter(numbers(2).split(1))

    assert [number for *_, number in seen_of(with_epochs_of(3, 2), Short())] == [0, 1, 0, 1, 0, 1]


@pytest.mark.full
def test_a_run_goes_on_with_another_number_and_without_one(tmp_path: Path) -> None:
    seen: Seen = []
    for batches, until in ((3, "4 batches"), (2, "9 batches"), (None, "11 batches")):
        graph = FIT.set("next_batch", batches_per_epoch=batches) if batches else FIT
        make(graph.set("finish", after="99 epochs"), DATA["Loader"](), tmp_path, seen).run(until=until)
    assert [epoch for epoch, *_ in seen] == [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5]
    passes = [number for *_, number in seen_of(FIT, DATA["Loader"]())]
    assert [number for *_, number in seen] == passes[:11]


# ---- several ranks


def at_ranks(graph: Graph, data: Callable[[], Any], run_dir: Path | None = None, cut: int = 0) -> list[Any]:
    def program(ranks: Ranks) -> Any:
        seen: Seen = []
        trainer = make(graph, data(), run_dir, seen)
        if cut:
            trainer.advance(cut)
            trainer.save()
        else:
            trainer.run()
        return trainer.digest(), [(epoch, index, number) for epoch, index, number in seen]

    return run_ranks(2, program)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["Loader", "list", "unsized"])
@pytest.mark.parametrize("batches", [3, pytest.param(7, marks=pytest.mark.sweep)])
def test_ranks_take_turns_and_no_round_goes_beyond_an_epoch(kind: str, batches: int, tmp_path: Path) -> None:
    whole = at_ranks(with_epochs_of(batches), DATA[kind])
    seen = sorted(each for _, of_rank in whole for each in of_rank)
    if kind != "unsized":
        assert seen == seen_of(with_epochs_of(batches), DATA[kind]())
    assert [(epoch, index) for epoch, index, _ in seen] == [(e, i) for e in range(3) for i in range(batches)]
    if batches == 3:
        for cut in (26,):
            at_ranks(with_epochs_of(batches), DATA[kind], tmp_path / str(cut), cut)
            again = at_ranks(with_epochs_of(batches), DATA[kind], tmp_path / str(cut))
            assert [digest for digest, _ in again] == [digest for digest, _ in whole]


# ---- what is refused


@pytest.mark.parametrize(
    ("graph", "data", "message"),
    [
        (with_epochs_of(3), [], "the data gave no batch after 0 of 3 in the epoch"),
        (with_epochs_of(3), iter(numbers(2).split(1)), "the data gave no batch after 2 of 3 in the epoch"),
        (
            with_epochs_of(3).set("next_batch", combine="in_turn"),
            lists(2, 2),
            "batches_per_epoch = 3: the loaders a, b are read in turn",
        ),
    ],
)
def test_what_cannot_be_is_refused(graph: Graph, data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(graph, data).run()
