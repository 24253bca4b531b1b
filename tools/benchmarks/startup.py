"""How long the command and a first batch take, from the start of a process to its end.

    python tools/benchmarks/startup.py --rounds 5

Every case is a new process of this Python, or of the command `graphtrain` in the same environment. The cases are
interleaved, and one round that is not counted brings their files into the page cache. The ratios are to processes that
import networkx and torch; `python -c ""` shows the cost of any process.

The first batch is measured with a model of one layer and ten batches in a list: until the first call of
`training_step`, and until the end of a run of one batch. "By hand" is the same with torch only, which imports more of
its modules at its first backward pass and step.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measure import Target, arguments, comparison, rounds, show

COMMAND = str(Path(sys.executable).with_name("graphtrain"))
NETWORKX, TORCH = 'python -c "import networkx"', 'python -c "import torch"'
HELP, RENDER, CHECK = "graphtrain --help", "graphtrain render fit", "graphtrain check fit"

PARTS = """
import os, sys, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_data = [torch.ones(4, 8)] * 10

def training_step(model, batch):
    if "first" in sys.argv:
        os._exit(0)
    return model(batch).square().mean()
"""

BY_HAND = f"""{PARTS}
training_step(model, train_data[0]).backward()
optimizer.step()
"""

TRAINED = f"""{PARTS}
from graphtrain import Graph, Trainer

Trainer(
    Graph.load("fit").set("finish", after="1 batches"),
    model=model, optimizer=optimizer, train_data=train_data, training_step=training_step,
).run()
"""


def process(*words: str, folder: str) -> Callable[[], float]:
    """A case: seconds of a new process."""

    def case() -> float:
        begun = time.perf_counter()
        # Not captured: what reads the answer would take part in the time.
        subprocess.run(  # noqa: S603 - the words are those below
            words, check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return time.perf_counter() - begun

    return case


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__, rounds=7)
    python = sys.executable
    with tempfile.TemporaryDirectory(prefix="graphtrain-") as folder:
        Path(folder, "by_hand.py").write_text(BY_HAND)
        Path(folder, "trained.py").write_text(TRAINED)
        commands = {
            'python -c ""': (python, "-c", ""),
            NETWORKX: (python, "-c", "import networkx"),
            TORCH: (python, "-c", "import torch"),
            'python -c "import graphtrain"': (python, "-c", "import graphtrain"),
            HELP: (COMMAND, "--help"),
            "graphtrain run --help": (COMMAND, "run", "--help"),
            RENDER: (COMMAND, "render", "fit", "-o", "fit.svg"),
            "graphtrain show fit": (COMMAND, "show", "fit"),
            CHECK: (COMMAND, "check", "fit"),
            "by hand: to the first batch": (python, "by_hand.py", "first"),
            "by hand: one batch": (python, "by_hand.py"),
            "graphtrain: to the first batch": (python, "trained.py", "first"),
            "graphtrain: a run of one batch": (python, "trained.py"),
        }
        times = rounds({name: process(*words, folder=folder) for name, words in commands.items()}, options.rounds)
    rows = [
        {
            "case": row["case"],
            "median ms": 1000 * row["median"],
            "least": 1000 * row["least"],
            "most": 1000 * row["most"],
            "of import networkx": row["ratio"],
            "of import torch": other["ratio"],
        }
        for row, other in zip(comparison(times, against=NETWORKX), comparison(times, against=TORCH), strict=True)
    ]
    ratios = {row["case"]: row["of import networkx"] for row in rows}
    bounds = {HELP: 2.5, RENDER: 2.5, CHECK: 3.0}
    targets = [Target(f"{name}, over import networkx", ratios[name], bound) for name, bound in bounds.items()]
    show("the wall time of a process", rows, options.json, targets)


if __name__ == "__main__":
    main()
