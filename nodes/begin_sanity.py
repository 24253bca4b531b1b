"""Where a few validation batches begin, before the training does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphtrain.kind import node
from graphtrain.lazy import lazy_import

if TYPE_CHECKING:
    import torch

    from graphtrain.data import loaders, samplers, source
    from graphtrain.metrics.recorder import Recorder
    from graphtrain.nodes import _evaluation as evaluation
    from graphtrain.program.agreement import Agreement
else:
    evaluation = lazy_import("graphtrain.nodes._evaluation")
    samplers = lazy_import("graphtrain.data.samplers")
    source = lazy_import("graphtrain.data.source")
    loaders = lazy_import("graphtrain.data.loaders")


@node(writes=("split", "training_state"), effects="eval", records="split", synchronises=True)
class BeginSanity:
    """As `begin_evaluation`, with the random generators of `val_data` set aside too: nothing is to move.

    Data that keeps its own position, as by a `state_dict`, and iterators cannot be set back, which is reported.

    Arguments:
        split: the name under which metrics are recorded. Default: "sanity", as in ``sanity/loss``.

    Writes:
        split: that name.
        training_state: what `end_sanity` puts back.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").overlay("sanity").set("sanity/next_batch", limit=4)
    >>> graph.check()
    []
    """

    split: str = "sanity"

    def __call__(
        self,
        model: torch.nn.Module,
        recorder: Recorder,
        seed: int,
        val_data: Any,
        notify: Callable[[str], None] | None = None,
        ranks: Agreement | None = None,
    ) -> tuple[str, dict[str, Any]]:
        training_state = evaluation.set_aside(model, recorder, self.split, seed, ranks)
        parts = [*loaders.loaders_of(val_data).values()] or [val_data]
        training_state["generators"] = [generator.get_state() for generator in samplers.generators_of(val_data)]
        for data in parts:
            if notify is not None and (source.keeps_position(data) or hasattr(data, "__next__")):
                notify(
                    f"`{self.split}` takes batches of a {type(data).__name__}, which keeps its own position: the first "
                    "validation begins after them; leave the overlay `sanity` out if that matters"
                )
        return self.split, training_state
