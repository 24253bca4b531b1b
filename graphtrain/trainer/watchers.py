"""Watchers of a run: its snapshots, the counts of its nodes, and the metrics that nodes wait for."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import final

import torch

from graphtrain.errors import UnknownMetricError
from graphtrain.kind.trigger import Term, Trigger
from graphtrain.names import suggestion
from graphtrain.program.bind import ProgramNode
from graphtrain.program.stopwatch import NodeTimes
from graphtrain.program.table import Compiler
from graphtrain.report.snapshot import Snapshot
from graphtrain.resume.session import Session
from graphtrain.storage.run_files import RunFiles

_COUNT_SECONDS = 10.0  # between lines where no row of metrics is recorded
_SAMPLE_SECONDS = 0.5
_SAMPLES = 20  # over which rates are averaged; fewer jitter, more hide a change
_LEAST_SECONDS = 0.02  # a rate over less time would be noise


@final
class Observer:
    """Makes the snapshots of a run that displays, `status.json` and `Trainer.snapshot` show."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._until = Trigger("never")
        self._samples: deque[tuple[float, dict[str, int]]] = deque(maxlen=_SAMPLES)
        self._started = 0.0
        self._shares_at_start: dict[Term, float] = {}

    def begin(self, until: Trigger | None) -> None:
        """The run starts or continues in this process, until an amount is reached."""
        self._until = until or Trigger("never")
        self._samples.clear()
        self._rates(self._session.watch.seconds())
        self._started = self._session.watch.running()
        self._shares_at_start = self._session.compiled.run_clock.shares(self._until)

    def snapshot(self, state: str, position: str) -> Snapshot:
        """The run as it is now. `state`: of its life cycle; `position`: the path of the node that runs next."""
        session, run_clock = self._session, self._session.compiled.run_clock
        seconds, elapsed, shares = session.watch.seconds(), session.watch.running(), run_clock.shares(self._until)
        steps, epochs, batch = map(run_clock.count, ("steps", "epochs", "epoch_batches"))
        # Until the first end, at the average pace since the run was started or continued.
        trained, before = elapsed - self._started, self._shares_at_start
        moved = [(share, share - before[term]) for term, share in shares.items() if share > before.get(term, share)]
        left = [trained * (1 - share) / gain for share, gain in moved]
        name, fetched, batches = run_clock.evaluation(session.loop.position) or (None, None, None)
        return Snapshot(
            state=state,
            graph=session.compiled.graph.title,
            position=position,
            step=int(steps) if steps is not None else None,
            epoch=float(epochs) if epochs is not None else None,
            clocks=run_clock.outer_counts(),
            end=tuple(map(str, run_clock.shown_ends)),
            done=max([shares[term] for term in run_clock.ends if term in shares], default=None),
            until=tuple(map(str, self._until.terms)),
            until_done=max([shares[term] for term in self._until.terms if term in shares], default=None),
            batch=int(batch) if batch is not None else None,
            epoch_batches=run_clock.epoch_length(),
            evaluation=name,
            evaluation_batch=fetched,
            evaluation_batches=batches,
            window=run_clock.window(),
            metrics=dict(session.recorder.latest),
            metric_steps={name: session.recorder.steps[name] for name in session.recorder.latest},
            rates=self._rates(seconds),
            elapsed_seconds=elapsed,
            seconds_left=min(left, default=None) if trained >= _SAMPLE_SECONDS else None,
            memory_bytes=_memory_bytes(session.device),
            device=str(session.device),
            seconds=seconds,
        )

    def _rates(self, seconds: dict[str, float]) -> dict[str, float]:
        """Batches, samples and other counts per second of training and fetching data, without evaluation and saving."""
        spent = seconds.get("train", 0.0) + seconds.get("data", 0.0)
        samples, counts = self._samples, self._session.compiled.run_clock.counts()
        before = samples[-1][1] if samples else counts
        if counts.keys() != before.keys() or [unit for unit in before if counts[unit] < before[unit]]:
            samples.clear()  # another graph trains, or the same one from the start
        if not samples or spent - samples[-1][0] >= _SAMPLE_SECONDS:
            samples.append((spent, counts))
        since, before = samples[0]
        span = spent - since
        return {unit: (count - before[unit]) / span for unit, count in counts.items()} if span >= _LEAST_SECONDS else {}


