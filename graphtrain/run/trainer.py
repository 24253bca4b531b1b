"""The trainer: a graph bound to resources, run, stopped, saved and resumed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NoReturn, final

import torch

from graphtrain.checks import checked_graph
from graphtrain.data.loader import derived_seed
from graphtrain.data.loaders import is_data
from graphtrain.data.state import DataState
from graphtrain.display.choose import display_for
from graphtrain.display.snapshot import Display, Snapshot
from graphtrain.display.summary import Summary
from graphtrain.distributed import current_ranks, fails_on_all_ranks
from graphtrain.errors import (
    CheckpointError,
    DataError,
    GraphtrainError,
    GuardError,
    LifeCycleError,
    NotFiniteError,
    RanksError,
    SaveFailedError,
    UnknownMetricError,
    UsageError,
)
from graphtrain.explain.explanation import Explanation
from graphtrain.explain.tracing import Explainer
from graphtrain.graph import Graph
from graphtrain.graph.canonical import structural_hash
from graphtrain.graph.elements import END
from graphtrain.graph.renaming import Renaming
from graphtrain.kind.trigger import Trigger
from graphtrain.metrics.logger import Logger
from graphtrain.metrics.recorder import Recorder
from graphtrain.metrics.values import loss_that_is_not_finite, not_finite_since
from graphtrain.names import quoted
from graphtrain.nodes._late import bind
from graphtrain.outcome import Outcome
from graphtrain.program.agreement import Agreement
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.factories import Factory, Renewals, Renewed
from graphtrain.program.horizon import lines_about_steps, other_horizons
from graphtrain.program.loop import Loop, Transition
from graphtrain.program.made import made_resources, with_copies
from graphtrain.program.node_times import NodeTimes
from graphtrain.program.requests import Requests, Return, SavePolicy
from graphtrain.program.resources import prepare, prepare_further, resolve_device
from graphtrain.program.run_state import OF_NODES
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.resume.capture import Resumable
from graphtrain.resume.environment import RunEnvironment, run_environment
from graphtrain.resume.hyper_parameters import HyperParameters
from graphtrain.resume.load_weights import load_weights
from graphtrain.resume.rank_resume import choose, resized
from graphtrain.resume.rank_saves import RankSaves
from graphtrain.resume.report import report
from graphtrain.resume.restore import Restored, ResumeOptions, repeated, restore
from graphtrain.resume.rewiring import move
from graphtrain.resume.save import CheckpointWriter
from graphtrain.resume.setup_change import SetupHashes, made_otherwise, setup_changes
from graphtrain.run.breakpoints import Breakpoint, at_limit, before_node, parse_amount, replay_options, with_breakpoints
from graphtrain.run.debugger import untimed_breakpoints
from graphtrain.run.drawing import html_of
from graphtrain.run.equal_ranks import (
    buffers_of,
    refuse_models,
    require_equal,
    require_equal_weights,
    require_one_folder,
    versions_of,
)
from graphtrain.run.frames import users_frames
from graphtrain.run.life_cycle import LifeCycle
from graphtrain.run.memory_trend import MemoryTrend
from graphtrain.run.monitors import Monitors
from graphtrain.run.observer import Observer, memory_bytes
from graphtrain.run.out_of_memory import out_of_memory_note
from graphtrain.run.overview import beginning_of, progress_of, summary_of, value_of
from graphtrain.run.reporter import Reporter
from graphtrain.run.signals import stop_signals
from graphtrain.state.random import (
    RandomAside,
    capture_random,
    global_generators,
    restore_random,
    seed_everything,
    seed_given,
    seed_the_rest,
)
from graphtrain.storage.checkpoint import Checkpoint, read_checkpoint, read_manifest
from graphtrain.storage.lineage import OWN, Lineage
from graphtrain.storage.run_files import Lead, RunFiles, named_checkpoint, named_folder

bind()  # what kinds work with, or the first batch would wait for it

_NOT_FINITE = "--overlay check_finite names the batch, and can drop it"


@final
class Trainer:
    """A graph bound to a model, data and optimizers.

    Everything that is missing or does not fit is reported together, before anything trains.

    In a process that was started as one of several, with ``RANK`` and ``WORLD_SIZE`` in its environment, it is one rank
    of a run: every rank makes the same trainer and calls the same methods.

    Arguments:
        graph: a `Graph`, the name of a shipped one, or a path.
        run_dir: where checkpoints, metrics and status go. Default: none; nothing is written.
        seed: seeds Python, NumPy and torch when the run begins, and data and evaluation. Default: what torch was seeded
            with, or else 0, or that of the run that is resumed; and only those generators are seeded when the run
            begins which nobody has seeded. Among several ranks it is that of rank 0.
        device: where the model is and batches go. Default: CUDA where there is one, else the CPU; among several ranks,
            the CUDA device of the rank's number on its host.
        deterministic: True asks torch for deterministic kernels, in the whole process. Default: False.
        loggers: called with every row of metrics: ``logger(metrics, step)``; among several ranks, on rank 0. So are
            `display` and `notify`.
        display: shows the run. Default: live on a terminal and in a notebook, plain lines elsewhere;
            None shows nothing.
        notify: called with each message for a person, one line each. Default: prints to standard error.
        about: plain data kept in every checkpoint: the `command`, the `script` (a path), its `arguments`.
        not_state: paths of what is no state of the training, such as ``"task.started_at"``: it is neither saved nor
            restored. Default: none.
        model, optimizer, scheduler, train_data, val_data, training_step, validation_step, resources: what nodes read,
            by the slot names of the graph, each an object or a `Factory` that makes it. A model's own `training_step`
            and `validation_step` are used where none is given.

    Raises:
        GraphError: the graph has problems, or a resource that it reads is missing, or one is supplied that it does not
            read; objects with a `state_dict` may be supplied all the same.
        UsageError: an argument or a resource is of a wrong type, or ranks differ in what they begin with.
        RankFailedError: another rank has failed, or does not come.

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
    Outcome.FINISHED
    >>> trainer.progress["step"]["steps"]
    3
    >>> print(trainer.explain())
    at step 3, epoch 0.60, batch 3/5:
    `finish` was left
      1. end if finished: taken
           finished = True, from "(ending or next_batch.empty) and accumulate.count == 0"
             ending = True, from "finish.due"
               finish.due = True (after 3 steps: steps 3, due at 3)
             accumulate.count = 0
             next_batch.empty was not asked
      2. decide: not asked
    the run is over
    >>> trainer.rewire(trainer.graph.set("accumulate", every=2).set("finish", after="5 steps"))
    >>> trainer.run(), trainer.progress["step"]["steps"]
    (Outcome.FINISHED, 5)
    """

    @fails_on_all_ranks("before the run")
    def __init__(
        self,
        graph: Graph | str | Path = "fit",
        *,
        model: torch.nn.Module | Factory | None = None,
        optimizer: Any = None,
        train_data: Any = None,
        val_data: Any = None,
        training_step: Callable[..., Any] | None = None,
        validation_step: Callable[..., Any] | None = None,
        scheduler: Any = None,
        run_dir: str | Path | None = None,
        seed: int | None = None,
        device: str | torch.device = "auto",
        deterministic: bool = False,
        loggers: Iterable[Logger] = (),
        display: Display | Literal["auto"] | None = "auto",
        notify: Callable[[str], None] | None = None,
        about: Mapping[str, Any] | None = None,
        not_state: str | Iterable[str] = (),
        **resources: Any,
    ) -> None:
        self._ranks = current_ranks()
        self._is_set_up = False
        is_one_of_several = self._ranks.world_size > 1
        declared = {
            "model": model,
            "optimizer": optimizer,
            "scheduler": scheduler,
            "train_data": train_data,
            "val_data": val_data,
            "training_step": training_step,
            "validation_step": validation_step,
        }
        resources = {**{name: value for name, value in declared.items() if value is not None}, **resources}
        graph = checked_graph(graph, ranks=is_one_of_several, supplied=_supplied(resources))
        _refuse_types(run_dir, seed, loggers, notify, display)
        self._notify = (notify or _print_to_stderr) if not self._ranks.rank else _ignore
        self._said: set[str] = set()
        if deterministic:
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False
        self._deterministic = deterministic
        self._about = dict(about or {})
        self._setup = SetupHashes()
        self._not_state = (not_state,) if isinstance(not_state, str) else tuple(not_state)
        self._requests = Requests(agrees=is_one_of_several)
        self._agreement = self._agreement_of_ranks() if is_one_of_several else None
        self._renewals = Renewals(resources, self._requests, self._agreement)
        resources = dict(self._renewals.current)
        self._made = made_resources(graph, resources)
        resources = self._resources = with_copies(graph, resources, self._made)
        self._first_made = {name: resources[name] for name in (*self._renewals.factories, *self._made)}
        self._takes_seed = seed is None
        own = self._seed = seed if seed is not None else seed_given() or 0
        if self._agreement is not None and seed is None:
            self._seed = self._agreement.gather(own)[0]
        # Ranks that are seeded alike, as equal models ask for, would drop alike.
        self._reseeds = seed is not None or (self._ranks.rank > 0 and own == self._seed)
        self._device = resolve_device(device, self._ranks.local_rank if is_one_of_several else None)
        if is_one_of_several:
            refuse_models(resources)
        self._life = LifeCycle()
        self._watch = Stopwatch(lambda now: self._reporter.tick(now))
        self._recorder = Recorder(
            lambda: self._compiled.run_clock.step_and_epoch(),
            lambda: self._compiled.run_clock.outer_counts(),
            lambda: self._compiled.run_clock.columns,
            self._agreement.gather if self._agreement is not None else None,
        )
        self._monitors = Monitors(self._recorder)
        self._observer = Observer(self._recorder, self._watch, self._device)
        seconds = self._agreement.seconds if self._agreement is not None else self._watch.running
        provided = {
            "checkpoints": self._requests,
            "data_state": DataState(),
            "device": self._device,
            "history": None,  # each node is given its own
            "recorder": self._recorder,
            "renewals": self._renewals,
            "running_seconds": seconds,
            "saving": run_dir is not None,
            "notify": self._notify_once,
            "ranks": self._agreement,
            "seed": self._seed,
        }
        self._prepared = {**prepare(resources, self._device), **provided}
        self._compiled = CompiledGraph(
            graph, self._resources, self._prepared, self._requests, self._recorder, self._watch, made=self._made
        )
        self._requests.retention = self._compiled.retention
        self._hyper_parameters = HyperParameters(self._compiled.state.set_up())
        self._loop = Loop(self._compiled.start, self._requests)
        self._explainer = Explainer(self._notify_once)
        self._node_times = NodeTimes()
        self._memory_trend = MemoryTrend()
        self._begun = self._is_resumed = False
        self._resumed_from: Path | None = None  # without a run directory
        self._end_is_saved = True
        self._losses_are_finite = True  # as far as rows have told
        self._is_replay = False  # whose save points are those of the run that it replays
        if self._agreement is not None:
            settings = {"seed": self._seed, "deterministic": deterministic, **self._about.get("arguments", {})}
            values = self._hyper_parameters.values
            require_equal(self._agreement, graph, self._resources, settings, values)
            self._weights = versions_of(self._resources)
        self._run_files = self._opened(run_dir) if run_dir is not None else None
        self._rank_saves = RankSaves(self._agreement) if self._agreement is not None else None
        self._writer = CheckpointWriter(self._run_files, self._requests, self._watch, self._notify, self._rank_saves)
        self._requests.is_busy = self._is_busy
        self._requests.is_saved = lambda: self._writer.is_saved(self._compiled.run_clock.moment(self._loop.position))
        self._requests.running = lambda: self._path
        self._requests.saved_by = lambda: self._writer.saved_by()
        self._requests.returns = lambda: self._writer.lineage.returns
        self._environment: RunEnvironment | None = None
        self._changes: tuple[str, ...] = ()
        self._reporter = Reporter(
            self._watch,
            self.snapshot,
            None if self._ranks.rank else display_for(self._notify) if display == "auto" else display,
            self._look,
            () if self._ranks.rank else loggers,
            self._notify_once,
        )
        if self._run_files is not None:
            self._recorder.loggers.append(self._run_files.row)
        self._recorder.loggers += [self._reporter.row, *self._reporter.loggers]
        self._recorder.loggers.append(self._hear_row)
        self._is_set_up = True
        self._notify_of_graph()

    def _opened(self, run_dir: str | Path) -> RunFiles:
        if self._agreement is None:
            return RunFiles(run_dir, self._notify)
        run_files = RunFiles(run_dir, self._notify, lead=self._agreement.lead, writes=not self._ranks.rank)
        require_one_folder(self._agreement, run_files)
        return run_files

    def _agreement_of_ranks(self) -> Agreement:
        return Agreement(
            self._ranks,
            self._requests,
            seconds=lambda: self._watch.running() if self._is_set_up else 0.0,
            is_writing=lambda: self._is_set_up and self._writer.is_busy(),
            saves=lambda: self._writer.outcomes() if self._is_set_up else (0, 0),
            buffers=lambda: buffers_of(self._resources),
            position=lambda: self._loop.position if self._is_set_up else 0,
            path=lambda position: self._compiled.path(position) if self._is_set_up else "start",
            place=lambda: self._place_of_ranks,
        )

    @property
    def _place_of_ranks(self) -> str:
        """Where this rank is, in messages of the others."""
        if not self._is_set_up:
            return "before the run"
        return f"in `{self._path}` at {self._compiled.run_clock.describe()}"

    def _is_busy(self) -> bool:
        """True while a checkpoint is being written, by any rank as far as this one knows."""
        return self._writer.is_busy() if self._agreement is None else self._agreement.is_busy

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
        return END if self._loop.ended else self._path

    @property
    def state(self) -> str:
        """Where the run is in its life: ready, running, stopping, stopped, finished or failed."""
        return self._life.state

    @property
    def progress(self) -> Mapping[str, Mapping[str, Any]]:
        """The progress of every node: path -> field -> value, guard fields that are computed included."""
        return MappingProxyType(progress_of(self._compiled))

    @property
    def resources(self) -> Mapping[str, Any]:
        """What was supplied, by name: the same objects."""
        return MappingProxyType(self._resources)

    def _held_and_position(self) -> tuple[Mapping[str, Any], str]:
        """For a run whose step function holds this trainer: the resources without data, and where it is."""
        held = {name: value for name, value in self._resources.items() if not is_data(name, value)}
        return held, f"{self.position} {[fields.get('runs') for fields in self.progress.values()]}"

    @property
    def metrics(self) -> list[dict[str, float]]:
        """The rows recorded so far, oldest first; `pandas.DataFrame` takes them as they are.

        `step` and `epoch` are those of the innermost graph that trains; graphs around it have a column for each unit of
        their clocks.
        """
        return list(self._recorder.rows)

    def read(self, name: str) -> Any:
        """The value of ``"node.field"`` (``"validate/next_batch.last"``), of a slot (``"batch"``), or of a resource.

        Raises:
            KeyError: there is no such node, field or slot.
        """
        return value_of(name, self._compiled, self._resources)

    def explain(self) -> Explanation:
        """Why the last transition went the way it did: which edges were tried, and what their guards read then.

        After `advance`, and after a `run` with `trace`, it is what was read while it happened. After any other `run`,
        which keeps no trace, it is known only where the run is over or has failed.
        """
        return self._explainer.explain(self._compiled, self._loop)

    def digest(self) -> str:
        """A hash (SHA-256, hexadecimal) of what the continuation depends on: equal digests mean bitwise equal runs.

        Model, optimizer, scheduler, gradients, random generators, position in the data, progress. Not clocks, not the
        progress of kinds declared `observer`, not a `runs` that nothing reads.

        Raises:
            CheckpointError: something alive at this position cannot be encoded.
        """
        return self._compiled.state.digest(self._compiled.alive(self._loop.position, self._loop.ended))

    def save_points(self) -> list[str]:
        """The positions at which everything alive can be saved, as far as the declarations tell."""
        return self._compiled.save_points()

    @property
    def unreached(self) -> tuple[str, ...]:
        """The paths of nodes that have not run, without those that are bypassed, and what is inside of them."""
        return self._compiled.unreached()

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds by activity, summed over interruptions: `data`, `train`, `validate`, `save`, ...

        These are times of the host: what a device still computes is not waited for.
        """
        return MappingProxyType(self._watch.seconds())

    @property
    def seconds_by_node(self) -> Mapping[str, float]:
        """Host seconds of the visits of each node in this process, by path, the longest first.

        They are estimated from the visits of one batch in 128, in ``run(time_nodes=True)``; empty without it. A node
        that has not run twice is not in it. What a device still computes is not waited for, and goes to the node that
        waits for it.
        """
        return MappingProxyType(self._node_times.seconds())

    @property
    def changes(self) -> tuple[str, ...]:
        """What has changed since the checkpoint that the run was resumed from, in words; empty for a run that began.

        Graph, hyper-parameters, code, arguments of `setup`, data, and the weights that the models were set up with.
        """
        return self._changes

    @property
    def not_finite(self) -> str:
        """Which losses are not finite in the latest row that has them, and since which step; empty if all are."""
        return not_finite_since(self._recorder.rows)

    def replay_options(self) -> list[str]:
        """After a failure inside a node: the options of ``graphtrain replay`` that lead a replay to that node.

        Empty where none do: there is no run directory, no checkpoint, or none that was made with this graph.
        """
        latest = self._run_files.latest if self._run_files is not None else None
        if latest is None or self._life.state != "failed":
            return []
        try:
            is_replayed = read_manifest(latest[0])["graph_hash"] == structural_hash(self.graph)
        except CheckpointError:
            return []
        error = self._explainer.error
        if isinstance(error, NotFiniteError) and error.samples and "samples" in self.graph.units:
            return ["--to", f"{error.samples} samples", "--node", self._compiled.origin_of(error.check)]
        has_run = isinstance(error, GuardError)
        return replay_options(self._compiled, self._loop.position, has_run=has_run) if is_replayed else []

    def snapshot(self) -> Snapshot:
        """Where the run is and how it goes: what a display shows, and what `status.json` holds."""
        position = self._loop.position
        return self._observer.snapshot(self.state, self.graph.title, self.position, position, self._compiled.run_clock)

    def summary(self) -> Summary:
        """The models with their parameters, and what the graph does when; it prints, and shows itself in a notebook."""
        return summary_of(self._compiled)

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
        before: str | None = None,
        from_setup: str | Iterable[str] = (),
        from_saved: bool = False,
        rename: Mapping[str, str] | None = None,
        trace: Callable[[Explanation], Any] | None = None,
        time_nodes: bool = False,
    ) -> Outcome:
        """Run to the end, until an amount is reached, or to a breakpoint; call it again to continue.

        Arguments:
            resume: used by the first call. "auto" resumes from the newest sound checkpoint in the run directory, or
                begins; "never" refuses a directory that holds a run; a path names a checkpoint.
            until: an amount such as ``"500 steps"``: everything it makes due is done, and no further batch is fetched.
                In nested graphs, steps of the training that runs; a field can be named by its path, as in
                ``"3 fit/step.steps"``. Default: no limit but the graph's own.
            before: a breakpoint: the path of a node, ``"step"`` or ``"validate/eval_batch"``. The run stops each time
                it is about to run this node; a run that stopped or was saved there runs it first. Default: none.
            from_setup: used by the first call, where hyper-parameters of the optimizer, the scheduler and the like are
                not those that the run was set up with: which of them to take as they are now, such as
                ``"optimizer.lr,scheduler"``. Default: none.
            from_saved: True keeps the others as they were saved. Default: a difference that is left is an error.
            rename: used by the first call, where nodes are not called as in the saved graph: former path -> path now,
                such as ``{"accumulate": "gather"}``. A node takes what is inside it along. Default: all are.
            trace: called with an `Explanation` after every transition, as in ``trace=print``. Default: none, and no
                time is spent on it.
            time_nodes: True times the nodes of one batch in 128, for `seconds_by_node`. Default: False; not with
                `trace`.

        A graph other than the saved one continues at the position of the run. Nodes keep their progress by their names,
        that of nodes which are gone is left out, and a new node begins with its own. A new trigger, or one with
        another unit, counts from there; a shorter interval of the same unit that has passed meanwhile is due at once.
        Another `accumulate.every` holds at once, for a window that is open too: what is in it keeps its weight. All
        of that is reported. An ending that is reached already is taken where the graph asks for it next.

        Worker processes of loaders have ended when it returns or raises; a run that continues starts them again.

        After a failure inside a node, such as an exception of a step function, it resumes from the newest checkpoint
        of the run directory, as a new process would, and reports what it repeats. Of several ranks, a new Trainer does
        that.

        Raises:
            LifeCycleError: the run is running, or has failed before its first save point, or on several ranks.
            UsageError: `until`, `resume` or `before` cannot be used, an amount is a fraction of an epoch of data
                without a length, hyper-parameters differ, or the graph does not have the node that is next, or needs
                a slot there that was not saved.
            CheckpointError: the checkpoint does not fit what was supplied, or none can be written.
        """
        limit = parse_amount(until, self.graph) if until is not None else Trigger("never")
        standing: set[int] = set()  # where the run stands, until the node there runs

        def breakpoints() -> Iterator[Breakpoint]:
            yield from at_limit(self._compiled, limit)
            if before is not None:
                passing = lambda: bool(standing) and standing.pop() == self._loop.position  # noqa: E731
                yield before_node(self._compiled, before, "before", "breakpoint", passing=passing)

        list(breakpoints())  # refused before anything is done
        options = ResumeOptions.of(resume, from_setup, from_saved, rename)
        begins = not self._begun
        signals = stop_signals(lambda: self._requests.ask("stop"), _acknowledgement(self._run_files is not None))
        with signals as take_over, self._running(options, limit):
            take_over()
            self._synchronise_start()
            if begins and "stop" in self._requests:  # nothing has run that could be saved
                return Outcome.STOPPED
            if self._is_resumed or not begins:
                standing.add(self._loop.position)
            if not self._loop.ended:

                def transitions() -> list[Transition]:
                    table = self._compiled.table.transitions
                    if trace is not None:
                        table = self._explainer.transitions(self._compiled, trace)
                    elif time_nodes:
                        table = self._node_times.transitions(self._compiled)
                    return with_breakpoints(table, breakpoints(), self._requests)

                return self._drive(transitions, is_traced=trace is not None)
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

        Worker processes of loaders go on between its calls; they end with the run, or with the next `run`.

        Raises:
            LifeCycleError: the run is running, finished or failed.
        """
        with self._running(ResumeOptions.of(resume, from_setup, from_saved, rename)):
            self._synchronise_start()
            if self._loop.ended:
                raise LifeCycleError("the run is finished", "raise its ending, as in finish.after, to train further")
            for _ in range(n):
                if not self._loop.ended:
                    self._one_transition()
        return self.position

    def run_to(
        self,
        place: Callable[[CompiledGraph, Loop], list[Transition]],
        resume: str | Path = "auto",
        read: Callable[[str | Path], Checkpoint] = named_checkpoint,
    ) -> Outcome:
        """Run to a breakpoint: how a past run is replayed.

        Arguments:
            place: given the compiled graph and the loop, once both are where the run resumes; returns the transitions
                with the breakpoints in them. Called again where a node has renewed a resource.
            resume: used by the first call, as in `run`; hyper-parameters stay as they were saved.
            read: reads the checkpoint, by its path, without a run directory. Default: from the disk.
        """
        self._is_replay = self._run_files is None
        with self._running(ResumeOptions(resume, from_saved=True, read=read)):
            self._synchronise_start()
            if self._loop.ended:
                place(self._compiled, self._loop)
                return Outcome.ALREADY_FINISHED
            return self._drive(lambda: place(self._compiled, self._loop))

    def stand_at(self, checkpoint: str | Path) -> CompiledGraph:
        """Resume from a checkpoint, and run nothing: the compiled graph, there. The first call that is made."""
        self._is_replay = True
        with self._running(ResumeOptions(checkpoint, from_saved=True)):
            return self._compiled

    def gather(self, value: Any) -> list[Any]:
        """What every rank passes, in the order of ranks; of one process its own value alone.

        All ranks have to call it, at the same place.

        Arguments:
            value: plain data: numbers, strings, lists and mappings of them.

        Raises:
            RanksDivergedError: another rank is elsewhere.
            RankFailedError: another rank has failed, or does not come.
        """
        return self._agreement.gather(value) if self._agreement is not None else [value]

    @fails_on_all_ranks("in `rewire`")
    def rewire(self, graph: Graph | str | Path, rename: Mapping[str, str] | None = None, **resources: Any) -> None:
        """Continue with another graph, in place: position, progress, data, gradients and random numbers are kept.

        Nodes that are in both graphs under one path keep their progress; those that are just as they were are not even
        set up again, so an iterator that one of them holds is continued.

        Arguments:
            rename: former path -> path now, of nodes that were renamed. Default: none.
            resources: further ones that the graph reads, or others in the place of those supplied before. A model
                comes with its own step functions, where none were given.

        Whatever it raises, a kind's own `setup` included, the run is as before.

        Raises:
            LifeCycleError: the run is running, or has failed.
            GraphError: the graph has problems, reads a resource that is missing, or does not read one given here.
            UsageError: the run is at a node, or needs a slot there, that the graph does not have; or `rename` names no
                node.
            DataError: the data would be opened again inside an epoch, and the place in it cannot be found.
        """
        self._life.refuse("start")
        supplied = _supplied({**self._resources, **resources})
        graph = checked_graph(graph, ranks=self._ranks.world_size > 1, supplied=supplied)
        renewals = self._renewals.with_others(resources, self._resources)
        resources = {name: renewals.current[name] for name in resources}
        all_resources = {**self._resources, **resources}
        newly_made = made_resources(graph, all_resources)
        kept = self._resources.keys() - resources.keys()
        all_resources = with_copies(graph, all_resources, newly_made, kept, self._made)
        resources = {**resources, **{name: all_resources[name] for name in newly_made}}
        renewed = {name: value for name, value in self._compiled.state.renewed.items() if name not in resources}
        made, renaming = self._made | newly_made, Renaming(rename or {}, self.graph, graph)
        self._replace(graph, renaming, resources, renewals, made, renewed, moves=self._begun)
        self._explainer.is_rewired()
        self._writer.lineage = self._writer.lineage.forgotten()
        first = {**self._first_made, **resources}
        self._first_made = {name: first[name] for name in (*renewals.factories, *made)}
        self._notify_of_graph()
        if self._begun:
            self._announce()

    def _renew(self) -> None:
        """Put what a node has made again in the place of what there was."""
        renewed = self._renewals.take()
        self._put_renewed(renewed, self._compiled.state.renewed, self._resources, moves=True)
        self._compiled.clear_windows()
        self._compiled.restart_makers({name for name, source in self._made.items() if source in renewed})

    def _renew_as(self, saved: Mapping[str, Any]) -> None:
        """Make again what a run had made again when it was saved; everything else is as it was at the start.

        Raises:
            CheckpointError: it is no `Factory` now.
        """
        if not saved and not self._compiled.state.renewed:
            return
        first = {**self._resources, **self._first_made}
        resources, again = dict(first), {}
        with RandomAside(global_generators()):
            for name in [name for name in saved if name not in self._made]:
                again[name] = self._renewals.make_as(name, saved[name]["random"], resources)
                resources[name] = again[name].value
        self._put_renewed(again, {}, first, moves=False)
        state = self._compiled.state
        state.made_otherwise = [
            line
            for name, renewed in state.renewed.items()
            for line in made_otherwise(name, saved.get(name, {}).get("setup", {}), renewed.setup)
        ]

    def _put_renewed(
        self, again: Mapping[str, Renewed], before: Mapping[str, Renewed], resources: Mapping[str, Any], *, moves: bool
    ) -> None:
        """Put resources that were made again, and copies of them, in the place of what there was.

        Arguments:
            before: those that were made again earlier.
            resources: the others.
            moves: as for `_replace`.
        """
        values = {name: renewed.value for name, renewed in again.items()}
        made = {name: source for name, source in self._made.items() if source in again}
        copies = with_copies(self.graph, {**resources, **values}, made, earlier=self._made)
        again = {**again, **{name: Renewed({}, copies[name]) for name in made}}
        now = {name: copies[name] for name in self._first_made}
        given = {name: value for name, value in now.items() if value is not self._resources[name]}
        renewed = {**{name: value for name, value in before.items() if name not in again}, **again}
        renaming = Renaming({}, self.graph, self.graph)
        self._replace(self.graph, renaming, given, self._renewals, self._made, renewed, moves=moves)
        for each in again.values():
            each.setup = SetupHashes.of(each.listed).by_path

    def _replace(
        self,
        graph: Graph,
        renaming: Renaming,
        resources: Mapping[str, Any],
        renewals: Renewals,
        made: Mapping[str, str],
        renewed: Mapping[str, Renewed],
        *,
        moves: bool,
    ) -> None:
        """Compile a graph with some resources in the place of others, and continue with it.

        Arguments:
            resources: further ones, or others in the place of those so far.
            made: the resources that are copies, and of what.
            renewed: the resources that were made again since the run began.
            moves: True if what nodes hold moves to the graph. Default: they are set up later.
        """
        all_resources = {**self._resources, **resources}
        former, policy = self._compiled, self._requests.policy
        # What nodes hold moves to the other graph in memory; resources are the same objects.
        state = former.state.capture(former.written(), OF_NODES if moves else ("random",))
        try:
            prepared = prepare_further(self._prepared, all_resources, resources, self._device)
            prepared["renewals"] = renewals
            # Before the data is opened: to look at it may draw from its generator.
            environment = self._environment
            if environment is not None:
                environment = environment.with_resources(self._resources, all_resources)
            compiled = CompiledGraph(
                graph,
                all_resources,
                prepared,
                self._requests,
                self._recorder,
                self._watch,
                former if moves else None,
                renaming,
                given=resources,
                made=made,
            )
            compiled.program.window_ranks = former.program.window_ranks
            if compiled.retention is None:  # that of a node that is gone applies no more
                self._requests.policy = SavePolicy()
            position = compiled.start
            if moves:
                position, notes = move(state, former, self._loop, compiled, renaming)
                for line in notes:
                    self._notify(line)
            hyper_parameters = HyperParameters(compiled.state.set_up(), former=self._hyper_parameters)
            if self._agreement is not None:
                refuse_models(resources)
                require_equal(self._agreement, graph, resources, {}, hyper_parameters.values, begins=False)
            if former.state.baseline is not None:
                compiled.state.watch(former.state.baseline, former.state, renewed)
        except BaseException:
            self._requests.policy = policy  # which the `setup` of a `checkpoint` may have changed
            raise
        finally:
            former.state.restore_after_setup(state, ("random",))
        self._recorder.keep_followers([bound.instance for bound in compiled.program.by_path.values()])
        self._requests.retention = compiled.retention
        self._resources, self._prepared, self._environment = all_resources, prepared, environment
        self._renewals, self._made = renewals, dict(made)
        renewals.current = all_resources
        self._compiled, self._loop.position, self._hyper_parameters = compiled, position, hyper_parameters
        self._writer.keep_newest()

    @fails_on_all_ranks("in `load`")
    def load(self, checkpoint: str | Path = "best", **models: str) -> Path:
        """Load the weights of a checkpoint into the models; returns its path.

        Parameters, buffers and what else is in their `state_dict` become those of the checkpoint; nothing else does, so
        this is no resume. A run that is continued trains on with these weights, and they are in its next checkpoint.

        Arguments:
            checkpoint: "best" or "newest" of this run, the name of one in its run directory, or a path, such as
                ``"runs/first/best"``. Default: the best one by the metric ``checkpoint.best``.
            models: of a model that is given the weights of another one, that one's name in the checkpoint, such as
                ``model="average"``. Default: each is given its own.

        Raises:
            LifeCycleError: the run is running, or has failed.
            UsageError: there is no such checkpoint, or it has not the weights of these models; tensors are named.
            CheckpointError: it is damaged.
        """
        self._life.refuse("start")
        run_files, ranks = self._run_files, self._ranks
        folder = run_files.checkpoints if run_files is not None else None
        lead: Lead = self._agreement.lead if self._agreement is not None else lambda act: act()
        path = Path(lead(lambda: str(named_folder(checkpoint, folder))))
        if folder is not None and (folder / path.name).is_dir():
            path = folder / path.name  # where this rank sees the run directory
        read = functools.partial(read_checkpoint, rank=ranks.rank, world_size=ranks.world_size)
        load_weights(self._compiled.state.objects, self._resources, named_checkpoint(path, folder, read), models)
        self._writer.keep_newest()
        self._writer.lineage = self._writer.lineage.forgotten()
        return path

    def save(self) -> Path | None:
        """Save a checkpoint now.

        At a position that is no save point the run first trains on to the next one, and reports it. From inside a node
        it is a request, and None is returned; otherwise the path of the checkpoint, which is then on disk.

        Raises:
            UsageError: there is no run directory.
            CheckpointError: it cannot be written.
        """
        if self._run_files is None:
            raise UsageError("there is nowhere to save", "give the Trainer a run_dir")
        if self._loop.inside:
            self._requests.ask("save")
            return None
        with self._running(ResumeOptions()):
            self._synchronise_start()
            if not self._save(self._sync_policy):
                self._notify(
                    f"`{self.position}` is no save point ({self._writer.refusal}); training on to the next one"
                )
                self._one_transition()
                while not self._save(self._sync_policy):
                    self._one_transition()
        return self._run_files.latest[0] if self._run_files.latest is not None else None

    def _drive(self, transitions: Callable[[], list[Transition]], *, is_traced: bool = False) -> Outcome:
        if not is_traced:
            self._explainer.goes_untraced()
        try:
            while not isinstance(outcome := self._loop.drive(transitions(), self._serve), Outcome):
                pass  # a resource was renewed, and what is run is compiled again
            return outcome
        except (SaveFailedError, UnknownMetricError) as error:  # between two nodes: the run can continue from here
            self._leave_ranks(error)
            self._requests.clear()
            raise
        except BaseException as error:
            self._fail(error)

    def _one_transition(self) -> None:
        self._requests.post("pause")
        self._drive(lambda: self._explainer.transitions(self._compiled), is_traced=True)

    def _serve(self) -> Outcome | Literal["renewed"] | None:
        """Do what was requested during the last transition, where this position allows it.

        Returns:
            The outcome where the run stops, "renewed" where it continues with another table, else None.
        """
        requests = self._requests
        was_renewed = requests.take("renewed")
        if was_renewed:  # before anything is saved
            self._renew()
        if (asked := requests.take_return()) is not None:
            self._go_back(asked)
            was_renewed = True
        if requests.take("written"):
            self._writer.settle()
            self._report_written()
        if "ended" in requests:
            if self._compiled.has_no_batch():
                raise DataError(
                    "the run came to its end without a batch: the data is empty, or was exhausted in `setup`",
                    "supply data that starts over at each `__iter__`; nothing was saved as the end of the run",
                )
            self._loop.ended, self._end_is_saved = True, False
            self._compiled.at_end()
            requests.clear()
            self._save_end()
            return Outcome.FINISHED
        if "recorded" in requests and self._compiled.activity(self._loop.position) is None:
            requests.take("recorded")
            self._monitors.expect(self._compiled, self._loop.position)
        if requests.take("mark") and requests.value is not None:
            self._writer.mark(requests.policy, requests.value, requests.take_askers())
            self._report_written()
        # Several ranks that stop or save would rather do so between two batches.
        is_asked = self._rank_saves is not None and ("save" in requests or "stop" in requests)
        comes_later = is_asked and self._writer.comes_later(self._resumable)
        is_save_point = not comes_later  # as far as is known
        if "save" in requests and not comes_later:
            if self._run_files is None:
                self._notify_once("there is no run directory, so no checkpoint is written")
                if self._is_replay:  # the run that it replays has saved
                    self._writer.lineage = self._writer.lineage.with_saved(OWN, requests.askers)
            else:
                is_save_point = self._save(requests.policy, requests.value, requests.askers)
            if is_save_point:
                requests.take("save")
                requests.take_askers()
        if "stop" in requests:
            if self._life.state == "running":
                self._life.go("ask_to_stop")
            if not comes_later and (is_save_point or self._run_files is None) and self._save(requests.policy):
                requests.clear()
                return Outcome.STOPPED
        if "reached" in requests:
            requests.clear()
            self._save(requests.policy)
            return Outcome.REACHED
        if "breakpoint" in requests:
            requests.clear()
            if not self._save(requests.policy):
                why = self._writer.refusal
                self._notify(f"`{self.position}` is no save point ({why}); nothing is saved here")
            return Outcome.BREAKPOINT
        if requests.take("pause"):
            return Outcome.REACHED
        return "renewed" if was_renewed else None

    @contextmanager
    def _running(self, options: ResumeOptions, limit: Trigger | None = None) -> Iterator[None]:
        """The run is running inside this block; the first time it begins, or is resumed.

        Arguments:
            limit: the amount to run until; None where only some transitions are run, and nothing is shown of them.
        """
        has_failed = self._life.state == "failed"
        self._life.go("recover" if has_failed and limit is not None else "start")
        failure: BaseException | None = None
        try:
            with self._run_files.held() if self._run_files is not None else nullcontext():
                try:
                    with self._writer.completed(), untimed_breakpoints(self._paused):
                        if has_failed:
                            self._recover()
                        self._get_ready(options, limit)
                        yield
                except BaseException as error:
                    failure = error
                    self._note_way_back(error)  # what was being written is on the disk now
                    raise
                finally:
                    self._stop(failure)
                    # Between single transitions workers go on: to start them takes longer than a transition.
                    if limit is not None or self._loop.ended or self._life.state == "failed":
                        self._compiled.release()
        except BaseException as error:
            self._leave_ranks(error)
            if self._life.is_active:  # it never began
                self._life.go("fail" if has_failed else "stop")
            raise

    def _synchronise_start(self) -> None:
        """Signals that came so far are asked for on all ranks from now on."""
        if self._agreement is not None:
            self._agreement.synchronise("start")

    def _paused(self) -> AbstractContextManager[None]:
        """A span that is no time of the run, inside the node that is running."""
        bound = self._compiled.program.nodes[self._loop.position]
        return self._watch.paused(bound.kind.activity if self._loop.inside and bound.scope.activity is None else None)

    def _get_ready(self, options: ResumeOptions, limit: Trigger | None) -> None:
        if not self._begun:
            if self._agreement is not None:
                are_known = self._weights == versions_of(self._resources)
                require_equal_weights(self._agreement, self._resources, are_known=are_known)
            self._begin(options)
            self._begun = True
        self._compiled.refuse_fractions("until", limit, self._loop.position)
        self._leave_again()
        if self._loop.ended and not self._end_is_saved:
            self._compiled.at_end()
        if self._compiled.activity(self._loop.position) is None:
            for name in self._compiled.state.objects.trained_in_evaluation_mode():
                self._notify_once(
                    f"`{name}` is in evaluation mode and is trained so, without dropout and with fixed statistics; "
                    f"call {name}.train() before, unless that is meant"
                )
        self._observer.begin(self._compiled.run_clock, limit, self._loop.position)
        self._watch.start(inside=self._compiled.activity(self._loop.position))
        self._reporter.begin(self._watch.now(), shown=limit is not None)

    def _leave_again(self) -> None:
        """Continue a run that has ended if its ending was raised since."""
        loop = self._loop
        if loop.ended:
            loop.position, loop.ended = self._compiled.leave_again(loop.position)
            if not loop.ended and (line := self._compiled.run_clock.cut_window()) is not None:
                self._notify(line)

    def _stop(self, error: BaseException | None) -> None:
        self._watch.stop()
        was_running = self._life.is_active
        if was_running:
            self._life.go("finish" if self._loop.ended and self._end_is_saved else "stop")
        self._reporter.end(self._life.state, error)
        self._requests.take("stop")  # a signal that came while it was about to stop asks for what is done already
        if self._writer.take_written() or (was_running and self._begun):
            self._write_status()

    # ---- beginning and resuming

    def _recover(self) -> None:
        """Resume from the last save point after a failure inside a node, as a new process would, with the same objects.

        Raises:
            LifeCycleError: there is none; or there are several ranks, which may have come to different ones.
        """
        try:
            if self._agreement is not None:
                raise LifeCycleError(
                    "the run has failed inside a node, and several ranks do not go back to a save point in place",
                    "make a new Trainer, or start all ranks again: with a run directory they resume from its newest "
                    "checkpoint",
                )
            checkpoint = self._writer.last_save_point(self._resumed_from)
            trained = self._trained
            self._compile_again()
            self._resume(checkpoint, ResumeOptions(), trained, in_place=True)
            self._started(checkpoint)
        except BaseException:
            self._life.go("fail")
            raise

    @property
    def _trained(self) -> dict[str, Any]:
        """How far the run is, as a status has it."""
        return {"trained": self._compiled.run_clock.trained(), **self._compiled.run_clock.nested()}

    def _compile_again(self) -> None:
        """Compile the graph of the run for a resume with the same objects."""
        former = self._compiled.state
        # Whatever nodes held is gone, with their objects; as in a new process.
        self._recorder.forget_means()
        prepared = {**self._prepared, "saving": True}  # data that cannot be reopened exactly is refused
        self._compiled = CompiledGraph(
            self.graph, self._resources, prepared, self._requests, self._recorder, self._watch, made=self._made
        )
        if former.baseline is not None:
            self._compiled.state.watch(former.baseline, former, former.renewed)
        self._monitors.forget()
        self._end_is_saved = True
        self._explainer.goes_untraced()

    def _go_back(self, asked: Return) -> None:
        """Go back to a checkpoint in place, as a node has asked; what it keeps stays, and a checkpoint follows.

        A kill on the way costs nothing: what is resumed then comes here again.
        """
        if self._is_replay:
            raise UsageError(
                f"`{asked.node}` has sent the run back to an earlier checkpoint here, and a replay does not follow it",
                "replay from a later checkpoint, by its name: --to NAME",
            )
        run_files, seconds = self._run_files, self._watch.seconds()
        assert run_files is not None, "refused at the start"
        self._writer.wait()  # it may be the one that is being written
        name = self._writer.lineage.saved.get(asked.to)
        if name is None:
            raise CheckpointError(
                f"`{asked.node}` sends the run back to what `{asked.to}` has saved, which could not be written",
                "remove the cause, and resume",
            )
        checkpoint = choose(run_files, ResumeOptions(run_files.checkpoints / name), self._rank_saves)
        assert checkpoint is not None, "it is named"
        trained, progress = self._trained, self._compiled.state.capture(set(), ("progress",)).progress
        kept = {path: progress[path] for path in asked.keep if path in progress}
        self._compiled.release()
        self._watch.stop()
        self._compile_again()
        self._renew_as(checkpoint.sections.get("renewed", {}))
        self._restore(checkpoint, ResumeOptions(kept=kept))
        self._watch.load(seconds)  # this time was spent
        self._watch.start(inside=self._compiled.activity(self._loop.position))
        self._recorder.load_rows(run_files.cut_back_to(checkpoint, self._requests.policy.retention))
        run_clock, writer = self._compiled.run_clock, self._writer
        facts = repeated(run_clock.trained(), trained, nested=run_clock.nested())
        self._notify(f"`{asked.node}` sends the run back to {name}: {run_clock.describe()}; {facts}")
        writer.keep_newest()
        writer.lineage = replace(writer.lineage, returns=writer.lineage.returns + 1)
        is_saved = self._save(self._sync_policy)
        assert is_saved, "a checkpoint was made here before"
        self._announce()

    def _begin(self, options: ResumeOptions) -> None:
        run_files, random = self._run_files, capture_random()
        self._refuse_returning()
        checkpoint = choose(run_files, options, self._rank_saves)
        if run_files is None:
            self._resumed_from = checkpoint.path.absolute() if checkpoint is not None else None
        if checkpoint is not None and self._takes_seed:
            self._take_seed(checkpoint)
        # Before anything is restored: looking at data may draw from a generator of its own.
        if run_files is not None or checkpoint is not None:
            self._environment = run_environment(
                self._resources, self._about, deterministic=self._deterministic, seed=self._seed
            )
        self._compiled.state.begin(self._not_state, self)
        self._setup = self._setup_hashes()
        program = self._compiled.program
        for line in [*(lines_about_steps(program) if checkpoint is None else ()), *other_horizons(program)]:
            self._notify_once(line)
        is_as_saved = False
        if checkpoint is not None:
            status = run_files.last_status() if run_files is not None else {}
            is_as_saved = self._resume(checkpoint, options, status)
            self._is_resumed = True
        else:
            restore_random(random)
            if self._reseeds:
                seed_everything(self._seed if not self._ranks.rank else derived_seed(self._seed, self._ranks.rank))
            else:
                seed_the_rest(self._seed)
            if run_files is not None:
                self._recorder.load_rows(run_files.cut_back_to(None, self._requests.policy.retention))
            self._compiled.begin()
        self._started(checkpoint, is_as_saved=is_as_saved)

    def _take_seed(self, checkpoint: Checkpoint) -> None:
        """Take the seed that a run began with, from which the order of its data follows."""
        saved = checkpoint.manifest["environment"].get("seed", self._seed)
        if saved != self._seed:
            self._seed = self._prepared["seed"] = saved
            self._compile_again()

    def _refuse_returning(self) -> None:
        """Raise if a node may send the run back to a checkpoint, and there will be none."""
        nodes = quoted(self._compiled.returning)
        if nodes and not self._compiled.saving:
            raise UsageError(
                f"{nodes} may send the run back to a checkpoint, and no node asks for one",
                "insert a node of the kind `checkpoint`, as in `fit`",
            )
        if nodes and self._run_files is None and not self._is_replay:
            raise UsageError(
                f"{nodes} may send the run back to a checkpoint, and there is no run directory that holds any",
                "name one: --run-dir runs/first, in Python Trainer(..., run_dir=...)",
            )

    def _started(self, checkpoint: Checkpoint | None, *, is_as_saved: bool = False) -> None:
        """Note that the run has begun, or resumes from a checkpoint: bit for bit as it was saved, or changed."""
        run_files = self._run_files
        if run_files is not None and self._environment is not None:
            origin = self._environment.origin
            # Once, and again when it is another one: it may be long.
            known = run_files.setup_of(checkpoint) if checkpoint is not None and run_files.owns(checkpoint) else {}
            run_files.started(
                {
                    **self._environment.as_plain(),
                    "checkpoint": checkpoint.path.name if checkpoint else None,
                    **({"setup": self._setup.by_path} if self._setup.by_path != known else {}),
                },
                {origin.difference_file: origin.difference} if origin.difference else {},
            )
            if not is_as_saved:
                self._writer.check(self._resumable)
        self._announce()
        self._write_status()

    def _setup_hashes(self) -> SetupHashes:
        baseline = self._compiled.state.baseline
        return SetupHashes.of(baseline) if baseline is not None and self._environment is not None else SetupHashes()

    def _resume(
        self,
        checkpoint: Checkpoint,
        options: ResumeOptions,
        status: Mapping[str, Any],
        *,
        in_place: bool = False,
    ) -> bool:
        """Resume from a checkpoint; True if the state is that of the checkpoint, bit for bit.

        Arguments:
            status: how far the run was; empty if that is not known.
            in_place: True after a failure in this process. Default: this is a new process.
        """
        self._renew_as(checkpoint.sections.get("renewed", {}))
        run_files = self._run_files
        restored, is_resized = self._restore(checkpoint, options)
        run = self._resumable
        different_setup = self._setup_changes(checkpoint) if not in_place else {}
        where = checkpoint.path.name if run_files is None else str(run_files.path)
        if options.is_named and run_files is not None:
            where += f" from {checkpoint.path.name}"
        run_clock, manifest = self._compiled.run_clock, checkpoint.manifest
        is_ours = in_place or (run_files is not None and run_files.owns(checkpoint))
        self._changes, facts = report(restored, manifest, run.environment, different_setup)
        facts = [repeated(run_clock.trained(), status, nested=run_clock.nested()) if is_ours else "", *facts]
        place = run_clock.describe() or f"at `{self.position}`"
        self._notify("; ".join([f"resumed {where}: {place}", *filter(None, facts)]))
        for line in restored.below:
            self._notify(line)
        if run_files is not None:
            self._recorder.load_rows(run_files.cut_back_to(checkpoint, self._requests.policy.retention))
            is_newest = run_files.is_newest(checkpoint)
            is_same_graph = manifest["graph_hash"] == structural_hash(self.graph)
            is_continued = run_files.owns(checkpoint) and not is_resized
            if is_newest and is_continued and is_same_graph and not restored.decided:
                self._writer.resumed_from(checkpoint, run)
        elif in_place:
            self._recorder.load_rows([])
        if not in_place:
            lineage = Lineage.of(manifest, checkpoint.path.name)
            is_as_it_was = (is_ours or self._is_replay) and not (restored.decided or restored.is_other_graph)
            self._writer.lineage = lineage if is_as_it_was else lineage.forgotten()
        # On the disk before anything else, so that from now on a resume chooses this.
        if run_files is not None and (restored.decided or not run_files.is_newest(checkpoint)):
            self._save(self._sync_policy)
        return restored.is_as_saved

    def _restore(self, checkpoint: Checkpoint, options: ResumeOptions) -> tuple[Restored, str]:
        """Restore the state of a checkpoint; and what another number of ranks changes, in words."""
        ranks, resume_from, is_resized = self._ranks, checkpoint, ""
        for line in self._compiled.program.begun_with(checkpoint.manifest.get("window_ranks", 1)):
            self._notify_once(line)
        if checkpoint.ranks != ranks.world_size:
            rank, world_size = ranks.rank, ranks.world_size
            resume_from, is_resized = resized(checkpoint, self._compiled, rank, world_size, self._seed, options.rename)
        return restore(resume_from, self._resumable, options, is_resized), is_resized

    def _setup_changes(self, checkpoint: Checkpoint) -> dict[str, str]:
        """What differs from what `setup` made for the run of a checkpoint, and was not restored: path -> what to do."""
        state, environment = self._compiled.state, self._environment
        if self._run_files is None or state.baseline is None or environment is None:
            return {}
        saved = self._run_files.setup_of(checkpoint)
        drift = checkpoint.sections.get("reachable", {})
        return setup_changes(saved, self._setup, state.baseline, drift, environment.changed_data(checkpoint.manifest))

    def _announce(self) -> None:
        """Tell loggers that the run starts: all hyper-parameters, and all parameters of nodes."""
        given = {**self._about.get("arguments", {}), "seed": self._seed}
        run_dir = self._run_files.path if self._run_files is not None else None
        values = self._hyper_parameters.values
        self._reporter.announce(beginning_of(self._compiled, self._recorder.rows, given, values, run_dir))

    # ---- saving

    @property
    def _path(self) -> str:
        return self._compiled.path(self._loop.position)

    @property
    def _resumable(self) -> Resumable:
        return Resumable(self._compiled, self._loop, self._watch, self._hyper_parameters, self._environment)

    @property
    def _sync_policy(self) -> SavePolicy:
        """A checkpoint that must be on the disk before anything else."""
        return replace(self._requests.policy, mode="sync", if_failed="stop")

    def _save(self, policy: SavePolicy, value: float | None = None, askers: frozenset[str] = frozenset()) -> bool:
        """Save at this position, if there is somewhere to save to; False where it is no save point.

        Arguments:
            value: of the metric by which checkpoints are ranked. Default: it has none.
            askers: the paths of the nodes that have asked for it. Default: none.

        Raises:
            SaveFailedError: the checkpoint cannot be written; or this is the end, at which no further position comes.
        """
        if self._run_files is None:
            return True
        if not self._writer.save(self._resumable, policy, value, askers):
            if self._loop.ended:
                raise SaveFailedError(
                    f"the end of the run is no save point ({self._writer.refusal})",
                    self._writer.way_out
                    or "the run is trained to its end but not saved; let what cannot be saved be written again before "
                    "it is read, so that it is not alive there",
                )
            return False
        self._reporter.flush()
        self._report_written()
        return True

    def _hear_row(self, row: Mapping[str, float], step: int) -> None:
        """A logger: nodes that hear of rows are told, and what evaluations record is noted."""
        if self._losses_are_finite and (loss := loss_that_is_not_finite(row)):
            self._losses_are_finite = False
            self._notify(f"{loss} at step {step}, the first loss that is not finite; {_NOT_FINITE}")
        self._compiled.hear_row(row, self._loop.position)
        if self._compiled.activity(self._loop.position) is not None:
            self._monitors.hear_evaluation(row)
        self._requests.post("recorded")

    def _save_end(self) -> None:
        """Save the result of the run; it may have continued without a checkpoint, but it does not end without one."""
        self._save(self._sync_policy)
        if self._run_files is None and self._agreement is not None:  # a save would have compared them
            require_equal_weights(self._agreement, self._resources)
        self._writer.report_no_best(self._recorder)
        self._end_is_saved = True

    def _report_written(self) -> None:
        """Show a checkpoint in the status, if one was written."""
        if self._writer.take_written():
            self._write_status()

    def _look(self) -> None:
        """Every few seconds: write the status, and see whether memory grows."""
        if line := self._memory_trend.add(self._compiled.run_clock.trained()[0], memory_bytes(self._device)):
            self._notify(line)
        self._write_status()

    def _write_status(self, state: str | None = None) -> None:
        if self._run_files is None:
            return
        snapshot = self.snapshot()
        status = {
            **replace(snapshot, state=state or snapshot.state).as_plain(),
            "place": self._compiled.run_clock.describe(),
            "trained": self._compiled.run_clock.trained(),
            "not_finite": self.not_finite,
            **self._compiled.run_clock.nested(),
            "bypassed": [bound.path for bound in self._compiled.program.nodes if bound.bypassed],
            **({"seconds_by_node": dict(seconds)} if (seconds := self.seconds_by_node) else {}),
        }
        try:
            self._run_files.write_status(status)
        except CheckpointError as error:  # it is for those outside; the run does without
            self._notify_once(f"{error.message}; the run continues")

    # ---- failing

    def _leave_ranks(self, error: BaseException) -> None:
        """Tell the other ranks, if there are any, why this one does not come to them any more."""
        if self._agreement is not None:
            self._agreement.fail(error)

    def _fail(self, error: BaseException) -> NoReturn:
        if self._agreement is not None and not isinstance(error, KeyboardInterrupt):
            self._writer.fails()
        self._leave_ranks(error)
        self._life.go("fail")  # an interrupt too: the node is half done, so its state is no state to resume from
        self._requests.clear()
        self._explainer.fails(error)
        if not isinstance(error, RanksError):
            error.add_note(f"raised in node `{self._path}` ({self._compiled.run_clock.describe()})")
            if note := out_of_memory_note(error, self._device, self._compiled.batch_at(self._loop.position)):
                error.add_note(note)
        self._write_status("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        frames = None if isinstance(error, GraphtrainError) else users_frames(error.__traceback__)
        raise error.with_traceback(frames or error.__traceback__)

    def _note_way_back(self, error: BaseException) -> None:
        """Add to an error from inside a node what is kept of the run; whoever interrupts it knows."""
        if self._life.state != "failed" or not isinstance(error, Exception) or isinstance(error, RanksError):
            return
        if note := self._writer.way_back(self._compiled.run_clock):
            error.add_note(note)

    # ---- words

    def _notify_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._notify(line)


def _refuse_types(run_dir: Any, seed: Any, loggers: Any, notify: Any, display: Any) -> None:
    """Raise for an argument of another type, which would fail later, and elsewhere."""
    for name, value, is_right, expected in (
        ("run_dir", run_dir, run_dir is None or isinstance(run_dir, str | Path), "the path of a folder"),
        ("seed", seed, seed is None or (isinstance(seed, int) and 0 <= seed < 2**63), "an integer from 0 to 2**63 - 1"),
        ("loggers", loggers, isinstance(loggers, Iterable), "a list of functions: loggers=[logger]"),
        ("notify", notify, notify is None or callable(notify), "a function that takes a line"),
        ("display", display, display == "auto" or not isinstance(display, str), "a display, or None for none"),
    ):
        if not is_right:
            raise UsageError(f"Trainer: {name}: expected {expected}; got {value!r}")


def _acknowledgement(saves: bool) -> str:
    """What the first Ctrl-C prints at once."""
    if saves:
        return "stopping at the next save point; Ctrl-C again stops at once, without saving"
    return "stopping after this node; Ctrl-C again stops at once"


def _supplied(resources: Mapping[str, Any]) -> set[str]:
    return {name for name, value in resources.items() if value is not None}


def _ignore(line: str) -> None:
    """Messages are printed by rank 0."""


def _print_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201
