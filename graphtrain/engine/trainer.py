"""The trainer: a graph bound to resources, run, stopped, saved and gone on with."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NoReturn, final

import torch

from graphtrain.checks import check_graph
from graphtrain.elements import END
from graphtrain.engine.environment import environment, environment_changes
from graphtrain.engine.life_cycle import LifeCycle
from graphtrain.engine.liveness import live_slots
from graphtrain.engine.program import Bound, BoundGraph, Program
from graphtrain.engine.resources import prepare, resolve_device
from graphtrain.engine.signals import StopSignals
from graphtrain.engine.triggers import after
from graphtrain.engine.visits import Compiler
from graphtrain.errors import CheckpointError, GraphError, GraphtrainError, LifeCycleError, UsageError
from graphtrain.graph import Graph
from graphtrain.metrics.recorder import Logger, Recorder
from graphtrain.names import suggestion
from graphtrain.outcome import Outcome
from graphtrain.problem import Problem
from graphtrain.state.capture import State
from graphtrain.state.random import seed_everything
from graphtrain.storage.checkpoint import Checkpoint, read_checkpoint
from graphtrain.storage.plain import UnsaveableError
from graphtrain.storage.run_directory import METRICS_FILE, MetricsFile, RunDirectory
from graphtrain.storage.store import FolderStore
from graphtrain.storage.tree import tree_digest
from graphtrain.text.canonical import structural_hash
from graphtrain.text.read import Draft, read_graph
from graphtrain.trigger import MULTIPLES, Trigger

# What the loop stops to serve: it looks at one list, and only when that is not empty.
Request = Literal["save", "stop", "pause", "reached", "ended"]

# A slot that cannot be saved in this many transitions never can be.
_MOST_ATTEMPTS = 10_000


class CheckpointRequests:
    """What the kind `checkpoint` speaks to: it asks, and the engine saves once the exit edge is chosen."""

    def __init__(self, pending: list[Request]) -> None:
        self._pending = pending
        self.keep = 2

    def request(self) -> None:
        """Ask for a checkpoint at the next save point."""
        if "save" not in self._pending:
            self._pending.append("save")


@final
class Trainer:
    """A graph bound to a model, data and optimizers.

    Everything that is missing or does not fit is reported together, before anything trains.

    Arguments:
        graph: a `Graph`, the name of a shipped one, or a path.
        run_dir: where checkpoints, metrics and status go. Default: none; nothing is written.
        seed: seeds Python, NumPy and torch here, and data and evaluation. None leaves the generators as they are.
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
        self._about = dict(about or {})
        if deterministic:
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False
        self._deterministic = deterministic
        self._device = resolve_device(device)
        self._life = LifeCycle()
        self._pending: list[Request] = []
        self._requests = CheckpointRequests(self._pending)
        self._recorder = Recorder(self._step_and_epoch)
        self._seed = seed
        prepared = prepare(resources, self._device)
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
        self._program = Program(self.graph, {**prepared, **provided})
        self._compiler = Compiler(self._program, ended=lambda: self._pending.append("ended"))
        self._visits = self._compiler.table.visits
        self._report_missing(resources)
        self._live_before, self._live_after = live_slots(self._program, self._compiler.table.asked)
        self._transient = {
            index
            for bound in self._program.nodes
            for slot, index in zip(bound.kind.writes, bound.writes, strict=False)
            if slot in bound.kind.transient
        }
        self._state = State(self._program, resources, self._recorder)
        self._position = self._program.main.nodes[self.graph.start].index
        self._ended = False
        self._begun = False
        self._inside = False
        self._attempts = 0
        self._latest: Path | None = None
        self._latest_digest = ""
        self._directory = RunDirectory(run_dir) if run_dir is not None else None
        if self._directory is not None:
            self._store = FolderStore(self._directory.checkpoints, self._say)
            self._metrics_file = MetricsFile(self._directory.path / METRICS_FILE)
            self._recorder.loggers.append(lambda row, step: self._metrics_file.append(row))
        self._recorder.loggers += loggers
        for line in self._program.absent:
            self._say_once(line)
        for name in self._program.unread_resources():
            hint = suggestion(name, sorted(self._program.asked))
            self._say_once(f"nothing in the graph reads `{name}`" + (f"; {hint}" if "did you" in hint else ""))
        if seed is not None:
            seed_everything(seed)

    # ---- what can be looked at

    @property
    def position(self) -> str:
        """The path of the node that runs next, such as ``"validate/next_batch"``; ``"end"`` when the run is over."""
        return END if self._ended else self._program.nodes[self._position].path

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
            return self._program.slots[self._program.slot_names.index(name)]
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
        watched = self._watch(until)
        with self._going(resume), StopSignals(self._request_stop):
            return Outcome.ALREADY_FINISHED if self._ended else self._drive(watched)

    def advance(self, n: int = 1, resume: str | Path = "auto") -> str:
        """Run `n` transitions, and return the position; fewer if the run ends.

        Raises:
            LifeCycleError: the run is running, finished or failed.
        """
        with self._going(resume):
            if self._ended:
                raise LifeCycleError("the run is finished", "raise its ending, as in finish.after, to go on")
            for _ in range(n):
                if self._ended:
                    break
                self._pending.append("pause")
                self._drive(self._visits)
        return self.position

    def save(self) -> Path | None:
        """Save a checkpoint now.

        At a position that is no save point the run first goes on to the next one, and says so. From inside a node it
        is a request, and None is returned; otherwise the path of the checkpoint, which is then on disk.

        Raises:
            UsageError: there is no run directory.
            CheckpointError: it cannot be written.
        """
        if self._directory is None:
            raise UsageError("there is nowhere to save", "give the Trainer a run_dir")
        if self._inside:
            self._requests.request()
            return None
        with self._going("auto"):
            while not self._save_now():
                self._say(f"`{self.position}` is no save point; going on to the next one")
                self._pending.append("pause")
                self._drive(self._visits)
        return self._latest

    # ---- the loop

    def _drive(self, visits: list[Callable[[], int]]) -> Outcome:
        """Run until something asks to stop. This is the loop; everything else is bound before it or served after it."""
        pending = self._pending
        position = self._position
        self._inside = True
        try:
            while True:
                position = visits[position]()
                if pending:
                    self._position = position
                    if (outcome := self._serve()) is not None:
                        return outcome
        except BaseException as error:
            self._position = position
            self._fail(error)
        finally:
            self._inside = False

    def _serve(self) -> Outcome | None:
        """Do what was requested during the last transition, where this position allows it."""
        pending = self._pending
        if "ended" in pending:
            self._ended = True
            pending.clear()
            if self._directory is not None:
                self._save_now()
            return Outcome.FINISHED
        if "save" in pending and self._save_now():
            pending.remove("save")
        if "stop" in pending:
            if self._life.state == "running":
                self._life.ask_to_stop()
            if self._directory is None or self._save_now():
                pending.clear()
                return Outcome.STOPPED
        if "reached" in pending:
            pending.clear()
            if self._directory is not None:
                self._save_now()
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
            if self._ended:
                self._ask_ending_again()
            yield
        except BaseException:
            if self._life.is_running:
                self._life.stop()
            raise
        if self._ended:
            self._life.finish()
        elif self._life.is_running:
            self._life.stop()
        self._write_status()

    def _request_stop(self, signal_name: str) -> None:
        # Called from a signal handler: nothing but the flag. The transition under way ends first.
        self._pending.append("stop")

    def _watch(self, until: str | None) -> list[Callable[[], int]]:
        """The visits, with one that stops instead of fetching a further batch once the amount is reached."""
        if until is None:
            return self._visits
        try:
            trigger = Trigger(until)
        except ValueError as error:
            raise UsageError(f"until: {error}") from None
        units = self.graph.units
        for term in trigger.terms:
            if MULTIPLES.get(term.unit, (term.unit, 1))[0] not in units:
                raise UsageError(f"until: unknown unit `{term.unit}`", suggestion(term.unit, [*units, *MULTIPLES]))
        main = self._program.main
        terms = [
            (self._compiler.clock(owner, field), term)
            for owner, field, term in self._program.terms(next(iter(main.nodes.values())), trigger)
        ]
        due = after(terms)
        unit = "batches" if "batches" in units else trigger.terms[0].base.unit
        gate = main.nodes[units[unit].partition(".")[0]].index
        visits = list(self._visits)
        visit, pending = visits[gate], self._pending

        def watched() -> int:
            if due():
                pending.append("reached")
                return gate
            return visit()

        visits[gate] = watched
        return visits

    # ---- beginning and resuming

    def _begin(self, resume: str | Path) -> None:
        checkpoint = self._find(resume)
        if checkpoint is None:
            if self._directory is not None:
                self._metrics_file.cut(0)
            self._compiler.enter(self._program.main, reset=True)
        else:
            self._restore(checkpoint)
        self._write_status()

    def _ask_ending_again(self) -> None:
        """The run had ended: choose that edge again, since the ending may have been raised meanwhile."""
        self._position = self._compiler.table.exits[self._position]()
        self._ended = "ended" in self._pending
        self._pending.clear()

    def _find(self, resume: str | Path) -> Checkpoint | None:
        if self._directory is None:
            if resume not in ("auto", "never"):
                return read_checkpoint(Path(resume))
            return None
        self._store.remove_leftovers()
        if resume == "never":
            if self._directory.holds_a_run():
                raise UsageError(
                    f"`{self._directory.path}` holds a run already", "choose another run directory, or resume"
                )
            return None
        if resume == "auto":
            newest = self._store.newest()
            if newest is None and self._directory.holds_a_run():
                self._say(f"`{self._directory.path}` holds no checkpoint yet: the run begins anew")
            return newest
        path = Path(resume)
        if not path.is_dir() and (self._directory.checkpoints / path).is_dir():
            path = self._directory.checkpoints / path
        return read_checkpoint(path)

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
        self._position = bound.index
        self._ended = bool(manifest["ended"])
        for index in sorted(self._alive()):
            if (name := self._program.slot_names[index]) not in tree["slots"]:
                raise UsageError(f"this graph needs the slot `{name}` at `{path}`, which the checkpoint does not hold")
        self._state.restore_objects(tree)
        self._state.restore_progress(tree)
        for scope in reversed(list(_scopes_around(bound.scope))):
            self._compiler.enter(scope, reset=False)
        if self._directory is not None:
            inside = checkpoint.path.resolve().is_relative_to(self._directory.path.resolve())
            self._recorder.rows = self._metrics_file.cut(manifest["metrics_bytes"] if inside else 0)
        self._state.restore_generators(tree)
        if not changed_graph and (found := self.digest()) != manifest["digest"]:
            raise CheckpointError(
                f"{checkpoint.path}: the state loaded is not the state saved "
                f"(digest {found[:12]} instead of {manifest['digest'][:12]})",
                "a resource has state that its state_dict does not load back exactly",
            )
        changes = environment_changes(manifest["environment"], environment(self._deterministic))
        if changed_graph:
            changes.append("the graph")
        exact = "unchanged: exact" if not changes else "changed: " + ", ".join(changes)
        self._say(f"resumed {checkpoint.path.name}: {self._describe_place()}; {exact}")
        self._latest, self._latest_digest = checkpoint.path, manifest["digest"]

    # ---- saving

    def _alive(self) -> set[int]:
        return (self._live_after if self._ended else self._live_before)[self._position]

    def _save_now(self) -> bool:
        """Save at this position. False where it is no save point."""
        if self._directory is None:
            self._say_once("there is no run directory, so no checkpoint is written")
            return True
        if self._alive() & self._transient:
            return self._not_here("it is declared transient")
        tree = self._state.capture(self._alive())
        step, epoch = self._step_and_epoch()
        try:
            manifest = {
                "graph": self.graph.to_json(),
                "graph_hash": structural_hash(self.graph),
                "position": self._program.nodes[self._position].path,
                "ended": self._ended,
                "digest": tree_digest(self._state.essential(tree)),
                "step": step,
                "epoch": epoch,
                "metrics_bytes": self._metrics_file.flush(),
                "environment": environment(self._deterministic),
                "about": self._about,
            }
            self._latest = self._store.save(tree, manifest, step=step, keep=self._requests.keep)
            self._latest_digest = manifest["digest"]
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

    def _write_status(self) -> None:
        if self._directory is None:
            return
        step, epoch = self._step_and_epoch()
        status: dict[str, Any] = {
            "state": self._life.state,
            "graph": self.graph.name,
            "position": self.position,
            "step": step,
            "epoch": epoch,
            "checkpoint": self._latest.name if self._latest is not None else None,
            "digest": self._latest_digest,
            "process": os.getpid(),
            "written_at_unix_seconds": round(time.time(), 3),
        }
        if self._recorder.rows:
            status["metrics"] = self._recorder.rows[-1]
        self._directory.write_status(status)

    # ---- failing

    def _fail(self, error: BaseException) -> NoReturn:
        path = self._program.nodes[self._position].path
        if isinstance(error, KeyboardInterrupt):
            self._life.stop()
            raise error
        self._life.fail()
        error.add_note(f"raised in node `{path}` ({self._describe_place()})")
        try:
            self._write_status()
        except OSError as problem:
            error.add_note(f"the status could not be written either: {problem}")
        raise error.with_traceback(_users_frames(error))

    # ---- words

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)

    def _clock(self, unit: str) -> Fraction | None:
        text = self.graph.units.get(unit)
        if text is None:
            return None
        owner, _, field = text.partition(".")
        return Fraction(getattr(self._program.main.nodes[owner].instance, field))

    def _step_and_epoch(self) -> tuple[int, float]:
        return int(self._clock("steps") or 0), float(self._clock("epochs") or 0)

    def _describe_place(self) -> str:
        """Step, epoch, batch and window, as far as the graph counts them."""
        parts = []
        for unit, word in (("steps", "step"), ("epochs", "epoch"), ("epoch_batches", "batch")):
            if (value := self._clock(unit)) is not None:
                parts.append(f"{word} {int(value) if value.denominator == 1 else f'{float(value):.2f}'}")
        for bound in self._program.main.nodes.values():
            for name, declared in bound.kind.fields.items():
                if declared.counts is not None and (count := getattr(bound.instance, name)):
                    parts.append(f"window {count}/{bound.parameters.get('every', '?')}")
        return ", ".join(parts) or f"at {self.position}"

    def _report_missing(self, resources: Mapping[str, Any]) -> None:
        problems = []
        missing_once = {missing.slot: missing for missing in reversed(self._program.missing)}
        for one in missing_once.values():
            readers = sorted({missing.reader for missing in self._program.missing if missing.slot == one.slot})
            hint = suggestion(one.slot, [name for name in resources if name not in self._program.asked])
            if "did you mean" not in hint:
                hint = f"supply it: Trainer(..., {one.slot}=...), or let `setup` return it"
            message = (
                f"`{one.slot}` is read by {', '.join(f'`{reader}`' for reader in readers)}, and nothing supplies it"
            )
            problems.append(Problem("G301", "error", f"{self.graph.name}: nodes.{one.reader}", message, hint))
        if problems:
            raise GraphError(problems)


def checked_graph(source: Graph | str | Path) -> Graph:
    """A graph without errors.

    Raises:
        GraphError: it has some; warnings do not count.
        UsageError: there is no such graph.
    """
    draft = Draft(source, []) if isinstance(source, Graph) else read_graph(source)
    problems = draft.problems or check_graph(draft.graph)
    if any(problem.severity == "error" for problem in problems):
        raise GraphError(problems, f"graph `{draft.graph.name}`")
    return draft.graph


def _scopes_around(scope: BoundGraph) -> Iterator[BoundGraph]:
    yield scope
    outer: Bound | None = scope.outer
    if outer is not None:
        yield from _scopes_around(outer.scope)


def _say_on_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def _users_frames(error: BaseException) -> Any:
    """The traceback from the first frame outside this package on; the whole of it for an error of our own."""
    package = str(Path(__file__).parent.parent)
    traceback = error.__traceback__
    if isinstance(error, GraphtrainError):
        return traceback
    frame = traceback
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if not file.startswith(package):
            return frame
        frame = frame.tb_next
    return traceback
