"""A run from the command line: a program's setup, a graph, and a directory."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, final

from graphtrain.checks import checked_graph
from graphtrain.command.failure import STOPPED
from graphtrain.command.options import RunOptions, resume_command, without
from graphtrain.command.output import notify_once
from graphtrain.command.script import Script, load_graph
from graphtrain.command.set_up import SetUp, named_weights, set_up, warm_start
from graphtrain.command.settings import renamings, setup_arguments, split_settings, with_parameters
from graphtrain.data.samplers import length_of
from graphtrain.errors import CheckpointError, UsageError
from graphtrain.graph.registry import kind_of_node
from graphtrain.lazy import imported
from graphtrain.names import quoted
from graphtrain.outcome import Outcome
from graphtrain.printable import one_line
from graphtrain.program.agreement import Agreement
from graphtrain.program.requests import Requests
from graphtrain.program.resources import USUAL, resolve_device
from graphtrain.ranks import current_ranks, is_one_of_several, on_all_ranks
from graphtrain.report.logger import Logger
from graphtrain.report.numbers import count
from graphtrain.report.values import not_finite_since
from graphtrain.storage.checkpoint import read_checkpoint
from graphtrain.storage.named import checkpoint_folder, holds_a_graph, newest_in, saved_graph
from graphtrain.storage.rank_files import digest_of_ranks
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER, has_begun, write_status
from graphtrain.storage.run_files import Lead
from graphtrain.trainer.breakpoints import parse_amount
from graphtrain.trainer.debugging import error_line
from graphtrain.trainer.graph import Graph
from graphtrain.trainer.trainer import Trainer

# Runs a trainer in another way than `Trainer.run`.
Drive = Callable[[Trainer, RunOptions], Outcome]


def train(program: Script | str, settings: Sequence[str], options: RunOptions, drive: Drive | None = None) -> int:
    """Train a script; returns the exit code.

    Arguments:
        program: the script, or ``SCRIPT[:FUNCTION]``, which is imported.
        settings: ``NAME=VALUE`` and ``NODE.PARAM=VALUE``.
        drive: runs the trainer. Default: `Trainer.run`, with the options.
    """
    # Errors of the command line are reported before the script is imported, which may take long.
    arguments, parameters = split_settings(settings)
    _check(options)
    name, words = (program, ["graphtrain"]) if isinstance(program, str) else (program.name, program.words)
    known = {"arguments": arguments, "parameters": parameters, "command": shlex.join([*words, *sys.argv[1:]])}
    with _failed_start(options, known), on_all_ranks(f"in {name}"):
        if isinstance(program, str):
            program = Script.of_script(program)
        return _Training(program, options, drive).run(arguments, parameters)


@contextlib.contextmanager
def _failed_start(options: RunOptions, known: Mapping[str, Any]) -> Iterator[None]:
    """Let `graphtrain ls` list a run that the block fails to begin; a mistake in the command line leaves nothing."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        run_dir, is_first = options.run_dir, not current_ranks().rank
        if run_dir is not None and not options.dry_run and is_first and not has_begun(run_dir):
            with contextlib.suppress(CheckpointError):  # there is a worse one
                write_status(run_dir, {"position": "", "state": "failed", **known, "error": error_line(error)})
        raise


def _check(options: RunOptions) -> None:
    """Refuse options that are wrong whatever the script is."""
    if not 0 <= options.seed < 2**63:  # the seeds that torch takes
        raise UsageError(f"--seed: expected an integer from 0 to 2**63 - 1, got {options.seed}")
    resolve_device(options.device)
    check_resume(options.resume, options.run_dir)
    for text in options.init:
        named_weights(text)
    if options.init_only and not options.init:
        raise UsageError("--init-only: there is no --init", "as in --init model=RUN/best --init-only 'body.*'")
    renamings(options.rename)


