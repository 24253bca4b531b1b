"""G7xx: several ranks follow the same path through a graph. Rules for gradients are in `checks.gradient_rules`.

Every rank trains on its own batches, so values computed from a batch *differ* between ranks, until a node in which
ranks synchronise makes them one value. These checks apply only to runs of several ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from graphtrain.checks.gradients import Gradients
from graphtrain.graph.elements import Problem
from graphtrain.kind.fields import EPOCH_FIELDS, IDLE, ROUND, Field
from graphtrain.language.syntax import FieldOf, walk
from graphtrain.plan.flow import Flow
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import Ref, Scope, outputs_of

# Fields that the engine counts, equal on every rank.
_OF_ENGINE = ("runs", "due", "fired")
# Effects on gradients or weights that are equal on all ranks.
_ALIKE = ("scale", "clip", "use", "step")
# The parameter of a kind that divides gradients by what it reads: whether it sums that over ranks first.
_OVER_RANKS = "over_ranks"


def check_ranks(flow: Flow, gradients: Gradients) -> Iterator[Problem]:
    """Problems by which ranks diverge, or take a part for the whole."""
    yield from _Differing(flow.plan).problems(gradients)
    yield from _windows(flow.plan)


# ---- G701: values that differ between ranks


class _Differing:
    """The slots (by path) and fields (``"node.field"``) whose values differ between ranks."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        # Name -> the node that makes the value, and its source; None for a batch.
        self._origins: dict[str, tuple[str, str | None]] = {}
        for plan_node in plan.nodes:
            kind = plan_node.kind
            if kind is not None and kind.fetches:
                counted = {*EPOCH_FIELDS, "loader"}
                # What step functions learn about a batch, and not about the epoch, concerns the batch of one rank.
                own = [f"{plan_node.path}.{name}" for name in kind.step_inputs.values() if name not in counted]
                self._add([*plan_node.own_writes, *own, f"{plan_node.path}.{IDLE}"], plan_node.path)
            elif kind is not None and ROUND in kind.fields:  # it gives each rank a part of its batch
                self._add([*plan_node.own_writes, f"{plan_node.path}.{IDLE}"], plan_node.path)
        count = -1
        while count != len(self._origins):
            count = len(self._origins)
            for plan_node in plan.nodes:
                self._spread(plan_node)

    def _add(self, names: Iterable[str], node: str, of: str | None = None) -> None:
        for name in names:
            self._origins.setdefault(name, (node, of))

    def _first(self, refs: Iterable[Ref]) -> str | None:
        """The first read value that differs."""
        named = (str(leaf) for ref in refs for leaf in ref.leaves() if leaf.kind != "resource")
        return next((name for name in named if name in self._origins), None)

    def _spread(self, plan_node: PlanNode) -> None:
        """Note what a node makes from values that differ."""
        kind = plan_node.kind
        if plan_node.body is not None:
            for inner, outer in zip(outputs_of(plan_node.body.graph), plan_node.writes, strict=True):
                if f"{plan_node.body.path}{inner}" in self._origins:
                    self._add([outer], plan_node.path, f"{plan_node.body.path}{inner}")
        if kind is None or kind.is_idle(plan_node.parameters, plan_node.expressions):
            return
        for name, expression in plan_node.expressions.items():
            if (of := self._first([expression])) is not None:
                counters = [declared for declared in kind.fields.values() if declared.target == name]
                sizes = [size for declared in counters for size in (declared.window, declared.full) if size]
                self._add((f"{plan_node.path}.{field}" for field in (name, *sizes)), plan_node.path, of)
        if (of := self._first(self._plan.due_by(plan_node))) is not None:
            self._add([f"{plan_node.path}.due"], plan_node.path, of)
        if kind.synchronises or plan_node.body is not None:
            return
        if (of := self._first(target for _, target in plan_node.visit_reads)) is not None:
            fields = [name for name, field in kind.fields.items() if name not in _OF_ENGINE and field.counts is None]
            self._add([*plan_node.writes, *(f"{plan_node.path}.{name}" for name in fields)], plan_node.path, of)

    def _way(self, name: str) -> tuple[str, ...]:
        """The nodes through which a value comes from a batch."""
        nodes: list[str] = []
        of: str | None = name
        while of is not None:
            node, of = self._origins[of]
            if node not in nodes[-1:]:
                nodes.append(node)
        return tuple(reversed(nodes))

    def problems(self, gradients: Gradients) -> Iterator[Problem]:
        for scope, where, does, refs, hint in self._followed(gradients):
            if (name := self._first(refs)) is not None:
                yield self._problem(scope, where, does, name, hint)

    def _followed(self, gradients: Gradients) -> Iterator[tuple[Scope, str, str, Iterable[Ref], str]]:
        """What has to be the same on all ranks, with what it reads: where, in words, and a hint."""
        for scope in self._plan.scopes.values():
            for guard, expression in scope.guards_as_written.items():
                # Of what is due by such a value, the node is reported.
                refs = [ref for ref in scope.read_in(expression) if ref.kind != "field" or ref.name != "due"]
                yield scope, f"guards.{guard}", f"`{guard}` reads", refs, ""
        dividing = gradients.dividing_exchanged()
        for plan_node in self._plan.nodes:
            scope, where, path = plan_node.scope, f"nodes.{plan_node.node.name}", plan_node.path
            if f"{path}.due" in self._origins and plan_node.kind is not None and plan_node.kind.trigger:
                yield scope, where, f"`{path}` is due by", self._plan.due_by(plan_node), ""
            is_alike = {action.effect for action in plan_node.actions} & {*_ALIKE}
            reads: dict[str, Ref] = {**plan_node.expressions} if is_alike else {}
            synchronises = plan_node.kind is not None and plan_node.kind.synchronises
            if path in dividing and not plan_node.parameters.get(_OVER_RANKS, synchronises):
                reads = {read.name: target for read, target in plan_node.visit_reads}
            hint = f"set {_OVER_RANKS} = true; or " if _OVER_RANKS in plan_node.parameters else ""
            for read, target in reads.items():
                yield scope, f"{where}.reads.{read}", f"`{path}.{read}` reads", [target], hint

    def _problem(self, scope: Scope, where: str, does: str, name: str, hint: str) -> Problem:
        way = self._way(name)
        shown = name.removeprefix(scope.path)
        writer = way[-1].removeprefix(scope.path)
        return scope.problem(
            "G701",
            where,
            f"{does} `{shown}`, which differs between ranks: it is computed from a batch, and each rank has its own",
            f"{hint}make one value of it after `{writer}`, in a kind that declares `synchronises` and gathers it",
            path=way,
        )


