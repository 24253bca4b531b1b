"""Where kinds and graphs are found by name: what scripts declare, then the entry points of installed packages.

The shipped ones are entry points like any other, so a third-party package adds its own in the same way::

    [project.entry-points."graphtrain.nodes"]
    ema = "my_package.nodes:Ema"              # a function or class marked @node
    [project.entry-points."graphtrain.graphs"]
    gan = "my_package.graphs"                 # the package that holds gan.toml
"""

from __future__ import annotations

import functools
import importlib.resources
from importlib.metadata import EntryPoint, entry_points
from importlib.resources.abc import Traversable

from graphtrain.graph.elements import NESTED, Node
from graphtrain.kind import DECLARED, Kind, kind_of
from graphtrain.kind.nested import Nested


@functools.cache
def _entry_points(group: str) -> dict[str, EntryPoint]:
    return {one.name: one for one in sorted(entry_points(group=group), key=lambda one: one.name)}


def find_kind(name: str) -> Kind | None:
    """The kind of that name, or None. Importing the module of a kind is the only code this runs."""
    if name in DECLARED:
        return DECLARED[name]
    found = _entry_points("graphtrain.nodes").get(name)
    return kind_of(found.load()) if found is not None else None


def kind_of_node(node: Node) -> Kind | None:
    """The kind that a node uses, or None if nobody declares one of that name."""
    if node.use == NESTED:
        return kind_of(Nested)
    return node.kind or find_kind(node.use)


def known_kinds() -> list[str]:
    """The names of all kinds that can be used now."""
    return sorted({*DECLARED, *_entry_points("graphtrain.nodes")})


def find_graph(name: str) -> Traversable | None:
    """The TOML file of the shipped or installed graph `name`, or None."""
    found = _entry_points("graphtrain.graphs").get(name)
    return importlib.resources.files(found.value) / f"{name}.toml" if found is not None else None


def known_graphs() -> list[str]:
    """The names of all shipped and installed graphs."""
    return list(_entry_points("graphtrain.graphs"))
