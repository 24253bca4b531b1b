"""The verbs that edit a graph, which are methods of `Graph`. Each returns a new graph, with only the named change."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphtrain.errors import EditError
from graphtrain.graph.canonical import plain_parameter
from graphtrain.graph.elements import END, NESTED, Edge, Node, Reads, Writes, redirected
from graphtrain.graph.hooks import hook
from graphtrain.graph.registry import may_be_bypassed
from graphtrain.graph.rename import rename
from graphtrain.kind import kind_of
from graphtrain.kind.parameter import coerce, show_value
from graphtrain.names import suggestion

if TYPE_CHECKING:
    from graphtrain.graph.graph import Graph


def insert(
    self: Graph,
    name: str,
    /,
    use: str | Callable[..., Any] | None = None,
    *,
    after: str | None = None,
    before: str | None = None,
    between: tuple[str, str] | None = None,
    at: str | None = None,
    **parameters: Any,
) -> Graph:
    """Add a node, and connect it.

    Arguments:
        use: the kind: a name, a function or a class. Default: the kind called `name`.
        after: the edges that left this node leave the new one, which follows it directly: of several nodes inserted
            after the same one, the last runs first. For the order of the text, insert each after the previous one.
        before: every edge that led to this node, or to ``"end"``, leads to the new one. Before a node to which
            many return (``"decide"`` of `fit`) it runs after each of these; for one of them, use `after`.
        between: the edge from the first node to the second passes through the new node, its guard kept. Nodes that
            are bypassed without a resource, as `exchange` is in one process, may be in between: the new node
            follows them. Default of all three: the node is not connected.
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
    if name == END:
        message = "insert: `end` cannot be the name of a node"
        raise EditError(message, "it is reserved for the target that ends the graph")
    if name in self.nodes:
        raise EditError(f"insert: there is already a node `{name}`", "choose another name, or use `replace`")
    if sum(place is not None for place in (after, before, between)) > 1:
        raise EditError("insert: give one of `after`, `before` and `between`")
    inserted = changed(self, nodes={**self.nodes, name: _node(self, name, use, parameters, "insert")})
    if at is None:
        return _passing(inserted, name, after, before, between)
    leaving = self.edges.get(_known(self, at, "insert: at"), ())
    if (before is None) == (after is None):
        message = f"insert: `at` takes `before` or `after`: which edge of `{at}` is tried next to that to `{name}`"
        raise EditError(message, f"its edges lead to {', '.join(dict.fromkeys(edge.target for edge in leaving))}")
    due = f"{name}_due"
    guards = self.guards if due in self.guards else {**self.guards, due: f"{name}.due"}
    inserted = changed(inserted, edges={**self.edges, name: (Edge(at),)}, guards=guards)
    return inserted.connect(at, name, due, before=before, after=after)


def _passing(self: Graph, name: str, after: str | None, before: str | None, between: tuple[str, str] | None) -> Graph:
    """The graph with a new node in sequence with others."""
    if after is not None:
        leaving = self.edges.get(_known(self, after, "insert: after"), ())
        return changed(self, edges={**self.edges, name: leaving, after: (Edge(name),)})
    if before is not None:
        if before != END:
            _known(self, before, "insert: before")
        edges = {source: redirected(leaving, before, name) for source, leaving in self.edges.items()}
        start = name if self.start == before else self.start
        return changed(self, edges={**edges, name: (Edge(before),)}, start=start)
    if between is None:
        return self
    if isinstance(between, str) or len(between) != 2:
        raise EditError(f"insert: `between` takes a source and a target, got {show_value(between)}")
    source, leaving = _leading(self, *between, "insert: between")
    edges = {**self.edges, source: redirected(leaving, between[1], name), name: (Edge(between[1]),)}
    return changed(self, edges=edges)


def replace(self: Graph, name: str, /, use: str | Callable[..., Any], **parameters: Any) -> Graph:
    """Replace the kind and the parameters of the node `name`; its edges stay.

    Raises:
        EditError: there is no such node, or `use` is a graph, which `set` takes as ``graph=``.
    """
    _known(self, name, "replace")
    return changed(self, nodes={**self.nodes, name: _node(self, name, use, parameters, "replace")})


