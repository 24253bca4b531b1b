"""Several loaders that are read one after the other, as a validation does: metrics, limits, cuts, ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import DataError, Graph, GraphError, Loader, Trainer
from graphtrain.ranks import Ranks
from tests.ranks.fake_ranks import run_ranks

FIT = Graph.load("fit").set("finish", after="2 epochs").set("log", every="never").set("checkpoint", every="never")
CLEAN, NOISY, OTHER = torch.arange(14.0).view(7, 2), torch.arange(8.0).view(4, 2), torch.arange(6.0).view(3, 2)


class Unsized:
    """Gives its batches and does not say how many."""

    def __init__(self, *batches: torch.Tensor) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.batches)


def loaders() -> dict[str, Any]:
    return {
        "clean": Loader(CLEAN, batch_size=2, shuffle=True),
        "noisy": DataLoader(NOISY, batch_size=3, shuffle=True),
        "other": list(OTHER.split(2)),
        "unsized": Unsized(CLEAN, NOISY),
    }


def make(
    graph: Graph = FIT, run_dir: Path | None = None, val_data: Any = None, said: list[str] | None = None, **more: Any
) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Dropout(0.3))
    supplied = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3),
        "train_data": Loader(torch.ones(9, 2), batch_size=2),
        "val_data": loaders() if val_data is None else val_data,
        "training_step": lambda model, batch: model(batch).square().mean(),
        **more,
    }
    notify = said.append if said is not None else lambda line: None
    return Trainer(graph, seed=0, run_dir=run_dir, display=None, notify=notify, **supplied)


def validations(trainer: Trainer) -> list[dict[str, float]]:
    return [
        {name: value for name, value in row.items() if name.startswith("val/")}
        for row in trainer.metrics
        if any(name.startswith("val/") for name in row)
    ]


# ---- what is measured


def test_metrics_are_those_of_each_loader_and_their_mean() -> None:
    trainer = make()
    trainer.run()
    model = trainer.resources["model"].eval().requires_grad_(False)
    expected = {}
    for name, samples in {"clean": CLEAN, "noisy": NOISY, "other": OTHER, "unsized": torch.cat([CLEAN, NOISY])}.items():
        expected[f"val/{name}/loss"] = float(model(samples).square().mean())
    expected["val/loss"] = sum(expected.values()) / 4
    assert validations(trainer)[-1] == pytest.approx(expected, rel=1e-6)


def seen_with(graph: Graph, val_data: Any) -> list[tuple[str, int]]:
    seen: list[tuple[str, int]] = []

    def validation_step(model: Any, batch: Any, loader: str) -> dict[str, float]:
        seen.append((loader, len(batch)))
        return {"loss": 1.0}

    make(graph.set("finish", after="1 epochs"), val_data=val_data, validation_step=validation_step).run()
    return seen


@pytest.mark.parametrize(("limit", "counts"), [(1, (1, 1, 1, 1)), (2, (2, 2, 2, 2)), (3, (3, 2, 2, 2))])
def test_a_limit_is_that_of_each_loader(limit: int, counts: tuple[int, ...]) -> None:
    seen = [name for name, _ in seen_with(FIT.set("validate/next_batch", limit=limit), loaders())]
    assert tuple(seen.count(name) for name in loaders()) == counts
    assert seen == sorted(seen, key=[*loaders()].index)


def test_a_limit_may_be_a_share() -> None:
    graph = FIT.set("validate/next_batch", limit=0.5)
    data = {"a": [CLEAN] * 10, "b": Loader(NOISY, batch_size=1)}
    assert [name for name, _ in seen_with(graph, data)] == ["a"] * 5 + ["b"] * 2
    trainer = make(FIT.set("next_batch", limit=0.61), val_data=[CLEAN])
    trainer.run()
    assert trainer.progress["next_batch"]["epoch_batches"] == 3  # of 5 batches
    assert trainer.progress["next_batch"]["epochs"] == 2


# ---- cuts


def end_of(trainer: Trainer) -> tuple[Any, ...]:
    return trainer.digest(), trainer.metrics


def expect_cuts_are_exact(folder: Path, cuts: Iterable[int], graph: Graph, make_data: Any) -> None:
    whole = make(graph, val_data=make_data())
    whole.run()
    for cut in cuts:
        first = make(graph, folder / str(cut), make_data())
        first.advance(cut)
        first.save()
        second = make(graph, folder / str(cut), make_data())
        second.run()
        assert end_of(second) == end_of(whole), f"cut before {first.position}"


def place_of(graph: Graph, loader: str, position: str = "validate/eval_batch", turn: int = 1) -> int:
    """After how many transitions a run is there for the n-th time."""
    trainer, number = make(graph), 0
    while turn:
        trainer.advance()
        number += 1
        fields = trainer.progress["validate/next_batch"]
        turn -= trainer.position == position and fields["loader"] == loader
    return number


@pytest.mark.full
def test_a_cut_in_the_middle_of_a_loader_is_exact(tmp_path: Path) -> None:
    graph = FIT.set("validate", every="0.5 epochs")
    cuts = [place_of(graph, name) for name in loaders()]
    cuts.append(place_of(graph, "clean", "validate/next_batch", turn=5))  # the loader has ended, the next has not begun
    expect_cuts_are_exact(tmp_path, cuts, graph, loaders)


# ---- several ranks


def at_ranks(graph: Graph, run_dir: Path | None = None, cut: int = 0, world_size: int = 2) -> list[Any]:
    def program(ranks: Ranks) -> Any:
        trainer = make(graph, run_dir)
        if cut:
            trainer.advance(cut)
            trainer.save()
        else:
            trainer.run()
        return trainer.metrics, trainer.digest()

    return run_ranks(world_size, program)


@pytest.mark.full
def test_ranks_measure_what_one_process_measures() -> None:
    graph = FIT.set("train_batch", reads={"batch": "batch"})
    for world_size in (2, 3):
        of_ranks = at_ranks(graph, world_size=world_size)
        assert all(rows == of_ranks[0][0] for rows, _ in of_ranks)
        first = next(row for row in of_ranks[0][0] if "val/loss" in row)
        assert [name for name in first if name.startswith("val/")] == [
            *(f"val/{name}/loss" for name in loaders()),
            "val/loss",
        ]
    counted = FIT.set("finish", after="1 epochs").set("step", reads={})

    def still(ranks: Ranks | None = None) -> list[dict[str, float]]:
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        trainer = make(counted, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
        trainer.run()
        return validations(trainer)

    alone = still()
    for rows in run_ranks(2, still):
        assert rows[0] == pytest.approx(alone[0])


# ---- what is refused


@pytest.mark.parametrize(
    ("val_data", "message"),
    [
        ({"a": [CLEAN], "b": []}, "the loader `b` gave no batch"),
        ({"a": Unsized(), "b": [CLEAN]}, "the loader `a` gave no batch"),
        ({"a/b": [CLEAN]}, "a loader is named 'a/b'"),
        ({1: [CLEAN]}, "a loader is named 1"),
    ],
)
def test_loaders_that_cannot_be_read_are_refused(val_data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make(val_data=val_data).run()


@pytest.mark.parametrize("val_data", [{}, {"inputs": CLEAN, "targets": NOISY}])
def test_a_mapping_that_holds_no_loaders_is_refused(val_data: Any) -> None:
    with pytest.raises(GraphError, match="G309: `val_data` is a mapping"):
        make(val_data=val_data)
