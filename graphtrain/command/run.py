"""`graphtrain run`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from graphtrain.checks import checked_graph
from graphtrain.command.failure import STOPPED
from graphtrain.command.script import resources_of, setup_function
from graphtrain.command.settings import setup_arguments, split_settings, with_parameters
from graphtrain.engine.trainer import Trainer
from graphtrain.errors import UsageError
from graphtrain.metrics.lines import ProgressLines
from graphtrain.outcome import Outcome
from graphtrain.state.random import seed_everything


@dataclass(frozen=True)
class RunOptions:
    """The options of the command, as typed."""

    graph: str
    run_dir: Path | None
    resume: str
    until: str | None
    seed: int
    device: str
    deterministic: bool
    quiet: bool


def run_script(script: str, settings: list[str], options: RunOptions) -> int:
    """Run a script's setup through a graph; the exit code."""
    say = _nothing if options.quiet else _say
    path, function_name, setup = setup_function(script)
    given, parameters = split_settings(settings)
    name = f"{path.name}:{function_name}"
    arguments = setup_arguments(setup, given, name)
    graph = checked_graph(with_parameters(checked_graph(options.graph), parameters))
    seed_everything(options.seed)
    resources = resources_of(setup, arguments, name)
    lines = ProgressLines(say)
    about = {
        "command": shlex.join(["graphtrain", *sys.argv[1:]]),
        "arguments": {key: repr(value) for key, value in arguments.items()},
    }

    fresh = options.run_dir is None
    run_dir = options.run_dir if options.run_dir is not None else next_run_directory(path.stem)
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
    again = _command_to_resume(run_dir)
    if fresh:
        say(f"run directory: {run_dir}; stop it when you like, and go on with: {again}")
    outcome = running.run(resume=options.resume, until=options.until)
    lines.flush()
    say(f"{outcome}: {run_dir}  digest {running.digest()[:16]}")
    if outcome is Outcome.STOPPED:
        say(f"go on with: {again}")
    return STOPPED if outcome is Outcome.STOPPED else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def _nothing(line: str) -> None:
    return None


def next_run_directory(stem: str) -> Path:
    """The first of runs/STEM-001, -002, ... that does not exist. The Trainer makes it, once everything fits."""
    for number in range(1, 1000):
        path = Path("runs") / f"{stem}-{number:03d}"
        if not path.exists():
            return path
    raise UsageError(f"runs/{stem}-001 to -999 exist", "name a directory with --run-dir")


def _command_to_resume(run_dir: Path) -> str:
    words = ["graphtrain", *sys.argv[1:]]
    if "--run-dir" not in words and not any(word.startswith("--run-dir=") for word in words):
        words += ["--run-dir", str(run_dir)]
    return shlex.join(words)
