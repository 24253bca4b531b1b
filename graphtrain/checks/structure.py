"""G1xx: names resolve, every node is reached and can reach the end, the edges of a node are complete."""

from __future__ import annotations

import keyword
import unicodedata
from collections.abc import Collection, Iterator

from graphtrain.checks.codes import CODES, can_be_allowed
from graphtrain.checks.guards import no_node
from graphtrain.errors import UsageError
from graphtrain.graph.elements import END, NESTED, Node, Problem
from graphtrain.graph.registry import find_graph, known_kinds
from graphtrain.kind import Kind
from graphtrain.kind.declaration import FROM
from graphtrain.kind.parameter import REQUIRED, is_trigger, known_mode, show_value
from graphtrain.kind.trigger import ONCE, Trigger, known_units
from graphtrain.language.syntax import field_of, is_expression
from graphtrain.names import nearest, suggestion
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import (
    Scope,
    field_type,
    is_countable,
    made_resources,
    outputs_of,
    readable_fields,
    resources_of,
)

RESERVED = frozenset({END, "nodes", "edges", "guards", "clock", "start"})


def check_structure(scope: Scope) -> Iterator[Problem]:
    """Every problem of names, parameters and edges in one graph."""
    yield from _allowed(scope)
    yield from _names(scope)
    yield from _start(scope)
    for node in scope.graph.nodes.values():
        yield from _node(scope, node)
    for source in {**scope.graph.nodes, **scope.graph.edges}:
        yield from _edges(scope, source)
    yield from _clock(scope)
    yield from _outputs(scope)
    yield from _reachability(scope)


def _allowed(scope: Scope) -> Iterator[Problem]:
    for code in scope.graph.allow:
        if code not in CODES:
            hint = suggestion(code, CODES) or "codes are three digits after a G, as in G403"
            yield scope.problem("G117", "allow", f"`{code}` is not the code of a check", hint, severity="warning")
        elif not can_be_allowed(code):
            message = f"`{code}` cannot be allowed: {CODES[code]}"
            hint = "fix the graph; warnings can be allowed, and errors from G3 on"
            yield scope.problem("G117", "allow", message, hint, severity="warning")


def _names(scope: Scope) -> Iterator[Problem]:
    for name in scope.graph.nodes:
        if name in RESERVED:
            message = f"`{name}` cannot be the name of a node"
            hint = (
                "it is the reserved target that ends the graph" if name == END else f"write [{name}] at the top level"
            )
            yield scope.problem("G114", f"nodes.{name}", message, hint)
        elif not _is_name(name):
            yield scope.problem("G114", f"nodes.{name}", f"`{name}` is not a valid name for a node", _NAME)
    for section, thing, names in (("guards", "guard", scope.graph.guards), ("clock", "unit", scope.graph.units)):
        for name in names:
            if not _is_name(name):
                yield scope.problem("G114", f"{section}.{name}", f"`{name}` is not a valid name for a {thing}", _NAME)
    optimizer = scope.graph.optimizer
    if optimizer and not _is_name(str(optimizer)):
        message = f"`optimizer` names a resource or a slot; got {show_value(optimizer)}"
        hint = 'several are named at a node, as in reads = { optimizer = ["a", "b"] }'
        yield scope.problem("G114", "optimizer", message, hint)


_NAME = "letters, digits and underscores, not starting with a digit, and not a keyword of Python"


def _is_name(name: str) -> bool:
    """True for a name that a guard can read: an identifier, not a keyword, that Python's parser does not normalize."""
    return name.isidentifier() and not keyword.iskeyword(name) and unicodedata.normalize("NFKC", name) == name


def _start(scope: Scope) -> Iterator[Problem]:
    if scope.graph.start not in scope.graph.nodes:
        hint = suggestion(scope.graph.start, scope.graph.nodes)
        yield scope.problem("G101", "start", f"unknown node `{scope.graph.start}`", hint)


