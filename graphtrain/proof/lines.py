"""A line for each transition of a run: `--trace`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

from graphtrain.graph import Graph
from graphtrain.graph.renaming import paths_of
from graphtrain.printable import one_line
from graphtrain.proof.explanation import Explanation

# A column is no wider than this; a longer name takes the room it needs.
_WIDEST = 32


@final
class TraceLines:
    """Writes the transitions of a graph as lines whose columns stand below one another.

    Arguments:
        write: takes a line.

    >>> trace = TraceLines(Graph.load("evaluate"), print)
    >>> trace(Explanation((), "eval_batch", step=3, epoch=0.5, batch=12, note="nothing was traced"))
    trace  step     3  epoch   0.50  batch    12  nothing was traced
    """

    def __init__(self, graph: Graph, write: Callable[[str], Any]) -> None:
        self._write = write
        paths = list(paths_of(graph))
        self._node_width = min(_WIDEST, max(map(len, paths)))
        self._target_width = min(_WIDEST, max(len(path.rpartition("/")[2]) for path in paths))

    def __call__(self, explanation: Explanation) -> None:
        """Write one."""
        columns = ["trace", *_moment(explanation)]
        if explanation.choices:
            node = f"{explanation.choices[0].node:<{self._node_width}}"
            columns += [f"{node} -> {explanation.target:<{self._target_width}}", explanation.reasons]
        else:
            columns.append(explanation.note)
        self._write(one_line("  ".join(columns).rstrip()))


def _moment(explanation: Explanation) -> list[str]:
    """Step, epoch and batch, as far as the graph counts them."""
    words = []
    if explanation.step is not None:
        words.append(f"step {explanation.step:>5}")
    if explanation.epoch is not None:
        words.append(f"epoch {explanation.epoch:>6.2f}")
    if explanation.batch is not None:
        words.append(f"batch {explanation.batch:>5}")
    return words