def remove(self: Graph, name: str, to: str | None = None) -> Graph:
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
    elif to != END:
        _known(self, to, "remove: to")
    edges = {
        source: tuple(edge for edge in redirected(leaving, name, to) if edge.target != source or edge in leaving)
        for source, leaving in self.edges.items()
        if source != name
    }
    nodes = {key: value for key, value in self.nodes.items() if key != name}
    used = _guards_of(self.edges, self.guards)
    kept = _guards_of(edges, self.guards, [guard for guard in self.guards if guard not in used])
    guards = {guard: text for guard, text in self.guards.items() if guard in kept}
    units = {unit: text for unit, text in self.units.items() if text != f"{name}.runs"}
    start = to if self.start == name else self.start
    return changed(self, nodes=nodes, edges=edges, guards=guards, units=units, start=start)


def connect(
    self: Graph,
    source: str,
    target: str,
    when: str | None = None,
    first: bool = True,
    *,
    before: str | None = None,
    after: str | None = None,
) -> Graph:
    """Add an edge.

    Arguments:
        when: the name of its guard. Default: no guard, which is possible if `source` has no unguarded edge.
        first: True evaluates this guard before the others, False after them.
        before: the target of the edge of `source` before which this one is tried, instead of `first`.
        after: the target of the edge after which it is tried.

    Raises:
        EditError: a node or an edge that is named does not exist, or `source` already has an unguarded edge.

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").insert("pause", "choice").connect("decide", "pause", when="log_due", first=False)
    >>> str(graph.edges["decide"][-2])
    'pause if log_due'
    """
    _known(self, source, "connect")
    if target != END:
        _known(self, target, "connect")
    leaving = self.edges.get(source, ())
    guarded = [edge for edge in leaving if edge.when is not None]
    unguarded = [edge for edge in leaving if edge.when is None]
    if when is None and unguarded:
        message = f"connect: `{source}` already has an unguarded edge, to `{unguarded[0].target}`"
        redirect = f'redirect("{source}", "{unguarded[0].target}", "{target}")'
        raise EditError(message, f"use {redirect}, or give the new edge a guard")
    if before is not None and after is not None:
        raise EditError("connect: give one of `before` and `after`")
    neighbour = after if before is None else before
    if neighbour is None or when is None:
        position = 0 if first and when is not None else len(guarded)
        edges = [*guarded, *unguarded]
    else:
        edges = [*_edges_between(self, source, neighbour, f"connect: {'after' if before is None else 'before'}")]
        positions = [position for position, edge in enumerate(edges) if edge.target == neighbour]
        position = positions[-1] + 1 if before is None else positions[0]
        if position == len(edges) and unguarded:
            message = f"connect: after: the edge from `{source}` to `{after}` has no guard, so none after it is tried"
            raise EditError(message, "use `before`")
    edges.insert(position, Edge(target, when))
    return changed(self, edges={**self.edges, source: tuple(edges)})


def disconnect(self: Graph, source: str, target: str) -> Graph:
    """Remove the edges from `source` to `target`.

    Raises:
        EditError: there is no such edge.
    """
    leaving = _edges_between(self, source, target, "disconnect")
    return changed(self, edges={**self.edges, source: tuple(edge for edge in leaving if edge.target != target)})


def redirect(self: Graph, source: str, old: str, new: str) -> Graph:
    """Redirect the edges from `source` to `old` to `new`; guards and priority stay.

    Nodes that are bypassed without a resource may be in between, as for `insert` with `between`.

    Raises:
        EditError: there is no such edge or node.
    """
    if new != END:
        _known(self, new, "redirect")
    source, leaving = _leading(self, source, old, "redirect")
    return changed(self, edges={**self.edges, source: redirected(leaving, old, new)})


