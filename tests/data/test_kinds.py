"""Every kind of data, read alone, together and in turn: a cut is exact and ends as the run never cut, or is named."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from graphtrain import DataError, Graph, Loader, Trainer

# torchdata 0.11 calls it, torch 2.13 has given it up.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
COUNT = 12
SAMPLES: Any = torch.arange(float(COUNT))[:, None]


class Drawing(Sampler[Any]):
    """Draws from the global generator for each sample."""

    def __iter__(self) -> Iterator[Any]:
        left = [*range(COUNT)]
        while left:
            yield left.pop(int(torch.randint(len(left), ())))

    def __len__(self) -> int:
        return COUNT


class DrawingBatches(Drawing):
    """Does not say how many."""

    def __iter__(self) -> Iterator[Any]:
        drawn = super().__iter__()
        yield from ([first, next(drawn)] for first in drawn)

    __len__ = None  # type: ignore[assignment]


class Counted(Drawing):
    """Another order each time it is begun, by whichever loader."""

    begun = 0

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        yield from numpy.random.default_rng(self.begun).permutation(COUNT).tolist()


class Unseeded(Drawing):
    """Another order in every process."""

    def __iter__(self) -> Iterator[Any]:
        yield from numpy.random.default_rng().permutation(COUNT).tolist()


class Augmented:
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        return SAMPLES[index] + torch.rand(1) / 10


class Function:
    """A generator function."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in torch.randperm(COUNT // 2).tolist():
            yield SAMPLES[2 * number : 2 * number + 2] + random.random()


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        info = torch.utils.data.get_worker_info()
        for number in torch.randperm(COUNT).tolist():
            if info is None or number % info.num_workers == info.id:
                yield SAMPLES[number]


