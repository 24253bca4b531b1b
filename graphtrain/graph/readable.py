"""A graph as text to be read: what ``print(graph)`` shows."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from graphtrain.graph.elements import Edge, kind_text, settings_of
from graphtrain.graph.layers import node as node_key
from graphtrain.graph.layers import overlays_text
from graphtrain.printable import one_line

if TYPE_CHECKING:
    from graphtrain.graph.graph import Graph

_WIDEST = 48  # characters of a column; what is wider has a line to itself
_CLOCK_WIDTH = 100  # characters


def readable_text(graph: Graph) -> str:
    """The nodes with what the graph sets of them, their edges in order, the guards and the clock.

    The body of a node stands below it, indented.

    >>> from graphtrain.graph import Graph
    >>> print(readable_text(Graph.load("evaluate")))
    graph evaluate: start begin_evaluation; outputs metrics; optional val_data
      begin_evaluation  split = "val"  -> next_batch
      next_batch        repeat = true, reads indices from val_indices, reads train_data from val_data
                                       -> end_evaluation if data_exhausted, eval_batch
      eval_batch                       -> end_evaluation if last_batch, next_batch
      end_evaluation                   -> end
      guards  data_exhausted  next_batch.exhausted
              last_batch      next_batch.last
      clock   batches = next_batch.batches, samples = next_batch.samples
    """
    return "\n".join(_lines(graph, ""))


def _lines(graph: Graph, indent: str) -> Iterator[str]:
    lists = {key: getattr(graph, key) for key in ("outputs", "optional", "allow")}
    lists["overlays"] = graph.layers.names
    lists["optimizer"] = (graph.optimizer,) if graph.optimizer else ()
    head = [f"start {graph.start}", *(f"{key} {', '.join(values)}" for key, values in lists.items() if values)]
    yield indent + one_line(f"graph {graph.name}: {'; '.join(head)}")
    indent += "  "
    settings = {name: _settings(graph, name) for name in dict.fromkeys([*graph.nodes, *graph.edges])}
    names, words = _width(settings), _width(settings.values())
    for name, setting in settings.items():
        beginning = f"{one_line(name):<{names}}  {setting:<{words}}"
        if len(beginning) > names + 2 + words:
            yield indent + beginning.rstrip()
            beginning = " " * (names + 2 + words)
        first, *others = _edges(graph.edges.get(name, ()))
        yield f"{indent}{beginning}  -> {first}"
        yield from (f"{indent}{' ' * (names + 2 + words)}     {edge}" for edge in others)
        if name in graph.nodes and (body := graph.nodes[name].body) is not None:
            yield from _lines(body, indent + "  ")
    width = _width(graph.guards)
    for heading, (name, expression) in zip(_headings("guards"), graph.guards.items(), strict=False):
        overlays = overlays_text(graph.layers.overlays_of_guard(name))
        text = " ".join(expression.split()) + (f"  ({overlays})" if overlays else "")
        yield f"{indent}{heading}  {one_line(name):<{width}}  {one_line(text)}"
    units = ", ".join(f"{unit} = {field}" for unit, field in graph.units.items())
    yield from (
        f"{indent}{heading}  {line}"
        for heading, line in zip(_headings("clock"), _wrapped(one_line(units)), strict=False)
    )


def _wrapped(units: str) -> list[str]:
    """Lines that break between units, not inside of one."""
    whole = units.replace(" = ", "\0=\0")
    return [line.replace("\0", " ") for line in textwrap.wrap(whole, _CLOCK_WIDTH)]


def _settings(graph: Graph, name: str) -> str:
    if name not in graph.nodes:
        return "not declared"
    node = graph.nodes[name]
    kind = kind_text(node) if node.body is None else ""  # the name of a body stands above its nodes
    overlay = graph.layers.overlay_of(node_key(name))
    return one_line(", ".join(filter(None, (kind, *settings_of(node), overlay and overlays_text([overlay])))))


def _edges(edges: tuple[Edge, ...]) -> list[str]:
    """Up to two edges on one line, in order; more as a numbered list."""
    words = [one_line(str(edge)) for edge in edges]
    if len(words) < 3:
        return [", ".join(words) or "no edge"]
    return [f"{number}. {edge}" for number, edge in enumerate(words, start=1)]


def _width(texts: Iterable[str]) -> int:
    """The width of a column that holds the texts; wider ones do not count."""
    return max((len(text) for text in map(one_line, texts) if len(text) <= _WIDEST), default=0)


def _headings(heading: str) -> Iterator[str]:
    """What stands before the lines of a section: its heading, then spaces."""
    yield f"{heading:<6}"
    while True:
        yield " " * 6
