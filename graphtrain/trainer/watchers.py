"""Watchers of a run: the display, the status file, loggers, and the nodes that wait for a metric."""

from __future__ import annotations

import math
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, final

from graphtrain.errors import CheckpointError, UnknownMetricError
from graphtrain.graph.elements import nodes_of
from graphtrain.names import suggestion
from graphtrain.plain import brief
from graphtrain.printable import Notices
from graphtrain.program.bind import ProgramNode
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.report.logger import Beginning
from graphtrain.report.snapshot import Display, Snapshot
from graphtrain.report.values import not_finite_since
from graphtrain.resume.session import Session
from graphtrain.storage.run_directory import STATUS_SECONDS
from graphtrain.storage.run_files import RunFiles

if TYPE_CHECKING:
    from graphtrain.trainer.live_run import LiveRun

# A watcher rests at least this many times as long as its last tick took.
_LEAST_REST = 10
# Rows that follow fast are written together, at most this often: 20 us a row, which are 160 us for each by itself.
_LEAST_SECONDS = 1.0
_IN_TIME = " (--dry-run, in Python graph.dry_run(), finds this in one batch)"


class Watcher:
    """Called in the main thread, between two transitions. Each method does nothing by default.

    Attributes:
        interval_seconds: the least time between two calls of `tick`. Default: it is never called.
    """

    interval_seconds = math.inf

    def announce(self, beginning: Beginning) -> None:
        """The run begins or is resumed, or continues in another graph."""

    def begin(self, *, is_shown: bool) -> None:
        """The run starts or continues in this process, on the display or not."""

    def row(self, row: Mapping[str, float], step: int) -> None:
        """A row of metrics is recorded."""

    def tick(self) -> None:
        """Time has passed."""

    def end(self, state: str, error: BaseException | None) -> None:
        """The run has stopped, in a state of `LifeCycle`, by an exception or without one."""


@final
class Watchers:
    """The watchers of one run. Timed transitions call `tick` once `Stopwatch.next_tick` is reached.

    Attributes:
        each: the watchers, in the order in which they are called.
    """

    def __init__(self, watch: Stopwatch, watchers: Iterable[Watcher]) -> None:
        self._watch = watch
        self.each = list(watchers)
        self._next = dict.fromkeys(self.each, math.inf)

    def begin(self, *, is_shown: bool) -> None:
        """The run starts or continues in this process, on the display or not."""
        now = self._watch.now()
        for watcher in self.each:
            watcher.begin(is_shown=is_shown)
            self._next[watcher] = now if watcher.interval_seconds < math.inf else math.inf
        self._watch.next_tick = min(self._next.values(), default=math.inf)

    def row(self, row: Mapping[str, float], step: int) -> None:
        """A row of metrics is recorded."""
        if self._watch.now() >= self._watch.next_tick:  # of a graph whose transitions are not timed
            self.tick()
        for watcher in self.each:
            watcher.row(row, step)

    def tick(self) -> None:
        """Call the watchers that are due."""
        now = self._watch.now()
        for watcher, due in self._next.items():
            if now >= due:
                start = self._watch.now()
                watcher.tick()
                end = self._watch.now()
                # A terminal over a slow connection must not take the time of training.
                self._next[watcher] = end + max(watcher.interval_seconds, _LEAST_REST * (end - start))
        self._watch.next_tick = min(self._next.values(), default=math.inf)

    def end(self, state: str, error: BaseException | None) -> None:
        """The run has stopped."""
        self._watch.next_tick = math.inf
        for watcher in self.each:
            watcher.end(state, error)


