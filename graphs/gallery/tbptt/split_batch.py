"""Truncated backpropagation through time: splits of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from graphtrain import Above, UsageError, lazy_import, node, progress

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


@node(writes=("batch_split", "split_index"), synchronises=True, family="data")
class SplitBatch:
    """Take the next split of `batch`; an edge leads back here while there are splits `left`.

    Tensors are split along one dimension, also inside tuples, lists and dicts; values without this dimension are passed
    whole. A split is a view of the batch, and the last one may be shorter. Slots written by a step function, such as a
    hidden state, are passed from split to split, detached.

    With several ranks, the number of splits is the largest of any rank's batch. A rank with no split left takes part in
    everything else, and contributes zero gradients. Where a window is discarded, as with `fp16`, the rest of its batch
    is not trained on.

    Source: Williams and Peng, "An efficient gradient-based algorithm for on-line training of recurrent network
    trajectories", 1990. The graph `tbptt` uses this kind.

    Reads:
        batch: the batch to split.
        batches: number of batches so far; when it changes, the first split is next.

    Arguments:
        dimension: dimension along which to split. Default: 1, the time dimension of batch-first data.
        length: length of a split. A batch keeps the length with which it began; a changed value applies to the next
            batch. Default: 32.

    Writes:
        batch_split: the split; None on a rank that has none left.
        split_index: index of the split in the batch, from 0; a step function can take it as an argument.

    Guard fields:
        left: the batch has another split.
        index, count: splits taken from the batch, and their total number.

    Raises:
        UsageError: a batch has nothing to split, or tensors of different lengths.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("tbptt").set("split_batch", dimension=0, length=3)
    >>> graph.check()
    []
    """

    dimension: Annotated[int, Above(-1)] = 1
    length: Annotated[int, Above(0)] = 32

    index: int = progress(0)
    count: int = progress(0)
    left: bool = progress(False)
    size: int = progress(0)  # `length` when the batch was begun
    of_batch: int = progress(-1)
    # Of several ranks: up to which of them have a batch, and whether this one has no split.
    round_batches: int = progress(1, in_digest=False)
    idle: bool = progress(False, in_digest=False)

    def setup(self, ranks: Any = None) -> None:
        self._ranks = ranks

    def __call__(self, batch: Any, batches: int) -> tuple[Any, int]:
        if batches != self.of_batch:
            self.index, self.size, self.of_batch = 0, self.length, batches
            own = 0 if batch is None else self._count(batch)
            counts = [own] if self._ranks is None else self._ranks.gather(own)
            self.count = max(1, *counts)
            self.round_batches = max((rank + 1 for rank, count in enumerate(counts) if count), default=0)
        index, self.index = self.index, self.index + 1
        self.left = self.index < self.count
        self.idle = self._ranks is not None and (batch is None or index >= self._count(batch))
        return None if self.idle else self._cut(batch, index * self.size), index

    def _count(self, batch: Any) -> int:
        """The number of splits of a batch."""
        sizes = {tensor.size(self.dimension) for tensor in _tensors_of(batch) if tensor.dim() > self.dimension}
        if len(sizes) != 1 or 0 in sizes:
            message = f"split_batch: the tensors of a batch have the lengths {sorted(sizes)} along dimension"
            hint = "all of them need the same; set split_batch.dimension to that of time"
            raise UsageError(f"{message} {self.dimension}", hint)
        return math.ceil(sizes.pop() / self.size)

    def _cut(self, value: Any, first: int) -> Any:
        """The part of a value from a place in time on."""
        if isinstance(value, torch.Tensor) and value.dim() > self.dimension:
            return value.narrow(self.dimension, first, min(self.size, value.size(self.dimension) - first))
        if isinstance(value, dict):
            return {key: self._cut(item, first) for key, item in value.items()}
        if isinstance(value, tuple | list):
            parts = [self._cut(item, first) for item in value]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return value


def _tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | tuple | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_of(item)
