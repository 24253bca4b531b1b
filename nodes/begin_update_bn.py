"""Where a pass over the data begins that computes the statistics of batch normalization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphtrain.kind import node
from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    import torch

    from graphtrain.metrics.recorder import Recorder
    from graphtrain.nodes import _evaluation as evaluation
else:
    evaluation = lazy_import("graphtrain.nodes._evaluation")
    torch = lazy_import("torch")


@node(writes=("split", "training_state"), effects="eval", records="split")
def begin_update_bn(model: Any, recorder: Recorder, seed: int, *, split: str = "update_bn") -> tuple[str, Any]:
    """Do what `begin_evaluation` does, but for layers of batch normalization: these begin their statistics again.

    At the end of the evaluation they are the means over its batches, as by ``torch.optim.swa_utils.update_bn``, which
    an average of weights needs: no batch has ever gone through it. Dropout is off, unlike there. Among several
    ranks each has the statistics of its own batches; those of rank 0 are evaluated and exported.

    Source: Izmailov et al., "Averaging weights leads to wider optima and better generalization", 2018, section 3.2.

    Arguments:
        split: the name under which metrics are recorded, which are those with the statistics of each batch. Default:
            "update_bn".

    Writes:
        split: that name.
        training_state: what `end_evaluation` puts back.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("evaluate").set("begin_evaluation", use="begin_update_bn")
    >>> graph.check()
    []
    """
    training_state = evaluation.set_aside(model, recorder, split, seed)
    kind = torch.nn.modules.batchnorm._BatchNorm
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, kind)}
    training_state["momentum"] = {name: layer.momentum for name, layer in layers.items()}
    for layer in layers.values():
        layer.train().reset_running_stats()
        layer.momentum = None  # the mean over batches, each of which counts alike
    return split, training_state
