"""A run from the command line: a script's setup, a graph, and a directory."""

from __future__ import annotations

import functools
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from graphtrain.checks import checked_graph
from graphtrain.command.failure import STOPPED
from graphtrain.command.options import RunOptions, command_line
from graphtrain.command.output import ignore, notify
from graphtrain.command.run_directories import (
    SAVED,
    check_resume,
    expect_overlays,
    forked_checkpoint,
    graph_to_resume,
    named_or_new_directory,
)
from graphtrain.command.script import not_state_of, resources_of, setup_function
from graphtrain.command.script_graph import load_graph, script_graph
from graphtrain.command.settings import (
    arguments_in_force,
    logged_every,
    renamings,
    setup_arguments,
    split_settings,
    with_parameters,
)
from graphtrain.command.trace import TraceLines
from graphtrain.command.warm_start import fingerprints, split, warm_start
from graphtrain.data.length import length_of
from graphtrain.data.rank_local import RankLocal
from graphtrain.display.choose import display_for, introduce
from graphtrain.distributed import current_ranks, on_all_ranks
from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.graph.renaming import paths_of
from graphtrain.metrics.logger import Logger
from graphtrain.names import quoted
from graphtrain.outcome import Outcome
from graphtrain.program.agreement import Agreement
from graphtrain.program.bind import USUAL, without_unread
from graphtrain.program.factories import with_made
from graphtrain.program.requests import Requests
from graphtrain.program.resources import resolve_device
from graphtrain.run.breakpoints import parse_amount, refuse_unknown_node
from graphtrain.run.trainer import Trainer
from graphtrain.state.random import seed_everything
from graphtrain.storage.saved_graph import holds_a_graph


@dataclass(frozen=True)
class Script:
    """The program to run.

    Attributes:
        name: the name of the function in messages: ``"train.py:setup"``.
        stem: the name of a new run directory begins with it.
        words: the beginning of the command line: ``["graphtrain", "run", "train.py"]``.
        script: the file of the program; None if it has none.
        graph: its own, used if the command line names none; None where it is not known.
    """

    setup: Callable[..., Any]
    name: str
    stem: str
    words: list[str]
    script: Path | None
    graph: Graph | str | Path | None

    @classmethod
    def of(cls, setup: Callable[..., Any], graph: Graph | str | Path, words: list[str], script: Path | None) -> Script:
        """The program of a script that calls `graphtrain.main`."""
        name = getattr(setup, "__name__", "setup")
        stem = script.stem if script is not None and script.stem.isidentifier() else "run"
        return cls(setup, f"{script.name}:{name}" if script is not None else name, stem, words, script, graph)


# Runs a trainer in another way than `Trainer.run`.
Train = Callable[[Trainer], Outcome]


def run_script(script: str, settings: list[str], options: RunOptions, train: Train | None = None) -> int:
    """Run a script's setup through a graph; returns the exit code.

    Arguments:
        train: runs the trainer. Default: `Trainer.run`, with the options.
    """
    # Errors of the command line are reported before the script is imported, which may take long.
    _checked_settings(settings, options)
    with on_all_ranks(f"in {script}"):
        return _run_script(script, settings, options, train)


def _run_script(script: str, settings: list[str], options: RunOptions, train: Train | None) -> int:
    path, function_name, setup = setup_function(script)
    graph = _own_graph(script, options)
    program = Script(setup, f"{path.name}:{function_name}", path.stem, ["graphtrain", "run", script], path, graph)
    return run_program(program, settings, options, train)


def _own_graph(script: str, options: RunOptions) -> Graph | str | Path | None:
    """The graph of a script; None where it is not known, and another one is named."""
    try:
        return script_graph(script)
    except UsageError:
        if options.graph is None:
            raise
        return None


def run_program(program: Script, settings: list[str], options: RunOptions, train: Train | None = None) -> int:
    """Run a setup through a graph; returns the exit code. The arguments are those of `run_script`."""
    with on_all_ranks(f"in {program.name}"):
        return _run_program(program, settings, options, train)


