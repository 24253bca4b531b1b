"""Data objects that keep their own position."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from graphtrain import DataError, Trainer
from graphtrain.kind import kind_of
from graphtrain.nodes.next_batch import NextBatch
from graphtrain.storage.encoding import UnsaveableError
from tests.data.cutting import AssertExact, checkpoints, run_over
from tests.data.test_lazy import BufferedSampler, BufferedSet, Noisy

COUNT = 6

# torchdata 0.11 calls it, torch 2.13 has given it up.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


class Carried:
    """Its position is reset at the end of an epoch; it draws from every generator, bit by bit."""

    def __init__(self) -> None:
        self.position = self.epochs = self.opened = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.opened += 1
        while self.position < COUNT:
            self.position += 1
            noise = random.random() + numpy.random.randn() + float(torch.rand(()))
            yield torch.tensor([float(self.position), noise, self.epochs])
        self.position = 0
        self.epochs += 1

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.epochs = state["position"], state["epochs"]


class Flagged(Carried):
    """Its position stays at the end; `load_state_dict` sets the first batch of the next epoch only."""

    def __init__(self) -> None:
        super().__init__()
        self.first = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        first, self.first = self.first, 0
        for position in range(first, COUNT):
            self.position = position + 1
            yield torch.tensor([float(position), random.random() + float(torch.rand(()))])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = self.position = state["position"]


class Eager(Flagged):
    """The same, with an order drawn by `iter` itself and kept in the state; a new epoch counts itself."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[int] = []
        self.resumed = False

    def __iter__(self) -> Iterator[torch.Tensor]:
        if not self.resumed:
            self.order = torch.randperm(COUNT).tolist()
            self.position = 0
            self.epochs += 1
        self.resumed = False
        return self._rest()

    def _rest(self) -> Iterator[torch.Tensor]:
        while self.position < COUNT:
            self.position += 1
            yield torch.tensor([float(self.order[self.position - 1]), self.epochs])

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "order": torch.tensor(self.order)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.epochs, self.order = state["position"], state["epochs"], state["order"].tolist()
        self.resumed = True


class SizedCarried(Carried):
    def __len__(self) -> int:
        return COUNT


OBJECTS: dict[str, Callable[[], Any]] = {
    "carried": Carried,
    "sized": SizedCarried,
    "flagged": Flagged,
    "eager": Eager,
}


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("made", OBJECTS.values(), ids=OBJECTS)
def test_cuts(made: Callable[[], Any], tmp_path: Path, assert_exact: AssertExact) -> None:
    assert_exact(made, tmp_path, epochs=3)


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("made", OBJECTS.values(), ids=OBJECTS)
def test_cuts_in_validation(made: Callable[[], Any], tmp_path: Path, assert_exact: AssertExact) -> None:
    """Its state is restored for the next validation too if the cut is outside a validation."""
    assert_exact(lambda: {"train_data": made(), "val_data": made()}, tmp_path, epochs=2)


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize("made", OBJECTS.values(), ids=OBJECTS)
def test_cut_twice_in_one_epoch(made: Callable[[], Any], tmp_path: Path) -> None:
    """What is reported after a resume is the position that the object has come to since."""
    whole, seen = run_over(made(), tmp_path / "whole")
    whole.run()
    once, _ = run_over(made(), tmp_path / "once")
    once.run(resume=checkpoints(tmp_path / "whole")[1], until="4 batches")
    twice, after = run_over(made(), None)
    twice.run(resume=checkpoints(tmp_path / "once")[-1])
    assert after == seen[4:]
    assert twice.digest() == whole.digest()


