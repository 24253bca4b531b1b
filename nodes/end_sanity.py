"""Where a few validation batches before the training end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphtrain.kind import node
from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    import torch

    from graphtrain.data import samplers
    from graphtrain.metrics.recorder import Recorder
    from graphtrain.nodes import _evaluation as evaluation
else:
    evaluation = lazy_import("graphtrain.nodes._evaluation")
    samplers = lazy_import("graphtrain.data.samplers")


@node(effects="train", synchronises=True)
def end_sanity(
    model: torch.nn.Module,
    split: str,
    training_state: dict[str, Any],
    recorder: Recorder,
    val_data: Any,
    notify: Callable[[str], None] | None = None,
) -> None:
    """Record the means, and put back what `begin_sanity` has set aside: training finds everything as it was.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("sanity")
    >>> graph.start
    'sanity'
    """
    evaluation.put_back(model, split, training_state, recorder, notify)
    for generator, state in zip(samplers.generators_of(val_data), training_state["generators"], strict=True):
        generator.set_state(state)
