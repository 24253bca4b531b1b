"""What `graphtrain verify --cuts` does: a script is trained, cut at random transitions, resumed, and compared.

Each training is a process of its own, ``python -m graphtrain.command.verify_cuts REPORT CUTS WORDS``, which is
``graphtrain run WORDS``, cut after some transitions. REPORT is the file for the facts about the run, CUTS the
comma-separated numbers of transitions; the copies of the run directory go to the folder of the report.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NoReturn, final

import click
from rich.console import Console
from rich.text import Text

from graphtrain.command.cli import app
from graphtrain.command.failure import FAILED
from graphtrain.command.output import console, counted, notify, print_lines, table
from graphtrain.command.run import RunOptions
from graphtrain.errors import CheckpointError, UsageError
from graphtrain.outcome import Outcome
from graphtrain.printable import one_line, printable
from graphtrain.proof.comparison import StateDifference, first_lines
from graphtrain.proof.cuts import (
    Cut,
    CutTraining,
    TrainedRun,
    compare_runs,
    copy_run,
    expected_seconds,
    sampled_transitions,
)
from graphtrain.report.numbers import about, duration, size
from graphtrain.report.run import Run
from graphtrain.storage.manifest import checkpoint_paths
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER
from graphtrain.trainer.trainer import Trainer

_MOST_LINES = 12
_REFRESHES_PER_SECOND = 4
# Besides the copies of the cuts: the checkpoints that the runs keep, and those of the run that is resumed.
_MORE_CHECKPOINTS = 6


@dataclass(frozen=True)
class Ended:
    """A process that has ended: its exit code, what it printed, and how long it took."""

    code: int
    output: str
    seconds: float


@dataclass(frozen=True)
class ResumeReport:
    """What a process that resumes a run reports.

    Attributes:
        lost: why the resume is not exact; empty if it is not reported.
        changed: the changes except for which it is exact; empty if none are reported.
        failure: why the run could not be resumed, or not to its end; empty if it could.
    """

    lost: str = ""
    changed: str = ""
    failure: str = ""


@dataclass(frozen=True)
class CutVerdict:
    """The result of resuming a cut.

    Attributes:
        differences: at the end, from the run that was never cut.
    """

    cut: Cut
    resume: ResumeReport = ResumeReport()
    differences: Sequence[StateDifference] = ()
    seconds: float = 0.0

    @property
    def result(self) -> Literal["equal", "differs", "not exact", "cannot be resumed"]:
        """In words. A resume that reports that it is not exact counts as such, even if it ends equal."""
        if self.resume.failure:
            return "cannot be resumed"
        if self.resume.lost:
            return "not exact"
        return "differs" if self.differences else "equal"


def verify_cuts(
    script: str, words: Sequence[str], number: int, *, seed: int | None, keep: Path | None, as_json: bool
) -> int:
    """Train, cut at random transitions, resume each in a new process, and compare; the exit code."""
    if number < 1:
        raise UsageError(f"--cuts: expected a number > 0, got {number}")
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(f"--keep: `{keep}` exists and is not an empty folder", "name a new folder")
    seed = random.randrange(10**6) if seed is None else seed  # noqa: S311 - no secret
    temporary = tempfile.TemporaryDirectory(prefix="graphtrain-verify-", ignore_cleanup_errors=True)
    # Like Ctrl-C, these end the processes and remove the files.
    with _handled(_leave, "SIGTERM", "SIGHUP"), temporary as folder:
        return _Verification(script, words, number, seed, keep, as_json, Path(folder)).run()


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


@final
@dataclass
class _Verification:
    """One call of the command.

    Attributes:
        words: those of ``graphtrain run``, without a run directory.
        number: of cuts.
        seed: chooses the cuts.
        keep: a folder for the runs that differ. Default: none is kept.
        folder: a temporary one.
    """

    script: str
    words: Sequence[str]
    number: int
    seed: int
    keep: Path | None
    as_json: bool
    folder: Path
    _processes: int = 0

    def run(self) -> int:
        """Train, cut, resume and compare; the exit code."""
        with self._shown("training once", "whole"):
            whole, seconds = self._trained("whole")
        if isinstance(whole, Ended):
            return _failed(whole, "training failed, so nothing can be compared")
        cuts = sampled_transitions(whole.transitions, self.number, self.seed)
        if not cuts:
            raise UsageError("the run has a single transition, so that it cannot be cut", "train for longer")
        self._refuse_full_disk(len(cuts))
        left = seconds + expected_seconds(seconds, whole.seconds, whole.transitions, cuts)
        resumes = f"training again and {counted(len(cuts), 'resume')} will take about {about(left)}"
        notify(f"training once took {duration(seconds)}; {resumes}")
        if len(cuts) < self.number:
            notify(f"the run has {whole.transitions} transitions: it is cut after each of them")
        else:
            notify(f"cuts chosen with --cuts-seed {self.seed}")
        with self._shown("training again, with cuts", "second"):
            cut_run, _ = self._trained("second", cuts)
        if isinstance(cut_run, Ended):
            return _failed(cut_run, "training failed the second time; the first time it did not")
        if differences := self._differences("second", whole):
            return self._report_different_runs(differences, whole)
        if len(cut_run.cuts) < len(cuts):
            notify(
                f"{len(cuts)} transitions have {len(cut_run.cuts)} save points: "
                "several have the same next save point, or none before the end"
            )
        verdicts = []
        for number, cut in enumerate(cut_run.cuts, start=1):
            later = [cut.transition for cut in cut_run.cuts[number - 1 :]]
            left = expected_seconds(seconds, whole.seconds, whole.transitions, later)
            what = f"resume {number} of {len(cut_run.cuts)}, about {about(left)} left"
            with self._shown(what, _resumed_name(cut)):
                verdicts.append(self._resumed(cut, whole))
        return self._report(verdicts, whole)

    # ---- runs

    def _trained(self, name: str, cuts: Sequence[int] = ()) -> tuple[TrainedRun | Ended, float]:
        """Train to the end, in a process of its own; the facts about the run, or how its process failed."""
        report = self.folder / f"{name}.json"
        numbers = ",".join(map(str, cuts))
        words = [*self.words, "--run-dir", str(self.folder / name), "--quiet"]
        ended = self._python("-m", "graphtrain.command.verify_cuts", str(report), numbers, *words)
        if ended.code or not report.exists():
            return ended, ended.seconds
        return TrainedRun.from_json(report.read_text(encoding="utf-8")), ended.seconds

    def _resumed(self, cut: Cut, whole: TrainedRun) -> CutVerdict:
        """Resume from a cut to the end, in a process of its own, and compare."""
        run_dir = self.folder / _resumed_name(cut)
        copy_run(self.folder / cut.name, run_dir)
        ended = self._python("-m", "graphtrain", "run", *self.words, "--run-dir", str(run_dir))
        verdict = CutVerdict(cut, read_resume(ended), seconds=ended.seconds)
        if not verdict.resume.failure:
            try:
                verdict = replace(verdict, differences=self._differences(run_dir.name, whole))
            except (CheckpointError, UsageError) as error:
                verdict = replace(verdict, resume=replace(verdict.resume, failure=str(error)))
        if verdict.result != "equal":
            self._keep("whole", cut.name, run_dir.name)
        shutil.rmtree(run_dir, ignore_errors=True)
        shutil.rmtree(self.folder / cut.name, ignore_errors=True)
        return verdict

    def _differences(self, name: str, whole: TrainedRun) -> Sequence[StateDifference]:
        return compare_runs(self.folder / "whole", self.folder / name, whole).differences

    def _python(self, *words: str) -> Ended:
        environment = dict(os.environ)
        # As in a shell: there, each process has its own order of sets of texts, unless the user has chosen one.
        environment.setdefault("PYTHONHASHSEED", str((self.seed + self._processes) % 2**32))
        self._processes += 1
        return launch(words, environment, self.folder / "output.txt")

    def _refuse_full_disk(self, cuts: int) -> None:
        checkpoint = checkpoint_paths(self.folder / "whole" / CHECKPOINTS_FOLDER)[-1]
        needed = (cuts + _MORE_CHECKPOINTS) * sum(file.stat().st_size for file in checkpoint.iterdir())
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise UsageError(
                f"{cuts} cuts need {size(needed)} in {self.folder.parent}, where {size(free)} are free",
                "set TMPDIR to a folder with more room, or ask for fewer --cuts",
            )

    def _keep(self, *names: str) -> None:
        """Copy runs to the folder of --keep, if there is one."""
        if self.keep is None:
            return
        self.keep.mkdir(parents=True, exist_ok=True)
        for name in names:
            if not (target := self.keep / name).exists():
                copy_run(self.folder / name, target)

    # ---- what is shown

    @contextmanager
    def _shown(self, what: str, name: str) -> Iterator[None]:
        """Show what is being done, on a terminal, and the place of the run of that name."""
        progress = Console(stderr=True, highlight=False)
        status = progress.status(Doing(what, self.folder / name), refresh_per_second=_REFRESHES_PER_SECOND)
        with status if progress.is_terminal else nullcontext():
            yield

    def _report_different_runs(self, differences: Sequence[StateDifference], whole: TrainedRun) -> int:
        """Report that two runs differ without a resume, and which of two reasons that has; the exit code."""
        with self._shown("training a third time, to find out why two runs differ", "third"):
            again, _ = self._trained("third")
        is_saving = isinstance(again, TrainedRun) and not self._differences("third", whole)
        self._keep("whole", "second")
        if self.as_json:
            self._print_json(differences, is_saving=is_saving)
            return FAILED
        print_lines(console(), lines_of_different_runs(differences, whole.notes, is_saving=is_saving))
        self._print_kept()
        return FAILED

    def _report(self, verdicts: Sequence[CutVerdict], whole: TrainedRun) -> int:
        """Print what was found; the exit code."""
        bad = [verdict for verdict in verdicts if verdict.result != "equal"]
        if self.as_json:
            self._print_json((), verdicts)
            return FAILED if bad else 0
        printed = console()
        columns = ["cut", "saved at", "next node", "time", "result"]
        printed.print(table(columns, map(_row, verdicts), right=["cut", "time"]))
        print_lines(printed, lines_of_verdicts(bad, whole.notes))
        self._print_kept(*(verdict.cut.name for verdict in bad[:1]))
        printed.print(summary_of(verdicts), soft_wrap=True)
        return FAILED if bad else 0

    def _print_kept(self, *names: str) -> None:
        """Say where runs are kept, and how to resume the cuts of these names."""
        keep = self.keep
        if keep is None or not keep.exists():
            return
        words = ["graphtrain", "run", *self.words, "--run-dir"]
        commands = [shlex.join([*words, str(keep / name)]) for name in names]
        print_lines(console(), ["; resume with: ".join([f"\nkept in {keep}", *commands])])

    def _print_json(
        self, differences: Sequence[StateDifference], verdicts: Sequence[CutVerdict] = (), *, is_saving: bool = False
    ) -> None:
        """As JSON: whether two runs are equal, and every cut with its result."""
        plain: dict[str, Any] = {
            "script": self.script,
            "cuts_seed": self.seed,
            "repeatable": not differences or is_saving,
            "saving_changes_the_run": is_saving,
            "differences": [asdict(difference) for difference in differences],
            "cuts": [
                {
                    **asdict(verdict.cut),
                    "result": verdict.result,
                    "seconds": round(verdict.seconds, 3),
                    "differences": [asdict(difference) for difference in verdict.differences],
                    **asdict(verdict.resume),
                }
                for verdict in verdicts
            ],
        }
        click.echo(json.dumps(plain, indent=2))


@dataclass(frozen=True)
class Doing:
    """What is shown while a process runs: its purpose, and the progress in the status of its run."""

    what: str
    run_dir: Path

    def __rich__(self) -> Text:
        try:
            place = Run(self.run_dir).status.get("place", "")
        except UsageError:  # it has not begun
            place = ""
        line = f"{self.what}: {place}" if place else self.what
        return Text(one_line(line), no_wrap=True, overflow="ellipsis")


def _resumed_name(cut: Cut) -> str:
    return f"{cut.name}-resumed"


# ---- processes


def launch(words: Sequence[str], environment: Mapping[str, str], log: Path) -> Ended:
    """Run ``python WORDS`` in a process of its own, which ends with this call, also where that is interrupted.

    Arguments:
        log: a file for what it prints.
    """
    start = time.monotonic()
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]  # as multiprocessing takes them
    process: subprocess.Popen[bytes] | None = None
    with log.open("wb") as output:
        try:
            with _signals_held():  # else a signal that comes now leaves a process that nobody ends
                # A group of its own: a Ctrl-C is for this process, which ends that one with its workers.
                process = subprocess.Popen(  # noqa: S603 - the words are ours
                    [sys.executable, *flags, *words],
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            code = process.wait()
        except BaseException:
            if process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            raise
    return Ended(code, log.read_text(encoding="utf-8", errors="replace"), time.monotonic() - start)


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], Any], *names: str) -> Iterator[None]:
    """A span with another handler of signals, if the system has them and they are not ignored, as by nohup."""
    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in (getattr(signal, name) for name in names if hasattr(signal, name)):
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, former in previous.items():
            signal.signal(number, former)


@contextmanager
def _signals_held() -> Iterator[None]:
    """A span that no signal interrupts: those that came meanwhile are handled at its end."""
    received: list[int] = []
    with _handled(lambda number, frame: received.append(number), "SIGINT", "SIGTERM", "SIGHUP"):
        yield
    for number in received:
        signal.raise_signal(number)


# ---- what a process reports


def read_resume(ended: Ended) -> ResumeReport:
    """What the process of a resume has reported.

    >>> read_resume(Ended(0, "resumed r: step 3; repeating nothing; code unchanged: exact\\n", 1.0))
    ResumeReport(lost='', changed='', failure='')
    >>> read_resume(Ended(0, "resumed r: step 3; not exact: task<it> is an iterator\\n", 1.0)).lost
    'task<it> is an iterator'
    >>> read_resume(Ended(1, "resumed r: step 3\\nerror: it does not fit\\n", 1.0)).failure
    'error: it does not fit'
    """
    lines = [line for line in ended.output.splitlines() if line.strip()]
    resumed = next((line for line in lines if line.startswith("resumed ")), "")
    if ended.code:
        starts = [number for number, line in enumerate(lines) if line.startswith(("error: ", "Traceback "))]
        reason = "\n".join(lines[starts[-1] if starts else 0 :][-_MOST_LINES:])
        failure = reason or f"the run failed{_how_it_ended(ended.code)}"
    else:
        failure = next((line for line in lines if line.startswith("skipped ")), "")
        if not failure and not resumed:
            failure = "the run began from the beginning instead of being resumed"
    lost, changed = (resumed.partition(f"; {says}: ")[2] for says in ("not exact", "exact except for what changed"))
    return ResumeReport(lost, changed, failure)


def _failed(ended: Ended, what: str) -> int:
    """Print why a training failed; the exit code."""
    print(printable(ended.output.rstrip()), file=sys.stderr)  # noqa: T201 - a command prints
    notify(f"error: {what}{_how_it_ended(ended.code)}")
    return ended.code if ended.code in (1, 2) else FAILED


def _how_it_ended(code: int) -> str:
    """What to add on the exit code of a process; empty where it says no more than that it failed."""
    if code < 0:
        return f": its process was killed by {signal.Signals(-code).name}"
    return "" if code in (1, 2) else f": its process ended with the exit code {code}"


# ---- the report


def _row(verdict: CutVerdict) -> list[str]:
    cut, result = verdict.cut, str(verdict.result)
    if result == "differs":
        result += f" ({counted(len(verdict.differences), 'field')})"
    return [str(cut.transition), cut.place, cut.node, duration(verdict.seconds), result]


def lines_of_verdicts(bad: Sequence[CutVerdict], notes: Sequence[str] = ()) -> Iterator[str]:
    """The lines beneath the table about cuts that are not equal: the first fields of the first, one of the others.

    Arguments:
        notes: known reasons for two runs to differ.
    """
    is_first = True
    for verdict in bad:
        yield f"\n{verdict.cut}: {verdict.result}"
        yield from (f"  {line}" for line in verdict.resume.failure.splitlines())
        if verdict.resume.lost:
            yield f"  the resume reports: not exact: {one_line(verdict.resume.lost)}"
        if verdict.resume.changed:
            yield f"  the resume reports: exact except for what changed: {one_line(verdict.resume.changed)}"
        if verdict.differences:
            yield from first_lines(verdict.differences, *([] if is_first else [1]))
            is_first = False
    silent = [verdict for verdict in bad if verdict.result == "differs" and not verdict.resume.changed]
    if silent:
        yield ""
        yield (
            f"{counted(len(silent), 'cut')} differ{'s' if len(silent) == 1 else ''} although the resume is reported as "
            "exact: the training depends on something that was not saved, or not restored. Give the object that holds "
            "it a state_dict and a load_state_dict, make it progress of a node, or keep it where it can be reached "
            "from a resource: an attribute, a closure, a global variable of the script."
        )
        yield from notes


def lines_of_different_runs(
    differences: Sequence[StateDifference], notes: Sequence[str], *, is_saving: bool
) -> Iterator[str]:
    """The report on two runs that differ, none of which was resumed.

    Arguments:
        notes: known reasons for two runs to differ.
        is_saving: True if two runs without a save are equal, and the one that was saved differs.
    """
    first = one_line(str(differences[0]))
    yield f"saving changes the run: {first}" if is_saving else f"two runs of the script differ: {first}"
    yield from first_lines(differences[1:], 7)
    yield from notes
    if is_saving:
        yield (
            "Two runs without cuts are equal, and the one that was saved on the way differs from them: a state_dict, "
            "or a property that it reads, has side effects. No cut was resumed."
        )
        return
    yield (
        "So no resume can be exact, and none was tried. Seed every random generator in setup, or draw from those of "
        "torch, NumPy and Python, which are seeded; --deterministic asks torch for deterministic kernels. Other "
        "reasons: the time, os.urandom, the order of a set, a file that the run before has changed, a thread."
    )


def summary_of(verdicts: Sequence[CutVerdict]) -> str:
    """The last line of the report.

    >>> cut = Cut(3, "step 1", "step")
    >>> summary_of([CutVerdict(cut), CutVerdict(cut)])
    '2 cuts: bitwise equal'
    >>> reports = ResumeReport(lost="count is an iterator"), ResumeReport(failure="error: no")
    >>> summary_of([CutVerdict(cut), *(CutVerdict(cut, report) for report in reports)])
    '2 of 3 cuts are not exact: 1 reported as not exact, 1 cannot be resumed'
    """
    results = [verdict.result for verdict in verdicts]
    bad = len(results) - results.count("equal")
    cuts = counted(len(results), "cut")
    if not bad:
        return f"{cuts}: bitwise equal"
    kinds = {"differs": "different", "not exact": "reported as not exact", "cannot be resumed": "cannot be resumed"}
    listed = [f"{results.count(result)} {text}" for result, text in kinds.items() if result in results]
    return f"{bad} of {cuts} {'is' if bad == 1 else 'are'} not exact: {', '.join(listed)}"


# ---- the process that trains


def _train_and_cut(report: Path, cuts: list[int]) -> None:
    def drive(trainer: Trainer, options: RunOptions) -> Outcome:
        assert options.run_dir is not None, "it is the one that is copied"
        outcome, trained = CutTraining(options.run_dir, cuts, report.parent, options.until).run(trainer)
        report.write_text(trained.to_json(), encoding="utf-8")
        return outcome

    sys.argv[:3] = ["graphtrain", "run"]  # which the script may read
    app(prog_name="graphtrain", obj=drive)


if __name__ == "__main__":
    _train_and_cut(Path(sys.argv[1]), [int(number) for number in sys.argv[2].split(",") if number])
