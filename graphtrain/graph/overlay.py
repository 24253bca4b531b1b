"""Overlays: lists of edits that several people write for one graph, without knowing each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from graphtrain.errors import EditError, GraphError, UsageError
from graphtrain.graph import layers as of
from graphtrain.graph.elements import END, Node, Place
from graphtrain.graph.layers import Layers, Touch
from graphtrain.graph.placed import placed
from graphtrain.graph.problem import Problem
from graphtrain.graph.registry import effects_of
from graphtrain.kind.parameter import show_value
from graphtrain.printable import shorten

if TYPE_CHECKING:
    from graphtrain.graph.graph import Graph

# The arguments of each verb that name nodes of the graph, beside the first one of those in `_OF_NODES`.
_NAMING = {
    "insert": ("after", "before", "at"),
    "remove": ("to",),
    "connect": ("target", "before", "after"),
    "redirect": ("new",),
}
_OF_NODES = ("replace", "remove", "connect", "disconnect", "redirect", "set", "rename")
_TAKING_AWAY = ("remove", "rename", "redirect", "disconnect")
_GONE = ("removed", "renamed ", "to ")  # how the values begin that `Edit.touches` gives for these verbs
_MOST_SHOWN = 60  # characters of a value


@dataclass(frozen=True)
class Edit:
    """One table ``[[edit]]``: a verb of `Graph`, and how it is called.

    Arguments:
        subject: the first argument, which is the value of the key of the verb.
        arguments: the others, by their names in Python.
        place: in the file.
        if_there: it is left out where a node that it names is not there.
        text: the table as text, by which two edits are compared.
        overlay: the name of the overlay that it is of; empty for an edit of a graph file.
    """

    verb: str
    subject: str
    arguments: Mapping[str, Any]
    place: Place
    if_there: bool = False
    text: str = ""
    overlay: str = ""

    def applied(self, graph: Graph) -> Graph:
        """The graph with the edit made.

        Raises:
            EditError, UsageError, GraphError: it cannot be made.
        """
        return placed(getattr(graph, self.verb)(self.subject, **self.arguments), graph, self.place)

    def nodes(self) -> list[str]:
        """The nodes that it needs, by their paths."""
        names = [self.subject] if self.verb in _OF_NODES else []
        names += [self.arguments[key] for key in _NAMING.get(self.verb, ()) if key in self.arguments]
        if self.verb == "insert":
            names += self.arguments.get("between", ())
        if self.verb == "clock":
            names.append(str(self.arguments["field"]).partition(".")[0])
        return [name for name in dict.fromkeys(names) if name != END]

    def edges(self) -> list[tuple[str, str]]:
        """The edges that it needs, by their source and target."""
        arguments = self.arguments
        match self.verb:
            case "insert" if "between" in arguments:
                source, target = arguments["between"]
                return [(source, target)]
            case "insert" | "connect":
                source = self.subject if self.verb == "connect" else arguments.get("at")
                targets = [arguments[key] for key in ("before", "after") if key in arguments]
                return [(source, target) for target in targets] if source is not None else []
            case "disconnect":
                return [(self.subject, arguments["target"])]
            case "redirect":
                return [(self.subject, arguments["old"])]
        return []

    def has_nodes(self, graph: Graph, without: Iterable[str] = ()) -> bool:
        """True if the graph has every node that it needs, and the guard that it widens."""
        if self.verb == "guard" and self.arguments.get("expression") is None and self.subject not in graph.guards:
            return False
        return all(has_node(graph, name) for name in self.nodes()) and not set(without).intersection(self.nodes())

    def touches(self, graph: Graph) -> Iterator[tuple[str, str]]:
        """What it adds or changes, and what it makes of that: two overlays may only make the same of it."""
        arguments, name = self.arguments, self.subject
        match self.verb:
            case "insert" | "nest" | "replace":
                yield of.node(name), self.text
                if "use" in arguments:
                    yield f"`{name}.use`", show_value(arguments["use"])
                yield from self._parameters()
                if "at" in arguments and f"{name}_due" not in graph.guards:
                    yield of.guard(f"{name}_due"), f"{name}.due"
            case "remove":
                yield of.node(name), "removed"
            case "rename":
                yield of.node(name), f"renamed {arguments['new']}"
            case "set":
                if "use" in arguments:
                    yield f"`{name}.use`", show_value(arguments["use"])
                yield from self._parameters()
            case "guard":
                if arguments.get("expression") is not None:
                    yield of.guard(name), arguments["expression"]
                elif self.overlay:
                    yield of.widening(name, self.overlay), ""
            case "clock":
                yield f"unit `{name}`", arguments["field"]
            case "disconnect":
                yield _edge(name, arguments["target"]), "removed"
            case "redirect":
                yield _edge(name, arguments["old"]), f"to `{arguments['new']}`"

    def _parameters(self) -> Iterator[tuple[str, str]]:
        for key, value in self.arguments.items():
            if key in ("reads", "writes") and isinstance(value, Mapping):
                for slot, target in value.items():
                    yield f"`{self.subject}.{key}.{slot}`", show_value(target)
                    if key == "reads" and isinstance(target, str) and not target.isidentifier():  # of a parameter too
                        yield f"`{self.subject}.{slot}`", show_value(target)
            elif key not in ("use", "after", "before", "between", "at"):
                yield f"`{self.subject}.{key}`", show_value(value) if key != "graph" else self.text


@dataclass(frozen=True)
class Overlay:
    """A list of edits without a base.

    Arguments:
        name: what messages and pictures call it.
        head: `start`, `outputs`, `optional` and `optimizer`, as far as it replaces those of the graph.
        allow: problems that are intended; they are added to those of the graph.
        place: its file.
    """

    name: str
    edits: tuple[Edit, ...]
    place: Place
    head: Mapping[str, Any] = field(default_factory=dict)
    allow: tuple[str, ...] = ()


def node_at(graph: Graph, path: str) -> Node | None:
    """The node at a path; None if there is none."""
    name, _, inner = path.partition("/")
    node = graph.nodes.get(name)
    if node is None or not inner:
        return node
    return node_at(node.body, inner) if node.body is not None else None


def has_node(graph: Graph, path: str) -> bool:
    """True if the graph has a node, by its path."""
    return node_at(graph, path) is not None


def _edge(source: str, target: str) -> str:
    return f"the edge from `{source}` to `{target}`"


class _RefusedError(EditError):
    """Two overlays that do not compose."""

    def __init__(self, first: str, second: str, reason: str) -> None:
        super().__init__(
            f"overlays `{first}` and `{second}` do not compose: {reason}",
            "leave one of them out, or take a copy of one with another value: graphtrain copy NAME my_overlay.toml",
        )


def composed(graph: Graph, overlays: Sequence[Overlay]) -> tuple[Graph, list[Problem]]:
    """The graph with the edits of all overlays, and a problem for each edit that cannot be made.

    Edits `if_there` are made once their nodes are there, whichever overlay adds these.
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
        try:
            graph = _with_head(graph, overlay)
        except EditError as error:
            problems.append(Problem("G005", "error", str(overlay.place), error.message, error.hint))
        lost: set[str] = set()  # the nodes that it would have added
        last, waiting = graph.layers.last, []  # what this overlay adds is placed as its edits say, without regard to it
        for edit in overlay.edits:
            if edit.if_there and not edit.has_nodes(graph, taken):
                waiting.append(edit)
            elif lost.isdisjoint(edit.nodes()):  # what follows from a problem is none of its own
                count = len(problems)
                graph = made(graph, edit, last)
                if len(problems) > count and _instead(graph, edit):  # the overlay is to be left out
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


