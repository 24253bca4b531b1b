"""Triggers of bound nodes, compiled to the comparison of a counter with a threshold.

A trigger is due when floor(clock / amount) has grown since its node last fired. As clocks only grow, there is a least
value of the counter at which it is due. It is computed when the node fires and when an epoch ends. Otherwise a check is
one call with one or two comparisons (0.06 us; comparing fractions took 2 us).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Any, final

from graphtrain.graph.closures import any_of
from graphtrain.kind import derived_clock
from graphtrain.kind.trigger import Term, next_multiple
from graphtrain.program.bind import Clock, ClockTerm, Program

Due = Callable[[], bool]
Recompute = Callable[[], None]
DueAt = Callable[[], int | Fraction]

_NEVER = Fraction(2**62)


@final
class Every:
    """The trigger of a node with `every`: due when a multiple of an amount was reached since the node last fired.

    Arguments:
        fields: the fields of the node; `fired` maps each unit to its `Clock.reading` when the node last fired.
        terms: the amounts, each with its clock.
        once: True makes it due until the node has run. Default: False.
        may_be_due: returns True from the amount `from` on. Default: always.

    Attributes:
        due: a call that returns whether an amount, or `once`, makes it due now.
    """

    def __init__(
        self, fields: dict[str, Any], terms: Sequence[ClockTerm], *, once: bool = False, may_be_due: Due | None = None
    ) -> None:
        self._terms = [(clock, term.base) for clock, term in terms]
        self._fields, self.may_be_due = fields, may_be_due
        thresholds = [_threshold(clock, functools.partial(self._due_at, clock, term)) for clock, term in self._terms]
        self.due: Due = any_of([lambda: not fields["runs"]] * once + [due for due, _ in thresholds])
        self._recompute = [recompute for _, recompute in thresholds]

    def start(self) -> None:
        """Begin or resume; new units count from now."""
        self.fire(self._fields["fired"])

    def fire(self, before: Mapping[str, list[int | None]] = MappingProxyType({})) -> None:
        """Store the clocks, as the node has run; or those of an earlier firing, where `before` has them."""
        # A unit that the trigger no longer has is dropped. If it comes back, it counts from then.
        self._fields["fired"] = {term.unit: before.get(term.unit) or clock.reading() for clock, term in self._terms}
        for recompute in self._recompute:
            recompute()

    def _due_at(self, clock: Clock, term: Term) -> int | Fraction:
        last = self._fields["fired"].get(term.unit)
        if last is None:
            return _NEVER  # not started yet
        numerator, denominator, count = last
        since = numerator if denominator == 1 else Fraction(numerator, denominator)
        return next_multiple(since if count == clock.count() else 0, term.amount)


@final
class After:
    """The trigger of a node with `after`: due once a clock has reached an amount, or a step function has returned STOP.

    Arguments:
        fields: the fields of the node; `stopped` is the `text` of the trigger for which the end was requested, so that
            another trigger is not stopped.
        terms: the amounts, each with its clock.
        text: the trigger as text.

    Attributes:
        due: a call that returns whether it is due.
    """

    def __init__(self, fields: dict[str, Any], terms: Sequence[ClockTerm], text: str) -> None:
        def due_at(term: Term) -> Fraction:
            return Fraction(0) if fields["stopped"] == text else term.base.amount

        self._fields, self._text = fields, text
        thresholds = [_threshold(clock, functools.partial(due_at, term)) for clock, term in terms]
        self.due: Due = any_of([due for due, _ in thresholds] or [lambda: bool(fields["stopped"] == text)])
        self._recompute = [recompute for _, recompute in thresholds]

    def start(self) -> None:
        """Begin or resume, with the present progress."""
        for recompute in self._recompute:
            recompute()

    def stop(self) -> None:
        """Be due from now on."""
        self._fields["stopped"] = self._text
        self.start()


def reached(terms: Sequence[ClockTerm]) -> Due:
    """A call that returns whether a clock has reached its amount. It has no state."""
    return any_of([_threshold(clock, functools.partial(Fraction, term.base.amount))[0] for clock, term in terms])


def set_triggers(program: Program, *, counts: bool = True) -> None:
    """Give the nodes of a program their triggers. `counts`: False ignores all amounts."""
    for node in program.nodes:
        trigger, start = node.plan_node.trigger, node.plan_node.start
        if trigger is None or node.bypassed:
            continue
        clocks = program.clocks[node.scope]
        due = [(clocks[term.base.unit], term) for term in trigger.terms if counts]
        if node.kind.trigger != "every":
            node.trigger = After(node.fields, due, str(trigger))
            continue
        least = [(clocks[term.base.unit], term) for term in start.terms if counts] if start is not None else None
        may_be_due = reached(least) if least is not None else None
        node.trigger = Every(node.fields, due, once=trigger.once, may_be_due=may_be_due)


def _least_number(amount: int | Fraction) -> int | float:
    """The least value of a counter, integer or float, that is at least the amount."""
    # The float nearest to 3/10 is less than 3/10: a node that fired at it would be due again at once.
    nearest = amount.numerator if amount.denominator == 1 else float(amount)
    return nearest if nearest >= amount else math.nextafter(nearest, math.inf)


def _threshold(clock: Clock, due_at: DueAt) -> tuple[Due, Recompute]:
    """A call that returns whether the clock has reached an amount, and one to make when `due_at` returns another."""
    # A clock may restart at 0, or be computed from a counter that does; then `restarts` is read too.
    instance, counter, restarts = clock.node.instance, clock.field, clock.restarts
    reach: Callable[[int | Fraction], int | float] = _least_number  # amount of the clock -> value of the counter
    derived = getattr(type(instance), counter, None)
    if isinstance(derived, derived_clock):
        counter, restarts, reach = derived.counter, derived.restarts, getattr(instance, derived.reach)
    # `__dict__` is twice as fast as `getattr`, where it has these fields.
    values: Any = vars(instance)
    if not {counter, restarts or counter} <= values.keys():
        values = _Attributes(instance)
    count: Any = None  # the value of `restarts` for which the threshold was computed
    threshold: int | float = _least_number(due_at()) if restarts is None else 0

    def is_reached() -> bool:
        return values[counter] >= threshold  # type: ignore[no-any-return]

    def recompute() -> None:
        nonlocal threshold
        threshold = _least_number(due_at())

    def is_reached_since_restart() -> bool:
        nonlocal count, threshold
        if values[restarts] == count and values[counter] < threshold:
            return False
        count, amount = values[restarts], due_at()
        is_reached = clock.now() >= amount
        threshold = 0 if is_reached else reach(amount)  # due until it has fired, at any value of the counter
        return is_reached

    def recompute_since_restart() -> None:
        nonlocal count
        count = None
        reach(due_at())  # raises for an amount that cannot be counted

    return (is_reached, recompute) if restarts is None else (is_reached_since_restart, recompute_since_restart)


class _Attributes:
    """The attributes of an object, as a mapping."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __getitem__(self, name: str) -> Any:
        return getattr(self._owner, name)
