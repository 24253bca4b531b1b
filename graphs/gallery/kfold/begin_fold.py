"""The beginning of a fold in cross-validation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from graphtrain import Above, DataError, UsageError, lazy_import, node, progress

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


@node(writes=("indices", "val_indices"), family="data")
class BeginFold:
    """Choose the samples that a fold trains on and those that it holds out, as scikit-learn's `KFold` does.

    The folds are consecutive parts of the data, whose sizes differ by at most one sample. If the order of the data has
    a meaning, such as sorted classes, shuffle it in `setup`, once and with a seed. The graph `kfold` uses this kind.

    Reads:
        train_data: a `graphtrain.Loader`, whose dataset is divided, or a list of batches.
        val_data: the same dataset, for a validation that reads `val_indices`. Default: none.
        fold: number of completed folds.
        ensemble: a list of modules for the models of the folds, which `end_fold` fills. Default: none.

    Arguments:
        folds: number of folds, at least 2. Default: 5.

    Writes:
        indices: indices of the samples that the fold trains on.
        val_indices: indices of the held-out samples.

    Guard fields:
        divided: number of folds, once the first has begun.

    Raises:
        DataError: the data has no length.
        UsageError: `val_data` has a different size, there are more folds than samples, the number of modules differs
            from the number of folds, or `folds` was changed between folds.

    >>> from graphtrain import Graph
    >>> reads = {"fold": "begin_fold.runs % 3", "val_data": "train_data"}  # each epoch holds out another part
    >>> graph = Graph.load("fit").insert("begin_fold", after="begin_epoch", folds=3, reads=reads)
    >>> graph = graph.set("validate", reads={"val_data": "train_data"})
    >>> graph.check()
    []
    """

    folds: Annotated[int, Above(1)] = 5

    divided: int = progress(0)

    def __call__(
        self, train_data: Any, fold: int, val_data: Any = None, ensemble: Any = None
    ) -> tuple[list[int], list[int]]:
        folds, count = self.folds, _length_of(train_data, "train_data")
        if fold and self.divided not in (0, folds):
            before = f"the data was divided into {self.divided} parts, of which {fold} have been held out"
            raise UsageError(f"begin_fold.folds = {folds}: {before}", "keep their number, or begin another run")
        if val_data is not None and (other := _length_of(val_data, "val_data")) != count:
            raise UsageError(f"`val_data` has {other} samples, and `train_data` {count}", "give both one data set")
        if folds > count:
            raise UsageError(f"begin_fold.folds = {folds}: there are {count} samples", "take at most as many folds")
        if ensemble is not None and len(ensemble) != folds:
            raise UsageError(f"`ensemble` has {len(ensemble)} modules, and begin_fold.folds = {folds}", "make as many")
        self.divided = folds
        held_out = torch.arange(count).tensor_split(folds)[fold].tolist()
        return sorted({*range(count)} - {*held_out}), held_out


def _length_of(data: Any, name: str) -> int:
    """The number of samples in a loader's dataset, or of batches in a list, which `indices` refer to."""
    try:
        return len(getattr(data, "dataset", data))
    except (TypeError, NotImplementedError):
        message = f"`{name}` is a {type(data).__name__} without a length"
        raise DataError(message, "pass a graphtrain.Loader, or a list of batches") from None
