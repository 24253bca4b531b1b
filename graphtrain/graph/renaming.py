"""Nodes under other names: what their progress, their slots and the position are called in the graph of now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, final

from graphtrain.errors import EditError, UsageError
from graphtrain.graph.difference import Difference
from graphtrain.graph.graph import Graph
from graphtrain.names import nearest, suggestion


@final
class Renaming:
    """Which node of a former graph is which node now.

    A node keeps its name where nothing else is said, and a renamed one takes what is inside it along. A node that comes
    under the former name of a renamed one is a new one.

    Arguments:
        names: former path -> path now, such as ``{"validate/next_batch": "validate/fetch"}``.
        former: the former graph.
        now: the graph of now.

    Raises:
        UsageError: a path names no node, or two nodes would become one.

    >>> fit = Graph.load("fit")
    >>> renaming = Renaming({"validate": "measure"}, fit, fit.rename("validate", "measure"))
    >>> renaming.path("validate/next_batch"), renaming.slot("validate/batch"), renaming.former("validate")
    ('measure/next_batch', 'measure/batch', None)
    """

    def __init__(self, names: Mapping[str, str], former: Graph, now: Graph) -> None:
        self.names = dict(names)
        self._of_now: dict[str, str] = {}
        before, after = list(paths_of(former)), list(paths_of(now))
        for old, new in self.names.items():
            for path, known, graph in ((old, before, "former"), (new, after, "new")):
                if path not in known:
                    raise UsageError(f"rename: there is no node `{path}` in the {graph} graph", suggestion(path, known))
        for path in before:
            if (new := self.path(path)) == path:
                continue
            if new in self._of_now:
                raise UsageError(f"rename: `{self._of_now[new]}` and `{path}` cannot both become `{new}`")
            self._of_now[new] = path
        for path in before:
            if self.path(path) == path:
                self._of_now.setdefault(path, path)

    def path(self, former: str) -> str:
        """What a former path is now."""
        around, inside = former, ""
        while around:
            if around in self.names:
                return self.names[around] + inside
            around, slash, last = around.rpartition("/")
            inside = f"{slash}{last}{inside}"
        return former

    def former(self, path: str) -> str | None:
        """The path that a node of now had; None for a new one."""
        return self._of_now.get(path)

    def slot(self, former: str) -> str:
        """What a slot is now that some node writes; only those inside a renamed node are called otherwise."""
        around, slash, name = former.rpartition("/")
        return f"{self.path(around)}{slash}{name}"

    def sections(self, saved: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """The sections of a saved state, under the names of now."""
        if not self.names:
            return dict(saved)
        progress = {
            self.path(path): fields
            for path, fields in saved["progress"].items()
            if self._of_now.get(self.path(path)) == path
        }
        slots = {self.slot(name): value for name, value in saved["slots"].items()}
        return {**saved, "progress": progress, "slots": slots}

    def graph(self, former: Graph) -> Graph:
        """The former graph with its nodes under the names of now, as far as each stays on its level."""
        for old, new in self.names.items():
            level, _, last = old.rpartition("/")
            if level != new.rpartition("/")[0]:
                continue
            try:
                former = _renamed(former, [one for one in level.split("/") if one], last, new.rpartition("/")[2])
            except EditError:  # two that change places
                continue
        return former


def _renamed(graph: Graph, level: list[str], old: str, new: str) -> Graph:
    if not level:
        return graph.rename(old, new)
    body = graph.nodes[level[0]].body
    assert body is not None, "a path leads through it"
    return graph.set(level[0], graph=_renamed(body, level[1:], old, new))


def paths_of(graph: Graph, prefix: str = "") -> Iterator[str]:
    """The paths of all nodes of a graph, at any depth."""
    for name, node in graph.nodes.items():
        yield f"{prefix}{name}"
        if node.body is not None:
            yield from paths_of(node.body, f"{prefix}{name}/")


def lost_position_hint(path: str, difference: Difference, known: Iterable[str]) -> str:
    """What to do where a graph does not have the node that a run stands before."""
    for old, new in difference.renamings:
        if path == old or path.startswith(f"{old}/"):
            return f"if `{old}` is called `{new}` now: --rename {old}={new}, in Python rename={{{old!r}: {new!r}}}"
    close = nearest(path, known)
    likely = f"{path}={close}" if close else f"{path}=NODE"
    return (
        f"name the node that it is now: --rename {likely}, in Python rename={{...}}; "
        "or resume with the saved graph: --graph saved"
    )
