"""What must be equal on all ranks: graph, settings, versions, data and weights; compared before anything trains.

Ranks compare one hash first. Only if it differs do they gather all lines, and the error names the first that differs.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

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
from graphtrain.version import __version__

_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")

_COMMAND = "start all ranks with the same command, script, environment and files"
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
    versions = {"the version of graphtrain": __version__, "the version of torch": str(torch.__version__)}
    lines_of_graph = {f"the graph, line {n}": line for n, line in enumerate(graph.to_toml().splitlines(), 1)}
    data, weights = dict(_lines_of_data(resources)), _hashes(resources, with_buffers=begins)
    lines = {**versions, "the name of the graph": graph.name, **lines_of_graph, **_flat(settings)}
    different = _first_difference(agreement, {**lines, **_flat(hyper_parameters), **data, **weights})
    if different:
        name = different.partition(": ")[0]
        raise UsageError(
            f"ranks differ in {different}", _DATA if name in data else _WEIGHTS if name in weights else _COMMAND
        )


def require_equal_weights(agreement: Agreement, resources: Mapping[str, Any]) -> None:
    """Compare the parameters of all ranks, when a run begins and ends.

    Raises:
        RanksDivergedError: they differ; raised on all ranks.
    """
    if agreement.world_size == 1:
        return
    if different := _first_difference(agreement, _hashes(resources, with_buffers=False)):
        raise RanksDivergedError(
            f"ranks differ in {different}",
            "code that changes weights must do the same on all ranks: it must not draw random numbers or read the "
            "batch of one rank",
        )


def _first_difference(agreement: Agreement, lines: Lines) -> str:
    """The first line that is not the same on all ranks, with every value and its ranks; empty if all are."""
    digest = hashlib.blake2b(json.dumps(lines).encode(), digest_size=8).digest()
    if all(record.digest == digest for record in agreement.synchronise("start", Record(digest=digest))):
        return ""
    of_ranks = agreement.gather(lines)
    for name in dict.fromkeys(name for lines in of_ranks for name in lines):
        ranks: dict[str, list[str]] = {}
        for rank, of_rank in enumerate(of_ranks):
            ranks.setdefault(repr(of_rank[name]) if name in of_rank else "nothing", []).append(str(rank))
        if len(ranks) > 1:
            return f"{name}: " + "; ".join(f"{value} on rank {', '.join(which)}" for value, which in ranks.items())
    return ""


def _tensors(resources: Mapping[str, Any], *, with_buffers: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters and buffers of every module, by their paths."""
    for resource, module in resources.items():
        if isinstance(module, torch.nn.Module):
            buffers = module.named_buffers() if with_buffers else ()
            for name, tensor in itertools.chain(module.named_parameters(), buffers):
                yield f"{resource}.{name}", tensor


def _hashes(resources: Mapping[str, Any], *, with_buffers: bool) -> Lines:
    """The form of each tensor and a hash of its bytes, by its name; of a sharded one, whose parts differ, the form."""
    lines = {}
    for name, tensor in _tensors(resources, with_buffers=with_buffers):
        value = f"{tensor.dtype} {list(tensor.shape)} ".removeprefix("torch.")
        if _is_sharded(tensor):
            value += f"sharded {tensor.placements}"  # type: ignore[attr-defined]
        else:
            value += content_hash(tensor.detach(), most_bytes=tensor.nbytes)[:8]
        lines[f"`{name}`"] = value
    return lines


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
        yield from ((f"the {fact} of `{name}`", value) for fact, value in fingerprint(data).items())


def _flat(values: Mapping[str, Any], outer: str = "") -> Lines:
    lines: Lines = {}
    for name, value in values.items():
        path = f"{outer}{name}"
        if isinstance(value, Mapping):
            lines |= _flat({str(key): inner for key, inner in value.items()}, f"{path}.")
        else:
            lines[f"`{path}`"] = encoded(value)
    return lines


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
            wrapper = next((kind.__name__ for kind in type(part).__mro__ if kind.__name__ in _WRAPPERS), None)
            if wrapper is not None:
                raise UsageError(
                    f"`{name}` is wrapped in {wrapper}, which exchanges gradients in an order that no resume repeats",
                    "supply the plain model: gradients are exchanged at the node `exchange`, once a window; or shard "
                    "it with `fully_shard(model, mesh=run.mesh)` from torch.distributed.fsdp, in a setup(run)",
                )
        if agreement.sharded and isinstance(module, torch.optim.LBFGS):
            raise UsageError(
                f"`{name}` is a torch.optim.LBFGS, which takes all weights as one vector, and a model is sharded",
                "use an optimizer that updates each weight by itself, such as AdamW; or leave fully_shard out",
            )
        if agreement.sharded and isinstance(module, torch.nn.Module):
            from graphtrain.ranks.sharded import sum_gradients

            sum_gradients(module)
