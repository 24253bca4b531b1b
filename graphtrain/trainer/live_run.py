"""A session with its files and its watchers; and the life cycle of a run: which calls are possible when."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, final

from graphtrain.errors import LifeCycleError, SaveFailedError
from graphtrain.graph.elements import END
from graphtrain.kind.parameter import plain_value
from graphtrain.kind.trigger import Trigger
from graphtrain.lazy import imported
from graphtrain.outcome import Outcome
from graphtrain.program.loop import Transition
from graphtrain.program.requests import SavePolicy
from graphtrain.program.stopwatch import NodeTimes
from graphtrain.report.logger import Beginning, Logger, RunLogger
from graphtrain.report.recorder import Recorder
from graphtrain.report.snapshot import Display, Snapshot
from graphtrain.resume.equal_ranks import require_equal_weights
from graphtrain.resume.save import CheckpointWriter
from graphtrain.resume.session import Session
from graphtrain.storage.checkpoint import Checkpoint
from graphtrain.storage.run_files import RunFiles
from graphtrain.trainer.observer import Observer
from graphtrain.trainer.watchers import (
    Monitors,
    NodesFile,
    OnDisplay,
    StatusFile,
    Watcher,
    Watchers,
)

Event = Literal["start", "ask_to_stop", "stop", "finish", "fail"]

_ACTIVE = ["running", "stopping"]
_TRANSITIONS: list[list[Any]] = [  # event, the states in which it is possible, and the state that follows
    ["start", ["ready", "stopped", "finished"], "running"],
    ["ask_to_stop", _ACTIVE, "stopping"],  # at the next save point
    ["stop", _ACTIVE, "stopped"],
    ["finish", _ACTIVE, "finished"],
    ["fail", _ACTIVE, "failed"],
]

_END_NOT_SAVED = (
    "the run is trained to its end but not saved; overwrite what cannot be saved before it is read, so that it is "
    "not alive there"
)


@final
class LiveRun:
    """A session with its files and its watchers.

    Arguments:
        session: not begun yet.
        files: of the run directory. None: nothing is written.
        arguments: hyper-parameters that belong to no resource: the arguments of `setup`.
        loggers: called with every row.
        display: shows the run. None: it is not shown.

    Attributes:
        is_replay: True for a run whose save points are those of the run that it replays.
        is_end_saved: False between the end of the run and its checkpoint.
        has_run: True once a transition has run in this process.
        tracer: the explainer of the transitions that ran last; None if they were not traced.
        failure: the exception by which a node failed; None if none did.
        is_rewired: True after `rewire`, until a transition runs in the new graph.
        unnoted: the checkpoint of a run that finished before, and was started again with other settings: until it
            trains further, nothing is written. None for any other run.
        reason: why it has stopped, in words: a signal, `until` or `before`; empty for any other reason.
        error: the exception that has ended it, on one line; empty if none did.
        replay: the options of ``graphtrain replay`` that lead to the node that failed.
    """

    def __init__(
        self,
        session: Session,
        files: RunFiles | None,
        arguments: dict[str, Any],
        loggers: Iterable[Logger],
        display: Display | None,
    ) -> None:
        self.session, self.files, self.arguments, self.notices = session, files, arguments, session.notices
        self.requests = session.requests
        self.writer = CheckpointWriter(session, files)
        session.requests.saves = self.writer
        self.life = LifeCycle()
        self.node_times = NodeTimes()
        self.monitors = Monitors(session)
        self.is_replay, self.is_end_saved = False, True
        self.has_run = self.is_rewired = False
        self.unnoted: Checkpoint | None = None
        self._signal = 0
        self.tracer: Any = None
        self._explainer: Any = None
        self.failure: BaseException | None = None
        self.reason = self.error = ""
        self.replay: list[str] = []
        self._observer = Observer(session)
        self.status = StatusFile(self)
        self._loggers: list[RunLogger] = []
        if loggers := list(loggers):
            from graphtrain.report.guarded import Guarded  # most runs have no loggers

            self._loggers = [Guarded(logger, self.notices.once) for logger in loggers]
        shown = OnDisplay(display, self.snapshot, self.notices)
        watchers: list[Watcher] = [shown, self.status, self.monitors]
        self._nodes = NodesFile(self, files) if files is not None and files.writes else None
        if self._nodes is not None:
            watchers.append(self._nodes)
        self.watchers = Watchers(session.watch, watchers)
        rows = session.recorder.loggers
        if files is not None and files.writes:
            rows.append(lambda metrics, step: files.metrics.append(metrics))
        rows += [*self._loggers, self.watchers.row]

    def tracing(self, trace: Callable[[Any], Any] | None = None) -> Any:
        """The explainer, which calls `trace` after every transition."""
        self._explainer = self._explainer or imported("graphtrain.proof.tracing").Explainer(self.notices.once)
        self._explainer.trace = trace
        return self._explainer

    def transitions(self, explainer: Any) -> list[Transition]:
        """The transitions of the graph, wrapped by the explainer, or as they are."""
        compiled = self.session.compiled
        return compiled.compiler.transitions if explainer is None else list(explainer.transitions(compiled))

    def timed(self, transitions: list[Transition]) -> list[Transition]:
        """The transitions, sometimes timed."""
        return self.node_times.over(self.session.compiled.program.nodes, transitions)

    def drives(self, tracer: Any = None) -> None:
        """Note that transitions run from now on, traced or not."""
        self.tracer, self.failure, self.has_run, self.is_rewired = tracer, None, True, False
        self.reason, self.error, self.replay = "", "", []
        if tracer is not None:
            tracer.last = None

    def stop(self, number: int) -> None:
        """Request a stop at the next save point, as a signal does."""
        self._signal = number
        self.requests.ask("stop")

    def ends(self, outcome: Outcome) -> Outcome:
        """Note why the run stops."""
        if outcome is Outcome.STOPPED:
            self.reason = signal.Signals(self._signal).name if self._signal else "a request"
        elif outcome is Outcome.BREAKPOINT:
            self.reason = f"the breakpoint before {self.position}"
        elif outcome is Outcome.REACHED and (until := self.snapshot().until):
            self.reason = f"--until {' or '.join(until)}"
        return outcome

    def snapshot(self) -> Snapshot:
        """The state and progress of the run."""
        return self._observer.snapshot(self.life.state, self.position)

    @property
    def position(self) -> str:
        """The path of the node that runs next; ``"end"`` when the run is over."""
        return END if self.session.loop.ended else self.session.path

    def started(self, limit: Trigger | None) -> None:
        """Note that the run starts or continues in this process.

        Arguments:
            limit: the amount to run until; None to run only some transitions, which are not shown.
        """
        session, compiled = self.session, self.session.compiled
        self._observer.begin(limit)
        session.watch.start(inside=compiled.activity(session.position))
        self.watchers.begin(is_shown=limit is not None)

    def announce(self) -> None:
        """Tell loggers that the run begins, was resumed, or continues with another graph."""
        session = self.session
        hyper_parameters = {**self.arguments, "seed": session.seed}
        for name, fields in session.hyper_parameters.values.items():
            hyper_parameters |= {f"{name}.{field}": value for field, value in fields.items()}
        for node in session.compiled.program.nodes:
            values = {name: value for name, value in node.parameters.items() if value is not None}
            hyper_parameters |= {f"{node.path}.{name}": plain_value(value) for name, value in values.items()}
        run_dir = self.files.path if self.files is not None else None
        rows, columns = tuple(session.recorder.rows), session.compiled.run_clock.columns
        beginning = Beginning(session.graph, rows, hyper_parameters, run_dir, columns)
        for watcher in self.watchers.each:
            watcher.announce(beginning)
        for logger in self._loggers:
            logger.begin(beginning)

    def ended(self, error: BaseException | None) -> None:
        """Tell watchers and loggers that the run has stopped, by an exception or without one."""
        self.watchers.end(self.life.state, error)
        for logger in self._loggers:
            logger.ended(self.life.state, error)
            logger.close()

    def has_changed(self) -> None:
        """Note that the user has changed the run: it does not go back to earlier checkpoints."""
        self.writer.saved = None
        self.writer.newest = None

    def cut_back_to(self, checkpoint: Checkpoint | None) -> None:
        """Truncate rows and counts to those of a checkpoint of the run, or to nothing; the session has entered it."""
        assert self.files is not None, "there is nothing to truncate"
        rows = self.files.cut_back_to(checkpoint)
        self.session.recorder.load_rows(rows)
        if self._nodes is not None:
            self._nodes.restart("resumed" if checkpoint is not None and self.files.owns(checkpoint) else "begun")

    # ---- saving

    def save(
        self,
        policy: SavePolicy,
        values: Mapping[str, float | None] | None = None,
        *,
        is_asked: bool = False,
    ) -> bool:
        """Save at this position, if there is a run directory; False if it is not a save point.

        Arguments:
            values: those of the metrics that rank checkpoints. Default: none.
            is_asked: True if a node requested it.

        Raises:
            SaveFailedError: the checkpoint cannot be written; or this is the end, so no save point can follow.
        """
        if self.files is None:
            if is_asked:
                self.notices.once("there is no run directory, so no checkpoint is written")
            if self.is_replay:  # the run that it replays has saved
                self.writer.saved = "" if is_asked else self.writer.saved
            return True
        if not self.writer.save(policy, values or {}, is_asked=is_asked):
            if self.session.loop.ended:
                raise SaveFailedError(
                    f"the end of the run is not a save point ({self.writer.refusal})",
                    self.writer.way_out or _END_NOT_SAVED,
                )
            return False
        for logger in self._loggers:
            logger.flush()
        self.report_written()
        return True

    def save_end(self) -> None:
        """Save the end of the run: it may continue after a failed save, but it does not end without a checkpoint."""
        self.save(self.requests.sync_policy)
        if self.files is None:  # a save would have compared them
            require_equal_weights(self.session.world, self.session.resources)
        for node, retention in self.requests.retentions.items():
            if self.files is not None and retention.best is not None and not self.files.has_ranked(node):
                self.notices(_no_best(self.session.recorder, retention.best, node))
        self.is_end_saved = True

    def report_written(self) -> None:
        """Write the status if a checkpoint was written, or ranked."""
        if self.writer.take_written():
            self.status.write()


def _no_best(recorder: Recorder, name: str, node: str) -> str:
    values = [row[name] for row in recorder.rows if name in row]
    if values and not any(map(math.isfinite, values)):
        return f"no checkpoint was kept as the best: every value of `{name}` is NaN or infinite"
    return f"no checkpoint was kept as the best: no row at a step at which `{node}` was due has a finite `{name}`"


@final
class LifeCycle:
    """ready -> running -> stopping -> stopped, finished or failed; from the first two of these running again.

    Attributes:
        machine: the `transitions.Machine`.

    >>> life = LifeCycle(); life.go("start"); life.state
    'running'
    >>> life.go("start")
    Traceback (most recent call last):
        ...
    graphtrain.errors.LifeCycleError: the run is running: ... cannot be called from inside it
    """

    state: str  # set by the machine

    def __init__(self) -> None:
        from transitions import Machine  # here, because commands that run nothing import this module too

        states = ["ready", *_ACTIVE, "stopped", "finished", "failed"]
        self.machine = Machine(self, states, initial="ready", transitions=_TRANSITIONS, auto_transitions=False)

    @property
    def is_active(self) -> bool:
        return self.state in _ACTIVE

    def go(self, event: Event) -> None:
        """Go to the state that follows."""
        self.refuse(event)
        self.machine.events[event].trigger(self)

    def refuse(self, event: Event) -> None:
        """Raise if the event is not possible now."""
        if event in self.machine.get_triggers(self.state):
            return
        if event != "start":
            raise LifeCycleError(f"`{event}` is not possible while the run is {self.state}")
        if self.state == "failed":
            raise LifeCycleError(
                "the run has failed inside a node",
                "make a new Trainer: with the same run_dir it resumes from the newest checkpoint",
            )
        calls = "`run`, `advance`, `load`, `rewire`"
        raise LifeCycleError(f"the run is {self.state}: {calls} cannot be called from inside it")
