"""Batches that are None, and step functions that return None for a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import Graph, Loader, Trainer, UsageError
from graphtrain.ranks import Ranks
from tests.ranks.fake_ranks import run_ranks

FIT = Graph.load("fit").set("finish", after="2 epochs").set("log", every="never").set("checkpoint", every="never")
LENGTH = 7


def collate(samples: list[int]) -> torch.Tensor | None:
    """Batches of which 2, 3 and the last are None."""
    return None if samples[0] in (2, 3, LENGTH - 1) else torch.full((1, 2), float(samples[0]))


def step(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def none_for_odd(model: Any, batch: torch.Tensor) -> torch.Tensor | None:
    return None if batch[0, 0] % 2 else step(model, batch)


def make(
    graph: Graph = FIT, run_dir: Path | None = None, data: Any = None, said: list[str] | None = None, **more: Any
) -> Trainer:
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1).double()
    supplied = {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=0.05),
        "train_data": data if data is not None else Loader(range(LENGTH), batch_size=1, collate_fn=collate),
        "training_step": lambda model, batch: step(model, batch.double()),
        **more,
    }
    notify = said.append if said is not None else lambda line: None
    return Trainer(graph, seed=0, run_dir=run_dir, display=None, notify=notify, **supplied)


def weights(model: torch.nn.Module) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def by_hand(batches: Iterable[float | None], window: int = 1, epochs: int = 2) -> list[float]:
    """A loop in which None adds nothing; `window` micro-batches a step, a short one at the end of an epoch."""
    given = make().resources
    model, optimizer = given["model"], given["optimizer"]
    for _ in range(epochs):
        count, numbers = 0, [*batches]
        for place, number in enumerate(numbers):
            count += 1
            if number is not None:
                (step(model, torch.full((1, 2), number).double()) / window).backward()
            if count == window or place == len(numbers) - 1:
                optimizer.step()
                optimizer.zero_grad()
                count = 0
    return weights(model)


# ---- batches


DATA: list[Callable[[], Any]] = [
    lambda: Loader(range(LENGTH), batch_size=1, collate_fn=collate),
    lambda: DataLoader(range(LENGTH), batch_size=1, collate_fn=collate),
    lambda: [collate([number]) for number in range(LENGTH)],
]


@pytest.mark.parametrize("make_data", DATA, ids=["Loader", "DataLoader", "list"])
def test_batches_that_are_none_are_skipped_and_reported_once(make_data: Callable[[], Any]) -> None:
    said: list[str] = []
    trainer = make(FIT, data=make_data(), said=said)
    trainer.run()
    assert weights(trainer.resources["model"]) == by_hand([0.0, 1.0, 4.0, 5.0])
    assert trainer.progress["next_batch"]["batches"] == 2 * LENGTH
    assert trainer.progress["next_batch"]["epochs"] == 2
    assert [line for line in said if "None instead of a batch" in line] == [
        "the data gave None instead of a batch, as a `collate_fn` may: such batches count, and are not trained on"
    ]


@pytest.mark.full
def test_a_cut_beside_them_is_exact(tmp_path: Path) -> None:
    whole = make()
    whole.run()
    for cut in (10, 22):
        first = make(run_dir=tmp_path / str(cut))
        first.advance(cut)
        first.save()
        second = make(run_dir=tmp_path / str(cut))
        second.run()
        assert second.digest() == whole.digest(), f"cut before {first.position}"


def at_ranks(graph: Graph, run_dir: Path | None = None, cut: int = 0, **more: Any) -> list[Any]:
    def program(ranks: Ranks) -> Any:
        trainer = make(graph, run_dir, **more)
        if cut:
            trainer.advance(cut)
            trainer.save()
        else:
            trainer.run()
        return weights(trainer.resources["model"]), trainer.progress["step"]["steps"], trainer.digest()

    return run_ranks(2, program)


@pytest.mark.full
@pytest.mark.parametrize("make_data", [DATA[0], DATA[2]], ids=["Loader", "list"])
def test_a_rank_without_one_adds_zeros(make_data: Callable[[], Any], tmp_path: Path) -> None:
    whole = at_ranks(FIT, data=make_data())
    expected = by_hand([0.0, 1.0, None, None, 4.0, 5.0, None], window=2)
    assert [each[:2] for each in whole] == [(pytest.approx(expected, abs=1e-12), 8)] * 2
    for cut in (14,):
        at_ranks(FIT, tmp_path / str(cut), cut, data=make_data())
        assert at_ranks(FIT, tmp_path / str(cut), data=make_data()) == whole


# ---- losses


SKIPPING = FIT.set("train_batch", skip_none=True)
NUMBERS = [torch.full((1, 2), float(number)) for number in range(LENGTH)]


@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_loss_that_is_none_is_skipped(window: int) -> None:
    trainer = make(
        SKIPPING.set("accumulate", every=window),
        data=NUMBERS,
        training_step=lambda model, batch: none_for_odd(model, batch.double()),
    )
    trainer.run()
    assert weights(trainer.resources["model"]) == by_hand([0.0, None, 2.0, None, 4.0, None, 6.0], window)


def test_without_it_none_is_an_error_that_names_it() -> None:
    with pytest.raises(UsageError, match="it returned") as caught:
        make(data=NUMBERS, training_step=none_for_odd, model=torch.nn.Linear(2, 1)).run()
    assert "train_batch.skip_none = true" in caught.value.hint
