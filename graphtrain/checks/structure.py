"""G1xx: names exist, every node is reached and can reach the end, the edges of a node are complete."""

from __future__ import annotations

import keyword
from collections.abc import Collection, Iterator
from fractions import Fraction

import networkx

from graphtrain.checks.guards import field_faults
from graphtrain.errors import UsageError
from graphtrain.graph.elements import END, NESTED, Node, Problem
from graphtrain.graph.registry import find_graph, known_kinds
from graphtrain.graph.syntax import NUMBERS, field_of, is_expression
from graphtrain.kind import Kind
from graphtrain.kind.declaration import FROM
from graphtrain.kind.parameter import REQUIRED, is_trigger, known_mode, show_value
from graphtrain.kind.trigger import Trigger, known_units
from graphtrain.names import nearest, quoted, suggestion
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import Scope, outputs_of, resource_copies, resources_of, slots_of

RESERVED = frozenset({END, "nodes", "edges", "guards", "clock", "start"})


def check_structure(scope: Scope) -> Iterator[Problem]:
    """Every problem of names, parameters and edges in one graph."""
    yield from _names(scope)
    for node in scope.graph.nodes.values():
        if node.name not in RESERVED:  # reported as G114
            yield from _node(scope, node)
    for source in {**scope.graph.nodes, **scope.graph.edges}:
        yield from _edges(scope, source)
    yield from _clock(scope)
    yield from _reachability(scope)


def _names(scope: Scope) -> Iterator[Problem]:
    graph = scope.graph
    for name in [name for name in graph.nodes if name in RESERVED]:
        hint = "it is the reserved target that ends the graph" if name == END else f"write [{name}] at the top level"
        yield scope.problem("G114", f"nodes.{name}", f"`{name}` cannot be the name of a node", hint)
    named = (("nodes", "node", graph.nodes), ("guards", "guard", graph.guards), ("clock", "unit", graph.units))
    for section, thing, names in named:
        for name in filter(_is_invalid, names):
            yield scope.problem("G114", f"{section}.{name}", f"`{name}` is not a valid name for a {thing}", _NAME)
    if graph.optimizer and _is_invalid(str(graph.optimizer)):
        yield scope.problem("G114", "optimizer", f"`{graph.optimizer}` is not a valid name for an optimizer", _NAME)
    if graph.start not in graph.nodes:
        yield scope.problem("G101", "start", f"unknown node `{graph.start}`", suggestion(graph.start, graph.nodes))
    for slot in outputs_of(graph):
        if slot not in scope.written and None not in scope.kinds.values():
            message, hint = f"no node writes the output `{slot}`", suggestion(slot, scope.written)
            yield scope.problem("G115", "outputs", message, hint)


_NAME = "letters, digits and underscores, not starting with a digit; not a keyword of Python, `pi` or `inf`"


def _is_invalid(name: str) -> bool:
    """True for a name that a guard cannot read: no identifier, a keyword, or a number."""
    return not name.isidentifier() or keyword.iskeyword(name) or name in NUMBERS


# ---- nodes


def _node(scope: Scope, node: Node) -> Iterator[Problem]:
    kind, thing = scope.kinds[node.name], f"nodes.{node.name}"
    if kind is None:
        hint = 'a node with another name than its kind has use = "KIND"; or declare it with @node'
        hint = f"{suggestion(node.use, known_kinds())} {hint}, in a script that `check` imports with --script".lstrip()
        if find_graph(node.use) is not None:
            hint = f'`{node.use}` is a graph: write graph = "{node.use}"'
        yield scope.problem("G102", thing, f"unknown kind `{node.use}`", hint)
        return
    if node.use == NESTED and node.body is None:
        message = f"`{node.name}.graph` is missing: a node of kind `{NESTED}` has a graph as its body"
        yield scope.problem("G104", thing, message, f'write graph = "NAME" instead of use = "{NESTED}"')
        return
    for name in node.parameters:
        if name not in kind.parameters:
            message = f"unknown parameter `{node.name}.{name}` of kind `{kind.name}`"
            yield scope.problem("G103", f"{thing}.{name}", message, suggestion(name, kind.parameters))
    for name in kind.parameters:
        yield from _parameter(scope, node, kind, name)
    yield from _reads(scope, node, kind)
    yield from _writes(scope, node, kind)


