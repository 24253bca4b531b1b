"""What `graphtrain verify --run-dir` and `graphtrain replay` do: a past run is repeated, and compared or inspected."""

from __future__ import annotations

import math
import pdb
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graphtrain.command.adapted import ScriptOrClass
from graphtrain.command.failure import FAILED
from graphtrain.command.output import console, counted, escaped, ignore, notify_once, print_lines, table
from graphtrain.command.rebuild import TrainerFactory
from graphtrain.errors import UsageError
from graphtrain.kind.trigger import Term
from graphtrain.plain import is_scalar
from graphtrain.printable import one_line, shorten
from graphtrain.proof.comparison import first_lines
from graphtrain.proof.history import RunHistory, Segment
from graphtrain.proof.replay import Replay, parse_moment
from graphtrain.proof.verify import Verdict, verify
from graphtrain.ranks import current_ranks, on_all_ranks
from graphtrain.report.numbers import duration, size
from graphtrain.state.weights import dtype_and_shape
from graphtrain.storage.checkpoint import read_checkpoint
from graphtrain.storage.manifest import SavedCheckpoint
from graphtrain.storage.named import checkpoint_folder, graph_of, holds_a_graph
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER
from graphtrain.trainer.trainer import Trainer

_MOST_PARAMETERS = 60
_MOST_PARTS = 12
_MOST_CHARACTERS = 80


def verify_spans(source: ScriptOrClass, run_dir: Path, settings: Sequence[str], last: int | None) -> int:
    """Replay a past run from checkpoint to checkpoint, and compare; the exit code."""
    if last is not None and last < 1:
        raise UsageError(f"--last: expected a number > 0, got {last}")
    with on_all_ranks(f"in {shlex.join(source.words)}"):
        report = notify_once()
        history = RunHistory(run_dir, report)
        factory = TrainerFactory(source, settings, report)
        verdicts = _verdicts(history, history.segments(last), factory, report)
        printed = console(quiet=report is ignore)
        columns = ["from", "to", "batches", "time", "tensors", "bytes", "result"]
        printed.print(table(columns, map(_row, verdicts), right=columns[2:6]))
        print_lines(printed, (line for verdict in verdicts for line in _details(verdict, factory.changes or "")))
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
            if any(segment.goal.manifest.ranks != current_ranks().world_size for segment in segments)
            else "keep more checkpoints, as in graphtrain run ... checkpoint.keep=100",
        )

    def trainer(segment: Segment) -> Trainer:
        return factory.trainer(segment.goal, from_the_beginning=segment.start is None)

    verdicts: list[Verdict] = []
    for segment in segments:
        if segment.change:
            report(f"skipped {segment}: {segment.change}")
            continue
        verdicts.append(verify(segment, trainer))
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
            f"Another replay agrees with this one and not with the run: what {field} depends on was not saved, or not "
            "restored. Give the object that holds it a state_dict and a load_state_dict, or make it progress of a node."
        )
    return (
        "Two replays differ from each other: a kernel is not deterministic (--deterministic asks torch for "
        "deterministic ones), or a value does not follow from a seed, such as the time or os.urandom."
    )


# ---- replay


def replay_to(
    source: ScriptOrClass,
    settings: Sequence[str],
    run_dir: Path,
    to: str,
    node: str | None,
    runs: int | None,
    *,
    debug: bool,
) -> int:
    """Replay a past run to a moment, and show the values there; the exit code."""
    if runs is not None and node is None:
        raise UsageError("--runs: it counts the runs of a node, and none is named", "name it with --node")
    if debug and current_ranks().world_size > 1:
        raise UsageError("--pdb: several processes cannot read from one terminal", "leave it out")
    with on_all_ranks(f"in {shlex.join(source.words)}"):
        report = notify_once()
        replay, start = _replayed(source, settings, run_dir, to, report)
        if node is not None and not replay.to_node(node, runs):
            times = f" with runs = {runs}" if runs is not None else ""
            raise UsageError(f"the node `{node}` does not run again{times} after {to}: the run ends at {replay.moment}")
        printed = console(quiet=report is ignore)
        origin = start.name if start is not None else "the beginning"
        position = escaped(replay.trainer.position)
        printed.print(f"[bold]{escaped(replay.moment)}[/bold], next node {position} (replayed from {origin})\n")
        slots = {name: value for name, value in replay.slots.items() if value is not None}  # those written so far
        rows = [[name, "\n".join(_described(value))] for name, value in slots.items()]
        printed.print(table(["slot", "value"], rows, whole=["slot"]))
        printed.print()
        columns = ["parameter", "shape", "gradient norm", "weight norm"]
        printed.print(table(columns, _parameters(replay), right=columns[1:]))
        if debug:
            names = {**replay.trainer.resources, **{name: slots[name] for name in slots if name.isidentifier()}}
            names |= {"slots": slots, "gradients": replay.gradients, "trainer": replay.trainer, "torch": torch}
            printed.print(f"\nnames here, as they are at this moment: {escaped(', '.join(names))}", soft_wrap=True)
            pdb.Pdb(nosigint=True).run("pass", names)
        return 0