@final
class OnDisplay(Watcher):
    """Shows the run on a display. A display that fails, or a terminal that is gone, does not end the run.

    Arguments:
        snapshot: returns the run as it is now.
    """

    def __init__(self, display: Display | None, snapshot: Callable[[], Snapshot], notices: Notices) -> None:
        self._display, self._snapshot, self._notices = display, snapshot, notices
        self._is_shown = False

    def begin(self, *, is_shown: bool) -> None:
        self._is_shown = is_shown and self._display is not None
        self._draw("begin")

    def tick(self) -> None:
        self._draw("show")

    def end(self, state: str, error: BaseException | None) -> None:
        self._draw("end")
        self._is_shown, self.interval_seconds = False, math.inf

    def _draw(self, call: Literal["begin", "show", "end"]) -> None:
        if not self._is_shown or self._display is None:
            self.interval_seconds = math.inf
            return
        try:
            self.interval_seconds = self._display.interval_seconds
            getattr(self._display, call)(self._snapshot())
        except Exception as error:
            self._display, self.interval_seconds = None, math.inf
            if not isinstance(error, OSError):
                self._notices.once(f"the display is off: it raised {type(error).__name__}: {error}")


@final
class StatusFile(Watcher):
    """Writes the status of a run for other processes."""

    interval_seconds = STATUS_SECONDS

    def __init__(self, run: LiveRun) -> None:
        self._run = run

    def tick(self) -> None:
        self.write()

    def write(self, state: str | None = None) -> None:
        """Write it now.

        Arguments:
            state: the state to write. Default: that of the life cycle.
        """
        run, session = self._run, self._run.session
        if run.files is None:
            return
        snapshot = run.snapshot()
        status = {
            **replace(snapshot, state=state or snapshot.state).as_plain(),
            "arguments": {name: brief(value) for name, value in run.arguments.items()},
            "parameters": {
                f"{path}.{name}": value
                for path, node in nodes_of(session.graph).items()
                for name, value in node.parameters.items()
            },
            "reason": run.reason,
            "error": run.error,
            "replay": run.replay,
            "notices": list(run.notices.last),
            "place": session.compiled.run_clock.describe(),
            **session.trained,
            "not_finite": not_finite_since(session.recorder.rows),
            "bypassed": [node.path for node in session.compiled.program.nodes if node.bypassed],
        }
        try:
            run.files.write_status(status)
        except CheckpointError as error:  # the run does not need it
            run.notices.once(f"{error.message}; the run continues")


@final
class NodesFile(Watcher):
    """Writes how often nodes and edges ran, and what they took, to `nodes.jsonl`: at each row what has changed since.

    Rows within a second are written together, and the last of them has the times. Nothing is written before something
    has run. A header says what is counted, once for each graph and each start of the run.
    """

    interval_seconds = 10.0

    def __init__(self, run: LiveRun, files: RunFiles) -> None:
        self._run, self._files = run, files
        self._visits: Counter[str] = Counter()  # whose time is not written yet
        self._noted: list[tuple[float, int, list[int]]] = []  # of lines that are not written yet: time, rows, counts
        self._written_at = -math.inf
        self._event = ""  # for the next header
        self._counts: list[int] = []  # what is written
        self._count("begun")
        files.count = self.write

    def restart(self, event: str) -> None:
        """The run has entered its beginning, or the state of a checkpoint, and the file is truncated to that.

        Arguments:
            event: what the next header says about it: ``"begun"`` or ``"resumed"``.
        """
        self._noted = []
        self._count(event)

    def announce(self, beginning: Beginning) -> None:
        if self._compiler is not self._run.session.compiled.compiler:
            self.write()  # what the former graph has counted
            self._count(self._event or "rewired")

    def row(self, row: Mapping[str, float], step: int) -> None:
        self._note()
        if time.monotonic() >= self._written_at + _LEAST_SECONDS:
            self.write()

    def tick(self) -> None:
        self.write()

    def end(self, state: str, error: BaseException | None) -> None:
        self.write()

    def write(self) -> None:
        """Write what has changed since the line before, if something has run."""
        self._note()
        before, lines = self._counts, list[dict[str, Any]]()
        for at, rows, counts in self._noted:
            pairs = enumerate(map(operator.sub, counts, self._counts))
            if changes := [number for counter, more in pairs if more for number in (counter, more)]:
                lines.append({"time": round(at, 3), "rows": rows, "counts": changes})
            self._counts = counts
        self._noted, self._written_at = [], time.monotonic()
        if not lines:
            return
        means, took = self._run.node_times.means(), list[float]()
        for number, (path, counters) in enumerate(self._layout["nodes"].items()):
            self._visits[path] += sum(self._counts[counter] - before[counter] for counter in counters)
            if path in means and (visits := self._visits.pop(path)):
                took += [number, round(1000 * means[path] * visits, 3)]
        if took:
            lines[-1]["milliseconds"] = took
        if self._event:
            place = {"time": lines[0]["time"], "rows": lines[0]["rows"]}
            lines.insert(0, {"event": self._event, **place, **self._layout})
            self._event = ""
        self._files.nodes.append(*lines)

    def _count(self, event: str) -> None:
        """Count what the present graph of the run does from here on."""
        self._event, self._compiler = event, self._run.session.compiled.compiler
        self._counts = self._compiler.counts.copy()
        self._layout: Mapping[str, Mapping[str, list[int]]] = self._compiler.sums()

    def _note(self) -> None:
        """Note what is counted now, for a line."""
        self._noted.append((time.time(), len(self._run.session.recorder.rows), self._compiler.counts.copy()))


