"""Several runs of one command: a list of values, as in ``lr=1e-3,1e-4``, makes a run of each, in a process of its own.

Each run has a directory below --run-dir, named by its values. The same command again leaves out those that are
finished, resumes those that were interrupted, and tries those that failed again.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, final

from graphtrain.alive import end_with_parent
from graphtrain.command.failure import FAILED, INTERRUPTED, STOPPED
from graphtrain.command.listing import ListedRun, in_order, print_runs
from graphtrain.command.output import counted, ignore, notify
from graphtrain.command.run import RunOptions, Script, without
from graphtrain.command.settings import toml_value, values_in
from graphtrain.errors import CheckpointError, GraphtrainError, UsageError
from graphtrain.graph import Graph
from graphtrain.graph.difference import Change
from graphtrain.graph.registry import kind_of_node
from graphtrain.kind.trigger import Trigger
from graphtrain.names import quoted
from graphtrain.printable import one_line
from graphtrain.ranks.current import is_one_of_several
from graphtrain.report.numbers import duration
from graphtrain.report.run import Run
from graphtrain.report.snapshot import Snapshot
from graphtrain.storage.manifest import Manifest, checkpoint_paths, read_manifest
from graphtrain.storage.named import graph_of
from graphtrain.storage.run_directory import (
    ACTIVE,
    CHECKPOINTS_FOLDER,
    NOT_BEGUN,
    STARTING,
    has_begun,
)
from graphtrain.storage.run_files import write_start

OUTPUT_FILE = "output.txt"
_POLLING_SECONDS = 0.05
_FORWARDED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]


def sweep(program: Script | str, settings: Sequence[str], options: RunOptions) -> int:
    """Make a run of each combination of values; returns the exit code: 0 all done, 75 some stopped, 1 some failed.

    Raises:
        UsageError, GraphError: the command is wrong, as for one of the runs; nothing was started.
    """
    _refuse(settings, options)
    assert options.run_dir is not None, "it would have been refused"
    if isinstance(program, str):
        program = Script.of_script(program)
    runs = [*_combinations(settings, options.run_dir, program.words)]
    names = [run.run_dir.name for run in runs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two of the runs have the directory `{options.run_dir / twice}`", "give each value once")
    from graphtrain.command.training import check_settings

    each = [(run.settings, replace(options, run_dir=run.run_dir, quiet=True)) for run in runs]
    checked = check_settings(program, each)
    runs = [replace(run, about=about, graph=graph) for run, (about, graph) in zip(runs, checked, strict=True)]
    if not (options.from_setup or options.from_saved):
        _refuse_other_arguments(runs, options.run_dir)
    return _Sweep(runs, options, shlex.join([*program.words, *sys.argv[1:]])).run()


def _refuse(settings: Sequence[str], options: RunOptions) -> None:
    """Refuse a sweep that cannot be made."""
    setting = next((text for text in settings if len(values_in(text.partition("=")[2])) > 1), None)
    if options.parallel is not None and (options.parallel < 1 or setting is None):
        reason, hint = "expected an integer of at least 1", "1 is one run after the other"
        if setting is None:
            reason, hint = "there is only one run", "a list of values makes several, as in lr=1e-3,1e-4"
        raise UsageError(f"--parallel {options.parallel}: {reason}", hint)
    assert setting is not None, "or this is no sweep"
    name, _, values = setting.partition("=")
    if options.run_dir is None:
        raise UsageError(
            f"`{setting}` makes a run of each value, and their directories need a folder",
            f"name it with --run-dir, as in --run-dir runs/sweep; for one value, write '{name}=[{values}]' (a list) or "
            f"'{name}=\"{values}\"' (a text)",
        )
    if has_begun(options.run_dir):
        raise UsageError(
            f"`{options.run_dir}` holds a run, and `{setting}` makes several", "name another folder with --run-dir"
        )
    if options.dry_run:
        raise UsageError(f"--dry-run tries one run, and `{setting}` makes several", f"give `{name}` one value")
    if is_one_of_several():
        raise UsageError(
            f"`{setting}` makes several runs, and this process is one of several itself, which torchrun or another "
            "launcher has started",
            "start the command alone; --processes trains each run in several processes",
        )


@dataclass(frozen=True)
class _Run:
    """One run of a sweep.

    Attributes:
        words: of its command line, after the program.
        about: its arguments and seed, as they are saved with a run.
        graph: with its parameters.
    """

    settings: list[str]
    run_dir: Path
    words: list[str]
    command: str
    about: Mapping[str, Any] = field(default_factory=dict)
    graph: Graph | None = None

    def finished_before(self, status: Mapping[str, Any]) -> str:
        """How it has finished before, in words; empty if there is something left to do.

        It was started by the same command, or with the same settings but for an end that it has reached.
        """
        if status.get("state") != "finished":
            return ""
        about = [start.get("about") for start in Run(self.run_dir).starts[-1:]]
        if any(isinstance(facts, Mapping) and facts.get("command") == self.command for facts in about):
            return "finished before"
        saved = self._saved
        if saved is None or not saved.ended or saved.about.get("seed") != self.about["seed"] or self.changed_arguments:
            return ""
        assert self.graph is not None, "it was checked"
        try:
            changes = graph_of(self.run_dir, saved).diff(self.graph).changes
        except GraphtrainError:  # of a kind of graph that this version does not read
            return ""
        ends = [change for change in changes if change.matters]
        if not all(_is_reached(self.graph, change, saved) for change in ends):
            return ""
        return f"finished before{''.join(f', after {end}' for end in Snapshot.from_plain(status).end * bool(ends))}"

    @cached_property
    def changed_arguments(self) -> list[str]:
        """The arguments of `setup` that differ from those of the run in its directory, in words."""
        from graphtrain.resume.environment import argument_changes

        return argument_changes(self._saved.about, self.about) if self._saved is not None else []

    @cached_property
    def _saved(self) -> Manifest | None:
        """That of its newest checkpoint, from which it is resumed; None if there is none."""
        paths = checkpoint_paths(self.run_dir / CHECKPOINTS_FOLDER)
        try:
            return read_manifest(paths[-1]) if paths else None
        except GraphtrainError:  # the run chooses another one
            return None


def _is_reached(graph: Graph, change: Change, saved: Manifest) -> bool:
    """True if a difference of two graphs is the end of the run, and training has come to the end of this one."""
    node, _, parameter = change.path.rpartition(".")
    kind = kind_of_node(graph.nodes[node]) if change.what == "parameter" and node in graph.nodes else None
    value = graph.nodes[node].parameters.get(parameter) if kind is not None else None
    if kind is None or kind.trigger != "after" or parameter != "after" or not isinstance(value, str | list | tuple):
        return False
    reached = {"steps": saved.step, "epochs": saved.epoch}
    return any(term.unit in reached and reached[term.unit] >= term.amount for term in Trigger(value).terms)


def _refuse_other_arguments(runs: Sequence[_Run], folder: Path) -> None:
    """Refuse arguments that are not those with which the runs in the folder were made: none would be resumed."""
    others: dict[str, list[str]] = {}
    for run in runs:
        for change in run.changed_arguments:
            others.setdefault(change, []).append(run.run_dir.name)
    if others:
        lines = [f"    {change} in {quoted(names, 3)}" for change, names in others.items()]
        raise UsageError(
            "\n".join([f"the runs in `{folder}` were made with other arguments:", *lines]),
            "name another folder with --run-dir; or add --from-saved, and those that are not finished are resumed with "
            "these arguments and the saved hyper-parameters",
        )


def _combinations(settings: Sequence[str], folder: Path, program: Sequence[str]) -> Iterator[_Run]:
    """The runs, the values of the last setting changing fastest."""
    words = without(sys.argv[1:], ["--run-dir=", "--parallel="])
    swept = {text: values_in(text.partition("=")[2]) for text in settings}
    swept = {text: values for text, values in swept.items() if len(values) > 1}
    for values in itertools.product(*swept.values()):
        chosen = {text: f"{text.partition('=')[0]}={value}" for text, value in zip(swept, values, strict=True)}
        run_dir = folder / folder_name(chosen.values())
        own = [*(chosen.get(word, word) for word in words), "--run-dir", str(run_dir)]
        yield _Run([chosen.get(text, text) for text in settings], run_dir, own, shlex.join([*program, *own]))


def folder_name(settings: Iterable[str]) -> str:
    """The name of a run by its values, with characters that are safe in paths.

    >>> folder_name(["lr=1e-3", "validate/next_batch.limit=5", "finish.after='2 epochs'", "fast=true", "sizes=[8, 4]"])
    'lr=0.001,validate_next_batch.limit=5,finish.after=2_epochs,fast=true,sizes=8_4'
    """
    parts = []
    for setting in settings:
        name, _, text = setting.partition("=")
        value = toml_value(text)
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        parts.append("=".join(re.sub(r"[^\w.+-]+", "_", part).strip("_") for part in (name, shown)))
    return ",".join(parts)


def start(words: Sequence[str], output: Path | None) -> subprocess.Popen[bytes]:
    """Start the program of this process with other words.

    Arguments:
        output: a file to which it prints. None: where this process does.
    """
    program = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    with output.open("ab") if output is not None else nullcontext() as file:
        return subprocess.Popen(  # noqa: S603  # the command of this process
            [sys.executable, *program, *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            # Ctrl-C would reach it twice: from the terminal, and from here.
            start_new_session=True,
            preexec_fn=end_with_parent(os.getpid()),
        )


@final
class _Sweep:
    """The runs under way, and those that follow."""

    def __init__(self, runs: Sequence[_Run], options: RunOptions, command: str) -> None:
        self._runs, self._options, self._command = runs, options, command
        self._most = options.parallel or 1
        self._report = ignore if options.quiet else notify
        self._waiting = deque(enumerate(runs))
        # Number -> process, when it began, and the size of its output then.
        self._running: dict[int, tuple[Any, float, int]] = {}
        self._codes: dict[int, int] = {}
        self._errors: dict[int, str] = {}
        self._asked: list[int] = []  # the signals that came

    def run(self) -> int:
        """Make all of them; the exit code."""
        folder, most = self._options.run_dir, self._most
        is_shown = most == 1 and sys.stderr.isatty()
        how = "one after the other" if most == 1 else f"{most} at a time"
        where = "" if is_shown else f"; what each prints is in {OUTPUT_FILE} in its directory"
        self._report(f"{counted(len(self._runs), 'run')} in {folder}, {how}{where}")
        # A signal that is ignored, as by nohup, stays ignored, here and in the processes.
        previous = {number: signal.getsignal(number) for number in _FORWARDED}
        handled = [number for number, handler in previous.items() if handler is not signal.SIG_IGN]
        for number in handled:
            signal.signal(number, self._forward)
        try:
            self._make_all(is_shown=is_shown)
        finally:
            for process, *_ in self._running.values():
                process.send_signal(signal.SIGTERM)
                process.wait()
            for number in handled:
                signal.signal(number, previous[number])
        return self._end()

    def _make_all(self, *, is_shown: bool) -> None:
        while self._running or (self._waiting and not self._asked):
            while self._waiting and len(self._running) < self._most and not self._asked:
                self._begin(*self._waiting.popleft(), is_shown=is_shown)
            for number, (process, began, printed) in [*self._running.items()]:
                if (code := process.poll()) is not None:
                    del self._running[number]
                    # A process without handlers yet has done nothing, so a signal that was passed on has stopped it.
                    is_stopped = self._asked and (code == INTERRUPTED or -code in self._asked)
                    self._codes[number] = STOPPED if is_stopped else code
                    outcome = _OUTCOMES.get(self._codes[number])
                    where = "" if outcome or is_shown else f"; see {OUTPUT_FILE} there"
                    self._say(number, f"{outcome or 'failed'} after {duration(time.monotonic() - began)}{where}")
                    self._note_end(number, printed)
            time.sleep(_POLLING_SECONDS)

    def _note_end(self, number: int, printed: int) -> None:
        """Note why a run failed, and in its status that it has not begun.

        Arguments:
            printed: the size of its output before.
        """
        code, run_dir = self._codes[number], self._runs[number].run_dir
        status = ListedRun.of(run_dir).status
        if code not in _OUTCOMES:
            refused = [line for line in _lines_after(run_dir / OUTPUT_FILE, printed) if line.startswith(_REFUSED)]
            error = refused[-1].removeprefix(_REFUSED) if refused else str(status.get("error") or "")
            name = next((each.name for each in signal.Signals if each == -code), f"signal {-code}")
            self._errors[number] = one_line(f"killed by {name}" if code < 0 else error, _MOST_CHARACTERS)
        if status.get("state") == STARTING:
            state = "failed" if number in self._errors else NOT_BEGUN
            self._note_start(self._runs[number], state=state, error=self._errors.get(number, ""))

    def _note_start(self, run: _Run, **facts: str) -> None:
        """Let `graphtrain ls` list a run that has not begun."""
        with suppress(CheckpointError):  # the run reports it
            write_start(run.run_dir, {"command": run.command, **facts})

    def _begin(self, number: int, run: _Run, *, is_shown: bool) -> None:
        status = ListedRun.of(run.run_dir).status
        if finished := run.finished_before(status):
            self._codes[number] = 0
            self._say(number, finished)
        elif status.get("state") in ACTIVE and Run(run.run_dir).is_alive:
            self._codes[number] = STOPPED
            self._say(number, f"process {status['process']} trains it already")
        else:
            self._say(number, "begins" if not has_begun(run.run_dir) else "continues")
            try:
                run.run_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"cannot create the run directory `{run.run_dir}`: {error.strerror}") from None
            self._note_start(run, state=STARTING)
            output = run.run_dir / OUTPUT_FILE
            printed = output.stat().st_size if output.is_file() else 0
            process = start(run.words, None if is_shown else output)
            self._running[number] = (process, time.monotonic(), printed)
            for asked in list(self._asked):  # since it was decided to start it
                process.send_signal(asked)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        """A signal handler: the runs stop at their next save point, and none is started any more."""
        self._asked.append(number)
        for process, *_ in list(self._running.values()):
            process.send_signal(number)

    def _say(self, number: int, what: str) -> None:
        self._report(f"{number + 1}/{len(self._runs)} {self._runs[number].run_dir}: {what}")

    def _end(self) -> int:
        """Print how all of them ended; the exit code."""
        codes = [self._codes.get(number, STOPPED) for number in range(len(self._runs))]
        done, stopped = codes.count(0), codes.count(STOPPED)
        failed = len(codes) - done - stopped
        if not self._options.quiet:
            folder = self._options.run_dir or Path()
            print_runs(in_order(run.run_dir for run in self._runs if run.run_dir.exists()), folder)
        for number, error in sorted(self._errors.items()):
            self._report(f"{self._runs[number].run_dir} failed: {error or f'see {OUTPUT_FILE} there'}")
        counts = {"failed": failed, "stopped or not begun": stopped}
        words = [f"{done} of {counted(len(codes), 'run')} done", *(f"{n} {what}" for what, n in counts.items() if n)]
        again = "try again with" if failed else "resume with"
        self._report(", ".join(words) + (f"; {again}: {self._command}" if done < len(codes) else ""))
        return STOPPED if stopped else FAILED if failed else 0


_OUTCOMES = {0: "done", STOPPED: "stopped"}
_REFUSED = "error: "  # as `exit_on_failure` prints it
_MOST_CHARACTERS = 300


def _lines_after(output: Path, position: int) -> list[str]:
    """The lines that a process has added to its output; none where it was shown."""
    try:
        with output.open("rb") as file:
            file.seek(position)
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