class Unended(Carried):
    """Its state does not tell whether the epoch is at its end: loaded there, the next epoch begins at once."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(COUNT):
            self.position += 1
            yield torch.tensor([float(self.position)])


@pytest.mark.full
@pytest.mark.parametrize(("made", "epoch", "known"), [(Unended, 1, "the epoch before had 6")])
def test_data_that_misses_the_empty_rest_of_an_epoch_is_reported(
    made: Callable[[], Any], epoch: int, known: str, tmp_path: Path
) -> None:
    def edited(data: Any, run_dir: Path | None, lines: list[str]) -> tuple[Trainer, list[Any]]:
        return run_over(data, run_dir, notify=lines.append)

    whole, seen = edited(made(), tmp_path, [])
    number = COUNT * epoch + COUNT - 1  # the last batch of the epoch is fetched ahead
    whole.run(until=f"{number} batches")
    path = checkpoints(tmp_path)[-1]
    whole.run()
    lines: list[str] = []
    cut, after = edited(made(), None, lines)
    cut.run(resume=path)
    (line,) = [line for line in lines if line.startswith("resumed ")]
    assert f"not exact: train_data has a batch 7 in this epoch now, and {known}: loaded after the last batch" in line
    assert after != seen[number:]


def test_one_batch_is_drawn_again_twice_to_see_whether_the_state_is_complete(tmp_path: Path) -> None:
    whole, _ = run_over(SizedCarried(), tmp_path)
    whole.run()
    data = SizedCarried()
    cut, seen = run_over(data, None)
    cut.run(resume=checkpoints(tmp_path)[4])
    assert seen[0][0][0] == 6.0  # the next batch, and the first that the object was asked for
    assert data.opened == 4


@pytest.mark.full
def test_what_is_reported_after_a_resume_is_what_was_loaded(tmp_path: Path) -> None:
    """Also where the object itself has moved: by an iterator that fetches ahead, say."""

    class Ahead(Carried):
        def __iter__(self) -> Iterator[torch.Tensor]:
            iterator = super().__iter__()
            following = next(iterator, None)
            return self._rest(following, iterator)

        def _rest(self, following: Any, iterator: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
            while following is not None:
                yield following
                following = next(iterator, None)

        def state_dict(self) -> dict[str, Any]:
            return {"position": max(self.position - 1, 0), "epochs": self.epochs}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict(state)
            state["position"] = "spoilt"  # data that changes the state it is given

    whole, _ = run_over(Ahead(), tmp_path)
    whole.run()
    for path in checkpoints(tmp_path)[:5]:
        cut, _ = run_over(Ahead(), None)
        cut.run(resume=path, until="1 batches")


def test_an_object_is_not_asked_before_its_first_epoch() -> None:
    """torchdata's loader would begin an epoch to report its state, and draw random numbers for it."""

    class Unready(Carried):
        def state_dict(self) -> dict[str, Any]:
            assert self.opened
            return super().state_dict()

    node = kind_of(NextBatch).new_instance()
    assert node.state_dict() == {}
    node.setup(Unready(), 0, torch.device("cpu"), True, lambda line: None)
    assert node.state_dict() == {}
    node()
    assert node.state_dict()["data"] == {"position": 2, "epochs": 0}  # a batch is fetched ahead
    assert len(node.state_dict()["ahead"]) == 1


def test_a_state_that_has_no_plain_form_is_an_error_with_its_path(tmp_path: Path) -> None:
    class Opaque(Carried):
        def state_dict(self) -> dict[str, Any]:
            return {"position": object()}

    trainer, _ = run_over(Opaque(), tmp_path)
    with pytest.raises(UnsaveableError, match=r"next_batch.*'position'.* cannot be saved: a builtins.object"):
        trainer.run()


def test_replay_where_it_is_asked_for(tmp_path: Path, assert_exact: AssertExact) -> None:
    """An object whose `iter` starts over, and whose state is incomplete."""

    class Forgetful(Carried):
        def __iter__(self) -> Iterator[torch.Tensor]:
            yield from (torch.tensor([float(number)]) for number in torch.randperm(COUNT).tolist())

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError("not to be asked")

    assert_exact(Forgetful, tmp_path, edit=lambda graph: graph.set("next_batch", resume="replay"))


def test_a_limit_is_refused_by_name(tmp_path: Path) -> None:
    trainer, _ = run_over(Carried(), tmp_path, edit=lambda graph: graph.set("next_batch", limit=3))
    with pytest.raises(DataError, match=r"next_batch\.limit = 3: the data is a Carried that keeps its own position"):
        trainer.run()
    trainer, seen = run_over(Carried(), None, edit=lambda graph: graph.set("next_batch", limit=3))
    trainer.run()
    assert len(seen) == 6


