"""The trainer: a graph bound to resources, run, stopped, saved and gone on with."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NoReturn, final

import torch

from graphtrain.checks import checked_graph
from graphtrain.elements import END
from graphtrain.engine.capture import State
from graphtrain.engine.environment import environment, environment_changes
from graphtrain.engine.keeper import Keeper, named_checkpoint
from graphtrain.engine.life_cycle import LifeCycle
from graphtrain.engine.liveness import live_slots
from graphtrain.engine.loop import CheckpointRequests, Loop, Request, Visit
from graphtrain.engine.program import Program
from graphtrain.engine.resources import prepare, resolve_device
from graphtrain.engine.signals import StopSignals
from graphtrain.engine.until import gated_visits
from graphtrain.engine.visits import Compiler
from graphtrain.engine.whereabouts import Whereabouts
from graphtrain.errors import CheckpointError, GraphError, GraphtrainError, LifeCycleError, UsageError
from graphtrain.graph import Graph
from graphtrain.metrics.recorder import Logger, Recorder
from graphtrain.names import suggestion
from graphtrain.outcome import Outcome
from graphtrain.state.random import seed_everything
from graphtrain.storage.checkpoint import Checkpoint
from graphtrain.storage.plain import UnsaveableError
from graphtrain.storage.tree import tree_digest
from graphtrain.text.canonical import structural_hash

# A slot that cannot be saved in this many transitions never can be.
_MOST_ATTEMPTS = 10_000

# The status is written anew when a row of metrics comes and it is older than this.
_STATUS_SECONDS = 5.0


@final
class Trainer:
    """A graph bound to a model, data and optimizers.

    Everything that is missing or does not fit is reported together, before anything trains.

    Arguments:
        graph: a `Graph`, the name of a shipped one, or a path.
        run_dir: where checkpoints, metrics and status go. Default: none; nothing is written.
        seed: seeds Python, NumPy and torch when the run begins, and data and evaluation. None leaves the generators
            as they are.
        device: where the model is and batches go. Default: CUDA where there is one, else the CPU.
        deterministic: True asks torch for deterministic kernels, in the whole process. Default: False.
        loggers: called with every row of metrics: ``logger(metrics, step)``.
        say: told what a person should know, a line at a time. Default: standard error.
        about: plain data kept in every checkpoint, such as the command line.
        resources: `model`, `optimizer`, `train_data`, ... by the slot names of the graph. A model's own `training_step`
            and `validation_step` are used where none is given.

    Raises:
        GraphError: the graph has problems, or a resource that it reads is missing.
        UsageError: an argument is wrong.

    >>> model = torch.nn.Linear(2, 1)
    >>> trainer = Trainer(
    ...     Graph.load("fit").set("finish", after="3 steps"),
    ...     model=model,
    ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    ...     train_data=[torch.ones(4, 2)] * 5,
    ...     training_step=lambda model, batch: model(batch).square().mean(),
    ... )
    >>> trainer.run()
    <Outcome.FINISHED: 'the run is finished'>
    >>> trainer.progress["step"]["steps"]
    3
    """

    def __init__(
        self,
        graph: Graph | str | Path = "fit",
        run_dir: str | Path | None = None,
        seed: int | None = 0,
        device: str | torch.device = "auto",
        deterministic: bool = False,
        loggers: Iterable[Logger] = (),
        *,
        say: Callable[[str], None] | None = None,
        about: Mapping[str, Any] | None = None,
        **resources: Any,
    ) -> None:
        self.graph = checked_graph(graph)
        self._say = say if say is not None else _say_on_stderr
        self._said: set[str] = set()
        if deterministic:
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False
        self._deterministic = deterministic
        self._resources = dict(resources)
        self._seed = seed
        self._device = resolve_device(device)
        self._life = LifeCycle()
        self._recorder = Recorder(lambda: self._whereabouts.step_and_epoch())
        pending: list[Request] = []
        self._requests = CheckpointRequests(pending)
        provided = {
            "checkpoints": self._requests,
            "device": self._device,
            "recorder": self._recorder,
            "saving": run_dir is not None,
            "say": self._say_once,
            "seed": seed,
        }
        if taken := sorted(set(provided) & set(resources)):
            raise UsageError(f"`{taken[0]}` is supplied by the engine", "give the resource another name")
        self._program = Program(self.graph, {**prepare(resources, self._device), **provided})
        self._compiler = Compiler(self._program, ended=lambda: pending.append("ended"))
        self._table = self._compiler.table
        self._whereabouts = Whereabouts(self._program)
        if problems := self._program.missing_problems(resources):
            raise GraphError(problems, f"graph `{self.graph.name}`")
        self._live_before, self._live_after = live_slots(self._program, self._table.asked)
        self._transient = self._program.transient_slots()
        self._state = State(self._program, resources, self._recorder)
        self._loop = Loop(self._program.main.nodes[self.graph.start].index, pending)
        self._begun = False
        self._attempts = 0
        self._status_written = 0.0
        self._keeper = Keeper(run_dir, self._say, about or {}) if run_dir is not None else None
        if self._keeper is not None:
            self._recorder.loggers += [self._keeper.row, self._refresh_status]
        self._recorder.loggers += loggers
        for line in [*self._program.absent, *self._program.unread_resources(), *self._program.timed()]:
            self._say_once(line)

    # ---- what can be looked at

    @property
    def position(self) -> str:
        """The path of the node that runs next, such as ``"validate/next_batch"``; ``"end"`` when the run is over."""
        return END if self._loop.ended else self._here

    @property
    def state(self) -> str:
        """Where the run is in its life: ready, running, stopping, stopped, finished or failed."""
        return self._life.state

    @property
    def progress(self) -> Mapping[str, Mapping[str, Any]]:
        """The progress of every node: path -> field -> value, guard fields that are computed included."""
        return MappingProxyType(
            {
                bound.path: {
                    name: getattr(bound.instance, name)
                    for name in bound.kind.fields
                    if name != "due" and hasattr(bound.instance, name)
                }
                for bound in self._program.nodes
            }
        )

    @property
    def resources(self) -> Mapping[str, Any]:
        """What was supplied, by name: the same objects."""
        return MappingProxyType(self._resources)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The rows recorded so far, oldest first; `pandas.DataFrame` takes them as they are."""
        return [dict(row) for row in self._recorder.rows]

    def read(self, name: str) -> Any:
        """The value of ``"node.field"`` (``"validate/next_batch.last"``) or of a slot, as a guard would see it.

        Raises:
            KeyError: there is no such node, field or slot.
        """
        path, dot, field = name.partition(".")
        if not dot:
            return self._program.slots[self._program.slot_index(name)]
        bound = self._program.by_path[path]
        if field in bound.kind.parameters:
            return bound.parameters[field]
        if field not in bound.kind.fields:
            raise KeyError(name)
        return self._compiler.field_value(bound, field)

    def digest(self) -> str:
        """A hash (SHA-256, hexadecimal) of what the continuation depends on: equal digests mean bitwise equal runs.

        Model, optimizer, scheduler, gradients, random generators, position in the data, progress. Not clocks, not the
        progress of kinds declared `observer`, not a `runs` that nothing reads.

        Raises:
            CheckpointError: something alive at this position has no plain form.
        """
        return tree_digest(self._state.essential(self._state.capture(self._alive())))

    def save_points(self) -> list[str]:
        """The positions at which everything alive can be saved, as far as the declarations tell."""
        return [bound.path for bound in self._program.nodes if not self._transient & self._live_before[bound.index]]

    # ---- running

    def run(self, resume: str | Path = "auto", until: str | None = None) -> Outcome:
        """Run to the end, or until an amount is reached; call it again to go on.

        Arguments:
            resume: used by the first call. "auto" goes on from the newest sound checkpoint in the run directory, or
                begins; "never" refuses a directory that holds a run; a path names a checkpoint.
            until: an amount such as ``"500 steps"``: everything it makes due is done, and no further batch is fetched.
                Default: no limit but the graph's own.

        Raises:
            LifeCycleError: the run is running, or has failed.
            UsageError: `until` or `resume` cannot be used.
            CheckpointError: the checkpoint does not fit what was supplied, or none can be written.
        """
        visits = self._table.visits
        if until is not None:
            visits = gated_visits(self._program, self._compiler, until, self._loop.pending)
        with self._going(resume), StopSignals(self._request_stop):
            return Outcome.ALREADY_FINISHED if self._loop.ended else self._drive(visits)

    def advance(self, n: int = 1, resume: str | Path = "auto") -> str:
        """Run `n` transitions, and return the position; fewer if the run ends.

        Raises:
            LifeCycleError: the run is running, finished or failed.
        """
        with self._going(resume):
            if self._loop.ended:
                raise LifeCycleError("the run is finished", "raise its ending, as in finish.after, to go on")
            for _ in range(n):
                if not self._loop.ended:
                    self._one_transition()
        return self.position

    def save(self) -> Path | None:
        """Save a checkpoint now.

        At a position that is no save point the run first goes on to the next one, and says so. From inside a node it
        is a request, and None is returned; otherwise the path of the checkpoint, which is then on disk.

        Raises:
            UsageError: there is no run directory.
            CheckpointError: it cannot be written.
        """
        if self._keeper is None:
            raise UsageError("there is nowhere to save", "give the Trainer a run_dir")
        if self._loop.inside:
            self._requests.request()
            return None
        with self._going("auto"):
            while not self._save_here():
                self._say(f"`{self.position}` is no save point; going on to the next one")
                self._one_transition()
        return self._keeper.latest[0] if self._keeper.latest is not None else None

    def _drive(self, visits: list[Visit]) -> Outcome:
        try:
            return self._loop.drive(visits, self._serve)
        except BaseException as error:
            self._fail(error)

    def _one_transition(self) -> None:
        self._loop.pending.append("pause")
        self._drive(self._table.visits)

    def _serve(self) -> Outcome | None:
        """Do what was requested during the last transition, where this position allows it."""
        pending = self._loop.pending
        if "ended" in pending:
            self._loop.ended = True
            pending.clear()
            self._save_if_kept()
            return Outcome.FINISHED
        if "save" in pending and self._save_here():
            pending.remove("save")
        if "stop" in pending:
            if self._life.state == "running":
                self._life.ask_to_stop()
            if self._save_if_kept():
                pending.clear()
                return Outcome.STOPPED
        if "reached" in pending:
            pending.clear()
            self._save_if_kept()
            return Outcome.REACHED
        if "pause" in pending:
            pending.remove("pause")
            return Outcome.REACHED
        return None

    @contextmanager
    def _going(self, resume: str | Path) -> Iterator[None]:
        """The run is running inside this block; it begins, or goes on after a resume, the first time."""
        self._life.start()
        try:
            if not self._begun:
                self._begin(resume)
                self._begun = True
            if self._loop.ended:  # the ending may have been raised meanwhile
                self._loop.choose_again(self._table.exits)
                if not self._loop.ended and (line := self._whereabouts.cut_window()) is not None:
                    self._say(line)
            yield
        finally:
            if self._life.is_running:
                (self._life.finish if self._loop.ended else self._life.stop)()
            if self._keeper is not None:
                self._keeper.close()
        self._write_status()

    def _request_stop(self, signal_name: str) -> None:
        # Called from a signal handler: nothing but the flag. The transition under way ends first.
        self._loop.pending.append("stop")

    # ---- beginning and resuming

    def _begin(self, resume: str | Path) -> None:
        if self._keeper is not None:
            checkpoint = self._keeper.find(resume)
            self._recorder.rows = self._keeper.go_on_from(checkpoint)
        else:
            checkpoint = named_checkpoint(resume) if resume not in ("auto", "never") else None
        if checkpoint is None:
            if self._seed is not None:
                seed_everything(self._seed)
            self._compiler.enter(self._program.main, reset=True)
        else:
            self._restore(checkpoint)
            if self._keeper is not None and not self._keeper.is_newest(checkpoint):
                self._save_here()  # so that from now on a resume chooses this line of the run
        self._write_status()

    def _restore(self, checkpoint: Checkpoint) -> None:
        manifest, tree = checkpoint.manifest, checkpoint.tree
        path = manifest["position"]
        changed_graph = manifest["graph_hash"] != structural_hash(self.graph)
        bound = self._program.by_path.get(path)
        if bound is None:
            raise UsageError(
                f"the checkpoint stands before the node `{path}`, which this graph does not have",
                suggestion(path, self._program.by_path),
            )
        self._loop.position = bound.index
        self._loop.ended = bool(manifest["ended"])
        for index in sorted(self._alive()):
            if (name := self._program.slot_names[index]) not in tree["slots"]:
                raise UsageError(f"this graph needs the slot `{name}` at `{path}`, which the checkpoint does not hold")
        self._state.restore_objects(tree)
        self._state.restore_progress(tree)
        for scope in bound.scope.around():
            self._compiler.enter(scope, reset=False)
        self._state.restore_generators(tree)
        if not changed_graph:
            self._expect_digest(checkpoint)
        changes = environment_changes(manifest["environment"], environment(self._deterministic))
        if changed_graph:
            changes.append("the graph")
        exact = "unchanged: exact" if not changes else "changed: " + ", ".join(changes)
        self._say(f"resumed {checkpoint.path.name}: {self._whereabouts.describe()}; {exact}")

    def _expect_digest(self, checkpoint: Checkpoint) -> None:
        """What was loaded must be what was saved, to the last bit."""
        found, saved = self.digest(), checkpoint.manifest["digest"]
        if found != saved:
            raise CheckpointError(
                f"{checkpoint.path}: the state loaded is not the state saved (digest {found[:12]}, not {saved[:12]})",
                "a resource has state that its state_dict does not load back exactly",
            )

    # ---- saving

    @property
    def _here(self) -> str:
        return self._program.nodes[self._loop.position].path

    def _alive(self) -> set[int]:
        return (self._live_after if self._loop.ended else self._live_before)[self._loop.position]

    def _save_if_kept(self) -> bool:
        """Save if there is somewhere to save to; False where this is no save point."""
        return self._keeper is None or self._save_here()

    def _save_here(self) -> bool:
        """Save at this position; False where it is no save point."""
        if self._keeper is None:
            self._say_once("there is no run directory, so no checkpoint is written")
            return True
        if self._alive() & self._transient:
            return self._not_here("it is declared transient")
        tree = self._state.capture(self._alive())
        step, epoch = self._whereabouts.step_and_epoch()
        try:
            manifest = {
                "graph": self.graph.to_json(),
                "graph_hash": structural_hash(self.graph),
                "position": self._here,
                "ended": self._loop.ended,
                "digest": tree_digest(self._state.essential(tree)),
                "step": step,
                "epoch": epoch,
                "environment": environment(self._deterministic),
            }
            self._keeper.save(tree, manifest, keep=self._requests.keep)
        except UnsaveableError as error:
            if error.path.startswith("slots"):
                return self._not_here(error.message)
            raise
        self._attempts = 0
        self._write_status()
        return True

    def _not_here(self, reason: str) -> bool:
        self._attempts += 1
        if self._attempts >= _MOST_ATTEMPTS:
            names = ", ".join(self._program.slot_names[index] for index in sorted(self._alive()))
            raise CheckpointError(f"no save point was reached in {_MOST_ATTEMPTS} transitions; alive: {names}", reason)
        return False

    def _refresh_status(self, metrics: Mapping[str, float], step: int) -> None:
        """A logger: keeps the status from growing old between checkpoints."""
        if time.monotonic() - self._status_written >= _STATUS_SECONDS:
            self._write_status()

    def _write_status(self, state: str | None = None) -> None:
        if self._keeper is None:
            return
        self._status_written = time.monotonic()
        step, epoch = self._whereabouts.step_and_epoch()
        status = {
            "state": state or self._life.state,
            "graph": self.graph.name,
            "position": self.position,
            "step": step,
            "epoch": epoch,
            "place": self._whereabouts.describe(),
            "metrics": self._recorder.rows[-1] if self._recorder.rows else {},
        }
        self._keeper.write_status(status)

    # ---- failing

    def _fail(self, error: BaseException) -> NoReturn:
        self._life.fail()  # an interrupt too: the node is half done, so its state is no state to go on from
        error.add_note(f"raised in node `{self._here}` ({self._whereabouts.describe()})")
        try:
            self._write_status("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        except CheckpointError as problem:
            error.add_note(f"the status could not be written either: {problem}")
        raise error.with_traceback(_users_frames(error))

    # ---- words

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)


def _say_on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def _users_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the first frame outside this package on; the whole of it for an error of our own."""
    package = str(Path(__file__).parent.parent)
    traceback = error.__traceback__
    frame = None if isinstance(error, GraphtrainError) else traceback
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if not file.startswith(package):
            return frame
        frame = frame.tb_next
    return traceback