def _with_head(graph: Graph, overlay: Overlay) -> Graph:
    touched = dict(graph.layers.touched)
    for key, value in overlay.head.items():
        _touch(touched, overlay.name, f"`{key}`", show_value(value))
    layers = replace(graph.layers, names=(*graph.layers.names, overlay.name), touched=touched)
    places = {**graph.places, "start": overlay.place} if "start" in overlay.head else graph.places
    allow = tuple(dict.fromkeys((*graph.allow, *overlay.allow)))
    return replace(graph, **overlay.head, allow=allow, layers=layers, places=places)


def _touch(touched: dict[str, Touch], overlay: str, what: str, value: str) -> None:
    """Note what an overlay makes of something.

    Raises:
        EditError: another overlay makes something else of it.
    """
    former = touched.get(what)
    if former is not None and former.overlay != overlay and former.value != value:
        if what.startswith("node "):
            gone = [touch.overlay for touch in (former, Touch(overlay, value)) if touch.value == "removed"]
            reason = f"`{gone[0]}` removes {what}" if gone else f"each has a {what} of its own"
        else:
            values = " and ".join(shorten(text, _MOST_SHOWN) for text in (former.value, value))
            reason = f"{what} would be both {values}"
        raise _RefusedError(former.overlay, overlay, reason)
    touched[what] = Touch(overlay, value)