@final
class Monitors(Watcher):
    """Passes rows to the nodes that wait for them, and checks that the metrics that nodes name are recorded.

    A kind marks the parameter that names a metric with `Metric`.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._evaluated: list[str] = []  # since an evaluation ended
        self._runs_before: dict[str, int] = {}  # whose rows may be in another run directory

    def announce(self, beginning: Beginning) -> None:
        nodes = self._session.compiled.program.nodes
        self._runs_before = {node.path: node.fields["runs"] for node in nodes}

    def row(self, row: Mapping[str, float], step: int) -> None:
        session = self._session
        session.compiled.on_metrics(row, session.position)
        if session.compiled.activity(session.position) is not None:
            self._evaluated += session.recorder.metrics_in(row)
        session.requests.post("recorded")

    def forget(self) -> None:
        """Drop the metrics of an evaluation that was cut short."""
        self._evaluated = []

    def expect(self) -> None:
        """Check the row recorded last, outside evaluations, for the metrics that nodes name.

        Nodes in bodies other than the running one do not receive its rows.

        Raises:
            UnknownMetricError: an evaluation that has just ended records others of the same group (``"val/"``) and
                not this one; or every node that may record it has run.
        """
        session, recorder = self._session, self._session.recorder
        groups = {name.rpartition("/")[0] for name in self._evaluated} - {""}
        self._evaluated = []
        around = [*session.compiled.program.nodes[session.position].scope.around()]
        for node in session.compiled.program.nodes:
            parameter = node.kind.monitor
            name = node.parameters[parameter] if parameter and not node.bypassed and node.scope in around else None
            if name is None or name in recorder.latest:
                continue
            if name.rpartition("/")[0] in groups or all(map(self._has_recorded, node.scope.nodes.values())):
                recorded = recorder.metrics_in(recorder.latest)
                hint = suggestion(name, recorded)
                if "did you mean" not in hint:
                    hint = f"set {node.path}.{parameter} to one of these, or let a step function return it"
                raise UnknownMetricError(
                    f"no row of metrics has `{name}`, which {node.path}.{parameter} names; recorded are "
                    f"{', '.join(recorded)}",
                    f"{hint}{_IN_TIME}",
                )

    def _has_recorded(self, node: ProgramNode) -> bool:
        """False for a node that may record rows, and has not run; no row is needed after one that ends the graph."""
        may_record = node.body is not None or (
            node.kind.may_record_rows and not node.plan_node.is_never_due and node.kind.trigger != "after"
        )
        return node.bypassed or not may_record or node.fields["runs"] > self._runs_before.get(node.path, 0)
