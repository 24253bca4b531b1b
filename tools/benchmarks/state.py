"""What looking for state costs: when a run begins, and at every save; a batch costs nothing more.

    python tools/benchmarks/state.py

A transformer of 335 modules with AdamW and a schedule, as it is, and beside it a data set of a million objects, a list
of 100,000 tensors in the step function, and 300 objects with counters that change. "Begin" lists everything that is
reachable; "save" compares it with what was listed, and describes what has changed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch
from measure import Target, arguments, comparison, rounds, seconds, show
from torch import nn
from torch.utils.data import DataLoader, Dataset

from graphtrain.state.changes import changes_since
from graphtrain.state.snapshot import StateSnapshot

MODULES = 335
BEGIN, SAVE = 10.0, 2.0  # milliseconds, the targets
OBJECTS = 1_000_000
TENSORS = 100_000
COUNTERS = 300


class Sample:
    """One of a million."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Samples(Dataset[Sample]):
    """A data set in memory, with a generator of its own."""

    def __init__(self, count: int) -> None:
        self.samples = [Sample(str(number)) for number in range(count)]
        self.generator = random.Random(0)  # noqa: S311 - no secret

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index]


class Counter:
    """An object that changes from batch to batch."""

    def __init__(self) -> None:
        self.calls = 0
        self.last = [0.0]


def transformer() -> nn.Module:
    """335 modules."""
    layer = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
    model = nn.Sequential(nn.Embedding(10, 16), nn.TransformerEncoder(layer, 33), nn.Linear(16, 10))
    assert len(list(model.modules())) == MODULES, len(list(model.modules()))
    return model


def resources(**further: Any) -> dict[str, Any]:
    """Those of a run."""
    model = transformer()
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    return {"model": model, "optimizer": optimizer, "scheduler": schedule, **further}


def step_function(**held: Any) -> Callable[[Any, Any], Any]:
    """One that holds something."""

    def step(model: Any, batch: Any) -> Any:
        return model(batch).sum() * len(held)

    return step


def begin(roots: Mapping[str, Any]) -> Callable[[], float]:
    """A case: milliseconds until everything is listed."""
    return lambda: 1000 * seconds(lambda: StateSnapshot(roots, roots.keys() & {"train_data"}))


def save(roots: Mapping[str, Any], change: Callable[[], None] = lambda: None) -> Callable[[], float]:
    """A case: milliseconds until it is known what has changed."""
    snapshot = StateSnapshot(roots, roots.keys() & {"train_data"})
    states = {path: value.state_dict() for path, value in snapshot.stateful.items()}  # which a save has taken before

    def case() -> float:
        change()
        return 1000 * seconds(lambda: changes_since(snapshot, states=states))

    return case


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, rounds=15)
    counters = [Counter() for _ in range(COUNTERS)]

    def count() -> None:
        for counter in counters:
            counter.calls += 1
            counter.last = [float(counter.calls)]

    plain = resources(train_data=[torch.zeros(1)])
    data = resources(train_data=DataLoader(Samples(OBJECTS)))
    tensors = resources(training_step=step_function(bank=[torch.zeros(1) for _ in range(TENSORS)]))
    changing = resources(training_step=step_function(counters=counters))
    set_ups = {
        f"{MODULES} modules": (plain, lambda: None),
        f"beside {OBJECTS:,} objects of data": (data, lambda: None),
        f"beside {TENSORS:,} tensors in a list": (tensors, lambda: None),
        f"beside {COUNTERS} objects that change": (changing, count),
    }
    figures: dict[str, list[float]] = {}
    for name, (roots, change) in set_ups.items():
        cases = {f"begin, {name}": begin(roots), f"save, {name}": save(roots, change)}
        figures |= rounds(cases, options.rounds)
    against = next(iter(figures))
    targets = [
        Target(f"milliseconds: {name}", min(times), at_most=BEGIN if name.startswith("begin") else SAVE)
        for name, times in figures.items()
    ]
    show("milliseconds to look for state", comparison(figures, against=against), options.json, targets)


if __name__ == "__main__":
    main()
