"""Autograd graphs kept by tensors, of which checkpoints hold only the values."""

from __future__ import annotations

from typing import Any

import torch

KEEPS_GRAPH = "keeps a graph of operations, which is not saved: detach it"
_MOST_NODES = 1_000


def keeps_graph(tensor: torch.Tensor) -> bool:
    """True for a tensor from which a backward pass can still reach a parameter.

    False if an operation has freed its saved values: then the tensor is kept only for its value. Of a very large graph,
    only the 1,000 operations nearest to the tensor are examined.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> kept = (weight * weight).sum()
    >>> keeps_graph(kept), keeps_graph(kept.detach()), kept.backward(), keeps_graph(kept)
    (True, False, None, False)
    """
    operations: list[Any] = [tensor.grad_fn] if tensor.grad_fn is not None else []
    known, reaches_a_leaf = set(operations), False
    for operation in operations:  # which grows
        if _has_been_freed(operation):
            return False
        reaches_a_leaf |= getattr(getattr(operation, "variable", None), "requires_grad", False)
        for next_operation, _ in operation.next_functions:
            if next_operation is not None and next_operation not in known and len(operations) < _MOST_NODES:
                known.add(next_operation)
                operations.append(next_operation)
    return reaches_a_leaf


def _has_been_freed(operation: Any) -> bool:
    """True for an operation whose saved values a backward pass has freed: reading them fails."""
    try:
        for name in (each for each in dir(operation) if each.startswith("_raw_saved_")):
            raw = getattr(operation, name)
            # A hook, such as that of activation checkpointing, would compute the value again.
            if all(getattr(each, "unpack_hook", None) is None for each in (raw if isinstance(raw, tuple) else (raw,))):
                getattr(operation, name.removeprefix("_raw"), None)
    except RuntimeError:
        return True
    return False
