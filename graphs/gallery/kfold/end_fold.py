"""Where a fold of a cross-validation ends."""

from __future__ import annotations

from typing import Any

from graphtrain import node


@node(synchronises=True, family="bookkeeping")
def end_fold(model: Any, fold: int, validated: int, recorder: Any, ensemble: Any = None) -> None:
    """Record the metrics over all samples that folds have held out so far, and keep the model of the fold.

    The last ``val/...`` metrics of each fold are what its model gives for samples that it was not trained on. Their
    means over samples are recorded as ``out_of_fold/...``: after the last fold, over every sample of the data. The
    graph `kfold` has it.

    Reads:
        fold: how many folds were over before.
        validated: over how many samples these metrics are means.
        ensemble: a `torch.nn.ModuleList` with a module like `model` for each fold. That of the fold takes the weights
            of its model, so that in the end an evaluation can have it as its `model`. Default: models are not kept.

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
