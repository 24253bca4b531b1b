"""Renamed nodes: the names of their progress, their slots and the position in the new graph."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, final

from graphtrain.errors import EditError, UsageError
from graphtrain.graph.elements import nodes_of
from graphtrain.graph.graph import EditableGraph
from graphtrain.names import suggestion


@final
class Renaming:
    """Maps the nodes of a former graph to those of the current one.

    A node without a new name keeps its name, and the nodes in the body of a renamed one move with it. A node that now
    has the former name of a renamed one is a new node.

    Arguments:
        names: former path -> present path: ``{"validate/next_batch": "validate/fetch"}``.
        former: the former graph.
        now: the present graph.

    Raises:
        UsageError: a path names no node, or two nodes would become one.

    >>> from graphtrain import Graph
    >>> fit = Graph.load("fit")
    >>> renaming = Renaming({"validate": "measure"}, fit, fit.rename("validate", "measure"))
    >>> renaming.path("validate/next_batch"), renaming.slot("validate/batch"), renaming.former("validate")
    ('measure/next_batch', 'measure/batch', None)
    """

    def __init__(self, names: Mapping[str, str], former: EditableGraph, now: EditableGraph) -> None:
        self.names = dict(names)
        self._formerly: dict[str, str] = {}
        before, after = nodes_of(former), nodes_of(now)
        for old, new in self.names.items():
            for path, known, graph in ((old, before, "former"), (new, after, "new")):
                if path not in known:
                    raise UsageError(f"rename: there is no node `{path}` in the {graph} graph", suggestion(path, known))
        # Renamed nodes first: a name that they take over no longer names its former node.
        for path in sorted(before, key=lambda path: self.path(path) == path):
            new = self.path(path)
            if self._formerly.setdefault(new, path) != path != new:
                raise UsageError(f"rename: `{self._formerly[new]}` and `{path}` cannot both become `{new}`")

    def path(self, former: str) -> str:
        """The present path of a node, given its former path."""
        around, slash, name = former.rpartition("/")
        return self.names.get(former) or (f"{self.path(around)}/{name}" if slash else former)

    def former(self, path: str) -> str | None:
        """The former path of a node; None for a new node."""
        return self._formerly.get(path)

    def slot(self, former: str) -> str:
        """The present name of a slot; only slots inside a renamed node change theirs."""
        around, slash, name = former.rpartition("/")
        return f"{self.path(around)}{slash}{name}"

    def sections(self, saved: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """The sections of a saved state, under present names."""
        if not self.names:
            return dict(saved)
        # A node whose name another one has taken over has no progress to keep.
        progress = {path: fields for path, fields in saved["progress"].items() if self.former(self.path(path)) == path}
        return {
            **saved,
            "progress": {self.path(path): fields for path, fields in progress.items()},
            "slots": {self.slot(name): value for name, value in saved["slots"].items()},
        }

    def graph(self, former: EditableGraph) -> EditableGraph:
        """The former graph with present names, except nodes that were moved into or out of another node."""
        for old, new in self.names.items():
            (level, _, _), (new_level, _, new_name) = old.rpartition("/"), new.rpartition("/")
            if level == new_level:
                with suppress(EditError):  # two nodes swap their names
                    former = former.rename(old, new_name)
        return former
