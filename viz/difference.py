"""Two graphs in one picture: what only one of them has, and what differs in both, by colour, line and sign."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from graphtrain.graph import Graph
from graphtrain.graph.difference import Change, Difference, paired_edges
from graphtrain.graph.elements import Edge, Node
from graphtrain.viz.picture import NUMBERS, START_MARK, Arrow, Box, Picture, key_of, picture
from graphtrain.viz.theme import SIGNS
from graphtrain.viz.wording import LINE_LENGTH, first_few, one_line

MOST_LINES = 5  # of a node, and of what stands above the picture
_DRAWN = ("node", "kind", "parameter", "reads", "writes", "edge", "order", "start")


@dataclass(frozen=True)
class _Drawn:
    """An edge of both graphs together: how it differs, its number in its own graph, and what it was."""

    edge: Edge
    mark: str
    number: int | None
    former: str = ""


def difference_picture(difference: Difference) -> Picture:
    """What a picture of a difference shows: the second graph, and in it what only the first one has.

    What is the same is grey. Green, thick and ``+`` is what was added; orange, dotted and ``\N{MINUS SIGN}`` what was
    removed; blue, double and ``~`` what was changed. What has no place in the picture stands above it.

    >>> fit = Graph.load("fit")
    >>> drawn = difference_picture(fit.diff(fit.insert("pause", "choice", after="step")))
    >>> [box.title for box in drawn.boxes if box.mark == "added"]
    ['pause']
    >>> [(arrow.source, arrow.target, arrow.mark) for arrow in drawn.arrows if arrow.mark in SIGNS]
    [('step', 'zero_grad', 'removed'), ('step', 'pause', 'added'), ('pause', 'zero_grad', 'added')]
    """
    leaving: dict[str, list[_Drawn]] = {}
    union = _union(difference.before, difference.after, "", leaving)
    drawn = picture(union)
    changes: dict[str, list[Change]] = {}
    for change in difference.changes:
        if change.what in ("kind", "parameter", "reads", "writes"):
            changes.setdefault(_key(change.path.partition(".")[0]), []).append(change)
    marks = {_key(change.path): change.how for change in difference.changes if change.what == "node"}
    drawn = drawn.map_boxes(lambda box: _marked(box, marks, changes.get(box.key, [])))
    guards = {edge.edge.when for edges in leaving.values() for edge in edges}
    return replace(
        drawn,
        name=one_line(f"{difference.before.name} and {difference.after.name}"),
        arrows=tuple(_arrows(drawn, leaving, difference)),
        caption=tuple(_caption(difference, {name for name in guards if name is not None})),
    )


def _key(path: str) -> str:
    return key_of(path.split("/"))


def _union(before: Graph, after: Graph, prefix: str, leaving: dict[str, list[_Drawn]]) -> Graph:
    """A graph with everything of both; `leaving` takes the edges of each source, by the key of its box."""
    nodes: dict[str, Node] = {}
    removed = {name: node for name, node in before.nodes.items() if name not in after.nodes}
    for name, node in {**after.nodes, **removed}.items():
        former = before.nodes.get(name)
        if node.body is not None and former is not None and former.body is not None:
            node = replace(node, body=_union(former.body, node.body, f"{prefix}{key_of([name])}/", leaving))
        elif node.body is not None:
            _remember(node.body, f"{prefix}{key_of([name])}/", leaving)
        nodes[name] = node
    edges = {}
    for source in dict.fromkeys([*after.edges, *before.edges]):
        drawn = list(_both(before.edges.get(source, ()), after.edges.get(source, ()), before, after))
        leaving[prefix + key_of([source])] = drawn
        edges[source] = tuple(drawn_edge.edge for drawn_edge in drawn)
    return replace(after, nodes=nodes, edges=edges, guards={**before.guards, **after.guards})


def _remember(body: Graph, prefix: str, leaving: dict[str, list[_Drawn]]) -> None:
    """The edges inside a node that only one graph has: they look as it does."""
    for source, edges in body.edges.items():
        leaving[prefix + key_of([source])] = [
            _Drawn(edge, "", position + 1 if len(edges) > 1 else None) for position, edge in enumerate(edges)
        ]
    for name, node in body.nodes.items():
        if node.body is not None:
            _remember(node.body, f"{prefix}{key_of([name])}/", leaving)


def _both(old: tuple[Edge, ...], new: tuple[Edge, ...], before: Graph, after: Graph) -> Iterator[_Drawn]:
    """The edges of a source in both graphs. Those of the first come first: the last edge is that of the main line."""
    replaced: dict[int, Edge] = {}
    for former, edge in paired_edges(old, new):
        if former is not None and edge is not None:
            replaced[id(edge)] = former
        if former is not None and (edge is None or edge.target != former.target):
            yield _Drawn(former, "removed", _number(old, former))
    left = Counter(map(str, old)) & Counter(map(str, new))
    orders = [[str(edge) for edge in edges if str(edge) in left] for edges in (old, new)]
    for edge in new:
        number, former = _number(new, edge), replaced.get(id(edge))
        if not left[str(edge)]:
            if former is not None and former.target == edge.target:
                yield _Drawn(edge, "changed", number, former.when or "always")
            else:
                yield _Drawn(edge, "added", number)
            continue
        left[str(edge)] -= 1
        text = str(edge)
        if orders[0] != orders[1] and orders[0].index(text) != orders[1].index(text):
            yield _Drawn(edge, "changed", number, str(_number(old, next(edge for edge in old if str(edge) == text))))
        elif edge.when is not None and before.guards.get(edge.when) != after.guards.get(edge.when):
            yield _Drawn(edge, "changed", number)
        else:
            yield _Drawn(edge, "", number)


def _number(edges: tuple[Edge, ...], edge: Edge) -> int | None:
    if len(edges) < 2:
        return None
    return 1 + next(position for position, candidate in enumerate(edges) if candidate is edge)


def _marked(box: Box, marks: Mapping[str, str], changes: list[Change]) -> Box:
    around = [key for key in marks if box.key == key or box.key.startswith(f"{key}/")]
    if around:
        return replace(box, mark=marks[around[0]])
    if not changes:
        return replace(box, mark="same", lines=box.lines[:1] if box.family == "nested" else ())
    return replace(box, mark="changed", lines=tuple(first_few([_line(change) for change in changes], MOST_LINES)))


def _line(change: Change) -> str:
    before, after = change.values
    name = change.name.partition(".")[2] if change.what != "kind" else "kind"
    return one_line(f"{name}: {before} \N{RIGHTWARDS ARROW} {after}", LINE_LENGTH + 8)


def _arrows(drawn: Picture, leaving: dict[str, list[_Drawn]], difference: Difference) -> Iterator[Arrow]:
    marks = {box.key: box.mark for box in (*drawn.boxes, *(cluster.node for cluster in drawn.clusters))}
    starts = {
        f"{_key(change.inside)}/" if change.inside else "": str(change.before)
        for change in difference.changes
        if change.what == "start"
    }
    seen: Counter[str] = Counter()
    for arrow in drawn.arrows:
        prefix, is_start, _ = arrow.source.rpartition(START_MARK)
        if is_start:
            if prefix in starts:
                former = prefix + key_of([starts[prefix]])
                yield replace(arrow, target=former, mark="removed", main=False)
            yield replace(arrow, mark="added" if prefix in starts else "")
            continue
        edge = leaving[arrow.source][seen[arrow.source]]
        seen[arrow.source] += 1
        mark = edge.mark
        if not mark and marks.get(arrow.source) in ("added", "removed"):
            mark = marks[arrow.source]
        guard = arrow.guard if edge.edge.when is not None else None
        yield replace(arrow, number=edge.number, guard=guard, mark=mark, former=one_line(edge.former, LINE_LENGTH))


def _caption(difference: Difference, drawn_guards: set[str]) -> Iterator[str]:
    """The names, what the signs mean, and what has no place in the picture."""
    before, after = one_line(difference.before.name, LINE_LENGTH), one_line(difference.after.name, LINE_LENGTH)
    yield f"{before} \N{RIGHTWARDS ARROW} {after}" if before != after else before
    signs = "   ".join(f"{sign} {how}" for how, sign in SIGNS.items()) if difference else "no difference"
    yield f"{signs} \N{MIDDLE DOT} {NUMBERS}"
    rest = [
        f"{SIGNS[change.how]} {change}"
        for change in difference.changes
        if change.what not in (*_DRAWN, "name")
        and not (change.what == "guard" and (change.how != "changed" or change.name in drawn_guards) and change.matters)
    ]
    yield from (one_line(line, 3 * LINE_LENGTH) for line in first_few(rest, MOST_LINES))
