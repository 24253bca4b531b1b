"""Shared by all benchmarks: interleaved rounds, medians and ratios, a table, JSON.

A benchmark is a script that compares named cases and prints a table::

    options = arguments(__doc__, rounds=5)                 # --rounds N, --json FILE
    figures = rounds({"by hand": by_hand, "graphtrain": ours}, options.rounds)
    rows = comparison(figures, against="by hand")
    aims = [Target("graphtrain over by hand, us a batch", rows[1]["difference"], at_most=3.0)]
    show("microseconds a batch", rows, options.json, aims)

A case is a function that does its work once and returns its figure (seconds, batches per second, bytes). The cases are
interleaved, so that other load on the machine affects all of them; compare the ratios.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy
import torch
from rich.console import Console
from rich.table import Table

from graphtrain.version import __version__

Case = Callable[[], float]


@dataclass(frozen=True)
class Target:
    """A figure beside what it should be.

    Arguments:
        figure: what was measured.
        at_most: the target, in the same unit.
        noise: by how much the figure moves between rounds where nothing differs. Default: none is allowed for.
    """

    what: str
    figure: float
    at_most: float
    noise: float = 0.0

    @property
    def holds(self) -> bool:
        """True if the figure is at most the target and the noise."""
        return self.figure <= self.at_most + self.noise


def arguments(
    description: str | None, rounds: int | None = None, further: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> argparse.Namespace:
    """The options every benchmark has, `--json` and `--rounds`, and those of one.

    Arguments:
        rounds: how many by default. Default: it has no rounds.
        further: option -> keywords of `add_argument`. Default: none.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, keywords in further.items():
        parser.add_argument(option, **keywords)
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help=f"measurements of each case (default: {rounds})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    return parser.parse_args()


def seconds(work: Callable[[], Any]) -> float:
    """How long a call takes, without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun
    finally:
        gc.enable()


def torch_save(state: Any, path: Path) -> None:
    """Write a state by `torch.save`, as safely as a checkpoint is written: it is on the disk, and then has its name."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def rounds(cases: Mapping[str, Case], count: int, warm_up: int = 1) -> dict[str, list[float]]:
    """The figures of each case over interleaved rounds; every other round runs the cases in reverse order.

    Arguments:
        warm_up: rounds that are not counted, before the others. Default: 1.
    """
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(-warm_up, count):
        for name in list(cases)[:: 1 if number % 2 else -1]:
            figure = cases[name]()
            if number >= 0:
                figures[name].append(figure)
    return figures


def comparison(figures: Mapping[str, Sequence[float]], against: str) -> list[dict[str, Any]]:
    """A row for each case: median, spread, and medians over the rounds of ratio and difference to the case `against`.

    Ratio and difference are computed within each round, where the state of the machine is about the same for both.
    """
    baseline = figures[against]
    return [
        {
            "case": name,
            "median": statistics.median(measured),
            "least": min(measured),
            "most": max(measured),
            "ratio": statistics.median(figure / base for figure, base in zip(measured, baseline, strict=True)),
            "difference": statistics.median(figure - base for figure, base in zip(measured, baseline, strict=True)),
            "against": against,
        }
        for name, measured in figures.items()
    ]


def spread(figures: Mapping[str, Sequence[float]], case: str, against: str) -> float:
    """The noise of a ratio to the case `against`: half the interquartile range of its rounds."""
    ratios = [figure / base for figure, base in zip(figures[case], figures[against], strict=True)]
    lower, _, upper = statistics.quantiles(
        ratios * 2, n=4, method="inclusive"
    )  # doubled, so that a single round works too
    return (upper - lower) / 2


def machine() -> dict[str, Any]:
    """The machine and the versions that the figures belong to."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "graphtrain": __version__,
    }


def show(
    title: str, rows: Iterable[Mapping[str, Any]], file: Path | None = None, targets: Iterable[Target] = ()
) -> None:
    """Print the machine, one table and the targets, and write all of it to `file` as JSON.

    Arguments:
        rows: mappings with the same keys, which head the columns; numbers are printed with three digits.
        file: Default: none.
        targets: Default: none, the figures are for comparison only.
    """
    rows = [dict(row) for row in rows]
    aims = [{**asdict(target), "holds": "yes" if target.holds else "NO"} for target in targets]
    about = machine()
    console = Console() if sys.stdout.isatty() else Console(width=140)  # a pipe has no width
    console.print(", ".join(f"{name} {value}" for name, value in about.items()), style="dim", highlight=False)
    console.print(_table(title, rows))
    if aims:
        console.print(_table("targets", aims))
    if file is not None:
        text = json.dumps({"title": title, "machine": about, "rows": rows, "targets": aims}, indent=2)
        file.write_text(text + "\n")


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    for column, value in rows[0].items():
        table.add_column(column, justify="right" if isinstance(value, int | float) else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    return table


def _text(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
