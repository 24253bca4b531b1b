"""What ranks train on is what one process trains on: the same batches, in the same windows, whatever their number."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from graphtrain import Graph, Loader, Trainer, node, progress, rank_local
from graphtrain.errors import DataError, RanksDivergedError, UsageError
from graphtrain.ranks import Ranks
from tests.ranks.fake_ranks import World, run_ranks

BATCHES, SIZE = 23, 4
SAMPLES = BATCHES * SIZE - 1

Made = Callable[[], Any]


class Drawing:
    """Batches from a shuffle buffer, with noise: drawn one by one from the global generators."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[torch.Tensor]:
        buffer: list[int] = []
        for index in range(self.samples):
            buffer.append(index)
            if len(buffer) == 7:
                yield self._batch([buffer.pop(random.randrange(len(buffer))) for _ in range(SIZE)])
        while buffer:
            yield self._batch([buffer.pop() for _ in range(min(SIZE, len(buffer)))])

    def _batch(self, indices: list[int]) -> torch.Tensor:
        return torch.tensor([[float(index), random.random(), torch.rand(()).item()] for index in indices])


class Stateful(Drawing):
    """The same with a position of its own; each epoch has other noise."""

    def __init__(self) -> None:
        super().__init__()
        self.given = 0

    def __len__(self) -> int:
        return BATCHES

    def __iter__(self) -> Iterator[torch.Tensor]:
        first, self.given = self.given % BATCHES, self.given % BATCHES
        for number in range(first, BATCHES):
            self.given += 1
            yield self._batch([*range(number * SIZE, min(number * SIZE + SIZE, SAMPLES))])

    def state_dict(self) -> dict[str, Any]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.given = state["given"]


