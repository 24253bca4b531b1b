"""The graph that a run goes on in, compared with the one that it was saved with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from graphtrain.graph import Graph
from graphtrain.graph.difference import Change, Difference
from graphtrain.graph.renaming import Renaming, paths_of
from graphtrain.storage.checkpoint import Checkpoint
from graphtrain.storage.saved_graph import graph_of

_MOST_IN_A_LINE = 4  # differences; more are a list of their own
_MOST_BELOW = 30


@dataclass(frozen=True)
class GraphChange:
    """What of the graph is otherwise.

    Of an *identical* graph nothing is said, of one with *cosmetic* differences that they change nothing (`aside`); one
    with others is *compatible* if the position is in it and what is read from there on was saved. The rest is refused.

    Attributes:
        former: the graph as it was saved.
        difference: from it, renamed, to the graph of now.
        already: renamings that the saved graph has seen before.
    """

    former: Graph
    renaming: Renaming
    difference: Difference
    already: tuple[str, ...] = ()

    @classmethod
    def of(cls, checkpoint: Checkpoint, now: Graph, rename: Mapping[str, str]) -> GraphChange:
        """That between a checkpoint and the graph of now.

        Raises:
            UsageError: `rename` names no node.
            CheckpointError: the saved graph cannot be read.
        """
        former = graph_of(checkpoint.path, checkpoint.manifest)
        paths = set(paths_of(former))
        done = {old: new for old, new in rename.items() if old not in paths and new in paths}
        renaming = Renaming({old: new for old, new in rename.items() if old not in done}, former, now)
        already = tuple(f"rename: the saved graph has `{new}` already, and no `{old}`" for old, new in done.items())
        return cls(former, renaming, renaming.graph(former).diff(now), already)

    @property
    def replaced(self) -> list[str]:
        """The paths of nodes that are of another kind now."""
        return [one.path.partition(".")[0] for one in self.difference.changes if one.what == "kind"]

    @property
    def _found(self) -> list[Change]:
        return [one for one in self.difference.changes if one.own and one.matters]

    def words(self) -> list[str]:
        """What the line of a resume says of it: the differences, or how many there are."""
        renamed = [f"node {old} renamed {new}" for old, new in self.renaming.names.items()]
        found = [str(one) for one in self._found]
        if len(found) > _MOST_IN_A_LINE:
            found = [f"the graph ({len(found)} differences, below)"]
        return renamed + found

    def aside(self) -> str:
        """What is otherwise and changes nothing; empty where something else does."""
        if self.difference.matters or not self.difference:
            return ""
        return f"in the graph only {', '.join(map(str, self.difference.changes))}"

    def below(self) -> tuple[str, ...]:
        """The differences, a line each, where they are too many for one; and what they may mean."""
        listed = self._found if len(self._found) > _MOST_IN_A_LINE else []
        lines = [f"  {one}" for one in listed[:_MOST_BELOW]]
        if len(listed) > _MOST_BELOW:
            lines.append(f"  and {len(listed) - _MOST_BELOW} more: graphtrain diff RUN_DIR GRAPH")
        return (*self.already, *lines, *self.difference.hints)
