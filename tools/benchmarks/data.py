"""Batches per second of `graphtrain.Loader` against torch's `DataLoader` over the same data, with the same keywords.

    python tools/benchmarks/data.py --rounds 21

The target: with workers, `Loader` has at least 0.98 of `DataLoader`'s throughput, since it seeds every batch. The noise
of a ratio is half the interquartile range of its rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import Target, arguments, comparison, rounds, show, spread
from torch.utils.data import DataLoader, Dataset

from graphtrain import Loader

BATCH_SIZE = 32


class Samples(Dataset[Any]):
    """Samples of so many bytes, turned around at random as small images are."""

    def __init__(self, count: int, size: int) -> None:
        self._samples = torch.randint(0, 255, (min(count, 256), size), dtype=torch.uint8)
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        sample = self._samples[index % len(self._samples)]
        return sample.flip(0) if torch.rand(()) < 0.5 else sample.clone()


def batches_per_second(loader: Any) -> float:
    """After the first batch of an epoch, so that starting the workers does not count."""
    iterator = iter(loader)
    next(iterator)
    begun = time.perf_counter()
    count = sum(1 for _ in iterator)
    return count / (time.perf_counter() - begun)


def kept(name: str, throughputs: dict[str, list[float]]) -> Target:
    """How much longer `Loader` takes for a batch, beside how much longer it may."""
    ratios = [theirs / ours for ours, theirs in zip(throughputs["Loader"], throughputs["DataLoader"], strict=True)]
    noise = spread(throughputs, "Loader", against="DataLoader")
    return Target(f"seconds a batch over DataLoader's, {name}", statistics.median(ratios), 1 / 0.98, noise)


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, rounds=21)
    rows, targets = [], []
    for size, count in (("1 KB", 16_000), ("150 KB", 2_000)):
        data = Samples(count, 1024 * int(size.split()[0]))
        for workers in (0, 2):

            def made(kind: Any, data: Any = data, workers: int = workers) -> Callable[[], float]:
                loader = kind(data, BATCH_SIZE, shuffle=True, num_workers=workers)
                return lambda: batches_per_second(loader)

            throughputs = rounds({"DataLoader": made(DataLoader), "Loader": made(Loader)}, options.rounds)
            rows += [
                {"samples": size, "workers": workers, **row} for row in comparison(throughputs, against="DataLoader")
            ]
            if workers:
                targets.append(kept(f"{workers} workers, {size}", throughputs))
    show("batches per second, 32 samples each", rows, options.json, targets)


if __name__ == "__main__":
    main()
