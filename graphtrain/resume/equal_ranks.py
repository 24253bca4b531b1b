"""What must be equal on all ranks: graph, settings, versions, data and weights; compared before anything trains.

Ranks compare one hash first. Only if it differs do they compare everything line by line, and the error names the first
line that differs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from graphtrain.data.fingerprint import fingerprint
from graphtrain.data.loaders import RankLocal, by_name, is_data
from graphtrain.errors import RanksDivergedError, UsageError
from graphtrain.graph import Graph
from graphtrain.program.agreement import Agreement
from graphtrain.ranks import Record
from graphtrain.resume.hyper_parameters import encoded
from graphtrain.state.content import content_hash
from graphtrain.storage.regular import temporary_name
from graphtrain.storage.run_directory import readable_failure
from graphtrain.storage.run_files import RunFiles
from graphtrain.version import __version__

# A file written by another host is visible within this time, or the folder is not the same.
_VISIBLE_SECONDS = 5.0
# How many elements of a tensor that differs are searched for the first difference.
_MOST_ELEMENTS = 65_536

_WRAPPERS = ("DistributedDataParallel", "DataParallel")
_FORMER = "FullyShardedDataParallel"

_COMMAND = "start all ranks with the same command, script and files"
_VERSION = "use one environment on all hosts"
_DATA = "give all ranks the same data: each of them takes its own batches of it"
_WEIGHTS = (
    "make the model from the same seed on all ranks; a command seeds Python, NumPy and torch before setup() is called, "
    "so leave the rank out of the seed"
)

_PLAIN = (torch.Tensor, torch.nn.Parameter)

Lines = dict[str, Any]
"""What is compared -> its value, as plain data."""


def require_equal(
    agreement: Agreement,
    graph: Graph,
    resources: Mapping[str, Any],
    settings: Mapping[str, Any],
    hyper_parameters: Mapping[str, Mapping[str, Any]],
    *,
    begins: bool = True,
) -> None:
    """Compare what the ranks begin with.

    Arguments:
        settings: other arguments of the trainer: its seed, the arguments of `setup`.
        begins: False for resources added later, whose buffers may already differ between ranks.

    Raises:
        UsageError: they differ; raised on all ranks, with the first line that differs and its values.
    """
    if agreement.world_size == 1:
        return
    tensors = dict(_tensors(resources, with_buffers=begins))
    lines_of_graph = {f"the graph, line {n}": line for n, line in enumerate(graph.to_toml().splitlines(), 1)}
    groups: list[tuple[str, Lines]] = [
        (_VERSION, {"the version of graphtrain": __version__, "the version of torch": str(torch.__version__)}),
        (_COMMAND, {"the name of the graph": graph.name, **lines_of_graph}),
        (_COMMAND, {**_flat(settings), **_flat(hyper_parameters)}),
        (_DATA, dict(_lines_of_data(resources))),
        (_WEIGHTS, _hashes(tensors)),
    ]
    of_ranks = _where_different(agreement, [lines for _, lines in groups])
    for (hint, _), lines in zip(groups, zip(*of_ranks, strict=True), strict=True) if of_ranks else ():
        if (name := _first_difference(lines)) is None:
            continue
        values = ["nothing" if (value := of_rank.get(name)) is None else repr(value) for of_rank in lines]
        if hint == _WEIGHTS:
            name, values = _first_weight(agreement, name, tensors)
        raise UsageError(f"ranks differ in {name}: {_by_rank(values)}", hint)


def _where_different(agreement: Agreement, value: Any) -> list[Any]:
    """The plain data that each rank passes, if it is not the same on all ranks; empty if it is."""
    digest = hashlib.blake2b(json.dumps(value).encode(), digest_size=8).digest()
    records = agreement.synchronise("start", Record(digest=digest))
    are_equal = all(record.digest == digest for record in records)
    return [] if are_equal else agreement.gather(value)


def require_equal_weights(agreement: Agreement, resources: Mapping[str, Any]) -> None:
    """Compare the parameters of all ranks, when a run begins and ends.

    Raises:
        RanksDivergedError: they differ; raised on all ranks, with the first element that differs.
    """
    if agreement.world_size == 1:
        return
    tensors = dict(_tensors(resources, with_buffers=False))
    name = _first_difference(_where_different(agreement, _hashes(tensors)))
    if name is None:
        return
    name, values = _first_weight(agreement, name, tensors)
    raise RanksDivergedError(
        f"ranks differ in {name}: {_by_rank(values)}",
        "code that changes weights must do the same on all ranks: it must not draw random numbers or read the batch "
        "of one rank",
    )


def _first_weight(agreement: Agreement, name: str, tensors: Mapping[str, torch.Tensor]) -> tuple[str, list[str]]:
    """The name of the first difference in a tensor, and its value on each rank."""
    content, tensor = None, tensors.get(name.strip("`"))
    if tensor is not None and not _is_sharded(tensor):
        elements = list(map(repr, tensor.detach().reshape(-1)[:_MOST_ELEMENTS].tolist()))
        content = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), elements]
    of_ranks = agreement.gather(content)
    forms = ["nothing" if each is None else f"{each[0]} {each[1]}" for each in of_ranks]
    if len(set(forms)) > 1:
        return name, forms
    for number, values in enumerate(zip(*(each[2] for each in of_ranks), strict=True)):
        if len(set(values)) > 1:
            index = [int(place) for place in np.unravel_index(number, of_ranks[0][1])]
            return f"`{name.strip('`')}{index or ''}`", list(values)
    return name, [f"other values after the first {_MOST_ELEMENTS}"] * len(of_ranks)


def _tensors(resources: Mapping[str, Any], *, with_buffers: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters and buffers of every module, by their paths."""
    for resource, module in resources.items():
        if isinstance(module, torch.nn.Module):
            buffers = module.named_buffers() if with_buffers else ()
            for name, tensor in itertools.chain(module.named_parameters(), buffers):
                yield f"{resource}.{name}", tensor