def _run_program(program: Script, settings: list[str], options: RunOptions, train: Train | None) -> int:
    ranks = current_ranks()
    trace = ignore if ranks.rank else notify
    report = ignore if options.quiet else trace
    values, parameters = _checked_settings(settings, options)
    resume = options.resume
    if options.fork is not None:
        resume = forked_checkpoint(options.fork, options.run_dir, resume, report)
    arguments = setup_arguments(program.setup, values, program.name)
    in_force = arguments_in_force(program.setup, arguments)  # before a default that is mutable is changed
    source = options.graph if options.graph is not None else program.graph
    assert source is not None, "one of them is known"
    if source == SAVED:
        source = graph_to_resume(options.run_dir, resume, report)
    if resume == options.resume:  # and this is no fork
        expect_overlays(options.overlay, options.run_dir, resume, report)
    graph = logged_every(with_parameters(_loaded_graph(source, options), parameters), options.log_every)
    graph = checked_graph(graph)
    if options.until is not None:
        parse_amount(options.until, graph)
    if options.before is not None:
        refuse_unknown_node(options.before, [*paths_of(graph)], "--before")
    seed_everything(options.seed)
    resources = resources_of(program.setup, arguments, program.name, graph)
    loggers = _loggers(resources.pop("loggers", ()), options, program)
    not_state = not_state_of(resources, program.name)
    _check_names(resources, program)
    refuse_idle_ranks(resources.get("train_data"), ranks.world_size)
    if options.graph is not None and options.graph != program.graph:  # then `setup` serves several graphs
        resources, unread = without_unread(graph, resources)
        for line in unread:
            report(line)
    made = with_made(resources)
    loaded = warm_start(made, options.init)
    if options.dry_run:
        return _dry_run(graph, resources, loaded, options, report, not_state)
    about = {
        "command": _command_as_typed(program),
        "arguments": in_force,
        "given": sorted(arguments),
        "seed": options.seed,
        "script": str(program.script) if program.script is not None else "",
        "init": [f"{name}={path}" for name, path in map(split, options.init)],  # of `RUN/best`, what it is now
        "weights": fingerprints(made),
    }
    if line := _unhandled_signal():
        report(line)
    with named_or_new_directory(options.run_dir, program.stem, Agreement(ranks, Requests()).lead) as run_dir:
        trainer = Trainer(
            graph,
            run_dir=run_dir,
            device=options.device,
            deterministic=options.deterministic,
            loggers=loggers,
            display=None if options.quiet else display_for(report, metrics=_names(options.show)),
            notify=report,
            about=about,
            not_state=not_state,
            **resources,
        )
        resuming = replace(
            options, run_dir=run_dir, resume="auto", fork=None, from_setup="", from_saved=False, rename=[]
        )
        if not options.quiet and not ranks.rank:
            introduce(trainer.summary(), report)
        for line in loaded:
            report(line)
        if options.run_dir is None:
            report(f"run directory: {run_dir}; resume with: {command_line(program.words, settings, resuming)}")
        try:
            if train is None:
                train = functools.partial(
                    Trainer.run,
                    resume=resume,
                    until=options.until,
                    before=options.before,
                    from_setup=options.from_setup,
                    from_saved=options.from_saved,
                    rename=renamings(options.rename),
                    trace=TraceLines(trainer.graph, trace) if options.trace else None,
                    time_nodes=options.time_nodes,
                )
            outcome = train(trainer)
        except Exception as error:
            if line := _replay_line(program, run_dir, trainer):
                error.add_note(f"replay it: {line}")
            raise
        except KeyboardInterrupt:
            report(f"resume with: {command_line(program.words, settings, resuming)}")
            raise
        if outcome is Outcome.ALREADY_FINISHED and trainer.changes:
            raise _finished_error(run_dir, trainer)
    endings = _endings(trainer) if outcome is Outcome.ALREADY_FINISHED else ""
    further = f"; a later {endings} trains it further" if endings else ""
    diverged = f", and {trainer.not_finite}" if trainer.not_finite else ""
    report(f"{outcome}{diverged}{further}: {run_dir}  digest {trainer.digest()[:16]}")
    if outcome.resumable:
        if outcome is not Outcome.STOPPED:
            resuming = replace(resuming, until=None, before=None)
        report(f"resume with: {command_line(program.words, settings, resuming)}")
    if outcome is not Outcome.STOPPED:
        return 0
    if ranks.world_size > 1 and _restarts_left():
        report(
            "the exit code is 0 instead of 75, after which torchrun would start the run again; "
            f"graphtrain status {shlex.quote(str(run_dir))} --exit-code tells 75"
        )
        return 0
    return STOPPED


def _dry_run(
    graph: Graph,
    resources: dict[str, Any],
    loaded: list[str],
    options: RunOptions,
    report: Callable[[str], None],
    not_state: list[str],
) -> int:
    """Run everything once, and write nothing; the exit code."""
    display = None if options.quiet else display_for(report, metrics=_names(options.show))
    flags: dict[str, Any] = {"device": options.device, "deterministic": options.deterministic}
    trainer = Trainer(graph.dry_run(), display=display, notify=report, not_state=not_state, **flags, **resources)
    for line in loaded:
        report(line)
    outcome = trainer.run()
    if outcome is Outcome.STOPPED:
        return STOPPED
    unreached = trainer.unreached
    report(
        f"dry run: every node was reached but {quoted(unreached)}" if unreached else "dry run: every node was reached"
    )
    return 0


def refuse_idle_ranks(train_data: Any, world_size: int) -> None:
    """Raise where an epoch of the data that a script supplies has fewer micro-batches than there are ranks.

    Epochs of a `Trainer` may be shorter, as the first rounds of active learning: ranks without a batch are idle.
    """
    length = None if isinstance(train_data, Mapping | RankLocal) else length_of(train_data)
    if length is not None and 0 < length < world_size:
        batches = "1 micro-batch" if length == 1 else f"{length} micro-batches"
        raise UsageError(
            f"an epoch of `train_data` has {batches}, and there are {world_size} processes: {world_size - length} of "
            "them would never get one",
            f"start {length} at most, or make the batches smaller",
        )