def test_state_of_data_that_has_none_is_refused(tmp_path: Path) -> None:
    trainer, _ = run_over(DataLoader(Noisy(), 2), tmp_path, edit=lambda graph: graph.set("next_batch", resume="state"))
    with pytest.raises(DataError, match=r"the data is a DataLoader, which has no state_dict and load_state_dict"):
        trainer.run()


# torchdata's StatefulDataLoader


class Counted(IterableDataset[float]):
    """An iterable data set with a state."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[float]:
        while self.position < 12:
            self.position += 1
            yield self.position + random.random() + float(torch.rand(())) + numpy.random.randn()
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


def stateful(*arguments: Any, **options: Any) -> Any:
    return pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader(*arguments, **options)


TORCHDATA: dict[str, Callable[[], Any]] = {
    "in order": lambda: stateful(Noisy(), 2),
    "shuffled": lambda: stateful(Noisy(), 3, shuffle=True),
    "drop_last": lambda: stateful(Noisy(), 3, shuffle=True, drop_last=True),
    "no batches": lambda: stateful(Noisy(), None, shuffle=True),
    "own generator": lambda: stateful(Noisy(), 2, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "torch's sampler": lambda: stateful(Noisy(), 2, sampler=RandomSampler(range(14))),
    "torch's sampler, replacing": lambda: stateful(
        Noisy(), 2, sampler=RandomSampler(range(14), True, 40, torch.Generator().manual_seed(4))
    ),
    "own sampler": lambda: stateful(Noisy(), 2, sampler=BufferedSampler("torch")),
    "iterable": lambda: stateful(Counted(), 2),
    "iterable without a state": lambda: stateful(BufferedSet("torch"), 2),
}


# In a sweep all of them in both ways.
@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize(
    ("made", "resume"),
    [
        pytest.param(made, resume, id=f"{name}-{resume}", marks=[] if resume == often else pytest.mark.sweep)
        for (name, made), often in zip(TORCHDATA.items(), itertools.cycle(("auto", "replay", "auto")), strict=False)
        for resume in ("auto", "replay")
    ],
)
def test_cuts_of_a_stateful_data_loader(
    made: Callable[[], Any], resume: str, tmp_path: Path, assert_exact: AssertExact
) -> None:
    if resume == "replay" and isinstance(made().dataset, Counted):
        pytest.skip("its `iter` continues where it is, so it cannot be replayed")
    assert_exact(made, tmp_path, edit=lambda graph: graph.set("next_batch", resume=resume))


@pytest.mark.full
def test_a_stateful_data_loader_for_validation(tmp_path: Path, assert_exact: AssertExact) -> None:
    """Its `iter` draws from the global generator: not so when its state is put back for a later validation."""
    assert_exact(lambda: {"train_data": [torch.ones(2)] * 6, "val_data": stateful(Noisy(), 4, shuffle=True)}, tmp_path)


@pytest.mark.second(1)
@pytest.mark.full
@pytest.mark.parametrize("options", [{"shuffle": True}, {"shuffle": True, "prefetch_factor": 1}], ids=["", "prefetch"])
def test_with_workers_it_is_replayed(options: dict[str, Any], tmp_path: Path, assert_exact: AssertExact) -> None:
    lines: list[str] = []
    assert_exact(lambda: stateful(Noisy(), 2, num_workers=2, **options), tmp_path, notify=lines.append)
    (line,) = {line for line in lines if "StatefulDataLoader" in line}
    assert 'next_batch.resume = "state" resumes at once but not exactly' in line


@pytest.mark.sweep
def test_with_workers_its_state_is_taken_where_it_is_asked_for(tmp_path: Path) -> None:
    def edited(data: Any, run_dir: Path | None) -> tuple[Trainer, list[Any]]:
        return run_over(data, run_dir, edit=lambda graph: graph.set("next_batch", resume="state"))

    whole, seen = edited(stateful(list(range(14)), 2, num_workers=2, shuffle=True), tmp_path)
    whole.run()
    for path in checkpoints(tmp_path)[::4]:
        cut, after = edited(stateful(list(range(14)), 2, num_workers=2, shuffle=True), None)
        cut.run(resume=path)
        assert after == seen[len(seen) - len(after) :]  # nothing here is drawn by workers
