"""Where a fold of a cross-validation begins."""

from __future__ import annotations

from typing import Annotated, Any

import torch

from graphtrain.data.length import indexed_length
from graphtrain.errors import UsageError
from graphtrain.kind import node
from graphtrain.kind.parameter import Above

Folds = Annotated[int, Above(1)]
Numbers = list[int]


@node(writes=("indices", "val_indices"), activity="data")
def begin_fold(
    train_data: Any, fold: int, val_data: Any = None, ensemble: Any = None, *, folds: Folds = 5
) -> tuple[Numbers, Numbers]:  # fmt: skip
    """Choose which samples a fold trains on, and which it holds out: those of scikit-learn's `KFold`.

    The parts that are held out one after the other are consecutive, and differ in size by one sample at most. Data
    whose order means something, such as classes one behind the other, is shuffled by `setup`, once and with a seed.
    The graph `kfold` has it.

    Reads:
        train_data: a `graphtrain.Loader`, whose data set is divided, or a list of batches.
        val_data: the same data set, for a validation that reads `val_indices`. Default: there is none.
        fold: how many folds are over.
        ensemble: a list of modules for the models of the folds, as `end_fold` fills it. Default: there is none.

    Arguments:
        folds: how many parts the samples are divided into, 2 or more. Default: 5.

    Writes:
        indices: the numbers of the samples that the fold trains on.
        val_indices: the numbers of those that it holds out.

    Raises:
        DataError: the data has no length.
        UsageError: `val_data` has another size, there are more folds than samples, or not as many modules as folds.

    >>> from graphtrain import Graph
    >>> reads = {"fold": "begin_fold.runs % 3", "val_data": "train_data"}  # each epoch holds out another part
    >>> graph = Graph.load("fit").insert("begin_fold", after="begin_epoch", folds=3, reads=reads)
    >>> graph = graph.set("validate", reads={"val_data": "train_data"})
    >>> graph.check()
    []
    """
    samples = torch.arange(indexed_length(train_data, "train_data"))
    if val_data is not None and (length := indexed_length(val_data, "val_data")) != len(samples):
        raise UsageError(f"`val_data` has {length} samples, and `train_data` {len(samples)}", "give both one data set")
    if folds > len(samples):
        raise UsageError(f"begin_fold.folds = {folds}: there are {len(samples)} samples", "take at most as many folds")
    if ensemble is not None and len(ensemble) != folds:
        raise UsageError(f"`ensemble` has {len(ensemble)} modules, and begin_fold.folds = {folds}", "make as many")
    held_out = samples.tensor_split(folds)[fold].tolist()
    return sorted({*samples.tolist()} - {*held_out}), held_out
