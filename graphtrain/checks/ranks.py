"""G7xx: all ranks follow the same path through a graph. Rules for gradients are in `checks.gradient_rules`.

Every rank trains on its own batches, so values computed from a batch *differ* between ranks until a node that
synchronises makes one value of them. These checks are for runs of several ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from graphtrain.graph.elements import Problem
from graphtrain.graph.syntax import FieldOf, walk
from graphtrain.kind.fields import EPOCH_FIELDS, IDLE, ROUND, Field
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import Ref, Scope, outputs_of

# Fields that the engine counts, equal on every rank.
_OF_ENGINE = ("runs", "due", "fired")
# Effects that must be equal on all ranks.
_ALIKE = ("scale", "clip", "use", "step")
# The parameter of kinds that divide gradients by a value: True sums the value over ranks first.
_OVER_RANKS = "over_ranks"


def check_ranks(plan: Plan, dividing: Collection[str]) -> Iterator[Problem]:
    """Every value by which ranks would diverge, or that is of one rank where all are meant.

    Arguments:
        dividing: the paths of the nodes that divide gradients which were exchanged.
    """
    writers = _differing(plan)
    for scope, where, does, refs, hint in _followed(plan, dividing, writers):
        if (name := _first(refs, writers)) is not None:
            shown, writer = name.removeprefix(scope.path), writers[name].removeprefix(scope.path)
            yield scope.problem(
                "G701",
                where,
                f"{does} `{shown}`, which differs between ranks: it is computed from the batch of each",
                f"{hint}make one value of it after `{writer}`, in a kind declared with `synchronises` that gathers it",
            )
    yield from _windows(plan)


# ---- G701: values that differ between ranks


def _differing(plan: Plan) -> dict[str, str]:
    """The slots (by path) and fields (``"node.field"``) that differ between ranks -> the node that writes each."""
    writers: dict[str, str] = {}
    for plan_node in plan.nodes:
        kind = plan_node.kind
        if kind is not None and (kind.fetches or ROUND in kind.fields):  # each rank has another batch
            # Inputs of step functions about a batch, not about the epoch, are those of one rank.
            inputs = {*kind.step_inputs.values()} - {*EPOCH_FIELDS, "loader"} if kind.fetches else ()
            names = [*plan_node.own_writes, *(f"{plan_node.path}.{name}" for name in (*inputs, IDLE))]
            writers |= dict.fromkeys(names, plan_node.path)
    count = -1
    while count != len(writers):
        count = len(writers)
        for plan_node in plan.nodes:
            for name in _derived_from(plan, plan_node, writers):
                writers.setdefault(name, plan_node.path)
    return writers


def _derived_from(plan: Plan, plan_node: PlanNode, writers: Mapping[str, str]) -> Iterator[str]:
    """The slots and fields that a node computes from values that differ."""
    kind, path = plan_node.kind, plan_node.path
    if plan_node.body is not None:
        inner = [f"{plan_node.body.path}{name}" for name in outputs_of(plan_node.body.graph)]
        yield from (outer for name, outer in zip(inner, plan_node.writes, strict=True) if name in writers)
    if kind is None or kind.is_idle(plan_node.parameters, plan_node.expressions):
        return
    for name, expression in plan_node.expressions.items():
        if _first([expression], writers) is not None:
            counters = [declared for declared in kind.fields.values() if declared.target == name]
            sizes = [size for declared in counters for size in (declared.window, declared.full) if size]
            yield from (f"{path}.{field}" for field in (name, *sizes))
    if _first(plan.due_by(plan_node), writers) is not None:
        yield f"{path}.due"
    if kind.synchronises or plan_node.body is not None:
        return
    if _first((ref for _, ref in plan_node.visit_reads), writers) is not None:
        fields = [name for name, field in kind.fields.items() if name not in _OF_ENGINE and field.counts is None]
        yield from (*plan_node.writes, *(f"{path}.{name}" for name in fields))


def _first(refs: Iterable[Ref], writers: Mapping[str, str]) -> str | None:
    """The first value, among some references, that differs."""
    named = (str(part) for ref in refs for part in ref.simple() if part.category != "resource")
    return next((name for name in named if name in writers), None)


def _followed(
    plan: Plan, dividing: Collection[str], writers: Mapping[str, str]
) -> Iterator[tuple[Scope, str, str, Iterable[Ref], str]]:
    """What must be equal on all ranks: its scope, the place, the words of a message, what it reads, and a hint."""
    for scope in plan.scopes.values():
        for guard, text in scope.graph.guards.items():
            # Where a node is due by such a value, the node is reported.
            refs = [ref for ref in scope.read_in(scope.parse(text)) if ref.category != "field" or ref.name != "due"]
            yield scope, f"guards.{guard}", f"`{guard}` reads", refs, ""
    for plan_node in plan.nodes:
        scope, where, path, kind = plan_node.scope, f"nodes.{plan_node.node.name}", plan_node.path, plan_node.kind
        if f"{path}.due" in writers and kind is not None and kind.trigger:
            yield scope, where, f"`{path}` is due by", plan.due_by(plan_node), ""
        is_alike = {action.effect for action in plan_node.actions} & {*_ALIKE}
        reads: dict[str, Ref] = {**plan_node.expressions} if is_alike else {}
        if path in dividing and not plan_node.parameters.get(_OVER_RANKS, kind is not None and kind.synchronises):
            reads = {read.name: ref for read, ref in plan_node.visit_reads}
        hint = f"set {_OVER_RANKS} = true; or " if _OVER_RANKS in plan_node.parameters else ""
        for read, ref in reads.items():
            yield scope, f"{where}.reads.{read}", f"`{path}.{read}` reads", [ref], hint


# ---- G706: windows


def _windows(plan: Plan) -> Iterator[Problem]:
    """Every read of the backward passes of one rank in a window, where those of all ranks are meant."""
    for plan_node in plan.nodes:
        if not any(action.effect == "backward" for action in plan_node.actions):
            continue
        for read, ref in plan_node.reads:
            for part in dict.fromkeys((ref, *ref.simple())):
                if (sized := _sized_by(plan, part)) is not None:
                    owner, counter = sized
                    size = f"{owner.path.removeprefix(plan_node.scope.path)}.{counter.window}"
                    yield plan_node.scope.problem(
                        "G706",
                        f"nodes.{plan_node.node.name}.reads.{read.name}",
                        f"`{plan_node.path}` reads `{owner.path}.{counter.target}` as `{read.name}`: the backward "
                        "passes of one rank, but the gradients of all ranks are summed",
                        f'read the size of the whole window: reads = {{ {read.name} = "{size}" }}',
                    )
    for scope in plan.scopes.values():
        for name, text in scope.graph.guards.items():
            fields = list(dict.fromkeys(part for part in walk(scope.parse(text)) if isinstance(part, FieldOf)))
            for asked in fields:
                sized = _sized_by(plan, scope.field(asked.node, asked.field))
                if sized is not None and FieldOf(asked.node, (counter := sized[1]).name) in fields:
                    yield scope.problem(
                        "G706",
                        f"guards.{name}",
                        f"`{name}` compares `{asked.node}.{counter.name}`, the backward passes of all ranks, with "
                        f"`{asked.node}.{asked.field}`, those of one",
                        f"read `{asked.node}.{counter.full}`, or compare with `{asked.node}.{counter.window}`",
                    )


def _sized_by(plan: Plan, ref: Ref) -> tuple[PlanNode, Field] | None:
    """The node and the field that count a window, if a reference is the size of that window on one rank."""
    path, name = (ref.path, ref.name) if ref.category == "field" else ("", "")
    if ref.category != "field" and ref.parameter is not None:
        path, _, name = ref.name.rpartition(".")
    plan_node = plan.by_path.get(path)
    if plan_node is None or plan_node.kind is None:
        return None
    fields = plan_node.kind.fields.values()
    sizes = [each for each in fields if each.counts == "backward" and each.window and each.full]
    return next(((plan_node, field) for field in sizes if field.target == name), None)