def _unhandled_signal() -> str:
    """What to say where a job queue may send SIGUSR1, and torchrun would end at it; empty if there is nothing."""
    handled = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGUSR1")
    if "SLURM_JOB_ID" not in os.environ or "SIGUSR1" in handled:
        return ""
    return (
        "torchrun ends at SIGUSR1, and the run with it, unsaved; if Slurm is to send that, start "
        "torchrun --signals-to-handle SIGTERM,SIGINT,SIGUSR1"
    )


def _restarts_left() -> bool:
    """True where torchrun starts its processes again if one of them ends with another exit code than 0."""
    most, so_far = (int(os.environ.get(f"TORCHELASTIC_{name}", "0")) for name in ("MAX_RESTARTS", "RESTART_COUNT"))
    return so_far < most


def _replay_line(program: Script, run_dir: Path, trainer: Trainer) -> str:
    """The command that leads to the node that has failed; empty where none does."""
    options = trainer.replay_options()
    if not options or program.script is None or program.words[:2] == ["python", "-m"]:
        return ""
    script = program.words[-1]
    name = getattr(program.setup, "__name__", "setup")
    if program.words[0] == "python" and name != "setup":
        script += f":{name}"
    return shlex.join(["graphtrain", "replay", script, "--run-dir", str(run_dir), *options])


def _loaded_graph(source: Graph | str | Path, options: RunOptions) -> Graph:
    """The graph to run; if its file is gone, the saved one is named."""
    try:
        known = source.layers.names if options.graph == SAVED and isinstance(source, Graph) else ()
        overlays = [name for name in options.overlay if name not in known]  # the command of a resume is repeated
        return load_graph(source, overlays=overlays, contained=options.contained)
    except UsageError as error:
        is_gone = not isinstance(source, Graph) and not Path(source).exists()
        if is_gone and options.run_dir is not None and holds_a_graph(options.run_dir):
            raise UsageError(error.message, "--graph saved takes the graph that the run was saved with") from None
        raise


def _endings(trainer: Trainer) -> str:
    """The parameters that end the run: ``"finish.after"``; empty where it ends by itself, as an evaluation does."""
    activities = trainer.summary().activities
    return ", ".join(f"{activity.path}.after" for activity in activities if activity.verb == "after")


def _finished_error(run_dir: Path, trainer: Trainer) -> UsageError:
    """What to say where something else is asked of a finished run: nothing of it would be done."""
    endings = _endings(trainer)
    further = f"; or train this one further, with a later {endings} (in a new directory: --fork {run_dir})"
    return UsageError(
        f"the run in `{run_dir}` is finished, so nothing was run; changed since: {', '.join(trainer.changes)}",
        f"begin another run in a directory of its own, with --run-dir{further if endings else ''}",
    )


def _checked_settings(settings: list[str], options: RunOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings, split, after everything is checked that can be checked without the script."""
    arguments_and_parameters = split_settings(settings)
    if not 0 <= options.seed < 2**63:  # the seeds that torch takes
        raise UsageError(f"--seed: expected an integer from 0 to 2**63 - 1, got {options.seed}")
    resolve_device(options.device)
    check_resume(options.resume, options.run_dir)
    for text in options.init:
        split(text)
    renamings(options.rename)
    return arguments_and_parameters


def _check_names(resources: dict[str, Any], program: Script) -> None:
    """Refuse a resource with the name of an argument of `Trainer`, which the command sets."""
    for name in sorted((set(inspect.signature(Trainer).parameters) - set(USUAL)) & set(resources)):
        is_option = name in RunOptions.__dataclass_fields__
        hint = f"set it with --{name.replace('_', '-')}" if is_option else "give the resource another name"
        raise UsageError(f"{program.name} returns `{name}`, which is not a resource but a setting of the run", hint)


def _loggers(returned: Any, options: RunOptions, program: Script) -> list[Logger]:
    loggers = list(returned) if isinstance(returned, list | tuple) else [returned]
    for logger in loggers:
        if not callable(logger):
            raise UsageError(
                f"{program.name} returns `loggers` with a {type(logger).__name__}, which is not callable",
                "a logger is called as logger(metrics, step)",
            )
    if options.tensorboard:
        from graphtrain.metrics.tensorboard import TensorBoard

        loggers.append(TensorBoard())
    if options.csv:
        from graphtrain.metrics.csv import CSV

        loggers.append(CSV())
    return loggers


def _command_as_typed(program: Script) -> str:
    """The command line as it was typed."""
    program_words = ["graphtrain"] if program.words[0] == "graphtrain" else program.words
    return shlex.join([*program_words, *sys.argv[1:]])


def _names(text: str) -> tuple[str, ...] | None:
    return tuple(name.strip() for name in text.split(",") if name.strip()) or None
