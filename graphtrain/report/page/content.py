"""What a page shows of runs, as plain data: small, however long the runs are."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy

from graphtrain.errors import GraphtrainError
from graphtrain.graph.elements import nodes_of
from graphtrain.plain import json_value
from graphtrain.printable import printable
from graphtrain.report.numbers import duration, rate, share
from graphtrain.report.page.pictures import content_of, difference_of
from graphtrain.report.run import Run
from graphtrain.report.snapshot import Snapshot
from graphtrain.report.values import ROW_POSITION, not_finite_words
from graphtrain.storage.run_directory import ACTIVE

MOST_POINTS = 2000  # of a curve: in each part of it, the first, the last, the smallest and the largest value stay
MOST_TICKS = 400  # of the slider
MOST_COUNTS = 100_000  # of all ticks, of which a graph of 300 nodes has a thousand each

NextSteps = Callable[[Run], Iterable[tuple[str, str]]]


def content_of_runs(paths: Sequence[Path], next_steps: NextSteps) -> dict[str, Any]:
    """What a page shows of one run, or of several beside each other; of two also how their graphs differ.

    Arguments:
        paths: the run directories.
        next_steps: returns the commands to continue a run with, and what each does.

    Raises:
        UsageError: there is no run in a folder, or its files cannot be read.
    """
    runs = [Run(path) for path in paths]
    return {
        "runs": [{**_content_of_run(run), "next": [*next_steps(run)]} for run in runs],
        "difference": difference_of(*runs) if len(runs) == 2 else None,
    }


def _content_of_run(run: Run) -> dict[str, Any]:
    rows = run.metrics
    graph, drawn, why_none = None, None, ""
    bypassed = [*map(str, run.status.get("bypassed") or ())]
    try:
        graph = run.graph
    except GraphtrainError as error:
        why_none = str(error)
    counts_per_moment = 4 * len(nodes_of(graph)) if graph is not None else 0
    moments = run.activity.overview(max(2, min(MOST_TICKS, MOST_COUNTS // (1 + counts_per_moment))))
    if graph is not None:
        last = moments[-1] if moments else {}
        drawn = content_of(graph, last.get("runs", {}), last.get("taken", {}), run.snapshot().position, bypassed)
    nodes, edges = ([*drawn["nodes"]], [*drawn["edges"]]) if drawn is not None else ([], [])
    return {
        "name": printable(run.path.name or str(run.path)),
        "path": printable(str(run.path)),
        "status": {key: printable(str(run.status.get(key) or "")) for key in ("state", "place", "position")},
        "condition": printable(run.condition),
        "why": [*run.why()][run.state in ACTIVE :],
        "progress": _progress(run.snapshot()) if run.state in ACTIVE else None,
        "rows": len(rows),
        "measured": measured(run)
        | {printable(f"{name} {best.get('metric')}"): json_value(best.get("value")) for name, best in run.best.items()},
        "settings": {printable(name): printable(str(value)) for name, value in run.settings.items()},
        "curves": [*_curves(rows, run.snapshot().clocks)],
        "marks": [{"row": mark["rows"], "event": mark["event"], "time": mark["time"]} for mark in run.activity.starts],
        "checkpoints": [
            {key: checkpoint[key] for key in ("name", "step", "rows", "best")} for checkpoint in run.checkpoints
        ],
        "graph": drawn,
        "graph_error": why_none,
        "ticks": _ticks(moments, rows, [name for name in nodes if name not in bypassed], edges),
        "replay": _replay(run),
    }


def measured(run: Run) -> dict[str, Any]:
    """The latest value of each metric; NaN and infinities, which JSON does not have, are texts."""
    return {printable(name): json_value(value) for name, value in run.snapshot().measured.items()}


def _replay(run: Run) -> str:
    """The command that repeats the run up to a moment, which has to follow; empty without a checkpoint."""
    ranks = run.manifest.ranks if run.manifest is not None else 0
    processes = ["--processes", str(ranks)] if ranks > 1 else []
    words = ["graphtrain", "replay", run.script, "--run-dir", str(run.path), *processes, "--to"]
    return printable(shlex.join(words)) if ranks else ""


def _progress(snapshot: Snapshot) -> dict[str, Any]:
    """How much is done, from 0 to 1; pace and time left."""
    done = snapshot.until_done if snapshot.done is None else snapshot.done
    words = [share(done)] if done is not None else []
    words += [rate(pace, printable(unit)) for unit, pace in snapshot.rates.items()]
    words += [f"{duration(snapshot.seconds_left)} left"] if snapshot.seconds_left is not None else []
    return {"done": done, "words": ", ".join(words)}


def _curves(rows: Sequence[Mapping[str, float]], clocks: Mapping[str, Any] | Sequence[str]) -> Iterator[dict[str, Any]]:
    for name in dict.fromkeys(itertools.chain.from_iterable(rows)):
        if name in ROW_POSITION or name in clocks:
            continue
        numbers = [number for number, row in enumerate(rows) if name in row]
        kept = thinned(values := [rows[number][name] for number in numbers])
        places = [rows[numbers[index]] for index in kept]
        # Where it is not finite since, if it is not at its end.
        since = next((len(values) - later for later, value in enumerate(reversed(values)) if math.isfinite(value)), 0)
        not_finite: dict[str, Any] | None = None
        if since < len(values):
            before, row = rows[numbers[since - 1]] if since else {}, rows[numbers[since]]
            words = not_finite_words(before.get("step", 0), row.get("step", 0))
            not_finite = {"words": words, **{place: _short(row.get(place, 0)) for place in ROW_POSITION}}
        yield {
            "name": printable(name),
            "row": [numbers[index] for index in kept],
            "step": [place.get("step", 0) for place in places],
            "epoch": [_short(place.get("epoch", 0)) for place in places],
            "value": [_short(values[index]) for index in kept],
            "not_finite": not_finite,
        }


def thinned(values: Sequence[float], most: int = MOST_POINTS) -> list[int]:
    """The positions of the values that a curve keeps: of each part of it the first, last, smallest and largest one.

    Values that are not finite stay where the first of them is: they are gaps.

    >>> thinned([0.0, 9.0, 1.0, 2.0, -5.0, 3.0, 4.0, 4.0], most=4)
    [0, 1, 4, 7]
    """
    if len(values) <= most:
        return [*range(len(values))]
    array = numpy.asarray(values, dtype=float)
    kept: set[int] = set()
    for part in numpy.array_split(numpy.arange(len(array)), max(1, most // 4)):
        points = array[part]
        finite = numpy.isfinite(points)
        kept |= {int(part[0]), int(part[-1])}
        if not finite.all():
            kept.add(int(part[int(numpy.argmin(finite))]))
        if finite.any():
            kept.add(int(part[int(numpy.argmin(numpy.where(finite, points, numpy.inf)))]))
            kept.add(int(part[int(numpy.argmax(numpy.where(finite, points, -numpy.inf)))]))
    return sorted(kept)


def _short(value: float) -> float | None:
    """A number to six digits; None where it is not finite, which JSON does not have."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _ticks(
    moments: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, float]], nodes: list[str], edges: list[str]
) -> dict[str, Any]:
    """Moments of the run, oldest first: row, step, epoch and time; totals of nodes and edges where they are known."""
    if not moments:
        stride = max(1, math.ceil(len(rows) / MOST_TICKS))
        moments = [{"rows": number + 1} for number in sorted({*range(0, len(rows), stride), len(rows) - 1} - {-1})]
    places = [rows[min(moment["rows"], len(rows)) - 1] if moment["rows"] and rows else {} for moment in moments]
    return {
        "nodes": nodes,
        "edges": edges,
        "row": [moment["rows"] - 1 for moment in moments],
        "step": [place.get("step", 0) for place in places],
        "epoch": [_short(place.get("epoch", 0)) for place in places],
        "time": [round(moment.get("time", 0), 3) for moment in moments],
        "runs": [[moment["runs"].get(name, 0) for name in nodes] for moment in moments if "runs" in moment],
        "taken": [[moment["taken"].get(name, 0) for name in edges] for moment in moments if "taken" in moment],
        "seconds": [
            [round(moment["seconds"].get(name, 0), 3) for name in nodes] for moment in moments if "seconds" in moment
        ],
    }
