"""The graph that a run is resumed in, compared with the one that it was saved with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphtrain.graph import Graph
from graphtrain.graph.difference import Difference
from graphtrain.graph.elements import nodes_of
from graphtrain.graph.renaming import Renaming
from graphtrain.storage.checkpoint import Checkpoint
from graphtrain.storage.saved_graph import graph_of

_MOST_IN_A_LINE = 4  # differences; more are listed below it
_MOST_BELOW = 30


@dataclass(frozen=True)
class GraphChange:
    """How the graph differs.

    Of an *identical* graph nothing is reported, of one with *cosmetic* differences that they change nothing (`aside`);
    one with others is *compatible* if it has the position, and what is read from there on was saved. Any other graph is
    refused.

    Attributes:
        former: the graph as it was saved.
        difference: from it, renamed, to the graph of now.
        already: hints about renamings that the saved graph has already.
    """

    former: Graph
    renaming: Renaming
    difference: Difference
    already: tuple[str, ...] = ()

    @classmethod
    def of(cls, checkpoint: Checkpoint, now: Graph, rename: Mapping[str, str]) -> GraphChange:
        """The change from the graph of a checkpoint to the graph of now.

        Raises:
            UsageError: `rename` names no node.
            CheckpointError: the saved graph cannot be read.
        """
        former = graph_of(checkpoint.path, checkpoint.manifest)
        paths = set(nodes_of(former))
        # The command of a resume is repeated, and by then the run was saved with the renamed graph.
        done = {old: new for old, new in rename.items() if old not in paths and new in paths}
        renaming = Renaming({old: new for old, new in rename.items() if old not in done}, former, now)
        already = tuple(f"rename: the saved graph has `{new}` already, and no `{old}`" for old, new in done.items())
        return cls(former, renaming, renaming.graph(former).diff(now), already)

    @property
    def replaced(self) -> list[str]:
        """The paths of nodes that are of another kind now."""
        return [change.path.partition(".")[0] for change in self.difference.changes if change.what == "kind"]

    def words(self) -> list[str]:
        """The differences as the line of a resume has them, or their number."""
        renamed = [f"node {old} renamed {new}" for old, new in self.renaming.names.items()]
        listed = self._listed()
        is_long = len(listed) > _MOST_IN_A_LINE
        return renamed + ([f"the graph ({len(listed)} differences, below)"] if is_long else listed)

    def aside(self) -> str:
        """The differences of a graph that does the same; empty where one of them matters."""
        if self.difference.matters or not self.difference:
            return ""
        shown = [str(change) for change in self.difference.changes]
        return f"in the graph only {', '.join(shown)}" if shown else ""

    def below(self) -> tuple[str, ...]:
        """The differences, a line each, where they are too many for one; and hints."""
        listed = self._listed()
        lines = [f"  {change}" for change in listed[:_MOST_BELOW]] if len(listed) > _MOST_IN_A_LINE else []
        if len(listed) > _MOST_BELOW:
            lines.append(f"  and {len(listed) - _MOST_BELOW} more: graphtrain diff RUN_DIR GRAPH")
        return (*self.already, *lines, *self.difference.hints)

    def _listed(self) -> list[str]:
        return [str(change) for change in self.difference.changes if change.independent and change.matters]
