"""Promise 17: ranks train on what one process trains on, in the same windows.

What differs between ranks, or cannot be shared, is named.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from graphtrain import Graph, Loader, Trainer, node, progress
from tests.fake_ranks import FakeRank, outcomes_of, run_ranks
from tests.world import DATA, SAMPLES, small_fit, world

BATCHES = 5  # of an epoch of the sources in `DATA`
ONE_ORDER = ("Loader", "list")  # which one process has, too
Seen = list[tuple[int, int, int, Any]]


class Numbered(Dataset[Any]):
    """Samples that have their number, and noise that is drawn when they are loaded."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor([float(index), random.random(), torch.rand(()).item()]), torch.tensor(index)


def fit(every: int = 1, **settings: Any) -> Graph:
    return small_fit(accumulate=every, validate_every="never", **settings)


@dataclass
class Trained:
    """What a run has trained on, by (epoch, number of the batch, the step that it is in, the batch)."""

    seen: Seen = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    progress: dict[str, dict[str, Any]] = field(default_factory=dict)
    weights: list[float] = field(default_factory=list)


def trainer_of(trained: Trained, data: Callable[[], Any], graph: Graph, **options: Any) -> Trainer:
    """Draws as many random numbers between batches as make this rank differ from others."""

    def step(model: Any, batch: Any, epoch: int, batch_index: int, step: int) -> torch.Tensor:
        inputs = batch[0] if isinstance(batch, tuple | list) else batch
        trained.seen.append((epoch, batch_index, step, inputs.tolist()))
        random.random(), torch.rand(1 + len(trained.seen) % 3)
        loss: torch.Tensor = model(inputs.double()).square().mean()
        return loss

    it = world(
        graph,
        model=lambda: torch.nn.Linear(3, 1).double(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
        scheduler="none",
        data=data,
        training_step=step,
    )
    return it.trainer(lines=trained.lines, not_state=["training_step<trained>"], **options)


def train(data: Callable[[], Any], graph: Graph, **options: Any) -> Trained:
    trained = Trained()
    trainer = trainer_of(trained, data, graph, **options)
    trainer.run()
    trained.progress = {path: dict(fields) for path, fields in trainer.progress.items()}
    trained.weights = trainer.resources["model"].weight.flatten().tolist()
    return trained


def source(name: str) -> Callable[[], Any]:
    if name == "StatefulDataLoader":
        pytest.importorskip("torchdata")
    return lambda: DATA[name](Numbered(), 0)


def all_seen(of_ranks: list[Trained]) -> Seen:
    """What all ranks have trained on, in the order of the numbers of batches."""
    return sorted((each for trained in of_ranks for each in trained.seen), key=lambda seen: seen[:2])


@pytest.mark.second(4)
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.first(2)
@pytest.mark.parametrize("name", ["Loader", *sorted({*DATA} - {"Loader"})])
def test_every_batch_once_in_the_same_windows(name: str) -> None:
    expected: Seen = []
    for world_size, every in [(1, 4), (2, 2), (4, 1)]:
        if world_size == 1 and name not in ONE_ORDER:
            continue
        graph = fit(every)
        of_ranks = run_ranks(world_size, lambda ranks, graph=graph: train(source(name), graph))  # type: ignore[misc]
        seen = all_seen(of_ranks)
        assert [each[:3] for each in seen] == [
            (epoch, number, 2 * epoch + number // 4) for epoch in (0, 1) for number in range(BATCHES)
        ]
        for trained in of_ranks:
            assert trained.progress["next_batch"]["samples"] == 2 * SAMPLES
            assert trained.progress["next_batch"]["batches"] == 2 * BATCHES
            assert trained.weights == of_ranks[0].weights
        for epoch in (0, 1):
            numbers = sorted(sample[0] for each in seen if each[0] == epoch for sample in each[3])
            assert numbers == [*range(SAMPLES)]
        expected = expected or seen
        assert seen == expected, world_size
        first, second = ([batch for epoch, *_, batch in seen if epoch == number] for number in (0, 1))
        assert first != second or name == "list", "each epoch has its own random numbers"


# From the end of a window, each leg by another number of ranks: so many steps, then to the end of three epochs.
LEGS = [(2, 1), (4, 2), (1, 1), (3, None)]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.full
@pytest.mark.second(3)
@pytest.mark.parametrize("name", sorted(DATA, key=lambda name: name not in ("Loader", "shuffle buffer", "with state")))
def test_an_epoch_that_ranks_leave_is_continued_by_others(name: str, tmp_path: Path) -> None:
    """The same batches as those of a run of two ranks that is never cut, each of them once."""
    graph = fit(2, epochs=3)
    whole = all_seen(run_ranks(2, lambda ranks: train(source(name), graph)))
    seen: Seen = []
    for world_size, steps in LEGS:

        def leg(ranks: FakeRank, steps: int | None = steps) -> Trained:
            trained = Trained()
            trainer = trainer_of(trained, source(name), graph, run_dir=tmp_path)
            trainer.advance(0)
            if steps is None:
                trainer.run()
            else:
                trainer.run(until=f"{trainer.read('step.steps') + steps} steps")
                trainer.save()
            return trained

        seen += all_seen(run_ranks(world_size, leg, seed=world_size))
    assert [each[:3] for each in seen] == [each[:3] for each in whole]
    if name in (*ONE_ORDER, "own generator"):
        assert seen == whole
    for epoch in range(3):
        assert sorted(sample[0] for each in seen if each[0] == epoch for sample in each[3]) == [*range(SAMPLES)]


# ---- what is refused


class Unsized:
    """Batches without a length."""

    def __init__(self, batches: list[torch.Tensor]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.batches)


class Unseeded:
    """Batches from a generator that nobody finds: another one on every rank."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        generator = random.Random(f"{threading.get_ident()}")
        return iter([torch.full((1, 3), generator.random()) for _ in range(3)])


class Listed(list[Any]):
    """Lists of samples, whose number is not what it says."""

    def __len__(self) -> int:
        return 3


def distributed(rank: int, make: Any) -> Any:
    data: Any = Numbered()
    return make(data, batch_size=4, sampler=DistributedSampler(data, num_replicas=2, rank=rank))


OTHER_BATCHES = "train_data gives other batches on rank 1 than on rank 0"
# What rank 1 of two has -> what is said on both.
REFUSED: dict[str, tuple[Callable[[int], Any], str]] = {
    "content": (lambda rank: Unsized([torch.full((1, 3), float(10 * rank))] * 3), OTHER_BATCHES),
    "order": (lambda rank: Loader(torch.zeros(4, 3), sampler=[rank, 2, 3]), OTHER_BATCHES),
    "unseeded": (lambda rank: Unseeded(), OTHER_BATCHES),
    "lists": (
        lambda rank: Loader(torch.zeros(4, 3), batch_sampler=Listed([[0, 1], [2], [3]][: 3 - rank])),
        OTHER_BATCHES,
    ),
    "length": (lambda rank: [torch.zeros(1, 3)] * (3 + rank), "the length of `train_data`: 3 on rank 0; 4 on rank 1"),
    "a sampler of ranks": (lambda rank: distributed(rank, DataLoader), "train_data has a DistributedSampler"),
    "a sampler in a Loader": (lambda rank: distributed(rank, Loader), "train_data has a DistributedSampler"),
    "no batch at all": (lambda rank: Loader([]), "ended without a batch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_data_that_ranks_cannot_train_on_is_named(name: str) -> None:
    made, message = REFUSED[name]
    for outcome in outcomes_of(2, lambda ranks: train(lambda: made(ranks.rank), fit())):
        assert isinstance(outcome, Exception) and message in str(outcome), outcome


# ---- what is reported


ALONE = """
format = 1
name = "alone"
start = "next_batch"

[nodes]
next_batch = {}
train_batch = { reads = { window = "accumulate.window" } }
accumulate = {}
exchange = {}
step = {}
zero_grad = {}

[guards]
done = "step.steps == 3"

[edges]
next_batch = ["train_batch"]
train_batch = ["accumulate"]
accumulate = ["exchange"]
exchange = ["step"]
step = ["zero_grad"]
zero_grad = ["end if done", "next_batch"]

[clock]
steps = "step.steps"
batches = "next_batch.batches"
"""


def fetching() -> Graph:
    @node(name="fetch_alone", writes=("batch", "samples"), family="data")
    class FetchAlone:
        """The first batch, again and again."""

        drawn: int = progress(0)

        def setup(self, train_data: Any) -> None:
            self._batches = train_data

        def __call__(self) -> tuple[Any, int]:
            self.drawn += 1
            return self._batches[0], 1

    return Graph.loads(ALONE.replace("next_batch", "fetch_alone").replace(".batches", ".drawn"))


LISTED = [(torch.zeros(1, 3),)] * 3
PLAIN = (
    Graph.load("fit").set("finish", after="2 epochs").set("validate", every="never").set("checkpoint", every="never")
)
# What is run -> what is said of it, once; nothing of all this of what has no text.
REPORTED: dict[str, tuple[Callable[[], Graph], Callable[[], Any], str]] = {
    "a kind that fetches": (fetching, lambda: LISTED, "`fetch_alone` does not divide its batches: each of 2 ranks"),
    "a DataLoader": (lambda: PLAIN, source("DataLoader"), "train or validation data is a DataLoader: "),
    "a class": (lambda: PLAIN, source("unsized"), "train or validation data is a Unsized: "),
    "a Loader": (lambda: PLAIN, source("Loader"), ""),
    "a list": (lambda: PLAIN, lambda: LISTED, ""),
}


@pytest.mark.first(4)
@pytest.mark.parametrize("name", REPORTED)
def test_what_ranks_do_otherwise_than_one_process_is_reported_once(name: str) -> None:
    graph, made, text = REPORTED[name]

    def program(ranks: FakeRank) -> list[str]:
        lines: list[str] = []
        model = torch.nn.Linear(3, 1)
        given = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.0), "train_data": made()}
        step = lambda model, batch: model(batch[0]).mean()  # noqa: E731
        Trainer(graph(), display=None, notify=lines.append, training_step=step, **given).run()
        return lines

    lines = run_ranks(2, program)[0]
    for said in {text for _, _, text in REPORTED.values() if text}:
        assert sum(line.startswith(said) for line in lines) == (said == text), lines
