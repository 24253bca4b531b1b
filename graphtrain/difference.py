"""What differs between two graphs, in a few words."""

from __future__ import annotations

from dataclasses import replace

from graphtrain.graph import Graph
from graphtrain.parameter import show_value
from graphtrain.text.canonical import structural_hash


def differences(before: Graph, after: Graph) -> list[str]:
    """Parameters by name with their values; everything else is "the graph".

    >>> fit = Graph.load("fit")
    >>> differences(fit, fit.set("finish", after="20 epochs").set("validate/next_batch", limit=5))
    ['validate/next_batch.limit default -> 5', 'finish.after 10 epochs -> 20 epochs']
    >>> differences(fit, fit.remove("log", to="decide"))
    ['the graph']
    """
    found = _parameters(before, after, "")
    if structural_hash(_without_parameters(before)) != structural_hash(_without_parameters(after)):
        found.insert(0, "the graph")
    return found


def _parameters(before: Graph, after: Graph, prefix: str) -> list[str]:
    found = []
    for name, node in after.nodes.items():
        former = before.nodes.get(name)
        if former is None:
            continue
        for key in dict.fromkeys([*former.parameters, *node.parameters]):
            values = [one.parameters.get(key) for one in (former, node)]
            if values[0] != values[1]:
                shown = ["default" if one is None else show_value(one).strip('"') for one in values]
                found.append(f"{prefix}{name}.{key} {shown[0]} -> {shown[1]}")
        if former.body is not None and node.body is not None:
            found += _parameters(former.body, node.body, f"{prefix}{name}/")
    return found


def _without_parameters(graph: Graph) -> Graph:
    nodes = {
        name: replace(node, parameters={}, body=_without_parameters(node.body) if node.body is not None else None)
        for name, node in graph.nodes.items()
    }
    return replace(graph, nodes=nodes)
