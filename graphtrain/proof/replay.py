"""Replays a past run up to a moment, and reads the values at it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import torch

from graphtrain.errors import UsageError
from graphtrain.graph.elements import GraphData
from graphtrain.kind.trigger import Term
from graphtrain.names import plainly_named
from graphtrain.outcome import Outcome
from graphtrain.program.breakpoints import Breakpoint, parse_amount, with_breakpoints
from graphtrain.program.compiled_graph import CompiledGraph
from graphtrain.program.loop import Loop, Transition
from graphtrain.resume.session import Session
from graphtrain.trainer.trainer import Trainer


@final
class Replay:
    """A replay of a run from a checkpoint, or from its beginning, up to a breakpoint.

    Arguments:
        trainer: set up as the run was, and not started.
        start: the checkpoint. Default: the beginning.

    Attributes:
        compiled: the compiled graph, once the replay has started.
    """

    compiled: CompiledGraph

    def __init__(self, trainer: Trainer, start: Path | None = None) -> None:
        self.trainer = trainer
        self._start: Path | str = start if start is not None else "auto"

    def run_to(self, breakpoints: Callable[[CompiledGraph, Loop], list[Breakpoint]]) -> bool:
        """Run to a breakpoint, such as those of `after_amount`; False if the run ends before."""

        def place(session: Session) -> list[Transition]:
            self.compiled = session.compiled
            transitions = _clearing_slots(self.compiled, self.compiled.compiler.transitions)
            return with_breakpoints(transitions, breakpoints(self.compiled, session.loop), session.requests)

        return self.trainer.run_to(place, self._start) is Outcome.REACHED

    # ---- values at the breakpoint

    @property
    def moment(self) -> str:
        """The position of the replay: ``"step 12, epoch 1.50, batch 5/10"``."""
        return self.compiled.run_clock.describe()

    @property
    def slots(self) -> dict[str, Any]:
        """The slots with a value, by path. Slots of earlier batches are left out unless they are still read."""
        return {path: value for path, value in self.compiled.program.slots.items() if value is not None}

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Every parameter by its name, prefixed by its module if there are several."""
        resources = self.trainer.resources.items()
        modules = {name: resource for name, resource in resources if isinstance(resource, torch.nn.Module)}
        return {
            inner if len(modules) == 1 else f"{name}.{inner}": parameter
            for name, module in modules.items()
            for inner, parameter in plainly_named(module.named_parameters())
        }

    @property
    def gradients(self) -> dict[str, torch.Tensor]:
        """The gradients of the parameters that have one, by the same names."""
        return {name: parameter.grad for name, parameter in self.parameters.items() if parameter.grad is not None}


def _clearing_slots(compiled: CompiledGraph, transitions: Sequence[Transition]) -> Sequence[Transition]:
    """The transitions; each fetched batch clears slots of the one before, whose loss would look like its own."""
    clock = compiled.program.clock(compiled.program.main, "batches")
    if clock is None:
        return transitions
    fetching, slots = clock.node, compiled.program.slots
    fetch, other_slots = transitions[fetching.index], slots.keys() - {*fetching.plan_node.writes}

    def fetch_and_clear() -> int:
        position = fetch()
        for path in other_slots - compiled.alive(position):
            slots[path] = None
        return position

    return [*transitions[: fetching.index], fetch_and_clear, *transitions[fetching.index + 1 :]]


# ---- the moment


def parse_moment(text: str, graph: GraphData) -> Term:
    """The amount at which a replay pauses.

    Raises:
        UsageError: the text is not a single amount, or its unit is not on the clock of the graph.

    >>> from graphtrain import Graph
    >>> str(parse_moment("48211 steps", Graph.load("fit")))
    '48211 steps'
    """
    example = "--to '48211 steps'"
    terms = parse_amount(text, graph, "--to", example).terms
    if len(terms) != 1:
        raise UsageError(f'--to: "{text}" is not an amount', f"as in {example}")
    if terms[0].base.unit not in graph.units:
        units = f" ({', '.join(graph.units)})" if graph.units else ""
        raise UsageError(
            f"--to: `{terms[0].unit}` is not on the clock of `{graph.name}`, and counters of nested graphs restart: an "
            "amount would name many moments",
            f"use a unit of that clock{units}; --node PATH --runs N leads on to a node in a body",
        )
    return terms[0]


def after_amount(compiled: CompiledGraph, term: Term) -> list[Breakpoint]:
    """Pause right after the node that counts a unit has reached an amount, while batch and gradients exist.

    Raises:
        UsageError: the unit is wall-clock time, or restarts at 0.
    """
    unit, amount = term.base.unit, term.base.amount
    clock = compiled.program.clocks[compiled.program.main][unit]
    if not clock.declared.in_digest or clock.restarts is not None:
        raise UsageError(
            f"--to: `{term.unit}` is wall-clock time, or restarts at 0: an amount would not name one moment",
            "use batches, steps or epochs",
        )
    return [Breakpoint(node.index, lambda: clock.now() >= amount) for node in compiled.program.nodes]
