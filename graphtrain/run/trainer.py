"""The trainer: a graph bound to resources, run, stopped, saved and gone on with."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NoReturn, final

import torch

from graphtrain.checks import checked_graph
from graphtrain.data.fingerprint import fingerprint, is_data
from graphtrain.display.choose import display_for
from graphtrain.display.snapshot import Display, Snapshot
from graphtrain.display.summary import Summary
from graphtrain.errors import CheckpointError, GraphtrainError, LifeCycleError, SaveFailedError, UsageError
from graphtrain.explain.explanation import Explanation
from graphtrain.explain.tracing import Explainer
from graphtrain.graph import Graph
from graphtrain.graph.elements import END
from graphtrain.graph.renaming import Renaming, lost_position_hint
from graphtrain.kind.trigger import Trigger
from graphtrain.metrics.logger import Logger
from graphtrain.metrics.recorder import Recorder
from graphtrain.names import suggestion
from graphtrain.outcome import Outcome
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import CheckpointRequests, Loop, Request, Visit
from graphtrain.program.resources import prepare, prepare_further, refuse_provided, resolve_device
from graphtrain.program.save_policy import SavePolicy
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.resume.environment import RunEnvironment, run_environment
from graphtrain.resume.hyper_parameters import HyperParameters
from graphtrain.resume.restore import Resumption, repeated, restore
from graphtrain.resume.run_files import RunFiles, named_checkpoint
from graphtrain.resume.save import CheckpointWriter
from graphtrain.run.description import beginning_of, summary_of
from graphtrain.run.drawing import html_of
from graphtrain.run.frames import users_frames
from graphtrain.run.life_cycle import LifeCycle
from graphtrain.run.observer import Observer
from graphtrain.run.reporter import Reporter
from graphtrain.run.signals import StopSignals
from graphtrain.run.until import gated_visits, until_trigger
from graphtrain.state.random import seed_everything
from graphtrain.storage.checkpoint import Checkpoint
from graphtrain.storage.state_files import tree_digest


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
        display: shows the run while it goes on. Default: live on a terminal and in a notebook, plain lines elsewhere;
            None shows nothing.
        notify: called with each message for a person, one line each. Default: prints to standard error.
        say: the former name of `notify`.
        about: plain data kept in every checkpoint: the `command`, the `script` (a path), its `arguments`.
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
    ...     display=None,
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
        display: Display | Literal["auto"] | None = "auto",
        notify: Callable[[str], None] | None = None,
        say: Callable[[str], None] | None = None,
        about: Mapping[str, Any] | None = None,
        **resources: Any,
    ) -> None:
        graph = checked_graph(graph)
        self._notify = notify or say or _print_to_stderr
        self._said: set[str] = set()
        if deterministic:
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False
        self._deterministic = deterministic
        self._about = dict(about or {})
        self._resources = dict(resources)
        self._seed = seed
        self._device = resolve_device(device)
        self._life = LifeCycle()
        self._watch = Stopwatch(lambda now: self._reporter.tick(now))
        self._recorder = Recorder(lambda: self._compiled.run_clock.step_and_epoch())
        self._observer = Observer(self._recorder, self._watch, self._device)
        pending: list[Request] = []
        self._requests = CheckpointRequests(pending)
        provided = {
            "checkpoints": self._requests,
            "device": self._device,
            "recorder": self._recorder,
            "running_seconds": self._watch.running,
            "saving": run_dir is not None,
            "notify": self._notify_once,
            "say": self._notify_once,  # the former name of `notify`
            "seed": seed,
        }
        refuse_provided(resources)
        self._prepared = {**prepare(resources, self._device), **provided}
        self._compiled = self._compile(graph, self._resources, self._prepared, pending)
        self._hyper_parameters = HyperParameters(self._compiled.state.stateful)
        self._loop = Loop(self._compiled.start, pending)
        self._explainer = Explainer(pending, self._watch, self._notify_once)
        self._begun = False
        self._end_is_saved = True
        self._run_files = RunFiles(run_dir, self._notify) if run_dir is not None else None
        self._writer = self._writer_of(self._run_files) if self._run_files is not None else None
        self._environment: RunEnvironment | None = None
        self._reporter = Reporter(
            self._watch,
            self.snapshot,
            display_for(self._notify) if display == "auto" else display,
            self._write_status if self._run_files is not None else None,
            loggers,
            self._notify_once,
        )
        own: list[Logger] = [self._run_files.row] if self._run_files is not None else []
        self._recorder.loggers += [*own, self._reporter.row, *self._reporter.loggers]
        self._notify_of_graph()

    def _compile(
        self,
        graph: Graph,
        resources: Mapping[str, Any],
        prepared: Mapping[str, Any],
        pending: list[Request],
        **former: Any,
    ) -> CompiledGraph:
        return CompiledGraph(graph, resources, prepared, pending, self._recorder, self._watch, **former)

    def _writer_of(self, run_files: RunFiles) -> CheckpointWriter:
        writer = CheckpointWriter(
            run_files, self._recorder, self._watch, self._notify, lambda: self._loop.pending.append("written")
        )
        self._requests.is_busy = lambda: writer.is_busy
        return writer

    def _notify_of_graph(self) -> None:
        program = self._compiled.program
        for line in [*program.absent, *program.unread_resources(), *program.timed(), *program.outdated_kinds()]:
            self._notify_once(line)

    # ---- what can be looked at

    @property
    def graph(self) -> Graph:
        """The procedure."""
        return self._compiled.graph

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
                for bound in self._compiled.program.nodes
            }
        )

    @property
    def resources(self) -> Mapping[str, Any]:
        """What was supplied, by name: the same objects."""
        return MappingProxyType(self._resources)

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The rows recorded so far, oldest first; `pandas.DataFrame` takes them as they are."""
        return list(self._recorder.rows)

    def read(self, name: str) -> Any:
        """The value of ``"node.field"`` (``"validate/next_batch.last"``), of a slot (``"batch"``), or of a resource.

        Raises:
            KeyError: there is no such node, field or slot.
        """
        program = self._compiled.program
        path, dot, field = name.partition(".")
        if not dot:
            if name in self._resources:
                return self._resources[name]
            known = [*program.slot_names, *self._resources]
            if name not in known:
                raise KeyError(f"there is no slot `{name}`; {suggestion(name, known)}")
            return program.slots[program.slot_index(name)]
        if path not in program.by_path:
            raise KeyError(f"there is no node `{path}`; {suggestion(path, program.by_path)}")
        bound = program.by_path[path]
        if field in bound.kind.parameters:
            return bound.parameters[field]
        if field not in bound.kind.fields:
            known = [*bound.kind.parameters, *bound.kind.fields]
            raise KeyError(f"`{path}` has no field `{field}`; {suggestion(field, known)}")
        return self._compiled.compiler.field_value(bound, field)

    def explain(self) -> Explanation:
        """Why the last transition went the way it did: which edges were tried, and what their guards read then.

        After `advance`, and after a `run` that was told to `trace`, it is what was read while it happened. After any
        other `run`, which keeps no trace, it is known where the run is over or has failed, and it says so elsewhere.

        >>> model = torch.nn.Linear(2, 1)
        >>> trainer = Trainer(
        ...     Graph.load("fit").set("finish", after="3 steps"),
        ...     model=model,
        ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        ...     train_data=[torch.ones(4, 2)] * 5,
        ...     training_step=lambda model, batch: model(batch).square().mean(),
        ...     display=None,
        ... )
        >>> _ = trainer.run(); print(trainer.explain())
        at step 3, epoch 0.60, batch 3/5:
        `finish` was left
          1. end if finished: taken
               finished = True, from "(finish.due or next_batch.empty) and accumulate.count == 0"
                 finish.due = True (after 3 steps: steps 3, due at 3)
                 accumulate.count = 0
                 next_batch.empty was not asked
          2. decide: not asked
        the run is over
        """
        return self._explainer.explain(self._compiled, self._loop)

    def digest(self) -> str:
        """A hash (SHA-256, hexadecimal) of what the continuation depends on: equal digests mean bitwise equal runs.

        Model, optimizer, scheduler, gradients, random generators, position in the data, progress. Not clocks, not the
        progress of kinds declared `observer`, not a `runs` that nothing reads.

        Raises:
            CheckpointError: something alive at this position has no plain form.
        """
        state = self._compiled.state
        return tree_digest(state.essential(state.capture(self._alive())))

    def save_points(self) -> list[str]:
        """The positions at which everything alive can be saved, as far as the declarations tell."""
        return self._compiled.save_points()

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds by activity, summed over interruptions: `data`, `train`, `validate`, `save`, ...

        These are times of the host: what a device still computes is not waited for.
        """
        return MappingProxyType(self._watch.seconds())

    def snapshot(self) -> Snapshot:
        """Where the run is and how it goes: what a display shows, and what `status.json` holds."""
        return self._observer.snapshot(self.state, self.graph.name, self.position, self._compiled.run_clock)

    def summary(self) -> Summary:
        """The models with their parameters, and what the graph does when; it prints, and shows itself in a notebook."""
        return summary_of(self._compiled.program)

    def __repr__(self) -> str:
        return f"<Trainer of {self.graph.name}: {self.state}, {self._compiled.run_clock.describe()}>"

    def _repr_html_(self) -> str:
        counts = {path: fields["runs"] for path, fields in self.progress.items()}
        lines = [f"{self.state}: {self._compiled.run_clock.describe()}; next: {self.position}"]
        lines += [f"{name} {value:.4g}" for name, value in self._recorder.latest.items()]
        return html_of(self.graph, counts, None if self._loop.ended else self.position, lines)

    # ---- running

    def run(
        self,
        resume: str | Path = "auto",
        until: str | None = None,
        *,
        from_setup: str | Iterable[str] = (),
        from_saved: bool = False,
        rename: Mapping[str, str] | None = None,
        trace: Callable[[Explanation], Any] | None = None,
    ) -> Outcome:
        """Run to the end, or until an amount is reached; call it again to go on.

        Arguments:
            resume: used by the first call. "auto" goes on from the newest sound checkpoint in the run directory, or
                begins; "never" refuses a directory that holds a run; a path names a checkpoint.
            until: an amount such as ``"500 steps"``: everything it makes due is done, and no further batch is fetched.
                Default: no limit but the graph's own.
            from_setup: used by the first call, where hyper-parameters of the optimizer, the scheduler and the like are
                not those that the run was set up with: which of them to take as they are now, such as
                ``"optimizer.lr,scheduler"``. Default: none.
            from_saved: True keeps the others as they were saved. Default: a difference that is left is an error.
            rename: used by the first call, where nodes are not called as in the saved graph: former path -> path now,
                such as ``{"accumulate": "gather"}``. A node takes what is inside it along. Default: all are.
            trace: called with an `Explanation` after every transition, as in ``trace=print``. Default: none, and no
                time is spent on it.

        A graph other than the saved one is gone on in where the run stands. Nodes keep their progress by their names,
        that of nodes which are gone is left out, and a new node begins with its own. A new trigger, or one with
        another unit, counts from there; a shorter interval of the same unit that has passed meanwhile is due at once.
        Another `accumulate.every` holds at once, for a window that is open too: what is in it keeps its weight. All
        that is said.

        Raises:
            LifeCycleError: the run is running, or has failed.
            UsageError: `until` or `resume` cannot be used, hyper-parameters differ, or the graph does not have the node
                before which the run stands, or needs a slot there that was not saved.
            CheckpointError: the checkpoint does not fit what was supplied, or none can be written.
        """
        limit = until_trigger(until, self.graph) if until is not None else Trigger("never")
        visits = gated_visits(self._compiled, limit, self._loop.pending, self._visits(trace))
        how = Resumption.of(resume, from_setup, from_saved, rename)
        with StopSignals(self._request_stop), self._going(how, limit):
            if not self._loop.ended:
                return self._drive(visits, is_traced=trace is not None)
            if self._end_is_saved:
                return Outcome.ALREADY_FINISHED
            self._save_end()
            return Outcome.FINISHED

    def advance(
        self,
        n: int = 1,
        resume: str | Path = "auto",
        *,
        from_setup: str | Iterable[str] = (),
        from_saved: bool = False,
        rename: Mapping[str, str] | None = None,
    ) -> str:
        """Run `n` transitions, and return the position; fewer if the run ends. The other arguments are those of `run`.

        Raises:
            LifeCycleError: the run is running, finished or failed.
        """
        with self._going(Resumption.of(resume, from_setup, from_saved, rename)):
            if self._loop.ended:
                raise LifeCycleError("the run is finished", "raise its ending, as in finish.after, to go on")
            for _ in range(n):
                if not self._loop.ended:
                    self._one_transition()
        return self.position

    def run_gated(self, gate: Callable[[CompiledGraph, Loop], list[Visit]], resume: str | Path = "auto") -> Outcome:
        """Run by other visits, which ask for a pause where they like: how a past run is gone through again.

        Arguments:
            gate: given what is run and the loop, once both stand where the run goes on; answers the visits.
            resume: used by the first call, as in `run`; hyper-parameters stay as they were saved.
        """
        with self._going(Resumption.of(resume, (), from_saved=True)):
            visits = gate(self._compiled, self._loop)
            return Outcome.ALREADY_FINISHED if self._loop.ended else self._drive(visits)

    def rewire(self, graph: Graph | str | Path, rename: Mapping[str, str] | None = None, **resources: Any) -> None:
        """Go on with another graph, in place: position, progress, data, gradients and random numbers stay as they are.

        Nodes that are in both graphs under one path keep their progress; those that are just as they were are not even
        set up again, so an iterator that one of them holds goes on.

        Arguments:
            rename: former path -> path now, of nodes that were renamed. Default: none.
            resources: further ones that the graph reads, or others in the place of those supplied before. A model
                comes with its own step functions, where none were given.

        Whatever it raises, a kind's own `setup` included, the run stands as before.

        Raises:
            LifeCycleError: the run is running, or has failed.
            GraphError: the graph has problems, or reads a resource that is missing.
            UsageError: the run stands at a node, or needs a slot there, that the graph does not have; or `rename` names
                no node.
            DataError: the data would be opened anew inside an epoch, and the place in it cannot be found.

        >>> model = torch.nn.Linear(2, 1)
        >>> trainer = Trainer(
        ...     Graph.load("fit").set("finish", after="3 steps"),
        ...     model=model,
        ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        ...     train_data=[torch.ones(4, 2)] * 5,
        ...     training_step=lambda model, batch: model(batch).square().mean(),
        ...     display=None,
        ... )
        >>> _ = trainer.run(); trainer.rewire(trainer.graph.set("accumulate", every=2).set("finish", after="5 steps"))
        >>> trainer.run(), trainer.progress["step"]["steps"]
        (<Outcome.FINISHED: 'the run is finished'>, 5)
        """
        self._life.refuse_change()
        graph, renamed = checked_graph(graph), dict(rename or {})
        refuse_provided(resources)
        all_resources = {**self._resources, **resources}
        policy, state = self._requests.policy, self._compiled.state
        random = state.capture_generators()
        try:
            prepared = prepare_further(self._prepared, all_resources, resources, self._device)
            here = self._circumstances_with(all_resources)  # before the data is opened: looking at it may draw from it
            compiled, position = self._rewired(graph, renamed, all_resources, prepared)
            hyper_parameters = HyperParameters(compiled.state.stateful, former=self._hyper_parameters)
        except BaseException:
            self._requests.policy = policy  # which the `setup` of a `checkpoint` may have changed
            raise
        finally:
            state.restore_generators({"random": random})
        self._resources, self._prepared, self._environment = all_resources, prepared, here
        self._compiled, self._loop.position, self._hyper_parameters = compiled, position, hyper_parameters
        self._explainer.is_rewired()
        self._notify_of_graph()
        if self._begun:
            self._announce()

    def _circumstances_with(self, resources: Mapping[str, Any]) -> RunEnvironment | None:
        """Those of the start, with the data that is new since."""
        if self._environment is None:
            return None
        new = {name: one for name, one in resources.items() if self._resources.get(name) is not one}
        data = {name: fingerprint(one) for name, one in new.items() if is_data(name, one)}
        kept = {name: one for name, one in self._environment.data.items() if resources.get(name) is not None}
        return replace(self._environment, data={**kept, **data})

    def _rewired(
        self, graph: Graph, renamed: Mapping[str, str], resources: Mapping[str, Any], prepared: Mapping[str, Any]
    ) -> tuple[CompiledGraph, int]:
        """The run as it stands, in another graph."""
        former = self._compiled
        renaming = Renaming(renamed, former.graph, graph)
        if not self._begun:
            new = self._compile(graph, resources, prepared, self._loop.pending)
            return new, new.start
        new = self._compile(graph, resources, prepared, self._loop.pending, former=former, renaming=renaming)
        path = renaming.path(self._here)
        hint = lost_position_hint(path, former.graph.diff(graph), new.program.by_path)
        held = {renaming.slot(name) for name in former.written_names()}
        position = new.locate(path, held, self._loop.ended, hint)
        new.go_on_after(former, position, renaming)
        for line in new.run_clock.mixed_windows(former.graph, renaming):
            self._notify(line)
        return new, position

    def save(self) -> Path | None:
        """Save a checkpoint now.

        At a position that is no save point the run first goes on to the next one, and says so. From inside a node it
        is a request, and None is returned; otherwise the path of the checkpoint, which is then on disk.

        Raises:
            UsageError: there is no run directory.
            CheckpointError: it cannot be written.
        """
        if self._run_files is None:
            raise UsageError("there is nowhere to save", "give the Trainer a run_dir")
        if self._loop.inside:
            self._requests.request()
            return None
        with self._going(Resumption()):
            while not self._save_here(self._policy_to_stop):
                self._notify(f"`{self.position}` is no save point; going on to the next one")
                self._one_transition()
        return self._run_files.latest[0] if self._run_files.latest is not None else None

    def _drive(self, visits: list[Visit], *, is_traced: bool = False) -> Outcome:
        if not is_traced:
            self._explainer.goes_untraced()
        try:
            return self._loop.drive(visits, self._serve)
        except SaveFailedError:
            self._loop.pending.clear()
            raise
        except BaseException as error:
            self._fail(error)

    def _visits(self, trace: Callable[[Explanation], Any] | None) -> list[Visit]:
        """The visits of a run: traced by another table, or not at all."""
        return self._compiled.table.visits if trace is None else self._explainer.visits(self._compiled, trace)

    def _one_transition(self) -> None:
        self._loop.pending.append("pause")
        self._drive(self._explainer.visits(self._compiled), is_traced=True)

    def _serve(self) -> Outcome | None:
        """Do what was requested during the last transition, where this position allows it."""
        pending = self._loop.pending
        if "written" in pending:
            pending.remove("written")
            self._settle()
        if "ended" in pending:
            self._loop.ended, self._end_is_saved = True, False
            pending.clear()
            self._save_end()
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
    def _going(self, how: Resumption, limit: Trigger | None = None) -> Iterator[None]:
        """The run is running inside this block; it begins, or goes on after a resume, the first time.

        Arguments:
            limit: the amount to run until; None where only some transitions are run, and nothing is shown of them.
        """
        self._life.start()
        try:
            with self._run_files.held() if self._run_files is not None else nullcontext():
                try:
                    with self._saves_completed():
                        self._get_ready(how, limit)
                        yield
                finally:
                    self._stand_still()
        except BaseException:
            if self._life.is_running:  # it never began
                self._life.stop()
            raise

    def _get_ready(self, how: Resumption, limit: Trigger | None) -> None:
        if not self._begun:
            self._begin(how)
            self._begun = True
        if self._loop.ended:  # the ending may have been raised meanwhile
            self._loop.choose_again(self._compiled.table.exits)
            if not self._loop.ended and (line := self._compiled.run_clock.cut_window()) is not None:
                self._notify(line)
        if self._compiled.activity(self._loop.position) is None:
            for name in self._compiled.state.trained_in_evaluation_mode():
                self._notify_once(
                    f"`{name}` is in evaluation mode and is trained so, without dropout and with fixed statistics; "
                    f"call {name}.train() before, unless that is meant"
                )
        self._observer.begin(self._compiled.run_clock, limit.terms if limit is not None else ())
        self._watch.start(inside=self._compiled.activity(self._loop.position))
        self._reporter.begin(self._watch.now(), shown=limit is not None)

    @contextmanager
    def _saves_completed(self) -> Iterator[None]:
        """A span that leaves no save under way; an interruption, which is to stop at once, leaves it to itself."""
        try:
            yield
        except KeyboardInterrupt:
            if self._writer is not None:
                self._writer.give_up()
            raise
        except BaseException as error:
            try:
                self._wait_for_saves()
            except CheckpointError as problem:
                error.add_note(f"a checkpoint could not be written either: {problem}")
            raise
        self._wait_for_saves()

    def _wait_for_saves(self) -> None:
        if self._writer is not None:
            with self._watch.measure("save"):
                written = self._writer.wait()
            if written:
                self._write_status()

    def _stand_still(self) -> None:
        self._watch.stop()
        was_running = self._life.is_running
        if was_running:
            (self._life.finish if self._loop.ended and self._end_is_saved else self._life.stop)()
        self._reporter.end()
        # A signal that came while it was about to stand still asks for what is done already.
        self._loop.pending[:] = [request for request in self._loop.pending if request != "stop"]
        if was_running and self._begun:
            self._write_status()

    def _request_stop(self, signal_name: str) -> None:
        # Called from a signal handler: nothing but the flag. The transition under way ends first.
        self._loop.pending.append("stop")

    # ---- beginning and resuming

    def _begin(self, how: Resumption) -> None:
        if self._run_files is not None:
            checkpoint = self._run_files.find(how.resume)
        else:
            checkpoint = named_checkpoint(how.resume) if how.named else None
        # Before anything is restored: looking at data may draw from a generator of its own.
        if self._run_files is not None or checkpoint is not None:
            self._environment = run_environment(
                self._resources, self._about, deterministic=self._deterministic, seed=self._seed
            )
        if checkpoint is None:
            if self._seed is not None:
                seed_everything(self._seed)
            if self._run_files is not None:
                self._recorder.load_rows(self._run_files.go_on_from(None))
            self._compiled.begin()
        else:
            self._resume(checkpoint, how)
        if self._run_files is not None and self._environment is not None:
            start = {**self._environment.as_plain(), "checkpoint": checkpoint.path.name if checkpoint else None}
            self._run_files.started(self._environment.origin, start)
        if self._writer is not None:
            self._writer.check(self._compiled, self._loop)
        self._announce()
        self._write_status()

    def _resume(self, checkpoint: Checkpoint, how: Resumption) -> None:
        manifest, run_files = checkpoint.manifest, self._run_files
        status = run_files.last_status() if run_files is not None else {}
        self._watch.load(manifest["seconds"])  # first: nodes that measure time mark it when they are set up
        restored = restore(checkpoint, self._compiled, self._hyper_parameters, how)
        self._loop.position, self._loop.ended = restored.position, restored.ended
        run_clock = self._compiled.run_clock
        assert self._environment is not None, "set before"
        where = str(run_files.path) if run_files is not None else checkpoint.path.name
        line = [
            f"resumed {where}" + (f" from {checkpoint.path.name}" if how.named and run_files is not None else ""),
            run_clock.describe(),
        ]
        own = run_files is not None and run_files.is_own(checkpoint)
        facts = [
            repeated(run_clock.trained(), status) if own else "",
            restored.aside,
            self._environment.compared(manifest, restored.changes),
        ]
        self._notify(f"{': '.join(line)}; " + "; ".join(one for one in facts if one))
        for one in restored.below:
            self._notify(one)
        if run_files is not None:
            self._recorder.load_rows(run_files.go_on_from(checkpoint))
            if restored.decided or not run_files.is_newest(checkpoint):
                # On the disk before anything else, so that from now on a resume goes on with this.
                self._save_here(replace(self._policy_to_stop, mode="sync"))

    def _announce(self) -> None:
        given = {**self._about.get("arguments", {}), "seed": self._seed}
        run_dir = self._run_files.path if self._run_files is not None else None
        program = self._compiled.program
        self._reporter.announce(beginning_of(program, self._hyper_parameters, self._recorder.rows, given, run_dir))

    # ---- saving

    @property
    def _here(self) -> str:
        return self._compiled.path(self._loop.position)

    def _alive(self) -> set[int]:
        return self._compiled.alive(self._loop.position, self._loop.ended)

    def _save_end(self) -> None:
        """Save what came of the run; it may have gone on without a checkpoint, but it does not end without one."""
        if self._run_files is not None:
            self._save_here(self._policy_to_stop)
        self._wait_for_saves()
        self._end_is_saved = True

    def _save_if_kept(self) -> bool:
        """Save if there is somewhere to save to; False where this is no save point."""
        return self._run_files is None or self._save_here()

    @property
    def _policy_to_stop(self) -> SavePolicy:
        return replace(self._requests.policy, if_failed="stop")

    def _save_here(self, policy: SavePolicy | None = None) -> bool:
        """Save at this position; False where it is no save point."""
        if self._run_files is None:
            self._notify_once("there is no run directory, so no checkpoint is written")
            return True
        assert self._writer is not None and self._environment is not None, "set when the run begins"
        if policy is None:
            policy = self._requests.policy
        if not self._writer.save(self._compiled, self._loop, self._environment, self._hyper_parameters, policy):
            return False
        self._settle()
        return True

    def _settle(self) -> None:
        """Note that a checkpoint was written, if one was."""
        if self._writer is not None and self._writer.settle():
            self._write_status()

    def _write_status(self, state: str | None = None) -> None:
        if self._run_files is None:
            return
        snapshot = self.snapshot()
        status = {
            "state": state or snapshot.state,
            "graph": snapshot.graph,
            "position": snapshot.position,
            "step": snapshot.step,
            "epoch": snapshot.epoch,
            "place": self._compiled.run_clock.describe(),
            "trained": self._compiled.run_clock.trained(),
            "metrics": self._recorder.rows[-1] if self._recorder.rows else {},
            "snapshot": replace(snapshot, state=state or snapshot.state).as_plain(),
        }
        try:
            self._run_files.write_status(status)
        except CheckpointError as error:  # it is for those outside; the run does without
            self._notify_once(f"{error.message}; the run goes on")

    # ---- failing

    def _fail(self, error: BaseException) -> NoReturn:
        self._life.fail()  # an interrupt too: the node is half done, so its state is no state to go on from
        self._explainer.fails(error)
        error.add_note(f"raised in node `{self._here}` ({self._compiled.run_clock.describe()})")
        self._write_status("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        frames = None if isinstance(error, GraphtrainError) else users_frames(error.__traceback__)
        raise error.with_traceback(frames or error.__traceback__)

    # ---- words

    def _notify_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._notify(line)


def _print_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201