@final
class _Training:
    """One call of the command."""

    def __init__(self, program: Script, options: RunOptions, drive: Drive | None) -> None:
        self._program, self._options, self._drive = program, options, drive
        self._ranks = current_ranks()
        self._trace, self._report = notify_once(), notify_once(quiet=options.quiet)

    def run(self, values: Mapping[str, Any], parameters: Mapping[str, Any]) -> int:
        """Set the program up, and train; the exit code."""
        options, program, report = self._options, self._program, self._report
        resume = options.resume
        if options.fork is not None:
            resume = forked_checkpoint(options.fork, options.run_dir, resume, report)
        arguments = setup_arguments(program.setup, values, program.name)
        graph = self.graph(resume, parameters)
        made = set_up(program.setup, arguments, program.name, graph, options.seed, options.device)
        loggers = self._loggers(made.loggers)
        self._check_names(made.resources)
        refuse_idle_ranks(made.resources.get("train_data"), self._ranks.world_size)
        loaded = warm_start(made.resources, options.init, options.init_only)
        trainer: Callable[..., Trainer] = functools.partial(
            Trainer,
            device=options.device,
            deterministic=options.deterministic,
            display=None if options.quiet else imported("graphtrain.report.display.choose").display_for(report),
            notify=report,
            not_state=made.not_state,
            **made.resources,
        )
        if options.dry_run:
            return self._dry_run(trainer(graph.dry_run()), loaded)
        about = self._about(made, sorted(arguments))
        stem = program.file.stem if program.file is not None and program.file.stem.isidentifier() else "run"
        with named_or_new_directory(options.run_dir, stem, Agreement(self._ranks, Requests()).lead) as run_dir:
            trained = trainer(graph, run_dir=run_dir, loggers=loggers, about=about)
            return self._train(trained, run_dir, resume, loaded)

    # ---- the graph and the resources

    def graph(self, resume: str, parameters: Mapping[str, Any]) -> Graph:
        """The graph to run, with the parameters that are set."""
        options = self._options
        source = options.graph if options.graph is not None else self._program.own_graph()
        if source == SAVED:
            source = graph_to_resume(options.run_dir, resume, self._report)
        graph = Graph.of(checked_graph(with_parameters(self._loaded(source), parameters)))
        if options.until is not None:
            parse_amount(options.until, graph)
        return graph

    def _loaded(self, source: Graph | str | Path) -> Graph:
        """The graph with overlays; if its file is gone, the saved one is named."""
        options = self._options
        known = source.layers.names if options.graph == SAVED and isinstance(source, Graph) else ()
        overlays = [name for name in options.overlay if name not in known]  # the command of a resume is repeated
        try:
            return load_graph(source, overlays=overlays)
        except UsageError as error:
            is_gone = not isinstance(source, Graph) and not Path(source).exists()
            if is_gone and options.run_dir is not None and holds_a_graph(options.run_dir):
                raise UsageError(error.message, "--graph saved takes the graph that the run was saved with") from None
            raise

    def _loggers(self, returned: Any) -> list[Logger]:
        loggers = list(returned) if isinstance(returned, list | tuple) else [returned]
        for logger in loggers:
            if not callable(logger):
                raise UsageError(
                    f"{self._program.name} returns `loggers` with a {type(logger).__name__}, which is not callable",
                    "a logger is called as logger(metrics, step)",
                )
        if self._options.tensorboard:
            from graphtrain.report.tensorboard import TensorBoard

            loggers.append(TensorBoard())
        if self._options.wandb:
            from graphtrain.report.wandb import WandB

            loggers.append(WandB())
        return loggers

    def _check_names(self, resources: Mapping[str, Any]) -> None:
        """Refuse a resource with the name of an argument of `Trainer`, which the command sets."""
        options = {option.name for option in fields(RunOptions)}
        for name in sorted((set(inspect.signature(Trainer).parameters) - set(USUAL)) & set(resources)):
            hint = f"set it with --{name.replace('_', '-')}" if name in options else "give the resource another name"
            raise UsageError(
                f"{self._program.name} returns `{name}`, which is not a resource but a setting of the run", hint
            )

    def _about(self, made: SetUp, given: list[str]) -> dict[str, Any]:
        """Facts that are saved with the run."""
        init = map(named_weights, self._options.init)  # `RUN/best` as the checkpoint that it is now
        return {
            "command": shlex.join(self._words),
            "arguments": made.arguments,
            "given": given,
            "seed": self._options.seed,
            "script": str(self._program.file or ""),
            "init": [f"{name}={path}" for name, path in init],
            "init_only": list(self._options.init_only),
        }

    # ---- the run

    def _train(self, trainer: Trainer, run_dir: Path, resume: str, loaded: list[str]) -> int:
        """Train, and report the outcome; the exit code."""
        options, report = self._options, self._report
        if not options.quiet and not self._ranks.rank:
            for line in _introduced(trainer):
                report(line)
        for line in loaded:
            report(line)
        if options.run_dir is None:
            report(f"run directory: {run_dir}; {self._resume_with(run_dir)}")
        try:
            outcome = self._drive(trainer, options) if self._drive is not None else self._driven(trainer, resume)
        except Exception as error:
            if (where := trainer.replay_options()) and self._program.source:
                where += ["--processes", str(self._ranks.world_size)] if self._ranks.world_size > 1 else []
                words = ["graphtrain", "replay", *self._program.source, "--run-dir", str(run_dir), *where]
                error.add_note(f"replay it: {shlex.join(words)}")
            raise
        except KeyboardInterrupt:
            report(self._resume_with(run_dir))
            raise
        endings = ""
        if outcome is Outcome.ALREADY_FINISHED:
            # The parameters that ended it. A graph that ends by itself, as an evaluation does, has none.
            kinds = {name: kind_of_node(node) for name, node in trainer.graph.nodes.items()}
            endings = ", ".join(f"{name}.after" for name, kind in kinds.items() if kind and kind.trigger == "after")
        if outcome is Outcome.ALREADY_FINISHED and trainer.changes:
            fork = f"--fork {shlex.quote(str(run_dir))}"
            further = f"; or train this one further, with a later {endings} (in a new directory: {fork})"
            raise UsageError(  # nothing that was requested would be done
                f"the run in `{run_dir}` is finished, so nothing was run; changed since: {', '.join(trainer.changes)}",
                f"start another run in a new directory, with --run-dir{further if endings else ''}",
            )
        further = f"; a later {endings} trains it further" if endings else ""
        if diverged := not_finite_since(trainer.metrics):  # to train it further would not help
            further = f". {diverged}" if outcome.resumable else f", and {diverged}"
        digest = digest_of_ranks(trainer.gather(trainer.digest()))
        report(f"{outcome}{further}: {run_dir}  digest {digest[:16]}")
        if outcome.resumable:
            report(self._resume_with(run_dir, is_reached=outcome is not Outcome.STOPPED))
        return self._code_of_a_stop(run_dir) if outcome is Outcome.STOPPED else 0

    def _driven(self, trainer: Trainer, resume: str) -> Outcome:
        options = self._options
        return trainer.run(
            resume=resume,
            until=options.until,
            from_setup=options.from_setup,
            from_saved=options.from_saved,
            rename=renamings(options.rename),
            trace=(lambda explanation: self._trace(f"trace  {explanation}")) if options.trace else None,
        )

    def _dry_run(self, trainer: Trainer, loaded: list[str]) -> int:
        """Run everything once, and write nothing; the exit code."""
        for line in loaded:
            self._report(line)
        if trainer.run() is Outcome.STOPPED:
            return STOPPED
        unreached = trainer.unreached
        self._report(f"dry run: every node was reached{f' but {quoted(unreached)}' if unreached else ''}")
        return 0

    @property
    def _words(self) -> list[str]:
        """The command line as it was typed, with the number of processes if torchrun has started all of them here."""
        words, count = [*self._program.words, *sys.argv[1:]], os.environ.get("WORLD_SIZE", "")
        is_here = is_one_of_several() and os.environ.get("LOCAL_WORLD_SIZE") == count
        return [*words, "--processes", count] if is_here and without(words, ["--processes="]) == words else words

    def _resume_with(self, run_dir: Path, *, is_reached: bool = False) -> str:
        count, words = self._ranks.world_size, self._words
        is_elsewhere = count > 1 and without(words, ["--processes="]) == words
        how = f"  in {count} processes, by the same launcher" if is_elsewhere else ""
        return f"resume with: {resume_command(words, run_dir, is_reached=is_reached)}{how}"

    def _code_of_a_stop(self, run_dir: Path) -> int:
        if self._ranks.world_size == 1 or not _restarts_left():
            return STOPPED
        self._report(
            "the exit code is 0 instead of 75, after which torchrun would start the run again; "
            f"graphtrain status {shlex.quote(str(run_dir))} --exit-code tells 75"
        )
        return 0


