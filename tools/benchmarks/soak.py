"""A million batches in one run: do memory and speed stay constant?

    python tools/benchmarks/soak.py
    python tools/benchmarks/soak.py --batches 100000

One run of `fit` with everything that a run usually has: a run directory, metrics every 50 steps, checkpoints, a
validation every epoch, a scheduler, a `Loader` that shuffles. The model is tiny, so that memory leaked by graphtrain is
visible. A logger records the resident memory and the time at every twentieth of the run.

The first stretch allocates memory that the others reuse, so they are compared with the second. Rates are compared in
processor time, which other load on the machine affects less than wall-clock time; both are shown. Neighbouring
stretches do the same work, so the difference of their times is the noise. The memory that each batch leaks is the slope
of a line through the memory of the second half.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from measure import Target, arguments, show
from torch import nn

from graphtrain import Graph, Loader, Trainer

STRETCHES = 20
WIDTH = 4
BATCH_SIZE = 2
EPOCH = 1_000  # batches
LOG_EVERY = 50  # steps


class Stretches:
    """A logger that notes time and memory whenever another part of the run is done.

    Arguments:
        length: optimizer steps in one stretch.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self.marks = [self._mark(0)]

    def __call__(self, metrics: Mapping[str, float], step: int) -> None:
        if step >= len(self.marks) * self._length:
            self.marks.append(self._mark(step))

    def rows(self) -> list[dict[str, Any]]:
        """For each stretch, its speed and the memory at its end."""
        rows = []
        for number, (former, mark) in enumerate(pairwise(self.marks), 1):
            batches = mark["step"] - former["step"]
            spent = mark["seconds"] - former["seconds"]
            rows.append(
                {
                    "stretch": number,
                    "batches": mark["step"],
                    "batches a second": batches / spent,
                    "us a batch": 1e6 * spent / batches,
                    "of the processor": 1e6 * (mark["processor seconds"] - former["processor seconds"]) / batches,
                    "resident MB": round(mark["resident"] / 1e6, 2),
                }
            )
        return rows

    def _mark(self, step: int) -> dict[str, Any]:
        return {
            "step": step,
            "seconds": time.perf_counter(),
            "processor seconds": time.process_time(),
            "resident": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        }


def trained(batches: int, folder: Path) -> Stretches:
    """The stretches of one run."""
    stretches = Stretches(max(batches // STRETCHES, 1))
    model = nn.Linear(WIDTH, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    every = max(batches // (2 * STRETCHES), 1)
    trainer = Trainer(
        Graph.load("fit")
        .set("log", every=f"{LOG_EVERY} steps")
        .set("checkpoint", every=[f"{every} steps", "10 minutes"])
        .set("schedule", every="1 epochs")
        .set("finish", after=f"{batches} steps"),
        run_dir=folder / "run",
        loggers=[stretches],
        display=None,
        notify=lambda line: None,
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0),
        train_data=Loader(Samples(EPOCH * BATCH_SIZE), BATCH_SIZE, shuffle=True),
        val_data=Loader(Samples(5 * BATCH_SIZE), BATCH_SIZE),
        training_step=lambda model, batch: model(batch).sum(),
    )
    trainer.run()
    return stretches


class Samples(torch.utils.data.Dataset[torch.Tensor]):
    """Samples that are drawn together, as a data set of tensors can be."""

    def __init__(self, count: int) -> None:
        self._values = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._values[index]


def slope(rows: list[dict[str, Any]]) -> float:
    """Bytes that each further batch adds to the resident memory, over the second half of the run."""
    later = rows[len(rows) // 2 :]
    return (
        1e6
        * statistics.linear_regression([row["batches"] for row in later], [row["resident MB"] for row in later]).slope
    )


def main() -> None:
    """Measure and print."""
    length = {"type": int, "default": 1_000_000, "help": "length of the run (default: 1,000,000)"}
    options = arguments(__doc__, further={"--batches": length})
    if options.batches < STRETCHES * LOG_EVERY:
        sys.exit(f"a stretch needs at least one row of metrics: --batches {STRETCHES * LOG_EVERY} or more")
    with tempfile.TemporaryDirectory(prefix="graphtrain-") as folder:
        rows = trained(options.batches, Path(folder)).rows()
    second, last = rows[1], rows[-1]
    spent = [row["of the processor"] for row in rows[1:]]
    noise = statistics.median(abs(later / former - 1) for former, later in pairwise(spent))
    early, late = statistics.median(spent[:5]), statistics.median(spent[-5:])
    targets = [
        Target("resident memory, last stretch over second", last["resident MB"] / second["resident MB"], 1.02),
        Target("processor seconds, last five stretches over the five after the first", late / early, 1.05, noise),
    ]
    title = f"{options.batches:,} batches; {slope(rows):.1f} bytes a batch stay in memory"
    show(title, rows, options.json, targets)


if __name__ == "__main__":
    main()
