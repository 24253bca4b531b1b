"""What `graphtrain verify` does: training is repeated, and compared bit for bit.

Without a run it trains in a process of its own, ``python -m graphtrain.command.verifying RUN_DIR KEPT N SEED WORDS``,
which is ``graphtrain run WORDS --run-dir RUN_DIR`` with N cuts, linked in KEPT.
"""

from __future__ import annotations

import os
import random
import shlex
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from graphtrain.command.adapted import ScriptOrClass
from graphtrain.command.cli import app
from graphtrain.command.failure import FAILED, exit_on_failure
from graphtrain.command.output import console, ignore, notify, notify_once, plural, print_lines
from graphtrain.command.rebuild import TrainerFactory
from graphtrain.errors import UsageError
from graphtrain.printable import one_line
from graphtrain.proof.comparison import first_lines
from graphtrain.proof.cuts import train_with_cuts
from graphtrain.proof.history import RunHistory, Segment
from graphtrain.proof.verify import Verdict, verify_segment
from graphtrain.ranks import current_ranks, on_all_ranks
from graphtrain.storage.manifest import SavedCheckpoint, checkpoint_paths
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER


def verify_script(
    source: ScriptOrClass, settings: Sequence[str], words: Sequence[str], number: int, seed: int | None
) -> int:
    """Train with checkpoints at random transitions, replay every span between two, and compare; the exit code.

    Arguments:
        words: those of ``graphtrain run``, without a run directory.
        number: of checkpoints.
        seed: chooses the transitions. Default: a random number, which is printed.
    """
    seed = random.randrange(10**6) if seed is None else seed  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory(prefix="graphtrain-verify-", ignore_cleanup_errors=True) as folder:
        run_dir, kept = Path(folder, "run"), Path(folder, "cuts")
        kept.mkdir()
        module = ["-m", "graphtrain.command.verifying"]
        if code := launch([*module, str(run_dir), str(kept), str(number), str(seed), *words, "--quiet"]):
            notify(f"error: training failed, so nothing can be compared (exit code {code})")
            return code if code in (1, 2) else FAILED
        notify(f"trained once, with cuts chosen by --cuts-seed {seed}")
        arguments = [each for each in settings if "." not in each.partition("=")[0]]
        paths = [*checkpoint_paths(kept), *checkpoint_paths(run_dir / CHECKPOINTS_FOLDER)[-1:]]
        segments = RunHistory(run_dir, notify).between([*map(SavedCheckpoint.verified, paths)])
        return _verified(source, arguments, segments, notify)


def launch(words: Sequence[str]) -> int:
    """Run ``python WORDS`` in a process of its own; its exit code."""
    return subprocess.run([sys.executable, *words], stdin=subprocess.DEVNULL, check=False).returncode  # noqa: S603 - ours


def verify_run(source: ScriptOrClass, run_dir: Path, settings: Sequence[str], last: int | None) -> int:
    """Replay a past run from checkpoint to checkpoint, and compare; the exit code."""
    with on_all_ranks(f"in {shlex.join(source.words)}"):
        report = notify_once()
        return _verified(source, settings, RunHistory(run_dir, report).segments(last), report)


def _verified(
    source: ScriptOrClass, settings: Sequence[str], segments: Sequence[Segment], report: Callable[[str], None]
) -> int:
    """Replay spans, compare them, and print a line for each; the exit code."""
    comparable = [segment for segment in segments if not segment.change]
    if not comparable:
        reasons = "; ".join(dict.fromkeys(segment.change for segment in segments))
        ranks = segments[-1].goal.manifest.ranks if segments else current_ranks().world_size
        more = "keep more checkpoints, as in graphtrain run ... checkpoint.keep=100"
        raise UsageError(
            f"there is nothing to compare: {reasons or 'two checkpoints are needed'}",
            more if ranks == current_ranks().world_size else f"verify it in as many: --processes {ranks}",
        )
    printed, factory, different = console(quiet=report is ignore), None, 0

    def is_equal(segment: Segment) -> bool:
        nonlocal factory
        is_first = segment is comparable[0]
        factory = trainers = factory or TrainerFactory(source, settings, report if is_first else ignore)
        verdict = verify_segment(
            segment, lambda span: trainers.trainer(span.goal, from_the_beginning=span.start is None)
        )
        print_lines(printed, _lines(verdict, trainers.changes or ""))
        return verdict.is_equal

    for segment in segments:
        if segment.change:
            report(f"skipped {segment}: {segment.change}")
        elif current_ranks().world_size > 1:
            different += not is_equal(segment)
        elif (code := code_of_a_process(lambda: is_equal(segment))) not in (0, FAILED):  # noqa: B023 - it is called now
            return code
        else:
            different += code
    spans = plural(len(comparable), "span")
    printed.print(f"{different} of {spans} differ" if different else f"{spans}: bitwise equal", soft_wrap=True)
    return FAILED if different else 0


def code_of_a_process(call: Callable[[], bool]) -> int:
    """Call in a forked process, in which nothing of another replay is left; its exit code, 0 for True."""
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of libraries, which have done nothing so far
        process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    code = FAILED
    try:
        with exit_on_failure():
            code = 0 if call() else FAILED
    except SystemExit as ending:
        code = int(ending.code or 0)
    finally:
        sys.stdout.flush()
        os._exit(code)


def _lines(verdict: Verdict, changes: str) -> Iterator[str]:
    """A line about a span, and if it differs, the first differences; `changes` are those since the run."""
    segment = verdict.segment
    if verdict.failure or verdict.is_equal:
        yield f"{segment}: {f'cannot be replayed: {verdict.failure}' if verdict.failure else 'equal'}"
        return
    yield f"{segment}: {plural(len(verdict.differences), 'field')} differ"
    yield from first_lines(verdict.differences)
    yield from (f"  {note}" for note in verdict.notes)
    if changes:
        yield f"  This changed since the run, and may be the reason: {changes}."
    if segment.start is None:
        yield (
            "  Nothing was resumed here, so the computation is not repeatable: seed every random generator in setup; "
            "--deterministic asks torch for deterministic kernels; time and os.urandom have no seed."
        )
    else:
        yield (
            f"  If a span from the beginning is equal, {one_line(verdict.differences[0].path)} depends on something "
            "that was not saved, or not restored. Give the object that holds it a state_dict and a load_state_dict, "
            "make it progress of a node, or keep it where it can be reached from a resource."
        )
        yield from (f"  The checkpoint says that it is not exact: {each}" for each in segment.start.manifest.unknown)


if __name__ == "__main__":
    cuts = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    sys.argv[:5] = ["graphtrain", "run"]  # which the script may read
    sys.argv += ["--run-dir", str(cuts[0])]
    app(prog_name="graphtrain", obj=lambda trainer, options: train_with_cuts(trainer, *cuts, options.until))