def _parameter(scope: Scope, node: Node, kind: Kind, name: str) -> Iterator[Problem]:
    parameter, shown, thing = kind.parameters[name], f"{node.name}.{name}", f"nodes.{node.name}.{name}"
    value = node.parameters.get(name, parameter.default)
    try:
        value = parameter.coerce(value) if name in node.parameters else value
    except ValueError as error:
        hint = ""
        if name in kind.varying and isinstance(value, str) and (is_expression(value) or field_of(value)):
            hint = f'an expression is what it reads: reads = {{ {name} = "..." }}'
        elif is_trigger(parameter.annotation) and type(value) in (int, float):
            hint = f'name the unit: {name} = "{value} epochs", or "{value} steps"'
        yield scope.problem("G104", thing, f"{shown}: {error}", hint)
        return
    if value is REQUIRED and name not in node.reads:
        yield scope.problem("G104", thing, f"`{shown}` is missing: {parameter.type_name}")
    if isinstance(value, Trigger):
        yield from _trigger(scope, node, kind, name, value)
    metric = node.parameters.get(kind.monitor, kind.parameters[kind.monitor].default) if name == kind.mode else None
    if value is None and isinstance(metric, str) and known_mode(metric) is None:
        message = f"`{shown}` is missing: the name `{metric}` does not tell whether large values are good"
        hint = f'write {name} = "max" if the largest is the best, {name} = "min" if the smallest is'
        yield scope.problem("G104", thing, message, hint)


def _trigger(scope: Scope, node: Node, kind: Kind, name: str, trigger: Trigger) -> Iterator[Problem]:
    """The problems of a trigger; `after` and `from` take amounts that are reached once."""
    thing, known = f"nodes.{node.name}.{name}", known_units(scope.graph.units)
    for term in trigger.terms:
        if term.unit not in known:
            where = ", which [clock] does not define" if scope.graph.units else ": the graph has no [clock]"
            message = f'unknown unit `{term.unit}` in {node.name}.{name} = "{term}"{where}'
            hint = suggestion(term.unit, known, {"iterations": '"N steps" of the optimizer, or "N batches",'})
            counting = [name for name, each in scope.kinds.items() if each is not None and term.unit in each.fields]
            if counting and f"{term.unit}s" not in known:
                hint = f'count it on the clock: {term.unit} = "{counting[0]}.{term.unit}"'
            yield scope.problem("G106", thing, message, hint)
    if name == kind.trigger == "every" or name not in node.parameters:
        return
    if trigger.once or (name == FROM and trigger.is_never):
        message = f"{node.name}.{name} takes an amount that is reached once, got {show_value(trigger.texts)}"
        yield scope.problem("G104", thing, message, f'as in {name} = "5 epochs"')
    elif name == FROM and "every" not in node.parameters and kind.parameters["every"].default is None:
        message = f"{node.name}.{FROM} needs `every`, and `{node.name}` has none: it runs at every visit"
        yield scope.problem("G104", thing, message, 'add one, as in every = "1 epochs"')


def _reads(scope: Scope, node: Node, kind: Kind) -> Iterator[Problem]:
    body, thing = scope.bodies.get(node.name), f"nodes.{node.name}.reads"
    slots = sorted(body.read - body.written) if body is not None else kind.slots
    for slot, target in node.reads.items():
        if slot in scope.expressions(node):
            continue  # `checks.guards`
        is_known = body is None or all(None not in around.kinds.values() for around in body.around)
        if slot not in slots and is_known:
            hint = suggestion(slot, slots) or "it reads no slots"
            kind_name = f", a `{node.use}`," if node.use != node.name else ""
            yield scope.problem("G115", thing, f"`{node.name}`{kind_name} has no slot or parameter `{slot}`", hint)
        for name in (target,) if isinstance(target, str) else target or [""]:
            if (field := field_of(name)) is not None:
                yield from _field(scope, f"{thing}.{slot}", *field)
            elif is_expression(name) and not isinstance(target, str):
                message = f"`{name}` is not a valid name for a slot"
                hint = "a list has the names of slots and fields, at least one"
                yield scope.problem("G115", f"{thing}.{slot}", message, hint)


