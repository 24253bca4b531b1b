"""The verbs that edit a graph, which are methods of `Graph`. Each returns a new graph, with only the named change."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Any, TypeVar

from graphtrain.errors import EditError
from graphtrain.graph.calls import checked_call
from graphtrain.graph.canonical import plain_parameter
from graphtrain.graph.elements import END, NESTED, Edge, G, GraphData, Node, Reads, Writes, nodes_of, redirected
from graphtrain.graph.syntax import SLASH, STRING, restore_paths, with_paths
from graphtrain.kind import kind_of
from graphtrain.kind.declaration import FROM
from graphtrain.kind.parameter import coerce, show_value
from graphtrain.names import suggestion

Verb = TypeVar("Verb", bound=Callable[..., GraphData])

VERBS: dict[str, Callable[..., Any]] = {}


def verb(function: Verb) -> Verb:
    """Make a function a verb: a method of `Graph`, and in TOML a table ``[[edit]]`` whose keys are its arguments."""
    checked = checked_call("use", "parameters", error=EditError)(function)

    @functools.wraps(function)
    def edit(self: GraphData, /, *args: Any, **arguments: Any) -> GraphData:
        return placed(checked(self, *args, **arguments), self)

    VERBS[function.__name__] = edit
    return edit  # type: ignore[return-value]


def placed(edited: G, before: G, place: str = "") -> G:
    """`edited`, with the place of the edit noted for all that differs from `before`; empty for an edit in Python."""
    places, nodes = dict(edited.places), dict(edited.nodes)
    for section, attribute in (("nodes", "nodes"), ("edges", "edges"), ("guards", "guards"), ("clock", "units")):
        former = getattr(before, attribute)
        changes = [name for name, value in getattr(edited, attribute).items() if former.get(name) != value]
        places |= {f"{section}.{name}": place for name in changes}
    for name, node in edited.nodes.items():
        body = before.nodes[name].body if name in before.nodes else None
        if place and body is not None and node.body is not None and node.body != body:
            nodes[name] = changed(node, body=placed(node.body, body, place))
    return changed(edited, nodes=nodes, places=places)


@verb
def insert(
    self: G,
    name: str,
    /,
    use: str | Callable[..., Any] | None = None,
    *,
    after: str | None = None,
    before: str | None = None,
    between: tuple[str, str] | None = None,
    at: str | None = None,
    **parameters: Any,
) -> G:
    """Add a node, and connect it.

    Arguments:
        use: the kind: a name, a function or a class. Default: the kind called `name`.
        after: the new node follows this one directly, and takes over its edges. Of several nodes inserted after the
            same one, the last runs first; to run them in the order of the text, insert each after the previous one.
        before: every edge to this node, or to ``"end"``, leads to the new one instead. Before ``"decide"`` of `fit`,
            to which many nodes return, it runs after each of them; to follow one of them, use `after`.
        between: the edge from the first node to the second passes through the new node, its guard kept. Default of all
            three: the node is not connected.
        at: a node whose edges decide what comes next, such as ``"decide"`` of `fit`. An edge leads from it to the
            new node under the guard ``NAME_due``, and one leads back; `before` or `after` then names the target of
            the edge before or after which that one is tried. If there is no such guard, it is defined as
            ``NAME.due``. Default: the new node is in sequence with others.
        parameters: of the node; ``graph=`` gives it a body, a graph or its name, instead of `use`.

    Raises:
        EditError: the name is taken, a node or an edge that is named does not exist, or `use` is a graph.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").insert("pause", "choice", after="step").insert("rest", "choice", after="pause")
    >>> [str(graph.edges[name][0]) for name in ("step", "pause", "rest")]
    ['pause', 'rest', 'zero_grad']
    >>> graph = Graph.load("fit").insert("swa", "choice", at="decide", before="checkpoint")
    >>> [str(edge) for edge in graph.edges["decide"][4:6]], graph.guards["swa_due"]
    (['swa if swa_due', 'checkpoint if checkpoint_due'], 'swa.due')
    """
    if name in self.nodes or name == END:
        raise EditError(f"insert: there is already a node `{name}`", "choose another name, or use `replace`")
    if sum(place is not None for place in (after, before, between)) > 1:
        raise EditError("insert: give one of `after`, `before` and `between`")
    node = _with_settings(self, Node(name, name), {"use": use, **parameters}, "insert")
    inserted = changed(self, nodes={**self.nodes, name: node})
    edges = dict(self.edges)
    if at is not None:
        leaving = self.edges.get(_known(self, at, "insert: at"), ())
        if (before is None) == (after is None):
            message = f"insert: `at` takes `before` or `after`: which edge of `{at}` is tried next to that to `{name}`"
            raise EditError(message, f"its edges lead to {', '.join(dict.fromkeys(edge.target for edge in leaving))}")
        guards = {**self.guards, f"{name}_due": self.guards.get(f"{name}_due", f"{name}.due")}
        inserted = changed(inserted, edges={**edges, name: (Edge(at),)}, guards=guards)
        return connect(inserted, at, name, f"{name}_due", before=before, after=after)
    if after is not None:
        edges |= {name: self.edges.get(_known(self, after, "insert: after"), ()), after: (Edge(name),)}
    elif before is not None:
        _known(self, before, "insert: before", END)
        edges = {source: redirected(leaving, before, name) for source, leaving in edges.items()}
        edges[name] = (Edge(before),)
    elif between is not None:
        source, target = between
        leaving = _edges_between(self, source, target, "insert: between")
        edges |= {source: redirected(leaving, target, name), name: (Edge(target),)}
    return changed(inserted, edges=edges, start=name if self.start == before else self.start)


@verb
def replace(self: G, name: str, /, use: str | Callable[..., Any], **parameters: Any) -> G:
    """Replace the kind and the parameters of the node `name`; its edges stay.

    Raises:
        EditError: there is no such node, or `use` is a graph, which `set` takes as ``graph=``.
    """
    _known(self, name, "replace")
    node = _with_settings(self, Node(name, name), {"use": use, **parameters}, "replace")
    return changed(self, nodes={**self.nodes, name: node})


@verb
def remove(self: G, name: str, to: str | None = None) -> G:
    """Remove a node; its predecessors are connected to its target.

    Also removed are edges that would become self-loops, guards used only by removed edges, and units that count the
    runs of the node.

    Arguments:
        to: the new target of the predecessors. Default: the node's only target.

    Raises:
        EditError: there is no such node, or it has several targets and `to` is not given.
    """
    _known(self, name, "remove")
    targets = list(dict.fromkeys(edge.target for edge in self.edges.get(name, ()) if edge.target != name))
    if to is None:
        if len(targets) != 1:
            choices = " or ".join(f'remove("{name}", to="{target}")' for target in targets)
            reason = f"has {len(targets)} targets" if targets else "has no edge to follow"
            raise EditError(f"remove: `{name}` {reason}", f"choose: {choices}" if choices else "give `to`")
        to = targets[0]
    _known(self, to, "remove: to", END)
    edges = {
        source: tuple(edge for edge in redirected(leaving, name, to) if edge.target != source or edge in leaving)
        for source, leaving in self.edges.items()
        if source != name
    }
    nodes = {key: value for key, value in self.nodes.items() if key != name}
    used = guards_of(self.edges, self.guards)
    kept = guards_of(edges, self.guards, [guard for guard in self.guards if guard not in used])
    guards = {guard: text for guard, text in self.guards.items() if guard in kept}
    units = {unit: text for unit, text in self.units.items() if text != f"{name}.runs"}
    start = to if self.start == name else self.start
    return changed(self, nodes=nodes, edges=edges, guards=guards, units=units, start=start)


@verb
def connect(
    self: G,
    source: str,
    target: str,
    when: str | None = None,
    *,
    before: str | None = None,
    after: str | None = None,
) -> G:
    """Add an edge.

    Arguments:
        when: the name of its guard. Default: no guard, which is possible if `source` has no unguarded edge.
        before: the target of the edge of `source` before which this one is tried. Default: it is the first.
        after: the target of the edge after which it is tried.

    Raises:
        EditError: a node or an edge that is named does not exist, or `source` already has an unguarded edge.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").insert("pause", "choice")
    >>> graph = graph.connect("decide", "pause", when="log_due", before="next_batch")
    >>> str(graph.edges["decide"][-2])
    'pause if log_due'
    """
    leaving = self.edges.get(_known(self, source, "connect"), ())
    _known(self, target, "connect", END)
    unguarded = [edge.target for edge in leaving if edge.when is None]
    if when is None and unguarded:
        message = f"connect: `{source}` already has an unguarded edge, to `{unguarded[0]}`"
        redirect = f'redirect("{source}", "{unguarded[0]}", "{target}")'
        raise EditError(message, f"use {redirect}, or give the new edge a guard")
    if before is not None and after is not None:
        raise EditError("connect: give one of `before` and `after`")
    position = 0 if when is not None else len(leaving)
    neighbour = after if before is None else before
    if neighbour is not None and when is not None:
        _edges_between(self, source, neighbour, f"connect: {'after' if before is None else 'before'}")
        positions = [position for position, edge in enumerate(leaving) if edge.target == neighbour]
        position = positions[-1] + 1 if before is None else positions[0]
        if position == len(leaving) and unguarded:
            message = f"connect: after: the edge from `{source}` to `{after}` has no guard, so none after it is tried"
            raise EditError(message, "use `before`")
    return changed(self, edges={**self.edges, source: (*leaving[:position], Edge(target, when), *leaving[position:])})


@verb
def disconnect(self: G, source: str, target: str) -> G:
    """Remove the edges from `source` to `target`.

    Raises:
        EditError: there is no such edge.
    """
    leaving = _edges_between(self, source, target, "disconnect")
    return changed(self, edges={**self.edges, source: tuple(edge for edge in leaving if edge.target != target)})


@verb
def redirect(self: G, source: str, old: str, new: str) -> G:
    """Redirect the edges from `source` to `old` to `new`; guards and priority stay.

    Raises:
        EditError: there is no such edge or node.
    """
    _known(self, new, "redirect", END)
    leaving = _edges_between(self, source, old, "redirect")
    return changed(self, edges={**self.edges, source: redirected(leaving, old, new)})


@verb
def set(self: G, name: str, /, **parameters: Any) -> G:
    """Set parameters of a node, by their names; `reads`, `writes` and `graph` are set the same way.

    A parameter has a value, or an expression in `reads`: setting one removes the other. `use` sets the kind and
    keeps the other settings of the node, unlike `replace`.

    Arguments:
        name: the node; ``"validate/next_batch"`` is a node inside the body of ``validate``.

    Raises:
        EditError: there is no such node, or TOML has no such value (None, a function).

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("validate/next_batch", limit=5)
    >>> graph.nodes["validate"].body.nodes["next_batch"].parameters["limit"]
    5
    """
    outer, slash, inner = name.partition("/")
    node = self.nodes[_known(self, outer, "set")]
    if slash:
        if node.body is None:
            hint = f"its parameters are set as `{outer}.NAME`"
            raise EditError(f"set: `{outer}` has no graph inside", hint, is_missing=True)
        node = changed(node, body=set(node.body, inner, **parameters))
    else:
        node = _with_settings(self, node, parameters, "set")
    return changed(self, nodes={**self.nodes, outer: node})


@verb
def guard(self: G, name: str, expression: str | None = None, *, or_: str | None = None, and_: str | None = None) -> G:
    """Define a named guard, or change it: it is then ``(expression or or_) and and_``.

    Arguments:
        expression: the new expression. Default: the current one.
        or_: an alternative that also makes it true, in TOML ``or``. Default: none.
        and_: a further condition that must be true, in TOML ``and``. Default: none.

    Raises:
        EditError: no argument is given, or there is no such guard to change.

    >>> from graphtrain import Graph
    >>> Graph.load("fit").guard("ending", or_="stuck", and_="step.steps > 99").guards["ending"]
    '(finish.due or stuck) and step.steps > 99'
    """
    if expression is None and or_ is None and and_ is None:
        raise EditError(f"guard: `{name}` takes an `expression`, or an `or` or `and` to widen it")
    if expression is None and name not in self.guards:
        raise EditError(f"guard: there is no guard `{name}` to widen", suggestion(name, self.guards), is_missing=True)
    widened = expression if expression is not None else self.guards[name]
    if or_ is not None:
        widened = f"{_enclosed(widened, 'if')} or {_enclosed(or_, 'if')}"
    if and_ is not None:
        widened = f"{_enclosed(widened, 'if|or')} and {_enclosed(and_, 'if|or')}"
    return changed(self, guards={**self.guards, name: widened})


@verb
def nest(self: G, name: str, /, graph: str | Path | G, **parameters: Any) -> G:
    """Add a node whose body is a graph, without connecting it: `insert` with ``graph=``."""
    return insert(self, name, graph=graph, **parameters)


@verb
def clock(self: G, unit: str, field: str) -> G:
    """Define the field that a unit of triggers counts.

    Arguments:
        unit: the unit, as triggers name it, such as ``"tokens"``.
        field: ``"node.field"``, a progress counter.

    Raises:
        EditError: there is no such node.
    """
    if "." in field:
        _known(self, re.split(r"[./]", field)[0], "clock")
    return changed(self, units={**self.units, unit: field})


@verb
def rename(self: G, old: str, new: str) -> G:
    """Rename a node everywhere: edges, guards, reads, clock.

    Arguments:
        old: its name; of a node in a body its path, ``"validate/next_batch"``.
        new: the new name, without a path.

    Raises:
        EditError: `old` does not exist, or `new` does.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").rename("validate/next_batch", "fetch")
    >>> "fetch" in graph.nodes["validate"].body.nodes
    True
    """
    outer, slash, inner = old.partition("/")
    node = self.nodes[_known(self, outer, "rename")]
    path = f"{old.rpartition('/')[0]}{slash}{new}"
    bodies = [name for name, node in self.nodes.items() if node.body is not None]
    owner = re.compile(rf"{STRING}|(?<![\w.]){re.escape(with_paths(old, bodies))}(?=\s*\.|{SLASH})")

    def renamed(target: Any) -> Any:
        if isinstance(target, tuple):
            return tuple(map(renamed, target))
        return restore_paths(owner.sub(lambda match: match[1] or path, with_paths(target, bodies)))

    nodes = {
        name: changed(node, reads={key: renamed(target) for key, target in node.reads.items()})
        for name, node in self.nodes.items()
    }
    graph = changed(
        self,
        nodes=nodes,
        guards={name: renamed(text) for name, text in self.guards.items()},
        units={unit: renamed(field) for unit, field in self.units.items()},
    )
    if slash:
        if node.body is None:
            raise EditError(f"rename: there is no node `{old}`: `{outer}` has no body", is_missing=True)
        nodes[outer] = changed(nodes[outer], body=rename(node.body, inner, new))
        return changed(graph, nodes=nodes)
    if new in nodes or new == END:
        raise EditError(f"rename: there is already a node `{new}`")
    names = {old: new}
    return changed(
        graph,
        nodes={names.get(name, name): changed(node, name=names.get(name, name)) for name, node in nodes.items()},
        edges={names.get(name, name): redirected(leaving, old, new) for name, leaving in self.edges.items()},
        start=names.get(self.start, self.start),
    )


def _with_settings(self: G, node: Node, settings: Mapping[str, Any], verb: str) -> Node:
    """A node with another kind, body, reads, writes or parameters; the rest stays."""
    rest = {FROM if key == f"{FROM}_" else key: value for key, value in settings.items()}  # a keyword of Python
    use, body = rest.pop("use", None), rest.pop("graph", None)
    if use is not None and body is not None:
        raise EditError(f"`{node.name}` has both `use` and `graph`", "a node uses a kind, or has a graph as its body")
    if use is not None and not isinstance(use, str) and not callable(use):
        message = f"{verb}: `use` of `{node.name}` takes a kind, got {show_value(use)}"
        raise EditError(message, f'a body is given as {verb.replace("replace", "set")}("{node.name}", graph=...)')
    if use is not None:
        kind = None if isinstance(use, str) else kind_of(use)
        node = changed(node, use=use if kind is None else kind.name, kind=kind, body=None)
    if body is not None:
        body = self.load(body) if isinstance(body, str | Path) else body
        if not isinstance(body, GraphData):
            raise EditError(f"graph: expected a name, a path or a Graph, got {show_value(body)}")
        node = changed(node, use=NESTED, kind=None, body=self.of(body))
    slots: dict[str, Any] = {}
    for key, annotation in (("reads", Reads), ("writes", Writes)):
        try:
            slots[key] = coerce(rest.pop(key, {}), annotation)
        except ValueError as error:
            raise EditError(f"{node.name}.{key}: {error}") from None
    plain = {key: plain_parameter(node.name, key, value) for key, value in rest.items()}
    # A parameter has a value or an expression, whichever is set last. The checks report both at once.
    kept = {key: value for key, value in node.parameters.items() if key not in slots["reads"]}
    reads = {key: target for key, target in node.reads.items() if key not in plain} | slots["reads"]
    return changed(node, parameters={**kept, **plain}, reads=reads, writes={**node.writes, **slots["writes"]})


def _known(self: G, name: str, verb: str, *reserved: str) -> str:
    if name not in self.nodes and name not in reserved:
        known = nodes_of(self) if verb == "set" else self.nodes
        raise EditError(f"{verb}: there is no node `{name}`", suggestion(name, known), is_missing=True)
    return name


def _edges_between(self: G, source: str, target: str, verb: str) -> tuple[Edge, ...]:
    """The edges of `source`; an EditError if none of them leads to `target`."""
    leaving = self.edges.get(_known(self, source, verb), ())
    if all(edge.target != target for edge in leaving):
        existing = ", ".join(f'"{edge}"' for edge in leaving) or "none"
        message = f"{verb}: there is no edge from `{source}` to `{target}`"
        raise EditError(message, f"its edges: {existing}", is_missing=target not in (*self.nodes, END))
    return leaving


def guards_of(edges: Mapping[str, tuple[Edge, ...]], guards: Mapping[str, str], named: Sequence[str] = ()) -> list[str]:
    """The guards that edges have, those in `named`, and those that their expressions name in turn."""
    names = [*named, *(edge.when for leaving in edges.values() for edge in leaving if edge.when is not None)]
    for name in names:  # it grows
        words = re.findall(r"(?<![\w.])[^\W\d]\w*(?![\w.])", guards.get(name, ""))
        names += [word for word in words if word in guards and word not in names]
    return names


def _enclosed(text: str, operators: str) -> str:
    """An expression, in parentheses if it has one of these operators, which bind less tightly."""
    outside = re.sub(r"\([^()]*\)", "", text)
    return f"({text})" if re.search(rf"\b({operators})\b", outside) else text.strip()
