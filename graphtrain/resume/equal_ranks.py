"""Compare what must be equal on all ranks: graph, settings, versions, data and weights, before anything trains."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from graphtrain.data.fingerprint import fingerprints
from graphtrain.errors import RanksDivergedError, UsageError
from graphtrain.graph import EditableGraph
from graphtrain.program.agreement import Agreement
from graphtrain.resume.hyper_parameters import encoded
from graphtrain.state.content import content_hash
from graphtrain.version import __version__

_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")


def require_equal(
    agreement: Agreement,
    graph: EditableGraph,
    resources: Mapping[str, Any],
    settings: Mapping[str, Any],
    hyper_parameters: Mapping[str, Mapping[str, Any]],
    *,
    begins: bool = True,
) -> None:
    """Compare what ranks begin with. `begins` is False for resources that are added later: their buffers may differ.

    Raises:
        UsageError: they differ. All ranks raise it, with the first name that differs.
    """
    if agreement.world_size == 1:
        return
    values = {
        "the version of graphtrain": __version__,
        "the version of torch": str(torch.__version__),
        "the name of the graph": graph.name,
        **{f"the graph, line {number}": line for number, line in enumerate(graph.to_toml().splitlines(), 1)},
        **{f"`{name}`": encoded(value) for name, value in settings.items()},
        **{f"`{of}.{name}`": value for of, named in hyper_parameters.items() for name, value in named.items()},
        **{
            f"the {fact} of `{name}`": value
            for name, facts in fingerprints(resources).items()
            for fact, value in facts.items()
        },
        **_weights(resources, with_buffers=begins),
    }
    if different := first_difference(agreement.gather(values)):
        raise UsageError(
            different,
            "start all ranks with the same command, script, environment, files and data, and create models with the "
            "same seed: a command seeds Python, NumPy and torch before setup() is called",
        )


def require_equal_weights(agreement: Agreement, resources: Mapping[str, Any]) -> None:
    """Compare the parameters of all ranks; if they differ, all ranks raise a RanksDivergedError."""
    if agreement.world_size == 1:
        return
    if different := first_difference(agreement.gather(_weights(resources, with_buffers=False))):
        raise RanksDivergedError(
            different, "code that changes weights must do the same on all ranks, without random numbers or batches"
        )


def first_difference(of_ranks: Sequence[Mapping[str, Any]]) -> str:
    """The first name whose value differs between ranks, in words; empty if none does."""
    for name in dict.fromkeys(itertools.chain(*of_ranks)):
        texts = [repr(each[name]) if name in each else "nothing" for each in of_ranks]
        if other := next((rank for rank, text in enumerate(texts) if text != texts[0]), 0):
            return f"ranks differ in {name}: {texts[0]} on rank 0; {texts[other]} on rank {other}"
    return ""


def _tensors(resources: Mapping[str, Any], *, with_buffers: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters and buffers of every module, by their paths."""
    for resource, module in resources.items():
        if isinstance(module, torch.nn.Module):
            for name, tensor in (*module.named_parameters(), *(module.named_buffers() if with_buffers else ())):
                yield f"{resource}.{name}", tensor


def _weights(resources: Mapping[str, Any], *, with_buffers: bool) -> dict[str, str]:
    """Name -> dtype, shape and a hash of the values; for a sharded tensor, whose parts differ, its placements."""
    values = {}
    for name, tensor in _tensors(resources, with_buffers=with_buffers):
        content = getattr(tensor, "placements", None) or content_hash(tensor.detach(), most_bytes=tensor.nbytes)[:8]
        values[f"`{name}`"] = f"{tensor.dtype} {list(tensor.shape)} {content}".removeprefix("torch.")
    return values


def prepare_models(agreement: Agreement, resources: Mapping[str, Any]) -> None:
    """Refuse models that several ranks cannot train, and prepare those that `fully_shard` has sharded."""
    for path, tensor in _tensors(resources):
        if is_lazy(tensor):
            raise UsageError(
                f"`{path}` is not initialized yet, and each rank would initialize it differently at its first batch",
                "pass a batch through the model in setup(), before creating the optimizer",
            )
        if hasattr(tensor, "placements"):
            from graphtrain.ranks.sharded import refuse_meshes  # which few runs need

            refuse_meshes(path, tensor, agreement.world_size)
            agreement.sharded = True
    for name, value in resources.items():
        if agreement.sharded and isinstance(value, torch.optim.LBFGS):
            raise UsageError(
                f"`{name}` is a torch.optim.LBFGS, which takes all weights as one vector, and a model is sharded",
                "use an optimizer that updates each weight by itself, such as AdamW; or leave fully_shard out",
            )
        modules = [*value.modules()] if isinstance(value, torch.nn.Module) else []
        bases = {base.__name__ for part in modules for base in type(part).__mro__}
        if wrapper := next(filter(bases.__contains__, _WRAPPERS), None):
            raise UsageError(
                f"`{name}` is wrapped in {wrapper}, which exchanges gradients in an order that no resume repeats",
                "supply the plain model, whose gradients the node `exchange` sums; or shard it with "
                "`fully_shard(model, mesh=run.mesh)` from torch.distributed.fsdp, in a setup(run)",
            )
        if agreement.sharded and modules:
            from graphtrain.ranks.sharded import sum_gradients

            sum_gradients(value)
