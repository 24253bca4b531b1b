"""The contents of a picture as a value: boxes and arrows of a graph, independent of the format."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from graphtrain.graph.elements import END, Edge, GraphData, Node
from graphtrain.graph.registry import family_of_node, kind_of_node
from graphtrain.kind.fields import ON_GRADIENTS
from graphtrain.viz.theme import HEAT_LEVELS, SIGNS
from graphtrain.viz.wording import (
    LINE_LENGTH,
    kind_line,
    one_line,
    parameter_lines,
    runs_line,
    tooltip,
)

# In an encoded name two hexadecimal digits follow every `+`, so no node can have these keys. (`%` would not do: a name
# that begins with it belongs to Graphviz.)
START_MARK = "+start"
END_MARK = "+end"
RETURN_MARK = "+to"  # follows the key of the source, and is followed by the position of the edge

TITLE_LENGTH = 40  # characters
FEWEST_RETURNS = 3  # of a hub; two arrows back are easier to follow than two names
NUMBERS = "numbers: the order in which the edges of a node are tried"


@dataclass(frozen=True)
class Box:
    """One node of the graph, or a mark: its start, its end, or the name of a hub in which an arrow ends.

    Arguments:
        key: the path of the node, its names encoded by `key_of`; identifiers are their own encoding.
        inside: the key of the body that holds it; empty at the outermost level.
        family: the group of kinds that decides colour and shape; of a mark ``"start"``, ``"end"`` or ``"return"``.
        title: the name of the node, or of the hub.
        lines: the text below it, in smaller type.
        tooltip: everything the graph declares of it.
        main: it is on the main line of its graph.
        runs: how often it ran, in a heat picture.
        heat: `runs` on a logarithmic scale from 0 to 1.
        current: it runs next.
        is_body: other boxes are inside it: those of the body of its node.
        mark: in a picture of a difference, ``"added"``, ``"removed"``, ``"changed"`` or ``"same"``; for a node that a
            run bypasses also ``"same"``, which is pale.
    """

    key: str
    inside: str
    family: str
    title: str
    lines: tuple[str, ...] = ()
    tooltip: str = ""
    main: bool = False
    runs: int | None = None
    heat: float | None = None
    current: bool = False
    is_body: bool = False
    mark: str = ""

    @property
    def heading(self) -> str:
        """Its title, after the sign of its difference."""
        return f"{SIGNS[self.mark]} {self.title}" if self.mark in SIGNS else self.title

    @property
    def text(self) -> tuple[str, ...]:
        """The lines below the title."""
        return (*self.lines, *runs_line(self.runs))

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of its styles; later ones override earlier ones."""
        if self.is_mark:
            return ("return" if self.family == "return" else "mark",)
        heat = (f"heat{round(self.heat * HEAT_LEVELS)}",) if self.heat is not None else ()
        return (self.mark or self.family, *heat, *(("current",) if self.current else ()))

    @property
    def words(self) -> str:
        """The text in a mark of the family ``"return"``."""
        return f"\N{UPWARDS ARROW} {self.title}"

    @property
    def is_mark(self) -> bool:
        return self.family in ("start", "end", "return")


@dataclass(frozen=True)
class MarkedEdge(Edge):
    """An edge of two combined graphs: its number in its graph, its difference, and its former label."""

    number: int | None = None
    mark: str = ""
    former: str = ""


@dataclass(frozen=True)
class Arrow:
    """A declared edge, or the arrow from the start mark.

    Arguments:
        source: the key of a box.
        target: the key of a box.
        number: its priority among the edges of its source, from 1; None where there is only one.
        guard: the name of the guard; None if it is taken always.
        expression: the expression of the guard; None if it is unguarded or the guard is not declared.
        back: it closes a loop, so it should not affect the vertical order.
        main: it lies on the main line of its graph.
        returns_by: the key of the mark in which it is drawn to end, where it returns to a hub; otherwise empty.
        mark: as that of a box.
        former: the number or guard that it had, in a picture of a difference.
    """

    source: str
    target: str
    number: int | None = None
    guard: str | None = None
    expression: str | None = None
    back: bool = False
    main: bool = False
    returns_by: str = ""
    mark: str = ""
    former: str = ""

    @property
    def label(self) -> str:
        """Its number and the name of its guard, if it has them, after the sign of its difference."""
        was = f"(was {self.former})" if self.former else None
        parts = (SIGNS.get(self.mark), self.number, self.guard, was)
        return " ".join(str(part) for part in parts if part is not None)


