"""A graph as boxes and arrows: what its pictures show, in every format."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from graphtrain.graph.elements import END, GraphData, Node, kind_text, nodes_of, settings_of
from graphtrain.graph.registry import family_of_node
from graphtrain.printable import shown
from graphtrain.viz.theme import HEAT_LEVELS, SIGNS

# In an encoded name two hexadecimal digits follow every `+`, so no node can have these keys.
START_MARK = "+start"
END_MARK = "+end"

TITLE_LENGTH = 40  # characters
LINE_LENGTH = 36
TOOLTIP_LENGTH = 400
MOST_LINES = 4  # of settings of a node
FEWEST_RETURNS = 3  # of a hub; two arrows back are easier to follow than two names
NUMBERS = "numbers: the order in which the edges of a node are tried"


@dataclass
class Box:
    """A node of the graph, or a mark: its start, its end, or the name of a hub in which an arrow ends."""

    key: str  # the path of the node, its names encoded by `key_of`
    inside: str  # the key of the body that holds it; empty at the outermost level
    family: str  # decides the shape; of a mark "start", "end" or "return"
    classes: list[str]  # the names of its colours; later ones override earlier ones
    title: str = ""
    node: Node | None = None  # None for a mark
    path: str = ""  # of the node
    lines: list[str] = field(default_factory=list)  # below the title, in smaller type
    main: bool = False  # on the main line of its graph
    is_body: bool = False  # other boxes are inside it
    width: float = 1.2  # of the outline


@dataclass
class Arrow:
    """A declared edge, or the arrow from the start mark."""

    key: str  # of the edge, as in `graphtrain.Run.activity`: "accumulate -> decide"
    source: str  # the keys of the boxes that it connects
    target: str
    tail: str  # the keys of the boxes where it is drawn to begin and to end: a mark inside of a body, a hub's name
    head: str
    number: int | None = None  # its priority among the edges of its source, from 1; None where there is only one
    guard: str | None = None  # None if it is taken always
    expression: str = ""  # of the guard
    back: bool = False  # closes a loop, so it should not affect the vertical order
    main: bool = False  # on the main line of its graph
    mark: str = ""  # its difference: "added", "removed" or "changed"
    former: int | None = None  # the number that it had, where that differs
    count: int | None = None  # how often it was taken

    @property
    def label(self) -> str:
        """Its number and the name of its guard, if it has them, after the sign of its difference."""
        parts = (SIGNS.get(self.mark), self.number, self.guard, f"(was {self.former})" if self.former else None)
        return " ".join(str(part) for part in parts if part is not None)


@dataclass
class Description:
    """Boxes and arrows in the order of the graph; all text is one line without control characters."""

    name: str
    caption: list[str] = field(default_factory=list)  # lines above the picture
    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)

    @property
    def nodes(self) -> Iterator[Box]:
        """The boxes that stand for nodes."""
        return (box for box in self.boxes if box.node is not None)

    def inside(self, key: str) -> tuple[list[Box], list[Box]]:
        """The boxes directly inside a body (or outside all, for the empty key), and the bodies there."""
        boxes = [box for box in self.boxes if box.inside == key]
        return [box for box in boxes if not box.is_body], [box for box in boxes if box.is_body]


def describe(
    graph: GraphData,
    counts: Mapping[str, int] | None = None,
    position: str | None = None,
    bypassed: Collection[str] = (),
    folded: Collection[str] = (),
) -> Description:
    """What a picture of `graph` shows, with or without problems.

    Arguments:
        graph: the graph; names that are used and not declared are drawn too.
        counts, position, bypassed: as in `render`. A node that is not in `counts` ran 0 times; edges may be in it too.
        folded: the paths of bodies that are drawn as one box, as are those that never ran and do not hold `position`.

    >>> from graphtrain import Graph
    >>> drawn = describe(Graph.load("evaluate"))
    >>> [box.title for box in drawn.nodes]
    ['begin_evaluation', 'next_batch', 'eval_batch', 'end_evaluation']
    >>> [(arrow.key, arrow.label) for arrow in drawn.arrows if arrow.back]
    [('eval_batch -> next_batch', '2')]
    """
    drawn = Description(shown(graph.name))
    bodies = [path for path, node in nodes_of(graph).items() if node.body is not None]
    inside = str(position)
    idle = [path for path in bodies if counts is not None and not (counts.get(path) or inside.startswith(f"{path}/"))]
    _add_level(drawn, graph, (), {*folded, *idle})
    legend = [NUMBERS] if any(arrow.number is not None for arrow in drawn.arrows) else []  # what is not clear by itself
    if counts is not None:
        latest = ", in a body at its latest visit" if any("/" in path for path in counts) else ""
        legend.append(f"colour: how often a node ran{latest}")
        _add_counts(drawn, counts)
    for box in drawn.nodes:
        if box.path == position:
            box.classes.append("current")
            box.width = 4.0
        if any(box.path == path or box.path.startswith(f"{path}/") for path in bypassed):
            box.lines, box.classes = ["bypassed"], ["same"]
    legend += ["bold outline: runs next"] if position is not None else []
    drawn.caption = [
        drawn.name,
        *([shown(f"with overlay {', '.join(graph.layers.names)}")] if graph.layers.names else []),
        *([f"optimizer {graph.optimizer}"] if graph.optimizer else []),
        *([" \N{MIDDLE DOT} ".join(legend)] if legend else []),
    ]
    return drawn


def key_of(names: Iterable[str]) -> str:
    """The key of the box for a path of names: ``"validate/next_batch"``."""
    return "/".join(quote(name, safe="", errors="surrogatepass").replace("%", "+") or "+empty" for name in names)


def first_few(lines: list[str], most: int) -> list[str]:
    """At most `most` lines: where there are more, the last one says how many are left out, and that is never one."""
    return lines if len(lines) <= most else [*lines[: most - 1], f"and {len(lines) - most + 1} more"]


def _add_counts(drawn: Description, counts: Mapping[str, int]) -> None:
    """Warmer and thicker the more often a node ran; the warmth of a body is that of the boxes inside."""
    most = max((counts.get(box.path, 0) for box in drawn.nodes), default=0)
    for box in drawn.nodes:
        runs = counts.get(box.path, 0)
        box.lines.append("1 run" if runs == 1 else f"{runs:,} runs")
        if not box.is_body:
            heat = math.log1p(runs) / math.log1p(most) if most > 0 else 0.0
            box.classes.append(f"heat{round(heat * HEAT_LEVELS)}")
            box.width = 1 + 1.5 * heat
    for arrow in drawn.arrows:
        arrow.count = counts.get(arrow.key)


def _add_level(drawn: Description, graph: GraphData, inside: tuple[str, ...], folded: Collection[str]) -> None:
    """Add one graph, and those nested in it; `inside` is the path of the node whose body it is."""
    body, path = key_of(inside), "".join(f"{name}/" for name in inside)
    prefix = f"{body}/" if inside else ""
    back, main = _flow(graph)
    hubs = Counter(graph.edges[source][position].target for source, position in back)
    names = [graph.start, *graph.edges, *(edge.target for edges in graph.edges.values() for edge in edges)]
    undeclared = {name: Node(name, name) for name in names if name not in graph.nodes and name != END}
    bodies = {name for name, node in graph.nodes.items() if node.body is not None and path + name not in folded}

    def key(name: str) -> str:
        return prefix + (END_MARK if name == END else key_of([name]))

    def head(name: str) -> str:
        return f"{key(name)}/{START_MARK}" if name in bodies else key(name)

    start = prefix + START_MARK
    drawn.boxes.append(Box(start, body, "start", ["mark"], main=True))
    drawn.arrows.append(Arrow(f"{path} -> {graph.start}", start, key(graph.start), start, head(graph.start), main=True))
    on_main = {graph.start, *(graph.edges[source][position].target for source, position in main)}
    for name, node in {**graph.nodes, **undeclared}.items():
        family, title = family_of_node(node), shown(node.name, TITLE_LENGTH)
        box = Box(key(name), body, family, [family], title, node, path + name, main=name in on_main)
        box.lines = _lines(node) if name in graph.nodes else ["not declared"]
        drawn.boxes.append(box)
        if node.body is not None and name in bodies:
            box.is_body = True
            _add_level(drawn, node.body, (*inside, name), folded)
    for source, edges in graph.edges.items():
        for position, edge in enumerate(edges):
            index = source, position
            arrow = Arrow(
                key=f"{path}{source} -> {edge}",
                source=key(source),
                target=key(edge.target),
                tail=f"{key(source)}/{END_MARK}" if source in bodies else key(source),
                head=head(edge.target),
                number=position + 1 if len(edges) > 1 else None,
                guard=None if edge.when is None else shown(edge.when, TITLE_LENGTH),
                expression=shown(graph.guards.get(edge.when or "", ""), TOOLTIP_LENGTH),
                back=index in back,
                main=index in main,
            )
            if arrow.back and source != edge.target and hubs[edge.target] >= FEWEST_RETURNS:
                arrow.head = f"{arrow.source}+to{position + 1}"
                title = f"\N{UPWARDS ARROW} {shown(edge.target, TITLE_LENGTH)}"
                drawn.boxes.append(Box(arrow.head, body, "return", ["return"], title))
            drawn.arrows.append(arrow)
    if inside or any(arrow.target == END_MARK for arrow in drawn.arrows):
        drawn.boxes.append(Box(prefix + END_MARK, body, "end", ["mark"]))


def _lines(node: Node) -> list[str]:
    """Its kind, its settings, and the model, the optimizer and the step function that it names."""
    settings = [line for line in settings_of(node) if not line.startswith(("reads ", "writes "))]
    named = [node.reads[role] for role in ("model", "optimizer", "training_step") if role in node.reads]
    roles = [name if isinstance(name, str) else ", ".join(name) for name in named]
    lines = [kind_text(node).removeprefix("graph "), *first_few(settings, MOST_LINES), *roles]
    return [shown(line, LINE_LENGTH) for line in lines if line and line != node.name]


def _flow(graph: GraphData) -> tuple[set[tuple[str, int]], list[tuple[str, int]]]:
    """The edges that close a loop, and those of the main line, which leads from the start always by the last edge.

    Each is a source and a position. Depth first; the last edge of a node goes first: the usual path runs downwards.
    """
    back, line = set[tuple[str, int]](), list[tuple[str, int]]()
    is_on_path: dict[str, bool] = {}
    untried: dict[str, list[tuple[str, int]]] = {}
    is_first_path = True
    for root in (graph.start, *graph.edges):
        path = [] if root in is_on_path else [root]
        while path:
            source = path[-1]
            if source not in is_on_path:
                is_on_path[source] = True
                untried[source] = [(edge.target, number) for number, edge in enumerate(graph.edges.get(source, ()))]
            if not untried[source]:
                is_on_path[path.pop()] = is_first_path = False
                continue
            target, position = untried[source].pop()
            if is_on_path.get(target):
                back.add((source, position))
            elif target not in is_on_path and target != END:
                path.append(target)
                line += [(source, position)] if is_first_path else []
    return back, line
