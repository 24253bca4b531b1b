"""Going to a moment of a past run, and what is at hand there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import torch

from graphtrain.kind.trigger import Term
from graphtrain.outcome import Outcome
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Loop, Transition
from graphtrain.run.stops import Gate, at_amount, at_node, forgetting
from graphtrain.run.trainer import Trainer


@final
class Replay:
    """A run that is gone through again, from a checkpoint or from its beginning, and stops where it is told.

    Arguments:
        trainer: set up as the run was, and not begun.
        start: the checkpoint. Default: the beginning.
    """

    def __init__(self, trainer: Trainer, start: Path | None = None) -> None:
        self.trainer = trainer
        self._start: Path | str = start if start is not None else "auto"
        self._compiled: CompiledGraph | None = None

    def to_amount(self, term: Term) -> bool:
        """Go on until the node that counts a unit has reached an amount; False if the run ends before."""
        return self._go(at_amount(term))

    def to_node(self, path: str) -> bool:
        """Go on until a node is the next to run; False if the run ends before.

        Raises:
            UsageError: there is no such node.
        """
        return self._go(at_node(path))

    def _go(self, gate: Gate) -> bool:
        def noted(compiled: CompiledGraph, loop: Loop) -> list[Transition]:
            self._compiled = compiled
            return forgetting(compiled, gate(compiled, loop))

        return self.trainer.run_gated(noted, self._start) is Outcome.REACHED

    # ---- what is at hand

    @property
    def here(self) -> CompiledGraph:
        """What runs; once it does."""
        assert self._compiled is not None, "not begun"
        return self._compiled

    @property
    def where(self) -> str:
        """The place in the words of the clock."""
        return self.here.run_clock.describe()

    @property
    def slots(self) -> dict[str, Any]:
        """What nodes have written, by path; of an earlier batch only what is still read."""
        program = self.here.program
        return {name: program.slots[program.slot_index(name)] for name in program.slot_names}

    def slots_around(self) -> dict[str, Any]:
        """The slots that the next node sees, by their names there: those of its own graph before those around it."""
        scope = self.here.program.by_path[self.trainer.position].scope
        prefixes = [one.prefix for one in scope.around()]
        return {
            path.removeprefix(prefix): value
            for prefix in prefixes
            for path, value in self.slots.items()
            if path.startswith(prefix) and "/" not in path.removeprefix(prefix)
        }

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Every parameter by its name; with the name of its module before it where there are several modules."""
        modules = {name: one for name, one in self.trainer.resources.items() if isinstance(one, torch.nn.Module)}
        return {
            inner if len(modules) == 1 else f"{name}.{inner}": parameter
            for name, module in modules.items()
            for inner, parameter in module.named_parameters()
        }

    @property
    def gradients(self) -> dict[str, torch.Tensor]:
        """Those that there are, by the same names."""
        return {name: one.grad for name, one in self.parameters.items() if one.grad is not None}
