"""What follows a run: the counts of its nodes, and the nodes that wait for a metric."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import final

from graphtrain.errors import UnknownMetricError
from graphtrain.names import suggestion
from graphtrain.program.bind import ProgramNode
from graphtrain.program.stopwatch import NodeTimes
from graphtrain.program.table import Compiler
from graphtrain.resume.session import Session
from graphtrain.storage.run_files import RunFiles

_COUNT_SECONDS = 10.0  # between lines where no row of metrics is recorded


@final
class NodesFile:
    """Writes how often nodes and edges ran, and what they took, to `nodes.jsonl`: a line for each row of metrics.

    A line has what has changed since the one before. A header says what is counted, once for each graph and each start
    of the run.
    """

    def __init__(self, session: Session, files: RunFiles, node_times: NodeTimes) -> None:
        self._session, self._file, self._node_times = session, files.nodes, node_times
        self._compiler: Compiler | None = None  # whose transitions are counted
        self._nodes: Mapping[str, list[int]] = {}  # path -> the counters that add up to its runs
        self._counts: list[int] = []  # at the last line
        self._untimed: dict[str, int] = {}  # path -> runs whose times are not written
        files.count = self.write

    def begin(self, event: str) -> None:
        """Write a header, and count the present graph from here on.

        Arguments:
            event: "begun", "resumed" or "rewired".
        """
        self.write()
        self._compiler = compiler = self._session.compiled.compiler
        layout, self._counts = compiler.sums(), compiler.counts.copy()
        self._nodes = layout["nodes"]
        self._untimed = dict.fromkeys(self._nodes, 0)
        self._file.append({"event": event, **self._place(), **layout})

    def drop(self) -> None:
        """Drop what is not written: the file is truncated. Nothing is counted until `begin`."""
        self._compiler = None

    def write(self) -> float:
        """Write what has changed since the line before; returns the seconds until this is to be called again."""
        counts = self._compiler.counts.copy() if self._compiler is not None else self._counts
        more = [now - before for now, before in zip(counts, self._counts, strict=True)]
        self._counts = counts
        if changes := [number for counter, added in enumerate(more) if added for number in (counter, added)]:
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
    """Passes rows to the nodes that wait for them, and checks that the metrics that nodes name are recorded.

    A kind marks the parameter that names a metric with `Metric`.
    """

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
        """Check the row recorded last, outside evaluations, for the metrics that nodes name.

        Nodes in bodies other than the running one do not receive its rows.

        Raises:
            UnknownMetricError: an evaluation that has just ended records others of the same group (``"val/"``) and
                not this one; or every node that may record it has run.
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
            if name.rpartition("/")[0] in groups or not any(map(self._may_record, program.nodes_in(node.scope))):
                what = f"no row of metrics has `{name}`, which {node.path}.{parameter} names"
                raise UnknownMetricError(what, suggestion(name, recorder.metrics_in(recorder.latest)))

    def _may_record(self, node: ProgramNode) -> bool:
        """True for a node that records rows and has not run; no row is needed after one that ends the graph."""
        records = node.kind.may_record_rows and not node.plan_node.is_never_due and node.kind.trigger != "after"
        has_run = node.fields["runs"] > self._runs_before.get(node.path, 0)
        return not node.bypassed and (node.body is not None or records) and not has_run
