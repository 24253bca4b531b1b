"""The cells of an explored graph: counters have values; what data, metrics or time decide is a question.

So that a graph has few states, numbers are small: an epoch has a few batches, a constant above `LARGE` is replaced by
it, and large counters are reduced where no guard can tell the difference.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection
from fractions import Fraction
from typing import Any, NamedTuple, final

from graphtrain.checks.registers import Questions, Registers
from graphtrain.graph.closures import COMPARISONS, Cell, Getter, any_of, compile_guard, constant, never
from graphtrain.graph.syntax import Constant, Expression, FieldOf, Name, Operation, rebuilt, walk
from graphtrain.kind import FunctionRecord
from graphtrain.kind.declaration import FROM
from graphtrain.kind.fields import EPOCH_FIELDS
from graphtrain.kind.trigger import Trigger
from graphtrain.plan.changers import changers
from graphtrain.plan.plan import PlanNode
from graphtrain.plan.scope import Ref, Scope
from graphtrain.program.bind import Program, ProgramNode
from graphtrain.program.cells import Cells
from graphtrain.program.triggers import Due

LARGE = 5
_CONNECTIVES = ("not", "and", "or", "if")

UNKNOWN: Any = type("Unknown", (), {})()
"""The value of a field that a visit may have changed."""


class UnknownError(Exception):
    """A value is not known."""


class Sizes(NamedTuple):
    """The amount of data in an exploration.

    Attributes:
        batches, inner: the batches in an epoch; in an epoch of a body that does not train.
        window: the size of windows that the graph sets to 1. Default: 1.
        is_cut: True for data that ends before its length. Default: False.
    """

    batches: int
    inner: int
    window: int = 1
    is_cut: bool = False


@final
class StubCells(Cells):
    """The cells of a program whose nodes are stubs.

    Arguments:
        bypassed: the paths of bypassed nodes.
        unwritten: called with a slot that a guard reads before it is written.

    Attributes:
        sizes: the amount of data.
        after_visit: path of a node -> calls to make after its visit.
        read_outside: the fields of bodies that are read outside them.
        due_outside: the questions about triggers of nodes in bodies that are asked outside them.
        read_slots: the slots that guards read.
        window_sizes: the parameters with the size of a window, by path and name.
    """

    def __init__(
        self, program: Program, sizes: Sizes, bypassed: Collection[str], unwritten: Callable[[str], None]
    ) -> None:
        super().__init__(program)
        self.sizes, self._bypassed, self._unwritten = sizes, bypassed, unwritten
        self.questions, self.registers = Questions(), Registers()
        self.after_visit: dict[str, list[Callable[[], None]]] = {path: [] for path in program.plan.by_path}
        self.read_outside: set[tuple[ProgramNode, str]] = set()
        self.due_outside: set[tuple[str, str]] = set()
        self.window_sizes = {
            (node.path, declared.target): min(size, LARGE + 1) if isinstance(size, int) else None
            for node in program.nodes
            for declared in node.kind.fields.values()
            if declared.counts is not None and declared.target is not None and declared.target in node.parameters
            for size in [node.parameters[declared.target]]
        }
        self.widest = max(filter(None, self.window_sizes.values()), default=1)
        self._changed: set[tuple[str, str]] = set()
        self.read_slots: set[str] = set()

    # ---- fields

    def field(self, node: ProgramNode, name: str) -> Cell:
        kind, key = node.kind, (node.path, name)
        if key in self.window_sizes and (name in node.plan_node.expressions or self.window_sizes[key] is not None):
            return Cell(self._window_size(node, name))
        if name == "due" or name in node.plan_node.expressions or name in kind.parameters:
            return super().field(node, name)
        declared = kind.fields[name]
        if node.path in self._bypassed and declared.stored:
            return constant(declared.default)
        counter = kind.counter(name)
        if counter is not None and counter.full == name:
            self.registers.add(node, counter.name)
            self.registers.add(node, str(counter.window))
            return super().field(node, name)
        if not declared.stored:
            if not kind.fetches or name not in EPOCH_FIELDS:
                return Cell(_unknown)
            for each in ("epoch", "epoch_batches", "opened", "last", "empty"):
                self.registers.add(node, each)
            return super().field(node, name)
        self.registers.add(node, name)
        is_last = name in [each.last for each in kind.fields.values() if each.counts is not None]
        is_counter = name == "runs" or declared.adds is not None or counter is not None or is_last
        is_known = is_counter or (kind.fetches and name in EPOCH_FIELDS)  # it follows from visits alone
        return super().field(node, name) if is_known else self._changing(node, name)

    def _window_size(self, node: ProgramNode, name: str) -> Callable[[], int]:
        size, expression = self.window_sizes[node.path, name], node.plan_node.expressions.get(name)
        if expression is None:
            assert size is not None, "asked before"
            return lambda: self.sizes.window if size == 1 else size
        read = self.expression(expression)

        def computed() -> int:
            try:
                return max(int(read()), 1)
            except UnknownError:
                return 2

        return computed

    def _changing(self, node: ProgramNode, name: str) -> Cell:
        """The cell of a field that visits may change: its value is known until then."""
        fields = node.fields
        if (node.path, name) not in self._changed:
            self._changed.add((node.path, name))
            for path in self._changers(node.scope, FieldOf(node.node.name, name)):
                self.after_visit[path].append(functools.partial(fields.__setitem__, name, UNKNOWN))

        def read() -> Any:
            if (value := fields[name]) is UNKNOWN:
                raise UnknownError
            return value

        return Cell(read)

    def at(self, path: str, name: str) -> Cell:
        plan_node = self._program.plan.by_path[path]
        if path not in self._program.by_path and name != "due" and name not in plan_node.kind.parameters:
            declared = plan_node.kind.fields[name]
            return constant(declared.default) if declared.stored else Cell(_unknown)
        return super().at(path, name)

    def _changers(self, scope: Scope, expression: Expression) -> list[str]:
        return [f"{scope.path}{name}" for name in changers(self._program.plan, scope, expression)]

    # ---- triggers

    def due(self, node: ProgramNode) -> Due:
        trigger, start = node.plan_node.trigger, node.plan_node.start
        if node.path in self._bypassed:
            return never
        if trigger is None:
            return lambda: True
        parts = [self._question(node.scope, FieldOf(node.node.name, name)) for name in node.plan_node.extra_due_fields]
        if trigger.terms:
            parts.append(self._passed(node, "due", trigger))
        if trigger.once:
            self.registers.add(node, "runs")
            parts.append(lambda: not node.fields["runs"])
        due = any_of(parts)
        if start is None:
            return due
        is_begun = self._passed(node, FROM, start)
        return lambda: is_begun() and due()

    def _passed(self, node: ProgramNode, amount: str, trigger: Trigger) -> Getter:
        """A call that returns whether an amount was reached: a question at each tick, true until the node runs."""
        scope, outcomes = node.scope, self.questions.outcomes
        number, is_new = self.questions.number(scope, (node.path, amount), first=False)

        def tick() -> None:
            outcomes[number] = outcomes[number] or None

        if is_new:
            for owner, _, _ in self._program.plan.terms(scope, trigger):
                name = owner.path.removeprefix(scope.path).partition("/")[0]
                self.after_visit[scope.path + name].append(tick)
            if amount == "due" and node.kind.trigger == "every":
                self.after_visit[node.path].append(functools.partial(outcomes.__setitem__, number, False))
        return functools.partial(self.questions.ask, number)

    # ---- guards and expressions

    def compiled(self, scope: Scope, expression: Expression) -> Getter:
        questions: list[Getter] = []

        def numbered(part: Expression) -> Expression:
            if isinstance(part, Operation) and part.name in _CONNECTIVES:
                return rebuilt(part, numbered)
            if isinstance(part, Constant):
                return part
            questions.append(self._question(scope, part))
            return FieldOf("", str(len(questions) - 1))

        def cell(part: Name | FieldOf) -> Cell:
            assert isinstance(part, FieldOf), "none other is left"
            return Cell(questions[int(part.field)])

        return compile_guard(numbered(expression), cell)

    def _question(self, scope: Scope, part: Expression) -> Getter:
        """A call that returns whether a part of a guard is true: computed if its values are known, else asked."""
        if isinstance(part, FieldOf) and part.field == "due":
            return self.named(scope, part).read
        number, is_new = self.questions.number(scope, part)
        ask, outcomes = functools.partial(self.questions.ask, number), self.questions.outcomes
        for path in self._changers(scope, part) if is_new else ():
            self.after_visit[path].append(functools.partial(outcomes.__setitem__, number, None))
        small = self._with_small_numbers(scope, part)
        if small is None:
            return ask
        before, self.registers.read = self.registers.read, set()
        read = compile_guard(small, functools.partial(self.named, scope))
        parts = [*walk(small)]
        values = [each.value for each in parts if isinstance(each, Constant) and isinstance(each.value, int | float)]
        numbers = [abs(int(value)) for value in values if math.isfinite(value)]
        if any(node.kind.counter(name) for node, name in self.registers.read):
            numbers += [self.widest, 3]
        remainders = [each for each in parts if isinstance(each, Operation) and each.name in ("%", "//")]
        divisors = [each.operands[1].value for each in remainders if isinstance(each.operands[1], Constant)]
        self.registers.tie(self.registers.read, numbers, [abs(n) for n in divisors if type(n) is int and n])
        self.read_outside |= {each for each in self.registers.read if not scope.path.startswith(each[0].scope.path)}
        self.registers.read |= before

        def answer() -> bool:
            try:
                return bool(read())
            except (UnknownError, ArithmeticError, TypeError, ValueError):
                return ask()

        return answer

    def _with_small_numbers(self, scope: Scope, part: Expression) -> Expression | None:
        """An expression with its parameters filled in and small numbers.

        None if it reads nothing else, or multiplies or divides counters, which would be wrong for reduced ones.
        """

        def filled(part: Expression) -> Expression:
            if isinstance(part, FieldOf):
                ref = scope.field(part.node, part.field)
                node = self._program.by_path.get(ref.path) if ref.category == "field" else None
                if node is not None and ref.name in node.parameters and (ref.path, ref.name) not in self.window_sizes:
                    return Constant(node.parameters[ref.name])
            return rebuilt(part, filled)

        def small(part: Expression) -> Expression:
            if isinstance(part, Operation) and part.name in COMPARISONS:
                operands = [Constant(LARGE) if _is_large(each) else each for each in part.operands]
                return Operation(part.name, tuple(map(small, operands)))
            return rebuilt(part, small)

        known, is_read = filled(part), False
        for each in walk(known):
            is_read |= isinstance(each, FieldOf | Name)
            operands = each.operands if isinstance(each, Operation) and each.name in ("%", "//", "/", "*") else ()
            if operands and all(_is_large(operand) or not isinstance(operand, Constant) for operand in operands):
                return None
        return small(known) if is_read else None

    def expression(self, ref: Ref) -> Getter:
        scope = self._program.scopes.get(ref.path)
        if scope is None:  # of a node in a bypassed body
            return super().expression(ref)
        return compile_guard(ref.expression, functools.partial(self.named, scope))

    def named(self, scope: Scope, expression: Name | FieldOf) -> Cell:
        if isinstance(expression, FieldOf):
            ref = Ref("field", f"{scope.path}{expression.node}", expression.field)
        else:
            ref = scope.resolve(expression.name)
        match ref.category:
            case "field":
                if "/" in ref.path.removeprefix(scope.path):
                    self.due_outside |= {(ref.path, "due"), (ref.path, FROM)}
                return self.at(ref.path, ref.name)
            case "expression":
                return Cell(self.expression(ref))
            case "slot":
                return Cell(self._slot(ref.path))
        return Cell(_unknown)

    def _slot(self, path: str) -> Getter:
        self.read_slots.add(path)

        def read() -> Any:
            if self._program.slots[path] is None:
                self._unwritten(path)
            raise UnknownError

        return read


def _unknown() -> Any:
    raise UnknownError


def _is_large(part: Expression) -> bool:
    value = part.value if isinstance(part, Constant) else None
    return isinstance(value, int | float) and LARGE + 1 < abs(value) < math.inf


class Fetching:
    """The stub of a node that fetches batches: `batches_in_epoch()` in an epoch."""

    batches_in_epoch: Callable[[], int]
    epoch: int
    epoch_batches: int
    batch_index = property(lambda self: max(self.epoch_batches - 1, 0))
    epoch_length = property(lambda self: self.batches_in_epoch())

    @property
    def epochs(self) -> int | Fraction:
        fields = vars(self)
        if not fields["opened"]:
            return self.epoch
        if fields["last"]:
            return self.epoch + (not fields["empty"])
        return self.epoch + Fraction(self.epoch_batches, max(self.batches_in_epoch(), 1))


def stub(plan_node: PlanNode) -> Any:
    """The stub of a node, with its initial progress."""
    instance = Fetching() if plan_node.kind.fetches else FunctionRecord()
    plan_node.kind.reset(instance, whole=True)
    return instance