def _introduced(trainer: Trainer) -> Iterator[str]:
    """The graph, and each model with its size."""
    from torch.nn import Module
    from torch.nn.parameter import is_lazy

    yield f"graph {one_line(trainer.graph.title)}"
    for name, model in trainer.resources.items():
        if isinstance(model, Module):
            elements = sum(parameter.numel() for parameter in model.parameters() if not is_lazy(parameter))
            yield f"{name}: {type(model).__name__}, {count(elements)} parameters"


# ---- several processes


def refuse_idle_ranks(train_data: Any, world_size: int) -> None:
    """Raise where an epoch of the data that a script supplies has fewer micro-batches than there are ranks.

    Epochs of a `Trainer` may be shorter, as the first rounds of active learning: ranks without a batch are idle.
    """
    length = None if isinstance(train_data, Mapping) else length_of(train_data)
    if length is not None and 0 < length < world_size:
        batches = "1 micro-batch" if length == 1 else f"{length} micro-batches"
        raise UsageError(
            f"an epoch of `train_data` has {batches}, and there are {world_size} processes: {world_size - length} of "
            "them would never get one",
            f"start {length} at most, or make the batches smaller",
        )


def _restarts_left() -> bool:
    """True if torchrun will restart its processes after an exit code other than 0."""
    most, so_far = (int(os.environ.get(f"TORCHELASTIC_{name}", "0")) for name in ("MAX_RESTARTS", "RESTART_COUNT"))
    return so_far < most


