"""A run in this process: its session, files and watchers, and its life cycle."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, final

from graphtrain.errors import CheckpointError, LifeCycleError, SaveFailedError
from graphtrain.graph.elements import END, nodes_of
from graphtrain.kind.parameter import plain_value
from graphtrain.kind.trigger import Trigger
from graphtrain.plain import brief
from graphtrain.program.requests import SavePolicy
from graphtrain.program.stopwatch import NodeTimes
from graphtrain.report.logger import Beginning, Logger, Loggers
from graphtrain.report.snapshot import Display, Snapshot
from graphtrain.report.values import not_finite_since
from graphtrain.resume.save import CheckpointWriter
from graphtrain.resume.session import Session
from graphtrain.storage.checkpoint import Checkpoint
from graphtrain.storage.run_directory import ACTIVE, STATUS_SECONDS
from graphtrain.storage.run_files import RunFiles
from graphtrain.trainer.tracing import Explanation
from graphtrain.trainer.watchers import Monitors, NodesFile, Observer

_STATES = ["ready", *ACTIVE, "stopped", "finished", "failed"]
_LIFE_CYCLE: list[list[Any]] = [  # event, the states in which it is possible, and the state that follows
    ["start", ["ready", "stopped", "finished"], "running"],
    ["ask_to_stop", ACTIVE, "stopping"],  # at the next save point
    ["halt", ACTIVE, "stopped"],
    ["finish", ACTIVE, "finished"],
    ["fail", ACTIVE, "failed"],
]


@final
class LiveRun:
    """A session with the files of its run directory, if there is one, and its watchers."""

    state: str  # of its life cycle, set by the machine
    trigger: Callable[[Literal["start", "ask_to_stop", "halt", "finish", "fail"]], bool]  # to the state that follows
    has_begun = False  # it was begun or resumed in this process
    resumed_from: Checkpoint | None = None
    changes: tuple[str, ...] = ()  # since that checkpoint was made, in words
    is_announced = False  # files and loggers know that it has begun; of a finished run, once it trains further
    is_replay = False  # it saves nothing, and counts the saves of the run that it replays
    is_end_saved = True  # False between the end of the run and its checkpoint
    explanation: Explanation | None = None  # of the last transition, if it was traced
    failure: BaseException | None = None  # by which a node failed
    reason = ""  # why it has stopped, in words: a signal, `until` or `before`
    error = ""  # the exception that has ended it, on one line
    replay: Sequence[str] = ()  # the options of `graphtrain replay` that lead to the node that failed
    stopped_by = "a request"  # or the name of a signal

    def __init__(
        self,
        session: Session,
        files: RunFiles | None,
        arguments: dict[str, Any],
        loggers: Iterable[Logger],
        display: Display | None,
    ) -> None:
        self.session = session
        self.files = files
        self.arguments = arguments
        self.notices = session.notices
        self.requests = session.requests
        self.writer = CheckpointWriter(session, files, self.write_status)
        session.requests.saves = self.writer
        from transitions import Machine  # here, because commands that run nothing import this module too

        self._machine = Machine(self, _STATES, initial="ready", transitions=_LIFE_CYCLE, auto_transitions=False)
        self.node_times, self.monitors = NodeTimes(), Monitors(session)
        self._observer = Observer(session)
        self._display, self._is_shown = display, False
        self._loggers = Loggers(loggers, self.notices.once) if (loggers := list(loggers)) else None
        self._nodes, rows = NodesFile(session, files, self.node_times), session.recorder.loggers
        if files is not None and files.writes:
            rows.append(lambda metrics, step: files.metrics.append(metrics))
        rows += [*filter(None, [self._loggers]), self._row]

    def _row(self, row: Mapping[str, float], step: int) -> None:
        if self.session.watch.now() >= self.session.watch.next_tick:  # of a graph whose transitions are not timed
            self.session.watch.tick()
        self.monitors.row(row)
        self._nodes.write()

    def stop(self, number: int) -> None:
        """Request a stop at the next save point, as the signal of this number does."""
        self.stopped_by = signal.Signals(number).name
        self.requests.ask("stop")

    def snapshot(self) -> Snapshot:
        """The state and progress of the run."""
        return self._observer.snapshot(self.state, self.position)

    def require_idle(self) -> None:
        """Raise a `LifeCycleError` unless the run can start, or be changed."""
        if self.state == "failed":
            raise LifeCycleError(
                "the run has failed inside a node",
                "make a new Trainer: with the same run_dir it resumes from the newest checkpoint",
            )
        if self.state in ACTIVE:
            raise LifeCycleError(f"the run is {self.state}: this cannot be called from inside it")

    @property
    def position(self) -> str:
        """The path of the node that runs next; ``"end"`` when the run is over."""
        return END if self.session.loop.ended else self.session.path

    def started(self, limit: Trigger | None) -> None:
        """Note that the run starts or continues. Without a limit, for single transitions, no display shows it."""
        session = self.session
        self._observer.begin(limit)
        session.watch.start(inside=session.compiled.activity(session.loop.position))
        self._is_shown = limit is not None
        self._draw("begin")
        session.watch.repeat([self._draw, self.write_status, self._nodes.write])

    def announce(self, event: Literal["started", "resumed", "rewired"]) -> None:
        """Tell watchers and loggers that the run begins, was resumed, or continues with another graph."""
        session = self.session
        self.monitors.begin()
        self._nodes.begin(event)
        if self._loggers is None:
            return
        hyper_parameters = {**self.arguments, "seed": session.seed}
        for owner, values in session.hyper_parameters.values.items():
            hyper_parameters |= {f"{owner}.{name}": value for name, value in values.items()}
        for node in session.compiled.program.nodes:
            values = {name: value for name, value in node.parameters.items() if value is not None}
            hyper_parameters |= {f"{node.path}.{name}": plain_value(value) for name, value in values.items()}
        run_dir = self.files.path if self.files is not None else None
        rows, columns = tuple(session.recorder.rows), session.compiled.run_clock.columns
        self._loggers.begin(Beginning(session.compiled.graph, rows, hyper_parameters, run_dir, columns))

    def ended(self, error: BaseException | None) -> None:
        """Note that the run has stopped, by an exception or without one, and tell watchers and loggers."""
        was_running = self.state in ACTIVE
        self.session.watch.stop()
        if was_running:
            self.trigger("finish" if self.session.loop.ended and self.is_end_saved else "halt")
        self.session.watch.repeat(())
        self._draw("end")
        self._nodes.write()
        if self._loggers is not None:
            self._loggers.call("ended", self.state, error)
            self._loggers.call("close")
        if was_running and self.is_announced:
            self.write_status()

    def _draw(self, call: Literal["begin", "show", "end"] = "show") -> float:
        """Draw the run on its display, where it is shown; returns the seconds until it is to be drawn again."""
        if self._display is None or not self._is_shown:
            return math.inf
        try:
            getattr(self._display, call)(self.snapshot())
            return self._display.interval_seconds
        except Exception as error:  # a display that fails, or a terminal that is gone, does not end the run
            self._display = None
            if not isinstance(error, OSError):
                self.notices.once(f"the display is off: it raised {type(error).__name__}: {error}")
            return math.inf

    def has_changed(self) -> None:
        """Note that the user has changed the run: it does not go back to earlier checkpoints."""
        self.writer.saved = None
        if self.files is not None:
            self.files.keeps_newest = True

    def cut_back_to(self, checkpoint: Checkpoint | None) -> None:
        """Truncate rows and counts to those of a checkpoint of the run, which is restored, or to nothing."""
        assert self.files is not None, "there is nothing to truncate"
        self.session.recorder.load_rows(self.files.cut_back_to(checkpoint))
        self._nodes.compiler = None  # drops counts that are not written, as the file is truncated

    def save(
        self, policy: SavePolicy, values: Mapping[str, float | None] | None = None, *, is_requested: bool = False
    ) -> bool:
        """Save at this position, as `CheckpointWriter.save`, if there is a run directory. The end must be saved."""
        if self.files is None:
            if is_requested:
                self.notices.once("there is no run directory, so no checkpoint is written")
                self.writer.saved = "" if self.is_replay else self.writer.saved  # the run that it replays has saved
            return True
        if not self.writer.save(policy, values or {}, is_requested=is_requested):
            if self.session.loop.ended:
                raise SaveFailedError(
                    f"the end of the run is not a save point ({self.writer.refusal})",
                    self.writer.remedy or "overwrite what cannot be saved before it is read",
                )
            return False
        if self._loggers is not None:
            self._loggers.call("flush")
        return True

    def write_status(self, state: str | None = None) -> float:
        """Write the status for other processes; returns the seconds until it is to be written again."""
        session = self.session
        if self.files is None:
            return STATUS_SECONDS
        snapshot = self.snapshot()
        status = {
            **replace(snapshot, state=state or snapshot.state).as_plain(),
            "arguments": {name: brief(value) for name, value in self.arguments.items()},
            "parameters": {
                f"{path}.{name}": value
                for path, node in nodes_of(session.compiled.graph).items()
                for name, value in node.parameters.items()
            },
            "reason": self.reason,
            "error": self.error,
            "replay": self.replay,
            "notices": list(self.notices.last),
            "place": session.compiled.run_clock.describe(),
            **session.trained,
            "not_finite": not_finite_since(session.recorder.rows),
            "bypassed": [node.path for node in session.compiled.program.nodes if node.bypassed],
        }
        try:
            self.files.write_status(status)
        except CheckpointError as error:  # the run does not need it
            self.notices.once(f"{error.message}; the run continues")
        return STATUS_SECONDS