def _node(scope: Scope, node: Node) -> Iterator[Problem]:
    kind = scope.kinds[node.name]
    thing = f"nodes.{node.name}"
    if node.name in RESERVED:
        return  # reported as G114
    if kind is None:
        hint = "declare it with @node, in a script that `check` imports by --script"
        if meant := suggestion(node.use, known_kinds()):
            hint = f'{meant} A node of another name has use = "KIND". Or {hint}'
        if find_graph(node.use) is not None:
            hint = f'`{node.use}` is a graph: give it as graph = "{node.use}"'
        yield scope.problem("G102", thing, f"unknown kind `{node.use}`", hint)
        return
    if node.use == NESTED and node.body is None:
        message = f"`{node.name}.graph` is missing: a node of kind `{NESTED}` has a graph as its body"
        yield scope.problem("G104", thing, message, f'write graph = "NAME" instead of use = "{NESTED}"')
        return
    for name, value in node.parameters.items():
        if name not in kind.parameters:
            hint = suggestion(name, kind.parameters)
            message = f"unknown parameter `{node.name}.{name}` of kind `{kind.name}`"
            yield scope.problem("G103", f"{thing}.{name}", message, hint)
            continue
        parameter = kind.parameters[name]
        try:
            coerced = parameter.coerce(value)
        except ValueError as error:
            hint = ""
            if name in kind.varying and isinstance(value, str) and (is_expression(value) or field_of(value)):
                hint = f'an expression is what it reads: reads = {{ {name} = "..." }}'
            elif is_trigger(parameter.annotation) and isinstance(value, int | float) and not isinstance(value, bool):
                hint = f'name the unit: {name} = "{value} epochs", or "{value} steps"'
            yield scope.problem("G104", f"{thing}.{name}", f"{node.name}.{name}: {error}", hint)
            continue
        if is_trigger(parameter.annotation) and isinstance(coerced, Trigger):
            yield from _units(scope, node, name, coerced)
            yield from _moments(scope, node, kind, name, coerced)
    for name, parameter in kind.parameters.items():
        if name in node.parameters:
            continue
        if parameter.default is REQUIRED and name not in node.reads:
            message = f"`{node.name}.{name}` is missing: {parameter.type_name}"
            yield scope.problem("G104", f"{thing}.{name}", message)
        elif is_trigger(parameter.annotation) and parameter.default is not None:
            yield from _units(scope, node, name, parameter.coerce(parameter.default))
    yield from _mode(scope, node, kind)
    yield from _slots(scope, node)


def _mode(scope: Scope, node: Node, kind: Kind) -> Iterator[Problem]:
    """A metric for which it is not given whether small or large values are good."""
    monitors, mode = kind.monitor, kind.mode
    if not mode or node.parameters.get(mode) is not None:
        return
    metric = node.parameters.get(monitors, kind.parameters[monitors].default)
    if isinstance(metric, str) and known_mode(metric) is None:
        message = f"`{node.name}.{mode}` is missing: the name `{metric}` does not tell whether large values are good"
        hint = f'write {mode} = "max" if the largest is the best, {mode} = "min" if the smallest is'
        yield scope.problem("G104", f"nodes.{node.name}.{mode}", message, hint)


def _units(scope: Scope, node: Node, name: str, trigger: Trigger) -> Iterator[Problem]:
    known = known_units(scope.graph.units)
    for term in trigger.terms:
        if term.unit not in known:
            message = f'unknown unit `{term.unit}` in {node.name}.{name} = "{term}"'
            yield scope.problem("G106", f"nodes.{node.name}.{name}", message, suggestion(term.unit, known))


def _moments(scope: Scope, node: Node, kind: Kind, name: str, trigger: Trigger) -> Iterator[Problem]:
    """The values that are invalid for `after` and `from`, which are reached once."""
    if name == kind.trigger == "every":
        return
    repeated = [text for text in trigger.texts if text == ONCE or " per " in text]
    if repeated or (name == FROM and trigger.is_never):
        message = f"{node.name}.{name} takes an amount that is reached once, got {show_value(trigger.texts)}"
        yield scope.problem("G104", f"nodes.{node.name}.{name}", message, f'as in {name} = "5 epochs"')
    elif name == FROM and "every" not in node.parameters and kind.parameters["every"].default is None:
        message = f"{node.name}.{FROM} needs `every`, and `{node.name}` has none: it runs at every visit"
        yield scope.problem("G104", f"nodes.{node.name}.{name}", message, 'add one, as in every = "1 epochs"')


