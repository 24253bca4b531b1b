"""Named places of a procedure, at which a node is inserted without knowing the edges there.

They are data, and have the names that Lightning gives its hooks (docs/coming-from.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from graphtrain.errors import EditError
from graphtrain.graph.edit import insert, set, verb
from graphtrain.graph.elements import END, Edge, G, GraphData
from graphtrain.kind import kind_of
from graphtrain.names import suggestion

# The guard under which a hub is reached without a batch, so that hooks of batches are skipped.
_NO_BATCH = "data_exhausted"


class HookPlace(NamedTuple):
    """A place of a procedure.

    Arguments:
        when: when a run reaches it, for people.
        where: "start": before everything; "after" or "before" a node; or "into" a node to which many return: on the
            edges to it, except those of its own targets.
        nodes: that node: the first of these names that the graph has.
        until: for "after": the node that follows the place, so that later hooks follow earlier ones. Default: any.
        split: for a place in an evaluation: its `split`, by which the graph or a body in it is found. Default: the
            place is in the graph itself.
    """

    when: str
    where: Literal["start", "after", "before", "into"]
    nodes: tuple[str, ...]
    until: str = ""
    split: str = ""


# The graphs that evaluate: the word in the names of their places, and their `split`.
_EVALUATIONS = {"validation": "val", "test": "test", "predict": "predict"}
_BATCH, _END = ("eval_batch", "predict_batch"), ("end_evaluation", "end_prediction")
_OF_AN_EVALUATION: Mapping[str, HookPlace] = {
    "start": HookPlace("before the first batch", "after", ("begin_evaluation",), "next_batch"),
    "batch_start": HookPlace("before each batch", "before", _BATCH),
    "batch_end": HookPlace("after each batch", "after", _BATCH),
    "epoch_end": HookPlace("after the last batch, before its row", "before", _END),
}
_OF_A_STEP = "once a window is complete, before its gradients are clipped"
# In the order in which a run comes to them.
HOOKS: Mapping[str, HookPlace] = {
    "on_train_start": HookPlace("once, when the run begins", "start", ("decide",)),
    "on_train_epoch_start": HookPlace("before the first batch of an epoch", "after", ("begin_epoch",), "next_batch"),
    "on_train_batch_start": HookPlace("before each batch is trained on", "before", ("train_batch", "step")),
    "on_after_backward": HookPlace("after the backward pass of each batch", "after", ("train_batch",), "accumulate"),
    "on_before_optimizer_step": HookPlace(_OF_A_STEP, "after", ("exchange",), "clip"),
    "on_before_zero_grad": HookPlace("after a step, before gradients are cleared", "before", ("zero_grad",)),
    "on_train_batch_end": HookPlace("after each batch, stepped or not", "into", ("decide",)),
    "on_train_epoch_end": HookPlace("after an epoch, before it is validated", "after", ("end_epoch",), "decide"),
    **{
        f"on_{word}_{name}": place._replace(split=split)
        for word, split in _EVALUATIONS.items()
        for name, place in _OF_AN_EVALUATION.items()
    },
    "on_validation_end": HookPlace("after a validation, with its row", "after", ("validate",), "decide"),
    "on_train_end": HookPlace("once, when the run ends", "before", (END,)),
}


def hooks_of(graph: GraphData) -> Iterator[tuple[str, str, HookPlace]]:
    """The places that a graph has: the name, the node whose body has it (empty: the graph itself), and the place."""
    for name, place in HOOKS.items():
        bodies = {path: each.body for path, each in graph.nodes.items() if each.body is not None and place.split}
        having = [path for path, inside in {"": graph, **bodies}.items() if _anchor(inside, place)]
        if having:
            yield name, having[0], place


def _anchor(graph: GraphData, place: HookPlace) -> str:
    """The node at which a place is; empty if the graph does not have it."""
    begin = graph.nodes.get("begin_evaluation")
    split = begin.parameters.get("split", "val") if begin is not None else ""
    has_place = split == place.split if place.split else not graph.nodes.keys().isdisjoint(("train_batch", "step"))
    return next((name for name in place.nodes if name in graph.nodes or name == END), "") if has_place else ""


@verb
def hook(self: G, place: str, /, use: str | Callable[..., Any], *, name: str | None = None, **parameters: Any) -> G:
    """Add a node at a place of the procedure that has a name, such as ``"on_train_batch_end"``.

    ``graphtrain show GRAPH --hooks`` lists the places of a graph; the nodes of one run in the order of the calls.
    What the node reads, it reads as any other does: slots, resources, and with `reads` fields of nodes.

    Arguments:
        use: the kind: a name, a function or a class; one that is not marked `node` yet is marked here.
        name: of the node. Default: that of the kind.
        parameters: of the node.

    Raises:
        EditError: there is no such place, the graph has no node for it, or the name is taken.

    >>> from graphtrain import Graph
    >>> def report(loss=None): ...
    >>> graph = Graph.load("fit").hook("on_train_batch_end", report)
    >>> [str(edge) for edge in graph.edges["zero_grad"]], graph.check()
    (['decide if data_exhausted', 'report'], [])
    """
    name = name or (use if isinstance(use, str) else kind_of(use).name)
    paths = {known: path for known, path, _ in hooks_of(self)}
    if place not in paths:
        known = f"it has {', '.join(paths) or 'none'}" if place in HOOKS else suggestion(place, HOOKS)
        raise EditError(f"hook: the graph has no place `{place}`", known, is_missing=place in HOOKS)
    body = self.nodes[paths[place]].body if paths[place] else None
    if body is not None:
        return set(self, paths[place], graph=hook(body, place, use, name=name, **parameters))
    where, anchor, until = HOOKS[place].where, _anchor(self, HOOKS[place]), HOOKS[place].until
    if where == "before":
        return insert(self, name, use, before=anchor, **parameters)
    if where == "start" and self.start != anchor:
        where, anchor, until = "after", self.start, anchor
    if where == "after":
        path = _path(self, anchor, until)
        reaches_until = not until or any(edge.target == until for edge in self.edges.get(path[-1], ()))
        return insert(self, name, use, after=path[-1] if reaches_until else anchor, **parameters)
    inserted = insert(self, name, use, **parameters)
    if where == "start":
        return replace(inserted, start=name, edges={**self.edges, name: (Edge(anchor),)})
    excluded = {*_path(self, self.start, anchor), *(edge.target for edge in self.edges[anchor])}
    edges = {
        source: leaving if source in excluded else tuple(_through(self, leaving, anchor, name))
        for source, leaving in self.edges.items()
    }
    return replace(inserted, edges={**edges, name: (Edge(anchor),)})


def _through(graph: GraphData, leaving: tuple[Edge, ...], hub: str, name: str) -> Iterator[Edge]:
    """Edges of which those to a hub lead through the node `name`, except where there was no batch."""
    for edge in leaving:
        is_of_batch = edge.target == hub and edge.when != _NO_BATCH
        if is_of_batch and edge.when is None and _NO_BATCH in graph.guards:
            yield Edge(hub, _NO_BATCH)
        yield replace(edge, target=name) if is_of_batch else edge


def _path(graph: GraphData, source: str, until: str) -> list[str]:
    """The chain of nodes from `source`, each with one edge; it stops before `until`, the end, or a repeated node."""
    path = [source]
    while len(leaving := graph.edges.get(path[-1], ())) == 1:
        following = leaving[0].target
        if following in (until, END, *path):
            break
        path.append(following)
    return path
