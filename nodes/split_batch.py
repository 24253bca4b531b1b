"""Splitting a batch along time, to train on each split: truncated backpropagation through time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

from graphtrain.data.batch import mapped
from graphtrain.errors import UsageError
from graphtrain.kind import node, progress
from graphtrain.kind.parameter import Above
from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    import torch

    from graphtrain.program.agreement import Agreement
else:
    torch = lazy_import("torch")


@node(writes=("batch_split", "split_index"), synchronises=True, family="data")
class SplitBatch:
    """Take the next split of `batch`; an edge leads back here while there are splits `left`.

    Tensors are split along one dimension, also inside tuples, lists, dicts and dataclasses; values without this
    dimension are passed whole. A split is a view of the batch, and the last one may be shorter. Slots written by a step
    function, such as a hidden state, are passed from split to split, detached.

    With several ranks, the number of splits is the largest of any rank's batch. A rank with no split left takes part in
    everything else, and contributes zero gradients.

    Source: Williams and Peng, "An efficient gradient-based algorithm for on-line training of recurrent network
    trajectories", 1990.

    Reads:
        batch: the batch to split.
        batch_splits: a function that takes a batch and returns its splits in order, the same for every call. Default:
            split by `length`.

    Arguments:
        dimension: dimension along which to split; negative values count from the last. Default: 1, the time dimension
            of batch-first data.
        length: length of a split. Default: none, `batch_splits` is used. A batch keeps the length with which it began;
            a changed value applies to the next batch.

    Writes:
        batch_split: the split; None on a rank that has none left.
        split_index: index of the split in the batch, from 0; a step function can take it as an argument.

    Guard fields:
        left: the batch has another split.
        index, count: splits taken from the batch, and their total number.

    Raises:
        UsageError: not exactly one of `length` and `batch_splits` is given; a batch has nothing to split, or tensors of
            different lengths; or the function returned no splits.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("split_batch").set("split_batch", dimension=0, length=3)
    >>> graph.check()
    []
    """

    dimension: int = 1
    length: Annotated[int, Above(0)] | None = None

    index: int = progress(0)
    count: int = progress(0)
    left: bool = progress(False)
    size: int = progress(0)  # `length` when the batch was begun; 0: there was none
    # Of several ranks: up to which of them have a batch, and whether this one has no split.
    round_batches: int = progress(1, in_digest=False)
    idle: bool = progress(False, in_digest=False)

    _ranks: Agreement | None
    _function: Callable[[Any], Iterable[Any]] | None
    _splits: list[Any] | None  # that the function returned for the batch

    def setup(self, ranks: Agreement | None = None, batch_splits: Callable[[Any], Iterable[Any]] | None = None) -> None:
        if self.length is None and batch_splits is None:
            raise UsageError(
                "split_batch.length is not set, and there is no `batch_splits`",
                "set split_batch.length=35, or supply a function `batch_splits(batch)` that returns the splits",
            )
        if self.length is not None and batch_splits is not None:
            raise UsageError(
                f"split_batch.length = {self.length}, and a function `batch_splits` cuts batches too",
                "leave one of them out",
            )
        self._ranks, self._function, self._splits = ranks, batch_splits, None

    def __call__(self, batch: Any) -> tuple[Any, int]:
        if not self.left:
            self._begin(batch)
        index, self.index = self.index, self.index + 1
        self.left = self.index < self.count
        if self._ranks is not None:
            self.idle = batch is None or index >= self._count(batch)
            if self.idle:
                return None, index
        return self._split(batch, index), index

    @property
    def _length(self) -> int | None:
        """By which the batch is cut; None: by the function."""
        return self.size or (self.length if self._function is None else None)

    def _begin(self, batch: Any) -> None:
        self._splits, self.size = None, self.length or 0
        if self._ranks is None:
            counts = [self._count(batch)]
        else:
            counts = self._ranks.gather(0 if batch is None else self._count(batch))
        self.index, self.count = 0, max(1, *counts)
        self.round_batches = max((rank + 1 for rank, count in enumerate(counts) if count), default=0)

    def _count(self, batch: Any) -> int:
        if (length := self._length) is None:
            return len(self._by_function(batch))
        sizes: set[int] = set()

        def measure(leaf: Any) -> Any:
            if self._is_cut(leaf):
                sizes.add(leaf.size(self.dimension))
            return leaf

        mapped(batch, measure)
        if len(sizes) > 1:
            raise UsageError(
                f"split_batch: the tensors of a batch are {' and '.join(map(str, sorted(sizes)))} long along dimension "
                f"{self.dimension}, so they cannot be cut together",
                "set split_batch.dimension to that of time, or supply a function `batch_splits(batch)`",
            )
        if not sizes or not (size := sizes.pop()):
            raise UsageError(
                f"split_batch: a batch has no tensor with a length along dimension {self.dimension}",
                "set split_batch.dimension to that of time, or supply a function `batch_splits(batch)`",
            )
        return math.ceil(size / length)

    def _split(self, batch: Any, index: int) -> Any:
        if (now := self._count(batch)) <= index:
            raise UsageError(
                f"split_batch: the batch had {self.count} splits when it was begun, and has {now} now",
                "resume with the former `batch_splits` up to the next batch",
            )
        if (length := self._length) is None:
            return self._by_function(batch)[index]
        first = index * length

        def cut(leaf: Any) -> Any:
            if not self._is_cut(leaf):
                return leaf
            return leaf.narrow(self.dimension, first, min(length, leaf.size(self.dimension) - first))

        return mapped(batch, cut)

    def _is_cut(self, leaf: Any) -> bool:
        return isinstance(leaf, torch.Tensor) and -leaf.dim() <= self.dimension < leaf.dim()

    def _by_function(self, batch: Any) -> list[Any]:
        if self._splits is None:
            assert self._function is not None, "asked in setup"
            returned = self._function(batch)
            if isinstance(returned, torch.Tensor) or not isinstance(returned, Iterable):
                raise UsageError(
                    f"`batch_splits` returned a {type(returned).__name__}",
                    "it returns a list of splits, each as a batch; of a tensor, as in batch.split(35, 1)",
                )
            self._splits = list(returned)
            if not self._splits:
                raise UsageError("`batch_splits` returned no splits", "return the batch itself, as [batch]")
        return self._splits
