"""The beginning of an evaluation, which saves the state that the evaluation changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from graphtrain.kind import node
from graphtrain.lazy import lazy_import
from graphtrain.names import plainly_named

if TYPE_CHECKING:
    import torch

    from graphtrain.nodes import _metric_objects as objects_of
    from graphtrain.program.agreement import Agreement
    from graphtrain.report.recorder import Recorder
    from graphtrain.state import generators as random
else:
    torch = lazy_import("torch")
    random = lazy_import("graphtrain.state.generators")
    objects_of = lazy_import("graphtrain.nodes._metric_objects")


@node(writes=("split", "training_state"), effects="eval", synchronises=True)
class BeginEvaluation:
    """Put `model` into evaluation mode, and save its training modes and the random states.

    The random numbers of an evaluation start from the seed of the run, so every evaluation has the same ones. With
    several ranks, all evaluate with the buffers of `model` on rank 0, such as the statistics of batch normalization.

    Reads:
        metric_objects: those whose names begin with `split` are reset. Default: none.

    Arguments:
        split: the prefix of the metrics; each evaluation of a graph has its own. Default: "val", as in ``val/loss``.
        update_bn: True recomputes the statistics of batch-normalization layers as means over the batches, like
            ``torch.optim.swa_utils.update_bn``. An average of weights needs this, since no batch has ever passed
            through it (Izmailov et al., "Averaging weights leads to wider optima and better generalization", 2018,
            section 3.2). Unlike there, dropout is off; metrics are computed with the statistics of each batch. With
            several ranks, each has the statistics of its own batches; those of rank 0 are evaluated and exported.
            Default: False.

    Writes:
        split: this prefix.
        training_state: the state that `end_evaluation` restores.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("evaluate").set("begin_evaluation", split="test")
    >>> graph.check()
    []
    """

    split: str = "val"
    update_bn: bool = False

    def __call__(
        self,
        model: Any,
        recorder: Recorder,
        seed: int,
        ranks: Agreement | None = None,
        metric_objects: Mapping[str, Any] | None = None,
    ) -> tuple[str, dict[str, Any]]:
        modes = {name: module.training for name, module in plainly_named(model.named_modules())}
        training_state: dict[str, Any] = {"modes": modes, "random": random.capture_random()}
        if ranks is not None and not self.update_bn:
            buffers = dict(plainly_named(model.named_buffers()))
            training_state["buffers"] = {name: each.detach().clone() for name, each in buffers.items() if ranks.rank}
            ranks.exchange((), buffers)
        model.eval()
        if self.update_bn:
            # Without a momentum, batch normalization averages the statistics of all following batches equally.
            named, kind = plainly_named(model.named_modules()), torch.nn.modules.batchnorm._BatchNorm
            layers = {name: layer for name, layer in named if isinstance(layer, kind)}
            training_state["momentum"] = {name: layer.momentum for name, layer in layers.items()}
            for layer in layers.values():
                layer.train().reset_running_stats()
                layer.momentum = None
        random.seed_everything(seed)
        recorder.means(self.split, ("whole",)).clear()
        if metric_objects:
            objects_of.updates_of(recorder, self.split).clear()
            for name in metric_objects:
                if name.startswith(f"{self.split}/"):
                    metric_objects[name].reset()
        return self.split, training_state
