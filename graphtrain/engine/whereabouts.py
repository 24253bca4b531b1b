"""Where a run is, in the words of its clock: step, epoch, batch, window."""

from __future__ import annotations

from fractions import Fraction
from typing import final

from graphtrain.engine.program import Program


@final
class Whereabouts:
    """Reads the clock of the outermost graph; a unit the graph does not count is left out."""

    def __init__(self, program: Program) -> None:
        self._units = program.graph.units
        self._nodes = program.main.nodes

    def count(self, unit: str) -> Fraction | None:
        """What a unit of the clock says, exactly; None if there is no such unit."""
        text = self._units.get(unit)
        if text is None:
            return None
        owner, _, field = text.partition(".")
        return Fraction(getattr(self._nodes[owner].instance, field))

    def step_and_epoch(self) -> tuple[int, float]:
        """Steps of the optimizer, and epochs as a fraction: what a row of metrics belongs to."""
        return int(self.count("steps") or 0), float(self.count("epochs") or 0)

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
        """As a person reads it: ``step 12, epoch 1.50, batch 5, window 2/4``."""
        parts = []
        for unit, word in (("steps", "step"), ("epochs", "epoch"), ("epoch_batches", "batch")):
            if (value := self.count(unit)) is not None:
                parts.append(f"{word} {value if value.denominator == 1 else f'{float(value):.2f}'}")
        for bound in self._nodes.values():
            for name, declared in bound.kind.fields.items():
                if declared.counts is not None and (count := getattr(bound.instance, name)):
                    parts.append(f"window {count}/{bound.parameters.get('every', '?')}")
        return ", ".join(parts)