def _replayed(
    source: ScriptOrClass, settings: Sequence[str], run_dir: Path, to: str, report: Callable[[str], None]
) -> tuple[Replay, Path | None]:
    """A replay at a moment, and the checkpoint that it began with; None for the beginning."""
    history = RunHistory(run_dir, report)
    lineage = history.lineage()
    if not lineage:
        raise UsageError(f"`{run_dir}` holds no sound checkpoint to replay from")
    trainers = TrainerFactory(source, settings, report)
    if (path := _checkpoint(run_dir, to)) is not None:
        replay = Replay(trainers.trainer(SavedCheckpoint.sound(path), from_the_beginning=False), path)
        replay.to_start()
        return replay, path
    term = parse_moment(to, graph_of(lineage[-1].path, lineage[-1].manifest))
    if term.base.amount > _count(newest := lineage[-1], term):
        report(
            f"{term} are after the last checkpoint, {newest.path.name}: what follows is what the run would have done"
        )
    start, goal = _span_around(history, lineage, term)
    path = start.path if start is not None else None
    replay = Replay(trainers.trainer(goal, from_the_beginning=start is None), path)
    if not replay.to_amount(term):
        raise UsageError(f"the run does not reach {term}: it ends at {replay.moment}", "name an earlier moment")
    return replay, path


def _checkpoint(run_dir: Path, to: str) -> Path | None:
    """The checkpoint that `--to` names: best, newest, or a name in the run directory; None for an amount."""
    named = Path(to) if Path(to).is_dir() else run_dir / to
    path = checkpoint_folder(named) if holds_a_graph(named) else named
    return path if path.parent == run_dir / CHECKPOINTS_FOLDER and path.is_dir() else None


def _span_around(
    history: RunHistory, lineage: list[SavedCheckpoint], term: Term
) -> tuple[SavedCheckpoint | None, SavedCheckpoint]:
    """The newest checkpoint before a moment, None for the beginning; and the next one, whose set-up is used.

    Raises:
        UsageError: there is none, and the run cannot be replayed from its beginning.
    """
    for number, checkpoint in reversed(list(enumerate(lineage))):
        if _count(checkpoint, term) < term.base.amount:
            return checkpoint, lineage[min(number + 1, len(lineage) - 1)]
    oldest = lineage[0]
    if reason := history.why_not_from_the_beginning(oldest):
        count, name = _count(oldest, term), oldest.path.name
        just = "just " * (count == term.base.amount)  # a step is counted before it is saved
        raise UsageError(
            f"{term} is {just}before the oldest checkpoint, {name}, and {reason}",
            f"name a moment after {count:g} {term.base.unit}, or the checkpoint itself: --to {name}",
        )
    return None, oldest


def _count(checkpoint: SavedCheckpoint, term: Term) -> float:
    """The value of a unit at a checkpoint; infinity where it is computed and was not saved."""
    unit = term.base.unit
    owner, _, field = graph_of(checkpoint.path, checkpoint.manifest).units.get(unit, f"{unit}.").rpartition(".")
    counts = read_checkpoint(*checkpoint).sections["progress"].get(owner, {})
    return float(counts.get(field, checkpoint.manifest.epoch if unit == "epochs" else math.inf))


# ---- the tables of a replay


def _described(value: Any, name: str = "", depth: int = 0) -> Iterator[str]:
    """A value in lines: one for a leaf, and for a container one with its size and those of its parts."""
    head = f"{'  ' * depth}{name}: " if name else "  " * depth
    parts = list(
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    )
    if isinstance(value, torch.Tensor):
        yield head + _tensor(value)
    elif all(is_scalar(part) for _, part in parts):
        yield head + shorten(one_line(repr(value)), _MOST_CHARACTERS)
    else:
        yield f"{head}{type(value).__name__} of {len(value)}"
        for key, part in parts[:_MOST_PARTS]:
            yield from _described(part, one_line(str(key)), depth + 1)
        if (more := len(parts) - _MOST_PARTS) > 0:
            yield f"{'  ' * (depth + 1)}... and {more} more"


def _tensor(tensor: torch.Tensor) -> str:
    form = dtype_and_shape(tensor)
    if not tensor.numel() or tensor.layout is not torch.strided or tensor.is_complex():
        return form
    wide = tensor.detach().to(torch.float64)
    if tensor.numel() == 1:
        return f"{form}: {wide.item():.9g}"
    return f"{form}: mean {wide.mean().item():.4g}, from {wide.min().item():.4g} to {wide.max().item():.4g}"


def _parameters(replay: Replay) -> Iterator[tuple[str, str, str, str]]:
    parameters, gradients = replay.parameters, replay.gradients
    for name, parameter in list(parameters.items())[:_MOST_PARAMETERS]:
        gradient = _norm([gradients[name]]) if name in gradients else "none"
        yield name, " x ".join(map(str, parameter.shape)) or "scalar", gradient, _norm([parameter])
    if (more := len(parameters) - _MOST_PARAMETERS) > 0:
        yield f"... and {more} more", "", "", ""
    yield "all", "", _norm(gradients.values()), _norm(parameters.values())


def _norm(tensors: Iterable[torch.Tensor]) -> str:
    norms = [tensor.detach().to(torch.float64).norm().cpu() for tensor in tensors]
    return f"{torch.stack(norms).norm().item():.6g}" if norms else "none"
