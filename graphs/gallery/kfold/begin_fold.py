"""Where a fold of a cross-validation begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from graphtrain import Above, DataError, UsageError, lazy_import, node, progress

if TYPE_CHECKING:
    import torch
else:
    torch = lazy_import("torch")


@node(writes=("indices", "val_indices"), family="data")
class BeginFold:
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

    Guard fields:
        divided: how many parts there are, once the first fold has begun.

    Raises:
        DataError: the data has no length.
        UsageError: `val_data` has another size, there are more folds than samples, or not as many modules as folds; or
            `folds` was another number for the folds before.

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
    """How many there are for `indices` to choose from: the samples of a loader's data set, the batches of a list."""
    try:
        return len(getattr(data, "dataset", data))
    except (TypeError, NotImplementedError):
        message = f"`{name}` is a {type(data).__name__} without a length"
        raise DataError(message, "pass a graphtrain.Loader, or a list of batches") from None
