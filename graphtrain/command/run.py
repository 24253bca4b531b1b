"""A run from the command line: a script's setup, a graph, and a directory."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable
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
    claimed_directory,
    forked_checkpoint,
    graph_to_go_on_in,
)
from graphtrain.command.script import resources_of, setup_function
from graphtrain.command.settings import renamings, setup_arguments, split_settings, with_parameters
from graphtrain.command.trace import TraceLines
from graphtrain.command.warm_start import split, warm_start
from graphtrain.display.choose import display_for, introduce
from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.metrics.logger import Logger
from graphtrain.outcome import Outcome
from graphtrain.program.resources import resolve_device
from graphtrain.run.breakpoints import parse_amount
from graphtrain.run.trainer import Trainer
from graphtrain.state.random import seed_everything


@dataclass(frozen=True)
class Program:
    """What is run.

    Attributes:
        name: of the function, for messages: ``"train.py:setup"``.
        stem: what a fresh run directory is called by.
        words: the beginning of the command line: ``["graphtrain", "run", "train.py"]``.
        script: the file of the program; None where it has none.
        graph: used where the command line names none.
    """

    setup: Callable[..., Any]
    name: str
    stem: str
    words: list[str]
    script: Path | None
    graph: Graph | str | Path = "fit"

    @classmethod
    def of(cls, setup: Callable[..., Any], graph: Graph | str | Path, words: list[str], script: Path | None) -> Program:
        """A script that is a command itself."""
        name = getattr(setup, "__name__", "setup")
        stem = script.stem if script is not None and script.stem.isidentifier() else "run"
        return cls(setup, f"{script.name}:{name}" if script is not None else name, stem, words, script, graph)


def run_script(script: str, settings: list[str], options: RunOptions) -> int:
    """Run a script's setup through a graph; the exit code."""
    # What is wrong with the command line is said before the script spends its time.
    _check(settings, options)
    path, function_name, setup = setup_function(script)
    program = Program(setup, f"{path.name}:{function_name}", path.stem, ["graphtrain", "run", script], path)
    return run_program(program, settings, options)


def run_program(program: Program, settings: list[str], options: RunOptions) -> int:
    """Run a setup through a graph; the exit code."""
    tell = ignore if options.quiet else notify
    given, parameters = _check(settings, options)
    resume = options.resume
    if options.fork is not None:
        resume = forked_checkpoint(options.fork, options.run_dir, resume, tell)
    arguments = setup_arguments(program.setup, given, program.name)
    source = options.graph if options.graph is not None else program.graph
    if source == SAVED:
        source = graph_to_go_on_in(options.run_dir, resume, tell)
    graph = with_parameters(source if isinstance(source, Graph) else Graph.load(source), parameters)
    graph = checked_graph(graph)
    if options.until is not None:
        parse_amount(options.until, graph)
    seed_everything(options.seed)
    resources = resources_of(program.setup, arguments, program.name)
    loggers = _loggers(resources.pop("loggers", ()), options, program)
    _refuse_settings(resources, program)
    started = warm_start(resources, options.init)
    about = {
        "command": _typed(program),
        "arguments": {key: repr(value) for key, value in arguments.items()},
        "script": str(program.script) if program.script is not None else "",
        "init": list(options.init),
    }
    with claimed_directory(options.run_dir, program.stem) as run_dir:
        running = Trainer(
            graph,
            run_dir=run_dir,
            seed=options.seed,
            device=options.device,
            deterministic=options.deterministic,
            loggers=loggers,
            display=None if options.quiet else display_for(tell, metrics=_names(options.show)),
            notify=tell,
            about=about,
            **resources,
        )
        again = replace(options, run_dir=run_dir, resume="auto", fork=None, from_setup="", from_saved=False, rename=[])
        if not options.quiet:
            introduce(running.summary(), tell)
        for line in started:
            tell(line)
        if options.run_dir is None:
            where = command_line(program.words, settings, again)
            tell(f"run directory: {run_dir}; stop it when you like, and go on with: {where}")
        try:
            outcome = running.run(
                resume=resume,
                until=options.until,
                from_setup=options.from_setup,
                from_saved=options.from_saved,
                rename=renamings(options.rename),
                trace=TraceLines(running.graph, notify) if options.trace else None,
            )
        except KeyboardInterrupt:
            tell(f"go on with: {command_line(program.words, settings, again)}")
            raise
    tell(f"{outcome}: {run_dir}  digest {running.digest()[:16]}")
    if outcome.resumable:
        if outcome is Outcome.REACHED:
            again = replace(again, until=None)
        tell(f"go on with: {command_line(program.words, settings, again)}")
    return STOPPED if outcome is Outcome.STOPPED else 0


def _check(settings: list[str], options: RunOptions) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings, after everything was looked at that can be wrong without the script."""
    found = split_settings(settings)
    if not 0 <= options.seed < 2**63:  # what torch can be seeded with
        raise UsageError(f"--seed: expected an integer from 0 to 2**63 - 1, got {options.seed}")
    resolve_device(options.device)
    check_resume(options.resume, options.run_dir)
    for text in options.init:
        split(text)
    renamings(options.rename)
    return found


def _refuse_settings(resources: dict[str, Any], program: Program) -> None:
    """A resource must not have the name of something that the command sets."""
    for taken in sorted(set(inspect.signature(Trainer).parameters) & set(resources)):
        is_option = taken in RunOptions.__dataclass_fields__
        hint = f"--{taken.replace('_', '-')} sets it" if is_option else "give the resource another name"
        raise UsageError(f"{program.name} returns `{taken}`, which is no resource but a setting of the run", hint)


def _loggers(given: Any, options: RunOptions, program: Program) -> list[Logger]:
    loggers = list(given) if isinstance(given, list | tuple) else [given]
    for one in loggers:
        if not callable(one):
            raise UsageError(
                f"{program.name} returns `loggers` with a {type(one).__name__}, which cannot be called",
                "a logger is called as logger(metrics, step)",
            )
    if options.tensorboard:
        from graphtrain.metrics.tensorboard import TensorBoard

        loggers.append(TensorBoard())
    return loggers


def _typed(program: Program) -> str:
    """The command line as it was typed."""
    program_words = ["graphtrain"] if program.words[0] == "graphtrain" else program.words
    return shlex.join([*program_words, *sys.argv[1:]])


def _names(text: str) -> tuple[str, ...] | None:
    return tuple(one.strip() for one in text.split(",") if one.strip()) or None
