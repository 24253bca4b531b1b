"""Where a run is, in the words of its clock: step, epoch, batch, window; and how far its end is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import final

from graphtrain.graph import Graph
from graphtrain.graph.renaming import Renaming
from graphtrain.kind.fields import Field
from graphtrain.kind.trigger import Term, Trigger, decimal, exactly
from graphtrain.program.bind import BoundNode, Program

# An epoch that comes no further than this is shown as 0.00.
_LEAST_EPOCHS = Fraction(1, 200)
# An epoch of more batches is not worth its words until it moves, in a run that no number of steps or batches ends.
_MOST_BATCHES = 100_000
# Units that start again at 0, or that count what another one counts: no rate is taken of them, nor of how often a
# node has run.
_NO_RATE = frozenset({"epochs", "epoch_batches", "steps", "seconds"})


@dataclass(frozen=True)
class Moment:
    """How far a run is: between equal moments nothing was trained.

    Attributes:
        clock: unit -> its exact value, of the outermost graph and of graphs around the position that train; readings of
            the wall clock are left out.
        visits: path -> how often it has run, of the nodes of these graphs that act on gradients or train inside.
    """

    clock: Mapping[str, Fraction]
    visits: Mapping[str, int]

    def is_at_the_clock_of(self, other: Moment | None) -> bool:
        """True if no clock has moved between the two, whatever was trained."""
        return other is not None and self.clock == other.clock


@final
class RunClock:
    """Reads the clock of the outermost graph; a unit the graph does not count is left out."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._units = program.graph.units
        self._nodes = program.main.nodes
        self._read = program.plan.fields_read
        self.ends: tuple[Term, ...] = tuple(
            term
            for bound in self._nodes.values()
            if isinstance(trigger := bound.parameters.get("after"), Trigger)
            for term in trigger.terms
        )

    def count(self, unit: str) -> Fraction | None:
        """The exact value of a unit of the clock; None if there is no such unit."""
        if unit not in self._units:
            return None
        owner, field = self._program.main.counter(unit)
        return exactly(getattr(owner.instance, field)) if owner is not None else Fraction(0)

    def counts(self) -> dict[str, int]:
        """The units whose rate is the speed of the run, such as batches, samples and tokens."""
        return {
            unit: int(self.count(unit) or 0)
            for unit, text in self._units.items()
            if unit not in _NO_RATE and not text.endswith(".runs")
        }

    def moment(self, position: int) -> Moment | None:
        """How far the run is, before the node at a position; None where the clock counts nothing."""
        clock: dict[str, Fraction] = {}
        visits: dict[str, int] = {}
        for scope in self._program.nodes[position].scope.around():
            if scope.activity is not None:  # an evaluation moves nothing
                continue
            for unit in scope.graph.units:
                bound, field = scope.counter(unit)
                if bound is not None and bound.kind.fields[field].in_digest:
                    clock[scope.prefix + unit] = exactly(getattr(bound.instance, field))
            for bound in scope.nodes.values():
                if bound.kind.effects or (bound.body is not None and bound.body.activity is None):
                    visits[bound.path] = bound.instance.runs
        return Moment(clock, visits) if clock else None

    def trained(self) -> tuple[int, float]:
        """Batches and seconds trained: what an interruption loses is measured in them."""
        return int(self.count("batches") or 0), float(self.count("seconds") or 0)

    def step_and_epoch(self) -> tuple[int, float]:
        """Steps of the optimizer, and epochs as a fraction: what a row of metrics belongs to."""
        return int(self.count("steps") or 0), float(self.count("epochs") or 0)

    def epoch_length(self) -> int | None:
        """Batches that the current epoch will have, where it is known."""
        if "epoch_batches" not in self._units:
            return None
        owner, field = self._program.main.counter("epoch_batches")
        return _target(owner, field) or None if owner is not None else None

    def epochs_move(self) -> bool:
        """Whether the epoch changes on the scale of the run: not where 500 steps are made of a billion batches.

        Of data of unknown length it does once the first epoch is complete, or if the run is to end after epochs.
        """
        epochs = self.count("epochs")
        if epochs is None or epochs >= _LEAST_EPOCHS or any(term.base.unit == "epochs" for term in self.ends):
            return epochs is not None
        length = self.epoch_length()
        if length is None:
            return not self.count("batches")  # the data is not opened yet
        in_a_step = max((length for *_, length in self._windows()), default=1) or 1
        in_a_unit = {"steps": in_a_step, "batches": 1}
        counted = [term.base.amount * in_a_unit[term.base.unit] for term in self.ends if term.base.unit in in_a_unit]
        return max(counted) >= length * _LEAST_EPOCHS if counted else length <= _MOST_BATCHES

    def window(self) -> tuple[int, int] | None:
        """Backward passes in the open window and how many it will have (0: not known); None if none is open."""
        return next(((passes, length) for _, _, passes, length in self._windows() if passes), None)

    def mixed_windows(self, former: Graph, renaming: Renaming) -> list[str]:
        """One line for every open window whose length is not that of the graph that began it."""
        lines = []
        for bound, field, passes, length in self._windows():
            node = former.nodes.get(renaming.former(bound.path) or "")
            target = bound.kind.parameters.get(field.target or "")
            if node is None or target is None:
                continue
            if target.name in {**node.reads, **bound.node.reads}:
                continue  # an expression, which no former graph tells the value of
            before, now = node.parameters.get(target.name, target.default), bound.parameters[target.name]
            is_kept = field.window is not None and length == before
            if passes and before != now and not (is_kept and (bound.path, target.name) not in self._read):
                lines.append(
                    f"a window of `{bound.path}` is open: {passes} of its backward passes were made for a window of "
                    f"{before}, the rest are made for one of {now}, so this one step weighs them unequally"
                )
        return lines

    def done(self, term: Term) -> float | None:
        """The share of an amount that is reached; None if the clock does not count it."""
        now = self.count(term.base.unit)
        return min(1.0, float(now / term.base.amount)) if now is not None and term.base.amount else None

    def cut_window(self) -> str | None:
        """One line if the last window was stepped short, other than by the end of an epoch."""
        epochs = self.count("epochs")
        for bound, field, _, length in self._windows():
            size = getattr(bound.instance, field.last) if field.last else 0
            if 0 < size < length and epochs is not None and epochs.denominator != 1:
                return (
                    f"the former end cut a window of `{bound.path}` short ({size} of {length}): what follows is not "
                    "bitwise what a run with this ending from the start would have done"
                )
        return None

    def _windows(self) -> Iterator[tuple[BoundNode, Field, int, int]]:
        """The nodes that count the backward passes of a window: the field that does, its value, and how many to do."""
        for bound in self._nodes.values():
            for field in bound.kind.fields.values():
                if field.counts is not None:
                    opened = getattr(bound.instance, field.window) if field.window is not None else 0
                    yield bound, field, getattr(bound.instance, field.name), opened or _target(bound, field.name)

    def describe(self) -> str:
        """As a person reads it: ``step 12, epoch 1.50, batch 5/10, window 2/4``.

        Of a graph that counts none of these, the units that it counts: ``4 batches, 8 samples``.
        """
        parts, epochs_move = [], self.epochs_move()
        for unit, word in (("steps", "step"), ("epochs", "epoch"), ("epoch_batches", "batch")):
            if (value := self.count(unit)) is not None and (epochs_move or unit != "epochs"):
                text = str(value) if value.denominator == 1 else f"{float(value):.2f}"
                if unit == "epoch_batches" and epochs_move and (length := self.epoch_length()) is not None:
                    text += f"/{length}"
                parts.append(f"{word} {text}")
        if (window := self.window()) is not None:
            parts.append(f"window {window[0]}/{window[1] or '?'}")
        return ", ".join(parts or [f"{decimal(self.count(unit) or Fraction(0))} {unit}" for unit in self._units])


def _target(bound: BoundNode, name: str) -> int:
    """How far a counter counts, as its kind declares it; 0 where that is not known."""
    target = bound.kind.fields[name].target
    return (getattr(bound.instance, target) or 0) if target is not None else 0