class Keeping:
    """Its state is complete."""

    def __init__(self) -> None:
        self.number, self.order = 0, list[int]()

    def __iter__(self) -> Iterator[torch.Tensor]:
        if not self.number:
            self.order = torch.randperm(COUNT // 2).tolist()
        while self.number < len(self.order):
            self.number += 1
            yield SAMPLES[self.order[self.number - 1]].repeat(2, 1)
        self.number = 0

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number, "order": self.order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number, self.order = state["number"], state["order"]


class Buffered(Keeping):
    """Its state leaves out the buffer in which it shuffles."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        drawn, buffer = random.Random(4), list[int]()
        while self.number < COUNT or buffer:
            while self.number < COUNT and len(buffer) < 4:
                buffer.append(self.number)
                self.number += 1
            yield SAMPLES[[buffer.pop(drawn.randrange(len(buffer)))]]
        self.number = 0


class BufferedSet(Buffered, IterableDataset[torch.Tensor]):  # type: ignore[misc]
    """The same as a data set."""


class Epochs(Keeping):
    """Its state leaves out which epoch it is."""

    epoch = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.epoch += not self.number
        self.order = random.Random(self.epoch).sample(range(COUNT), COUNT)
        while self.number < COUNT:
            self.number += 1
            yield SAMPLES[[self.order[self.number - 1]]]
        self.number = 0

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number, "order": []}


class Sized(Buffered):
    def __len__(self) -> int:
        return COUNT


def stateful(*arguments: Any, **options: Any) -> Any:
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader(*arguments, **options)


def hugging_face(buffer_size: int = 0) -> Any:
    """A stream of the library `datasets`."""
    datasets = pytest.importorskip("datasets")
    stream = datasets.Dataset.from_dict({"x": [[float(number)] for number in range(COUNT)]}).to_iterable_dataset()
    return (stream.shuffle(seed=4, buffer_size=buffer_size) if buffer_size else stream).with_format("torch")


KINDS: dict[str, Callable[[], Any]] = {
    "shuffle": lambda: DataLoader(SAMPLES, 2, shuffle=True),
    "sampler": lambda: DataLoader(SAMPLES, 2, sampler=Drawing()),
    "batch sampler": lambda: DataLoader(SAMPLES, batch_sampler=DrawingBatches()),
    "own generator": lambda: DataLoader(SAMPLES, 2, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "counted": lambda: DataLoader(SAMPLES, 2, sampler=Counted()),
    "augmented": lambda: DataLoader(Augmented(), 2, shuffle=True),  # type: ignore[arg-type]
    "workers": lambda: DataLoader(SAMPLES, 2, shuffle=True, num_workers=1),
    "Loader": lambda: Loader(SAMPLES, 2, shuffle=True),
    "Loader, batch sampler": lambda: Loader(SAMPLES, batch_sampler=DrawingBatches()),
    "list": lambda: [*SAMPLES.split(2)],
    "generator function": Function,
    "stream": lambda: DataLoader(Stream(), 2),
    "stream, workers": lambda: DataLoader(Stream(), 2, num_workers=2),
    "Hugging Face": hugging_face,
    "Hugging Face, buffer": lambda: hugging_face(5),
    "StatefulDataLoader": lambda: stateful(SAMPLES, 2, shuffle=True),
    "StatefulDataLoader, workers": lambda: stateful(SAMPLES, 2, shuffle=True, num_workers=1),
    "StatefulDataLoader, Hugging Face": lambda: stateful(hugging_face(), 2),
    "StatefulDataLoader, buffer": lambda: stateful(hugging_face(5), 2),
    "own state": Keeping,
}


class Zipped:
    """Loaders of which the user makes one."""

    def __init__(self, *loaders: Any) -> None:
        self.loaders = loaders

    def __iter__(self) -> Iterator[Any]:
        return zip(*self.loaders, strict=False)


def shuffled() -> Any:
    return DataLoader(SAMPLES, 3, shuffle=True)


WAYS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "alone": lambda made: made(),
    "together": lambda made: {"a": made(), "b": made()},
    "together, first": lambda made: {"a": made(), "b": shuffled()},
    "together, second": lambda made: {"a": shuffled(), "b": made()},
    "in a tuple": lambda made: Zipped(made(), made()),
    "in turn": lambda made: {"a": made(), "b": made()},
}


def run(made: Callable[[], Any], folder: Path, until: str | None = None, **settings: Any) -> tuple[list[Any], str, str]:
    """What a run was given, its digest, and its line about a resume."""
    seen: list[Any] = []
    said: list[str] = []

    def step(model: torch.nn.Module, batch: Any) -> Any:
        parts = [*batch.values()] if isinstance(batch, dict) else [*batch] if isinstance(batch, tuple) else [batch]
        parts = [part["x"] if isinstance(part, dict) else part for part in parts if part is not None]
        seen.append([part.flatten().tolist() for part in parts])
        return sum(model(part.reshape(-1, 1)).square().mean() for part in parts) * random.random() * 1e-3

    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(0.3))
    graph = Graph.load("fit").set("finish", after="2 epochs").set("next_batch", **settings)
    trainer = Trainer(
        graph.set("checkpoint", every="never").set("log", every="never"),
        run_dir=folder,
        seed=0,
        device="cpu",
        display=None,
        notify=said.append,
        not_state=["training_step<seen>"],
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        train_data=made(),
        training_step=step,
    )
    trainer.run(until=until)
    return seen, trainer.digest(), next((line for line in said if line.startswith("resumed ")), "")


def cut(
    made: Callable[[], Any], folder: Path, *numbers: int, now: Any = (), has_digest: bool = True, **settings: Any
) -> Iterator[tuple[bool, str]]:
    """For each cut, True if the run has ended as the one never cut, and the line about its resume.

    Arguments:
        now: settings of the resume.
        has_digest: False for data whose own state is not the same after a resume, though its batches are.
    """
    whole, digest, _ = run(made, folder / "whole", **settings)
    for number in numbers:
        before, _, _ = run(made, folder / str(number), f"{number} batches", **settings)
        after, digest_after, line = run(made, folder / str(number), **{**settings, **dict(now)})
        yield before + after == whole and (digest_after == digest or not has_digest), line


def expect_exact(made: Callable[[], Any], folder: Path, *numbers: int, **settings: Any) -> None:
    for is_equal, line in cut(made, folder, *numbers, **settings):
        assert is_equal and line.endswith(": exact"), line


FIRST = {
    ("together", "shuffle"),
    ("together, second", "sampler"),
    ("in turn", "shuffle"),
    ("alone", "Loader, batch sampler"),
}
FULL = {"shuffle", "sampler", "counted", "augmented", "generator function", "Hugging Face, buffer"}
ROWS = [
    pytest.param(way, kind, marks=[pytest.mark.full] * (kind in FULL) or [pytest.mark.sweep])
    if (way, kind) not in FIRST
    else (way, kind)
    for way in WAYS
    for kind in KINDS
]


@pytest.mark.parametrize(("way", "kind"), ROWS)
def test_a_cut_is_exact(way: str, kind: str, tmp_path: Path) -> None:
    numbers = (3,) if (way, kind) in FIRST else (1, 3, 8) if kind in FULL else range(1, 12)
    settings: dict[str, Any] = {"combine": "in_turn"} if way == "in turn" else {}
    settings["has_digest"] = kind != "StatefulDataLoader, Hugging Face"
    try:
        expect_exact(lambda: WAYS[way](KINDS[kind]), tmp_path, *numbers, **settings)
    except DataError as error:
        assert "keeps its own position, which is undefined" in str(error) and "together" in way


@pytest.mark.full
@pytest.mark.parametrize("combine", ["cycle", "shortest"])
def test_loaders_that_share_what_they_draw_by(combine: str, tmp_path: Path) -> None:
    def made(**shared: Any) -> dict[str, Any]:
        return {"a": DataLoader(SAMPLES, 4, **shared), "b": DataLoader(SAMPLES, 2, **shared), "c": shuffled()}

    def of_generator() -> dict[str, Any]:
        return made(generator=torch.Generator().manual_seed(3), shuffle=True)

    expect_exact(lambda: made(sampler=Counted()), tmp_path / "sampler", 2, 5, combine=combine)
    expect_exact(of_generator, tmp_path / "generator", 2, 5, combine=combine)


@pytest.mark.full
def test_a_short_loader_that_has_begun_very_often(tmp_path: Path) -> None:
    def made() -> dict[str, Any]:
        short, long = DataLoader(SAMPLES[:4], 2, shuffle=True), DataLoader(SAMPLES.repeat(16, 1), 1, shuffle=True)
        return {"short": short, "numbered": Loader(SAMPLES[:3], 1, shuffle=True), "long": long}

    expect_exact(made, tmp_path, 171)


NOT_EXACT: dict[str, tuple[Callable[[], Any], int, str]] = {
    "order": (lambda: DataLoader(SAMPLES, 4, sampler=Unseeded()), 2, "train_data differs: batch 2 of epoch 1"),
    "one of two": (
        lambda: {"a": shuffled(), "b": DataLoader(SAMPLES, 4, sampler=Unseeded())},
        2,
        "differs: batch 2 of epoch 1 is not what it was",
    ),
    "buffer": (Buffered, 3, "gives another batch after a state of its own than it gave before"),
    "buffer, loader": (lambda: stateful(BufferedSet(), 2), 2, "gives another batch after a state of its own"),  # type: ignore[arg-type]
    "epochs": (Epochs, 15, "gives another batch after a state of its own than it gave before"),
    "second": (Sized, 1, "before a second batch could show that it is complete"),
}


@pytest.mark.parametrize("name", NOT_EXACT)
def test_what_cannot_be_exact_is_named(name: str, tmp_path: Path) -> None:
    made, number, reported = NOT_EXACT[name]
    ((is_equal, line),) = cut(made, tmp_path, number)
    assert not is_equal and "not exact: " in line and reported in line


class Starting(Buffered):
    """Starts over, unless a state was loaded."""

    loaded = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.number, self.loaded = self.loaded, 0
        return super().__iter__()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loaded = state["number"]


def test_what_the_state_has_left_out_is_drawn_again_by_a_replay(tmp_path: Path) -> None:
    """From the same checkpoint, as the line says."""
    ((is_equal, line),) = cut(Starting, tmp_path / "state", 5)
    assert not is_equal and 'next_batch.resume = "replay" draws the batches of the epoch again instead' in line
    ((is_equal, line),) = cut(Starting, tmp_path / "replay", 5, now={"resume": "replay"}, has_digest=False)
    assert is_equal and line.endswith("; exact except for what changed: next_batch.resume default -> replay")


@pytest.mark.full
def test_a_state_that_is_known_to_be_incomplete_is_named_where_it_is_asked_for(tmp_path: Path) -> None:
    ((_, line),) = cut(lambda: hugging_face(5), tmp_path, 3, resume="state")
    assert "not exact: train_data goes on from a state of its own that is not complete" in line
