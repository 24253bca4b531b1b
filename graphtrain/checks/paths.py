"""The problems along the paths of a graph, by exploration: G303, G304, G401 to G415, G501, G503, G504, G702 to G704."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence

import networkx

from graphtrain.checks.exploration import SIZES, Exploration, Harm, Machine
from graphtrain.checks.gradient_rules import NEVER_CLEARED, OPEN, STEP_WITHIN
from graphtrain.checks.optimizers import optimizers_in
from graphtrain.graph.elements import END, Problem, Severity
from graphtrain.kind.declaration import RANKS
from graphtrain.language.syntax import Constant, Expression, FieldOf, Operation, walk
from graphtrain.names import quoted
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import Scope, resources_of
from graphtrain.program.bind import ProgramNode


def check_paths(
    plan: Plan, optimizers: Collection[str], *, ranks: bool, supplied: Collection[str] | None
) -> tuple[list[Problem], set[str]]:
    """Every problem; and the nodes that divide gradients which were exchanged.

    Arguments:
        optimizers: those whose gradients are followed.
        ranks, supplied: as for `check_graph`.
    """
    alone = () if ranks else (RANKS,)
    has_windows = any(declared.counts for node in plan.nodes for declared in node.kind.fields.values())
    sizes = [each for each in SIZES if has_windows or each.window == 1]
    exploration = Exploration(Machine(plan, alone, optimizers, ranks=ranks), sizes)
    problems = [*_harm(exploration, plan), *_unwritten(exploration)]
    # Where gradients are not followed, or never cleared, windows may not fill for lack of what is reported.
    is_windowed = optimizers_in(plan.nodes).keys() <= {*optimizers} and "G405" not in {each.code for each in problems}
    traps = list(_traps(exploration, "error")) if is_windowed else []
    if not exploration.is_whole:
        message = f"not checked any further: there are more than {len(exploration.states):,} states"
        hint = "put a part into a nested graph, or use fewer conditions"
        problems.append(plan.main.problem("G503", f"nodes.{plan.graph.start}", message, hint, severity="warning"))
    if is_windowed and not traps:
        optional = resources_of(ref for node in plan.nodes for ref in node.optional)
        severity: Severity = "warning" if supplied is None else "error"
        traps = _traps_without(plan, {*optional} - {RANKS, *(supplied or ())}, alone, severity)
    return [*problems, *traps], exploration.machine.watch.divides_exchanged


def _traps_without(plan: Plan, absent: Collection[str], alone: Collection[str], severity: Severity) -> list[Problem]:
    """The loops that a run without optional resources never leaves: without one that is the reason, or without all.

    Arguments:
        alone: the resources that one process does not have.
    """

    def traps(names: Collection[str]) -> list[Problem]:
        without = Exploration(Machine(plan, {*names, *alone}, (), ranks=not alone), SIZES[:1])
        return list(_traps(without, severity, names))

    problems = traps(absent) if absent else []
    return next(filter(None, (traps([name]) for name in sorted(absent))), problems) if problems else []


def _names(nodes: Iterable[ProgramNode]) -> tuple[str, ...]:
    """The paths of nodes; a body that is entered and left at once is named once."""
    return tuple(path for path, _ in itertools.groupby(node.path for node in nodes))


# ---- gradients, windows and modes


def _harm(exploration: Exploration, plan: Plan) -> Iterator[Problem]:
    harm = [*exploration.machine.harm.values()]
    uncleared = {each.words.get("optimizer") for each in harm if each.fault.code == "G405"}
    is_else = any(each.fault.code not in ("G414", "G415") for each in harm)
    for each in harm:
        is_consequence = each.fault.code in ("G403", "G406") and each.words["optimizer"] in uncleared
        if not is_consequence and not (each.fault.code == "G414" and is_else):
            yield _of_harm(exploration, plan, each)


def _of_harm(exploration: Exploration, plan: Plan, harm: Harm) -> Problem:
    node, fault, optimizer = harm.node, harm.fault, harm.words.get("optimizer", "")
    effects = optimizers_in(plan.nodes).get(optimizer, {})
    if fault.code == "G405" and "zero_grad" not in effects:
        fault = NEVER_CLEARED
    if fault.code == "G702" and node.kind.has_effect("backward"):
        fault = STEP_WITHIN
    words = {"node": node.path, "divisor": "", **harm.words, "optimizer": f"`{optimizer}`"}
    words["step"] = effects["step"].path if "step" in effects else "step"
    way = exploration.way(harm.visit)

    def acts(node: ProgramNode) -> bool:
        actions = node.plan_node.actions
        return node.kind.has_effect("eval") if not optimizer else any(optimizer in each.optimizers for each in actions)

    before = [number for number, each in enumerate(way[:-1]) if acts(each)]
    path = _names(way[before[-1] :] if before else way)
    return node.scope.names.problem(
        fault.code,
        f"nodes.{node.node.name}",
        fault.message.format(**words),
        fault.hint.format(**words),
        severity=fault.severity,
        path=(*path, END) if fault is OPEN else path,
    )


# ---- slots


def _unwritten(exploration: Exploration) -> Iterator[Problem]:
    """The slots that are read before something has written them; a warning where that is so on some paths alone."""
    machine = exploration.machine
    for (path, slot, is_guard), visit in machine.unwritten.items():
        node = machine.program.by_path[path]
        never = (path, slot) not in machine.written
        is_certain = visit.is_sure or (never and not is_guard)
        writing = quoted([other.path for other in machine.program.nodes if slot in other.plan_node.writes])
        reads = f"a guard on an edge leaving `{path}` reads" if is_guard else f"`{path}` reads"
        on = "before" if is_certain else "before on some path"
        move = "move the edge to where it is written" if is_guard else "give the read a default (`= None`)"
        yield node.scope.names.problem(
            "G303" if is_certain else "G304",
            f"{'edges' if is_guard else 'nodes'}.{node.node.name}",
            f"{reads} `{slot}`, which nothing has written {on}: it is written by {writing}",
            f"route every path through {writing} first, or {move}",
            severity="error" if is_certain else "warning",
            path=_names(exploration.way(visit)),
        )


# ---- loops without a way out


def _traps(exploration: Exploration, severity: Severity, absent: Collection[str] = ()) -> Iterator[Problem]:
    """The loops from which nothing leads to the end, each once."""
    reported: list[set[str]] = []
    for states in exploration.traps():
        trap = _Trap(exploration, states)
        if all(names.isdisjoint(trap.names) for names in reported):
            reported.append({*trap.names})
            yield trap.problem(severity, absent)


class _Trap:
    """States that a run never leaves."""

    def __init__(self, exploration: Exploration, states: Collection[int]) -> None:
        graph = exploration.graph.subgraph(states)
        program = exploration.machine.program
        arrived = {edge: program.nodes[exploration.states[edge[1]][0]] for edge in graph.edges}
        pairs = {
            pair for edge, node in arrived.items() for pair in itertools.pairwise([*exploration.visited([*edge]), node])
        }
        visited = sorted({node for node, _ in pairs}, key=lambda node: node.index)
        # Bodies are passed in one step.
        self.nodes = [node for node in visited if node.scope is visited[0].scope]
        self.names = [node.path for node in self.nodes]
        self._steps = networkx.DiGraph(pair for pair in pairs if {*pair} <= {*self.nodes})
        self._taken: dict[ProgramNode, int] = {}  # the last of the edges of each node that is taken
        for node, target in self._steps.edges:
            targets = [way.target for way in node.plan_node.exits]
            if target.plan_node in targets:
                self._taken[node] = max(self._taken.get(node, 0), targets.index(target.plan_node))

    def _closed(self) -> Iterator[tuple[ProgramNode, str]]:
        """The guards by which the run does not leave, with their nodes."""
        for node, taken in sorted(self._taken.items(), key=lambda item: item[0].index):
            ways = node.plan_node.exits
            outside = [way.target is None or way.target.path not in self.names for way in ways]
            before = [way.when for way, is_out in zip(ways[:taken], outside, strict=False) if is_out and way.when]
            hiding = [ways[taken].when] if any(outside[taken + 1 :]) else []  # an answer that hides what follows
            yield from ((node, name) for name in (*before, *hiding) if name is not None)

    def _loop(self, node: ProgramNode) -> tuple[str, ...]:
        """A shortest way from a node back to it."""
        ways = [networkx.shortest_path(self._steps, after, node) for after in self._steps[node]]
        return (node.path, *(each.path for each in min(ways, key=len)))

    def problem(self, severity: Severity, absent: Collection[str]) -> Problem:
        closed = list(self._closed())
        names = quoted(self.names, most=16)
        deciding = list(dict.fromkeys(name for _, name in closed))
        node = closed[0][0] if closed else self.nodes[0]
        scope = node.scope.names
        if (never := self._never_due(scope, deciding)) is not None:
            return scope.problem(
                "G504",
                f"nodes.{never.node.name}.after",
                f'`{never.path}.after` is "never", and nothing else ends the graph: {quoted(deciding)} cannot hold',
                f'give it an amount, as in {never.path}.after = "10 epochs"; where a step function returns STOP, or a '
                'person stops the run, allow = ["G504"]',
                severity="warning",  # mostly intended: such a run is stopped by a signal, or by `until`
                path=self._loop(node),
            )
        guards = [scope.guards[name] for name in deciding if name in scope.guards]
        hint = (
            "let the guard read progress of a node of the loop, such as `runs`, or route the loop through a node whose "
        )
        hint += "progress it reads, such as `next_batch`" + _counted_instead(scope, guards, self.nodes)
        hint += (
            "; or, if it is always supplied, take it out of the `optional` of the body or the kind" if absent else ""
        )
        is_left = f"it could leave only as {quoted(deciding)} decide" if deciding else "no edge leads out"
        return scope.problem(
            "G501",
            f"{'edges' if closed else 'nodes'}.{node.node.name}",
            f"{f'without {quoted(sorted(absent))} ' if absent else ''}the run can go round {names} forever: "
            f"{is_left}{'s' if len(deciding) == 1 else ''}, and nothing there changes the answer",
            hint,
            severity=severity,
            path=self._loop(node),
        )

    def _never_due(self, scope: Scope, deciding: Sequence[str]) -> PlanNode | None:
        """A node by which the graph would end, if its amount was not "never"."""
        read = {part.node for name in deciding for part in walk(scope.guards[name]) if isinstance(part, FieldOf)}
        nodes = {node.path: node.plan_node for node in self.nodes[0].scope.nodes.values()}
        ending = [nodes[f"{scope.path}{name}"] for name in read if f"{scope.path}{name}" in nodes]
        return next((node for node in ending if node.kind.trigger == "after" and node.is_never_due), None)


def _counted_instead(scope: Scope, guards: Sequence[Expression], nodes: Sequence[ProgramNode]) -> str:
    """A remedy for a guard that divides what a unit counts, which does not change before the guard is read again."""
    units = {text: unit for unit, text in scope.graph.units.items()}
    for part in (part for guard in guards for part in walk(guard)):
        match part:
            case Operation("%", (FieldOf(owner, field), Constant(amount))) if f"{owner}.{field}" in units:
                due = next((node for node in nodes if node.kind.trigger == "every"), None)
                if due is not None:
                    name, unit = due.node.name, units[f"{owner}.{field}"]
                    return (
                        f', or let the node be due: every = "{amount} {unit}" of `{name}`, and the guard "{name}.due"'
                    )
    return ""