def _hashes(tensors: Mapping[str, torch.Tensor]) -> Lines:
    """The name of each tensor in backticks -> a hash of its bytes; the form of a sharded one, whose parts differ."""
    whole = {f"`{name}`": tensor.detach() for name, tensor in tensors.items()}
    return {
        name: f"sharded: {tensor.dtype} {tuple(tensor.shape)} {tensor.placements}"  # type: ignore[attr-defined]
        if _is_sharded(tensor)
        else content_hash(tensor, most_bytes=tensor.nbytes)
        for name, tensor in whole.items()
    }


def _is_sharded(tensor: torch.Tensor) -> bool:
    """True for a `DTensor`, whose module is imported only where there is one."""
    if type(tensor) in _PLAIN:
        return False
    from graphtrain.ranks.sharded import is_sharded

    return is_sharded(tensor)


def _lines_of_data(resources: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, data in by_name(resources):
        if not is_data(name, data):
            continue
        is_local = isinstance(data, RankLocal)
        yield f"whether `{name}` is rank_local", is_local
        if is_local:
            continue
        facts = fingerprint(data)
        yield f"the length of `{name}`", facts["length"]
        yield f"the samples of `{name}`", facts["samples"]
        yield from ((f"the {setting} of `{name}`", value) for setting, value in facts.get("settings", {}).items())


def _flat(values: Mapping[str, Any], outer: str = "") -> Lines:
    lines: Lines = {}
    for name, value in values.items():
        path = f"{outer}{name}"
        if isinstance(value, Mapping):
            lines |= _flat({str(key): inner for key, inner in value.items()}, f"{path}.")
        else:
            lines[f"`{path}`"] = encoded(value)
    return lines


def _first_difference(of_ranks: Sequence[Lines]) -> str | None:
    names = dict.fromkeys(name for lines in of_ranks for name in lines)
    return next((name for name in names if len({repr(lines.get(name)) for lines in of_ranks}) > 1), None)


def _by_rank(values: Sequence[str]) -> str:
    """Every value with the ranks that have it.

    >>> _by_rank(["3", "4", "3"])
    '3 on rank 0, 2; 4 on rank 1'
    """
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(str(rank))
    return "; ".join(f"{value} on rank {', '.join(numbers)}" for value, numbers in ranks.items())


def require_one_folder(agreement: Agreement, run_files: RunFiles) -> None:
    """Check that all ranks see the run directory that rank 0 writes.

    Raises:
        UsageError: a rank does not; raised on all ranks.
    """
    if agreement.world_size == 1:
        return
    probe = temporary_name(run_files.folder / uuid.uuid4().hex)

    def write_probe() -> str:
        with readable_failure(probe):
            probe.touch()
        return probe.name

    name = agreement.lead(write_probe)
    seen = agreement.gather(_is_visible(run_files.folder, name))
    agreement.lead(lambda: probe.unlink(missing_ok=True))
    if not all(seen):
        ranks = ", ".join(str(rank) for rank, sees in enumerate(seen) if not sees)
        raise UsageError(
            f"the run directory `{run_files.path}` of rank 0 is not the one of rank {ranks}",
            "name a folder on a file system that all hosts share, by its absolute path",
        )


def _is_visible(folder: Path, name: str) -> bool:
    """True if this rank sees a file in a folder, which on a shared file system may take a moment."""
    deadline = time.monotonic() + _VISIBLE_SECONDS
    while True:
        with suppress(OSError):
            if name in os.listdir(folder):
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)


