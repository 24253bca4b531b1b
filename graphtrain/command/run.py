"""`graphtrain run`."""

from __future__ import annotations

import contextlib
import inspect
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

from graphtrain.checks import checked_graph
from graphtrain.command.failure import STOPPED
from graphtrain.command.script import resources_of, setup_function
from graphtrain.command.settings import setup_arguments, split_settings, with_parameters
from graphtrain.engine.resources import resolve_device
from graphtrain.engine.trainer import Trainer
from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.metrics.lines import ProgressLines
from graphtrain.names import nearest, suggestion
from graphtrain.outcome import Outcome
from graphtrain.state.random import seed_everything
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER, STATUS_FILE
from graphtrain.trigger import MULTIPLES, Trigger


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


_OPTIONS = frozenset(one.name for one in fields(RunOptions))


def run_script(script: str, settings: list[str], options: RunOptions) -> int:
    """Run a script's setup through a graph; the exit code."""
    say = _nothing if options.quiet else _say
    # What is wrong with the command line is said before the script spends its time, and before anything is written.
    given, parameters = split_settings(settings)
    _check_seed(options.seed)
    resolve_device(options.device)
    _check_resume(options.resume, options.run_dir)
    path, function_name, setup = setup_function(script)
    name = f"{path.name}:{function_name}"
    arguments = setup_arguments(setup, given, name)
    graph = checked_graph(with_parameters(Graph.load(options.graph), parameters))
    _check_until(options.until, graph)
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
    with _run_directory(options.run_dir, path.stem) as run_dir:
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
    again = replace(options, run_dir=run_dir, resume="auto")
    if options.run_dir is None:
        say(f"run directory: {run_dir}; stop it when you like, and go on with: {command_line(script, settings, again)}")
    try:
        outcome = running.run(resume=options.resume, until=options.until)
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


def command_line(script: str, settings: list[str], options: RunOptions) -> str:
    """The command that runs a script with these options, as a shell reads it.

    >>> options = RunOptions("fit", Path("runs/a"), "auto", None, 0, "auto", False, False)
    >>> command_line("train.py", ["finish.after=2 epochs"], options)
    "graphtrain run train.py 'finish.after=2 epochs' --run-dir runs/a"
    """
    words = ["graphtrain", "run", script, *settings]
    if options.graph != "fit":
        words += ["--graph", options.graph]
    if options.run_dir is not None:
        words += ["--run-dir", str(options.run_dir)]
    if options.resume != "auto":
        words += ["--resume", options.resume]
    if options.until is not None:
        words += ["--until", options.until]
    if options.seed != 0:
        words += ["--seed", str(options.seed)]
    if options.device != "auto":
        words += ["--device", options.device]
    if options.deterministic:
        words.append("--deterministic")
    if options.quiet:
        words.append("--quiet")
    return shlex.join(words)


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**63:  # what torch can be seeded with
        raise UsageError(f"--seed: expected an integer from 0 to 2**63 - 1, got {seed}")


def _check_resume(resume: str, run_dir: Path | None) -> None:
    if resume == "auto":
        return
    if resume == "never":
        if run_dir is not None and (run_dir / STATUS_FILE).exists():
            raise UsageError(
                f"--resume never: `{run_dir}` holds a run already", "choose another run directory, or go on with it"
            )
        return
    checkpoints = run_dir / CHECKPOINTS_FOLDER if run_dir is not None else Path()
    if Path(resume).is_dir() or (checkpoints / resume).is_dir():
        return
    there = sorted(one.name for one in checkpoints.iterdir()) if run_dir is not None and checkpoints.is_dir() else []
    close = nearest(resume, there)
    hint = f"did you mean {close}?" if close else f"there are: {', '.join(there)}" if there else ""
    raise UsageError(f"--resume: there is no checkpoint `{resume}`", hint or "auto, never, or the path of a checkpoint")


def _check_until(until: str | None, graph: Graph) -> None:
    if until is None:
        return
    try:
        terms = Trigger(until).terms
    except ValueError as error:
        raise UsageError(f"--until: {error}", "as in --until '500 steps'") from None
    known = [*graph.units, *(unit for unit, (base, _) in MULTIPLES.items() if base in graph.units)]
    for term in terms:
        if term.unit not in known:
            raise UsageError(f'--until: unknown unit `{term.unit}` in "{term}"', suggestion(term.unit, known))


@contextlib.contextmanager
def _run_directory(given: Path | None, stem: str) -> Iterator[Path]:
    """The directory of the run. A fresh one is gone again if what is done in the block fails."""
    if given is not None:
        yield given
        return
    fresh = _fresh_directory(stem)
    try:
        yield fresh
    except BaseException:
        for empty in (fresh / CHECKPOINTS_FOLDER, fresh, fresh.parent):
            with contextlib.suppress(OSError):
                empty.rmdir()
        raise


def _fresh_directory(stem: str) -> Path:
    """The first of runs/STEM-001, -002, ... that was free; made here, so that no run started beside gets it too."""
    for number in range(1, 1000):
        path = Path("runs") / f"{stem}-{number:03d}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(
                f"the run directory `{path}` cannot be made: {error.strerror}", "name a directory with --run-dir"
            ) from None
        return path
    raise UsageError(f"runs/{stem}-001 to -999 exist", "name a directory with --run-dir")
