"""What a `setup` may ask about the run that it sets up: the object `run`."""

from __future__ import annotations

from typing import Any, final

from graphtrain.data.length import epoch_length
from graphtrain.distributed import current_ranks
from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.plan.plan import Plan
from graphtrain.program.whole_run import WholeRun


@final
class PlannedRun:
    """A run of a graph, before it begins: what `setup` is given as its argument `run`.

    Arguments:
        graph: a sound graph, with the parameters that the run has.

    Attributes:
        rank: the number of this process among those of the run, from 0.
        world_size: how many there are; 1 where it is alone.

    >>> run = PlannedRun(Graph.load("fit").set("accumulate", every=4).set("finish", after="3 epochs"))
    >>> run.steps([0] * 10), run.steps([0] * 10, node="train_batch")
    (9, 30)
    >>> run.rank, run.world_size
    (0, 1)
    """

    def __init__(self, graph: Graph) -> None:
        self._plan = Plan(graph)
        ranks = current_ranks()
        self.rank, self.world_size = ranks.rank, ranks.world_size

    def steps(self, train_data: Any, /, node: str = "step", **data: Any) -> int:
        """How often a node will run in the whole run, from its start: of `step`, the steps of the optimizer.

        The graph is run on its counters alone. A guard that reads anything else, such as a metric, counts as not taken,
        so where metrics decide the number is an upper bound. It is that of the whole run at a resume too, as long as
        it is resumed with as many processes as it began with.

        Arguments:
            train_data: the data, of which only the length is asked, and of a loader the size of its batches.
            node: the path of the node, in a body as ``"fit/step"``. Default: "step".
            data: other data that nodes fetch, by the name of the resource.

        Raises:
            UsageError: there is no such node; time or metrics alone end the run; or data has no length.
        """
        lengths = {"train_data": train_data, **data}
        try:
            ranks = self.world_size
            return WholeRun(self._plan, lambda name: epoch_length(lengths[name]), ranks, ranks).visits(node)
        except UsageError as error:
            raise UsageError(f"run.steps: {error.message}", error.hint) from None

    def __repr__(self) -> str:
        return f"<PlannedRun of {self._plan.graph.title}>"
