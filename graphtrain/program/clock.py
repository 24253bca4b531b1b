"""Where a run is, in the words of its clock: step, epoch, batch, window; and how far its end is."""

from __future__ import annotations

from fractions import Fraction
from typing import final

from graphtrain.graph import Graph
from graphtrain.graph.renaming import Renaming
from graphtrain.kind.trigger import Term, Trigger, exactly
from graphtrain.program.bind import Program

# Units that begin again, or that say the same in other words: no rate is taken of them.
_NO_RATE = frozenset({"epochs", "epoch_batches", "steps", "seconds"})


@final
class RunClock:
    """Reads the clock of the outermost graph; a unit the graph does not count is left out."""

    def __init__(self, program: Program) -> None:
        self._units = program.graph.units
        self._nodes = program.main.nodes
        self.ends: tuple[Term, ...] = tuple(
            term
            for bound in self._nodes.values()
            if isinstance(trigger := bound.parameters.get("after"), Trigger)
            for term in trigger.terms
        )

    def count(self, unit: str) -> Fraction | None:
        """What a unit of the clock says, exactly; None if there is no such unit."""
        text = self._units.get(unit)
        if text is None:
            return None
        owner, _, field = text.partition(".")
        return exactly(getattr(self._nodes[owner].instance, field))

    def counts(self) -> dict[str, int]:
        """The units whose rate tells how fast the run is, such as batches, samples and tokens."""
        return {unit: int(self.count(unit) or 0) for unit in self._units if unit not in _NO_RATE}

    def trained(self) -> tuple[int, float]:
        """Batches and seconds trained: what was lost with an interruption is counted in them."""
        return int(self.count("batches") or 0), float(self.count("seconds") or 0)

    def step_and_epoch(self) -> tuple[int, float]:
        """Steps of the optimizer, and epochs as a fraction: what a row of metrics belongs to."""
        return int(self.count("steps") or 0), float(self.count("epochs") or 0)

    def epoch_length(self) -> int | None:
        """Batches that the current epoch will have, where it is known."""
        owner = self._units.get("epoch_batches", "").partition(".")[0]
        length = getattr(self._nodes[owner].instance, "epoch_length", 0) if owner else 0
        return length or None

    def window(self) -> tuple[int, int] | None:
        """Backward passes in the open window and how many it will have; None if none is open."""
        for bound in self._nodes.values():
            for name, declared in bound.kind.fields.items():
                if declared.counts is not None and (count := getattr(bound.instance, name)):
                    every = bound.parameters.get("every")
                    return count, every if isinstance(every, int) else 0
        return None

    def mixed_windows(self, former: Graph, renaming: Renaming) -> list[str]:
        """What to say of open windows whose length is another one than in the graph that began them."""
        lines = []
        for bound in self._nodes.values():
            node, every = former.nodes.get(renaming.former(bound.path) or ""), bound.parameters.get("every")
            if node is None or "every" not in bound.kind.parameters or not isinstance(every, int):
                continue
            before = node.parameters.get("every", bound.kind.parameters["every"].default)
            counts = [name for name, declared in bound.kind.fields.items() if declared.counts is not None]
            passes = max((getattr(bound.instance, name) for name in counts), default=0)
            if passes and before != every:
                lines.append(
                    f"a window of `{bound.path}` is open: {passes} of its backward passes were made for a window of "
                    f"{before}, the rest are made for one of {every}, so this one step weighs them unequally"
                )
        return lines

    def done(self, term: Term) -> float | None:
        """The share of an amount that is reached; None if the clock does not count it."""
        now = self.count(term.base.unit)
        return min(1.0, float(now / term.base.amount)) if now is not None and term.base.amount else None

    def cut_window(self) -> str | None:
        """What to say if the last window was stepped short, other than by the end of an epoch."""
        epochs = self.count("epochs")
        for bound in self._nodes.values():
            every, size = bound.parameters.get("every"), getattr(bound.instance, "last_count", 0)
            if isinstance(every, int) and 0 < size < every and epochs is not None and epochs.denominator != 1:
                return (
                    f"the former end cut a window of `{bound.path}` short ({size} of {every}): what follows is not "
                    "bitwise what a run with this ending from the start would have done"
                )
        return None

    def describe(self) -> str:
        """As a person reads it: ``step 12, epoch 1.50, batch 5/10, window 2/4``."""
        parts = []
        for unit, word in (("steps", "step"), ("epochs", "epoch"), ("epoch_batches", "batch")):
            if (value := self.count(unit)) is not None:
                text = str(value) if value.denominator == 1 else f"{float(value):.2f}"
                if unit == "epoch_batches" and (length := self.epoch_length()) is not None:
                    text += f"/{length}"
                parts.append(f"{word} {text}")
        if (window := self.window()) is not None:
            parts.append(f"window {window[0]}/{window[1] or '?'}")
        return ", ".join(parts)
