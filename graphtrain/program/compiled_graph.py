"""A graph bound to resources and compiled: all of a trainer that another graph replaces."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, final

from graphtrain.errors import GraphError, UsageError
from graphtrain.graph import Graph
from graphtrain.graph.renaming import Renaming
from graphtrain.metrics.recorder import Recorder
from graphtrain.names import suggestion
from graphtrain.plan.flow import Flow
from graphtrain.plan.plan import Plan
from graphtrain.plan.save_points import SavePoints
from graphtrain.plan.scope import FieldTarget, ResourceTarget, SlotTarget, leaves
from graphtrain.plan.slots import Slots
from graphtrain.program.bind import BoundNode, Program, trains
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
        # Nodes that are as they were keep their object: an iterator that it holds is continued, nothing is fetched
        # again. They get it before anything is compiled, for what is compiled refers to it.
        self._kept: set[BoundNode] = set()
        if former is not None:
            assert renaming is not None, "they come together"
            self._kept = _keep_instances(self.program, former.program, renaming)
        self.compiler = Compiler(self.program, lambda: requests.post("ended"), watch)
        # Everything that is read, by users' step functions too, is known now.
        if problems := self.program.problems(resources):
            raise GraphError(problems, f"graph `{graph.name}`")
        self.table = self.compiler.table
        self.run_clock = RunClock(self.program)
        self.state = StatefulObjects(self.program, resources, recorder)
        bypassed = {bound.path for bound in self.program.nodes if bound.bypassed}
        slots = Slots(Flow(self.program.plan, bypassed), self.table.extra_inputs)
        self._save_points = SavePoints(slots)
        self._hearing = [bound for bound in self.program.nodes if bound.kind.hears_rows and not bound.bypassed]
        self._recording = [bound for bound in self.program.main.nodes.values() if _may_record(bound)]
        self._runs_before: dict[BoundNode, int] = {}

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

    def has_no_batch(self) -> bool:
        """True if the graph trains, and has been given no batch to train on."""
        return trains(self.graph) and self.run_clock.count("batches") == 0

    # ---- metrics

    def hear_row(self, row: Mapping[str, float], position: int) -> None:
        """Tell the nodes that hear of rows of metrics of one that was recorded by the node at a position."""
        for bound in self._hearing:
            bound.instance.hear_row(row, self.activity(position) is not None)

    def has_recorded_all(self) -> bool:
        """True if every node of the outermost graph that may record metrics has run since the run began here."""
        return all(bound.instance.runs > self._runs_before.get(bound, 0) for bound in self._recording)

    # ---- beginning and resuming

    def begin(self) -> None:
        """Set everything up from the start."""
        self.compiler.enter(self.program.main, reset=True)
        self._runs_before = {}

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
        self._runs_before = {bound: bound.instance.runs for bound in self._recording}


def _may_record(bound: BoundNode) -> bool:
    """True for a node that is given the recorder, or whose body holds one that is, unless it never runs."""
    if bound.body is not None:
        return any(_may_record(inner) for inner in bound.body.nodes.values())
    trigger = bound.planned.trigger
    is_never_due = trigger is not None and not trigger.terms and not bound.planned.also_due
    return bound.kind.may_record_rows and not bound.bypassed and not is_never_due


def _keep_instances(program: Program, former: Program, renaming: Renaming) -> set[BoundNode]:
    """Give the nodes that are just as they were in another program the object that they had there."""
    kept = set()
    for bound in program.nodes:
        old = former.by_path.get(renaming.former(bound.path) or "")
        if old is None or old.bypassed or bound.bypassed:
            continue
        is_same = bound.kind is old.kind and bound.parameters == old.parameters
        if is_same and _supplies(program, bound) == _supplies(former, old, renaming):
            bound.hold(old.instance)
            kept.add(bound)
    return kept


def _supplies(program: Program, bound: BoundNode, renaming: Renaming | None = None) -> list[object]:
    """What can be compared of what a node is set up with: a resource may refuse to be compared as a value."""
    supplies: list[object] = []
    for read, target in bound.planned.setup_reads:
        for leaf in leaves(target):
            match leaf:
                case SlotTarget(path):
                    supplies.append(path if renaming is None else renaming.slot(path))
                    continue
                case FieldTarget(path, name):
                    owner = program.by_path[path]
                    value = owner.parameters.get(name, (path, name))
                case ResourceTarget(name):
                    value = program.resource(name, read, bound.path)
            supplies.append(value if isinstance(value, int | float | str | tuple) else id(value))
    return supplies
