"""Accumulation windows: the engine counts the backward passes in them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import final

from graphtrain.kind import Field
from graphtrain.program.bind import Program, ProgramNode
from graphtrain.program.cells import Cells
from graphtrain.program.rank_visits import Act, RankVisits, then


def counters_of(program: Program) -> list[tuple[ProgramNode, Field]]:
    """The nodes that count the passes of a window, with the field: 0 between windows, and equal on all ranks."""
    nodes = [node for node in program.nodes if not node.bypassed]
    return [(node, field) for node in nodes for field in node.kind.fields.values() if field.counts is not None]


@final
class GradientWindows:
    """Counts the windows of one program. With several ranks there are `rank_visits`."""

    def __init__(self, program: Program, cells: Cells, rank_visits: RankVisits | None = None) -> None:
        self._program, self._cells, self._rank_visits = program, cells, rank_visits
        self._counters = counters_of(program)
        self._with_gradients = [
            (node, field)
            for node in program.nodes
            for field in node.kind.fields.values()
            if field.with_gradients and (node.path, field.name) in program.plan.fields_read
        ]

    def _next_size(self, counter: ProgramNode, field: Field) -> Callable[[], int]:
        """A call that returns the size of the next window, over all ranks with which the run began."""
        assert field.target is not None, "asked before"
        program, target = self._program, self._cells.field(counter, field.target).read
        return lambda: int(target() * program.window_ranks)

    def filled_by(self, node: ProgramNode) -> list[Callable[[], int]]:
        """For each window that batches of a node fill: a call that returns how many micro-batches it still takes."""
        assert self._rank_visits is not None, "there are several ranks"
        trained = self._rank_visits.trained_on(node)
        return [
            self._left(counter, field)
            for counter, field in self._counters
            if field.window is not None and field.target is not None and trained & {*counter.plan_node.optimizers}
        ]

    def _left(self, counter: ProgramNode, field: Field) -> Callable[[], int]:
        """A call that returns how many micro-batches the open window still takes; the next window, if none is open."""
        fields, count, window, size = counter.fields, field.name, str(field.window), self._next_size(counter, field)
        return lambda: int((fields[window] if fields[count] else size()) - fields[count])

    def wrap(self, node: ProgramNode, act: Act) -> Act:
        """The call of a node, which also counts its backward passes in the windows of its optimizers."""
        for counter, field in self._counters:
            optimizers, fields, is_cleared = set(counter.plan_node.optimizers), counter.fields, False
            for action in node.plan_node.actions:  # in their order: the last wrapper acts last
                if optimizers.isdisjoint(action.optimizers):
                    continue
                if action.effect == "backward":
                    act = self._counting_passes(node, act, counter, field, opens=is_cleared)
                elif action.effect == "zero_grad":
                    act, is_cleared = then(act, functools.partial(fields.__setitem__, field.name, 0)), True
        # Fields declared `with_gradients`, if they are read, restart where gradients are cleared.
        cleared = {
            name for action in node.plan_node.actions if action.effect == "zero_grad" for name in action.optimizers
        }
        for owner, field in self._with_gradients:
            if owner is not node and not cleared.isdisjoint(owner.plan_node.optimizers):
                act = then(act, functools.partial(owner.fields.__setitem__, field.name, field.default))
        return act

    def _counting_passes(self, node: ProgramNode, act: Act, counter: ProgramNode, field: Field, *, opens: bool) -> Act:
        """The call of a node, with its backward pass counted. `opens`: it always opens a window, and sets its size."""
        fields, count, window = counter.fields, field.name, str(field.window)
        # None stands for one: a call less in every batch.
        amount = self._rank_visits.amount(node) if self._rank_visits is not None else None
        size = self._next_size(counter, field) if field.window is not None and field.target is not None else None

        def act_and_count() -> None:
            if size is not None and (opens or not fields[count]):
                fields[window] = size()
            act()
            fields[count] += 1 if amount is None else amount()

        return act_and_count
