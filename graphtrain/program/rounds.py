"""What a transition does more where a run has several ranks.

Ranks go through the data in rounds: a visit of the node that fetches batches takes as many micro-batches as there are
ranks, or fewer where the epoch or a window has no more, and each rank gets one of them by its number. A rank that gets
none is *idle* in that round: what depends on a batch is not called there, and everything is counted as on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, final

from graphtrain.data.shares import WindowCounter, Windows
from graphtrain.kind import Field
from graphtrain.kind.fields import IDLE, ROUND
from graphtrain.plan.scope import SlotTarget, leaves, outputs_of
from graphtrain.program.agreement import Agreement
from graphtrain.program.bind import BoundNode, Program

Act = Callable[[], Any]


@final
class Rounds:
    """Compiles what depends on the round, for the nodes of one program.

    Arguments:
        agreement: with the other ranks.
    """

    def __init__(self, program: Program, agreement: Agreement) -> None:
        self._program = program
        self.agreement = agreement
        self._fetching = {bound.path for bound in program.nodes if is_fetching(bound) and _goes_in_rounds(bound)}
        self._dependent = slots_of_rounds(program)

    def source(self, bound: BoundNode) -> BoundNode | None:
        """The node whose batches a node reads, itself or through others; None where it reads none."""
        return _source(bound, self._dependent)

    def act(self, bound: BoundNode, act: Act) -> Act:
        """The call of a node, as one of several ranks has it."""
        if is_fetching(bound):
            # One that does not know of ranks gives each of them whatever it fetches there.
            return act if bound.path in self._fetching else self._after_agreement(act)
        source = self.source(bound)
        if source is None or bound.body is not None:
            return act
        has_batch, slots = self._has_batch(source), self._program.slots
        # What a step function has returned for slots stays, as if it was not called.
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

    def _after_agreement(self, act: Act) -> Act:
        agreement = self.agreement

        def fetch() -> None:
            agreement.before_batch()
            act()

        return fetch

    def amount(self, bound: BoundNode) -> Callable[[], int]:
        """A call that returns the micro-batches, of all ranks, which a visit of a node runs backward for."""
        source, world_size = self.source(bound), self.agreement.world_size
        if source is None:
            return lambda: world_size
        fields = source.fields
        return lambda: int(fields[ROUND])

    def reported_amount(self, bound: BoundNode, ran_backward: Callable[[], bool]) -> Callable[[], int]:
        """The same for a node that tells of each visit whether it ran backward, which ranks then tell each other.

        Arguments:
            ran_backward: whether the last visit did, of this rank; of one that had no batch, an earlier one.
        """
        source, agreement = self.source(bound), self.agreement
        has_batch = self._has_batch(source) if source is not None else lambda: True

        def amount() -> int:
            return sum(agreement.gather(has_batch() and ran_backward()))

        return amount

    def windows(
        self, bound: BoundNode, counters: list[tuple[BoundNode, Field]], size: Callable[..., Callable[[], int]]
    ) -> Windows:
        """The windows that the batches of a node fill: those open, or those that open next.

        Arguments:
            counters: the nodes that count windows, with the field that counts.
            size: makes a call that returns the size of the window which opens next, of a counter.
        """
        filled = [
            WindowCounter(counter.path, counter.fields, declared.name, declared.window, size(counter, declared))
            for counter, declared in counters
            if declared.window is not None
            and declared.target is not None
            and any(counted & set(counter.planned.optimizers) for counted in self._trained_on(bound))
        ]
        return Windows(filled, are_expected=not filled and bool(self._trained_on(bound)))

    def _fetched_by(self, bound: BoundNode) -> BoundNode | None:
        """The node that fetches the batches which a node reads, in whole or in parts."""
        source = self.source(bound)
        while source is not None and not is_fetching(source):
            source = _first_source(source, self._dependent)
        return source

    def rewired(
        self,
        kept: set[BoundNode],
        counters: list[tuple[BoundNode, Field]],
        size: Callable[..., Callable[[], int]],
    ) -> None:
        """Let nodes that were kept from another graph fill the windows of this one; the arguments are of `windows`."""
        for bound in kept:
            if bound.path in self._fetching:
                bound.instance.follow_windows(self.windows(bound, counters, size))

    def undivided(self) -> list[str]:
        """A line for each node that fetches batches, and gives all ranks the same."""
        return [
            f"`{bound.path}` fetches batches for one process: each of {self.agreement.world_size} ranks fetches them, "
            f"and all of them count; use `next_batch`, or give each rank others in `{bound.kind.name}`"
            for bound in self._program.nodes
            if bound.kind.activity == "data" and bound.path not in self._fetching and not bound.bypassed
        ]

    def _trained_on(self, fetching: BoundNode) -> list[set[str]]:
        """For each backward pass for batches that a node fetches: the optimizers whose gradients it adds to."""
        return [
            set(action.optimizers)
            for bound in self._program.nodes
            if self._fetched_by(bound) is fetching
            for action in bound.planned.actions
            if action.effect == "backward"
        ]


def slots_of_rounds(program: Program) -> dict[str, BoundNode]:
    """Every slot that depends on a batch, by path: what a node writes that reads one; with the node that fetches it."""
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
    """The node that fetches the batches which a node reads; None where it reads none."""
    return _source(bound, slots_of_rounds(program))


def _source(bound: BoundNode, dependent: dict[str, BoundNode]) -> BoundNode | None:
    # To a node in which ranks synchronise all of them come, and what it writes is the same on all.
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
