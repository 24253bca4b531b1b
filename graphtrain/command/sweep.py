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
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, final

from graphtrain.alive import end_with_parent
from graphtrain.command.failure import FAILED, INTERRUPTED, STOPPED
from graphtrain.command.listing import ListedRun, print_runs
from graphtrain.command.output import counted, ignore, notify
from graphtrain.command.run import RunOptions, Script, without
from graphtrain.command.settings import toml_value, values_in
from graphtrain.errors import UsageError
from graphtrain.ranks.current import is_one_of_several
from graphtrain.report.numbers import duration
from graphtrain.storage.run_directory import ACTIVE, has_begun, is_alive_here, read_starts

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

    check_settings(program, [(run.settings, replace(options, run_dir=run.run_dir, quiet=True)) for run in runs])
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
    """One run of a sweep: its settings, its directory, and the words of its command line after the program."""

    settings: list[str]
    run_dir: Path
    words: list[str]
    command: str

    def is_finished(self, status: Mapping[str, Any]) -> bool:
        """True if it has finished, and was started by the same command."""
        if status.get("state") != "finished":
            return False
        about = [start.get("about") for start in read_starts(self.run_dir)[-1:]]
        return any(isinstance(facts, Mapping) and facts.get("command") == self.command for facts in about)


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
        self._running: dict[int, tuple[Any, float]] = {}  # number -> process, and when it began
        self._codes: dict[int, int] = {}
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
            for process, _ in self._running.values():
                process.send_signal(signal.SIGTERM)
                process.wait()
            for number in handled:
                signal.signal(number, previous[number])
        return self._end()

    def _make_all(self, *, is_shown: bool) -> None:
        while self._running or (self._waiting and not self._asked):
            while self._waiting and len(self._running) < self._most and not self._asked:
                self._begin(*self._waiting.popleft(), is_shown=is_shown)
            for number, (process, began) in [*self._running.items()]:
                if (code := process.poll()) is not None:
                    del self._running[number]
                    # A process without handlers yet has done nothing, so a signal that was passed on has stopped it.
                    is_stopped = self._asked and (code == INTERRUPTED or -code in self._asked)
                    self._codes[number] = STOPPED if is_stopped else code
                    outcome = _OUTCOMES.get(self._codes[number])
                    where = "" if outcome or is_shown else f"; see {OUTPUT_FILE} there"
                    self._say(number, f"{outcome or 'failed'} after {duration(time.monotonic() - began)}{where}")
            time.sleep(_POLLING_SECONDS)

    def _begin(self, number: int, run: _Run, *, is_shown: bool) -> None:
        status = ListedRun.of(run.run_dir).status
        if run.is_finished(status):
            self._codes[number] = 0
            self._say(number, "finished before")
        elif status.get("state") in ACTIVE and is_alive_here(status):
            self._codes[number] = STOPPED
            self._say(number, f"process {status['process']} trains it already")
        else:
            self._say(number, "begins" if not has_begun(run.run_dir) else "continues")
            try:
                run.run_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(f"cannot create the run directory `{run.run_dir}`: {error.strerror}") from None
            process = start(run.words, None if is_shown else run.run_dir / OUTPUT_FILE)
            self._running[number] = (process, time.monotonic())
            for asked in list(self._asked):  # since it was decided to start it
                process.send_signal(asked)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        """A signal handler: the runs stop at their next save point, and none is started any more."""
        self._asked.append(number)
        for process, _ in list(self._running.values()):
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
            print_runs([run.run_dir for run in self._runs if run.run_dir.exists()], folder)
        counts = {"failed": failed, "stopped or not begun": stopped}
        words = [f"{done} of {counted(len(codes), 'run')} done", *(f"{n} {what}" for what, n in counts.items() if n)]
        self._report(", ".join(words) + (f"; resume with: {self._command}" if done < len(codes) else ""))
        return STOPPED if stopped else FAILED if failed else 0


_OUTCOMES = {0: "done", STOPPED: "stopped"}
