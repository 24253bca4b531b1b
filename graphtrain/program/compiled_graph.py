"""A graph bound to resources and compiled: all of a trainer that another graph replaces."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, final

from graphtrain.errors import GraphError, UsageError
from graphtrain.graph import Graph
from graphtrain.graph.renaming import Renaming
from graphtrain.metrics.recorder import Recorder
from graphtrain.names import suggestion
from graphtrain.plan.flow import Flow
from graphtrain.plan.plan import Plan
from graphtrain.plan.save_points import SavePoints
from graphtrain.plan.scope import SlotTarget, Target
from graphtrain.plan.slots import Slots
from graphtrain.program.bind import BoundNode, ConstantPlace, FieldPlace, Place, Program, SlotPlace, TuplePlace
from graphtrain.program.clock import RunClock
from graphtrain.program.requests import Requests
from graphtrain.program.run_state import StatefulObjects
from graphtrain.program.stopwatch import Stopwatch
from graphtrain.program.table import Compiler


@final
class CompiledGraph:
    """What the loop runs for one graph, and what of it is alive where.

    Arguments:
        resources: what the user supplies, by name.
        prepared: the same made ready, with what the engine provides.
        requests: is told when an edge leads to the end.

    Raises:
        GraphError: a resource that the graph reads is missing.
    """

    def __init__(
        self,
        graph: Graph,
        resources: Mapping[str, Any],
        prepared: Mapping[str, Any],
        requests: Requests,
        recorder: Recorder,
        watch: Stopwatch,
        former: CompiledGraph | None = None,
        renaming: Renaming | None = None,
    ) -> None:
        self.graph = graph
        self.program = Program(Plan(graph), prepared)
        if problems := [*self.program.foreign_problems(), *self.program.missing_problems(resources)]:
            raise GraphError(problems, f"graph `{graph.name}`")
        # Nodes that are as they were keep their object: an iterator that it holds is continued, nothing is fetched
        # again. They get it before anything is compiled, for what is compiled refers to it.
        self._kept: set[BoundNode] = set()
        if former is not None:
            assert renaming is not None, "they come together"
            self._kept = _keep_instances(self.program, former.program, renaming)
        self.compiler = Compiler(self.program, lambda: requests.post("ended"), watch)
        if problems := self.program.missing_problems(resources):  # what a user's step function asks for is known now
            raise GraphError(problems, f"graph `{graph.name}`")
        self.table = self.compiler.table
        self.run_clock = RunClock(self.program)
        self.state = StatefulObjects(self.program, resources, recorder)
        self._save_points = SavePoints(self._slots())

    def _slots(self) -> Slots:
        """What the nodes that are bound here read and write, the inputs of user functions included."""
        program = self.program
        bypassed = {bound.path for bound in program.nodes if bound.bypassed}
        extra_reads = {path: self._slot_targets(places) for path, places in self.table.extra_inputs.items()}
        return Slots(Flow(program.plan, bypassed), extra_reads)

    def _slot_targets(self, places: Iterable[Place]) -> list[Target]:
        targets: list[Target] = []
        for place in places:
            if isinstance(place, SlotPlace):
                targets.append(SlotTarget(self.program.slot_names[place.index]))
            elif isinstance(place, TuplePlace):
                targets += self._slot_targets(place.places)
        return targets

    @property
    def start(self) -> int:
        """The position of the node that the graph starts with."""
        return self.program.main.nodes[self.graph.start].index

    def path(self, position: int) -> str:
        """The path of the node at a position."""
        return self.program.nodes[position].path

    def alive(self, position: int, ended: bool = False) -> set[int]:
        """The slots that will be read, before the node at a position runs; if it took an edge to the end, after it."""
        return {self.program.slot_index(name) for name in self.alive_names(position, ended)}

    def alive_names(self, position: int, ended: bool = False) -> set[str]:
        """Their names, as paths."""
        return set(self._save_points.alive(self.path(position), ended=ended))

    def written(self) -> set[int]:
        """The slots that hold a value: what was written last, whether somebody will read it or not."""
        # Constants come after them in the table.
        return {index for index in range(len(self.program.slot_names)) if self.program.slots[index] is not None}

    def is_save_point(self, position: int, ended: bool = False) -> bool:
        """True if nothing alive there is declared transient."""
        return not self._save_points.transient(self.path(position), ended=ended)

    def save_points(self) -> list[str]:
        """The paths of all of them."""
        return [bound.path for bound in self.program.nodes if self.is_save_point(bound.index)]

    def activity(self, position: int) -> str | None:
        """What time is counted under at a position, other than training."""
        return self.program.nodes[position].scope.activity

    # ---- beginning and resuming

    def begin(self) -> None:
        """Set everything up from the start."""
        self.compiler.enter(self.program.main, reset=True)

    def locate(self, path: str, saved: Collection[str], ended: bool = False, hint: str = "") -> int:
        """The position of a node at which a run stands whose slots `saved` are at hand.

        Arguments:
            hint: what to do where there is no such node. Default: the nearest name is named.

        Raises:
            UsageError: the graph has no such node, or needs a slot there that is not at hand.
        """
        bound = self.program.by_path.get(path)
        if bound is None:
            raise UsageError(
                f"the run is at the node `{path}`, which this graph does not have",
                hint or suggestion(path, self.program.by_path),
            )
        if self.alive_names(bound.index, ended) - set(saved):
            for name in sorted(set(self._save_points.needed(path, ended=ended)) - set(saved)):
                reader = self._save_points.reader_after(name, path, ended=ended)
                raise UsageError(
                    f"this graph needs the slot `{name}` at `{path}`, which the run does not hold there: "
                    f"`{reader}` reads it before anything writes it",
                    f"train on to where it is not needed before `{reader}` is inserted, or read it with a default "
                    f"(`{name.rpartition('/')[2]}=None` in its kind); --graph saved resumes with the saved graph",
                )
        return bound.index

    @property
    def kept_paths(self) -> set[str]:
        """The paths of the nodes that kept the object that they had in the former graph."""
        return {bound.path for bound in self._kept}

    def resume_at(self, position: int) -> None:
        """Set the nodes around a position up, from the progress that they have. May draw random numbers."""
        for scope in self.program.nodes[position].scope.around():
            self.compiler.enter(scope, reset=False, ready=self._kept)


def _keep_instances(program: Program, former: Program, renaming: Renaming) -> set[BoundNode]:
    """Give the nodes that are just as they were in another program the object that they had there."""
    kept = set()
    former_slots = [renaming.slot(name) for name in former.slot_names]
    for bound in program.nodes:
        old = former.by_path.get(renaming.former(bound.path) or "")
        if old is None or old.bypassed or bound.bypassed:
            continue
        if _same(bound, old, program.slot_names, former_slots):
            bound.hold(old.instance)
            kept.add(bound)
    return kept


def _same(bound: BoundNode, old: BoundNode, slots: list[str], old_slots: list[str]) -> bool:
    """True if a node would be set up as it was."""
    if bound.kind is not old.kind or bound.parameters != old.parameters:
        return False
    return _supplies(bound.setup_reads, slots) == _supplies(old.setup_reads, old_slots)


def _supplies(places: Iterable[Place], slots: list[str]) -> list[object]:
    """What can be compared of what a node is set up with: a resource may refuse to be compared as a value."""
    found: list[object] = []
    for place in places:
        match place:
            case SlotPlace(index):
                found.append(slots[index])
            case FieldPlace(bound, name):
                found.append((bound.path, name))
            case TuplePlace(parts):
                found += _supplies(parts, slots)
            case ConstantPlace(value):
                found.append(value if isinstance(value, int | float | str) else id(value))
    return found
