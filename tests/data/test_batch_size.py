"""Another batch size in mid-epoch: what remains of the epoch is cut into batches of the new size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from graphtrain import Graph, Loader, Trainer

COUNT = 40


def run(data: Any, run_dir: Path, until: str | None, **parameters: Any) -> tuple[Trainer, list[list[int]], str]:
    """A trainer that has run, the samples of each batch that it was given, and its line about the resume."""
    seen: list[list[int]] = []
    lines: list[str] = []

    def training_step(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        batch = torch.as_tensor(batch)
        seen.append(batch.reshape(-1).int().tolist())
        return model(batch.reshape(-1, 1).float()).square().mean()

    torch.manual_seed(1)
    model = torch.nn.Linear(1, 1)
    graph = Graph.load("fit").set("checkpoint", every="never").set("finish", after="2 epochs")
    trainer = Trainer(
        graph.set("next_batch", **parameters),
        seed=0,
        run_dir=run_dir,
        device="cpu",
        display=None,
        notify=lines.append,
        not_state=["training_step<seen>"],
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1e-5),
        training_step=training_step,
        train_data=data,
    )
    trainer.run(until=until)
    return trainer, seen, next((line for line in lines if line.startswith("resumed ")), "")


def flat(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffled": lambda: {"shuffle": True},
    "in order": dict,
    "workers": lambda: {"shuffle": True, "num_workers": 2},
    "sampler": lambda: {"sampler": torch.utils.data.SubsetRandomSampler(range(COUNT))},
}


@pytest.mark.second(2)
@pytest.mark.full
@pytest.mark.parametrize(
    ("options", "size", "other", "prefetch"),
    [("shuffled", 4, 8, True), ("in order", 8, 3, False), ("sampler", 4, None, True), ("workers", 4, 8, False)],
)
def test_every_sample_is_seen_once_in_the_order_of_the_epoch(
    options: str, size: int, other: int | None, prefetch: bool, tmp_path: Path
) -> None:
    def loader(size: int | None) -> Loader:
        return Loader(range(COUNT), size, **OPTIONS[options]())

    whole, expected, _ = run(loader(size), tmp_path / "whole", None, prefetch=prefetch)
    _, first, _ = run(loader(size), tmp_path / "cut", "3 batches", prefetch=prefetch)
    trainer, second, line = run(loader(other), tmp_path / "cut", "1 epochs", prefetch=prefetch)
    assert sorted(flat(first + second)) == list(range(COUNT))
    assert flat(first + second) == flat(expected)[:COUNT]
    # One batch was fetched ahead before, in the size of then.
    assert {len(batch) for batch in second[prefetch:-1]} == {other or 1}
    assert trainer.progress["next_batch"]["epochs"] == 1
    assert trainer.progress["next_batch"]["samples"] == COUNT
    rest = COUNT - (3 + prefetch) * size
    assert "exact except for what changed: " in line and f"train_data: batch size {other or 1}, was {size}" in line
    assert f"train_data: the {rest} samples that remain of the epoch are cut into batches of {other or 1}" in line
    # The next epoch is as if it always had been of this size.
    _, third, _ = run(loader(other), tmp_path / "cut", None, prefetch=prefetch)
    assert flat(third) == flat(expected)[COUNT:]
    assert whole.progress["next_batch"]["epochs"] == trainer.progress["next_batch"]["epochs"] + 1


@pytest.mark.full
def test_several_changes_and_cuts_between_them(tmp_path: Path) -> None:
    """Each resume of the same size in between is exact."""

    def loader(size: int, **options: Any) -> Loader:
        return Loader(range(COUNT), size, shuffle=True, **options)

    seen: list[list[int]] = []
    for size, until in ((4, "2 batches"), (3, "4 batches"), (3, "5 batches"), (8, "6 batches"), (8, "1 epochs")):
        _, batches, line = run(loader(size), tmp_path, until)
        if seen and len(seen[-1]) == size:
            assert line.endswith(": exact"), line
        seen += batches
    assert [len(batch) for batch in seen] == [4, 4, 3, 3, 3, 8, 8, 7]
    assert sorted(flat(seen)) == list(range(COUNT))
    _, expected, _ = run(loader(4), tmp_path / "whole", "1 epochs")
    assert flat(seen) == flat(expected)


def test_until_a_batch_of_the_new_size_is_fetched_the_position_stays(tmp_path: Path) -> None:
    """A resume that stops at once has changed nothing: the former size is as good as the new one."""
    run(Loader(range(COUNT), 4, shuffle=True), tmp_path, "3 batches")
    trainer, seen, line = run(Loader(range(COUNT), 8, shuffle=True), tmp_path, "3 batches")
    assert not seen and "cut into batches of 8" in line
    assert trainer.progress["next_batch"]["epoch_length"] == 10
    _, _, line = run(Loader(range(COUNT), 4, shuffle=True), tmp_path, "4 batches")
    assert "cut into" not in line


@pytest.mark.full
def test_workers_may_end_before_a_batch_of_the_new_size_is_fetched(tmp_path: Path) -> None:
    run(Loader(range(COUNT), 4, shuffle=True), tmp_path, "3 batches")
    trainer, seen, _ = run(Loader(range(COUNT), 8, shuffle=True, num_workers=1), tmp_path, "3 batches")
    trainer.run(until="1 epochs")
    _, expected, _ = run(Loader(range(COUNT), 4, shuffle=True), tmp_path / "whole", "1 epochs")
    assert flat(seen) == flat(expected)[12:]


def test_drop_last_drops_what_is_left_of_the_rest(tmp_path: Path) -> None:
    run(Loader(range(COUNT), 4, drop_last=True), tmp_path, "1 batches")
    trainer, seen, _ = run(Loader(range(COUNT), 16, drop_last=True), tmp_path, "1 epochs")
    assert seen == [list(range(4, 20)), list(range(20, 36))]
    assert trainer.progress["next_batch"]["epoch_length"] == 3


@pytest.mark.parametrize(("other", "lost", "following"), [(8, 4, 16), (6, 0, 12), (2, 0, 12)])
def test_of_a_data_loader_whole_batches_are_skipped_and_what_is_lost_is_named(
    other: int, lost: int, following: int, tmp_path: Path
) -> None:
    run(DataLoader(range(COUNT), 4), tmp_path, "3 batches")
    trainer, seen, line = run(DataLoader(range(COUNT), other), tmp_path, "1 epochs")
    assert flat(seen) == list(range(following, COUNT))
    assert "not exact: train_data: the epoch continues with batches of " in line
    assert ("; 4 samples of it are not seen" in line) == bool(lost)
    assert "a graphtrain.Loader cuts what remains" in line and f"batch size {other}, was 4" in line
    assert trainer.progress["next_batch"]["epochs"] == 1


def test_a_data_loader_cut_again_after_another_size(tmp_path: Path) -> None:
    run(DataLoader(range(COUNT), 4, shuffle=True), tmp_path, "3 batches")
    _, second, _ = run(DataLoader(range(COUNT), 8, shuffle=True), tmp_path, "4 batches")
    _, third, line = run(DataLoader(range(COUNT), 8, shuffle=True), tmp_path, "1 epochs")
    assert line.endswith(": exact")
    assert len(set(flat(second + third))) == len(flat(second + third)) == 24


def test_between_two_epochs_nothing_is_cut(tmp_path: Path) -> None:
    run(Loader(range(COUNT), 4), tmp_path, "1 epochs")
    _, seen, line = run(Loader(range(COUNT), 8), tmp_path, None)
    assert flat(seen) == list(range(COUNT))
    assert "train_data: batch size 8, was 4" in line and "cut into" not in line


@pytest.mark.full
@pytest.mark.parametrize("count", [0, 2])
def test_another_number_of_workers_is_named_aside(count: int, tmp_path: Path) -> None:
    run(Loader(range(COUNT), 4), tmp_path, "3 batches")
    _, _, line = run(Loader(range(COUNT), 4, num_workers=count), tmp_path, "4 batches")
    assert line.endswith(": exact")
    assert ("; train_data: workers 2, was 0, which changes no batch; " in line) == bool(count)


def test_of_a_checkpoint_without_a_batch_size_batches_are_counted(tmp_path: Path) -> None:
    loader = Loader(range(COUNT), 8)
    assert next(iter(loader.batches(0, start=2))).tolist() == list(range(16, 24))
    assert next(iter(loader.batches(0, start=2, sample=12))).tolist() == list(range(12, 20))
