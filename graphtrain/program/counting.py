"""A compiled graph whose nodes only count, run to its end.

Triggers, windows, guards and epochs are those of a run, since the same code evaluates them. A visit takes about 6 us.

Rounds that repeat are multiplied. Every decision is logged: the nodes that run, the signs of comparisons, what is due,
and the operands of other operations, which must be constant. If two rounds log the same and change every counter by
the same amounts, all counters are linear in the number of rounds, and each decision is constant on an interval of them.
So the first round that differs is found by bisection: a million batches take as long as a few.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

from graphtrain.data.samplers import EpochLength
from graphtrain.data.shares import round_size
from graphtrain.errors import UsageError
from graphtrain.kind import derived_clock
from graphtrain.kind.fields import ROUND
from graphtrain.kind.trigger import Trigger
from graphtrain.language.closures import COMPARISONS, Cell, compile_guard, operation
from graphtrain.language.syntax import Expression, FieldOf, Name, Operation
from graphtrain.plan.counted import Counted
from graphtrain.plan.scope import Ref
from graphtrain.program.bind import CountedTerm, Program, ProgramGraph, ProgramNode
from graphtrain.program.cells import Cells
from graphtrain.program.loop import Transition
from graphtrain.program.rounds import Act
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.program.table import Compiler
from graphtrain.program.triggers import Every, Triggers
from graphtrain.program.visits import Visits, nothing

# Visits after which counting stops, about 0.3 s: a number instead of a time, so that a resume has the same result.
MOST_VISITS = 50_000
_ENDLESS = 2**60


class EndlessError(UsageError):
    """No counted amount ends the graph."""


class TooLongError(UsageError):
    """There are too many visits, and they do not repeat."""


def fetching(node: ProgramNode, length: EpochLength) -> Any:
    """A stub for a node that fetches batches, with the fields that follow from counting."""

    def epochs(self: Any) -> int | Fraction:
        fields = vars(self)
        number: int = fields["epoch"]
        if not fields["opened"]:
            return number
        if fields["last"]:
            return number + (not fields["empty"])
        return Fraction(number * length.batches + fields["epoch_batches"], length.batches)

    computed = {
        "epochs": derived_clock.of(counter="epoch_batches", restarts="epoch", reach="reach")(epochs),
        "epoch_length": property(lambda self: length.batches),
        "batch_index": property(lambda self: max(vars(self)["epoch_batches"] - 1, 0)),
        "reach": lambda self, amount: math.ceil((amount - vars(self)["epoch"]) * length.batches),
    }
    counting = type("Counting", (), computed)()
    node.kind.reset(counting, whole=True)
    counting.fetched_from = length
    return counting


class _CountingVisits(Visits):
    """Visits that only count, and log that."""

    def __init__(self, program: Program, cells: Cells, log: list[Any]) -> None:
        super().__init__(program, cells)
        self._log = log
        self.aspects.remove(cells)  # read where they decide something
        self.windows.visit_of = None

    def setup(self, node: ProgramNode) -> Act:
        return nothing

    def at_end(self, scope: ProgramGraph) -> list[Act]:
        return []

    def call(self, node: ProgramNode) -> Act:
        if node.kind.fetches:
            return self._fetch(node)
        fields, declared = node.fields, node.kind.fields.values()
        added = [(each.name, each.adds) for each in declared if each.adds is not None]
        copied = [(each.last, each.name) for each in declared if each.last is not None]

        def count() -> None:
            for name, amount in added:
                fields[name] += amount
            for last, name in copied:
                fields[last] = fields[name]

        return count if added or copied else nothing

    def _fetch(self, node: ProgramNode) -> Act:
        """A batch of an epoch whose length is known; of several ranks, a round of them."""
        fields, log, length = node.fields, self._log, node.instance.fetched_from
        windows = None
        if self.rounds is not None and ROUND in node.kind.fields:
            windows, world_size = self.windows.filled_by(node), self.rounds.agreement.world_size
        before_last, last = length.samples or 0, length.last or 0

        def fetch() -> None:
            if fields["last"] or not fields["opened"]:
                fields["epoch"] += fields["opened"]
                fields["opened"], fields["epoch_batches"] = True, 0
                fields["last"] = fields["exhausted"] = fields["empty"] = False
            if not length.batches:
                fields["last"] = fields["exhausted"] = fields["empty"] = True
                return
            size = 1
            if windows is not None:
                left = [each() for each in windows]
                size = round_size(fields["epoch_batches"], length.batches, world_size, left)
                fields[ROUND] = size
            fields["epoch_batches"] += size
            fields["batches"] += size
            is_last = fields["epoch_batches"] >= length.batches
            fields["samples"] += before_last * (size - 1) + (last if is_last else before_last)
            if is_last:
                fields["last"] = True
            log.append((size, is_last))

        return fetch


class _LoggingCells(Cells):
    """Cells of known values, which log their results."""

    def __init__(self, program: Program, counted: Counted, log: list[Any]) -> None:
        super().__init__(program)
        self._counted, self._log = counted, log

    def compiled(self, scope: ProgramGraph, expression: Expression) -> Act:
        certain = self._counted.certain(scope.names, expression)
        return compile_guard(certain, functools.partial(self._cell, scope), lambda part: _logged(part, self._log))

    def expression(self, ref: Ref) -> Act:
        if unknown := [*self._counted.unknown_of(ref)]:
            raise UsageError(
                f"`{ref.name}` depends on `{unknown[0]}`, which is not known ahead", "compute the number in `setup`"
            )
        return super().expression(ref)

    def due(self, node: ProgramNode) -> Act:
        return self._logged(super().due(node))

    def _cell(self, scope: ProgramGraph, expression: Name | FieldOf) -> Cell:
        """The cell of a field, as no other names are certain; whether a window is full is logged too."""
        assert isinstance(expression, FieldOf)
        cell, node = self.named(scope, expression), self._program.by_path.get(f"{scope.prefix}{expression.node}")
        assert node is not None, "it is needed, so its body is bound"
        counter = node.kind.counter(expression.field)
        is_full = counter is not None and counter.full == expression.field
        return Cell(self._logged(cell.read)) if is_full else cell

    def _logged(self, answers: Act) -> Act:
        log = self._log

        def logged() -> bool:
            log.append(answer := bool(answers()))
            return answer

        return logged


def _terms(program: Program, counted: Counted, node: ProgramNode, trigger: Trigger) -> list[CountedTerm]:
    """The amounts of a trigger that are known ahead."""
    terms = program.terms(node, trigger)
    if trigger is node.plan_node.trigger and node.kind.trigger == "after":
        for clock, term in terms:
            if not clock.declared.in_digest:
                raise UsageError(
                    f'`{node.path}.after` = "{term}" ends by time, and how many steps that takes is not known ahead',
                    f'count epochs or steps, as in {node.path}.after = "10 epochs"',
                )
    return [(clock, term) for clock, term in terms if counted.is_known(clock.node.path, clock.field)]


def _logged(part: Operation, log: list[Any]) -> Callable[..., Any]:
    """The result of an operation; it is linear, or an interval decides it, as long as its log does not change."""
    compute = operation(part)
    if part.name in ("+", "-"):
        return compute

    def operate(*operands: Any) -> Any:
        if part.name in COMPARISONS and str not in map(type, operands):
            log.append((operands[0] > operands[1]) - (operands[0] < operands[1]))
        else:
            log.append(operands[1] if part.name in ("*", "/") else operands)
        return compute(*operands)

    return operate


# ---- the run, in which repeated rounds are multiplied

_Change = list[Any]


@dataclass(frozen=True)
class _Round:
    """A path from a position back to it: its log, and its change of every number."""

    head: int
    log: list[Any]
    change: _Change


@dataclass(frozen=True)
class _Skipped:
    """Rounds that were skipped."""

    one: _Round
    times: int


@final
class CountedRun:
    """One run of a program of nodes that count."""

    def __init__(self, program: Program, counted: Counted) -> None:
        self._program = program
        self._log: list[Any] = []
        self._has_ended = False
        self._visits = 0
        triggers = Triggers(program, functools.partial(_terms, program, counted))
        visits = _CountingVisits(program, _LoggingCells(program, counted, self._log), self._log)
        untimed = Stopwatch()
        compiler = Compiler(visits, triggers, self._end, untimed, counted.detours)
        self._transitions = compiler.transitions
        acting = [node for node in program.nodes if not node.bypassed]
        self._fields = [
            (node.fields, name)
            for node in acting
            for name, declared in node.kind.fields.items()
            if declared.stored and (name == ROUND or counted.is_known(node.path, name))
        ]
        self._triggers = [(node.trigger, node.fields) for node in acting if node.trigger is not None]
        self._fired = [
            (fields, term.unit, term.amount)
            for trigger, fields in self._triggers
            if isinstance(trigger, Every)
            for _, term in trigger.terms
        ]
        compiler.enter(program.main, reset=True)
        self._position = program.main.nodes[program.graph.start].index

    def _end(self) -> None:
        self._has_ended = True

    def scope_path(self) -> str:
        """The path of the graph that the run is in."""
        return self._program.nodes[self._position].scope.prefix

    def to_end(self) -> None:
        """Run to the end.

        Raises:
            EndlessError: no counted amount ends it.
            UsageError: it takes too many visits.
        """
        self._go_on(frozenset())

    def _step(self) -> None:
        self._visits += 1
        if self._visits > MOST_VISITS:
            raise TooLongError(
                f"the graph `{self._program.graph.name}` is too irregular to be counted ahead: it was followed for "
                f"{MOST_VISITS:,} nodes",
                "let its guards and expressions compare counts with numbers, or compute the number of steps in `setup`",
            )
        self._position = self._transitions[self._position]()
        self._log.append(self._position)

    def _go_on(self, heads: frozenset[int]) -> None:
        """Run until one of some positions is next, or to the end; on the way, rounds that repeat are multiplied."""
        met: dict[int, int] = {}
        while not self._has_ended:
            self._step()
            if self._position in heads:
                return
            position = self._position
            met[position] = times = met.get(position, 0) + 1
            # Rounds that do not repeat are tried less and less often.
            if times >= 2 and not times & (times - 1):
                if self._multiply(heads):
                    met[position] = 1
                if self._position in heads:
                    return

    def _multiply(self, heads: frozenset[int]) -> bool:
        """Run one round from here, and skip further ones that are the same; False if none was."""
        head, start, before = self._position, len(self._log), self._state()
        self._go_on(heads | {head})
        change = self._change(before, self._state())
        if self._has_ended or self._position != head or change is None:
            return False
        one = _Round(head, self._log[start:], change)
        if not self._follow(one):
            return False
        base, low, high = self._state(), -1, 1
        while self._is_alike_after(base, one, high):
            low, high = high, 16 * high
            if high > _ENDLESS:
                raise EndlessError("endless")
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._is_alike_after(base, one, middle) else (low, middle)
        self._put(_after(base, change, low + 1))
        if low >= 0:
            self._log.append(_Skipped(one, low + 1))
        return low >= 0

    def _follow(self, one: _Round) -> bool:
        """Run a round as another one; False as soon as something differs."""
        start, before = len(self._log), self._state()
        while (done := len(self._log) - start) < len(one.log):
            entry = one.log[done]
            if isinstance(entry, _Skipped):
                base = self._state()
                # A decision that is the same in the first and the last of these rounds is the same in all of them.
                if not all(self._is_alike_after(base, entry.one, times) for times in {0, entry.times - 1}):
                    self._put(base)
                    return False
                self._put(_after(base, entry.one.change, entry.times))
                self._log.append(entry)
                continue
            self._step()
            if self._has_ended or self._log[start + done :] != one.log[done : len(self._log) - start]:
                return False
        return self._change(before, self._state()) == one.change

    def _is_alike_after(self, base: list[Any], one: _Round, times: int) -> bool:
        """True if the round after this many is the same; position and log are kept."""
        start = len(self._log)
        self._put(_after(base, one.change, times))
        try:
            return self._follow(one)
        except TooLongError:
            raise
        except (ArithmeticError, ValueError):  # no run gets there
            return False
        finally:
            self._position, self._has_ended = one.head, False
            del self._log[start:]

    # ---- the state, as numbers

    def _state(self) -> list[Any]:
        state = [fields[name] for fields, name in self._fields]
        for fields, unit, _ in self._fired:
            numerator, denominator, count = fields["fired"].get(unit, (0, 1, None))
            state += (numerator if denominator == 1 else Fraction(numerator, denominator), count)
        return state

    def _change(self, before: list[Any], after: list[Any]) -> _Change | None:
        """The change of each number; None if anything else changed, or a trigger is at another stage."""
        change: _Change = []
        for then, now in zip(before, after, strict=True):
            if then is now or then == now:
                change.append(0)
            elif type(then) in (int, Fraction) and type(now) in (int, Fraction):
                change.append(now - then)
            else:
                return None
        fired = change[len(self._fields) :: 2]
        return None if any(each % amount for each, (*_, amount) in zip(fired, self._fired, strict=True)) else change

    def _put(self, state: list[Any]) -> None:
        for (fields, name), value in zip(self._fields, state, strict=False):
            fields[name] = value
        fired = iter(state[len(self._fields) :])
        for fields, unit, _ in self._fired:
            last, count = next(fired), next(fired)
            fields["fired"] = {**fields["fired"], unit: [last.numerator, last.denominator, count]}
        for trigger, _ in self._triggers:
            trigger.start()


def _after(state: list[Any], change: _Change, times: int) -> list[Any]:
    """The state after this many changes."""
    return [value + times * each if each else value for value, each in zip(state, change, strict=True)]


class CountedRanks:
    """Several ranks that all behave the same."""

    rank = 0
    sharded = False

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def watch_choices(self, position: int, leave: Transition) -> Transition:
        return leave

    def before_batch(self) -> None:
        """Do nothing."""