def _with_edit(graph: Graph, edit: Edit, last: Mapping[str, str]) -> Graph:
    """The graph with one edit of an overlay; `last` is where the overlays before it have put something."""
    layers, overlay = graph.layers, edit.overlay
    if layers.done.get(edit.text, overlay) != overlay:
        return graph  # another overlay has made the very same edit
    needed = [*map(of.node, edit.nodes()), *(_edge(*ends) for ends in edit.edges())]
    _expect_own_kind(graph, edit)
    touches = dict(edit.touches(graph))
    _expect_needed(layers, overlay, [what for what in needed if what not in touches])
    touched = dict(layers.touched)
    for what, value in touches.items():
        _touch(touched, overlay, what, value)
        needed_by = layers.anchors.get(what, overlay)
        if edit.verb in _TAKING_AWAY and needed_by != overlay:
            raise _RefusedError(needed_by, overlay, f"`{overlay}` takes away {what}, which `{needed_by}` needs")
    try:
        edited = _placed_after_others(graph, edit, last)
    except (EditError, UsageError, GraphError) as error:
        others = [layers.anchors[what] for what in needed if layers.anchors.get(what, overlay) != overlay]
        if others:
            raise _RefusedError(others[0], overlay, error.message) from None
        raise EditError(f"overlay `{overlay}`: {error.message}", _instead(graph, edit) or error.hint) from None
    for source, leaving in edited.edges.items():
        if leaving is not graph.edges.get(source):
            former = set(graph.edges.get(source, ()))
            touched |= {of.edge(source, edge): Touch(overlay) for edge in leaving if edge not in former}
    anchors = dict.fromkeys(needed if edit.verb not in _TAKING_AWAY else (), overlay)
    layers = replace(
        edited.layers,
        touched=touched,
        anchors={**anchors, **layers.anchors},
        last={**layers.last, **_places_taken(edit, layers.last, last)},
        done={edit.text: overlay, **layers.done},
    )
    return replace(edited, layers=layers)


