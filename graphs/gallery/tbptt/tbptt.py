"""Truncated backpropagation through time: a recurrent network predicts the characters of Python's standard library.

    graphtrain run graphs/gallery/tbptt/tbptt.py finish.after='1 epochs'

A batch contains sequences of 256 characters. The graph `tbptt` divides them into splits of 32, with an optimizer step
for each; the hidden state is passed from split to split without gradients. `val/loss` is in nats per character, on
whole sequences of held-out files.
"""

import sysconfig
from pathlib import Path
from typing import Annotated, Any

from graphtrain import Above, UsageError, lazy_import, node, progress

torch = lazy_import("torch")
nn = lazy_import("torch.nn")
pytree = lazy_import("torch.utils._pytree")

graph = "tbptt"


@node(writes=("batch_split", "split_index"), synchronises=True, family="data")
class SplitBatch:
    """Take the next split of `batch`; an edge leads back here while there are splits `left`.

    Tensors are split along one dimension, also inside tuples, lists and dicts; values without this dimension are passed
    whole. The last split may be shorter. Slots written by a step function, such as a hidden state, are passed from
    split to split, detached. With several ranks, the number of splits is the largest of any rank's batch.
    Source: Williams and Peng, "An efficient gradient-based algorithm for on-line training of recurrent network
    trajectories", 1990.

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
    round_batches: int = progress(1, in_digest=False)  # the ranks up to the last one with a batch
    idle: bool = progress(False, in_digest=False)  # this rank has no split left

    def setup(self, ranks: Any = None) -> None:
        self._ranks = ranks

    def __call__(self, batch: Any, batches: int) -> tuple[Any, int]:
        if batches != self.of_batch:
            self.index, self.size, self.of_batch = 0, self.length, batches
            count = 0 if batch is None else self._count(batch)
            counts = [count] if self._ranks is None else self._ranks.gather(count)
            self.count = max(1, *counts)
            self.round_batches = max((rank + 1 for rank, count in enumerate(counts) if count), default=0)
        index, self.index = self.index, self.index + 1
        self.left = self.index < self.count
        self.idle = self._ranks is not None and (batch is None or index >= self._count(batch))
        return None if self.idle else pytree.tree_map(lambda leaf: self._splits(leaf)[index], batch), index

    def _splits(self, leaf: Any) -> Any:
        has_time = isinstance(leaf, torch.Tensor) and leaf.dim() > self.dimension
        return leaf.split(self.size, self.dimension) if has_time else [leaf] * self.count

    def _count(self, batch: Any) -> int:
        shapes = [leaf.shape for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
        lengths = {shape[self.dimension] for shape in shapes if len(shape) > self.dimension}
        if len(lengths) != 1 or 0 in lengths:
            message = f"split_batch: a batch has the lengths {sorted(lengths)} along dimension {self.dimension}"
            raise UsageError(message, "all tensors need one length; set split_batch.dimension to the time dimension")
        return -(-int(lengths.pop()) // self.size)


def training_step(model: Any, batch: Any, hidden: Any = None) -> dict[str, Any]:
    """The loss and the hidden state for a split, shape (batch, time, 2): each character and the next."""
    outputs, hidden = model["recurrent"](model["embedding"](batch[:, :, 0]), hidden)
    logits = model["head"](outputs)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, :, 1].flatten())
    return {"loss": loss, "hidden": hidden}


def sequences(*modules: str) -> Any:
    """Sequences of 256 characters and their successors, from modules of the standard library."""
    library = Path(sysconfig.get_paths()["stdlib"])
    text = torch.tensor(list(b"".join((library / f"{name}.py").read_bytes() for name in modules))).clamp(max=127)
    count = (len(text) - 1) // 256 * 256
    return torch.stack([text[:count], text[1 : count + 1]], 1).reshape(-1, 256, 2)


def setup() -> dict[str, Any]:
    """The resources of the run."""
    recurrent = nn.GRU(32, 128, batch_first=True)
    model = nn.ModuleDict({"embedding": nn.Embedding(128, 32), "recurrent": recurrent, "head": nn.Linear(128, 128)})
    train = sequences("argparse", "ast", "dataclasses", "doctest", "inspect", "pickle", "tarfile", "typing")
    return {
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters(), lr=3e-3),
        "train_data": train[torch.randperm(len(train))].split(32),
        "val_data": sequences("subprocess", "threading").split(64),
        "training_step": training_step,
        "validation_step": lambda model, batch: training_step(model, batch)["loss"],
    }
