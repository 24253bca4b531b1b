"""The graph of a dry run: every node that can be reached is, once, and it ends after one epoch of one batch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from graphtrain.graph.elements import Node
from graphtrain.graph.registry import kind_of_node
from graphtrain.kind.declaration import FROM

if TYPE_CHECKING:
    from graphtrain.graph.graph import Graph


def dry_run(graph: Graph) -> Graph:
    """The graph with a limit of one batch at every node that fetches them, and every trigger due once.

    What is due once at the beginning stays so; anything else is due after the first batch. What ends the run by an
    amount ends it after one epoch; by another unit of its clock, where that has no epochs.
    """
    every = next((f"1 {unit}" for unit in ("batches", "steps", "epochs") if unit in graph.units), "once")
    after = next((f"1 {unit}" for unit in ("epochs", "batches", "steps", *graph.units) if unit in graph.units), "")
    return replace(graph, nodes={name: _dry(node, every, after) for name, node in graph.nodes.items()})


def _dry(node: Node, every: str, after: str) -> Node:
    if node.body is not None:
        node = replace(node, body=dry_run(node.body))
    kind = kind_of_node(node)
    if kind is None:
        return node
    parameters = {name: value for name, value in node.parameters.items() if name not in (FROM, "batches_per_epoch")}
    if any(read.name == "history" for read in kind.setup_reads or ()):  # there are no checkpoints to go back to
        parameters |= dict.fromkeys(kind.idle_without, math.inf)
    if kind.activity == "data" and "limit" in kind.parameters:
        parameters["limit"] = 1
    is_periodic = kind.trigger == "every" and (node.body is None or "every" in parameters)
    if is_periodic and parameters.get("every") not in ("never", "once"):
        parameters["every"] = every
    elif kind.trigger == "after" and after:
        parameters["after"] = after
    return replace(node, parameters=parameters)