# ---- the run directory: named by the user, new, or forked from another run


SAVED = "saved"  # as --graph: the graph in the checkpoint
_RUNS = Path("runs")


@contextlib.contextmanager
def named_or_new_directory(named: Path | None, stem: str, lead: Lead) -> Iterator[Path]:
    """The directory of the run. A new directory is removed if the block fails and left it empty.

    Arguments:
        lead: makes a call on rank 0, and returns its result on all ranks.
    """
    if named is not None:
        yield named
        return
    created: list[Path] = []

    def make() -> str:
        created.extend([] if os.path.lexists(_RUNS) else [_RUNS])
        run_dir = _new_directory(stem)
        created[:0] = [run_dir / CHECKPOINTS_FOLDER, run_dir]
        return str(run_dir)

    try:
        yield Path(lead(make))
    except BaseException:
        for folder in created:
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()
        raise


def _new_directory(stem: str) -> Path:
    """The first free one of runs/STEM-001, -002, ...; created here, so that no concurrent run gets it too."""
    for number in range(1, 1000):
        path = _RUNS / f"{stem}-{number:03d}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(
                f"cannot create the run directory `{path}`: {error.strerror}", "name a directory with --run-dir"
            ) from None
        return path
    raise UsageError(f"runs/{stem}-001 to -999 exist", "name a directory with --run-dir")


def check_resume(resume: str, run_dir: Path | None) -> None:
    """Refuse what cannot be resumed, before anything is written.

    Raises:
        UsageError: `resume` is "never" and the directory has a run, or names a checkpoint that does not exist.
    """
    if resume == "never":
        if run_dir is not None and has_begun(run_dir):
            raise UsageError(
                f"--resume never: `{run_dir}` holds a run already", "choose another run directory, or resume the run"
            )
    elif resume != "auto":
        checkpoint_folder(resume, run_dir, hint="--resume takes auto, never, or the path of a checkpoint")


def graph_to_resume(run_dir: Path | None, resume: str, notify: Callable[[str], None]) -> Graph:
    """The graph in the checkpoint that is resumed.

    Raises:
        UsageError: there is none.
        CheckpointError: the named checkpoint is damaged.
    """
    if resume == "never" or (resume == "auto" and run_dir is None):
        raise UsageError("--graph saved: no run is resumed", "name the directory of a run with --run-dir")
    if resume == "auto" and run_dir is not None:
        return Graph.of(saved_graph(run_dir, notify))
    return Graph.of(saved_graph(checkpoint_folder(resume, run_dir), notify))


def forked_checkpoint(source: Path, run_dir: Path | None, resume: str, notify: Callable[[str], None]) -> str:
    """The checkpoint to start a fork from: the newest valid checkpoint of a run, or one of its checkpoints.

    If the run directory has a run already, because the same command was run before, that run is resumed instead.

    Raises:
        UsageError: there is no checkpoint, is the run directory itself, or `resume` is given too.
    """
    if resume != "auto":
        raise UsageError("--fork and --resume are mutually exclusive", "--fork starts from a run's newest checkpoint")
    if run_dir is not None and run_dir.resolve() == source.resolve():
        raise UsageError("--fork: the run directory is the one to fork from", "name a new directory with --run-dir")
    if run_dir is not None and has_begun(run_dir):
        return resume
    if not (source / CHECKPOINTS_FOLDER).is_dir():
        hint = "name the directory of a run, or a checkpoint in it"
        return str(checkpoint_folder(source, hint=hint))
    return str(newest_in(source, read_checkpoint, notify).path)