@dataclass(frozen=True)
class Picture:
    """Boxes and arrows in the order of the graph, bodies last; all text is one line without control characters.

    An arrow out of a body begins at its end mark, one into it ends at its start mark.

    Arguments:
        caption: lines above it.
    """

    name: str
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]
    caption: tuple[str, ...] = ()

    @property
    def bodies(self) -> tuple[Box, ...]:
        return tuple(box for box in self.boxes if box.is_body)

    def inside(self, key: str) -> tuple[list[Box], list[Box]]:
        """The boxes directly inside a body (or outside all, for the empty key), and the bodies there."""
        boxes = [box for box in self.boxes if box.inside == key]
        return [box for box in boxes if not box.is_body], [box for box in boxes if box.is_body]

    def map_boxes(self, change: Callable[[Box], Box]) -> Picture:
        """The same picture with a change made to every box that stands for a node."""
        return replace(self, boxes=tuple(box if box.is_mark else change(box) for box in self.boxes))

    def ends(self) -> Iterator[tuple[Arrow, str, str]]:
        """Each arrow with the keys of the boxes where it is drawn to begin and to end."""
        bodies = {box.key for box in self.bodies}
        for arrow in self.arrows:
            tail = f"{arrow.source}/{END_MARK}" if arrow.source in bodies else arrow.source
            head = f"{arrow.target}/{START_MARK}" if arrow.target in bodies else arrow.target
            yield arrow, tail, arrow.returns_by or head


def picture(
    graph: GraphData,
    counts: Mapping[str, int] | None = None,
    position: str | None = None,
    bypassed: Collection[str] = (),
) -> Picture:
    """The contents of a picture of `graph`, from its declared edges alone; no kind is imported.

    Arguments:
        graph: the graph; it may have problems. Names that are used and not declared are drawn too.
        counts, position, bypassed: as in `render`. A node that is not in `counts` ran 0 times.

    >>> from graphtrain import Graph
    >>> drawn = picture(Graph.load("evaluate"))
    >>> [box.title for box in drawn.boxes if not box.is_mark]
    ['begin_evaluation', 'next_batch', 'eval_batch', 'end_evaluation']
    >>> [(arrow.source, arrow.target, arrow.label) for arrow in drawn.arrows if arrow.back]
    [('eval_batch', 'next_batch', '2')]
    """
    whole = _level(graph, "")
    overlays = (one_line(f"with overlay {', '.join(graph.layers.names)}"),) if graph.layers.names else ()
    legend = [NUMBERS] if any(arrow.number is not None for arrow in whole.arrows) else []  # what is not clear by itself
    if counts is not None:
        latest = ", in a body at its latest visit" if any("/" in path for path in counts) else ""
        legend.append(f"colour: how often a node ran{latest}")
    legend += ["bold outline: runs next"] if position is not None else []
    default = (f"optimizer {graph.optimizer}",) if graph.optimizer else ()
    whole = replace(
        whole,
        boxes=tuple(sorted(whole.boxes, key=lambda box: box.is_body)),
        caption=(whole.name, *overlays, *default, *([" \N{MIDDLE DOT} ".join(legend)] if legend else ())),
    )
    if position is not None:
        whole = whole.map_boxes(lambda box: replace(box, current=box.key == key_of(position.split("/"))))
    if counts is not None:
        runs = {key_of(path.split("/")): count for path, count in counts.items()}
        most = max(runs.values(), default=0)

        def heated(box: Box) -> Box:
            count = runs.get(box.key, 0)
            if box.family == "nested":
                return replace(box, runs=count)  # the heat is that of the boxes inside
            return replace(box, runs=count, heat=math.log1p(count) / math.log1p(most) if most > 0 else 0.0)

        whole = whole.map_boxes(heated)
    keys = {key_of(path.split("/")) for path in bypassed}
    return whole.map_boxes(lambda box: _pale(box, keys))


