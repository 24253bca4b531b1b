"""What is read after a position of a run: what a checkpoint holds there, and whether one can be made."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import final

from graphtrain.kind import Read
from graphtrain.kind.fields import EpochFields
from graphtrain.names import quoted
from graphtrain.plan.flow import Flow
from graphtrain.plan.save_points import SavePoints
from graphtrain.plan.scope import SlotTarget, Target, slots_of
from graphtrain.plan.slots import Slots
from graphtrain.program.bind import BoundNode, Program
from graphtrain.program.rounds import is_fetching


@final
class Liveness:
    """The slots of a bound graph that are read after each position. `ended`: the run took an edge to the end there.

    Arguments:
        extra_inputs: path of a node -> what its step function reads beside what its kind declares.

    Attributes:
        flow: of the nodes that are not bypassed.
    """

    def __init__(self, program: Program, extra_inputs: Mapping[str, list[tuple[Read, Target]]]) -> None:
        self._program = program
        bypassed = {bound.path for bound in program.nodes if bound.bypassed}
        self.flow = Flow(program.plan, bypassed)
        self._points = SavePoints(Slots(self.flow, extra_inputs))
        self._drawing = [
            (bound, program.slot_index(target.path))
            for bound in program.nodes
            if bound.kind.epoch_fields is not None and not bound.bypassed
            for read, target in bound.planned.setup_reads
            if read.takes_written and isinstance(target, SlotTarget)
        ]

    def names(self, position: int, ended: bool = False) -> set[str]:
        """Their paths."""
        return set(self._points.alive(self._path(position), ended=ended))

    def slots(self, position: int, ended: bool = False) -> set[int]:
        """Their numbers; with those that an open epoch draws from, which a node may write again before the next."""
        drawn = {
            slot for bound, slot in self._drawing if self._program.slots[slot] is not None and _is_inside_epoch(bound)
        }
        return {self._program.slot_index(name) for name in self.names(position, ended)} | drawn

    def has_batch(self, position: int, ended: bool = False) -> bool:
        """True if a batch that was fetched is among them."""
        fetched = {path for bound in self._program.nodes if is_fetching(bound) for path in bound.planned.own_writes}
        return bool(fetched & self.names(position, ended))

    def comes_between_batches(self) -> bool:
        """True if a run stands somewhere while no batch is alive."""
        return any(not bound.bypassed and not self.has_batch(bound.index) for bound in self._program.nodes)

    def transient(self, position: int, ended: bool = False) -> list[str]:
        """Those that are declared transient; where there are any, it is no save point."""
        return self._points.transient(self._path(position), ended=ended)

    def save_points(self) -> list[str]:
        """The paths of all nodes at which nothing alive is declared transient."""
        return [bound.path for bound in self._program.nodes if not self.transient(bound.index)]

    def missing(self, bound: BoundNode, held: Collection[str], ended: bool) -> tuple[str, str] | None:
        """A slot that a run cannot do without at a node and does not hold, with the path of who reads it; or None."""
        if self.names(bound.index, ended) - set(held):
            for name in sorted(set(self._points.needed(bound.path, ended=ended)) - set(held)):
                return name, self._points.reader_after(name, bound.path, ended=ended)
        return None

    def why(self, slots: Collection[str], position: int) -> Iterator[str]:
        """Who reads some of them, and where one of them is alive throughout; in words."""
        path, nodes = self._path(position), self._program.nodes
        needed = [slot for slot in slots if slot in self._points.needed(path)]
        if readers := dict.fromkeys(self._points.reader_after(slot, path) for slot in needed):
            yield f"read later by {quoted(readers)}"
        for scope in nodes[position].scope.around():
            inside = [bound for bound in nodes if bound.path.startswith(scope.prefix) and not bound.bypassed]
            if all(set(slots) & self.names(bound.index) for bound in inside):
                whole = f"`{scope.outer.path}`" if scope.outer else f"the graph `{self._program.graph.name}`"
                yield f"{'alive' if len(slots) == 1 else 'one of them is alive'} at every node of {whole}"
                return

    def reader_of_data(self, slot: str) -> str:
        """The path of a node that takes what a slot holds for its data; empty if none does."""
        for bound in self._program.nodes:
            for read, target in bound.planned.setup_reads:
                if read.takes_written and slot in slots_of([target]):
                    return bound.path
        return ""

    def _path(self, position: int) -> str:
        return self._program.nodes[position].path


def _is_inside_epoch(bound: BoundNode) -> bool:
    names = bound.kind.epoch_fields or EpochFields()
    return bool(bound.fields[names.opened] and not bound.fields[names.last])
