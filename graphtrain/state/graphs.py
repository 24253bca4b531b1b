"""Autograd graphs kept by tensors, of which checkpoints hold only the values."""

from __future__ import annotations

from typing import Any

import torch

KEEPS_GRAPH = "keeps a graph of operations, which is not saved: detach it"
_MOST_NODES = 1_000


def keeps_graph(tensor: torch.Tensor) -> bool:
    """True for a tensor through which a backward pass can still reach a parameter.

    Not if an operation has freed its saved values: then the tensor is kept only for its values. In a very large graph
    only the operations nearest to the tensor are examined.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> kept = (weight * weight).sum()
    >>> keeps_graph(kept), keeps_graph(kept.detach()), kept.backward(), keeps_graph(kept)
    (True, False, None, False)
    """
    if tensor.grad_fn is None:
        return False
    waiting: list[Any] = [tensor.grad_fn]
    known, reaches_a_leaf = {waiting[0]}, False
    for operation in waiting:  # which grows
        if _has_been_freed(operation):
            return False
        leaf = getattr(operation, "variable", None)
        reaches_a_leaf |= isinstance(leaf, torch.Tensor) and leaf.requires_grad
        further = [each for each, _ in operation.next_functions if each is not None and each not in known]
        further = list(dict.fromkeys(further))[: _MOST_NODES - len(waiting)]
        known.update(further)
        waiting += further
    return reaches_a_leaf


def computed_again(module: torch.nn.Module) -> frozenset[str]:
    """The attributes that hooks of weight_norm, spectral_norm and prune compute before every forward pass."""
    return frozenset(
        str(getattr(hook, "_tensor_name", "") or getattr(hook, "name", ""))
        for hook in module._forward_pre_hooks.values()
        if any(kind.__module__.startswith("torch.nn.utils.") for kind in type(hook).__mro__)
    )


def _has_been_freed(operation: Any) -> bool:
    """True for an operation whose saved values a backward pass has freed; reading them then fails."""
    kind = type(operation)
    for name in (each for each in dir(kind) if each.startswith("_saved_") or each == "saved_tensors"):
        raw = getattr(operation, "_raw_saved_tensors" if name == "saved_tensors" else f"_raw{name}", ())
        try:
            # A hook, such as that of activation checkpointing, would compute the value again.
            if all(getattr(each, "unpack_hook", None) is None for each in (raw if isinstance(raw, tuple) else (raw,))):
                getattr(operation, name)
        except RuntimeError:
            return True
    return False
