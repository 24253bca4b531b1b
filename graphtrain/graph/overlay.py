"""Overlays: lists of edits that several people write for one graph, without knowing each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from graphtrain.errors import EditError, GraphError, UsageError
from graphtrain.graph import layers as of
from graphtrain.graph.edits import VERBS, Edit, edge_text, node_at, placed
from graphtrain.graph.elements import Place, Problem
from graphtrain.graph.layers import Touch
from graphtrain.graph.registry import effects_of, known_kinds
from graphtrain.kind.parameter import show_value
from graphtrain.names import quoted
from graphtrain.printable import shorten

if TYPE_CHECKING:
    from graphtrain.graph.graph import Graph

_GONE = ("removed", "renamed ", "to ")  # how the values of `Edit.touches` begin for what is removed
_MOST_SHOWN = 60  # characters of a value


@dataclass(frozen=True)
class Overlay:
    """A list of edits without a base.

    Arguments:
        name: its name in messages and pictures.
        head: those of `start`, `outputs`, `optional` and `optimizer` that it replaces.
        allow: intended problems, added to those of the graph.
        place: its file.
    """

    name: str
    edits: tuple[Edit, ...]
    place: Place
    head: Mapping[str, Any] = field(default_factory=dict)
    allow: tuple[str, ...] = ()


class _RefusedError(EditError):
    """Two overlays that do not compose."""

    def __init__(self, first: str, second: str, reason: str) -> None:
        super().__init__(
            f"overlays `{first}` and `{second}` do not compose: {reason}",
            "leave one of them out, or take a copy of one with another value: graphtrain copy NAME my_overlay.toml",
        )


def composed(graph: Graph, overlays: Sequence[Overlay]) -> tuple[Graph, list[Problem]]:
    """The graph with the edits of all overlays, and a problem for each edit that cannot be made.

    Edits with `if_there` are made once their nodes exist, whichever overlay adds these.
    """
    problems: list[Problem] = []
    taken = {edit.subject for overlay in overlays for edit in overlay.edits if edit.verb in ("remove", "rename")}

    def made(graph: Graph, edit: Edit, last: Mapping[str, str]) -> Graph:
        try:
            return _with_edit(graph, edit, last)
        except (EditError, UsageError, GraphError) as error:
            problems.append(Problem("G005", "error", str(edit.place), error.message, error.hint))
            return graph

    for overlay in overlays:
        touched = dict(graph.layers.touched)
        try:
            for key, value in overlay.head.items():
                _touch(touched, overlay.name, f"`{key}`", show_value(value))
        except EditError as error:
            problems.append(Problem("G005", "error", str(overlay.place), error.message, error.hint))
        else:
            layers = replace(graph.layers, names=(*graph.layers.names, overlay.name), touched=touched)
            places = {**graph.places, "start": overlay.place} if "start" in overlay.head else graph.places
            allow = tuple(dict.fromkeys((*graph.allow, *overlay.allow)))
            graph = replace(graph, **overlay.head, allow=allow, layers=layers, places=places)
        lost: set[str] = set()  # the nodes that it would have added
        last, waiting = graph.layers.last, []  # what this overlay adds is placed by its own edits, without regard to it
        for edit in overlay.edits:
            if edit.if_there and not edit.has_nodes(graph, taken):
                waiting.append(edit)
            elif lost.isdisjoint(edit.nodes()):  # consequences of a problem are not reported
                count = len(problems)
                graph = made(graph, edit, last)
                if len(problems) > count and _instead(graph, edit):  # the overlay has to be left out
                    break
                if len(problems) > count and edit.verb in ("insert", "nest"):
                    lost.add(edit.subject)
        graph = replace(graph, layers=replace(graph.layers, waiting=(*graph.layers.waiting, *waiting)))
    is_new = True
    while is_new:
        ready = [edit for edit in graph.layers.waiting if edit.has_nodes(graph)]
        rest = tuple(edit for edit in graph.layers.waiting if edit not in ready)
        graph = replace(graph, layers=replace(graph.layers, waiting=rest))
        for edit in ready:
            graph = made(graph, edit, graph.layers.last)
        is_new = bool(ready)
    return graph, problems


def _touch(touched: dict[str, Touch], overlay: str, what: str, value: str) -> None:
    """Note the result of a change by an overlay.

    Raises:
        EditError: another overlay has another result.
    """
    former = touched.get(what)
    if former is not None and former.overlay != overlay and former.value != value:
        if what.startswith("node "):
            gone = [touch.overlay for touch in (former, Touch(overlay, value)) if touch.value == "removed"]
            reason = f"`{gone[0]}` removes {what}" if gone else f"each defines another {what}"
        else:
            values = " and ".join(shorten(text, _MOST_SHOWN) for text in (former.value, value))
            reason = f"{what} would be both {values}"
        raise _RefusedError(former.overlay, overlay, reason)
    touched[what] = Touch(overlay, value)


def _with_edit(graph: Graph, edit: Edit, last: Mapping[str, str]) -> Graph:
    """The graph with one edit of an overlay; `last` is where earlier overlays have added something."""
    layers, overlay = graph.layers, edit.overlay
    if layers.done.get(edit.text, overlay) != overlay:
        return graph  # another overlay has made the very same edit
    needed = [*map(of.node, edit.nodes()), *(edge_text(*ends) for ends in edit.edges())]
    _expect_own_kind(graph, edit)
    touches = dict(edit.touches(graph))
    for what in needed:
        touch = layers.touched.get(what) if what not in touches else None
        if touch is not None and touch.overlay != overlay and touch.value.startswith(_GONE):
            raise _RefusedError(touch.overlay, overlay, f"`{touch.overlay}` removes {what}, which `{overlay}` needs")
    touched = dict(layers.touched)
    for what, value in touches.items():
        _touch(touched, overlay, what, value)
        needed_by = layers.anchors.get(what, overlay)
        if VERBS[edit.verb].takes_away and needed_by != overlay:
            raise _RefusedError(needed_by, overlay, f"`{overlay}` removes {what}, which `{needed_by}` needs")
    try:
        edited = _placed_after_others(graph, edit, last)
    except (EditError, UsageError, GraphError) as error:
        others = [layers.anchors[what] for what in needed if layers.anchors.get(what, overlay) != overlay]
        if others:
            raise _RefusedError(others[0], overlay, error.message) from None
        hint = _instead(graph, edit) or _elsewhere(graph, edit) or error.hint
        raise EditError(f"overlay `{overlay}`: {error.message}", hint) from None
    for source, leaving in edited.edges.items():
        if leaving is not graph.edges.get(source):
            former = set(graph.edges.get(source, ()))
            touched |= {of.edge(source, edge): Touch(overlay) for edge in leaving if edge not in former}
    anchors = dict.fromkeys(needed if not VERBS[edit.verb].takes_away else (), overlay)
    layers = replace(
        edited.layers,
        touched=touched,
        anchors={**anchors, **layers.anchors},
        last={**layers.last, **_places_taken(edit, layers.last, last)},
        done={edit.text: overlay, **layers.done},
    )
    return replace(edited, layers=layers)


def _expect_own_kind(graph: Graph, edit: Edit) -> None:
    """Raise if `use` would replace a chosen kind: one that the node is not named after.

    Raises:
        EditError: it would.
    """
    node, use = node_at(graph, edit.subject), edit.arguments.get("use")
    if edit.verb != "set" or node is None or use in (None, node.use):
        return
    touched, outer = graph.layers.touched, of.node(edit.subject.partition("/")[0])
    is_of_overlays = f"`{edit.subject}.use`" in touched  # another one's is refused with both names
    is_own = outer in touched and touched[outer].overlay == edit.overlay
    if (node.use != node.name or node.kind is not None) and not is_of_overlays and not is_own:
        raise EditError(
            f"overlay `{edit.overlay}`: `{edit.subject}` would become a `{use}`, but another kind was chosen for it, "
            f"`{node.use}`",
            "leave the overlay out, or build on a graph that chooses no kind for this node; in an overlay of your own, "
            f'replace = "{edit.subject}" replaces any kind',
        )


def _instead(graph: Graph, edit: Edit) -> str:
    """A hint at nodes that do the work of a missing node that is named after its kind; empty if there are none."""
    for missing in [name for name in edit.nodes() if node_at(graph, name) is None]:
        effects = effects_of(missing)
        for node in graph.nodes.values() if effects else ():
            if effects <= effects_of(node.use, node.kind):
                return (
                    f"in `{graph.name}` the node `{node.name}`, a `{node.use}`, does what `{missing}` does elsewhere: "
                    f"leave `{edit.overlay}` out; what can be set of that node: graphtrain nodes {node.use}"
                )
    return ""


def _elsewhere(graph: Graph, edit: Edit) -> str:
    """A hint for a graph without the node of a shipped kind that an edit names; empty if it may be misspelt."""
    if not any(node_at(graph, name) is None and name in known_kinds() for name in edit.nodes()):
        return ""
    return (
        f"`{edit.overlay}` is for graphs with that node, such as `fit`; to place it elsewhere in `{graph.name}`, edit "
        f"a copy: graphtrain copy {edit.overlay} my_{edit.overlay}.toml"
    )


def _placed_after_others(graph: Graph, edit: Edit, last: Mapping[str, str]) -> Graph:
    """The graph with the edit made after what other overlays have added at the same place."""
    arguments = dict(edit.arguments)
    if edit.verb == "guard" and arguments.get("expression") is not None and edit.subject in graph.guards:
        # Another overlay may have widened it before; in whatever order, the parts are the same.
        widened = graph.layers.guard(edit.subject, graph.guards[edit.subject])
        widened = replace(widened, expression=arguments["expression"])
        widened = widened.with_parts(arguments.get("or_"), arguments.get("and_"))
        return placed(graph.with_widened(edit.subject, widened), graph, edit.place)
    if edit.verb == "replace" and edit.subject in graph.nodes:
        arguments = _with_settings(graph, edit)
    match edit.spot():
        case "between", _:
            source, target = arguments["between"]
            arguments["between"] = _between(graph, source, target, last)
        case "first of", source:
            first = last.get(f"first of {source}")
            if first is not None and any(edge.target == first for edge in graph.edges.get(source, ())):
                arguments["after"] = _last(graph, f"at {source} after", first, last)
        case place, name if "after" in place:
            arguments["after"] = _last(graph, place, name, last)
    return replace(edit, arguments=arguments).applied(graph)


def _with_settings(graph: Graph, edit: Edit) -> dict[str, Any]:
    """The arguments of a `replace` with the settings of other overlays for the node: set later, they would stay too."""
    node, arguments = graph.nodes[edit.subject], dict(edit.arguments)

    def set_by_others(path: str, values: Mapping[str, Any]) -> dict[str, Any]:
        touches = {key: graph.layers.touched.get(f"`{edit.subject}.{path}{key}`") for key in values}
        return {
            key: values[key] for key, touch in touches.items() if touch is not None and touch.overlay != edit.overlay
        }

    for slots, values in (("reads", node.reads), ("writes", node.writes)):
        if others := set_by_others(f"{slots}.", values):
            arguments[slots] = {**others, **arguments.get(slots, {})}
    return {**set_by_others("", node.parameters), **arguments}


def _last(graph: Graph, place: str, name: str, last: Mapping[str, str]) -> str:
    """The node after which the next overlay adds its own; nothing was added after that one."""
    while (following := last.get(f"{place} {name}")) in graph.nodes:
        name = str(following)
    return name


def _between(graph: Graph, source: str, target: str, last: Mapping[str, str]) -> tuple[str, str]:
    """An edge from a node to another, or one that leads there through nodes that other overlays added in between."""
    behind = _last(graph, "after", last.get(f"between {source} {target}", source), last)
    following = last.get(f"before {target}", target)
    for ends in ((source, target), (behind, target), (source, following), (behind, following)):
        if any(edge.target == ends[1] for edge in graph.edges.get(ends[0], ())):
            return ends
    return source, target


def _places_taken(edit: Edit, now: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """The place where an edit adds something: of several additions of one overlay, the first follows the others."""
    kind, name = edit.spot()
    place = f"{kind} {name}"
    if not kind or (place in now if kind == "before" else now.get(place) != before.get(place)):
        return {}  # the next addition before a node goes directly before it
    return {place: edit.arguments["target"] if edit.verb == "connect" else edit.subject}


# ---- where overlays are added: to a graph, or to the nested graph with the nodes that they name


def with_overlays(graph: Graph, overlays: Sequence[Overlay], where: str) -> tuple[Graph, list[Problem]]:
    """The graph with overlays, and a problem for each that does not fit or was already added, at `where`.

    An overlay is for the outermost graph with all nodes and guards that it names, including those that other overlays
    add. One that fits nowhere is added to `graph`, whose problems then name what is missing.
    """
    paths = _paths_of(graph, overlays)
    problems = [
        Problem(
            "G005",
            "error",
            str(overlay.place),
            f"overlay `{overlay.name}` fits several nested graphs: {quoted(found)}",
            f'name it where one of them is named, as in extends = ["fit", "{overlay.name}"]',
        )
        for overlay, found in zip(overlays, paths, strict=True)
        if len(found) > 1
    ]
    for path in dict.fromkeys(found[0] for found in paths if len(found) == 1):
        added = [overlay for overlay, found in zip(overlays, paths, strict=True) if found == [path]]
        graph, conflicts = _composed_at(graph, path, added, where, "the graph")
        problems += conflicts
    return graph, problems


def _composed_at(
    graph: Graph, path: str, overlays: Sequence[Overlay], where: str, title: str
) -> tuple[Graph, list[Problem]]:
    """The graph with overlays added to the one at the path of a node; their names are those of every graph around."""
    names, new, problems = list(graph.layers.names), [], []
    for overlay in overlays:
        if overlay.name in names:
            message = f"{title} already has the overlay `{overlay.name}`"
            hint = "name it once; two overlays need two names, which are those of their files or `name` in them"
            problems.append(Problem("G005", "error", where, message, hint))
        else:
            names.append(overlay.name)
            new.append(overlay)
    outer, _, inner = path.partition("/")
    if not path:
        graph, conflicts = composed(graph, new)
    else:
        node = graph.nodes[outer]
        assert node.body is not None, "found before"
        body, conflicts = _composed_at(node.body, inner, new, where, f"the graph `{node.body.name}`")
        nodes = {**graph.nodes, outer: replace(node, body=body)}
        graph = replace(graph, nodes=nodes, layers=replace(graph.layers, names=tuple(names)))
    return graph, problems + conflicts


def _paths_of(graph: Graph, overlays: Sequence[Overlay]) -> list[list[str]]:
    """For each overlay the paths of the graphs that it fits, of one depth; the empty path is `graph` itself."""
    paths: dict[int, list[str]] = {}
    is_new = True
    while is_new:
        is_new = False
        for number, overlay in enumerate(overlays):
            others = [(overlays[other], found[0]) for other, found in paths.items() if len(found) == 1]
            if number not in paths and (found := _fitting(graph, overlay, others)):
                paths[number], is_new = found, True
    return [paths.get(number, [""]) for number in range(len(overlays))]


def _fitting(graph: Graph, overlay: Overlay, others: Sequence[tuple[Overlay, str]]) -> list[str]:
    """The paths of the outermost graphs with what an overlay names, including additions of others."""
    level = [("", graph)]
    while level:
        if found := [
            path
            for path, each in level
            if _fits(each, overlay, [overlay, *(other for other, place in others if place == path)])
        ]:
            return found
        level = [
            (f"{path}/{name}" if path else name, node.body)
            for path, each in level
            for name, node in each.nodes.items()
            if node.body is not None
        ]
    return []


def _fits(graph: Graph, overlay: Overlay, adding: Iterable[Overlay]) -> bool:
    edits = [edit for other in adding for edit in other.edits]
    added = {edit.subject for edit in edits if edit.verb in ("insert", "nest")}
    added |= {str(edit.arguments["new"]) for edit in edits if edit.verb == "rename"}
    of_own_edges = {edit.arguments.get("when") for edit in edits} | {f"{name}_due" for name in added}
    guards = {edit.subject for edit in overlay.edits if edit.verb == "guard" and not edit.if_there}
    nodes = {name for edit in overlay.edits if not edit.if_there for name in edit.nodes()}
    return guards <= {*graph.guards, *of_own_edges} and all(
        name.partition("/")[0] in added or node_at(graph, name) is not None for name in nodes
    )
