"""What `graphtrain replay` does: a past run is repeated up to a moment, and shown there."""

from __future__ import annotations

import itertools
import math
import pdb
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graphtrain.command.adapted import ScriptOrClass
from graphtrain.command.output import console, escaped, ignore, notify_once, table
from graphtrain.command.rebuild import TrainerFactory
from graphtrain.errors import UsageError
from graphtrain.kind.trigger import Term
from graphtrain.plain import is_scalar
from graphtrain.printable import one_line
from graphtrain.program.breakpoints import Breakpoint, before_node
from graphtrain.proof.history import RunHistory
from graphtrain.proof.replay import Replay, after_amount, parse_moment
from graphtrain.ranks import current_ranks, on_all_ranks
from graphtrain.state.weights import dtype_and_shape
from graphtrain.storage.checkpoint import read_checkpoint
from graphtrain.storage.manifest import SavedCheckpoint, checkpoint_paths
from graphtrain.storage.named import checkpoint_folder, graph_of, holds_a_graph
from graphtrain.storage.run_directory import CHECKPOINTS_FOLDER

_MOST_PARTS = 12
_MOST_CHARACTERS = 80


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
        if node is not None and not replay.run_to(
            lambda compiled, _: [before_node(compiled, node, "--node", runs=runs)]
        ):
            times = f" with runs = {runs}" if runs is not None else ""
            raise UsageError(f"the node `{node}` does not run again{times} after {to}: the run ends at {replay.moment}")
        printed = console(quiet=report is ignore)
        origin = start.name if start is not None else "the beginning"
        place = f"next node {escaped(replay.trainer.position)} (replayed from {origin})"
        printed.print(f"[bold]{escaped(replay.moment)}[/bold], {place}\n", soft_wrap=True)
        slots = replay.slots
        rows = [row for name, value in slots.items() for row in _described(name, value)]
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
        sound = "sound " if checkpoint_paths(run_dir / CHECKPOINTS_FOLDER) else ""
        raise UsageError(
            f"`{run_dir}` holds no {sound}checkpoint to replay from", "save some: checkpoint.every='10 batches'"
        )
    trainers = TrainerFactory(source, settings, report)
    if (path := _checkpoint(run_dir, to)) is not None:
        replay = Replay(trainers.trainer(SavedCheckpoint.verified(path), from_the_beginning=False), path)
        replay.run_to(lambda _, loop: [Breakpoint(loop.position, lambda: True)])  # where it was saved
        return replay, path
    term = parse_moment(to, graph_of(lineage[-1].path, lineage[-1].manifest))
    start, goal = _span_around(history, lineage, term)
    path = start.path if start is not None else None
    replay = Replay(trainers.trainer(goal, from_the_beginning=start is None), path)
    if not replay.run_to(lambda compiled, _: after_amount(compiled, term)):
        raise UsageError(f"the run does not reach {term}: it ends at {replay.moment}", "name an earlier moment")
    if term.base.amount > _count(newest := lineage[-1], term):
        report(f"{term} are after the last checkpoint, {newest.name}: the replay shows what the run would have done")
    return replay, path


def _checkpoint(run_dir: Path, to: str) -> Path | None:
    """The checkpoint that `--to` names: best, newest, or a name in the run directory; None for an amount."""
    named = Path(to) if Path(to).is_dir() else run_dir / to
    path = checkpoint_folder(named) if holds_a_graph(named) else named
    return path if path.parent == run_dir / CHECKPOINTS_FOLDER and path.is_dir() else None


def _span_around(
    history: RunHistory, lineage: list[SavedCheckpoint], term: Term
) -> tuple[SavedCheckpoint | None, SavedCheckpoint]:
    """The newest checkpoint before a moment, None for the beginning; and the next one, whose set-up is used."""
    for number, checkpoint in reversed(list(enumerate(lineage))):
        if _count(checkpoint, term) < term.base.amount:
            return checkpoint, lineage[min(number + 1, len(lineage) - 1)]
    oldest = lineage[0]
    if reason := history.why_not_from_the_beginning(oldest):
        raise UsageError(
            f"{term} is before the oldest checkpoint, {oldest.name}, and {reason}",
            f"name a moment after {_count(oldest, term):g} {term.base.unit}, or the checkpoint itself: "
            f"--to {oldest.name}",
        )
    return None, oldest


def _count(checkpoint: SavedCheckpoint, term: Term) -> float:
    """The value of a unit at a checkpoint; infinity where it is computed and was not saved."""
    unit = term.base.unit
    owner, _, field = graph_of(checkpoint.path, checkpoint.manifest).units.get(unit, f"{unit}.").rpartition(".")
    counts = read_checkpoint(*checkpoint).sections["progress"].get(owner, {})
    return float(counts.get(field, checkpoint.manifest.epoch if unit == "epochs" else math.inf))


# ---- the tables of a replay


def _described(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The name and the description of a value, or of each of its first parts."""
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping | list | tuple):
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
    shown = [*itertools.islice(parts, _MOST_PARTS)]
    if isinstance(value, torch.Tensor):
        yield name, _tensor(value)
    elif all(is_scalar(part) for _, part in shown):
        yield name, one_line(repr(value), _MOST_CHARACTERS)
    else:
        for key, part in shown:
            yield from _described(f"{name}[{one_line(repr(key))}]", part)
        if (more := len(value) - len(shown)) > 0:
            yield name, f"... and {more} more"


def _tensor(tensor: torch.Tensor) -> str:
    description = dtype_and_shape(tensor)
    if not tensor.numel() or tensor.layout is not torch.strided or tensor.is_complex():
        return description
    wide = tensor.detach().to(torch.float64)
    if tensor.numel() == 1:
        return f"{description}: {wide.item():.9g}"
    return f"{description}: mean {wide.mean().item():.4g}, from {wide.min().item():.4g} to {wide.max().item():.4g}"


def _parameters(replay: Replay) -> Iterator[tuple[str, str, str, str]]:
    parameters, gradients = replay.parameters, replay.gradients
    for name, parameter in parameters.items():
        gradient = _norm([gradients[name]]) if name in gradients else "none"
        yield name, " x ".join(map(str, parameter.shape)) or "scalar", gradient, _norm([parameter])
    yield "all", "", _norm(gradients.values()), _norm(parameters.values())


def _norm(tensors: Iterable[torch.Tensor]) -> str:
    norms = [tensor.detach().to(torch.float64).norm().cpu() for tensor in tensors]
    return f"{torch.stack(norms).norm().item():.6g}" if norms else "none"
