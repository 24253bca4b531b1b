"""Milliseconds until the first batch of an epoch that is gone on with in the middle.

A `Loader` begins at batch 10 or 1,000,000 alike; a `DataLoader` draws the earlier batches again.
"""

from __future__ import annotations

from typing import Any

from measure import arguments, comparison, rounds, seconds, show
from torch.utils.data import DataLoader

from graphtrain import Loader
from graphtrain.data.source import source_of

BATCH_SIZE = 2
BATCHES = 1_000_100


def resumed(data: Any, drawn: int) -> float:
    source = source_of(data, seed=1, saving=True, say=lambda line: None)
    state = source.open(0).state
    return 1000 * seconds(lambda: next(source.reopen(0, drawn, state)))


def main() -> None:
    options = arguments(__doc__, rounds=15)
    samples = range(BATCH_SIZE * BATCHES)
    rows = []
    for order, shuffle in (("in order", False), ("shuffled", True)):
        loader = Loader(samples, BATCH_SIZE, shuffle)
        cases = {
            f"Loader at batch {drawn:,}": lambda loader=loader, drawn=drawn: resumed(loader, drawn)
            for drawn in (10, 1_000_000)
        }
        found = rounds(cases, options.rounds)
        rows += [{"order": order, **row} for row in comparison(found, against="Loader at batch 10")]
    few = range(BATCH_SIZE * 10_100)
    cases = {
        f"DataLoader at batch {drawn:,}": lambda drawn=drawn: resumed(DataLoader(few, BATCH_SIZE, True), drawn)
        for drawn in (10, 100, 1_000, 10_000)
    }
    found = rounds(cases, max(options.rounds // 3, 1))
    rows += [{"order": "shuffled", **row} for row in comparison(found, against="DataLoader at batch 10")]
    show("milliseconds until the first batch after a resume", rows, options.json)


if __name__ == "__main__":
    main()