def _slots(scope: Scope, node: Node) -> Iterator[Problem]:
    kind = scope.kinds[node.name]
    assert kind is not None
    body = scope.bodies.get(node.name)
    readable = sorted(body.read - body.written) if body is not None else list(kind.slots)
    writable = outputs_of(node.body) if node.body is not None else kind.writes
    open_body = body is not None and body.may_hold("")
    parameters = kind.parameters if node.body is None else {}
    for verb, mapping, known in (("reads", node.reads, readable), ("writes", node.writes, writable)):
        for slot in mapping:
            if verb == "reads" and slot in parameters:
                continue  # an expression gives its value: `checks.guards`
            may_be_returned = verb == "writes" and slot in scope.returned_by(node) and slot.isidentifier()
            if may_be_returned and not nearest(slot, {*kind.writes} - mapping.keys()):
                continue  # the step function returns it
            if slot not in known and not (open_body and verb == "reads"):
                hint = suggestion(slot, known) or f"it {verb} nothing that could be renamed"
                if verb == "writes" and node.body is None and kind.repeats_step:
                    hint = "it calls its step function several times a visit: what that returns cannot go to a slot"
                message = f"`{node.name}` {verb} no slot `{slot}`"
                yield scope.problem("G115", f"nodes.{node.name}.{verb}", message, hint)
    kept = node.parameters.get(kind.keeps, ()) if kind.keeps else ()
    for name in kept if isinstance(kept, list | tuple) else ():
        if name not in (returned := scope.returned_by(node)):
            keeps = f"{node.name}.{kind.keeps}"
            message = f"`{keeps}` names `{name}`, which the node does not write for its step function"
            hint = suggestion(str(name), returned) or f'write it: writes = {{ {name} = "{name}" }}'
            yield scope.problem("G115", f"nodes.{keeps}", message, hint)
    for slot, written in node.writes.items():
        if not written.isidentifier():
            message = f"`{written}` is not a valid name for a slot"
            yield scope.problem("G115", f"nodes.{node.name}.writes.{slot}", message)
    for slot, target in node.reads.items():
        if target == ():
            message = f"`{node.name}` reads `{slot}` from an empty list"
            yield scope.problem("G115", f"nodes.{node.name}.reads.{slot}", message, "name a slot, or leave it out")
        for name in (target,) if isinstance(target, str) else target:
            thing = f"nodes.{node.name}.reads.{slot}"
            if (field := field_of(name)) is not None:
                if slot not in parameters or slot in kind.slots:
                    yield from _field(scope, thing, *field)
            elif is_expression(name) and not isinstance(target, str):
                message = f"`{name}` is not a valid name for a slot"
                yield scope.problem("G115", thing, message, "a list contains slots and fields")


def _field(scope: Scope, thing: str, owner: str, field: str) -> Iterator[Problem]:
    if scope.inside(owner) is None:
        message, hint = no_node(scope, owner, f"`{owner}.{field}`")
        yield scope.problem("G101", thing, message, hint)
    elif field_type(scope, owner, field) is None:
        hint = suggestion(field, readable_fields(scope, owner))
        yield scope.problem("G116", thing, f"`{owner}` has no field `{field}`", hint)


def _edges(scope: Scope, source: str) -> Iterator[Problem]:
    graph, thing = scope.graph, f"edges.{source}"
    leaving = graph.edges.get(source, ())
    if source not in graph.nodes:
        yield scope.problem("G101", thing, f"unknown node `{source}`", suggestion(source, graph.nodes))
        return
    if source in RESERVED:
        return  # reported as G114
    if not leaving:
        message = f"`{source}` has no edge: the run could not continue from it"
        yield scope.problem("G113", thing, message, f'add {source} = ["..."] to [edges]')
        return
    seen: set[tuple[str, str | None]] = set()
    for number, edge in enumerate(leaving):
        if edge.target != END and edge.target not in graph.nodes:
            hint = suggestion(edge.target, [*graph.nodes, END])
            yield scope.problem("G101", thing, f"unknown node `{edge.target}`", hint)
        if edge.when is not None and edge.when not in graph.guards:
            hint = suggestion(edge.when, graph.guards) or "define it under [guards]"
            if not _is_name(edge.when):
                hint = "an edge names its guard; define the expression as a guard"
            yield scope.problem("G105", thing, f"unknown guard `{edge.when}`", hint)
        if (edge.target, edge.when) in seen:
            yield scope.problem("G111", thing, f'the edge "{edge}" is listed twice')
        elif edge.when is None and any(later != edge for later in leaving[number + 1 :]):
            after = ", ".join(f'"{later}"' for later in leaving[number + 1 :])
            message = f'"{edge}" has no guard, so what follows it is never taken: {after}'
            yield scope.problem("G110", thing, message, "move it to the end, or give it a guard")
        seen.add((edge.target, edge.when))
    last = leaving[-1]
    if all(edge.when is not None for edge in leaving):
        message = f'the last edge, "{last}", has a guard: if none holds, the run could not continue'
        hint = f'add a last edge without a guard, or write "{last.target}"'
        yield scope.problem("G109", thing, message, hint)


def _clock(scope: Scope) -> Iterator[Problem]:
    for unit, text in scope.graph.units.items():
        thing = f"clock.{unit}"
        owner, dot, field = text.rpartition(".")
        if not dot:
            yield scope.problem("G116", thing, f'expected "node.field", got "{text}"')
            continue
        problems = list(_field(scope, thing, owner, field))
        yield from problems
        if not problems and not is_countable(scope, owner, field):
            yield scope.problem("G116", thing, f"`{text}` is not a number, so no unit can count it")


