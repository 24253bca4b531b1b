"""Finds kinds and graphs by name: those declared by scripts, those shipped, those added by installed packages.

A shipped kind is a file in `nodes/`, a shipped graph one in `graphs/`, an overlay one in `graphs/overlays/`, each under
the name of its file; a procedure of the gallery has its graph or its overlay in ``graphs/gallery/NAME/NAME.toml``, and
its kinds in ``NAME.py`` there. Importing them does not import torch. Another package adds kinds, graphs and overlays,
under names that are not shipped, by entry points: a function or class marked `@node` in the group `graphtrain.nodes`,
the package that holds ``NAME.toml`` in `graphtrain.graphs` or `graphtrain.overlays`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.resources
import re
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.resources.abc import Traversable
from pathlib import Path
from types import FunctionType

from graphtrain.graph.elements import NESTED, GraphData, Node, nodes_of
from graphtrain.kind import DECLARED, OF_ADAPTERS, Kind, kind_of, node
from graphtrain.kind.trigger import Trigger
from graphtrain.names import nearest

# Keys at the top of a graph that an overlay does not have.
_EXTENDS_OR_NODES = re.compile(r"^(?:extends\b|nodes\.|\[nodes)", re.MULTILINE)


@node(name=NESTED)
class Nested:
    """Run a whole graph as one node.

    Entering resets the progress inside; the node counts a run, and its trigger a firing, when the graph inside ends.

    Arguments:
        every: when to run the body. Default: at every visit.
    """

    every: Trigger | None = None

    def __call__(self) -> None:
        raise AssertionError("the compiler replaces a nested node by its body")


_PACKAGE = Path(__file__).parents[1]


@functools.cache
def _files() -> frozenset[str]:
    """The kinds in `nodes/`; helpers have names that begin with an underscore."""
    return frozenset(file.stem for file in (_PACKAGE / "nodes").glob("[!_]*.py"))


@functools.cache
def _kinds_in(module: str) -> dict[str, Kind]:
    # Functions and classes only: reading an attribute of a lazily imported module would import it.
    values = [each for each in vars(importlib.import_module(module)).values() if isinstance(each, FunctionType | type)]
    return {kind.name: kind for value in values if isinstance(kind := vars(value).get("__kind__"), Kind)}


@functools.cache
def _of_gallery() -> dict[str, Kind]:
    """The kinds of all procedures, whose modules are imported once a name is not that of a file in `nodes/`."""
    files = (_PACKAGE / "graphs" / "gallery").glob("[!_]*/[!_]*.py")
    modules = [_kinds_in(f"graphtrain.graphs.gallery.{file.parent.name}.{file.stem}") for file in files]
    return {name: kind for kinds in modules for name, kind in kinds.items()}


@functools.cache
def _texts(folder: str) -> dict[str, Traversable]:
    """The files of the shipped graphs, or of the overlays: those of the folder, and those of the gallery."""
    files = [*(_PACKAGE / folder).glob("*.toml")]
    for file in (_PACKAGE / "graphs" / "gallery").glob("[!_]*/*.toml"):
        is_overlay = _EXTENDS_OR_NODES.search(file.read_text(encoding="utf-8")) is None
        files += [file] if is_overlay == (folder != "graphs") else []
    return {file.stem: file for file in files}


@functools.cache
def _entry_points(group: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in sorted(entry_points(group=group), key=lambda entry: entry.name)}


def find_kind(name: str) -> Kind | None:
    """The kind of that name, or None. Importing the module of a kind is the only code this runs."""
    if (kind := DECLARED.get(name) or OF_ADAPTERS.get(name)) is not None:
        return kind
    if name in _files():
        return _kinds_in(f"graphtrain.nodes.{name}")[name]
    if name in _of_gallery():
        return _of_gallery()[name]
    entry = _entry_points("graphtrain.nodes").get(name)
    return kind_of(entry.load()) if entry is not None else None


def kind_of_node(node: Node) -> Kind | None:
    """The kind that a node uses, or None if no kind of that name is declared."""
    if node.use == NESTED:
        return kind_of(Nested)
    return node.kind or find_kind(node.use)


def known_kinds() -> list[str]:
    """The names of all kinds that can be used now."""
    return sorted({*DECLARED, *_files(), *_of_gallery(), *_entry_points("graphtrain.nodes")})


def family_of_node(node: Node) -> str:
    """The family that a node is drawn in; "other" for a kind that is not declared."""
    kind = kind_of_node(node)
    return NESTED if node.use == NESTED else kind.family if kind is not None else "other"


@dataclass(frozen=True)
class Texts:
    """The shipped and installed graphs, or the overlays."""

    word: str
    folder: str
    group: str

    def find(self, name: str) -> Traversable | None:
        """The TOML file of that name, or None."""
        if name in _texts(self.folder):
            return _texts(self.folder)[name]
        entry = _entry_points(self.group).get(name)
        return importlib.resources.files(entry.value) / f"{name}.toml" if entry is not None else None

    def known(self) -> list[str]:
        """All names."""
        return sorted({*_texts(self.folder), *_entry_points(self.group)})

    def hint(self, source: str) -> str:
        """A hint for an unknown name."""
        if self is GRAPHS and OVERLAYS.find(source) is not None:
            return f"`{source}` is an overlay: name it after a graph, as in graphtrain show fit --overlay {source}"
        if self is OVERLAYS and GRAPHS.find(source) is not None:
            return f"`{source}` is a graph, which comes before the overlays"
        match = nearest(source, self.known())
        return f"did you mean `{match}`?" if match else f"known: {', '.join(self.known())}; a path ends in .toml"


GRAPHS = Texts("graph", "graphs", "graphtrain.graphs")
OVERLAYS = Texts("overlay", "graphs/overlays", "graphtrain.overlays")
find_graph, known_graphs = GRAPHS.find, GRAPHS.known
find_overlay, known_overlays = OVERLAYS.find, OVERLAYS.known


def summary(file: Traversable | None) -> str:
    """The description of the graph or overlay in a file: the comment in its first line; empty if it has none."""
    line = file.read_text(encoding="utf-8").partition("\n")[0] if file is not None and file.is_file() else ""
    return line.removeprefix("#").strip() if line.startswith("#") else ""


def trains(graph: GraphData) -> bool:
    """True if some node of a graph, or of a body in it, runs a backward pass."""
    kinds = map(kind_of_node, nodes_of(graph).values())
    return any(kind is not None and "backward" in kind.does for kind in kinds)
