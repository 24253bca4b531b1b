"""Resume with several ranks: all take the checkpoint that rank 0 chooses; and with another number of ranks.

With the same number, each rank gets its state back, bit for bit. With another number, all ranks get what was equal on
all ranks, as it is between two windows. Running means are summed in the order of ranks, for rank 0. Random generators
are seeded from the seed, the micro-batches so far, and the rank. Anything else is taken from rank 0.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphtrain.data.loader import derived_seed
from graphtrain.errors import CheckpointError
from graphtrain.graph.renaming import Renaming
from graphtrain.kind.fields import ROUND
from graphtrain.program.agreement import Agreement
from graphtrain.program.bind import ProgramNode
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.gradient_windows import counters_of
from graphtrain.program.rank_visits import batch_slots
from graphtrain.ranks import Ranks
from graphtrain.report.recorder import added
from graphtrain.state.generators import PreservedRandom, capture_random, named_generators, seed_everything
from graphtrain.storage.checkpoint import Checkpoint, read_checkpoint
from graphtrain.storage.manifest import Manifest
from graphtrain.storage.named import checkpoint_folder
from graphtrain.storage.run_files import RunFiles
from graphtrain.storage.state_files import Sections


def choose(run_files: RunFiles | None, resume: str | Path, agreement: Agreement) -> tuple[Checkpoint | None, str]:
    """The checkpoint to resume from, None to begin; and a name for the run, the same on all ranks.

    All ranks take the one that rank 0 chooses, if all can read it. An error on rank 0 is raised on all ranks.
    """
    checkpoint: Checkpoint | None = None

    def read(path: Path, manifest: Manifest | None) -> Checkpoint:
        if agreement.rank == 0:
            agreement.on_rank_0(lambda: {"try": str(path)})
        return agreement.together(  # type: ignore[no-any-return]
            lambda: read_checkpoint(path, manifest, agreement.rank, agreement.world_size, together=True)
        )

    def decision() -> dict[str, Any]:
        nonlocal checkpoint
        if run_files is not None:
            checkpoint = run_files.find(resume, read)
        elif resume not in ("auto", "never"):
            checkpoint = read(checkpoint_folder(resume), None)
        return {"run": uuid.uuid4().hex[:12], "begins": checkpoint is None}

    while "try" in (message := agreement.on_rank_0(decision)):  # on other ranks than 0
        path, checkpoint = Path(message["try"]), None
        if run_files is not None and (run_files.checkpoints / path.name).is_dir():
            path = run_files.checkpoints / path.name  # where this rank sees the run directory
        with suppress(CheckpointError):
            checkpoint = read(path, None)
    return None if message["begins"] else checkpoint, message["run"]


# ---- another number of ranks


def processes(number: int, before: int = 0) -> str:
    """The number of processes in words: ``"2 processes"``, or ``"2 processes instead of 1"``."""
    return f"{number} {'process' if number == 1 else 'processes'}" + (f" instead of {before}" if before else "")


def resized(
    checkpoint: Checkpoint, compiled: CompiledGraph, ranks: Ranks, seed: int, renaming: Renaming
) -> tuple[Checkpoint, str]:
    """Adapt a checkpoint that another number of ranks has written; returns it, and what changes, in words.

    Raises:
        CheckpointError: one process has saved it in the middle of a window or a batch.
    """
    states = dict(sorted(checkpoint.rank_states.items())) or {0: checkpoint.sections}
    first, nodes = checkpoint.sections, compiled.program.nodes
    rank, before = ranks.rank, processes(checkpoint.manifest.ranks)
    former = {node.path: renaming.former(node.path) or node.path for node in nodes}
    saved = {node.path: first["progress"].get(former[node.path], {}) for node in nodes}
    fetching = [node for node in nodes if node.kind.fetches]
    fetched = {path for node in fetching for path in node.plan_node.own_writes}
    counts = [saved[node.path].get(field.name) for node, field in counters_of(compiled.program)]
    gradients = [gradient for of_module in first["gradients"].values() for gradient in of_module.values()]
    is_open = any(counts) if counts else any(gradient is not None for gradient in gradients)
    if is_open or not fetched.isdisjoint(map(renaming.slot, first["slots"])):
        raise CheckpointError(
            f"{checkpoint.path} was saved in the middle of a window or a batch by {before}, and now the number of "
            f"processes is {ranks.world_size}",
            f"resume with {before}, until there is a checkpoint between two windows",
        )
    with PreservedRandom(named_generators().values()):
        seed_everything(derived_seed(seed, sum(int(saved[node.path].get("batches", 0)) for node in fetching), rank))
        random = {**first["random"], **capture_random()}
    dependent, slots = batch_slots(compiled.program), states[0]["slots"]
    own_slots = states[rank]["slots"] if rank in states else {}
    sections = {
        **first,
        "progress": _progress(states[0], nodes, former, rank, 1 in (checkpoint.manifest.ranks, ranks.world_size)),
        # Those computed from a batch for the rank that had it, all others for every rank.
        "slots": {name: own_slots.get(name) if renaming.slot(name) in dependent else slots[name] for name in slots},
        "metrics": _means([state["metrics"] for state in states.values()], rank),
        "random": random,
    }
    differing = checkpoint.manifest.differing
    facts = "other random numbers" + (f", {differing} of rank 0" if differing else "")
    return replace(checkpoint, sections=sections), f"{processes(ranks.world_size, checkpoint.manifest.ranks)} ({facts})"


def _progress(
    state: Sections, nodes: Sequence[ProgramNode], former: Mapping[str, str], rank: int, is_one: bool
) -> dict[str, dict[str, Any]]:
    """That of rank 0; only the last round depends on the ranks, and fields of single ranks are kept on rank 0."""
    changed = {path: dict(fields) for path, fields in state["progress"].items()}
    for node in nodes:
        fields = changed.get(former[node.path], {})
        # Nodes that only several ranks need, such as `exchange`, have no progress in one process.
        if not fields and "ranks" in node.kind.optional and not node.bypassed:
            stored = [name for name, field in node.kind.fields.items() if field.stored]
            changed[former[node.path]] = fields = {name: getattr(node.instance, name) for name in stored}
        if fields and is_one and (node.kind.fetches or ROUND in node.kind.fields):
            fields[ROUND] = 1
        for name in getattr(node.kind.implementation, "of_rank", ()) if rank else ():
            fields.pop(name, None)
    return changed


def _means(of_ranks: Sequence[Mapping[str, Any]], rank: int) -> dict[str, Any]:
    """The sums over all ranks for rank 0, empty for the others."""
    means: dict[str, Any] = {}
    for name in of_ranks[0]:
        named = [sums.get(name, {}) for sums in of_ranks]
        periods = dict.fromkeys(period for sums in named for period in sums)
        means[name] = {each: added(sums.get(each, {}) for sums in named) if rank == 0 else {} for each in periods}
    return means
