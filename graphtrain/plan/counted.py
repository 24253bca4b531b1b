"""The part of a graph that follows from counts alone: which nodes a count depends on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

from graphtrain.errors import UsageError
from graphtrain.kind.fields import EPOCH_FIELDS, ROUND
from graphtrain.language.syntax import Constant, Expression, FieldOf, Name, Operation, rebuilt, walk
from graphtrain.plan.plan import Exit, Plan, PlanNode
from graphtrain.plan.scope import Ref, Scope, kind_at

_GRADIENTS = ("backward", "zero_grad")


@final
class Counted:
    """The dependencies of one field of a plan that are counted.

    Arguments:
        path, field_name: the node, of the outermost graph of the plan, and its field.
        knows_samples: returns True if the sizes of the batches of a node are known.

    Attributes:
        needed: the paths of the nodes to follow; the path of a body ends with a slash.
        detours: the edges to nodes that decide nothing and from which a run always returns.
    """

    def __init__(self, plan: Plan, path: str, field_name: str, knows_samples: Callable[[PlanNode], bool]) -> None:
        self.plan, self._wanted, self._knows_samples = plan, Ref("field", path, field_name), knows_samples
        self._known: dict[tuple[str, str], bool] = {}
        around = {
            way: detour
            for plan_node in plan.nodes
            for way in plan_node.exits[:-1]
            if (detour := self._detour(plan_node, way))
        }
        while True:
            self.detours = frozenset(around)
            self.needed: set[str] = set()
            self._enter(plan.main)
            self._need(self._wanted)
            needed_after_all = [way for way, detour in around.items() if self.needed.intersection(detour)]
            if not needed_after_all:
                break
            for way in needed_after_all:
                del around[way]

    def _detour(self, source: PlanNode, way: Exit) -> list[str]:
        """The paths of the nodes on a path that returns to its beginning; none if it may lead elsewhere."""
        paths: list[str] = []
        target = way.target
        while target is not None and target is not source:
            if target.path in paths or len(target.exits) != 1 or self._always_counts(target):
                return []
            paths.append(target.path)
            target = target.exits[0].target
        return paths if target is not None else []

    # ---- what is needed

    @property
    def left_out(self) -> set[str]:
        """The paths of the nodes, and of the bodies, that need not be followed."""
        return {*self.plan.by_path, *self.plan.scopes} - self.needed

    def _always_counts(self, plan_node: PlanNode) -> bool:
        """True for a node that fetches batches, acts on gradients, or counts actions of others on them."""
        kind = plan_node.kind
        if kind.is_idle(plan_node.parameters, plan_node.expressions):
            return False
        is_counter = any(declared.counts is not None for declared in kind.fields.values())
        return is_counter or kind.fetches or self._acts(plan_node)

    def _acts(self, plan_node: PlanNode) -> bool:
        inside = [other for other in self.plan.nodes if other.path.startswith(f"{plan_node.path}/")]
        return any(action.effect in _GRADIENTS for other in (plan_node, *inside) for action in other.actions)

    def _enter(self, scope: Scope) -> None:
        """Follow a graph: the guards of its edges, and the nodes that always count."""
        if scope.path in self.needed:
            return
        self.needed.add(scope.path)
        nodes = self.plan.nodes_in(scope)
        for plan_node in nodes:
            for way in plan_node.exits:
                if way.guard is not None and way not in self.detours:
                    self._need_all(scope.read_in(way.guard))
            if self._always_counts(plan_node):
                self._need_node(plan_node)
        if any(declared.counts for each in nodes for declared in each.kind.fields.values()):
            for plan_node in nodes:
                if plan_node.body is not None and self._acts(plan_node):
                    self._enter(plan_node.body)

    def _need_all(self, refs: Iterator[Ref]) -> None:
        for leaf in (leaf for ref in refs for leaf in ref.leaves() if leaf.kind == "field"):
            self._need(leaf)

    def _need(self, ref: Ref) -> None:
        plan_node = self.plan.by_path.get(ref.path)
        if plan_node is None:
            return
        if ref.name in plan_node.kind.parameters:
            if ref.name in plan_node.expressions:
                self._need_all(plan_node.expressions[ref.name].reads())
            return
        self._need_node(plan_node)
        for scope in self.plan.around(plan_node.scope):
            if scope.path.rstrip("/") in self.plan.by_path:
                self._need_node(self.plan.by_path[scope.path.rstrip("/")])
                self._enter(scope)

    def _need_node(self, plan_node: PlanNode) -> None:
        """Follow the visits of a node: what makes it due, and the targets of its counters."""
        if plan_node.path in self.needed:
            return
        self.needed.add(plan_node.path)
        for read in self.plan.due_by(plan_node):
            self._need(read)
        for declared in plan_node.kind.fields.values():
            if declared.counts is not None and declared.target is not None:
                self._need(Ref("field", plan_node.path, declared.target))

    # ---- what is known

    def is_known(self, path: str, field_name: str) -> bool:
        """True for a field whose value follows from visits alone."""
        plan_node = self.plan.by_path.get(path)
        if plan_node is None:
            return False
        key = path, field_name
        if key not in self._known:
            self._known[key] = True  # a field that counts by itself does not depend on that
            self._known[key] = self._follows(plan_node, field_name)
        return self._known[key]

    def _follows(self, plan_node: PlanNode, field_name: str) -> bool:
        kind = plan_node.kind
        if field_name in plan_node.expressions:
            return not any(self.unknown_of(plan_node.expressions[field_name]))
        if field_name in kind.parameters:
            return True
        if self.is_uncertain(plan_node):
            return False
        if kind.fetches and field_name in EPOCH_FIELDS:
            return field_name != "samples" or self._knows_samples(plan_node)
        declared = kind.fields.get(field_name)
        is_last = field_name in {counter.last for counter in kind.fields.values() if counter.counts is not None}
        is_counted = declared is not None and (declared.adds is not None or kind.counter(field_name) is not None)
        return field_name in ("runs", "due") or is_last or is_counted

    def is_uncertain(self, plan_node: PlanNode) -> bool:
        """True for a node that time, or a metric, may make due."""
        return bool(self._unknown_reads(plan_node))

    def unknown_of(self, ref: Ref) -> Iterator[str]:
        """The names in an expression whose values are not known."""
        assert ref.scope is not None, "it is an expression"
        return self._unknown(ref.scope, ref.expression)

    def unknown_at_end(self, scope: Scope) -> set[str]:
        """The names in the guards that end a graph whose values are not known."""
        exits = [way for plan_node in self.plan.nodes_in(scope) for way in plan_node.exits if way.target is None]
        return {name for way in exits if way.guard is not None for name in self._unknown(scope, way.guard)}

    def _unknown(self, scope: Scope, expression: Expression) -> Iterator[str]:
        """The names whose values are not known.

        Raises:
            UsageError: one of them cannot be known before the run, by its declaration.
        """
        for part in walk(expression):
            if isinstance(part, Name):
                yield part.name
            elif isinstance(part, FieldOf):
                path = f"{scope.path}{part.node}"
                if self.is_known(path, part.field):
                    continue
                kind = kind_at(scope, part.node)
                if kind is not None and ROUND in kind.fields:
                    raise UsageError(
                        f"how many splits a batch has is not known ahead, and `{path}.{part.field}` decides how often "
                        "nodes run",
                        "compute the number in `setup`",
                    )
                plan_node = self.plan.by_path.get(path)
                read = self._unknown_reads(plan_node) if plan_node is not None and part.field == "due" else [part]
                yield from (f"{other.node}.{other.field}" for other in read)

    def _unknown_reads(self, plan_node: PlanNode) -> list[FieldOf]:
        """The fields, from its graph, that make a node due and are not known."""
        unknown = [read for read in self.plan.due_by(plan_node) if not self.is_known(read.path, read.name)]
        return [FieldOf(read.path.removeprefix(plan_node.scope.path), read.name) for read in unknown]

    def certain(self, scope: Scope, guard: Expression, *, holds: bool = True) -> Expression:
        """A guard that holds only where another is known to hold: unknown parts count as false."""
        match guard:
            case Operation("not", (operand,)):
                return Operation("not", (self.certain(scope, operand, holds=not holds),))
            case Operation("and" | "or"):
                return rebuilt(guard, lambda part: self.certain(scope, part, holds=holds))
            case Operation("if", (condition, *values)) if any(self._unknown(scope, guard)):
                conditions = condition, Operation("not", (condition,))
                either = tuple(Operation("and", pair) for pair in zip(conditions, values, strict=True))
                return self.certain(scope, Operation("or", either), holds=holds)
            case FieldOf(_, "due") if holds:
                return guard  # by counted fields only
        return Constant(not holds) if any(self._unknown(scope, guard)) else guard
