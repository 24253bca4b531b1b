"""The end of a fold in cross-validation."""

from __future__ import annotations

from typing import Any

from graphtrain import node


@node(synchronises=True, family="bookkeeping")
def end_fold(model: Any, fold: int, validated: int, recorder: Any, ensemble: Any = None) -> None:
    """Record the metrics over all samples held out so far, and keep the model of the fold.

    The last ``val/...`` metrics of each fold measure its model on samples that it was not trained on. Their means over
    samples are recorded as ``out_of_fold/...``; after the last fold they cover all of the data. The graph `kfold` uses
    this kind.

    Reads:
        fold: number of folds completed before this one.
        validated: number of samples behind these metrics.
        ensemble: a `torch.nn.ModuleList` with a module like `model` for each fold. The weights of the fold's model are
            copied into its module, so that an evaluation can use the ensemble as its `model`. Default: models are not
            kept.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("kfold").set("begin_fold", folds=3).remove("renew")  # all folds train one model
    >>> graph = graph.set("fit/validate", reads={"val_data": "train_data"})
    >>> graph = graph.set("begin_fold", reads={"val_data": "train_data"})
    >>> graph.check()
    []
    """
    means = recorder.means("out_of_fold", ("whole",))
    means.add(recorder.latest_of("val"), validated)
    recorder.row({f"out_of_fold/{name}": value for name, value in means.peek("whole").items()})
    if ensemble is not None:
        ensemble[fold].load_state_dict(model.state_dict())
