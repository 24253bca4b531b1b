"""`graphtrain run`."""

from __future__ import annotations

import inspect
import shlex
import sys
from dataclasses import fields, replace

from graphtrain.checks import checked_graph
from graphtrain.command.failure import STOPPED
from graphtrain.command.options import RunOptions, command_line
from graphtrain.command.run_directories import check_resume, claimed_directory, forked_checkpoint
from graphtrain.command.script import resources_of, setup_function
from graphtrain.command.settings import setup_arguments, split_settings, with_parameters
from graphtrain.engine.resources import resolve_device
from graphtrain.engine.trainer import Trainer
from graphtrain.engine.until import until_trigger
from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.metrics.lines import ProgressLines
from graphtrain.outcome import Outcome
from graphtrain.state.random import seed_everything

_OPTIONS = frozenset(one.name for one in fields(RunOptions))


def run_script(script: str, settings: list[str], options: RunOptions) -> int:
    """Run a script's setup through a graph; the exit code."""
    say = _nothing if options.quiet else _say
    # What is wrong with the command line is said before the script spends its time, and before anything is written.
    given, parameters = split_settings(settings)
    _check_seed(options.seed)
    resolve_device(options.device)
    check_resume(options.resume, options.run_dir)
    resume = options.resume
    if options.fork is not None:
        resume = forked_checkpoint(options.fork, options.run_dir, resume, say)
    path, function_name, setup = setup_function(script)
    name = f"{path.name}:{function_name}"
    arguments = setup_arguments(setup, given, name)
    graph = checked_graph(with_parameters(Graph.load(options.graph), parameters))
    if options.until is not None:
        until_trigger(options.until, graph)
    seed_everything(options.seed)
    resources = resources_of(setup, arguments, name)
    for taken in sorted(set(inspect.signature(Trainer).parameters) & set(resources)):
        hint = f"--{taken.replace('_', '-')} sets it" if taken in _OPTIONS else "give the resource another name"
        raise UsageError(f"{name} returns `{taken}`, which is no resource but a setting of the run", hint)
    lines = ProgressLines(say)
    about = {
        "command": shlex.join(["graphtrain", *sys.argv[1:]]),
        "arguments": {key: repr(value) for key, value in arguments.items()},
    }
    with claimed_directory(options.run_dir, path.stem) as run_dir:
        running = Trainer(
            graph,
            run_dir=run_dir,
            seed=options.seed,
            device=options.device,
            deterministic=options.deterministic,
            loggers=[lines],
            say=say,
            about=about,
            **resources,
        )
        again = replace(options, run_dir=run_dir, resume="auto", fork=None)
        if options.run_dir is None:
            where = command_line(script, settings, again)
            say(f"run directory: {run_dir}; stop it when you like, and go on with: {where}")
        try:
            outcome = running.run(resume=resume, until=options.until)
        except KeyboardInterrupt:
            say(f"go on with: {command_line(script, settings, again)}")
            raise
    lines.flush()
    say(f"{outcome}: {run_dir}  digest {running.digest()[:16]}")
    if outcome.resumable:
        if outcome is Outcome.REACHED:
            again = replace(again, until=None)
        say(f"go on with: {command_line(script, settings, again)}")
    return STOPPED if outcome is Outcome.STOPPED else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def _nothing(line: str) -> None:
    return None


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:  # what torch can be seeded with
        raise UsageError(f"--seed: expected an integer from 0 to 2**63 - 1, got {seed}")