def _writes(scope: Scope, node: Node, kind: Kind) -> Iterator[Problem]:
    thing, returned = f"nodes.{node.name}.writes", scope.returned_by(node)
    slots = outputs_of(node.body) if node.body is not None else kind.writes
    for slot, written in node.writes.items():
        meant = nearest(slot, {*slots} - node.writes.keys())
        if slot not in slots and (slot not in returned or meant or _is_invalid(slot)):
            hint = suggestion(slot, slots) or "it writes no slots"
            yield scope.problem("G115", thing, f"`{node.name}` writes no slot `{slot}`", hint)
        if _is_invalid(written):
            yield scope.problem("G115", f"{thing}.{slot}", f"`{written}` is not a valid name for a slot", _NAME)
    kept = node.parameters.get(kind.keeps, ()) if kind.keeps else ()
    for name in kept if isinstance(kept, list | tuple) else ():
        if name not in returned:
            keeps = f"{node.name}.{kind.keeps}"
            message = f"`{keeps}` has `{name}`, which the node does not write for its step function"
            hint = suggestion(str(name), returned) or f'write it: writes = {{ {name} = "{name}" }}'
            yield scope.problem("G115", f"nodes.{keeps}", message, hint)


def _field(scope: Scope, thing: str, owner: str, field: str) -> Iterator[Problem]:
    for code, message, hint in field_faults(scope, owner, field, ("G101", "G116")):
        yield scope.problem(code, thing, message, hint)


def _clock(scope: Scope) -> Iterator[Problem]:
    for unit, text in scope.graph.units.items():
        thing, (owner, dot, field) = f"clock.{unit}", text.rpartition(".")
        problems = list(_field(scope, thing, owner, field)) if dot else []
        yield from problems
        if not dot:
            yield scope.problem("G116", thing, f'expected "node.field", got "{text}"')
        elif "/" in owner and not problems:
            hint = f"count it on the clock of that graph, or count a field of `{owner.partition('/')[0]}` here"
            yield scope.problem("G116", thing, f"`{text}` is counted in a nested graph, and restarts with it", hint)
        elif not problems and (kind := scope.kinds[owner]) is not None:
            if field not in kind.fields or kind.fields[field].type not in (int, float, Fraction):
                yield scope.problem("G116", thing, f"`{text}` is not a number, so no unit can count it")
            elif kind.fields[field].with_gradients:
                message = f"`{text}` restarts when gradients are cleared, so no unit can count it"
                yield scope.problem("G116", thing, message, "count in a field of its own, declared as progress(0)")


# ---- edges


def _edges(scope: Scope, source: str) -> Iterator[Problem]:
    graph, thing = scope.graph, f"edges.{source}"
    leaving = graph.edges.get(source, ())
    if source not in graph.nodes:
        yield scope.problem("G101", thing, f"unknown node `{source}`", suggestion(source, graph.nodes))
    elif not leaving and source not in RESERVED:
        message = f"`{source}` has no edge, so the run could not continue after it"
        yield scope.problem("G113", thing, message, f'add {source} = ["..."] to [edges]')
    if not leaving or source not in graph.nodes:
        return
    for edge in leaving:
        if edge.target != END and edge.target not in graph.nodes:
            hint = suggestion(edge.target, [*graph.nodes, END])
            yield scope.problem("G101", thing, f"unknown node `{edge.target}`", hint)
        if edge.when is not None and edge.when not in graph.guards:
            hint = suggestion(edge.when, graph.guards) or "define it under [guards]"
            if _is_invalid(edge.when):
                hint = "an edge names its guard; define the expression under [guards]"
            yield scope.problem("G105", thing, f"unknown guard `{edge.when}`", hint)
    always = [number for number, edge in enumerate(leaving) if edge.when is None]
    if not always:
        message = f'the last edge, "{leaving[-1]}", has a guard: if no guard is true, the run could not continue'
        hint = f'add a last edge without a guard, or write "{leaving[-1].target}"'
        yield scope.problem("G109", thing, message, hint)
    elif after := ", ".join([f'"{edge}"' for edge in leaving[always[0] + 1 :]]):
        message = f'"{leaving[always[0]]}" has no guard, so the edges after it are never taken: {after}'
        yield scope.problem("G110", thing, message, "move it to the end, or give it a guard")


