"""What `graphtrain verify --run-dir` does: a past run is replayed from checkpoint to checkpoint, and compared."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from graphtrain.command.failure import FAILED
from graphtrain.command.output import console, counted, escaped, ignore, notify_once, table
from graphtrain.command.rebuild import TrainerFactory
from graphtrain.errors import UsageError
from graphtrain.printable import one_line
from graphtrain.proof.comparison import first_lines
from graphtrain.proof.history import RunHistory, Segment
from graphtrain.proof.verify import Verdict, Verifier
from graphtrain.ranks import current_ranks, on_all_ranks
from graphtrain.report.numbers import duration, size


def verify_spans(script: str, run_dir: Path, settings: Sequence[str], last: int | None) -> int:
    """Replay a past run from checkpoint to checkpoint, and compare; the exit code."""
    if last is not None and last < 1:
        raise UsageError(f"--last: expected a number > 0, got {last}")
    with on_all_ranks(f"in {script}"):
        report = notify_once()
        history = RunHistory(run_dir, report)
        factory = TrainerFactory(script, settings, report)
        verdicts = _verdicts(history, history.segments(last), factory, report)
        printed = console(quiet=report is ignore)
        columns = ["from", "to", "batches", "time", "tensors", "bytes", "result"]
        printed.print(table(columns, map(_row, verdicts), right=columns[2:6]))
        for verdict in verdicts:
            for line in _details(verdict, factory.changes or ""):
                printed.print(escaped(line), soft_wrap=True)
        differing = sum(not verdict.is_equal for verdict in verdicts)
        spans = counted(len(verdicts), "span")
        printed.print(f"{differing} of {spans} differ" if differing else f"{spans}: bitwise equal", soft_wrap=True)
        return FAILED if differing else 0


def _verdicts(
    history: RunHistory, segments: list[Segment], factory: TrainerFactory, report: Callable[[str], None]
) -> list[Verdict]:
    comparable = [segment for segment in segments if not segment.change]
    if not comparable:
        raise UsageError(
            f"there is nothing to compare: `{history.path}` holds {_why_nothing(history, segments)}",
            "replay it with as many processes as have trained it"
            if any(segment.goal.ranks != current_ranks().world_size for segment in segments)
            else "keep more checkpoints, as in graphtrain run ... checkpoint.keep=100",
        )
    verifier = Verifier(lambda segment: factory.trainer(segment.goal, from_the_beginning=segment.start is None))
    verdicts: list[Verdict] = []
    for segment in segments:
        if segment.change:
            report(f"skipped {segment}: {segment.change}")
            continue
        verdicts.append(verifier.verify(segment))
        if sys.stderr.isatty():  # a long run takes its time
            report(f"{len(verdicts)}/{len(comparable)}  {segment}: {_result(verdicts[-1])}")
    return verdicts


def _why_nothing(history: RunHistory, segments: list[Segment]) -> str:
    if segments:
        return f"no two checkpoints that can be compared: {segments[0].change}"
    return "one checkpoint, two are needed" if history.lineage(1) else "no sound checkpoint"


def _row(verdict: Verdict) -> list[str]:
    counts = ["", "", "", ""]
    if not verdict.failure:
        comparison, time = verdict.comparison, duration(verdict.seconds)
        counts = [str(verdict.batches), time, str(comparison.tensors), size(comparison.size)]
    return [*verdict.segment.names, *counts, _result(verdict)]


def _result(verdict: Verdict) -> str:
    if verdict.failure:
        return "cannot be replayed"
    if verdict.is_equal:
        return "equal"
    cause = "lost state" if verdict.cause == "lost" else "not repeatable"
    return f"{cause} ({counted(len(verdict.comparison.differences), 'field')})"


def _details(verdict: Verdict, changes: str) -> Iterator[str]:
    """The lines beneath the table about a span; `changes` are those since the run."""
    if verdict.is_equal and not verdict.notes:
        return
    yield ""
    if verdict.failure:
        yield f"{verdict.segment}: {verdict.failure}"
        return
    if verdict.is_equal:
        yield f"{verdict.segment}: equal; {'; '.join(verdict.notes)}"
        return
    cause = (
        "state was lost or changed between saving and resuming"
        if verdict.cause == "lost"
        else "the computation is not repeatable"
    )
    yield f"{verdict.segment}: {cause}"
    yield from first_lines(verdict.comparison.differences)
    yield from (f"  {note}" for note in verdict.notes)
    if changes:
        yield f"  This changed since the run, and may be the reason: {changes}."
    yield f"  {_explanation(verdict)}"


def _explanation(verdict: Verdict) -> str:
    if verdict.cause == "lost":
        field = one_line(verdict.comparison.differences[0].path)
        return (
            f"Two more replays agree with this one and not with the run: what {field} depends on was not saved, or not "
            "restored. Give the object that holds it a state_dict and a load_state_dict, or make it progress of a node."
        )
    if verdict.divergence:
        return (
            f"Two replays diverge after node {one_line(verdict.divergence)}: a kernel is not deterministic "
            "(--deterministic asks torch for deterministic ones), or a value comes from where no seed reaches, such as "
            "the time or os.urandom."
        )
    return "Replays differ from each other, but not in what was traced after each node, so the node is not known."