def _outputs(scope: Scope) -> Iterator[Problem]:
    for slot in outputs_of(scope.graph):
        if slot not in scope.written and None not in scope.kinds.values():
            hint = suggestion(slot, scope.written)
            yield scope.problem("G115", "outputs", f"no node writes the output `{slot}`", hint)


def _reachability(scope: Scope) -> Iterator[Problem]:
    import networkx

    graph = scope.graph
    if graph.start not in graph.nodes:
        return
    network = networkx.DiGraph()
    network.add_nodes_from([*graph.nodes, END])
    targets = {source: [edge.target for edge in graph.edges.get(source, ())] for source in graph.nodes}
    for source, following in targets.items():
        # Where an edge is missing (G113) or leads nowhere (G101), it is not known yet what it would reach.
        network.add_edges_from((source, target if target in network else END) for target in following or [END])
    reached = networkx.descendants(network, graph.start) | {graph.start}
    incomplete = any(
        not following or set(following) - network.nodes.keys() for name, following in targets.items() if name in reached
    )
    ending = networkx.ancestors(network, END)
    for name in graph.nodes:
        if name in RESERVED or not targets[name] or incomplete:
            continue
        if name not in reached:
            message = f"no path leads from the start, `{graph.start}`, to `{name}`"
            hint = f'connect it, or remove it with remove = "{name}"'
            yield scope.problem("G107", f"nodes.{name}", message, hint)
    lost = network.subgraph(reached - ending - {END})
    order = {name: number for number, name in enumerate(graph.nodes)}
    regions = [sorted(region, key=order.__getitem__) for region in networkx.attracting_components(lost)]
    for inside in sorted(regions, key=lambda region: order[region[0]]):  # one edge out of each is enough
        ending_run = (name for name in inside if (kind := scope.kinds[name]) is not None and kind.trigger == "after")
        name = next(ending_run, inside[0])
        others = f", nor from the {len(inside) - 1} others of its loop" if len(inside) > 1 else ""
        message = f"no path leads from `{name}` to `end`{others}, so the run could not finish"
        hint = f'add an edge that leads out, as in {name} = ["end if GUARD", ...]'
        path = tuple(networkx.shortest_path(network, graph.start, name))
        yield scope.problem("G108", f"nodes.{name}", message, hint, path=path)


# ---- G119: what a run would refuse at its start, because of the graph alone; runs leave it to this check


def check_start(plan: Plan, *, ranks: bool, supplied: Collection[str] | None) -> Iterator[Problem]:
    """Every node whose settings exclude each other, or those of another one.

    Arguments:
        ranks, supplied: as for `check_graph`.
    """
    resources = None if supplied is None else dict.fromkeys(supplied, True)
    try:
        made_resources(plan.graph, resources)
    except UsageError as error:
        yield plan.main.problem("G119", "nodes", error.message, error.hint)
    alone: dict[object, PlanNode] = {}
    for plan_node in plan.nodes:
        try:
            if plan_node.kind is not None and plan_node.kind.has("refuse_settings"):
                plan_node.kind.implementation.refuse_settings(plan_node, ranks=ranks)  # type: ignore[attr-defined]
        except UsageError as error:
            yield _refused(plan_node, error.message, error.hint)
        for name, at in _scheduled(plan_node, supplied):
            if (other := alone.setdefault((plan_node.scope.path, name, at), plan_node)) is not plan_node:
                message = f"`{other.path}` and `{plan_node.path}` both step `{name}` at one time ({at})"
                hint = "remove one of them, or give it another `every`"
                yield _refused(plan_node, f"{message}: each would multiply what the other has set", hint)
    acting = [node for node in plan.nodes if node.kind and not node.kind.is_idle(node.parameters, node.expressions)]
    reads = [(read.name, node) for node in acting for read, _ in node.setup_reads]
    returning = [node for name, node in reads if name == "history"]
    if returning and "checkpoints" not in dict(reads):
        message = f"`{returning[0].path}` may send the run back to a checkpoint, but no node saves one"
        yield _refused(returning[0], message, "insert a node of the kind `checkpoint`, as in `fit`")


def _scheduled(plan_node: PlanNode, supplied: Collection[str] | None) -> Iterator[tuple[str, str]]:
    """The names of the schedulers that a node steps, with the trigger that says when."""
    kind, trigger = plan_node.kind, plan_node.trigger
    if kind is not None and "scheduler" in kind.optional and trigger is not None and not trigger.is_never:
        for name in resources_of([plan_node.scope.read_by(plan_node.node, "scheduler")]):
            if supplied is None or name in supplied:
                yield name, str(trigger)


def _refused(plan_node: PlanNode, message: str, hint: str) -> Problem:
    return plan_node.scope.problem("G119", f"nodes.{plan_node.node.name}", message, hint)
