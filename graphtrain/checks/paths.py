"""The problems along the paths of a graph, by exploration: G303, G304, G401 to G415, G501, G503, G504, G702 to G704."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from graphtrain.checks.cycles import distinct
from graphtrain.checks.exploration import MOST_STATES, SIZES, Exploration, Machine, Violation
from graphtrain.checks.gradient_rules import NEVER_CLEARED, OPEN
from graphtrain.checks.optimizers import optimizers_in
from graphtrain.checks.traps import Trap, traps_in
from graphtrain.graph.elements import END, Problem, Severity
from graphtrain.kind.declaration import RANKS
from graphtrain.names import quoted
from graphtrain.plan.plan import Plan
from graphtrain.plan.scope import resources_of
from graphtrain.program.bind import ProgramNode
from graphtrain.program.resources import PROVIDED


def check_paths(
    plan: Plan, optimizers: Collection[str], *, ranks: bool, supplied: Collection[str] | None
) -> tuple[list[Problem], set[str]]:
    """Every problem; and the paths of the nodes that divide exchanged gradients.

    Arguments:
        optimizers: the optimizers whose gradients are followed.
        ranks, supplied: as for `check_graph`.
    """
    alone = set() if ranks else {RANKS}  # what only runs of several ranks have
    optional = {*resources_of([ref for node in plan.nodes for ref in node.optional])} - {*PROVIDED}
    absent = optional - {*supplied} if supplied is not None else set()
    has_windows = any(declared.counts for node in plan.nodes for declared in node.kind.fields.values())
    sizes = [each for each in SIZES if has_windows or each.window == 1]
    exploration = Exploration(Machine(plan, alone | absent, optimizers, ranks=ranks), sizes)
    problems = [*_harm(exploration, plan), *_unwritten(exploration)]
    if not exploration.is_whole:
        message = f"not checked completely: the graph has more than {MOST_STATES:,} states"
        hint = "move a part into a nested graph, or use fewer guards"
        problems.append(plan.main.problem("G503", f"nodes.{plan.graph.start}", message, hint, severity="warning"))
    traps = traps_in(exploration)
    severity: Severity = "error"
    if supplied is None and not traps:
        severity, traps = "warning", _traps_lacking(plan, optional, alone)  # if they are not supplied
    elif traps and absent and not traps_in(Exploration(Machine(plan, alone, (), ranks=ranks), SIZES[:1])):
        traps = _traps_lacking(plan, absent, alone)  # the missing resources are the reason
    # A window that is never cleared, or of no optimizer, never ends: that is reported already.
    is_windowed = optimizers_in(plan.nodes).keys() <= {*optimizers} and "G405" not in {each.code for each in problems}
    problems += [trap.problem(severity) for trap in traps if is_windowed or not trap.reads_windows]
    return problems, exploration.machine.watch.divides_exchanged


def _traps_lacking(plan: Plan, absent: Collection[str], alone: Collection[str]) -> list[Trap]:
    """The loops that a run without optional resources never leaves: without a single one, else without all."""

    def traps(names: Collection[str]) -> list[Trap]:
        return traps_in(Exploration(Machine(plan, {*names, *alone}, (), ranks=not alone), SIZES[:1]), names)

    every = traps(absent) if absent else []
    return next(filter(None, (traps([name]) for name in sorted(absent))), every) if every else []


# ---- gradients, windows and modes


def _harm(exploration: Exploration, plan: Plan) -> Iterator[Problem]:
    violations = [*exploration.machine.violations.values()]
    uncleared = {each.words.get("optimizer") for each in violations if each.fault.code == "G405"}
    has_other_faults = bool({each.fault.code for each in violations} - {"G414", "G415"})
    for each in violations:
        is_consequence = each.fault.code in ("G403", "G406") and each.words["optimizer"] in uncleared
        if not is_consequence and not (each.fault.code == "G414" and has_other_faults):
            yield _of_violation(exploration, plan, each)


def _of_violation(exploration: Exploration, plan: Plan, violation: Violation) -> Problem:
    node, fault, optimizer = violation.node, violation.fault, violation.words.get("optimizer", "")
    effects = optimizers_in(plan.nodes).get(optimizer, {})
    if fault.code == "G405" and "zero_grad" not in effects:
        fault = NEVER_CLEARED
    words = {"node": node.path, "divisor": "", **violation.words, "optimizer": f"`{optimizer}`"}
    words["step"] = effects["step"].path if "step" in effects else "step"
    visited = exploration.path_to(violation.visit)

    def acts(node: ProgramNode) -> bool:
        actions = node.plan_node.actions
        return "eval" in node.kind.does if not optimizer else any(optimizer in each.optimizers for each in actions)

    before = [number for number, each in enumerate(visited[:-1]) if acts(each)]
    path = distinct(each.path for each in visited[before[-1] if before else 0 :])
    return node.scope.problem(
        fault.code,
        f"nodes.{node.node.name}",
        fault.message.format(**words),
        fault.hint.format(**words),
        severity=fault.severity,
        path=(*path, END) if fault is OPEN else path,
    )


# ---- slots


def _unwritten(exploration: Exploration) -> Iterator[Problem]:
    """The slots that are read before they are written; a warning if that is so only on some paths."""
    machine = exploration.machine
    for (path, slot, is_guard), visit in machine.unwritten.items():
        node = machine.program.by_path[path]
        is_certain = visit.is_sure or ((path, slot) not in machine.written and not is_guard)
        writers = [other for other in machine.program.nodes if slot in other.plan_node.writes]
        writing = quoted([other.path for other in writers])
        reads = f"a guard on an edge leaving `{path}` reads" if is_guard else f"`{path}` reads"
        on = "" if is_certain else ", on some path"
        asking = f"ask first, as in `{writers[0].node.name}.runs > 0 and ...`"
        move = asking if is_guard else "give the read a default (`= None`)"
        hint = f"route every path through {writing} first, or {move}"
        if machine.bypassed.issuperset([other.path for other in writers]):
            lacking = quoted(resources_of([ref for other in writers for ref in other.plan_node.optional]))
            hint = f"supply {lacking}, without which {writing} is bypassed"
        yield node.scope.problem(
            "G303" if is_certain else "G304",
            f"{'edges' if is_guard else 'nodes'}.{node.node.name}",
            f"{reads} `{slot}` before it is written{on}: it is written by {writing}",
            hint,
            severity="error" if is_certain else "warning",
            path=distinct(each.path for each in exploration.path_to(visit)),
        )
