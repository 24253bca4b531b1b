"""Resuming with several ranks: all take the checkpoint that rank 0 chooses; and what changes with their number.

With as many ranks as have written a checkpoint, each gets its own state back, bit for bit. With another number, all get
the state that the ranks had in common, which they have between two windows. Running means are summed in the order of
ranks, for rank 0. Random generators are seeded from the seed, the micro-batches so far, and the rank. Any other state
of single ranks, such as the buffers of a batch norm, is taken from rank 0.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch

from graphtrain.data.loader import derived_seed
from graphtrain.errors import CheckpointError, GraphtrainError
from graphtrain.graph.renaming import Renaming
from graphtrain.kind.fields import IDLE, ROUND
from graphtrain.names import quoted
from graphtrain.program.bind import ProgramNode
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.gradient_windows import counters_of
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

    return _followed(run_files, saves, read) if ranks.rank else _chosen(run_files, options, saves, read)


def _chosen(
    run_files: RunFiles | None,
    options: ResumeOptions,
    saves: RankSaves,
    read: Callable[[Path, Manifest | None], Checkpoint],
) -> Checkpoint | None:
    """The checkpoint that rank 0 chooses, among those that all ranks can read."""
    agreement = saves.agreement

    def read_by_all(path: Path, manifest: Manifest | None) -> Checkpoint:
        agreement.gather({"try": str(path)})
        try:
            checkpoint = read(path, manifest)
        except CheckpointError as error:
            agreement.gather(error.message)
            raise
        for rank, wrong in enumerate(agreement.gather("")):
            if wrong:
                raise CheckpointError(f"rank {rank}: {wrong}")
        return checkpoint

    problem, checkpoint = None, None
    try:
        if run_files is not None:
            checkpoint = run_files.find(options.resume, read_by_all)
        elif options.is_named:
            checkpoint = read_checkpoint(existing_checkpoint(options.resume))
            if max(checkpoint.ranks, saves.ranks.world_size) > 1:  # it is read again, as each process needs it
                checkpoint = read_by_all(checkpoint.path, checkpoint.manifest)
    except GraphtrainError as error:
        problem = error

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
            agreement.gather("")


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
        CheckpointError: it was made in the middle of a window or a batch.
    """
    renaming = GraphChange.of(checkpoint, compiled.graph, rename).renaming
    return _Resized(checkpoint, compiled, renaming, ranks.rank, ranks.world_size).checkpoint(seed)


def processes(number: int) -> str:
    """How many there are, in words."""
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
        self._refuse_what_is_open()
        first = self._checkpoint.sections
        with RandomAside(global_generators()):
            fetching = [self._former(node) for node in self._nodes if is_fetching(node)]
            batches = sum(int(first["progress"].get(path, {}).get("batches", 0)) for path in fetching)
            seed_everything(derived_seed(seed, batches, self._rank))
            drawn = capture_random()
        sections = {
            **first,
            "progress": self._progress(),
            "slots": self._slots(),
            "metrics": self._means(),
            "random": {**first["random"], **drawn},
        }
        facts = ", ".join(["other random numbers", *self._of_rank_0()])
        resized = replace(self._checkpoint, sections=sections)
        return resized, f"{processes(self._world_size)} instead of {self._before} ({facts})"

    def _former(self, node: ProgramNode) -> str:
        """The path that a node was saved under."""
        return self._renaming.former(node.path) or node.path

    def _refuse_what_is_open(self) -> None:
        """Raise if each rank has a part of the gradients of a window, or a batch.

        Raises:
            CheckpointError: they have.
        """
        sections, counters = self._checkpoint.sections, counters_of(self._compiled.program)
        counted = [sections["progress"].get(self._former(node), {}).get(field.name) for node, field in counters]
        held = [gradient for of_module in sections["gradients"].values() for gradient in of_module.values()]
        is_open = any(counted) if counted else any(gradient is not None for gradient in held)
        fetched = {path for node in self._nodes if is_fetching(node) for path in node.plan_node.own_writes}
        if is_open or not fetched.isdisjoint(map(self._renaming.slot, sections["slots"])):
            raise CheckpointError(
                f"{self._checkpoint.path} was made in the middle of a window or a batch by {processes(self._before)}, "
                f"and there {'is' if self._world_size == 1 else 'are'} {processes(self._world_size)} now",
                f"resume with {processes(self._before)}, until there is a checkpoint between two windows, as the node "
                "`checkpoint` and a signal to several ranks make them",
            )

    def _progress(self) -> dict[str, Mapping[str, Any]]:
        """That of rank 0; only the last round depends on the ranks, and fields of single ranks are kept on rank 0.

        Nodes that only several ranks need, such as `exchange`, have no progress in one process.
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
                fields[IDLE] = False
            for name in of_rank(node) if rank else ():
                fields.pop(name, None)
        return dict(changed)

    def _slots(self) -> dict[str, Any]:
        """The values of slots: those computed from a batch on the rank that had it, all others on every rank."""
        dependent, slots = slots_of_rounds(self._compiled.program), dict(self._states[0]["slots"])
        own = self._states[self._rank]["slots"] if self._rank in self._states else {}
        return {name: own.get(name) if self._renaming.slot(name) in dependent else slots[name] for name in slots}

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
