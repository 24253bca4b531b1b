"""Resuming with several ranks: all take the checkpoint that rank 0 chooses; and what changes with their number.

With the number of ranks that has written a checkpoint, each of them gets its own state back, bit for bit. With another
one, what ranks had in common is given to all; gradients that were not summed yet, and running means, are summed in the
order of ranks and given to rank 0; random generators are derived from the seed, the micro-batches so far, and the rank;
and what else was a rank's own, as the buffers of a batch norm, is rank 0's.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from graphtrain.data.loader import derived_seed
from graphtrain.errors import CheckpointError, GraphtrainError
from graphtrain.graph.renaming import Renaming
from graphtrain.kind.fields import IDLE, ROUND
from graphtrain.names import quoted
from graphtrain.program.bind import BoundNode
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.rounds import is_fetching, slots_of_rounds
from graphtrain.program.stateful_objects import of_rank
from graphtrain.report.recorder import added
from graphtrain.resume.graph_change import GraphChange
from graphtrain.resume.rank_saves import RankSaves
from graphtrain.resume.restore import ResumeOptions
from graphtrain.state.random import RandomAside, capture_random, global_generators, seed_everything
from graphtrain.storage.checkpoint import Checkpoint, read_checkpoint
from graphtrain.storage.manifest import Manifest
from graphtrain.storage.run_files import RunFiles
from graphtrain.storage.state_files import Sections

_SHOWN = 3


# ---- choosing


def choose(run_files: RunFiles | None, options: ResumeOptions, saves: RankSaves) -> Checkpoint | None:
    """The checkpoint to resume from; None to begin. Several ranks take the one that rank 0 chooses.

    Raises:
        UsageError: the run directory holds a run, and it must not; or there is no such checkpoint.
        CheckpointError: the checkpoint that was named is not sound. What rank 0 meets is raised on all ranks.
    """
    ranks = saves.ranks
    read = functools.partial(read_checkpoint, rank=ranks.rank, world_size=ranks.world_size)
    if run_files is not None:
        run_files.read = read
    return _followed(run_files, saves, read) if ranks.rank else _chosen(run_files, options, saves, read)


def _chosen(
    run_files: RunFiles | None,
    options: ResumeOptions,
    saves: RankSaves,
    read: Callable[[Path, Manifest | None], Checkpoint],
) -> Checkpoint | None:
    """What rank 0 chooses, of what all ranks can read."""
    agreement = saves.agreement

    def read_by_all(path: Path, manifest: Manifest | None) -> Checkpoint:
        agreement.gather({"try": str(path)})
        try:
            checkpoint = read(path, manifest)
        except CheckpointError as error:
            agreement.gather(error.message)
            raise
        problems = agreement.gather("")
        for rank, problem in enumerate(problems):
            if problem:
                raise CheckpointError(f"rank {rank}: {problem}")
        return checkpoint

    problem, checkpoint = None, None
    try:
        if run_files is not None:
            run_files.read = read_by_all
            checkpoint = run_files.find(options.resume)
        elif options.is_named:
            checkpoint = options.read(options.resume)
            if max(checkpoint.ranks, saves.ranks.world_size) > 1:  # it is read again, as each process needs it
                checkpoint = read_by_all(checkpoint.path, checkpoint.manifest)
    except GraphtrainError as error:
        problem = error
    finally:
        if run_files is not None:
            run_files.read = read

    def tell() -> dict[str, Any]:
        if problem is not None:
            raise problem
        return {"run": uuid.uuid4().hex[:12], "begins": checkpoint is None}

    agreement.gather({})
    saves.run = agreement.lead(tell)["run"]
    return checkpoint


def _followed(
    run_files: RunFiles | None, saves: RankSaves, read: Callable[[Path, Manifest | None], Checkpoint]
) -> Checkpoint | None:
    """What rank 0 has chosen."""
    agreement, checkpoint = saves.agreement, None
    while True:
        told = agreement.gather({})[0]
        if not told:
            chosen = agreement.lead(dict)
            saves.run = chosen["run"]
            return None if chosen["begins"] else checkpoint
        path = Path(told["try"])
        if run_files is not None and (run_files.checkpoints / path.name).is_dir():
            path = run_files.checkpoints / path.name  # where this rank sees the run directory
        checkpoint, problem = None, ""
        try:
            checkpoint = read(path, None)
        except CheckpointError as error:
            problem = error.message
        agreement.gather(problem)


# ---- another number of ranks


def resized(
    checkpoint: Checkpoint,
    compiled: CompiledGraph,
    rank: int,
    world_size: int,
    seed: int,
    rename: Mapping[str, str],
) -> tuple[Checkpoint, str]:
    """A checkpoint as a rank resumes from it where as many ranks have not written it; and what changes, in words.

    Arguments:
        seed: that of the run.
        rename: as `ResumeOptions` has it. What is returned has the names that were saved.

    Raises:
        UsageError: `rename` names no node.
        CheckpointError: batches are being trained on, of which there are more than ranks.
    """
    manifest, first, before = checkpoint.manifest, checkpoint.sections, checkpoint.ranks
    states: Mapping[int, Sections] = checkpoint.others or {0: first}
    renaming = GraphChange.of(checkpoint, compiled.graph, rename).renaming
    exchanged = _exchanged(compiled, manifest, first["progress"], before, renaming)
    with RandomAside(global_generators()):
        fetching = [_former(renaming, bound) for bound in compiled.program.nodes if is_fetching(bound)]
        batches = sum(int(first["progress"].get(path, {}).get("batches", 0)) for path in fetching)
        seed_everything(derived_seed(seed, batches, rank))
        drawn = capture_random()
    sections = {
        **first,
        "gradients": _gradients(compiled, states, exchanged, rank),
        "progress": _progress(compiled, states, exchanged, before, rank, world_size, renaming),
        "slots": _slots(compiled, checkpoint, states, before, rank, world_size, renaming),
        "metrics": _means(states, rank),
        "random": {**first["random"], **drawn},
    }
    facts = ["random numbers are others", *_of_rank_0(checkpoint, compiled)]
    if any(sections["gradients"].values()) and not exchanged:
        facts.append("gradients of the open window are summed")
    return replace(checkpoint, sections=sections), f"{_ranks(world_size)} instead of {before} ({', '.join(facts)})"


def _ranks(number: int) -> str:
    return f"{number} {'process' if number == 1 else 'processes'}"


def _former(renaming: Renaming, bound: BoundNode) -> str:
    """The path that a node was saved under."""
    return renaming.former(bound.path) or bound.path


def _exchanged(
    compiled: CompiledGraph,
    manifest: Manifest,
    progress: Mapping[str, Mapping[str, Any]],
    before: int,
    renaming: Renaming,
) -> set[str]:
    """The optimizers whose gradients were summed over ranks already.

    One process sums none: there it follows from the position, behind which they are stepped or summed first.
    """
    exchanged = set()
    for name in _exchanging(compiled):
        flags = [
            progress[_former(renaming, bound)].get(declared)
            for bound, declared in _exchanged_fields(compiled, name)
            if _former(renaming, bound) in progress
        ]
        position = renaming.path(manifest.position)
        is_exchanged = any(flags) if before > 1 and flags else _is_behind_exchange(compiled, position, name)
        if is_exchanged:
            exchanged.add(name)
    return exchanged


def _exchanging(compiled: CompiledGraph) -> set[str]:
    """The optimizers whose gradients some node sums over ranks."""
    return {
        name
        for bound in compiled.program.nodes
        for action in bound.planned.actions
        if action.effect == "exchange"
        for name in action.optimizers
    }


def _exchanged_fields(compiled: CompiledGraph, optimizer: str) -> list[tuple[BoundNode, str]]:
    """The nodes that count the windows of an optimizer, with the field that is true once ranks have summed."""
    return [
        (bound, declared.exchanged)
        for bound in compiled.program.nodes
        for declared in bound.kind.fields.values()
        if declared.exchanged is not None and optimizer in bound.planned.optimizers
    ]


def _is_behind_exchange(compiled: CompiledGraph, path: str, optimizer: str) -> bool:
    """True if the gradients that an optimizer has before a node runs are stepped before they are summed."""
    waiting = list(compiled.liveness.flow.entries.get(path, ())[:1])
    seen = set(waiting)
    while waiting:
        point = waiting.pop()
        actions = point.planned.actions if point.planned is not None else ()
        effects = [action.effect for action in actions if optimizer in action.optimizers]
        if "step" in effects and "exchange" not in effects:
            return True
        if "exchange" not in effects and "zero_grad" not in effects:
            following = [arrow.target for arrow in point.arrows if arrow.target not in seen]
            seen.update(following)
            waiting += following
    return False


def _gradients(
    compiled: CompiledGraph, states: Mapping[int, Sections], exchanged: set[str], rank: int
) -> dict[str, dict[str, torch.Tensor]]:
    """Those that were summed over ranks on every rank; the sum of the others on rank 0."""
    optimizers = [compiled.program.resources.get(name) for name in exchanged]
    summed = {
        id(parameter)
        for optimizer in optimizers
        if isinstance(optimizer, torch.optim.Optimizer)
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    modules = compiled.state.objects.modules
    gradients: dict[str, dict[str, torch.Tensor]] = {}
    for name, of_first in states[0]["gradients"].items():
        parameters = dict(modules[name].named_parameters()) if name in modules else {}
        of_module = gradients[name] = {}
        for path in dict.fromkeys(path for state in states.values() for path in state["gradients"].get(name, {})):
            if path in parameters and id(parameters[path]) in summed:
                if path in of_first:
                    of_module[path] = of_first[path]
            elif rank == 0:
                parts = [states[number]["gradients"].get(name, {}).get(path) for number in sorted(states)]
                of_module[path] = _sum([part for part in parts if part is not None])
    return gradients


def _sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _progress(
    compiled: CompiledGraph,
    states: Mapping[int, Sections],
    exchanged: set[str],
    before: int,
    rank: int,
    world_size: int,
    renaming: Renaming,
) -> dict[str, Mapping[str, Any]]:
    """That of rank 0, in which nothing depends on ranks but whether gradients were summed, and the last round.

    What belongs to gradients is summed, and given to rank 0; what is each rank's own, rank 0 alone has again. A node
    that only several ranks need, as `exchange`, has none in one process.
    """
    of_ranks = [bound for bound in compiled.program.nodes if "ranks" in bound.kind.optional and not bound.bypassed]
    fresh = {
        _former(renaming, bound): {
            name: getattr(bound.instance, name) for name, declared in bound.kind.fields.items() if declared.stored
        }
        for bound in of_ranks
    }
    changed: dict[str, Mapping[str, Any]] = {**fresh, **states[0]["progress"]}
    for bound in compiled.program.nodes:
        path = _former(renaming, bound)
        if path in changed and (is_fetching(bound) or ROUND in bound.kind.fields) and 1 in (before, world_size):
            changed[path] = {**changed[path], ROUND: 1}
        if path in changed and IDLE in bound.kind.fields:
            is_idle = rank in states and states[rank]["progress"].get(path, {}).get(IDLE, False)
            changed[path] = {**changed[path], IDLE: is_idle}
        if rank and (own := of_rank(bound)) and path in changed:
            changed[path] = {name: value for name, value in changed[path].items() if name not in own}
        sums = [field for field in bound.kind.fields.values() if field.with_gradients and path in changed]
        for field in sums:
            parts = [states[number]["progress"][path].get(field.name, field.default) for number in sorted(states)]
            changed[path] = {**changed[path], field.name: sum(parts[1:], parts[0]) if rank == 0 else field.default}
    for name in _exchanging(compiled):
        for bound, declared in _exchanged_fields(compiled, name):
            path = _former(renaming, bound)
            if path in changed:
                is_exchanged = world_size > 1 and name in exchanged
                changed[path] = {**changed[path], declared: is_exchanged}
    return changed


def _slots(
    compiled: CompiledGraph,
    checkpoint: Checkpoint,
    states: Mapping[int, Sections],
    before: int,
    rank: int,
    world_size: int,
    renaming: Renaming,
) -> dict[str, Any]:
    """Values in transit: what belongs to a batch on the rank of the number that has it, anything else on all."""
    dependent, slots = slots_of_rounds(compiled.program), dict(states[0]["slots"])
    for name in slots:
        source = dependent.get(renaming.slot(name))
        if source is None:
            continue
        batches = states[0]["progress"].get(_former(renaming, source), {}).get(ROUND, 1) if before > 1 else 1
        if batches > world_size:
            raise CheckpointError(
                f"{checkpoint.path} was made while {batches} ranks had a batch each in `{name}`, and there are "
                f"{_ranks(world_size)} now",
                f"resume with {batches} processes or more, or from a checkpoint that was made between two batches",
            )
        slots[name] = states[rank]["slots"].get(name) if rank < batches else None
    return slots


def _means(states: Mapping[int, Sections], rank: int) -> dict[str, Any]:
    """The sums of all ranks on rank 0, none on the others."""
    of_ranks = [states[number]["metrics"] for number in sorted(states)]
    horizons = {name: {horizon for state in of_ranks for horizon in state.get(name, {})} for name in of_ranks[0]}
    return {
        name: {
            horizon: added(state.get(name, {}).get(horizon, {}) for state in of_ranks) if rank == 0 else {}
            for horizon in sorted(names, key=list(of_ranks[0][name]).index)
        }
        for name, names in horizons.items()
    }


def _of_rank_0(checkpoint: Checkpoint, compiled: CompiledGraph) -> list[str]:
    """What was not the same on all ranks, of which rank 0's is taken: buffers, and what has changed since `setup`."""
    if checkpoint.ranks == 1:
        return []
    places = checkpoint.manifest.tensors
    own = [
        f"{name}.{tensor}"
        for name in compiled.state.objects.modules
        for tensor, value in checkpoint.sections["resources"].get(name, {}).items()
        if isinstance(value, torch.Tensor) and tensor not in places.get(name, {})
    ]
    drift = ["what has changed since `setup`"] if checkpoint.manifest.own_drift else []
    taken = [*([quoted(own, _SHOWN)] if own else []), *drift]
    return [f"{' and '.join(taken)} of rank 0"] if taken else []
