"""Where an evaluation begins: what it would change is set aside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphtrain.kind import node
from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    import torch

    from graphtrain.metrics.recorder import Recorder
    from graphtrain.nodes import _evaluation as evaluation
    from graphtrain.program.agreement import Agreement
else:
    evaluation = lazy_import("graphtrain.nodes._evaluation")


@node(writes=("split", "training_state"), effects="eval", records="split", synchronises=True)
class BeginEvaluation:
    """Put `model` into evaluation mode, and set its training modes and the random numbers aside.

    The random numbers of an evaluation start from the seed of the run, so each evaluation sees the same ones. Among
    several ranks all evaluate with the buffers that `model` has on rank 0, such as the statistics of batch
    normalization.

    Arguments:
        split: the name under which metrics are recorded; each evaluation of a graph has its own. Default: "val", as in
            ``val/loss``.

    Writes:
        split: that name.
        training_state: what `end_evaluation` puts back.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("evaluate").set("begin_evaluation", split="test")
    >>> graph.check()
    []
    """

    split: str = "val"

    def __call__(
        self, model: torch.nn.Module, recorder: Recorder, seed: int, ranks: Agreement | None = None
    ) -> tuple[str, dict[str, Any]]:
        return self.split, evaluation.set_aside(model, recorder, self.split, seed, ranks)