def _expect_own_kind(graph: Graph, edit: Edit) -> None:
    """Raise if `use` would replace a kind that somebody has chosen: another one than the node is named after.

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
            f'replace = "{edit.subject}" is for whatever kind there is',
        )


def _instead(graph: Graph, edit: Edit) -> str:
    """A hint at the nodes that do what one does which is missing, and is called as its kind; empty if none does."""
    for missing in [name for name in edit.nodes() if not has_node(graph, name)]:
        effects = effects_of(missing)
        for node in graph.nodes.values() if effects else ():
            if effects <= effects_of(node.use, node.kind):
                return (
                    f"in `{graph.name}` the node `{node.name}`, a `{node.use}`, does what `{missing}` does elsewhere: "
                    f"leave `{edit.overlay}` out; what can be set of that node: graphtrain nodes {node.use}"
                )
    return ""


def _expect_needed(layers: Layers, overlay: str, needed: Iterable[str]) -> None:
    """Raise if another overlay takes away a node or an edge that an edit needs.

    Raises:
        EditError: it does.
    """
    for what in needed:
        touch = layers.touched.get(what)
        if touch is not None and touch.overlay != overlay and touch.value.startswith(_GONE):
            raise _RefusedError(touch.overlay, overlay, f"`{touch.overlay}` takes away {what}, which `{overlay}` needs")


def _placed_after_others(graph: Graph, edit: Edit, last: Mapping[str, str]) -> Graph:
    """The graph with the edit made behind what other overlays have put at the same place."""
    arguments = dict(edit.arguments)
    if edit.verb == "guard":
        # Another overlay may have widened it before; in whatever order, the parts are the same.
        expression = arguments.get("expression")
        if expression is not None and edit.subject in graph.guards:
            widened = graph.layers.guard(edit.subject, graph.guards[edit.subject])
            widened = replace(widened, expression=expression)
            widened = widened.with_parts(arguments.get("or_"), arguments.get("and_"))
            return placed(graph.with_widened(edit.subject, widened), graph, edit.place)
    elif edit.verb == "replace" and edit.subject in graph.nodes:
        arguments = _with_settings(graph, edit)
    elif edit.verb == "insert" and "between" in arguments:
        source, target = arguments["between"]
        arguments["between"] = _between(graph, source, target, last)
    elif edit.verb == "insert" and "at" in arguments and "after" in arguments:
        arguments["after"] = _last(graph, f"at {arguments['at']} after", arguments["after"], last)
    elif edit.verb == "insert" and "after" in arguments:
        arguments["after"] = _last(graph, "after", arguments["after"], last)
    elif edit.verb == "connect" and "after" in arguments:
        arguments["after"] = _last(graph, f"at {edit.subject} after", arguments["after"], last)
    elif edit.verb == "connect" and "when" in arguments and "before" not in arguments and arguments.get("first", True):
        first = last.get(f"first of {edit.subject}")
        if first is not None and any(edge.target == first for edge in graph.edges.get(edit.subject, ())):
            arguments["after"] = _last(graph, f"at {edit.subject} after", first, last)
    return replace(edit, arguments=arguments).applied(graph)


def _with_settings(graph: Graph, edit: Edit) -> dict[str, Any]:
    """The arguments of a `replace` with what other overlays have set of the node: set after it, that would stay too."""
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
    """The node behind which the next overlay puts its own; nothing was put behind that one."""
    while (following := last.get(f"{place} {name}")) in graph.nodes:
        name = str(following)
    return name


def _between(graph: Graph, source: str, target: str, last: Mapping[str, str]) -> tuple[str, str]:
    """An edge from a node to another, or the one that leads there through what other overlays have put between."""
    behind = _last(graph, "after", last.get(f"between {source} {target}", source), last)
    following = last.get(f"before {target}", target)
    for ends in ((source, target), (behind, target), (source, following), (behind, following)):
        if any(edge.target == ends[1] for edge in graph.edges.get(ends[0], ())):
            return ends
    return source, target


def _places_taken(edit: Edit, now: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Where an edit puts something: of what one overlay puts at a place, the first stands behind the others."""
    arguments = edit.arguments
    match edit.verb:
        case "insert" if "between" in arguments:
            place, name = f"between {' '.join(arguments['between'])}", edit.subject
        case "insert" if "after" in arguments:
            place = f"at {arguments['at']} after" if "at" in arguments else "after"
            place, name = f"{place} {arguments['after']}", edit.subject
        case "insert" if "before" in arguments and "at" not in arguments:
            place, name = f"before {arguments['before']}", edit.subject
            return {} if place in now else {place: name}  # what comes next goes directly before the node
        case "connect" if "after" in arguments:
            place, name = f"at {edit.subject} after {arguments['after']}", arguments["target"]
        case "connect" if "when" in arguments and "before" not in arguments and arguments.get("first", True):
            place, name = f"first of {edit.subject}", arguments["target"]
        case _:
            return {}
    return {place: name} if now.get(place) == before.get(place) else {}