def key_of(names: Iterable[str]) -> str:
    """The key of the box for a path of names.

    >>> key_of(["validate", "next_batch"]), key_of(["a:b"])
    ('validate/next_batch', 'a+3Ab')
    """
    return "/".join(quote(name, safe="", errors="surrogatepass").replace("%", "+") or "+empty" for name in names)


def _pale(box: Box, bypassed: Collection[str]) -> Box:
    """A box that a run bypasses, or that is in one of those, is pale."""
    if not any(box.key == key or box.key.startswith(f"{key}/") for key in bypassed):
        return box
    lines = (*box.lines, "bypassed") if box.key in bypassed else box.lines
    return replace(box, lines=lines, mark="same", runs=None, heat=None)


_ROLES = ("model", "optimizer", "training_step")


def _roles(node: Node, graph: GraphData) -> dict[str, str]:
    """The model, the optimizer and the step function of a node, if its mark or the graph names them."""
    kind = kind_of_node(node)
    effects = {action.effect for action in kind.actions} if kind is not None else set()
    known: dict[str, Any] = {"model": "model", "training_step": "training_step"} if "backward" in effects else {}
    known |= {"optimizer": graph.optimizer or "optimizer"} if effects & set(ON_GRADIENTS) else {}
    known = {**known, **{role: node.reads[role] for role in _ROLES if role in node.reads}}
    texts = {role: ", ".join(name) if isinstance(name, list | tuple) else str(name) for role, name in known.items()}
    return {role: texts[role] for role in _ROLES if role in texts}


def _level(graph: GraphData, inside: str) -> Picture:
    """One graph, with the graphs nested in it; `inside` is the key of the node whose body it is."""
    roles = {name: _roles(node, graph) for name, node in graph.nodes.items()}
    several = {
        role for role in _ROLES if len({found[role] for found in roles.values() if role in found}) > 1
    }  # if there is only one, every node has it
    prefix = f"{inside}/" if inside else ""
    back = back_edges(graph)
    main = main_line(graph, back)
    on_main = {graph.start, *(graph.edges[source][position].target for source, position in main)}
    returning = returns(graph, back)

    boxes = [Box(prefix + START_MARK, inside, "start", "", main=True)]
    arrows = [Arrow(prefix + START_MARK, _target(prefix, graph.start), main=True)]
    for name, node in _used(graph).items():
        key = prefix + key_of([name])
        box = _box(node, key, inside, declared=name in graph.nodes, main=name in on_main)
        used = [one_line(text, LINE_LENGTH) for role, text in roles.get(name, {}).items() if role in several]
        boxes.append(replace(box, lines=(*box.lines, *used)))
        if node.body is not None:
            body = _level(node.body, key)
            boxes += body.boxes
            arrows += body.arrows
    for source, edges in graph.edges.items():
        for position, edge in enumerate(edges):
            guard = None if edge.when is None else one_line(edge.when, TITLE_LENGTH)
            expression = graph.guards.get(edge.when) if edge.when is not None else None
            key = prefix + key_of([source])
            returns_by = f"{key}{RETURN_MARK}{position + 1}" if (source, position) in returning else ""
            if returns_by:
                boxes.append(Box(returns_by, inside, "return", one_line(edge.target, TITLE_LENGTH)))
            if not isinstance(edge, MarkedEdge):
                edge = MarkedEdge(edge.target, edge.when, number=position + 1 if len(edges) > 1 else None)
            arrows.append(
                Arrow(
                    source=key,
                    target=_target(prefix, edge.target),
                    number=edge.number,
                    guard=guard,
                    expression=None if expression is None else one_line(expression),
                    back=(source, position) in back,
                    main=(source, position) in main,
                    returns_by=returns_by,
                    mark=edge.mark,
                    former=one_line(edge.former, LINE_LENGTH),
                )
            )
    if inside or any(arrow.target == END_MARK for arrow in arrows):
        boxes.append(Box(prefix + END_MARK, inside, "end", ""))
    return Picture(one_line(graph.name), tuple(boxes), tuple(arrows))