def set(self: Graph, name: str, /, **parameters: Any) -> Graph:
    """Set parameters of a node, by their names; `reads`, `writes` and `graph` are set the same way.

    A parameter has a value, or an expression in `reads`: setting one removes the other. `use` sets the kind and
    keeps the other settings of the node, unlike `replace`.

    Arguments:
        name: the node; ``"validate/next_batch"`` is a node inside the body of ``validate``.

    Raises:
        EditError: there is no such node, or TOML cannot express it (None, a function).

    >>> from graphtrain import Graph
    >>> graph = Graph.load("fit").set("validate/next_batch", limit=5)
    >>> graph.nodes["validate"].body.nodes["next_batch"].parameters["limit"]
    5
    """
    outer, _, inner = str(name).partition("/")
    node = self.nodes[_known(self, outer, "set")]
    if not inner:
        if "use" in parameters:
            rest = {key: value for key, value in parameters.items() if key != "use"}
            body = {key: value for key, value in parameters.items() if key == "graph"}
            kind = _node(self, name, parameters["use"], body, "set")
            node, parameters = changed(node, use=kind.use, kind=kind.kind, body=None, reference=None), rest
        return changed(self, nodes={**self.nodes, outer: _with_parameters(self, node, parameters)})
    if node.body is None:
        raise EditError(f"set: `{outer}` has no graph inside", f"its parameters are set as `{outer}.NAME`")
    return changed(self, nodes={**self.nodes, outer: changed(node, body=node.body.set(inner, **parameters))})


def guard(
    self: Graph, name: str, expression: str | None = None, *, or_: str | None = None, and_: str | None = None
) -> Graph:
    """Define or redefine a named guard, or widen it: it is then ``(expression or or_) and and_``.

    Arguments:
        expression: the new expression. Default: the present one.
        or_: an alternative that also makes it true, in TOML ``or``. Default: none.
        and_: a further condition that must be true, in TOML ``and``. Default: none.

    Raises:
        EditError: an expression is not a string, none is given, or there is no such guard to widen.

    >>> from graphtrain import Graph
    >>> Graph.load("fit").guard("ending", or_="stuck", and_="step.steps > 99").guards["ending"]
    '(finish.due or stuck) and step.steps > 99'
    """
    for text in (expression, or_, and_):
        if text is not None and not isinstance(text, str):
            raise EditError(f"guard: `{name}` takes an expression in quotes, got {show_value(text)}")
    if expression is None and or_ is None and and_ is None:
        raise EditError(f"guard: `{name}` takes an `expression`, or an `or` or `and` to widen it")
    if expression is None and name not in self.guards:
        raise EditError(f"guard: there is no guard `{name}` to widen", suggestion(name, self.guards))
    widened = expression if expression is not None else self.guards[name]
    if or_ is not None:
        widened = f"{_enclosed(widened, 'if')} or {_enclosed(or_, 'if')}"
    if and_ is not None:
        widened = f"{_enclosed(widened, 'if|or')} and {_enclosed(and_, 'if|or')}"
    return changed(self, guards={**self.guards, name: widened}, places=_without(self.places, f"guards.{name}"))


def nest(self: Graph, name: str, /, graph: str | Path | Graph, **parameters: Any) -> Graph:
    """Add a node whose body is a graph, without connecting it: `insert` with ``graph=``."""
    return self.insert(name, graph=graph, **parameters)


def clock(self: Graph, unit: str, field: str) -> Graph:
    """Define the field that a unit of triggers counts.

    Arguments:
        unit: the unit, as triggers name it, such as ``"tokens"``.
        field: ``"node.field"``, a progress counter.
    """
    if not isinstance(field, str):
        raise EditError(f'clock: `{unit}` takes a field, "node.field"; got {show_value(field)}')
    return changed(self, units={**self.units, unit: field}, places=_without(self.places, f"clock.{unit}"))


def _node(
    self: Graph, name: str, use: str | Callable[..., Any] | None, parameters: Mapping[str, Any], verb: str
) -> Node:
    if isinstance(use, type(self)):
        hint = f'insert("{name}", graph=...)' if verb == "insert" else f'set("{name}", graph=...)'
        message = f"{verb}: `use` of `{name}` takes a kind, got {show_value(use)}"
        raise EditError(message, f"a body is given as {hint}")
    if "graph" in parameters and use is not None:
        raise EditError(f"`{name}` has both `use` and `graph`", "a node uses a kind, or has a graph as its body")
    if use is None or isinstance(use, str):
        return _with_parameters(self, Node(name, use or name), parameters)
    kind = kind_of(use)
    return _with_parameters(self, Node(name, kind.name, kind=kind), parameters)


