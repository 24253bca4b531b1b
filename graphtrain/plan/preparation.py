"""The copies of resources that a graph asks for before a run begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from graphtrain.errors import UsageError
from graphtrain.graph import Graph
from graphtrain.plan.scope import ResourceTarget, Scope


def made_resources(graph: Graph, resources: Mapping[str, Any] | None) -> dict[str, str]:
    """The resources that the nodes of a graph make: name -> the name of the source.

    Supplied resources are not among them, nor those whose source is missing.

    Arguments:
        resources: those supplied. None: not known; all copies are made.

    Raises:
        UsageError: two nodes make the same resource from different ones.
    """
    made: dict[str, str] = {}
    makers: dict[str, str] = {}
    for name, source, path in copies_of(graph):
        if resources is not None and (resources.get(name) is not None or resources.get(source) is None):
            continue
        if made.setdefault(name, source) != source:
            raise UsageError(
                f"`{makers[name]}` makes `{name}` as a copy of `{made[name]}`, and `{path}` as one of `{source}`",
                "give one of them another name, in `reads` of its node",
            )
        makers.setdefault(name, path)
    return made


def copies_of(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """The copies that the nodes of a graph declare: the name, that of the source, and the path of the node."""
    for scope in Scope(graph).with_inner():
        for node in scope.graph.nodes.values():
            kind = scope.kinds[node.name]
            for slot, copied in kind.makes.items() if kind is not None else ():
                target, of = scope.read_by(node, slot), scope.read_by(node, copied.source)
                if isinstance(target, ResourceTarget) and isinstance(of, ResourceTarget):
                    yield target.name, of.name, f"{scope.path}{node.name}"