def _target(prefix: str, name: str) -> str:
    return prefix + (END_MARK if name == END else key_of([name]))


def _used(graph: GraphData) -> dict[str, Node]:
    """The nodes of a graph; for a graph with problems also the names it uses without declaring them."""
    names = [graph.start, *graph.edges, *(edge.target for edges in graph.edges.values() for edge in edges)]
    return {**graph.nodes, **{name: Node(name, name) for name in names if name not in graph.nodes and name != END}}


def _box(node: Node, key: str, inside: str, declared: bool, main: bool) -> Box:
    lines = (kind_line(node), *parameter_lines(node)) if declared else ("not declared",)
    return Box(
        key=key,
        inside=inside,
        family=family_of_node(node),
        title=one_line(node.name, TITLE_LENGTH),
        lines=tuple(line for line in lines if line),
        tooltip=one_line(tooltip(node)),
        main=main,
        is_body=node.body is not None,
    )


# ---- the flow of a graph: the edges that close its loops, and its main line

Place = tuple[str, int]  # a source, and the position of an edge among those of the source


def back_edges(graph: GraphData) -> frozenset[Place]:
    """The edges that lead to a node on the path from the start to their source: without them there is no cycle.

    Depth first from the start, then from what the start does not reach; the last edge of a node, which is taken where
    no guard holds, goes first, so that the usual path runs downwards.

    >>> from graphtrain import Graph
    >>> sorted(back_edges(Graph.load("evaluate")))
    [('eval_batch', 1)]
    """
    found: set[Place] = set()
    done: set[str] = set()
    for root in (graph.start, *graph.edges):
        if root in done:
            continue
        path = [root]
        open_edges = {root: _reversed_edges(graph, root)}
        while path:
            source = path[-1]
            if not open_edges[source]:
                done.add(path.pop())
                del open_edges[source]
                continue
            position, target = open_edges[source].pop(0)
            if target in open_edges:
                found.add((source, position))
            elif target not in done and target != END:
                path.append(target)
                open_edges[target] = _reversed_edges(graph, target)
    return frozenset(found)


def _reversed_edges(graph: GraphData, source: str) -> list[tuple[int, str]]:
    return [(position, edge.target) for position, edge in enumerate(graph.edges.get(source, ()))][::-1]


def returns(graph: GraphData, back: frozenset[Place]) -> frozenset[Place]:
    """The edges that a picture ends in the name of their target, a hub, to which several lead back.

    >>> from graphtrain import Graph
    >>> fit = Graph.load("fit")
    >>> {fit.edges[source][position].target for source, position in returns(fit, back_edges(fit))}
    {'decide'}
    """
    targets = {(source, position): graph.edges[source][position].target for source, position in back}
    count = Counter(targets.values())
    return frozenset(
        place for place, target in targets.items() if place[0] != target and count[target] >= FEWEST_RETURNS
    )


def main_line(graph: GraphData, back: frozenset[Place]) -> tuple[Place, ...]:
    """The edges that a picture draws as one straight line: from the start, always the last edge that leads on.

    >>> from graphtrain import Graph
    >>> fit = Graph.load("fit")
    >>> [source for source, _ in main_line(fit, back_edges(fit))]
    ['decide', 'next_batch', 'train_batch', 'accumulate', 'exchange', 'clip', 'step']
    """
    line: list[Place] = []
    source: str | None = graph.start
    while source is not None:
        onward = [p for p, target in _reversed_edges(graph, source) if target != END and (source, p) not in back]
        if onward:
            line.append((source, onward[0]))
        source = graph.edges[source][onward[0]].target if onward else None
    return tuple(line)
