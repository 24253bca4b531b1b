"""Resuming with several ranks: all take the checkpoint that rank 0 chooses; and what changes with their number.

With as many ranks as have written a checkpoint, each gets its own state back, bit for bit. With another number, all get
the state that the ranks had in common. Gradients that were not summed yet and running means are summed in the order of
ranks, for rank 0. Random generators are seeded from the seed, the micro-batches so far, and the rank. Any other state
of single ranks, such as the buffers of a batch norm, is taken from rank 0.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch

from graphtrain.data.loader import derived_seed
from graphtrain.errors import CheckpointError, GraphtrainError
from graphtrain.graph.renaming import Renaming
from graphtrain.kind.fields import IDLE, ROUND
from graphtrain.names import plainly_named, quoted
from graphtrain.program.bind import ProgramNode
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.rounds import is_fetching, slots_of_rounds
from graphtrain.program.run_state import SECTIONS
from graphtrain.program.stateful_objects import of_rank
from graphtrain.ranks import Ranks
from graphtrain.report.recorder import added
from graphtrain.resume.rank_saves import RankSaves
from graphtrain.resume.restore import GraphChange, ResumeOptions
from graphtrain.state.objects import SavedObjects
from graphtrain.state.random import RandomAside, capture_random, global_generators, seed_everything
from graphtrain.storage.checkpoint import Checkpoint, read_checkpoint
from graphtrain.storage.manifest import Manifest
from graphtrain.storage.named import existing_checkpoint
from graphtrain.storage.run_files import RunFiles
from graphtrain.storage.state_files import Sections

_SHOWN = 3
_SUMMED = (torch.Tensor, type(None))  # the gradients that a rank has, and others may have too


# ---- choosing


def choose(
    run_files: RunFiles | None, options: ResumeOptions, saves: RankSaves, objects: SavedObjects
) -> Checkpoint | None:
    """The checkpoint to resume from; None to begin. Several ranks take the one that rank 0 chooses.

    Arguments:
        objects: in which it will be loaded.

    Raises:
        UsageError: the run directory holds a run, and `resume` is "never"; or there is no such checkpoint.
        CheckpointError: the checkpoint that was named is not sound. An error on rank 0 is raised on all ranks.
    """
    ranks = saves.ranks
    world_size, mesh = ranks.world_size, saves.agreement.mesh

    def read(path: Path, manifest: Manifest | None) -> Checkpoint:
        copied = objects.copying() - SECTIONS.keys()  # the file of a section has what is in the section too
        return read_checkpoint(path, manifest, ranks.rank, world_size, mesh, copied=copied)

    if run_files is not None:
        run_files.read = read
    return _followed(run_files, saves, read) if ranks.rank else _chosen(run_files, options, saves, read)


def _chosen(
    run_files: RunFiles | None,
    options: ResumeOptions,
    saves: RankSaves,
    read: Callable[[Path, Manifest | None], Checkpoint],
) -> Checkpoint | None:
    """The checkpoint that rank 0 chooses, among those that all ranks can read."""
    agreement, ranks = saves.agreement, saves.ranks

    def read_by_all(path: Path, manifest: Manifest | None) -> Checkpoint:
        agreement.gather({"try": str(path)})
        try:
            checkpoint = read(path, manifest)
        except CheckpointError as error:
            agreement.gather(error.message)
            raise
        of_ranks = agreement.gather(_sums(checkpoint, ranks))
        for rank, sums in enumerate(of_ranks):
            if isinstance(sums, str):  # a problem
                raise CheckpointError(f"rank {rank}: {sums}")
        if of_ranks[0]:
            from graphtrain.storage.resharded import compare_sums  # which few checkpoints need

            compare_sums(checkpoint.path, checkpoint.manifest, of_ranks)
        return checkpoint

    problem, checkpoint = None, None
    try:
        if run_files is not None:
            run_files.read = read_by_all
            checkpoint = run_files.find(options.resume)
        elif options.is_named:
            checkpoint = read_checkpoint(existing_checkpoint(options.resume))
            if max(checkpoint.ranks, saves.ranks.world_size) > 1:  # it is read again, as each process needs it
                checkpoint = read_by_all(checkpoint.path, checkpoint.manifest)
    except GraphtrainError as error:
        problem = error
    finally:
        if run_files is not None:
            run_files.read = read

    def decision() -> dict[str, Any]:
        if problem is not None:
            raise problem
        return {"run": uuid.uuid4().hex[:12], "begins": checkpoint is None}

    agreement.gather({})
    saves.run = agreement.lead(decision)["run"]
    return checkpoint


def _followed(
    run_files: RunFiles | None, saves: RankSaves, read: Callable[[Path, Manifest | None], Checkpoint]
) -> Checkpoint | None:
    """The checkpoint that rank 0 has chosen."""
    agreement, checkpoint = saves.agreement, None
    while True:
        message = agreement.gather({})[0]
        if not message:
            chosen = agreement.lead(dict)
            saves.run = chosen["run"]
            return None if chosen["begins"] else checkpoint
        path = Path(message["try"])
        if run_files is not None and (run_files.checkpoints / path.name).is_dir():
            path = run_files.checkpoints / path.name  # where this rank sees the run directory
        checkpoint = None
        try:
            checkpoint = read(path, None)
        except CheckpointError as error:
            agreement.gather(error.message)
        else:
            agreement.gather(_sums(checkpoint, saves.ranks))


def _sums(checkpoint: Checkpoint, ranks: Ranks) -> dict[str, dict[str, str]]:
    """What a rank contributes to the digests by which pieces are compared that it has not read by whole files."""
    if not checkpoint.manifest.sharded or checkpoint.ranks == ranks.world_size:
        return {}
    from graphtrain.storage.resharded import sums_of_pieces  # which few checkpoints need

    return sums_of_pieces(checkpoint.sections, ranks.rank)


# ---- another number of ranks


def resized(
    checkpoint: Checkpoint, compiled: CompiledGraph, ranks: Ranks, seed: int, rename: Mapping[str, str]
) -> tuple[Checkpoint, str]:
    """A checkpoint for a rank, of another number of ranks than have written it; and what changes, in words.

    Arguments:
        seed: that of the run.
        rename: as in `ResumeOptions`. The checkpoint returned has the saved names.

    Raises:
        UsageError: `rename` names no node.
        CheckpointError: more batches are in use than there are ranks.
    """
    renaming = GraphChange.of(checkpoint, compiled.graph, rename).renaming
    return _Resized(checkpoint, compiled, renaming, ranks.rank, ranks.world_size).checkpoint(seed)


def _ranks(number: int) -> str:
    return f"{number} {'process' if number == 1 else 'processes'}"


@final
class _Resized:
    """A checkpoint written by one number of ranks, for another."""

    def __init__(
        self, checkpoint: Checkpoint, compiled: CompiledGraph, renaming: Renaming, rank: int, world_size: int
    ) -> None:
        self._checkpoint, self._compiled, self._renaming = checkpoint, compiled, renaming
        self._rank, self._world_size, self._before = rank, world_size, checkpoint.ranks
        states: Mapping[int, Sections] = checkpoint.others or {0: checkpoint.sections}
        self._states = {number: states[number] for number in sorted(states)}
        self._nodes = compiled.program.nodes

    def checkpoint(self, seed: int) -> tuple[Checkpoint, str]:
        """The checkpoint, and what changes, in words."""
        first, exchanged = self._checkpoint.sections, self._exchanged()
        with RandomAside(global_generators()):
            fetching = [self._former(node) for node in self._nodes if is_fetching(node)]
            batches = sum(int(first["progress"].get(path, {}).get("batches", 0)) for path in fetching)
            seed_everything(derived_seed(seed, batches, self._rank))
            drawn = capture_random()
        sections = {
            **first,
            "gradients": self._gradients(exchanged),
            "progress": self._progress(exchanged),
            "slots": self._slots(),
            "metrics": self._means(),
            "random": {**first["random"], **drawn},
        }
        facts = ["other random numbers", *self._of_rank_0()]
        held = [each for gradients in sections["gradients"].values() for each in gradients.values()]
        if any(type(each) in _SUMMED for each in held) and not exchanged:
            facts.append("gradients of the open window are summed")
        resized = replace(self._checkpoint, sections=sections)
        return resized, f"{_ranks(self._world_size)} instead of {self._before} ({', '.join(facts)})"

    def _former(self, node: ProgramNode) -> str:
        """The path that a node was saved under."""
        return self._renaming.former(node.path) or node.path

    def _exchanged(self) -> set[str]:
        """The optimizers whose gradients were summed over ranks already.

        One process sums none; then it follows from the position, whether they are stepped or summed next.
        """
        exchanged, progress = set(), self._checkpoint.sections["progress"]
        for name in self._exchanging():
            saved = [(progress.get(self._former(node)), field) for node, field in self._exchanged_fields(name)]
            flags = [fields.get(field) for fields, field in saved if fields is not None]
            if any(flags) if self._before > 1 and flags else self._is_behind_exchange(name):
                exchanged.add(name)
        return exchanged

    def _exchanging(self) -> set[str]:
        """The optimizers whose gradients some node sums over ranks."""
        actions = [action for node in self._nodes for action in node.plan_node.actions]
        return {name for action in actions if action.effect == "exchange" for name in action.optimizers}

    def _exchanged_fields(self, optimizer: str) -> list[tuple[ProgramNode, str]]:
        """The nodes that count the windows of an optimizer, with the field that is true once ranks have summed."""
        return [
            (node, field.exchanged)
            for node in self._nodes
            for field in node.kind.fields.values()
            if field.exchanged is not None and optimizer in node.plan_node.optimizers
        ]

    def _is_behind_exchange(self, optimizer: str) -> bool:
        """True if the gradients that an optimizer has at the position are stepped before they are summed."""
        path = self._renaming.path(self._checkpoint.manifest.position)
        waiting = list(self._compiled.liveness.flow.entries.get(path, ())[:1])
        seen = set(waiting)
        while waiting:
            point = waiting.pop()
            actions = point.plan_node.actions if point.plan_node is not None else ()
            effects = [action.effect for action in actions if optimizer in action.optimizers]
            if "step" in effects and "exchange" not in effects:
                return True
            if "exchange" not in effects and "zero_grad" not in effects:
                following = [arrow.target for arrow in point.arrows if arrow.target not in seen]
                seen.update(following)
                waiting += following
        return False

    def _gradients(self, exchanged: set[str]) -> dict[str, dict[str, torch.Tensor]]:
        """The gradients that were summed over ranks, on every rank; the sum of all others on rank 0."""
        optimizers = [self._compiled.program.resources.get(name) for name in exchanged]
        summed = {
            id(parameter)
            for optimizer in optimizers
            if isinstance(optimizer, torch.optim.Optimizer)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        modules, of_ranks = self._compiled.state.objects.modules, [each["gradients"] for each in self._states.values()]
        gradients: dict[str, dict[str, torch.Tensor]] = {}
        for name, of_first in of_ranks[0].items():
            parameters = dict(plainly_named(modules[name].named_parameters())) if name in modules else {}
            of_module = gradients[name] = {}
            for path in dict.fromkeys(path for each in of_ranks for path in each.get(name, {})):
                # Every backward pass has added up those of a sharded parameter.
                if type(of_first.get(path)) not in _SUMMED or (path in parameters and id(parameters[path]) in summed):
                    if path in of_first:
                        of_module[path] = of_first[path]
                elif self._rank == 0:
                    parts = [each.get(name, {}).get(path) for each in of_ranks]
                    of_module[path] = _sum([part for part in parts if part is not None])
        return gradients

    def _progress(self, exchanged: set[str]) -> dict[str, Mapping[str, Any]]:
        """That of rank 0; only whether gradients were summed, and the last round, depend on the ranks.

        Fields that belong to gradients are summed for rank 0; fields of single ranks are kept on rank 0 alone. Nodes
        that only several ranks need, such as `exchange`, have no progress in one process.
        """
        rank, states = self._rank, self._states
        of_ranks = [node for node in self._nodes if "ranks" in node.kind.optional and not node.bypassed]
        fresh = {
            self._former(node): {
                name: getattr(node.instance, name) for name, field in node.kind.fields.items() if field.stored
            }
            for node in of_ranks
        }
        changed: dict[str, dict[str, Any]] = {
            path: dict(fields) for path, fields in {**fresh, **states[0]["progress"]}.items()
        }
        for node in self._nodes:
            path = self._former(node)
            if (fields := changed.get(path)) is None:
                continue
            if (is_fetching(node) or ROUND in node.kind.fields) and 1 in (self._before, self._world_size):
                fields[ROUND] = 1
            if IDLE in node.kind.fields:
                fields[IDLE] = rank in states and states[rank]["progress"].get(path, {}).get(IDLE, False)
            for name in of_rank(node) if rank else ():
                fields.pop(name, None)
            for field in [field for field in node.kind.fields.values() if field.with_gradients]:
                parts = [state["progress"][path].get(field.name, field.default) for state in states.values()]
                fields[field.name] = sum(parts[1:], parts[0]) if rank == 0 else field.default
        for name in self._exchanging():
            for node, exchanged_field in self._exchanged_fields(name):
                if (path := self._former(node)) in changed:
                    changed[path][exchanged_field] = self._world_size > 1 and name in exchanged
        return dict(changed)

    def _slots(self) -> dict[str, Any]:
        """The values of slots: those of a batch on the rank that had it, all others on every rank."""
        dependent, slots = slots_of_rounds(self._compiled.program), dict(self._states[0]["slots"])
        for name in slots:
            source = dependent.get(self._renaming.slot(name))
            if source is None:
                continue
            fields = self._states[0]["progress"].get(self._former(source), {})
            batches = fields.get(ROUND, 1) if self._before > 1 else 1
            if batches > self._world_size:
                raise CheckpointError(
                    f"{self._checkpoint.path} was made while {batches} ranks had a batch each in `{name}`, but there "
                    f"are {_ranks(self._world_size)} now",
                    f"resume with {batches} processes or more, or from a checkpoint that was made between two batches",
                )
            # A rank without a batch runs a sharded model with the first of the round.
            stands_in = (
                bool(self._checkpoint.manifest.sharded) and self._renaming.slot(name) in source.plan_node.own_writes
            )
            if self._rank < batches or not stands_in:
                slots[name] = self._states[self._rank]["slots"].get(name) if self._rank < batches else None
        return slots

    def _means(self) -> dict[str, Any]:
        """The sums of all ranks on rank 0, none on the others."""
        of_ranks = [state["metrics"] for state in self._states.values()]
        horizons = {name: {horizon for state in of_ranks for horizon in state.get(name, {})} for name in of_ranks[0]}
        return {
            name: {
                horizon: added(state.get(name, {}).get(horizon, {}) for state in of_ranks) if self._rank == 0 else {}
                for horizon in sorted(names, key=list(of_ranks[0][name]).index)
            }
            for name, names in horizons.items()
        }

    def _of_rank_0(self) -> list[str]:
        """What differed between ranks and is taken from rank 0, in words: buffers, and what changed since `setup`."""
        if self._before == 1:
            return []
        manifest, saved = self._checkpoint.manifest, self._checkpoint.sections["resources"]
        buffers = [
            f"{name}.{tensor}"
            for name in self._compiled.state.objects.modules
            for tensor, value in saved.get(name, {}).items()
            if isinstance(value, torch.Tensor) and tensor not in manifest.tensors.get(name, {})
        ]
        drift = ["what has changed since `setup`"] if manifest.own_drift else []
        taken = [*([quoted(buffers, _SHOWN)] if buffers else []), *drift]
        return [f"{' and '.join(taken)} of rank 0"] if taken else []


def _sum(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return functools.reduce(torch.add, parts)
