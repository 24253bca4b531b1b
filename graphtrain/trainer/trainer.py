"""The trainer: a graph bound to resources, run, stopped, saved and resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Literal, final

import torch

from graphtrain.checks import checked_graph
from graphtrain.errors import LifeCycleError, RanksError, UsageError
from graphtrain.graph.calls import checked_call
from graphtrain.kind.trigger import Trigger
from graphtrain.lazy import imported
from graphtrain.names import nearest
from graphtrain.outcome import Outcome
from graphtrain.printable import Notices
from graphtrain.program.breakpoints import at_limit, before_node, parse_amount, with_breakpoints
from graphtrain.program.loop import Transition
from graphtrain.program.requests import SavePolicy
from graphtrain.ranks import current_ranks, on_all_ranks
from graphtrain.report.logger import Logger
from graphtrain.report.snapshot import Display
from graphtrain.resume.equal_ranks import require_equal
from graphtrain.resume.restore import ResumeOptions
from graphtrain.resume.session import Session
from graphtrain.resume.weights import load_weights
from graphtrain.storage.run_directory import ACTIVE
from graphtrain.storage.run_files import RunFiles
from graphtrain.trainer.debugging import error_line
from graphtrain.trainer.entry import get_ready
from graphtrain.trainer.graph import Graph
from graphtrain.trainer.live_run import LiveRun
from graphtrain.trainer.serving import drive, end
from graphtrain.trainer.signals import stop_signals
from graphtrain.trainer.tracing import Explanation, explained
from graphtrain.trainer.view import RunView


def _require(fits: bool, name: str, value: Any, expected: str) -> None:
    """Raise a `UsageError` unless an argument fits."""
    if not fits:
        raise UsageError(f"{name}: expected {expected}; got {value!r}")


@final
class Trainer(RunView):
    """A graph bound to a model, data and optimizers.

    Everything that is missing or does not fit is reported together, before anything trains.

    In a process that was started as one of several, with ``RANK`` and ``WORLD_SIZE`` in its environment, it is one rank
    of a run: every rank makes the same trainer and calls the same methods.

    Arguments:
        graph: a `Graph`, the name of a shipped one, or a path.
        run_dir: where checkpoints, metrics and status go. Default: none; nothing is written.
        seed: the seed of Python, NumPy and torch when the run begins, of data and of evaluation. Default: that of the
            resumed run, else that of `torch.manual_seed`, else 0, and then generators that were seeded before are left
            as they are. With several ranks the seed of rank 0 counts.
        device: where the model and the batches go. Default: CUDA if available, else the CPU; with several ranks, the
            CUDA device with the number of the local rank.
        deterministic: True asks torch for deterministic kernels, in the whole process. Default: False.
        loggers: a list of functions that are called with every row of metrics: ``logger(metrics, step)``. With several
            ranks only rank 0 calls `loggers`, `display` and `notify`.
        display: shows the run; None shows nothing. Default: live on a terminal or in a notebook, else plain lines.
        notify: called with each message, one line. Default: prints to standard error.
        about: plain data saved in every checkpoint: the `command`, the `script` (a path), its `arguments`.
        not_state: paths of values that are not training state, such as ``"task.started_at"``, and are neither saved
            nor restored. Default: none.
        model, optimizer, scheduler, train_data, val_data, training_step, validation_step, resources: what nodes read,
            by the slot names of the graph. Default for the step functions: those of the model, if it has them.

    Raises:
        GraphError: the graph has problems, a resource that it reads is missing, or it does not read one that was
            supplied and has no `state_dict`.
        UsageError: an argument or a resource has a wrong type, or the ranks begin with different ones.
        RankFailedError: another rank has failed, or has not arrived in time.

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
    >>> print(trainer.explain())
    step 3, epoch 0.60, batch 3/5: finish -> end  finished=True (finish.due=True accumulate.count=0)
    """

    @on_all_ranks("before the run")
    @checked_call("graph", "model", "training_step", "validation_step", "loggers")
    def __init__(
        self,
        graph: Graph | str | Path = "fit",
        *,
        model: torch.nn.Module | None = None,
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
        ranks = current_ranks()
        named = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "train_data": train_data}
        named |= {"val_data": val_data, "training_step": training_step, "validation_step": validation_step}
        resources = {name: value for name, value in {**named, **resources}.items() if value is not None}
        graph = Graph.of(checked_graph(graph, ranks=ranks.world_size > 1, supplied=resources.keys()))
        loggers = list(loggers) if isinstance(loggers, Iterable) else loggers
        _require(seed is None or 0 <= seed < 2**63, "seed", seed, "an integer from 0 to 2**63 - 1")
        _require(isinstance(loggers, list) and all(map(callable, loggers)), "loggers", loggers, "a list of functions")
        about = dict(about or {})
        notices = Notices((lambda line: None) if ranks.rank else notify)  # rank 0 prints them
        session = Session(
            graph,
            resources,
            ranks,
            seed=None if seed is None else int(seed),
            device=device,
            deterministic=deterministic,
            about=about,
            not_state=(not_state,) if isinstance(not_state, str) else tuple(not_state),
            saving=run_dir is not None,
            notices=notices,
        )
        arguments = about.get("arguments", {})
        settings = {"seed": session.seed, "deterministic": deterministic, **arguments}
        require_equal(session.world, graph, session.resources, settings, session.hyper_parameters.values)
        files: RunFiles | None = None
        if run_dir is not None:
            files = RunFiles(run_dir, notices, on_rank_0=session.world.on_rank_0, writes=not ranks.rank)
        shown = imported("graphtrain.report.display.choose").display_for(notify) if display == "auto" else display
        self._session = session
        self._run = LiveRun(session, files, arguments, *((), None) if ranks.rank else (loggers, shown))
        session.join()
        self._notify_of_graph()

    def _notify_of_graph(self) -> None:
        program = self._session.compiled.program
        meant = [(name, nearest(name, signature(Trainer).parameters)) for name in program.unread()]
        unread = [f"nothing in the graph reads `{name}`" + f", did you mean `{it}`?" * bool(it) for name, it in meant]
        schedulers = self._session.compiled.state.foreign_schedulers()
        foreign = [f"`{name}` changes the learning rate of an optimizer that was not supplied" for name in schedulers]
        for line in [*program.absent, *unread, *foreign, *program.timed()]:
            self._session.notices.once(line)

    @checked_call("until")
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
    ) -> Outcome:
        """Run to the end, until an amount is reached, or to a breakpoint; call it again to continue.

        Arguments:
            resume: used by the first call. "auto" resumes from the newest sound checkpoint in the run directory, or
                begins a run; "never" refuses a directory that holds a run; a path names a checkpoint.
            until: an amount such as ``"500 steps"``: everything it makes due is done, and no further batch is fetched.
                In nested graphs, steps are those of the training that runs. Default: no limit but the graph's own.
            before: a breakpoint: the path of a node, ``"step"`` or ``"validate/eval_batch"``. The run stops each time
                it is about to run this node; a run that stopped or was saved there runs it first. Default: none.
            from_setup: used by the first call, if hyper-parameters of the optimizer, the scheduler and the like differ
                from those that the run was set up with: the names of those to take as they are now, such as
                ``"optimizer.lr,scheduler"``. Default: none.
            from_saved: True keeps the others as they were saved. Default: any other difference is an error.
            rename: used by the first call, if nodes have other names than in the saved graph: old path -> new path,
                such as ``{"accumulate": "gather"}``. Nodes inside a renamed node move with it. Default: none.
            trace: called with an `Explanation` after every transition, as in ``trace=print``. Default: none.

        In a graph other than the saved one the run continues at the same position. Nodes keep their progress by name; a
        new trigger, or one with another unit, counts from there. What has changed is reported. An end that is already
        reached is taken where the graph tests for it next.

        Raises:
            LifeCycleError: the run is running, or has failed.
            UsageError: `until`, `resume` or `before` cannot be used, an amount is a fraction of an epoch of data
                without a length, hyper-parameters differ, or the graph does not have the node that is next, or needs
                a slot there that was not saved.
            CheckpointError: the checkpoint does not fit what was supplied, or none can be written.
        """
        run = self._run
        limit = parse_amount(until, self.graph) if until is not None else Trigger("never")
        stopped_at: set[int] = set()  # the position at which the run stopped, until the node there runs

        def transitions() -> list[Transition]:
            compiled, loop = run.session.compiled, run.session.loop
            table, breakpoints = compiled.compiler.transitions, at_limit(compiled, limit)
            if trace is not None:
                table = [explained(compiled, index, trace) for index in range(len(table))]
            if before is not None:
                passing = lambda: bool(stopped_at) and stopped_at.pop() == loop.position  # noqa: E731
                breakpoints.append(before_node(compiled, before, "before", "breakpoint", passing=passing))
            return run.node_times.over(compiled.program.nodes, with_breakpoints(table, breakpoints, run.requests))

        transitions()  # refused before anything is done
        begins = not run.has_begun
        with stop_signals(run.stop), self._running(ResumeOptions(resume, from_setup, from_saved, rename), limit):
            if begins and run.requests.take("stop"):  # nothing has run that could be saved
                return Outcome.STOPPED
            if not begins or run.resumed_from is not None:
                stopped_at.add(run.session.loop.position)
            if run.session.loop.ended and run.is_end_saved:
                return Outcome.ALREADY_FINISHED
            if run.session.loop.ended:
                end(run)
                return Outcome.FINISHED
            return drive(run, transitions)

    @checked_call()
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

        Worker processes of loaders keep running between calls; they end with the run, or with the next `run`.

        Raises:
            LifeCycleError: the run is running, finished or failed.
            UsageError: as for `run`, or `n` is negative.
        """
        _require(n >= 0, "n", n, "an integer of at least 0")
        with self._running(ResumeOptions(resume, from_setup, from_saved, rename)):
            if self._session.loop.ended:
                raise LifeCycleError("the run is finished", "raise the amount that ends it, such as finish.after")
            for _ in range(n):
                if not self._session.loop.ended:
                    self._one_transition()
        return self.position

    def _one_transition(self) -> None:
        run, compiled, index = self._run, self._session.compiled, self._session.loop.position
        table = [*compiled.compiler.transitions]
        table[index] = explained(compiled, index, partial(setattr, run, "explanation"))
        run.requests.add("pause")
        drive(run, table.copy)

    def run_to(self, place: Callable[[Session], list[Transition]], resume: str | Path = "auto") -> Outcome:
        """Replay a past run with the transitions that `place` returns once it is resumed. `resume`: as for `run`."""
        self._run.is_replay = self._run.files is None
        with self._running(ResumeOptions(resume, from_saved=True)):
            if self._session.loop.ended:
                place(self._session)
                return Outcome.ALREADY_FINISHED
            return drive(self._run, partial(place, self._session))

    @on_all_ranks("in `rewire`")
    @checked_call("graph")
    def rewire(self, graph: Graph | str | Path, rename: Mapping[str, str] | None = None, **resources: Any) -> None:
        """Continue with another graph, in place: position, progress, data, gradients and random numbers are kept.

        Nodes with the same path in both graphs keep their progress. An unchanged node that fetches batches is not set
        up again in one process, so an iterator that it holds continues.

        Arguments:
            rename: old path -> new path of renamed nodes. Default: none.
            resources: additional ones that the graph reads, or replacements of those supplied before. A model brings
                its own step functions if none were given.

        If it raises, also in the `setup` of a kind, the run is unchanged.

        Raises:
            LifeCycleError: the run is running, or has failed.
            GraphError: the graph has problems, reads a resource that is missing, or does not read one given here.
            UsageError: the run is at a node, or needs a slot there, that the graph does not have; or `rename` names no
                node.
            DataError: the data would be opened again inside an epoch, at a position that cannot be restored.
        """
        run = self._run
        run.require_idle()
        supplied = {name for name, value in {**run.session.resources, **resources}.items() if value is not None}
        graph = Graph.of(checked_graph(graph, ranks=run.session.world.world_size > 1, supplied=supplied))
        run.session.rewire(graph, rename or {}, resources, moves=run.has_begun)
        run.has_changed()
        self._notify_of_graph()
        if run.is_announced:
            run.announce("rewired")

    @on_all_ranks("in `load`")
    @checked_call()
    def load(self, checkpoint: str | Path = "best", *, only: str | Iterable[str] = (), **models: str) -> Path:
        """Load the weights of a checkpoint into the models; returns its path.

        Parameters, buffers and everything else in their `state_dict` are loaded, and nothing else is: this is not a
        resume. A run that continues trains these weights further and saves them.

        Arguments:
            checkpoint: "best" or "newest" of this run, the name of one in its run directory, or a path, such as
                ``"runs/first/best"``. Default: the best one by the metric ``checkpoint.best``.
            only: patterns of names, such as ``"body.*"``; nothing else is loaded. Default: everything.
            models: model -> that in the checkpoint whose weights it takes: ``model="average"``. Default: its own.

        Raises:
            LifeCycleError: the run is running, or has failed.
            UsageError: there is no such checkpoint, or it does not match these models; the tensors are named.
            CheckpointError: it is damaged.
        """
        run = self._run
        run.require_idle()
        patterns = (only,) if isinstance(only, str) else tuple(only)
        path = load_weights(run.session, run.files, checkpoint, models, patterns)
        run.has_changed()
        return path

    def save(self) -> Path | None:
        """Save a checkpoint now.

        If the position is not a save point, the run first trains to the next one, and reports it. Inside a node this is
        a request, and None is returned; otherwise the path of the checkpoint, which is then on disk.

        Raises:
            UsageError: there is no run directory.
            CheckpointError: it cannot be written.
        """
        if self._run.files is None:
            raise UsageError("save: the trainer has no run directory", "pass run_dir=... to Trainer")
        if self._session.loop.inside:
            self._run.requests.ask("save")
            return None
        with self._running(ResumeOptions()):
            while not self._run.save(SavePolicy("sync")):
                reason = f"`{self.position}` is not a save point ({self._run.writer.refusal})"
                self._run.notices.once(f"{reason}; training on to the next one")
                self._one_transition()
        return self._run.files.latest.path if self._run.files.latest is not None else None

    @contextmanager
    def _running(self, options: ResumeOptions, limit: Trigger | None = None) -> Iterator[None]:
        """A block in which the run is running; the first time, it begins. Without a limit no display shows it."""
        run = self._run
        run.require_idle()
        run.trigger("start")
        failure: BaseException | None = None
        try:
            with run.files.locked() if run.files is not None else nullcontext():
                try:
                    with run.writer.completed():
                        get_ready(run, options, self, limit)
                        run.session.world.synchronise("start")  # signals received so far reach all ranks here
                        yield
                except BaseException as error:
                    failure = error
                    self._note_failure(error)
                    raise
                finally:
                    run.ended(failure)
                    # Workers keep running between single transitions: starting them takes longer than one.
                    if limit is not None or run.session.loop.ended or run.state == "failed":
                        run.session.compiled.release()
        except BaseException as error:
            run.session.world.fail(error)
            if run.state in ACTIVE:  # it never began
                run.trigger("halt")
            raise

    def _note_failure(self, error: BaseException) -> None:
        """Add to an error the checkpoint that the run resumes from, and write both into the status."""
        run = self._run
        is_interrupt = not isinstance(error, Exception)
        run.error = "" if is_interrupt else error_line(error)
        if run.state == "failed":
            # Any checkpoint under way is on the disk now.
            if run.files is not None and not (is_interrupt or isinstance(error, RanksError)):
                name, path = run.files.resumable, run.files.path
                starts = f"no checkpoint was saved before: {path} starts from the beginning"
                error.add_note(f"resumes from checkpoint {name}" if name else starts)
            run.replay = () if is_interrupt else self.replay_options()
            run.write_status("interrupted" if is_interrupt else None)
