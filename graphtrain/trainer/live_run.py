"""A session with its files and its watchers; and the life cycle of a run: which calls are possible when."""

from __future__ import annotations

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
from graphtrain.report.snapshot import Display, Snapshot
from graphtrain.resume.equal_ranks import require_equal_weights
from graphtrain.resume.save import CheckpointWriter
from graphtrain.resume.session import Session
from graphtrain.storage.checkpoint import Checkpoint
from graphtrain.storage.run_files import RunFiles
from graphtrain.trainer.observer import Observer
from graphtrain.trainer.watchers import Monitors, NodesFile, OnDisplay, StatusFile, Watcher, Watchers

Event = Literal["start", "ask_to_stop", "halt", "finish", "fail"]

_ACTIVE = ["running", "stopping"]
_STATES = ["ready", *_ACTIVE, "stopped", "finished", "failed"]
_LIFE_CYCLE: list[list[Any]] = [  # event, the states in which it is possible, and the state that follows
    ["start", ["ready", "stopped", "finished"], "running"],
    ["ask_to_stop", _ACTIVE, "stopping"],  # at the next save point
    ["halt", _ACTIVE, "stopped"],
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
        state: of its life cycle: ready, running, stopping (at the next save point), stopped, finished or failed.
        is_replay: True for a run whose save points are those of the run that it replays.
        is_end_saved: False between the end of the run and its checkpoint.
        tracer: the explainer of the transitions that ran last; None if they were not traced.
        failure: the exception by which a node failed; None if none did.
        is_rewired: True after `rewire`, until a transition runs in the new graph.
        unnoted: the checkpoint of a run that finished before, and was started again with other settings: until it
            trains further, nothing is written. None for any other run.
        reason: why it has stopped, in words: a signal, `until` or `before`; empty for any other reason.
        error: the exception that has ended it, on one line; empty if none did.
        replay: the options of ``graphtrain replay`` that lead to the node that failed.
    """

    state: str  # set by the machine

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
        from transitions import Machine  # here, because commands that run nothing import this module too

        self._machine = Machine(self, _STATES, initial="ready", transitions=_LIFE_CYCLE, auto_transitions=False)
        self.node_times = NodeTimes()
        self.monitors = Monitors(session)
        self.is_replay, self.is_end_saved = False, True
        self.is_rewired = False
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

    def drives(self, tracer: Any = None) -> None:
        """Note that transitions run from now on, traced or not."""
        self.tracer, self.failure, self.is_rewired = tracer, None, False
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
        return self._observer.snapshot(self.state, self.position)

    @property
    def is_active(self) -> bool:
        """True while the run is running, until it has stopped."""
        return self.state in _ACTIVE

    def go(self, event: Event) -> None:
        """Go to the state that follows."""
        self._machine.events[event].trigger(self)

    def require_idle(self) -> None:
        """Raise unless the run can start, or be changed.

        Raises:
            LifeCycleError: it is running, or has failed.
        """
        if self.state == "failed":
            raise LifeCycleError(
                "the run has failed inside a node",
                "make a new Trainer: with the same run_dir it resumes from the newest checkpoint",
            )
        if self.is_active:
            calls = "`run`, `advance`, `load`, `rewire`"
            raise LifeCycleError(f"the run is {self.state}: {calls} cannot be called from inside it")

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
        self.watchers.end(self.state, error)
        for logger in self._loggers:
            logger.ended(self.state, error)
            logger.close()

    def has_changed(self) -> None:
        """Note that the user has changed the run: it does not go back to earlier checkpoints."""
        self.writer.saved = None
        if self.files is not None:
            self.files.keeps_newest = True

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
                self.notices(
                    "no checkpoint was kept as the best: no row at a step at which "
                    f"`{node}` was due has a finite `{retention.best}`"
                )
        self.is_end_saved = True

    def report_written(self) -> None:
        """Write the status if a checkpoint was written, or ranked."""
        if self.writer.take_written():
            self.status.write()
