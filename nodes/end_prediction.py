"""The end of prediction: the file of predictions gets its final name, and the state of the model is restored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphtrain.kind import node
from graphtrain.lazy import lazy_import
from graphtrain.nodes.end_evaluation import put_back

if TYPE_CHECKING:
    from graphtrain.program.agreement import Agreement
    from graphtrain.storage import predictions
else:
    predictions = lazy_import("graphtrain.storage.predictions")


@node(effects="train", synchronises=True)
def end_prediction(
    model: Any,
    training_state: dict[str, Any],
    predictions_file: str | Path,
    written: int | None = None,
    ranks: Agreement | None = None,
) -> None:
    """Give the predictions their final name, and restore the state saved by `begin_evaluation`.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("predict")
    >>> graph.edges["end_prediction"][0].target
    'end'
    """
    put_back(model, training_state)
    if written is None:
        return
    finish = predictions.Predictions(predictions_file).finish
    finish() if ranks is None else ranks.on_rank_0(finish)