# ---- G706: windows


def _windows(plan: Plan) -> Iterator[Problem]:
    """Every reader of the backward passes of one rank in a window, where those of all are meant."""
    for plan_node in plan.nodes:
        if not any(action.effect == "backward" for action in plan_node.actions):
            continue
        for read, target in plan_node.reads:
            for part in dict.fromkeys((target, *target.leaves())):
                if (sized := _sized_by(plan, part)) is not None:
                    owner, counter = sized
                    size = f"{owner.path.removeprefix(plan_node.scope.path)}.{counter.window}"
                    yield plan_node.scope.problem(
                        "G706",
                        f"nodes.{plan_node.node.name}.reads.{read.name}",
                        f"`{plan_node.path}` reads `{owner.path}.{counter.target}` as `{read.name}`: the backward "
                        "passes of one rank, while the gradients of all are summed",
                        f'read the size of the whole window: reads = {{ {read.name} = "{size}" }}',
                    )
    for scope in plan.scopes.values():
        for name, expression in scope.guards_as_written.items():
            fields = list(dict.fromkeys(part for part in walk(expression) if isinstance(part, FieldOf)))
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
    """The node and its window counter, if a reference is its size on one rank."""
    path, name = (ref.path, ref.name) if ref.kind == "field" else ("", "")
    if ref.kind != "field" and ref.parameter is not None:
        path, _, name = ref.name.rpartition(".")
    plan_node = plan.by_path.get(path)
    if plan_node is None or plan_node.kind is None:
        return None
    fields = plan_node.kind.fields.values()
    sizes = [each for each in fields if each.counts == "backward" and each.window and each.full]
    return next(((plan_node, field) for field in sizes if field.target == name), None)