def prepare_models(agreement: Agreement, resources: Mapping[str, Any]) -> None:
    """Refuse models that exchange gradients by themselves, and those that would begin differently on each rank.

    The backward passes of models that `fully_shard` has sharded add up gradients; the agreement is told of them.

    Raises:
        UsageError: a model or a part of it is wrapped in `DistributedDataParallel`, `DataParallel` or
            `FullyShardedDataParallel`; it is not sharded over all ranks; or it has an uninitialized parameter, which
            each rank would initialize with random numbers of its own.
    """
    for path, tensor in _tensors(resources):
        if is_lazy(tensor):
            raise UsageError(
                f"`{path}` is not initialized yet, and each rank would initialize it differently at its first batch",
                "pass a batch through the model in setup(), before the optimizer is made",
            )
        if _is_sharded(tensor):
            from graphtrain.ranks.sharded import mesh_shape, refuse_meshes  # which few runs need

            refuse_meshes(path, tensor, agreement.world_size)
            agreement.sharded, agreement.mesh = True, mesh_shape(tensor)
    for name, module in resources.items():
        for part in module.modules() if isinstance(module, torch.nn.Module) else ():
            kinds = [kind.__name__ for kind in type(part).__mro__]
            wrapper = next((kind for kind in kinds if kind in _WRAPPERS), None)
            if wrapper is not None:
                raise UsageError(
                    f"`{name}` is wrapped in {wrapper}, which would exchange gradients in every backward pass and in "
                    "an order that a resume cannot repeat",
                    "supply the plain model: gradients are exchanged at the node `exchange`, once a window",
                )
            if _FORMER in kinds:
                raise UsageError(
                    f"`{name}` is wrapped in {_FORMER}, whose state no other number of ranks can read",
                    "in a setup(run), write `for layer in model.layers: fully_shard(layer, mesh=run.mesh)` and then "
                    "`fully_shard(model, mesh=run.mesh)`, from torch.distributed.fsdp",
                )
        if agreement.sharded and isinstance(module, torch.optim.LBFGS):
            raise UsageError(
                f"`{name}` is a torch.optim.LBFGS, which takes all weights as one vector, and a model is sharded",
                "use an optimizer that updates each weight by itself, such as AdamW; or leave fully_shard out",
            )
        if agreement.sharded and isinstance(module, torch.nn.Module):
            from graphtrain.ranks.sharded import sum_gradients

            sum_gradients(module)
