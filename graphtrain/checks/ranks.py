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
from graphtrain.plan.flow import Flow, FlowPoint
from graphtrain.plan.plan import Plan, PlanNode
from graphtrain.plan.scope import Ref, Scope, kind_at, outputs_of, used_guards
from graphtrain.plan.solve import Ways, circle, components

# Fields that the engine counts, equal on every rank.
_OF_ENGINE = ("runs", "due", "fired")
# Effects on gradients or weights that are equal on all ranks.
_ALIKE = ("scale", "clip", "use", "step")
# The parameter of a kind that divides gradients by what it reads: whether it sums that over ranks first.
_OVER_RANKS = "over_ranks"


def check_ranks(flow: Flow, gradients: Gradients) -> Iterator[Problem]:
    """Problems by which ranks diverge, never synchronise, or take a part for the whole."""
    yield from _Differing(flow.plan).problems(gradients)
    yield from _never_synchronising(flow)
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
        dividing = gradients.dividing_exchanged()
        for scope in self._plan.scopes.values():
            for guard, expression in used_guards(scope).items():
                if (name := self._first(scope.read_in(expression))) is not None and not name.endswith(".due"):
                    yield self._problem(scope, f"guards.{guard}", f"`{guard}` reads", name)
        for plan_node in self._plan.nodes:
            if plan_node.kind is None or not plan_node.kind.trigger or f"{plan_node.path}.due" not in self._origins:
                continue
            _, of = self._origins[f"{plan_node.path}.due"]
            assert of is not None, "only batches come from nothing"
            yield self._problem(plan_node.scope, f"nodes.{plan_node.node.name}", f"`{plan_node.path}` is due by", of)
        for plan_node in self._plan.nodes:
            is_alike = {action.effect for action in plan_node.actions} & {*_ALIKE}
            reads: dict[str, Ref] = {**plan_node.expressions} if is_alike else {}
            synchronises = plan_node.kind is not None and plan_node.kind.synchronises
            if plan_node.path in dividing and not plan_node.parameters.get(_OVER_RANKS, synchronises):
                reads = {read.name: target for read, target in plan_node.visit_reads}
            for read, target in reads.items():
                if (name := self._first([target])) is not None:
                    where = f"nodes.{plan_node.node.name}.reads.{read}"
                    first = f"set {_OVER_RANKS} = true; or " if _OVER_RANKS in plan_node.parameters else ""
                    yield self._problem(plan_node.scope, where, f"`{plan_node.path}.{read}` reads", name, first)

    def _problem(self, scope: Scope, where: str, does: str, name: str, hint: str = "") -> Problem:
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


# ---- G705: cycles without a synchronisation point


def _never_synchronising(flow: Flow) -> Iterator[Problem]:
    """Every cycle on which a run can train forever while ranks never synchronise.

    Where ranks synchronise they agree on signals, time, and requests for checkpoints. A cycle that is left by a count
    of backward passes ends when the window is full.
    """
    ways = {
        point: [arrow.target for arrow in point.arrows]
        for point in flow.points
        if not (point.acts and point.kind is not None and point.kind.synchronises)
    }
    reached = {*Ways([flow.start], lambda point: (arrow.target for arrow in point.arrows))}
    for part in components(ways, ways):
        trained = [point for point in flow.points if point in part and {"backward", "step"} & {*point.effects}]
        if not trained or trained[0] not in reached or _is_left_by_a_window(part):
            continue
        point = trained[0]
        way = circle(point, ways)
        yield point.problem(
            "G705",
            "the run can keep training while ranks never synchronise: they would not agree on a signal to stop, or on "
            "a checkpoint",
            "put a node on the way in which ranks synchronise, such as `next_batch` or `exchange`",
            path=way,
        )


def _is_left_by_a_window(points: frozenset[FlowPoint]) -> bool:
    """True if a guard on the count of backward passes leads out of a component in which nothing clears them."""
    if any("zero_grad" in point.effects for point in points):
        return False
    asked = (
        kind.counter(part.field)
        for point in points
        for arrow in point.arrows
        if arrow.target not in points and arrow.guard is not None
        for part in walk(arrow.guard)
        if isinstance(part, FieldOf) and (kind := kind_at(point.scope, part.node)) is not None
    )
    return any(counter is not None and counter.counts == "backward" for counter in asked)


# ---- G706: windows


def _windows(plan: Plan) -> Iterator[Problem]:
    """Every reader of the backward passes of one rank in a window, where those of all are meant."""
    for plan_node in plan.nodes:
        if not any(action.effect == "backward" for action in plan_node.actions):
            continue
        for read, target in plan_node.reads:
            for part in dict.fromkeys((target, *target.leaves())):
                owner, counter = _sized_by(plan, part)
                if owner is not None and counter is not None:
                    size = f"{owner.path.removeprefix(plan_node.scope.path)}.{counter.window}"
                    yield plan_node.scope.problem(
                        "G706",
                        f"nodes.{plan_node.node.name}.reads.{read.name}",
                        f"`{plan_node.path}` reads `{owner.path}.{counter.target}` as `{read.name}`: the backward "
                        "passes of one rank, while the gradients of all are summed",
                        f'read the size of the whole window: reads = {{ {read.name} = "{size}" }}',
                    )
    for scope in plan.scopes.values():
        for name, expression in used_guards(scope).items():
            fields = list(dict.fromkeys(part for part in walk(expression) if isinstance(part, FieldOf)))
            for asked in fields:
                owner, counter = _sized_by(plan, scope.field(asked.node, asked.field))
                if owner is None or counter is None or FieldOf(asked.node, counter.name) not in fields:
                    continue
                yield scope.problem(
                    "G706",
                    f"guards.{name}",
                    f"`{name}` compares `{asked.node}.{counter.name}`, the backward passes of all ranks, with "
                    f"`{asked.node}.{asked.field}`, those of one",
                    f"read `{asked.node}.{counter.full}`, or compare with `{asked.node}.{counter.window}`",
                )


def _sized_by(plan: Plan, ref: Ref) -> tuple[PlanNode | None, Field | None]:
    """The node and its window counter, if a reference is its size on one rank; else (None, None)."""
    if ref.kind == "field":
        path, name = ref.path, ref.name
    elif ref.parameter is not None:
        path, _, name = ref.name.rpartition(".")
    else:
        return None, None
    plan_node = plan.by_path.get(path)
    if plan_node is None or plan_node.kind is None:
        return None, None
    for declared in plan_node.kind.fields.values():
        if declared.counts == "backward" and declared.target == name and declared.window and declared.full:
            return plan_node, declared
    return None, None