class Augmented:
    """Samples whose noise is drawn when they are loaded."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), random.random(), torch.rand(()).item()])


DATA: dict[str, Made] = {
    "loader": lambda: Loader(Augmented(), batch_size=SIZE, shuffle=True),
    "batch_sampler": lambda: Loader(
        Augmented(), batch_sampler=[[n, n + 1] if n % 3 else [n] for n in range(0, 2 * BATCHES, 2)]
    ),
    "list": lambda: [torch.full((1 + n % 2, 3), float(n)) for n in range(BATCHES)],
    "dataloader": lambda: DataLoader(Augmented(), batch_size=SIZE, shuffle=True),  # type: ignore[arg-type]
    "own_generator": lambda: DataLoader(
        Augmented(),  # type: ignore[arg-type]
        batch_size=SIZE,
        shuffle=True,
        generator=torch.Generator().manual_seed(torch.seed() % 2**32),
    ),
    "iterable": Drawing,
    "stateful": Stateful,
}
ONE_ORDER = ("loader", "batch_sampler", "list")  # which one process has, too


@dataclass
class Trained:
    """What a run has trained on.

    Attributes:
        seen: (epoch, number of the batch, the step that it is in, the batch), in order.
    """

    seen: list[tuple[int, int, int, Any]] = field(default_factory=list)
    progress: dict[str, dict[str, Any]] = field(default_factory=dict)
    weights: list[float] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def train(
    data: Any,
    graph: Graph,
    *,
    until: str | None = None,
    progress: dict[str, Any] | None = None,
    **resources: Any,
) -> Trained:
    """Train on this rank, with as many random numbers drawn between batches as make it differ from others."""
    trained = Trained()

    def training_step(model: Any, batch: Any, epoch: int, batch_index: int, step: int) -> torch.Tensor:
        trained.seen.append((epoch, batch_index, step, batch.tolist()))
        random.random(), torch.rand(1 + len(trained.seen) % 3)
        loss: torch.Tensor = model(batch.double()).square().mean()
        return loss

    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1).double()
    trainer = Trainer(
        graph,
        seed=0,
        display=None,
        notify=trained.lines.append,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-4),
        train_data=data,
        training_step=training_step,
        **resources,
    )
    trainer.run(until=until)
    trained.progress = {path: dict(fields) for path, fields in trainer.progress.items()}
    trained.weights = [value for part in model.parameters() for value in part.flatten().tolist()]
    trained.metrics = list(trainer.metrics)
    return trained


def fit(every: int = 1, epochs: int = 2, **settings: dict[str, Any]) -> Graph:
    graph = Graph.load("fit").set("accumulate", every=every).set("finish", after=f"{epochs} epochs")
    graph = graph.set("checkpoint", every="never")
    for name, parameters in settings.items():
        graph = graph.set(name, **parameters)
    return graph


def all_seen(of_ranks: list[Trained]) -> list[tuple[int, int, int, Any]]:
    """What all ranks have trained on, in the order of the numbers of batches."""
    return sorted((each for trained in of_ranks for each in trained.seen), key=lambda seen: seen[:2])


def on_ranks(world_size: int, made: Made, graph: Graph, seed: int = 0, **resources: Any) -> list[Trained]:
    def program(ranks: Ranks) -> Trained:
        return train(made(), graph, **resources)

    return run_ranks(world_size, program, seed)


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("name", DATA)
def test_every_batch_once_in_the_same_windows(name: str) -> None:
    expected: list[tuple[int, int, int, Any]] = []
    for world_size, every in [(1, 12), (2, 6), (3, 4), (4, 3)]:
        if world_size % 2 and name not in ONE_ORDER:
            continue
        of_ranks = on_ranks(world_size, DATA[name], fit(every))
        seen = all_seen(of_ranks)
        assert [each[:2] for each in seen] == [(epoch, number) for epoch in (0, 1) for number in range(BATCHES)]
        assert [each[2] for each in seen] == [epoch * 2 + number // 12 for epoch in (0, 1) for number in range(BATCHES)]
        samples = sum(len(batch) for *_, batch in seen)
        for trained in of_ranks:
            assert trained.progress["next_batch"]["samples"] == samples
            assert trained.progress["next_batch"]["batches"] == 2 * BATCHES
            assert trained.weights == of_ranks[0].weights
        expected = expected or seen
        assert seen == expected, world_size
        first, second = ([batch for epoch, *_, batch in seen if epoch == number] for number in (0, 1))
        if name not in ("list", "batch_sampler"):
            assert first != second, "each epoch has its own random numbers"


# ---- data of which each rank has its own


def own(rank: int, length: int, kind: str) -> Any:
    batches = [torch.full((1 + rank, 3), float(10 * rank + number)) for number in range(length)]
    if kind == "list":
        return batches
    if kind == "longer_by_its_length":
        return Lying(batches)
    return Unsized(batches)


class Unsized:
    def __init__(self, batches: list[torch.Tensor]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.batches)


class Lying(Unsized):
    def __len__(self) -> int:
        return len(self.batches) + 1


@pytest.mark.first(3)
@pytest.mark.parametrize("kind", ["list", "unsized", "longer_by_its_length"])
@pytest.mark.parametrize("lengths", [(5, 3, 4), (2, 2)], ids=str)
def test_data_of_each_rank_ends_with_the_shortest(lengths: tuple[int, ...], kind: str) -> None:
    def program(ranks: Ranks) -> Trained:
        return train(rank_local(own(ranks.rank, lengths[ranks.rank], kind)), fit(2))

    of_ranks = run_ranks(len(lengths), program, seed=1)
    rounds, world_size = min(lengths), len(lengths)
    for rank, trained in enumerate(of_ranks):
        assert [batch for *_, batch in trained.seen] == [
            [[10.0 * rank + number] * 3] * (1 + rank) for _ in range(2) for number in range(rounds)
        ]
        assert [number for _, number, *_ in trained.seen] == [
            number * world_size + rank for _ in range(2) for number in range(rounds)
        ]
        progress = trained.progress["next_batch"]
        assert progress["batches"] == 2 * rounds * world_size
        assert progress["samples"] == 2 * rounds * sum(range(1, world_size + 1))
        assert progress["exhausted"] is (kind != "list")
        expected_length = {"list": rounds, "longer_by_its_length": rounds + 1, "unsized": 0}[kind]
        assert progress["epoch_length"] == expected_length * world_size
        assert trained.progress["step"]["steps"] == 2 * -(-rounds // 2)
        assert trained.weights == of_ranks[0].weights


@pytest.mark.parametrize("kind", ["list", "unsized", "longer_by_its_length", "iterated_before"])
def test_data_of_which_one_rank_has_none_names_the_rank(kind: str) -> None:
    def program(ranks: Ranks) -> None:
        if kind == "iterated_before":  # in the second epoch
            data: Any = own(ranks.rank, 3, "list")
            train(rank_local(iter(data) if ranks.rank == 1 else data), fit())
        else:
            train(rank_local(own(ranks.rank, (4, 0, 3)[ranks.rank], kind)), fit())

    for result in World(3, random.Random(0)).run(program):
        assert isinstance(result, DataError)
        assert str(result).startswith("`train_data` gave no batch in this epoch on rank 1: it is empty there, or was ")


def test_data_of_each_rank_may_be_limited() -> None:
    def program(ranks: Ranks) -> Trained:
        return train(rank_local(own(ranks.rank, 5, "unsized")), fit(1, next_batch={"limit": 7}))

    of_ranks = run_ranks(2, program)
    assert [len(trained.seen) for trained in of_ranks] == [8, 6], "seven micro-batches an epoch, the last of one rank"
    assert [trained.progress["next_batch"]["batches"] for trained in of_ranks] == [14, 14]


def test_in_one_process_data_of_each_rank_is_the_data() -> None:
    batches = own(0, 3, "list")
    assert rank_local(batches) is batches


def test_a_fraction_of_an_epoch_of_such_data_is_not_known() -> None:
    def program(ranks: Ranks) -> None:
        train(rank_local(own(ranks.rank, 5, "list")), fit(1, validate={"every": "0.5 epochs"}), val_data=[])

    with pytest.raises(UsageError, match="has no length, so a fraction of an epoch cannot be counted"):
        run_ranks(2, program)


# ---- data that is not the same on all ranks


class Unseeded:
    """Batches from a generator that nobody finds: another one on every rank."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        generator = random.Random(f"{threading.get_ident()}")
        return iter([torch.full((1, 3), generator.random()) for _ in range(3)])


