"""`graphtrain replay`."""

from __future__ import annotations

import math
import pdb
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from graphtrain.command.printable import notify, plain
from graphtrain.command.rebuild import TrainerFactory
from graphtrain.errors import UsageError
from graphtrain.kind.trigger import Term
from graphtrain.printable import one_line
from graphtrain.replay.history import PastRun, SavedCheckpoint
from graphtrain.replay.replay import Replay
from graphtrain.run.stops import moment
from graphtrain.storage.run_directory import read_status
from graphtrain.storage.saved_graph import graph_of

_MOST_PARAMETERS = 60
_MOST_PARTS = 12
_MOST_CHARACTERS = 80


def replay_command(script: str, run_dir: Path, settings: list[str], to: str, node: str | None, *, debug: bool) -> int:
    """Go to a moment of a past run, and show it; the exit code."""
    run = PastRun(run_dir, notify)
    line = run.line()
    if not line:
        raise UsageError(f"`{run_dir}` holds no sound checkpoint to go on from")
    term = moment(to, graph_of(line[-1].path, line[-1].manifest))
    _refuse_what_was_not(run_dir, term)
    start, setting = _beginning(run, line, term)
    trainer = TrainerFactory(script, settings, notify).trainer(setting, from_the_beginning=start is None)
    replay = Replay(trainer, start.path if start is not None else None)
    if not replay.to_amount(term):
        raise UsageError(f"the run does not come to {term}: it ends at {replay.where}", "name an earlier moment")
    if node is not None and not replay.to_node(node):
        raise UsageError(f"after {term} the node `{node}` is not run any more: the run ends at {replay.where}")
    console = Console(highlight=False)
    begun = start.name if start is not None else "the beginning"
    console.print(f"[bold]{plain(replay.where)}[/bold], next node {plain(trainer.position)} (from {begun} on)")
    for table in (_table_of_slots(replay), _table_of_parameters(replay)):
        console.print()
        console.print(table)
    if debug:
        names = {**trainer.resources, **replay.slots_around(), "torch": torch}
        names |= {"trainer": trainer, "gradients": replay.gradients}
        console.print(f"\nnames here: {plain(', '.join(names))}", soft_wrap=True)
        pdb.Pdb(nosigint=True).run("pass", names)
    return 0


def _refuse_what_was_not(run_dir: Path, term: Term) -> None:
    """Raise where a run that came to a stand never came to a moment; of one that was killed, its status is too old."""
    try:
        status = read_status(run_dir)
        came = {"steps": status["step"], "epochs": status["epoch"], "batches": status["trained"][0]}[term.base.unit]
        beyond, stands = came < term.base.amount, status["state"] in ("finished", "stopped", "failed")
    except (UsageError, LookupError, TypeError):
        return
    if beyond and stands:
        raise UsageError(f"the run never came to {term}: it is {status['state']} at {came:g} {term.base.unit}")
    if beyond:
        notify(f"the run is known to have come to {came:g} {term.base.unit}; what is beyond is what it would have done")


def _beginning(run: PastRun, line: list[SavedCheckpoint], term: Term) -> tuple[SavedCheckpoint | None, SavedCheckpoint]:
    """The newest checkpoint before a moment, None for the beginning; and the one that tells how the run was set up.

    Raises:
        UsageError: there is none, and the run cannot be gone through from its beginning.
    """
    for number, kept in reversed(list(enumerate(line))):
        if _count(kept, term) < term.base.amount:
            return kept, line[min(number + 1, len(line) - 1)]
    oldest = line[0]
    if reason := run.not_from_the_beginning(oldest):
        raise UsageError(
            f"{term} lie before the oldest checkpoint, {oldest.name}, and {reason}",
            f"name a later moment: the oldest checkpoint is at {_count(oldest, term):g} {term.base.unit}",
        )
    return None, oldest


def _count(kept: SavedCheckpoint, term: Term) -> float:
    """What the clock said at a checkpoint; infinity where that is computed, and was not kept."""
    unit = term.base.unit
    owner, _, field = graph_of(kept.path, kept.manifest).units.get(unit, f"{unit}.").partition(".")
    counts = kept.counts.get(owner, {})
    return counts.get(field, kept.epoch if unit == "epochs" else math.inf)


# ---- what is shown


def _table_of_slots(replay: Replay) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("slot", no_wrap=True)
    table.add_column("value", overflow="fold")
    for name, value in replay.slots.items():
        if value is None:
            continue  # not written yet
        table.add_row(plain(name), plain("\n".join(_described(value))))
    return table


def _described(value: Any, name: str = "", depth: int = 0) -> Iterator[str]:
    """A value by its structure: a line for what holds no parts, one for each part of what does."""
    head = f"{'  ' * depth}{name}: " if name else "  " * depth
    match value:
        case torch.Tensor():
            yield head + _tensor(value)
        case Mapping() | list() | tuple() if value and not _is_plain(value):
            yield f"{head}{type(value).__name__} of {len(value)}"
            parts = list(value.items() if isinstance(value, Mapping) else enumerate(value))
            for key, part in parts[:_MOST_PARTS]:
                yield from _described(part, one_line(str(key)), depth + 1)
            if more := max(0, len(parts) - _MOST_PARTS):
                yield f"{'  ' * (depth + 1)}... and {more} more"
        case _:
            text = one_line(repr(value))
            yield head + (text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}...")


def _is_plain(value: Any) -> bool:
    parts = value.values() if isinstance(value, Mapping) else value
    return all(part is None or isinstance(part, bool | int | float | str) for part in parts)


def _tensor(tensor: torch.Tensor) -> str:
    form = f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
    if not tensor.numel() or tensor.layout is not torch.strided or tensor.is_complex():
        return form
    wide = tensor.detach().to(torch.float64)
    if tensor.numel() == 1:
        return f"{form}: {wide.item():.9g}"
    return f"{form}: mean {wide.mean().item():.4g}, from {wide.min().item():.4g} to {wide.max().item():.4g}"


def _table_of_parameters(replay: Replay) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("parameter", overflow="fold")
    for column in ("shape", "gradient norm", "weight norm"):
        table.add_column(column, justify="right", no_wrap=True)
    rows, gradients = replay.parameters, replay.gradients
    for name in list(rows)[:_MOST_PARAMETERS]:
        shape = " x ".join(map(str, rows[name].shape)) or "scalar"
        gradient = _norm([gradients[name]]) if name in gradients else "none"
        table.add_row(plain(name), shape, gradient, _norm([rows[name]]))
    if (more := len(rows) - _MOST_PARAMETERS) > 0:
        table.add_row(f"... and {more} more", "", "", "")
    table.add_row("[dim]all[/dim]", "", _norm(gradients.values()), _norm(rows.values()))
    return table


def _norm(tensors: Iterable[torch.Tensor]) -> str:
    norms = [one.detach().to(torch.float64).norm().cpu() for one in tensors]
    return f"{torch.stack(norms).norm().item():.6g}" if norms else "none"
