"""What `graphtrain verify --cuts` does: a script is trained, cut at random transitions, resumed, and compared.

Each training is a process of its own, ``python -m graphtrain.command.verify_cuts REPORT CUTS WORDS``, which is
``graphtrain run WORDS``, cut after some transitions. REPORT is the file for the facts about the run, CUTS the
comma-separated numbers of transitions; the copies of the run directory go to the folder of the report.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from graphtrain.command.cli import app
from graphtrain.command.failure import FAILED
from graphtrain.command.options import RunOptions
from graphtrain.command.output import console, counted, notify, print_lines, table
from graphtrain.errors import CheckpointError, UsageError
from graphtrain.outcome import Outcome
from graphtrain.printable import one_line, printable
from graphtrain.proof.comparison import StateDifference, first_lines
from graphtrain.proof.cuts import Cut, CutTraining, TrainedRun, compare_runs, sampled_transitions
from graphtrain.trainer.trainer import Trainer

_MOST_LINES = 12


@dataclass(frozen=True)
class Ended:
    """A process that has ended: its exit code, and what it printed."""

    code: int
    output: str


@dataclass(frozen=True)
class CutVerdict:
    """The result of resuming a cut.

    Attributes:
        lost: why the resume reports that it is not exact; empty if it does not.
        changed: the changes except for which it is exact; empty if none are reported.
        failure: why the run could not be resumed, or not to its end; empty if it could.
        differences: at the end, from the run that was never cut.
    """

    cut: Cut
    lost: str = ""
    changed: str = ""
    failure: str = ""
    differences: Sequence[StateDifference] = ()

    @property
    def result(self) -> Literal["equal", "differs", "not exact", "cannot be resumed"]:
        """In words. A resume that reports that it is not exact counts as such, even if it ends equal."""
        if self.failure:
            return "cannot be resumed"
        if self.lost:
            return "not exact"
        return "differs" if self.differences else "equal"


def verify_cuts(words: Sequence[str], number: int, seed: int | None) -> int:
    """Train, cut at random transitions, resume each in a new process, and compare; the exit code.

    Arguments:
        words: those of ``graphtrain run``, without a run directory.
        number: of cuts.
        seed: chooses the cuts. Default: a random number, which is printed.
    """
    if number < 1:
        raise UsageError(f"--cuts: expected a number > 0, got {number}")
    seed = random.randrange(10**6) if seed is None else seed  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory(prefix="graphtrain-verify-", ignore_cleanup_errors=True) as folder:
        return _Verification(words, number, seed, Path(folder)).run()


@final
@dataclass
class _Verification:
    """One call of the command, with a temporary folder."""

    words: Sequence[str]
    number: int
    seed: int
    folder: Path
    _processes: int = 0

    def run(self) -> int:
        """Train, cut, resume and compare; the exit code."""
        whole = self._trained("whole")
        if isinstance(whole, Ended):
            return _failed(whole, "training failed, so nothing can be compared")
        cuts = sampled_transitions(whole.transitions, self.number, self.seed)
        if not cuts:
            raise UsageError("the run has a single transition, so that it cannot be cut", "train for longer")
        notify(f"trained once: {counted(whole.transitions, 'transition')}; cuts chosen with --cuts-seed {self.seed}")
        cut_run = self._trained("second", cuts)
        if isinstance(cut_run, Ended):
            return _failed(cut_run, "training failed the second time; the first time it did not")
        if differences := compare_runs(self.folder / "whole", self.folder / "second", whole):
            print_lines(console(), lines_of_different_runs(differences, whole.notes))
            return FAILED
        verdicts = []
        for cut in cut_run.cuts:
            verdicts.append(self._resumed(cut, whole))
            if sys.stderr.isatty():  # many cuts take their time
                notify(f"{len(verdicts)}/{len(cut_run.cuts)}  {cut}: {verdicts[-1].result}")
        bad = [verdict for verdict in verdicts if verdict.result != "equal"]
        printed = console()
        printed.print(table(["cut", "saved at", "next node", "result"], map(_row, verdicts), right=["cut"]))
        print_lines(printed, lines_of_verdicts(bad, whole.notes))
        total = counted(len(verdicts), "cut")
        printed.print(f"{len(bad)} of {total} not exact" if bad else f"{total}: bitwise equal")
        return FAILED if bad else 0

    def _trained(self, name: str, cuts: Sequence[int] = ()) -> TrainedRun | Ended:
        """Train to the end, in a process of its own; the facts about the run, or how its process failed."""
        report = self.folder / f"{name}.json"
        numbers = ",".join(map(str, cuts))
        words = [*self.words, "--run-dir", str(self.folder / name), "--quiet"]
        ended = self._python("-m", "graphtrain.command.verify_cuts", str(report), numbers, *words)
        if ended.code or not report.exists():
            return ended
        return TrainedRun.from_json(report.read_text(encoding="utf-8"))

    def _resumed(self, cut: Cut, whole: TrainedRun) -> CutVerdict:
        """Resume from a cut to the end, in a process of its own, and compare."""
        run_dir = self.folder / cut.name
        ended = self._python("-m", "graphtrain", "run", *self.words, "--run-dir", str(run_dir))
        lost, changed, failure = read_resume(ended)
        differences: Sequence[StateDifference] = ()
        if not failure:
            try:
                differences = compare_runs(self.folder / "whole", run_dir, whole)
            except (CheckpointError, UsageError) as error:
                failure = str(error)
        shutil.rmtree(run_dir, ignore_errors=True)
        return CutVerdict(cut, lost, changed, failure, differences)

    def _python(self, *words: str) -> Ended:
        environment = dict(os.environ)
        # As in a shell: there, each process has its own order of sets of texts, unless the user has chosen one.
        environment.setdefault("PYTHONHASHSEED", str((self.seed + self._processes) % 2**32))
        self._processes += 1
        return launch(words, environment, self.folder / "output.txt")


def launch(words: Sequence[str], environment: Mapping[str, str], log: Path) -> Ended:
    """Run ``python WORDS`` in a process of its own, which ends with this call, also where that is interrupted.

    Arguments:
        log: a file for what it prints.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - the words are ours
            [sys.executable, *words],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
    return Ended(code, log.read_text(encoding="utf-8", errors="replace"))