class Listed(list[Any]):
    """Lists of samples, whose number is not what it says."""

    def __len__(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda rank: Unsized(own(rank, 3, "list")), "train_data gives other batches on rank 1 than on rank 0"),
        (
            lambda rank: Loader(torch.zeros(4, 3), sampler=[rank, 2, 3]),
            "train_data gives other batches on rank 1 than on rank 0",
        ),
        (lambda rank: Unseeded(), "train_data gives other batches on rank 1 than on rank 0"),
        (
            lambda rank: Loader(torch.zeros(4, 3), batch_sampler=Listed([[0, 1], [2], [3]][: 3 - rank])),
            "train_data has 3 batches on rank 0, and 2 batches on rank 1",
        ),
        (
            lambda rank: [torch.zeros(1, 3)] * (3 + rank),
            "ranks differ in the length of `train_data`: 3 on rank 0; 4 on rank 1",
        ),
        (
            lambda rank: rank_local([torch.zeros(1, 3)]) if rank else [torch.zeros(1, 3)],
            "ranks differ in whether `train_data` is rank_local: False on rank 0; True on rank 1",
        ),
    ],
    ids=["content", "order", "unseeded", "lists", "length", "kind"],
)
def test_other_data_on_another_rank_is_named(made: Callable[[int], Any], message: str) -> None:
    def program(ranks: Ranks) -> None:
        train(made(ranks.rank), fit())

    for result in World(2, random.Random(0)).run(program):
        assert isinstance(result, RanksDivergedError | UsageError)
        with pytest.raises(type(result), match=message):
            raise result


@pytest.mark.parametrize("is_loader", [False, True], ids=["dataloader", "loader"])
def test_a_distributed_sampler_is_refused(is_loader: bool) -> None:
    def program(ranks: Ranks) -> Trained:
        dataset = Augmented()
        sampler: Any = DistributedSampler(dataset, num_replicas=2, rank=ranks.rank)  # type: ignore[arg-type]
        data = (Loader if is_loader else DataLoader)(dataset, batch_size=4, sampler=sampler)  # type: ignore[arg-type]
        return train(data, fit())

    for result in World(2, random.Random(0)).run(program):
        assert isinstance(result, DataError)
        assert "train_data has a DistributedSampler" in str(result) and "rank_local" in str(result)


@pytest.mark.full
def test_what_it_costs_to_draw_all_is_reported_once() -> None:
    lines = {name: on_ranks(2, DATA[name], fit())[0].lines for name in ("dataloader", "list", "loader", "iterable")}
    reported = {
        name: [line.partition(":")[0] for line in lines if "2 times the loading" in line]
        for name, lines in lines.items()
    }
    assert reported == {
        "dataloader": ["train or validation data is a DataLoader"],
        "list": [],
        "loader": [],
        "iterable": ["train or validation data is a Drawing"],
    }