def _with_parameters(self: Graph, node: Node, parameters: Mapping[str, Any]) -> Node:
    # `from_` is `from`, a keyword of Python, as `or_` is `or`.
    rest = {
        key[:-1] if keyword.iskeyword(key[:-1]) and key[-1:] == "_" else key: value for key, value in parameters.items()
    }
    if "graph" in rest:
        body: Any = rest.pop("graph")
        reference = None
        if isinstance(body, str | Path):
            body, reference = self.load(body), str(body)
        elif not isinstance(body, type(self)):
            raise EditError(f"graph: expected a name, a path or a Graph, got {show_value(body)}")
        node = changed(node, use=NESTED, kind=None, body=body, reference=reference)
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
    writes = {**node.writes, **slots["writes"]}
    return changed(node, parameters={**kept, **plain}, reads=reads, writes=writes, place=None)


def _known(self: Graph, name: str, verb: str) -> str:
    if not isinstance(name, str):
        raise EditError(f"{verb}: expected the name of a node, got {show_value(name)}")
    if name not in self.nodes:
        raise EditError(f"{verb}: there is no node `{name}`", suggestion(name, self.nodes))
    return name


def _leading(self: Graph, source: str, target: str, verb: str) -> tuple[str, tuple[Edge, ...]]:
    """The node from which an edge leads to a target, and its edges.

    It is `source`, or the last of the nodes after it that may be bypassed.
    """
    direct = [edge.target for edge in self.edges.get(_known(self, source, verb), ())]
    for following in direct if target not in direct else ():
        passed = [source]
        while following in self.nodes and following not in passed and may_be_bypassed(self.nodes[following]):
            passed.append(following)
            leaving = self.edges.get(following, ())
            following = leaving[0].target if len(leaving) == 1 else END
            if following == target:
                return passed[-1], leaving
    return source, _edges_between(self, source, target, verb)


def _edges_between(self: Graph, source: str, target: str, verb: str) -> tuple[Edge, ...]:
    leaving = self.edges.get(_known(self, source, verb), ())
    if all(edge.target != target for edge in leaving):
        existing = ", ".join(f'"{edge}"' for edge in leaving) or "none"
        raise EditError(f"{verb}: there is no edge from `{source}` to `{target}`", f"its edges: {existing}")
    return leaving


def _guards_of(
    edges: Mapping[str, tuple[Edge, ...]], guards: Mapping[str, str], further: Sequence[str] = ()
) -> list[str]:
    """The guards of edges, further ones, and those that their expressions name in turn."""
    names = [*further, *(edge.when for leaving in edges.values() for edge in leaving if edge.when is not None)]
    for name in names:  # it grows
        words = re.findall(r"(?<![\w.])[^\W\d]\w*(?![\w.])", guards.get(name, ""))
        names += [word for word in words if word in guards and word not in names]
    return names


def _enclosed(text: str, operators: str) -> str:
    """An expression, in parentheses if it has one of these operators, which bind less tightly."""
    outside = re.sub(r"\([^()]*\)", "", text)
    return f"({text})" if re.search(rf"\b({operators})\b", outside) else text.strip()


def _without(mapping: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name != key}


# Verb -> its function, and its arguments that name nodes which must exist.
VERBS: Mapping[str, tuple[Callable[..., Graph], tuple[str, ...]]] = {
    "insert": (insert, ("after", "before", "at", "between")),
    "replace": (replace, ("name",)),
    "remove": (remove, ("name", "to")),
    "connect": (connect, ("source", "target", "before", "after")),
    "disconnect": (disconnect, ("source",)),
    "redirect": (redirect, ("source", "new")),
    "set": (set, ("name",)),
    "guard": (guard, ()),
    "nest": (nest, ()),
    "hook": (hook, ()),
    "rename": (rename, ("old",)),
    "clock": (clock, ("field",)),
}
