"""The position of a run by its clock: step, epoch, batch, window, evaluation; and its distance from the end."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, final

from graphtrain.kind.trigger import Term, Trigger, as_fraction, decimal
from graphtrain.plan.scope import Scope
from graphtrain.program.bind import Clock, Program
from graphtrain.report.values import ROW_POSITION

# Units that start again at 0, or that duplicate another one: no rate is shown for them, nor for the runs of a node.
_NO_RATE = frozenset({"epochs", "epoch_batches", "steps", "seconds"})


@final
class RunClock:
    """Reads the clock of the graph that trains now, or trained last, and the clocks of graphs around it.

    Attributes:
        ends: the amounts of `after` that end the run.
        columns: the columns of metrics other than step and epoch: units of graphs around the one that trains.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.ends = self._ends(program.main)
        # Scope -> the clocks of the graphs around it, except time, by name. A name that rows of metrics already have is
        # prefixed by the path of its graph, or by the name of the outermost one.
        self._outer_clocks: dict[Scope, dict[str, Clock]] = {}
        for scope in program.training:
            named = self._outer_clocks.setdefault(scope, {})
            for graph in scope.around[:-1]:
                for unit, clock in program.clocks[graph].items():
                    if clock.declared.in_digest:
                        is_taken = unit in named or unit in ROW_POSITION
                        named[f"{graph.path or f'{graph.graph.name}/'}{unit}" if is_taken else unit] = clock
        self.columns = tuple(dict.fromkeys([name for clocks in self._outer_clocks.values() for name in clocks]))

    @property
    def shown_ends(self) -> tuple[Term, ...]:
        """The amounts that end the graph that trains, and those that end the graphs around it."""
        return tuple([term for scope in self._program.clocked.around[::-1] for term in self._ends(scope)])

    def _ends(self, scope: Scope) -> tuple[Term, ...]:
        triggers = [node.plan_node.trigger for node in self._program.nodes_in(scope) if node.kind.trigger == "after"]
        return tuple([term for trigger in triggers if trigger is not None for term in trigger.terms])

    def count(self, unit: str) -> Fraction | None:
        """The exact count of a unit in the graph that trains, or else in one around it; None if nothing counts it."""
        clock = self._program.clock(self._program.clocked, unit)
        return clock.now() if clock is not None else None

    def counts(self) -> dict[str, int]:
        """The counts whose rates are the speed of the run, such as batches, samples and tokens."""
        return {
            unit: int(self.count(unit) or 0)
            for unit, text in self._program.clocked.graph.units.items()
            if unit not in _NO_RATE and not text.endswith(".runs")
        }

    def outer_counts(self) -> dict[str, int | float]:
        """The counts of the graphs around the one that trains, outermost first: ``{"fold": 2}``."""
        return {
            name: value if isinstance(value := getattr(clock.node.instance, clock.field), int) else float(value)
            for name, clock in self._outer_clocks.get(self._program.clocked, {}).items()
        }

    def nested(self) -> dict[str, Any]:
        """Entries for files that distinguish this training from others of an enclosing graph; empty without one."""
        if self._program.clocked is self._program.main:
            return {}
        return {"clock_of": self._program.clocked.path.rstrip("/"), "clocks": self.outer_counts()}

    def of_row(self) -> dict[str, int | float]:
        """The position in a row of metrics: optimizer steps, epochs as a fraction, and `outer_counts`."""
        step, epoch = int(self.count("steps") or 0), float(self.count("epochs") or 0)
        return {"step": step, "epoch": epoch, **self.outer_counts()}

    def epoch_length(self) -> int | None:
        """The number of batches in the current epoch; None if it is not known."""
        clock = self._program.clock(self._program.clocked, "epoch_batches")
        target = clock.declared.target if clock is not None else None
        return getattr(clock.node.instance, target) or None if clock is not None and target is not None else None

    def window(self) -> tuple[int, int] | None:
        """The backward passes so far in the open window, and its size (0: not known); None if no window is open."""
        for node in self._program.nodes_in(self._program.clocked):
            for field in node.kind.fields.values():
                if field.counts is not None and (passes := getattr(node.instance, field.name)):
                    sizes = [getattr(node.instance, name) for name in (field.window, field.target) if name is not None]
                    return passes, next(filter(None, sizes), 0)
        return None

    def evaluation(self, position: int) -> tuple[str, int, int | None] | None:
        """The evaluation at a position: the name of its metrics, the batches fetched, and how many it has; else None.

        The number is None if the length of the data is not known.
        """
        for scope in self._program.nodes[position].scope.around[::-1]:
            nodes = [node for node in self._program.nodes_in(scope) if not node.bypassed]
            names = [str(node.parameters[node.kind.records]) for node in nodes if node.kind.records]
            fetching = [node.instance for node in nodes if node.kind.fetches]
            if fetching and names and not scope.steps:
                return names[0], fetching[0].epoch_batches, fetching[0].epoch_length or None
        return None

    def shares(self, until: Trigger) -> dict[Term, float]:
        """For each amount at which the run ends or stops and that is counted now: the share reached, from 0 to 1."""
        around = self._program.clocked.around
        terms = [(self._program.clocks[self._program.main][term.base.unit], term) for term in self.ends]
        terms += [(clock, term) for clock, term in self._program.limits(until) if clock.node.scope in around]
        return {term: min(1.0, float(clock.now() / term.base.amount)) for clock, term in terms}

    def describe(self) -> str:
        """The position in words: ``step 12, epoch 1.50, batch 5/10, window 2/4``.

        Counts of graphs around the one that trains come first: ``fold 2``. A graph that counts none of these has
        the units that it counts: ``4 batches, 8 samples``.
        """
        parts = [f"{name} {_text(as_fraction(value))}" for name, value in self.outer_counts().items()]
        for unit, word in (("steps", "step"), ("epochs", "epoch"), ("epoch_batches", "batch")):
            if (value := self.count(unit)) is not None:
                length = self.epoch_length() if unit == "epoch_batches" else None
                parts.append(f"{word} {_text(value)}" + (f"/{length}" if length is not None else ""))
        if (window := self.window()) is not None:
            parts.append(f"window {window[0]}/{window[1] or '?'}")
        units = [unit for unit in self._program.clocked.graph.units if unit != "seconds"]  # which no two runs share
        return ", ".join(parts or [f"{decimal(self.count(unit) or Fraction(0))} {unit}" for unit in units])


def _text(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"{float(value):.2f}"
