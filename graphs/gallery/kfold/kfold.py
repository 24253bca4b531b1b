"""Cross-validation of a small network on scikit-learn's breast cancer data.

    graphtrain run graphs/gallery/kfold/kfold.py fit/finish.after='10 epochs'

The 569 samples are divided into five folds: each of five networks is trained on four of them and validated on the
fifth. After the last fold, `out_of_fold/accuracy` covers all samples, each classified by the network that was not
trained on it.
"""

from typing import Annotated, Any

from graphtrain import Above, UsageError, lazy_import, node

datasets = lazy_import("sklearn.datasets")
torch = lazy_import("torch")
nn = lazy_import("torch.nn")

graph = "kfold"


@node(writes=("indices", "val_indices"), family="data")
def begin_fold(
    train_data: Any, fold: int, val_data: Any = None, *, folds: Annotated[int, Above(1)] = 5
) -> tuple[list[int], list[int]]:
    """Choose the samples that a fold trains on and those that it holds out, as scikit-learn's `KFold` does.

    The folds are consecutive parts of the data, whose sizes differ by at most one sample. If the order of the data has
    a meaning, such as sorted classes, shuffle it in `setup`, once and with a seed.

    Reads:
        train_data: a `graphtrain.Loader`, whose dataset is divided, or a list of batches.
        val_data: the same dataset, for a validation that reads `val_indices`. Default: none.
        fold: number of completed folds.

    Arguments:
        folds: number of folds, at least 2. Default: 5.

    Writes:
        indices: indices of the samples that the fold trains on.
        val_indices: indices of the held-out samples.

    Raises:
        UsageError: `val_data` has a different size.

    >>> from graphtrain import Graph
    >>> reads = {"fold": "begin_fold.runs % 3", "val_data": "train_data"}  # each epoch holds out another part
    >>> graph = Graph.load("fit").insert("begin_fold", after="begin_epoch", folds=3, reads=reads)
    >>> graph = graph.set("validate", reads={"val_data": "train_data"})
    >>> graph.check()
    []
    """
    count = len(getattr(train_data, "dataset", train_data))
    if val_data is not None and (other := len(getattr(val_data, "dataset", val_data))) != count:
        raise UsageError(f"`val_data` has {other} samples, and `train_data` {count}", "use the same data set for both")
    held_out = torch.arange(count).tensor_split(folds)[fold].tolist()
    return sorted({*range(count)} - {*held_out}), held_out


@node(synchronises=True, family="bookkeeping")
def end_fold(model: Any, fold: int, validated: int, recorder: Any, ensemble: Any = None) -> None:
    """Record the metrics over all samples held out so far, and keep the model of the fold.

    The last ``val/...`` metrics of each fold measure its model on samples that it was not trained on. Their means over
    samples are recorded as ``out_of_fold/...``; after the last fold they cover all of the data.

    Reads:
        fold: number of folds completed before this one.
        validated: number of samples behind these metrics.
        ensemble: a `torch.nn.ModuleList` with a module like `model` for each fold, which gets its weights, so that an
            evaluation can use the ensemble as its `model`. Default: models are not kept.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("kfold").set("begin_fold", folds=3).remove("renew")  # all folds train one model
    >>> graph = graph.set("fit/validate", reads={"val_data": "train_data"})
    >>> graph = graph.set("begin_fold", reads={"val_data": "train_data"})
    >>> graph.check()
    []
    """
    means = recorder.means("out_of_fold", ("whole",))
    means.add({name: value for name, value in recorder.latest.items() if name.startswith("val/")}, validated)
    recorder.row({f"out_of_fold/{name[4:]}": value for name, value in means.take("whole", ends=False).items()})
    if ensemble is not None:
        ensemble[fold].load_state_dict(model.state_dict())


def setup() -> dict[str, Any]:
    """The resources of the run."""
    from graphtrain import Loader

    features, classes = datasets.load_breast_cancer(return_X_y=True)
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(0))
    inputs, labels = torch.tensor(features, dtype=torch.float32), torch.tensor(classes)
    data = torch.utils.data.TensorDataset(inputs[order], labels[order])
    model = nn.Sequential(nn.BatchNorm1d(30), nn.Linear(30, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 2))
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=3e-3),
        "train_data": Loader(data, 32, shuffle=True, drop_last=True),
        "val_data": Loader(data, 200),
        "training_step": lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        "validation_step": lambda model, batch: {"accuracy": (model(batch[0]).argmax(1) == batch[1]).float().mean()},
    }
