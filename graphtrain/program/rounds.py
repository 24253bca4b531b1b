"""The additional work of a transition in a run of several ranks.

Ranks go through the data in rounds: a visit of the node that fetches batches takes one micro-batch for each rank, or
fewer if the epoch or a window has no more, and each rank gets one of them by its number. A rank without one is *idle*
in that round: nothing that depends on a batch is called there, and everything is counted as on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, final

from graphtrain.kind.fields import IDLE, ROUND
from graphtrain.plan.scope import SlotTarget, leaves, outputs_of
from graphtrain.program.agreement import Agreement
from graphtrain.program.bind import BoundNode, Program

Act = Callable[[], Any]


def then(first: Act, second: Act) -> Act:
    """Both, one after the other."""

    def both() -> None:
        first()
        second()

    return both


@final
class Rounds:
    """Compiles what depends on the round, for the nodes of one program.

    Arguments:
        agreement: that with the other ranks.
    """

    def __init__(self, program: Program, agreement: Agreement) -> None:
        self._program = program
        self.agreement = agreement
        self._dependent = slots_of_rounds(program)

    def divides(self, bound: BoundNode) -> bool:
        """True for a node that fetches batches, and gives each rank its own."""
        return is_fetching(bound) and _goes_in_rounds(bound)

    def source(self, bound: BoundNode) -> BoundNode | None:
        """The node whose batches a node reads, directly or through others; None if it reads none."""
        return _source(bound, self._dependent)

    def wrap(self, bound: BoundNode, act: Act) -> Act:
        """The call of a node on one of several ranks."""
        if is_fetching(bound):
            # A kind without support for ranks fetches batches on each of them.
            return act if self.divides(bound) else then(self.agreement.before_batch, act)
        source = self.source(bound)
        if source is None or bound.body is not None:
            return act
        has_batch, slots = self._has_batch(source), self._program.slots
        # Slots written by a step function keep their values, as if it was not called.
        writes = [self._program.slot_index(path) for path in bound.planned.own_writes]

        def act_on_own_batch() -> None:
            if has_batch():
                act()
                return
            for index in writes:
                slots[index] = None

        return act_on_own_batch

    def _has_batch(self, source: BoundNode) -> Callable[[], bool]:
        """A call that returns whether this rank was given something in the last round of a node."""
        fields, rank = source.fields, self.agreement.rank
        if IDLE not in source.kind.fields:
            return lambda: bool(rank < fields[ROUND])
        return lambda: rank < fields[ROUND] and not fields[IDLE]

    def amount(self, bound: BoundNode, ran_backward: Callable[[], bool] | None = None) -> Callable[[], int]:
        """A call that returns the number of micro-batches, over all ranks, for which a visit of a node runs backward.

        Arguments:
            ran_backward: for a node that reports whether it ran backward, which ranks then exchange: returns whether
                the last visit with a batch did on this rank. Default: every visit does.
        """
        source, agreement = self.source(bound), self.agreement
        if ran_backward is None:
            return (lambda: agreement.world_size) if source is None else lambda: int(source.fields[ROUND])
        has_batch = self._has_batch(source) if source is not None else lambda: True
        return lambda: sum(agreement.gather(has_batch() and ran_backward()))

    def undivided(self) -> list[str]:
        """A line for each node that fetches batches and does not divide them among ranks."""
        return [
            f"`{bound.path}` fetches batches for one process: each of {self.agreement.world_size} ranks fetches them, "
            f"and all of them count; use `next_batch`, or give each rank others in `{bound.kind.name}`"
            for bound in self._program.nodes
            if bound.kind.activity == "data" and not self.divides(bound) and not bound.bypassed
        ]

    def trained_on(self, fetching: BoundNode) -> list[set[str]]:
        """For each backward pass for batches that a node fetches: the optimizers whose gradients it adds to."""
        trained = []
        for bound in self._program.nodes:
            source = self.source(bound)
            while source is not None and not is_fetching(source):  # it provides parts of a batch
                source = _first_source(source, self._dependent)
            if source is fetching:
                trained += [set(action.optimizers) for action in bound.planned.actions if action.effect == "backward"]
        return trained


def slots_of_rounds(program: Program) -> dict[str, BoundNode]:
    """Every slot that depends on a batch, by path, with the node that fetches the batch."""
    dependent: dict[str, BoundNode] = {}
    for bound in program.nodes:
        if _goes_in_rounds(bound):
            dependent.update(dict.fromkeys(bound.planned.own_writes, bound))
    has_grown = True
    while has_grown:
        has_grown = False
        for bound in program.nodes:
            for path, source in _written(bound, dependent):
                if path not in dependent:
                    dependent[path], has_grown = source, True
    return dependent


def _written(bound: BoundNode, dependent: dict[str, BoundNode]) -> Iterator[tuple[str, BoundNode]]:
    """The slots that a node writes and that depend on a batch, with the node that fetches it."""
    if bound.bypassed:
        return
    if bound.body is not None:
        for name, path in zip(outputs_of(bound.body.graph), bound.planned.own_writes, strict=True):
            if (inner := f"{bound.body.prefix}{name}") in dependent:
                yield path, dependent[inner]
    elif (source := _source(bound, dependent)) is not None:
        yield from ((path, source) for path in bound.planned.own_writes)


def source_of_batches(program: Program, bound: BoundNode) -> BoundNode | None:
    """The node that fetches the batches which a node reads; None if it reads none."""
    return _source(bound, slots_of_rounds(program))


def _source(bound: BoundNode, dependent: dict[str, BoundNode]) -> BoundNode | None:
    # All ranks visit a node in which they synchronise, and what it writes is the same on all.
    if _goes_in_rounds(bound) or bound.kind.synchronises:
        return None
    return _first_source(bound, dependent)


def _first_source(bound: BoundNode, dependent: dict[str, BoundNode]) -> BoundNode | None:
    for read, target in bound.planned.reads:
        for leaf in leaves(target):
            if read.required and isinstance(leaf, SlotTarget) and leaf.path in dependent:
                return dependent[leaf.path]
    return None


def _goes_in_rounds(bound: BoundNode) -> bool:
    return ROUND in bound.kind.fields and not bound.bypassed


def is_fetching(bound: BoundNode) -> bool:
    """True for a node that fetches batches."""
    return bound.kind.epoch_fields is not None
