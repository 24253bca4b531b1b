"""Where an evaluation is, and how many of them a run still has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, final

from graphtrain.errors import UsageError
from graphtrain.kind.fields import EpochFields
from graphtrain.program.bind import BoundGraph, BoundNode, Program
from graphtrain.program.rounds import is_fetching


class Evaluation(NamedTuple):
    """An evaluation that a run is inside of.

    Attributes:
        name: that of its metrics: ``"val"``.
        batch: batches fetched in it.
        batches: how many it will have, where the length of its data is known.
    """

    name: str
    batch: int
    batches: int | None


@final
class Evaluations:
    """The evaluations of a program: nested graphs without a backward pass, and a graph that does nothing else."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._planned: dict[str, int | None] = {}

    def now(self, position: int) -> Evaluation | None:
        """The evaluation in which the node at a position is; None outside of one."""
        around = [*self._program.nodes[position].scope.around()]
        return next((found for scope in reversed(around) if (found := _of(scope)) is not None), None)

    def passes(self, position: int) -> dict[str, float]:
        """How often each evaluation that is counted as an activity of its own has run, by that name.

        The one that the node at a position is in counts as far as it is, if that is known.
        """
        now = self.now(position)
        share = now.batch / now.batches if now is not None and now.batches else 0.0
        inside = {scope.prefix for scope in self._program.nodes[position].scope.around()}
        return {
            outer.node.name: outer.instance.runs + (min(share, 1.0) if f"{outer.path}/" in inside else 0.0)
            for outer in self._outer()
        }

    def planned(self, name: str) -> int | None:
        """How often an evaluation runs in the whole run; None where that is not known."""
        if name not in self._planned:
            path = next(outer.path for outer in self._outer() if outer.node.name == name)
            try:
                self._planned[name] = self._program.whole_run.visits(path)
            except UsageError:
                self._planned[name] = None
        return self._planned[name]

    def _outer(self) -> Iterator[BoundNode]:
        for scope in self._program.scopes.values():
            if scope.outer is not None and scope.activity is not None and scope.outer.scope.activity is None:
                yield scope.outer


def _of(scope: BoundGraph) -> Evaluation | None:
    nodes = [bound for bound in scope.nodes.values() if not bound.bypassed]
    names = [str(bound.parameters[bound.kind.roles.records]) for bound in nodes if bound.kind.roles.records]
    fetching = next(filter(is_fetching, nodes), None)
    if fetching is None or not names or scope.names.steps:
        return None
    fields = fetching.kind.epoch_fields or EpochFields()
    batch, batches = (getattr(fetching.instance, name) for name in (fields.epoch_batches, fields.length))
    return Evaluation(names[0], batch, batches or None)