def _memory_bytes(device: torch.device) -> int | None:
    """Bytes allocated by torch on a CUDA device, or resident in this process on a host; None if not known."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None  # not Linux


@final
class NodesFile:
    """Writes to `nodes.jsonl` how often nodes and edges ran, and how long, since the line before.

    A header line, at each start and for each graph, lists what is counted.
    """

    def __init__(self, session: Session, files: RunFiles | None, node_times: NodeTimes) -> None:
        self._session, self._node_times = session, node_times
        self._file = files.nodes if files is not None and files.writes else None
        if files is not None:
            files.count = self.write
        self.compiler: Compiler | None = None  # whose transitions are counted; none until `begin`
        self._nodes: Mapping[str, list[int]] = {}  # path -> the counters that add up to its runs
        self._counts: list[int] = []  # at the last line
        self._untimed: dict[str, int] = {}  # path -> runs whose times are not written

    def begin(self, event: str) -> None:
        """Write a header with the event, such as "resumed", and count the present graph from here on."""
        self.write()
        if self._file is None:
            return
        self.compiler = compiler = self._session.compiled.compiler
        layout, self._counts = compiler.sums(), compiler.counts.copy()
        self._nodes = layout["nodes"]
        self._untimed = dict.fromkeys(self._nodes, 0)
        self._file.append({"event": event, **self._place(), **layout})

    def write(self) -> float:
        """Write the counts since the line before; returns the seconds until this is to be called again."""
        counts = self.compiler.counts.copy() if self.compiler is not None else self._counts
        more = [now - before for now, before in zip(counts, self._counts, strict=True)]
        self._counts = counts
        changes = [number for counter, added in enumerate(more) if added for number in (counter, added)]
        if changes and self._file is not None:
            means, milliseconds = self._node_times.means(), list[float]()
            for number, (path, counters) in enumerate(self._nodes.items()):
                self._untimed[path] += sum([more[counter] for counter in counters])
                if self._untimed[path] and path in means:
                    milliseconds += (number, round(1000 * means[path] * self._untimed[path], 3))
                    self._untimed[path] = 0
            self._file.append({**self._place(), "counts": changes, "milliseconds": milliseconds})
        return _COUNT_SECONDS

    def _place(self) -> dict[str, float]:
        return {"time": round(time.time(), 3), "rows": len(self._session.recorder.rows)}


@final
class Monitors:
    """Passes rows of metrics to nodes with `on_metrics`, and checks that the metrics they name are recorded."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._evaluated: list[str] = []  # metrics, since an evaluation ended
        self._runs_before: dict[str, int] = {}  # path -> runs whose rows may be in another run directory

    def begin(self) -> None:
        """The run begins, is resumed, or continues in another graph or at an earlier moment."""
        self._evaluated = []
        self._runs_before = {node.path: node.fields["runs"] for node in self._session.compiled.program.nodes}

    def row(self, row: Mapping[str, float]) -> None:
        """A row of metrics is recorded."""
        session = self._session
        session.compiled.on_metrics(row, session.loop.position)
        if session.compiled.activity(session.loop.position) is not None:
            self._evaluated += session.recorder.metrics_in(row)
        session.requests.add("recorded")

    def expect(self) -> None:
        """Raise an `UnknownMetricError` for a metric that a node around the position names and no row has.

        It is raised once an evaluation has recorded others of its group (``"val/"``), or every node that may record it
        has run.
        """
        session, program, recorder = self._session, self._session.compiled.program, self._session.recorder
        groups = {name.rpartition("/")[0] for name in self._evaluated} - {""}
        self._evaluated = []
        around = program.nodes[session.loop.position].scope.around
        for node in program.nodes:
            parameter = node.kind.monitor
            name = node.parameters[parameter] if parameter and not node.bypassed and node.scope in around else None
            if name is None or name in recorder.latest:
                continue
            group = name.rpartition("/")[0]
            if group in groups or not any(map(self._may_record, program.nodes_in(node.scope))):
                hint = suggestion(name, recorded := recorder.metrics_in(recorder.latest))
                if group and not any(metric.startswith(f"{group}/") for metric in recorded):
                    hint = f"an evaluation records `{group}/...`: supply its data, such as `{group}_data`"
                raise UnknownMetricError(f"no row of metrics has `{name}`, which {node.path}.{parameter} names", hint)

    def _may_record(self, node: ProgramNode) -> bool:
        """True for a node that may still record a row: it has not run, and it does not end the graph."""
        records = node.kind.may_record_rows and not node.plan_node.is_never_due and node.kind.trigger != "after"
        has_run = node.fields["runs"] > self._runs_before.get(node.path, 0)
        return not node.bypassed and (node.body is not None or records) and not has_run