# ---- what a process reports


def read_resume(ended: Ended) -> tuple[str, str, str]:
    """What the process of a resume has reported: why it is not exact, what changed, and why it failed; or nothing.

    >>> read_resume(Ended(0, "resumed r: step 3; repeating nothing; code unchanged: exact\\n"))
    ('', '', '')
    >>> read_resume(Ended(0, "resumed r: step 3; not exact: task<it> is an iterator\\n"))
    ('task<it> is an iterator', '', '')
    >>> read_resume(Ended(1, "resumed r: step 3\\nerror: it does not fit\\n"))
    ('', '', 'error: it does not fit')
    """
    lines = [line for line in ended.output.splitlines() if line.strip()]
    resumed = next((line for line in lines if line.startswith("resumed ")), "")
    if ended.code:
        starts = [number for number, line in enumerate(lines) if line.startswith(("error: ", "Traceback "))]
        reason = "\n".join(lines[starts[-1] if starts else 0 :][-_MOST_LINES:])
        failure = reason or f"the run failed with the exit code {ended.code}"
    else:
        failure = next((line for line in lines if line.startswith("skipped ")), "")
        if not failure and not resumed:
            failure = "the run began from the beginning instead of being resumed"
    lost, changed = (resumed.partition(f"; {says}: ")[2] for says in ("not exact", "exact except for what changed"))
    return lost, changed, failure


def _failed(ended: Ended, what: str) -> int:
    """Print why a training failed; the exit code."""
    print(printable(ended.output.rstrip()), file=sys.stderr)  # noqa: T201 - a command prints
    notify(f"error: {what} (exit code {ended.code})")
    return ended.code if ended.code in (1, 2) else FAILED


# ---- the report


def _row(verdict: CutVerdict) -> list[str]:
    cut, result = verdict.cut, str(verdict.result)
    if result == "differs":
        result += f" ({counted(len(verdict.differences), 'field')})"
    return [str(cut.transition), cut.place, cut.node, result]


def lines_of_verdicts(bad: Sequence[CutVerdict], notes: Sequence[str] = ()) -> Iterator[str]:
    """The lines beneath the table about cuts that are not equal: the first fields of the first, one of the others.

    Arguments:
        notes: known reasons for two runs to differ.
    """
    is_first = True
    for verdict in bad:
        yield f"\n{verdict.cut}: {verdict.result}"
        yield from (f"  {line}" for line in verdict.failure.splitlines())
        if verdict.lost:
            yield f"  the resume reports: not exact: {one_line(verdict.lost)}"
        if verdict.changed:
            yield f"  the resume reports: exact except for what changed: {one_line(verdict.changed)}"
        if verdict.differences:
            yield from first_lines(verdict.differences, *([] if is_first else [1]))
            is_first = False
    silent = [verdict for verdict in bad if verdict.result == "differs" and not verdict.changed]
    if silent:
        yield ""
        yield (
            f"{counted(len(silent), 'cut')} differ{'s' if len(silent) == 1 else ''} although the resume is reported as "
            "exact: the training depends on something that was not saved, or not restored. Give the object that holds "
            "it a state_dict and a load_state_dict, make it progress of a node, or keep it where it can be reached "
            "from a resource: an attribute, a closure, a global variable of the script."
        )
        yield from notes


def lines_of_different_runs(differences: Sequence[StateDifference], notes: Sequence[str]) -> Iterator[str]:
    """The report on two runs that differ, none of which was resumed.

    Arguments:
        notes: known reasons for two runs to differ.
    """
    yield f"two runs of the script differ: {one_line(str(differences[0]))}"
    yield from first_lines(differences[1:], 7)
    yield from notes
    yield (
        "So no resume can be exact, and none was tried. Seed every random generator in setup, or draw from those of "
        "torch, NumPy and Python, which are seeded; --deterministic asks torch for deterministic kernels. Other "
        "reasons: the time, os.urandom, the order of a set, a file that the run before has changed, a thread, or a "
        "state_dict with side effects, since only the second run was saved on the way."
    )


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
