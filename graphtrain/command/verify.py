"""`graphtrain verify`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from graphtrain.command.failure import FAILED
from graphtrain.command.printable import notify, plain
from graphtrain.command.rebuild import TrainerFactory
from graphtrain.display.wording import duration, size
from graphtrain.errors import UsageError
from graphtrain.printable import one_line
from graphtrain.replay.history import PastRun, Segment
from graphtrain.replay.verify import Verdict, verify
from graphtrain.run.trainer import Trainer

_MOST_SHOWN = 8
_CAUSES = {
    "lost": "state is lost or changed between saving and resuming",
    "unrepeatable": "the computation is not repeatable",
}


def verify_command(script: str, run_dir: Path, settings: list[str], last: int | None) -> int:
    """Go through a past run again, checkpoint by checkpoint, and compare; the exit code."""
    if last is not None and last < 1:
        raise UsageError(f"--last: expected a number > 0, got {last}")
    run = PastRun(run_dir, notify)
    again = TrainerFactory(script, settings, notify)
    segments = run.segments(last)
    comparable = [one for one in segments if not one.change]
    if not comparable:
        there = "no sound checkpoint" if not run.line(1) else "one checkpoint" if not segments else "no comparable one"
        raise UsageError(
            f"there is nothing to compare: `{run_dir}` holds {there}, and {_needed(segments)}",
            "keep more of them, as in graphtrain run ... checkpoint.keep=100",
        )

    def make(segment: Segment) -> Trainer:
        return again.trainer(segment.goal, from_the_beginning=segment.start is None)

    verdicts: list[Verdict] = []
    for segment in segments:
        span = f"{_start(segment)} to {segment.goal.name}"
        if segment.change:
            notify(f"passed over {span}: {segment.change}")
            continue
        verdicts.append(verify(segment, make))
        if sys.stderr.isatty():  # a long run takes its time
            notify(f"{len(verdicts)}/{len(comparable)}  {span}: {_result(verdicts[-1])}")
    console = Console(highlight=False)
    console.print(_table(verdicts))
    for verdict in verdicts:
        for line in _lines(verdict, again.changes or ""):
            console.print(plain(line), soft_wrap=True)
    differing = sum(not one.is_equal for one in verdicts)
    whole = f"{len(verdicts)} span{'' if len(verdicts) == 1 else 's'}"
    console.print(f"{differing} of {whole} differ" if differing else f"{whole}: bitwise equal", soft_wrap=True)
    return FAILED if differing else 0


def _needed(segments: list[Segment]) -> str:
    return segments[0].change if segments else "a span lies between two"


def _table(verdicts: list[Verdict]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("from", "to"):
        table.add_column(column, overflow="fold")
    for column in ("batches", "time", "tensors", "bytes"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("result", overflow="fold")
    for verdict in verdicts:
        counts = ["", "", "", ""]
        if verdict.replayed is not None:
            comparison = verdict.replayed.comparison
            time = duration(verdict.replayed.seconds)
            counts = [str(verdict.replayed.batches), time, str(comparison.tensors), size(comparison.size)]
        table.add_row(_start(verdict.segment), verdict.segment.goal.name, *counts, _result(verdict))
    return table


def _start(segment: Segment) -> str:
    return segment.start.name if segment.start is not None else "the beginning"


def _result(verdict: Verdict) -> str:
    if verdict.failure:
        return "cannot be gone through"
    if verdict.is_equal:
        return "equal"
    number = len(verdict.differences)
    cause = "lost state" if verdict.cause == "lost" else "not repeatable"
    return f"{cause} ({number} field{'' if number == 1 else 's'})"


def _lines(verdict: Verdict, changes: str) -> Iterator[str]:
    """What is to be said of a span beneath the table, given what has changed since."""
    span = f"{_start(verdict.segment)} to {verdict.segment.goal.name}"
    notes = verdict.replayed.notes if verdict.replayed is not None else ()
    if verdict.is_equal and not notes:
        return
    yield ""
    if verdict.failure:
        yield f"{span}: {verdict.failure}"
        return
    if verdict.is_equal:
        yield f"{span}: equal; {'; '.join(notes)}"
        return
    yield f"{span}: {_CAUSES[verdict.cause]}"
    for one in verdict.differences[:_MOST_SHOWN]:
        yield f"  {one_line(str(one))}"
    if (more := len(verdict.differences) - _MOST_SHOWN) > 0:
        yield f"  ... and {more} more"
    yield from (f"  {note}" for note in notes)
    if changes:
        yield f"  What has changed since then may be the reason: {changes.removeprefix('changed: ')}."
    first = one_line(verdict.differences[0].path)
    if verdict.cause == "lost":
        yield (
            f"  Two further replays agree with this one and not with the run: what {first} follows from was not in the "
            "checkpoint, or not put back. Give the object that holds it a state_dict and a load_state_dict, or make it "
            "progress of a node."
        )
    elif verdict.node:
        yield (
            f"  Two further replays part after the node {one_line(verdict.node)}: a kernel that is not deterministic "
            "(--deterministic asks torch for such as are), or numbers that no seed reaches, such as the time or "
            "os.urandom."
        )
    else:
        yield "  Further replays differ from each other, at a node that is not known: what they were traced at, agreed."