def _reachability(scope: Scope) -> Iterator[Problem]:
    """The nodes to which no path leads, and those from which none leads to the end, once edges are complete."""
    graph, names = scope.graph, list(scope.graph.nodes)
    network = networkx.DiGraph({name: [edge.target for edge in graph.edges.get(name, ())] for name in names})
    if graph.start not in graph.nodes:
        return
    reached = networkx.descendants(network, graph.start) | {graph.start}
    for name in reached - {END}:
        if name not in graph.nodes or not graph.edges.get(name):
            return  # not known until its edges are mended
    for name in names:
        if name not in reached and name not in RESERVED and graph.edges.get(name):
            message = f"no path leads from the start, `{graph.start}`, to `{name}`"
            hint = f'connect it, or remove it with remove = "{name}"'
            yield scope.problem("G107", f"nodes.{name}", message, hint)
    ending = networkx.ancestors(network, END) | {END} if END in network else set[str]()
    lost = network.subgraph(reached - ending)
    ways_out = [name for name in names if name in ending - reached] + [END]
    regions = [sorted(region, key=names.index) for region in networkx.attracting_components(lost)]
    for inside in sorted(regions, key=lambda region: names.index(region[0])):  # one edge out of each is enough
        cut = max(reversed(inside), key=lambda name: _likely_cut(scope, name))
        message = f"no path leads from {quoted(dict.fromkeys([cut, *inside]), 3)} to `end`, so the run could not finish"
        hint = f'add an edge that leads out, as in {cut} = ["{ways_out[0]} if GUARD", ...]'
        path = tuple(networkx.shortest_path(network, graph.start, cut))
        yield scope.problem("G108", f"nodes.{cut}", message, hint, path=path)


def _likely_cut(scope: Scope, name: str) -> tuple[bool, bool, int]:
    """What speaks for a node having lost its edge to the end: it was edited in Python, ends runs, has many targets."""
    kind, edges = scope.kinds[name], scope.graph.edges[name]
    ends = kind is not None and kind.trigger == "after"
    return not scope.graph.places.get(f"edges.{name}"), ends, len({edge.target for edge in edges})


# ---- G119, G303, G307: settings that exclude each other; runs leave these to this check


def check_start(plan: Plan, *, ranks: bool, supplied: Collection[str] | None) -> Iterator[Problem]:
    """Every node whose settings exclude each other, or those of another node, or whose `setup` reads a missing value.

    Arguments:
        ranks, supplied: as for `check_graph`.
    """
    try:
        resource_copies(plan.graph, None if supplied is None else dict.fromkeys(supplied, True))
    except UsageError as error:
        yield plan.main.problem("G119", "nodes", error.message, error.hint)
    alone: dict[object, PlanNode] = {}
    for plan_node in plan.nodes:
        kind, trigger = plan_node.kind, plan_node.trigger
        try:
            if kind.has("refuse_settings"):
                kind.implementation.refuse_settings(plan_node, ranks=ranks)  # type: ignore[attr-defined]
        except UsageError as error:
            yield plan_node.problem("G119", error.message, error.hint)
        if "scheduler" not in kind.optional or trigger is None or trigger.is_never:
            continue
        for name in resources_of([plan_node.scope.read_by(plan_node.node, "scheduler")]):
            other = alone.setdefault((plan_node.scope.path, name, str(trigger)), plan_node)
            if other is not plan_node and (supplied is None or name in supplied):
                message = f"`{other.path}` and `{plan_node.path}` both step `{name}` at the same time ({trigger})"
                hint = "remove one of them, or give it another `every`"
                yield plan_node.problem("G119", f"{message}, so it would be stepped twice", hint)
    for node in plan.nodes_in(plan.main):
        for slot in slots_of([ref for read, ref in node.set_up_with if read.required]):
            message = f"`setup` of `{node.path}` reads `{slot}` before the graph runs, but only the graph writes it"
            yield node.problem("G303", message, "let it read the slot when it is called, not in `setup`")
    recorded: dict[object, tuple[PlanNode, set[str]]] = {}
    for plan_node in plan.nodes:
        if parameter := plan_node.kind.records:
            around = [pair for each in plan.nodes_in(plan_node.scope) for pair in (*each.reads, *each.setup_reads)]
            evaluated, name = {*resources_of([ref for _, ref in around])}, plan_node.parameters[parameter]
            other, resources = recorded.setdefault(name, (plan_node, evaluated))
            if resources != evaluated:  # another evaluation
                message = f"`{other.path}` and `{plan_node.path}` both record their metrics as `{name}/...`"
                hint = f'give one of them another name, as in {plan_node.path}.{parameter} = "{name}_2"'
                yield plan_node.problem("G307", message, hint)
    acting = [node for node in plan.nodes if not node.kind.is_idle(node.parameters, node.expressions)]
    reads = {read.name: node for node in acting if not node.is_never_due for read, _ in node.setup_reads}
    if "history" in reads and "checkpoints" not in reads:
        message = f"`{reads['history'].path}` may send the run back to a checkpoint, but no node saves one"
        yield reads["history"].problem("G119", message, 'let a `checkpoint` save, as in `fit`: every = "1 epochs"')