# ---- the graph around


@pytest.mark.full
def test_a_graph_that_is_rewired_fills_its_own_windows() -> None:
    """The iterator is continued, and rounds end where the windows of the new graph are full."""

    def program(ranks: Ranks) -> tuple[int, list[float]]:
        model = torch.nn.Linear(3, 1)
        trainer = Trainer(
            fit(2, 1),
            display=None,
            notify=lambda line: None,
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
            train_data=DATA["loader"](),
            training_step=lambda model, batch: model(batch).mean(),
        )
        trainer._session.compiled.program.window_ranks = 3  # as in a run that began with three
        trainer.run(until="2 steps")
        trainer.rewire(trainer.graph.set("accumulate", every=1))
        sizes = []
        while trainer.position != "end":
            trainer.advance()
            if trainer.position == "step":
                sizes.append(trainer.read("accumulate.count"))
        return trainer.progress["step"]["steps"], sizes

    assert run_ranks(2, program) == [(6, [3, 3, 3, 2])] * 2


def test_a_kind_that_fetches_for_itself_is_reported() -> None:
    @node(name="fetch_alone", writes=("batch", "samples"), family="data")
    class FetchAlone:
        """The first batch, again and again."""

        drawn: int = progress(0)

        def setup(self, train_data: Any) -> None:
            self._batches = train_data

        def __call__(self) -> tuple[Any, int]:
            self.drawn += 1
            return self._batches[0], 1

    def program(ranks: Ranks) -> list[str]:
        lines: list[str] = []
        graph = Graph.loads(ALONE)
        model = torch.nn.Linear(3, 1)
        trainer = Trainer(
            graph,
            display=None,
            notify=lines.append,
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
            train_data=[torch.zeros(1, 3)],
            training_step=lambda model, batch: model(batch).mean(),
        )
        trainer.run()
        return [*lines, str(trainer.progress["step"]["steps"])]

    line = "`fetch_alone` fetches batches for one process: each of 2 ranks fetches them, and all of them count"
    for lines in run_ranks(2, program)[:1]:
        assert [each for each in lines if each.startswith(line)] and lines[-1] == "3"


ALONE = """
format = 1
name = "alone"
start = "fetch_alone"

[nodes]
fetch_alone = {}
train_batch = { reads = { window = "accumulate.window" } }
accumulate = {}
exchange = {}
step = {}
zero_grad = {}

[guards]
done = "step.steps == 3"

[edges]
fetch_alone = ["train_batch"]
train_batch = ["accumulate"]
accumulate = ["exchange"]
exchange = ["step"]
step = ["zero_grad"]
zero_grad = ["end if done", "fetch_alone"]

[clock]
steps = "step.steps"
batches = "fetch_alone.drawn"
"""


@pytest.mark.full
def test_windows_that_depend_on_the_number_of_ranks_are_reported() -> None:
    """Those that a guard does not step when they are full, and those that nothing counts."""
    own_guard = fit(2, 1).guard("window_complete", "accumulate.count >= 2 * accumulate.window or next_batch.empty")
    without = Graph.loads(ALONE.replace("fetch_alone", "next_batch").replace(".drawn", ".batches"))
    without = without.set("train_batch", reads={"window": "window"}).remove("accumulate")

    def program(graph: Graph) -> Callable[[Ranks], Trained]:
        return lambda ranks: train(DATA["loader"](), graph)

    reported = {
        "own guard": "the window of `accumulate` is full and not stepped: how many batches a step has depends on the",
        "without": "no node counts the micro-batches of a step, as `accumulate` does: a step has one of every rank",
    }
    for name, graph in (("own guard", own_guard), ("without", without)):
        first, second = run_ranks(2, program(graph))
        assert [line for line in first.lines if line.startswith(reported[name])], first.lines
        assert not [line for line in first.lines if line.startswith([*reported.values()][name == "own guard"])]
        assert first.weights == second.weights
        seen = [each[:2] for each in all_seen([first, second])]
        assert seen == [(0, number) for number in range(len(seen))]
    for line in run_ranks(2, program(fit(2, 1)))[0].lines:
        assert not line.startswith(tuple(reported.values()))
